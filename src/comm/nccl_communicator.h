/*
 * One communicator of NCCL's. What is put to it is waited for by polls, until NCCL has launched it
 * or the device has done it, under the caller's deadline; what fails breaks it for good.
 */
#ifndef XFI_NCCL_COMMUNICATOR_H
#define XFI_NCCL_COMMUNICATOR_H

#include "comm.h"
#include "cuda_call.h"

#include <nccl.h>
#include <pthread.h>

enum { XFI_NCCL_WHY_BYTES = 320, XFI_NCCL_DIFFERENCE_BYTES = 160 };

/* A private, non-blocking communicator, since what waits for other ranks, such as connecting to
 * them, has a deadline. NCCL starts a thread for each of its groups, so those that find all
 * connected, which wait for nobody, go to a blocking one that shares its connections. NCCL allows
 * one thread at a time in both, and an abort only while no other thread is inside; but the abort of
 * the first ends a call that is inside the second. */
typedef struct xfi_nccl {
  ncclComm_t handle;            /* NULL: none, or aborted */
  ncclComm_t launcher;          /* the blocking one; NULL: likewise, or it would share nothing */
  pthread_t caller;             /* in a call of the launcher that waits for others, */
  bool has_caller;              /* if there is one */
  bool is_warm;                 /* the launcher knows the connections of broadcasts */
  char why[XFI_NCCL_WHY_BYTES]; /* it was aborted; "" : it was not */
  bool is_borrowed;             /* the caller's, which is not aborted */
  char
      difference[XFI_NCCL_DIFFERENCE_BYTES]; /* for texts: in what ranks' settings of NCCL differ */
  uint64_t n_ends;                           /* aborts */
  xfi_comm *host;  /* while ranks connect: where others tell that they do not; else NULL */
  uint64_t number; /* of the times that they did */
} xfi_nccl;

/* All ranks of `comm`: connect them, by `n_channels` if it is not 0. */
xfer_status xfi_nccl_join(xfi_nccl *nccl, const xfi_comm *comm, const ncclUniqueId *id,
                          const char *name, int n_channels, xfi_deadline deadline);
/* All of them again: make the launcher; and let it come to know the connections of broadcasts, by
 * one of `message` on the device `ordinal`. */
xfer_status xfi_nccl_make_launcher(xfi_nccl *nccl, const xfi_comm *comm, xfi_deadline deadline);
xfer_status xfi_nccl_warm_up_launcher(xfi_nccl *nccl, const xfi_message *message, int ordinal,
                                      cudaStream_t stream, xfi_deadline deadline);
/* XFER_ERR_COMM with the reason if it was aborted. */
xfer_status xfi_nccl_usable(const xfi_nccl *nccl);
/* Abort NCCL and remember why. */
void xfi_nccl_break(xfi_nccl *nccl, const char *why);
/* Wait until NCCL has launched what was put to it: a non-blocking communicator may answer "in
 * progress". */
xfer_status xfi_nccl_launched(xfi_nccl *nccl, ncclResult_t result, const char *call,
                              xfi_deadline deadline);
/* The same of what was taken already; or until the device has done it, where `done`, which was
 * recorded after it, is not NULL. `what` it is, for texts. */
xfer_status xfi_nccl_await(xfi_nccl *nccl, cudaEvent_t done, const char *what,
                           xfi_deadline deadline);
/* Where others are awaited: now and then, have they told that they do not come? */
xfer_status xfi_nccl_check_warnings(xfi_nccl *nccl, int polls);
/* One group on `stream`, by the handle or the launcher: at most one send and one receive per peer;
 * or, `root` not being negative, broadcasts of its `sends`. */
xfer_status xfi_nccl_group(xfi_nccl *nccl, ncclComm_t by, const xfi_messages *messages, int root,
                           cudaStream_t stream, xfi_deadline deadline);

#endif
