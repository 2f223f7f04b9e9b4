/*
 * One NCCL communicator. Each operation is polled, until NCCL has launched it or the device has
 * done it, under the caller's deadline; a failure breaks the communicator for good.
 */
#ifndef XFI_NCCL_COMMUNICATOR_H
#define XFI_NCCL_COMMUNICATOR_H

#include "comm.h"
#include "cuda_call.h"

#include <nccl.h>
#include <pthread.h>

enum { XFI_NCCL_WHY_BYTES = 320, XFI_NCCL_DIFFERENCE_BYTES = 160 };

/* A private, non-blocking communicator, since operations that wait for other ranks, such as
 * connecting, have a deadline. NCCL starts a thread for each group of such a communicator, so
 * groups whose peers are all connected, which wait for nobody, go to a blocking one that shares its
 * connections. NCCL allows one thread at a time in both, and an abort only while no other thread is
 * inside; but the abort of the first ends a call that is inside the second. */
typedef struct xfi_nccl {
  ncclComm_t handle;   /* the non-blocking one; NULL: there is none, or it was aborted */
  ncclComm_t launcher; /* the blocking one; NULL: none, aborted, or it cannot share connections */
  pthread_t caller;    /* a thread in a call of the launcher that waits for other ranks, */
  bool has_caller;     /* if there is one */
  bool is_warm;        /* the launcher has the connections of broadcasts */
  char why[XFI_NCCL_WHY_BYTES]; /* why it was aborted; "": it was not */
  bool is_borrowed;             /* it is the caller's communicator, which is never aborted */
  char difference[XFI_NCCL_DIFFERENCE_BYTES]; /* for texts: how ranks' NCCL settings differ */
  _Atomic uint64_t n_aborts;                  /* how often it was aborted */
  xfi_comm *host;  /* while ranks connect: the comm over which others warn of failures; else NULL */
  uint64_t number; /* how often ranks have connected */
} xfi_nccl;

/* All ranks of `comm`: connect the ranks, on `n_channels` channels if that is not 0. */
xfer_status xfi_nccl_join(xfi_nccl *nccl, const xfi_comm *comm, const ncclUniqueId *id,
                          const char *name, int n_channels, xfi_deadline deadline);
/* All ranks: make the launcher; and give it the connections of broadcasts by a first broadcast of
 * `message` on the device `ordinal`. */
xfer_status xfi_nccl_make_launcher(xfi_nccl *nccl, const xfi_comm *comm, xfi_deadline deadline);
xfer_status xfi_nccl_warm_up_launcher(xfi_nccl *nccl, const xfi_message *message, int ordinal,
                                      cudaStream_t stream, xfi_deadline deadline);
/* XFER_ERR_COMM with the reason if the communicator was aborted. */
xfer_status xfi_nccl_usable(const xfi_nccl *nccl);
/* Abort the communicator and keep the reason. */
void xfi_nccl_break(xfi_nccl *nccl, const char *why);
/* Wait until NCCL has launched an operation: on a non-blocking communicator it may return "in
 * progress". */
xfer_status xfi_nccl_launched(xfi_nccl *nccl, ncclResult_t result, const char *call,
                              xfi_deadline deadline);
/* Wait until NCCL has launched an operation that it accepted; or, if `done`, which was recorded
 * after the operation, is not NULL, until the device has done it. `what` names it in texts. */
xfer_status xfi_nccl_await(xfi_nccl *nccl, cudaEvent_t done, const char *what,
                           xfi_deadline deadline);
/* Called at each poll: fails if another rank has warned of a failure. Checks only now and then. */
xfer_status xfi_nccl_check_warnings(xfi_nccl *nccl, int polls);
/* One group on `stream`, by the handle or the launcher: sends and receives or, if `root` is not
 * negative, broadcasts of the `sends`. */
xfer_status xfi_nccl_group(xfi_nccl *nccl, ncclComm_t by, const xfi_messages *messages, int root,
                           cudaStream_t stream, xfi_deadline deadline);

#endif
