/* Inside of the comm whose ranks are threads. local.c has the idea, the group and its failures;
 * local_gather.c and local_message.c the two ways in which bytes travel.
 */
#ifndef XFI_LOCAL_H
#define XFI_LOCAL_H

#include "late.h"

enum {
  XFI_LOCAL_YIELDS = 8,       /* before a rank sleeps */
  XFI_LOCAL_SLOT_BYTES = 224, /* a rank's gathered bytes up to here lie in its slot, more apart */
  XFI_LOCAL_ALARM = 1         /* bit of `turn`; the generation is in the others */
};

/* Where a rank offers a message to another. Both ends make their calls in the same order and a
 * call ends once its messages are taken, so there is one at a time. */
typedef struct xfi_local_post {
  const void *data;
  xfi_terms offered;
  xfi_terms wanted;  /* once refused */
  _Atomic int state; /* see local_message.c */
} xfi_local_post;

/* What a rank gives to one gathering. */
typedef struct xfi_local_slot {
  xfi_gathering of;
  bool failed;          /* there was no memory for the bytes */
  unsigned char *large; /* [capacity] bytes that do not fit in `small` */
  size_t capacity;
  unsigned char small[XFI_LOCAL_SLOT_BYTES];
} xfi_local_slot;

/* One rank's handle and what others see of it. */
typedef struct xfi_local_rank {
  xfi_comm base;
  struct xfi_local_group *group;
  xfi_waiting *said; /* for whom it waits */
  xfi_local_slot slots[2];
  _Atomic uint32_t arrived; /* 1 + the generation at which it last arrived, to name who did not */
  _Atomic bool gone;        /* its handle was destroyed */

  _Atomic uint32_t bell; /* counts what may interest this rank while it waits for messages */
  _Atomic bool sleeping; /* on the bell */
  xfi_local_post *posts; /* [n_ranks] to each */
  _Atomic int n_unsent;  /* of the call in progress */
  bool *awaits;          /* [n_ranks] a message of each, in the call in progress */
  xfi_message *casts;    /* [n_ranks] of a broadcast */
  char pad[64];          /* keeps the next rank's first words off this one's last cache line */
} xfi_local_rank;

/* What the ranks share. Freed by the last handle. */
typedef struct xfi_local_group {
  int n_ranks;
  xfi_local_rank *ranks; /* [n_ranks] */
  _Atomic int n_handles;
  _Atomic int n_arrived;
  _Atomic uint32_t turn;  /* generation * 2 + alarm */
  _Atomic int n_sleepers; /* on `turn` */

  xfi_broken broken;
} xfi_local_group;

/* Wakes a rank that waits for messages. */
void xfi_local_ring(xfi_local_rank *rank);
/* Wakes everybody to look at what has happened. */
void xfi_local_raise_alarm(xfi_local_group *group);
/* Every pending and later call fails with this text, the first that is given. */
#define XFI_LOCAL_BREAK(group, ...)                                                                \
  ((void)xfi_broken_set(&(group)->broken, __VA_ARGS__), xfi_local_raise_alarm(group))
/* Cheap: may the comm be broken, or a rank have left? */
bool xfi_local_is_alarmed(const xfi_local_group *group);
/* Breaks the comm because `peer`, whom we need, has left. Returns XFER_ERR_COMM. */
xfer_status xfi_local_fail_for_gone(const xfi_local_rank *me, int peer);

xfi_all_gather_fn xfi_local_all_gather;
xfi_exchange_fn xfi_local_exchange;
xfi_round_fn xfi_local_round;
xfi_broadcast_fn xfi_local_broadcast;

#endif
