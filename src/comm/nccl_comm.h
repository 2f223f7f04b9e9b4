/* What the files of the NCCL transport share. nccl_communicator.c: one communicator of NCCL's;
 * nccl.c: rounds and broadcasts; nccl_control.c: host bytes; nccl_create.c: makers;
 * nccl_settings.c: NCCL's own settings; nccl_end.c: the end. */
#ifndef XFI_NCCL_COMM_H
#define XFI_NCCL_COMM_H

#include "nccl_communicator.h"

#include "device.h"

#include <pthread.h>

enum {
  XFI_NCCL_SLOTS =
      XFI_ROUND_MESSAGES / 2,      /* peers of one control group: a send and a receive each */
  XFI_NCCL_SLOT_BYTES = 32 * 1024, /* bytes of a control message per group */
  XFI_NCCL_ROUNDS_AHEAD = 64       /* most rounds in flight: a stream's queue holds about 1,000 */
};

/* A round or broadcasts on the device. */
typedef struct xfi_nccl_flight {
  cudaEvent_t done;
  xfi_deadline deadline;
  int peers[XFI_ROUND_MESSAGES]; /* [n_peers] that the error text names */
  int n_peers;
  xfi_cancellation cancellation;
} xfi_nccl_flight;

typedef struct xfi_nccl_comm {
  xfi_comm base;
  int ordinal;        /* number of the CUDA device */
  xfi_alarms *alarms; /* the device's alarms, not owned */

  /* The communicator of host bytes, on few channels, so that it takes little memory. Only the
   * caller's thread uses it, and waits for each call, so it and `data` are never in flight together
   * in different orders. */
  xfi_nccl control; /* ended once there is a `host` */
  cudaStream_t control_stream;
  cudaEvent_t control_done;
  size_t n_control_bytes;
  char *device_bytes; /* [n_control_bytes] */
  char *host_bytes;   /* [n_control_bytes] pinned host memory */
  xfi_comm
      *host; /* replaces `control` between processes of one host; NULL: there are other hosts */

  /* The communicator of rounds and broadcasts: the first commit that has any makes it, and the
   * first one after an abort. The lock guards these fields while anything is in flight, since the
   * alarm uses them. */
  pthread_mutex_t lock;
  xfi_alarm alarm;
  xfi_nccl data;
  bool *is_connected; /* [size] the ranks with which `data` is connected: none after an abort,
                       * though plans whose messages had all arrived stay committed */
  uint64_t n_rounds;
  uint64_t n_ended; /* how many rounds are known to have ended; they end in order */
  xfi_nccl_flight flights[XFI_NCCL_ROUNDS_AHEAD]; /* the last rounds, a ring */
  xfi_deadline next_check; /* when the alarm rings next; never: nothing is in flight */
  bool is_late;            /* a deadline passed before its round ended */
} xfi_nccl_comm;

static inline xfi_nccl_comm *xfi_nccl_of(xfi_comm *comm)
{
  return (xfi_nccl_comm *)comm;
}

/* nccl.c: the alarm's function, and operations of the table. They take the lock. */
int64_t xfi_nccl_ring(xfi_alarm *alarm, int64_t now_ns);
xfi_round_fn xfi_nccl_round;
xfi_broadcast_fn xfi_nccl_broadcast;
xfer_status xfi_nccl_connect(xfi_comm *comm, const bool *peers, bool broadcasts,
                             xfi_deadline deadline);
void xfi_nccl_abort_data(xfi_comm *comm, const char *why);
xfer_status xfi_nccl_check_data(xfi_comm *comm, uint64_t n_aborts);
void xfi_nccl_unwatch(xfi_comm *comm, const void *context);

/* nccl_settings.c: all ranks: comm->data.difference becomes the first difference between ranks in
 * what they should have in common; "": there is none. */
xfer_status xfi_nccl_settings_compare(xfi_nccl_comm *comm, xfi_deadline deadline);

/* nccl_end.c: destroy all communicators, without a long wait for other ranks. */
void xfi_nccl_end(xfi_nccl_comm *comm);

/* nccl_control.c */
/* All ranks: agrees on `mine`, this rank's status so far. If the ranks are processes of one host,
 * host bytes go through shared memory from here on. */
xfer_status xfi_nccl_bootstrap_host(xfi_nccl_comm *comm, xfer_status mine,
                                    const unsigned char domain[64], xfi_deadline deadline);
xfi_all_gather_fn xfi_nccl_all_gather;
void xfi_nccl_decline(xfi_comm *comm, const char *why, xfi_deadline deadline);
xfi_exchange_fn xfi_nccl_exchange;
/* Exchange host bytes over either communicator; where a message's data is NULL, arbitrary
 * bytes. */
xfer_status xfi_nccl_carry(xfi_nccl_comm *comm, xfi_nccl *nccl, const xfi_messages *messages,
                           xfi_deadline deadline);
/* Wait for the control stream, whose work belongs to `nccl`; `what` names it in texts. */
xfer_status xfi_nccl_control_wait(xfi_nccl_comm *comm, xfi_nccl *nccl, const char *what,
                                  xfi_deadline deadline);

#endif
