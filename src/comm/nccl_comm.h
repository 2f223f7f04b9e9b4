/* What the files of the NCCL transport share. nccl.c: data, deadlines, makers; nccl_control.c: host
 * bytes. */
#ifndef XFI_NCCL_COMM_H
#define XFI_NCCL_COMM_H

#include "comm.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>

enum {
  XFI_NCCL_SLOTS =
      XFI_ROUND_MESSAGES / 2,      /* peers of one control group: a send and a receive each */
  XFI_NCCL_SLOT_BYTES = 32 * 1024, /* bytes of a control message per group */
  XFI_NCCL_CONTROL_BYTES = XFI_ROUND_MESSAGES * XFI_NCCL_SLOT_BYTES,
  XFI_NCCL_WHY_BYTES = 320
};

typedef struct xfi_nccl_comm {
  xfi_comm base;
  int ordinal; /* of the CUDA device */

  /* Below: guarded by lock. NCCL allows one thread at a time in a communicator, and an abort only
   * while no other thread is inside. */
  pthread_mutex_t lock;
  pthread_cond_t wake;
  pthread_t watcher;
  bool has_lock;
  bool has_watcher;
  bool stop;
  int64_t looks_at_ns; /* when the watcher looks next */
  ncclComm_t nccl;     /* NULL once broken */
  char why[XFI_NCCL_WHY_BYTES];
  bool in_flight; /* work up to `done` may not have ended */
  cudaEvent_t done;
  xfi_deadline deadline;
  int peers[XFI_ROUND_MESSAGES]; /* [n_peers] of the last round, for the error text */
  int n_peers;

  /* For host bytes. */
  cudaStream_t control;
  cudaEvent_t control_done;
  char *device_bytes; /* [XFI_NCCL_CONTROL_BYTES] */
  char *host_bytes;   /* likewise, pinned */
} xfi_nccl_comm;

static inline xfi_nccl_comm *xfi_nccl(xfi_comm *comm)
{
  return (xfi_nccl_comm *)comm;
}

/* All with the lock held. */

/* XFER_ERR_COMM with the reason if the comm is broken. */
xfer_status xfi_nccl_usable(xfi_nccl_comm *comm);
/* Abort NCCL and remember why. */
void xfi_nccl_break(xfi_nccl_comm *comm, const char *why);
/* Sets the text from NCCL's answer and breaks the comm. */
xfer_status xfi_nccl_failed(xfi_nccl_comm *comm, ncclResult_t result, const char *call);
/* Wait until NCCL has launched what was put to it: a non-blocking communicator may answer "in
 * progress". */
xfer_status xfi_nccl_launched(xfi_nccl_comm *comm, ncclResult_t result, const char *call,
                              xfi_deadline deadline);

int xfi_nccl_enter(const xfi_nccl_comm *comm);
void xfi_nccl_leave(const xfi_nccl_comm *comm, int before);
xfer_status xfi_nccl_cuda_failed(cudaError_t error, const char *call);

/* One group on `stream`: at most one send and one receive per peer. */
xfer_status xfi_nccl_group(xfi_nccl_comm *comm, const xfi_message *sends, int n_sends,
                           const xfi_message *recvs, int n_recvs, cudaStream_t stream,
                           xfi_deadline deadline);

/* nccl_control.c; these take the lock. */
xfer_status xfi_nccl_all_gather(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                                xfi_deadline deadline);
xfer_status xfi_nccl_exchange(xfi_comm *comm, const xfi_message *sends, int n_sends,
                              const xfi_message *recvs, int n_recvs, xfi_deadline deadline);
xfer_status xfi_nccl_warm_up(xfi_comm *comm, xfi_deadline deadline);

#define XFI_NCCL_CUDA_TRY(function, arguments)                                                     \
  do {                                                                                             \
    cudaError_t xfi_error = function arguments;                                                    \
    if (xfi_error != cudaSuccess) {                                                                \
      st = xfi_nccl_cuda_failed(xfi_error, #function);                                             \
      goto done;                                                                                   \
    }                                                                                              \
  } while (0)

#endif
