/*
 * The end of communicators. NCCL's destroy waits until all ranks of the host have called it, but to
 * destroy a comm must not wait for other ranks. So a thread of its own calls NCCL. It is awaited
 * for a while, which is enough if the others destroy their comms too; otherwise it is detached, and
 * ends when they do so, or with the process.
 */
#define _GNU_SOURCE /* pthread_tryjoin_np */
#include "nccl_comm.h"

#include "alloc.h"
#include "process.h"

#include <errno.h>

enum {
  FLUSH_MS = 5000, /* for operations in flight; then they are aborted */
  AWAIT_MS = 2000,
  POLL_NS = 100 * 1000
};

typedef struct ending {
  xfi_nccl nccl[2];
  int ordinal; /* of the CUDA device */
} ending;

/* Let NCCL finish what peers may still be reading. */
static void end_one(xfi_nccl *nccl)
{
  const xfi_deadline deadline = xfi_deadline_after(FLUSH_MS);
  ncclResult_t result;

  if (nccl->handle == NULL) return;
  result = ncclCommFinalize(nccl->handle); /* the launcher's work too */
  if (xfi_nccl_launched(nccl, result, "ncclCommFinalize", deadline) != XFER_OK) return;
  if (nccl->launcher != NULL) (void)ncclCommDestroy(nccl->launcher);
  (void)ncclCommDestroy(nccl->handle);
}

static void *end_main(void *argument)
{
  ending *e = argument;

  (void)cudaSetDevice(e->ordinal); /* first: any other call would make a context on GPU 0 */
  (void)xfi_cuda_mode(cudaStreamCaptureModeRelaxed);
  end_one(&e->nccl[0]);
  end_one(&e->nccl[1]);
  xfi_free(e);
  return NULL;
}

/* Join the thread, or detach it after a while. */
static void await(pthread_t thread)
{
  const xfi_deadline deadline = xfi_deadline_after(AWAIT_MS);

  while (pthread_tryjoin_np(thread, NULL) == EBUSY) {
    if (xfi_deadline_expired(deadline)) {
      (void)pthread_detach(thread);
      return;
    }
    xfi_sleep_ns(POLL_NS);
  }
}

void xfi_nccl_end(xfi_nccl_comm *comm)
{
  pthread_t thread;
  ending *e = NULL;

  if (comm->data.handle == NULL && comm->control.handle == NULL) return;
  e = xfi_calloc(1, sizeof *e);
  if (e == NULL) { /* at least it waits for no peer that has failed */
    xfi_nccl_break(&comm->data, "");
    xfi_nccl_break(&comm->control, "");
    return;
  }
  *e = (ending){{comm->data, comm->control}, comm->ordinal};
  comm->data.handle = comm->control.handle = NULL;
  if (xfi_thread_start(&thread, end_main, e))
    await(thread);
  else
    (void)end_main(e);
}
