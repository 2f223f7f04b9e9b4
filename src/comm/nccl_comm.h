/* What the files of the NCCL transport share. nccl_communicator.c: one of NCCL's; nccl.c: rounds
 * and broadcasts; nccl_control.c: host bytes; nccl_create.c: makers; nccl_settings.c: NCCL's own
 * settings; nccl_end.c: the end. */
#ifndef XFI_NCCL_COMM_H
#define XFI_NCCL_COMM_H

#include "nccl_communicator.h"

#include "device.h"

#include <pthread.h>

enum {
  XFI_NCCL_SLOTS =
      XFI_ROUND_MESSAGES / 2,      /* peers of one control group: a send and a receive each */
  XFI_NCCL_SLOT_BYTES = 32 * 1024, /* bytes of a control message per group */
  XFI_NCCL_ROUNDS_AHEAD = 64       /* of the device: a stream's queue takes some 1,000 operations */
};

/* A round or broadcasts on the device. */
typedef struct xfi_nccl_flight {
  cudaEvent_t done;
  xfi_deadline deadline;
  int peers[XFI_ROUND_MESSAGES]; /* [n_peers] for the error text */
  int n_peers;
  xfi_cancellation cancellation;
} xfi_nccl_flight;

typedef struct xfi_nccl_comm {
  xfi_comm base;
  int ordinal;        /* of the CUDA device */
  xfi_alarms *alarms; /* of the device; not owned */

  /* Host bytes. On few channels, so that it takes little memory; used by the caller's thread alone,
   * which waits for each call, so it never stands beside the other in different orders. */
  xfi_nccl control; /* ended once there is a `host` */
  cudaStream_t control_stream;
  cudaEvent_t control_done;
  size_t n_control_bytes;
  char *device_bytes; /* [n_control_bytes] */
  char *host_bytes;   /* likewise, pinned */
  xfi_comm *host;     /* between processes of one host, in place of that; NULL: there are others */

  /* Rounds and broadcasts: made by the first commit that has any, and again after an abort. Guarded
   * by lock while anything is in flight, since the alarm looks at that. */
  pthread_mutex_t lock;
  xfi_alarm alarm;
  xfi_nccl data;
  bool *is_connected; /* [size] of data, with whom; one made after an abort is with nobody, though
                       * plans stay whose messages had all come */
  uint64_t n_rounds;
  uint64_t n_ended; /* of them, as far as is known: they end in order */
  xfi_nccl_flight flights[XFI_NCCL_ROUNDS_AHEAD]; /* of the last rounds, by turns */
  xfi_deadline next_check;                        /* the alarm's next; never: none is in flight */
  bool is_late;                                   /* a deadline passed before its round ended */
} xfi_nccl_comm;

static inline xfi_nccl_comm *xfi_nccl_of(xfi_comm *comm)
{
  return (xfi_nccl_comm *)comm;
}

/* nccl.c: of the alarm, and the table's; the lock is taken. */
int64_t xfi_nccl_ring(xfi_alarm *alarm, int64_t now_ns);
xfi_round_fn xfi_nccl_round;
xfi_broadcast_fn xfi_nccl_broadcast;
xfer_status xfi_nccl_connect(xfi_comm *comm, const bool *peers, bool broadcasts,
                             xfi_deadline deadline);
void xfi_nccl_abort_data(xfi_comm *comm, const char *why);
uint64_t xfi_nccl_n_data_ends(xfi_comm *comm);
xfer_status xfi_nccl_check_data(xfi_comm *comm, uint64_t n_ends);
void xfi_nccl_unwatch(xfi_comm *comm, const void *context);

/* nccl_settings.c: of those that ranks should have in common. */
uint64_t xfi_nccl_settings_hash(void);
/* All ranks, where their hashes differ: comm->data.difference becomes the first difference. */
xfer_status xfi_nccl_settings_compare(xfi_nccl_comm *comm, xfi_deadline deadline);

/* nccl_end.c: give back the communicators that there are, waiting for no other rank for long. */
void xfi_nccl_end(xfi_nccl_comm *comm);

/* nccl_control.c */
/* All ranks: if they are processes of one host, host bytes go between them without a device from
 * here on. */
xfer_status xfi_nccl_bootstrap_host(xfi_nccl_comm *comm, const unsigned char domain[64],
                                    xfi_deadline deadline);
xfi_all_gather_fn xfi_nccl_all_gather;
void xfi_nccl_decline(xfi_comm *comm, const char *why);
xfi_exchange_fn xfi_nccl_exchange;
/* Host bytes over either communicator, as exchange() is told them; of data NULL, any. */
xfer_status xfi_nccl_carry(xfi_nccl_comm *comm, xfi_nccl *nccl, const xfi_messages *messages,
                           xfi_deadline deadline);
/* Wait for the control stream; `nccl` is what the work on it is of, which `what` says. */
xfer_status xfi_nccl_control_wait(xfi_nccl_comm *comm, xfi_nccl *nccl, const char *what,
                                  xfi_deadline deadline);

#endif
