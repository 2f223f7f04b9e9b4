/* The direct lane's parts: made at commit by direct.c, used by runs in direct_run.c. */
#ifndef XFI_DIRECT_H
#define XFI_DIRECT_H

#include "link.h"
#include "run.h"

/* The ways of a copy: by whom it is done. */
enum { XFI_PUSH, XFI_PULL };

/* Copies one way that wait for the same peers and run on one stream. */
typedef struct xfi_group {
  int way;
  xfi_batch *batches[XFI_QUANT_PARTS]; /* one after the other */
  xfi_guard *guard;                    /* where the device has any */
  xfi_flags ready;                     /* on our page */
  xfi_flags left;
  xfi_flags started; /* on theirs */
  xfi_flags done;
  int *ranks;  /* [ready.n] */
  int stream;  /* index; -1: the caller's */
  int percent; /* of the device that it may have */
} xfi_group;

/* Own flags that streams may be waiting for. */
typedef struct xfi_watch {
  xfi_alarm alarm;
  xfi_flags flags;
  uint64_t value;
  uint64_t *late; /* the first that its deadline was missed for; NULL: none */
} xfi_watch;

struct xfi_direct {
  xfi_device *device;
  xfi_links links;
  bool *sends; /* [n peers] */
  bool *recvs;
  uint64_t bytes;
  uint64_t *page; /* [n_ranks][XFI_WORDS]; NULL without links */
  xfi_group *groups;
  int n_groups;
  xfi_flags tell;  /* READY on pages of peers that copy for us */
  xfi_flags await; /* DONE on our page by the same peers */
  int *await_ranks;
  xfi_watch watch;
  xfer_stream *streams;
  xfi_event **ended; /* [n_streams] */
  int n_streams;
  bool may_share; /* a stream with another rank; the last of `streams` then takes its place */
};

/* Rings when the deadline of a run has come: no stream waits any longer. */
int64_t xfi_direct_ring(xfi_alarm *alarm, int64_t now_ns);

#endif
