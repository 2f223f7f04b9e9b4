/* Who is late, when a deadline passes: each rank says for whom it waits, where the others of its
 * host or process can read it. */
#ifndef XFI_LATE_H
#define XFI_LATE_H

#include "comm.h"

/* Instead of the rank that a sleeper waits for. */
#define XFI_AWAKE UINT32_MAX
#define XFI_ASLEEP (UINT32_MAX - 1)  /* until anybody rings */
#define XFI_POLLING (UINT32_MAX - 2) /* waits for what no bell tells of */

/* What a rank says, in memory that others read. */
typedef struct xfi_said {
  _Atomic uint32_t until; /* whom: a rank, or one of those above. From the first sleep on, until
                             what is waited for has come, or who brings it has rung */
  _Atomic uint64_t n;     /* how often it was said */
  _Atomic bool awaits[];  /* [size] for whom the rank waits; counts unless it is XFI_AWAKE */
} xfi_said;

/* Of one rank of a comm. */
struct xfi_waits {
  int rank;
  int size;
  xfi_said **said; /* [size] NULL: that rank cannot be asked */
  bool *awaits;    /* [size] for whom this rank waits, to be said; the caller's */
  bool *asked;     /* [size] in looking for who is late, */
  uint64_t *n;     /* [size] and when that began */
};

/* The bytes of one xfi_said. */
static inline size_t xfi_said_bytes(int size)
{
  return sizeof(xfi_said) + (size_t)size;
}

/* With nobody to be asked. Is to be freed by xfi_free(). */
xfer_status xfi_waits_create(xfi_waits **waits, int rank, int size);
/* Forget for whom this rank waits, to note others in `awaits`; NULL: there is nobody to tell. */
XFI_DOOR bool *xfi_waits_note(xfi_waits *waits);
/* Tell what is noted, */
XFI_DOOR void xfi_waits_say(xfi_waits *waits);
/* and that this rank sleeps until one rings: that rank, or XFI_ASLEEP. */
void xfi_waits_sleep(xfi_waits *waits, uint32_t until);
/* It has come. Of NULL too. */
XFI_DOOR void xfi_waits_end(xfi_waits *waits);
/* The next part of a wait, after n of them, at whose end the rank says again that it waits. */
xfi_deadline xfi_waits_part(xfi_deadline end, int n);

/* Who is late. Zero at first. */
typedef struct xfi_late {
  int rank; /* -1: nobody is seen to be */
  int n_alike;
  int n_looks;
} xfi_late;
/* Looks once more, of a rank that has just said for whom it waits: true when that is enough, and
 * false after a while, when it is to say it again. */
XFI_DOOR bool xfi_waits_find_late(xfi_waits *waits, xfi_late *late);

#endif
