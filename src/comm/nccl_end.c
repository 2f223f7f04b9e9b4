/*
 * The end of communicators. NCCL's destroy waits until all ranks of the host have come to it, while
 * giving a comm back waits for no other rank: so a thread goes there. It is waited for a while,
 * which is enough where the others come too; else it is left behind, and ends when they do or with
 * the process.
 */
#include "nccl_comm.h"

#include "alloc.h"
#include "thread.h"

enum {
  FLUSH_MS = 5000, /* for what is on its way; then it is aborted */
  AWAIT_MS = 2000
};

typedef struct ending {
  xfi_nccl nccl[2];
  int ordinal; /* of the CUDA device */
  pthread_mutex_t lock;
  pthread_cond_t ended;
  bool is_over;
  bool is_left; /* behind: the last one frees it */
} ending;

/* Lets NCCL flush what peers may still be reading. */
static void end_one(xfi_nccl *nccl)
{
  const xfi_deadline deadline = xfi_deadline_after(FLUSH_MS);
  ncclResult_t result;

  if (nccl->handle == NULL) return;
  result = ncclCommFinalize(nccl->handle);
  if (xfi_nccl_launched(nccl, result, "ncclCommFinalize", deadline) == XFER_OK)
    (void)ncclCommDestroy(nccl->handle);
  nccl->handle = NULL;
}

static void ending_free(ending *e)
{
  (void)pthread_cond_destroy(&e->ended);
  (void)pthread_mutex_destroy(&e->lock);
  xfi_free(e);
}

static void *end_main(void *argument)
{
  ending *e = argument;
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  bool is_left;

  (void)cudaThreadExchangeStreamCaptureMode(&mode); /* nothing of ours is captured */
  (void)cudaSetDevice(e->ordinal);
  end_one(&e->nccl[0]);
  end_one(&e->nccl[1]);
  (void)pthread_mutex_lock(&e->lock);
  e->is_over = true;
  is_left = e->is_left;
  (void)pthread_cond_signal(&e->ended);
  (void)pthread_mutex_unlock(&e->lock);
  if (is_left) ending_free(e);
  return NULL;
}

static void await(ending *e)
{
  const struct timespec until = xfi_deadline_timespec(xfi_deadline_after(AWAIT_MS));
  int error = 0;
  bool is_over;

  (void)pthread_mutex_lock(&e->lock);
  while (!e->is_over && error == 0)
    error = pthread_cond_timedwait(&e->ended, &e->lock, &until);
  is_over = e->is_over;
  e->is_left = !is_over;
  (void)pthread_mutex_unlock(&e->lock);
  if (is_over) ending_free(e);
}

/* Takes both; the second may be NULL. */
static void end(int ordinal, xfi_nccl *first, xfi_nccl *second)
{
  pthread_condattr_t attr;
  pthread_t thread;
  ending *e = xfi_calloc(1, sizeof *e);

  if (e == NULL) { /* at least it waits for no peer that has failed */
    xfi_nccl_break(first, "");
    if (second != NULL) xfi_nccl_break(second, "");
    return;
  }
  e->ordinal = ordinal;
  e->nccl[0] = *first;
  first->handle = NULL;
  if (second != NULL) {
    e->nccl[1] = *second;
    second->handle = NULL;
  }
  (void)pthread_condattr_init(&attr);
  (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&e->ended, &attr);
  (void)pthread_condattr_destroy(&attr);
  (void)pthread_mutex_init(&e->lock, NULL);
  if (!xfi_thread_start(&thread, end_main, e)) {
    e->is_left = true;
    (void)end_main(e);
    return;
  }
  (void)pthread_detach(thread);
  await(e);
}

void xfi_nccl_end(xfi_nccl_comm *comm)
{
  end(comm->ordinal, &comm->data, &comm->control);
}

void xfi_nccl_end_control(xfi_nccl_comm *comm)
{
  end(comm->ordinal, &comm->control, NULL);
}
