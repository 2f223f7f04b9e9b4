/*
 * One NCCL communicator: made, polled under deadlines, broken. nccl.c has one for data and
 * nccl_control.c one for host bytes. What the alarm may use at the same time is guarded by nccl.c's
 * lock, not here.
 */
#include "nccl_communicator.h"

#include "error.h"
#include "process.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

enum {
  SPIN_MS = 5, /* so long a rank polls without sleeping; then it sleeps between polls, */
  PAUSE_NS = 20 * 1000,
  WARNING_POLLS = 256 /* and once in so many, some 20 ms, checks whether another rank has failed */
};

xfer_status xfi_nccl_usable(const xfi_nccl *nccl)
{
  if (nccl->handle != NULL) return XFER_OK;
  return XFI_ERROR(XFER_ERR_COMM, XFI_BROKEN "%s",
                   nccl->why[0] != '\0' ? nccl->why : "it is not connected");
}

void xfi_nccl_break(xfi_nccl *nccl, const char *why)
{
  if (nccl->handle == NULL) return;
  nccl->n_aborts++;
  (void)snprintf(nccl->why, sizeof nccl->why, "%s", why);
  if (!nccl->is_borrowed) (void)ncclCommAbort(nccl->handle);
  if (nccl->has_caller) (void)pthread_join(nccl->caller, NULL);
  nccl->has_caller = false;
  if (nccl->launcher != NULL) (void)ncclCommAbort(nccl->launcher); /* also if it is half made */
  nccl->handle = nccl->launcher = NULL;
}

/* Sets the text from NCCL's result and breaks the communicator. */
static xfer_status failed(xfi_nccl *nccl, ncclResult_t result, const char *call)
{
  xfi_set_error("%s: %s: %s%s", call, ncclGetErrorString(result), ncclGetLastError(nccl->handle),
                nccl->difference);
  xfi_nccl_break(nccl, xfer_last_error());
  return XFER_ERR_COMM;
}

/* The same if the deadline has passed first. */
static xfer_status missed(xfi_nccl *nccl, const char *call, xfi_deadline deadline)
{
  xfi_set_error("%s: not all ranks came before %s%s", call, xfi_deadline_end(deadline),
                nccl->difference);
  xfi_nccl_break(nccl, xfer_last_error());
  return XFER_ERR_TIMEOUT;
}

xfer_status xfi_nccl_check_warnings(xfi_nccl *nccl, int polls)
{
  xfer_status st = XFER_OK;

  if (nccl->host == NULL || polls % WARNING_POLLS != 0) return XFER_OK;
  st = xfi_shared_check_all(nccl->host, nccl->number);
  if (st != XFER_OK) xfi_nccl_break(nccl, xfer_last_error());
  return st;
}

/* The state of both communicators, since each reports only its own groups. The launcher may be in
 * progress too: NCCL_COMM_BLOCKING=0 makes it non-blocking. */
static ncclResult_t query_state(ncclResult_t *state, const xfi_nccl *nccl)
{
  const ncclResult_t result = ncclCommGetAsyncError(nccl->handle, state);

  if (result != ncclSuccess || *state != ncclSuccess || nccl->launcher == NULL) return result;
  return ncclCommGetAsyncError(nccl->launcher, state);
}

xfer_status xfi_nccl_await(xfi_nccl *nccl, cudaEvent_t done, const char *what,
                           xfi_deadline deadline)
{
  const xfi_deadline spin = xfi_deadline_after(SPIN_MS);
  int n_pauses = 0;

  for (;;) {
    ncclResult_t state = ncclInProgress;
    ncclResult_t result;
    const cudaError_t error =
        done == NULL ? cudaErrorNotReady : xfi_cuda_query_result(cudaEventQuery(done));

    if (error == cudaSuccess) return XFER_OK;
    if (error != cudaErrorNotReady) return xfi_cuda_failed(error, "cudaEventQuery");
    result = query_state(&state, nccl);
    /* If the query of a borrowed communicator fails it is polled again: other ranks wait for what
     * this one has half launched. */
    if (result == ncclSuccess || (nccl->is_borrowed && done == NULL)) result = state;
    if (result == ncclSuccess && done == NULL) return XFER_OK;
    if (result != ncclSuccess && result != ncclInProgress) return failed(nccl, result, what);
    if (xfi_deadline_expired(deadline)) return missed(nccl, what, deadline);
    if (!xfi_deadline_expired(spin)) {
      (void)sched_yield();
    } else {
      XFI_TRY(xfi_nccl_check_warnings(nccl, ++n_pauses));
      xfi_sleep_ns(PAUSE_NS);
    }
  }
}

xfer_status xfi_nccl_launched(xfi_nccl *nccl, ncclResult_t result, const char *call,
                              xfi_deadline deadline)
{
  if (result != ncclSuccess && result != ncclInProgress) return failed(nccl, result, call);
  if (result == ncclSuccess && nccl->is_borrowed) return XFER_OK;
  return xfi_nccl_await(nccl, NULL, call, deadline);
}

xfer_status xfi_nccl_join(xfi_nccl *nccl, const xfi_comm *comm, const ncclUniqueId *id,
                          const char *name, int n_channels, xfi_deadline deadline)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

  config.blocking = 0;
  config.splitShare = 1;
  config.commName = name;
  if (n_channels > 0) config.minCTAs = config.maxCTAs = n_channels;
  nccl->why[0] = '\0';
  nccl->is_warm = false;
  const ncclResult_t result =
      ncclCommInitRankConfig(&nccl->handle, comm->size, *id, comm->rank, &config);
  return xfi_nccl_launched(nccl, result, "ncclCommInitRankConfig", deadline);
}

xfer_status xfi_nccl_make_launcher(xfi_nccl *nccl, const xfi_comm *comm, xfi_deadline deadline)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

  config.blocking = 1;
  config.commName = "xfer launcher";
  const ncclResult_t result = ncclCommSplit(nccl->handle, 0, comm->rank, &nccl->launcher, &config);
  return xfi_nccl_launched(nccl, result, "ncclCommSplit", deadline);
}

/* What a first broadcast by the launcher needs: it blocks, so it is made in a thread of its own. */
typedef struct warmup {
  ncclComm_t launcher;
  const xfi_message *message;
  int ordinal;
  cudaStream_t stream;
  ncclResult_t result;
  _Atomic bool is_over;
} warmup;

static void *warmup_main(void *argument)
{
  warmup *w = argument;
  const xfi_message *m = w->message;

  (void)cudaSetDevice(w->ordinal);
  (void)xfi_cuda_mode(cudaStreamCaptureModeRelaxed);
  w->result =
      ncclBroadcast(m->data, m->data, m->n_bytes, ncclInt8, m->peer, w->launcher, w->stream);
  atomic_store(&w->is_over, true);
  return NULL;
}

xfer_status xfi_nccl_warm_up_launcher(xfi_nccl *nccl, const xfi_message *message, int ordinal,
                                      cudaStream_t stream, xfi_deadline deadline)
{
  warmup w = {nccl->launcher, message, ordinal, stream, ncclSuccess, false};

  nccl->has_caller = xfi_thread_start(&nccl->caller, warmup_main, &w);
  XFI_CHECK(nccl->has_caller, XFER_ERR_NOMEM, "no thread is to be had");
  for (int n_pauses = 1; !atomic_load(&w.is_over); n_pauses++) {
    if (xfi_deadline_expired(deadline)) return missed(nccl, "a first broadcast", deadline);
    XFI_TRY(xfi_nccl_check_warnings(nccl, n_pauses));
    xfi_sleep_ns(PAUSE_NS);
  }
  (void)pthread_join(nccl->caller, NULL);
  nccl->has_caller = false;
  XFI_TRY(xfi_nccl_launched(nccl, w.result, "ncclBroadcast", deadline));
  nccl->is_warm = true;
  return XFER_OK;
}

xfer_status xfi_nccl_group(xfi_nccl *nccl, ncclComm_t by, const xfi_messages *messages, int root,
                           cudaStream_t stream, xfi_deadline deadline)
{
  const int n_sends = messages->n_sends;
  ncclResult_t result = ncclGroupStart();
  ncclResult_t first_bad = ncclSuccess;
  char call[64] = "ncclGroupStart";

  if (result != ncclSuccess) return failed(nccl, result, call);
  for (int i = 0; i < n_sends + messages->n_recvs && first_bad == ncclSuccess; i++) {
    const xfi_message *m = i < n_sends ? &messages->sends[i] : &messages->recvs[i - n_sends];
    const char *what = root >= 0     ? "ncclBroadcast from"
                       : i < n_sends ? "ncclSend to"
                                     : "ncclRecv from";

    if (root >= 0)
      result = ncclBroadcast(m->data, m->data, m->n_bytes, ncclInt8, root, by, stream);
    else if (i < n_sends)
      result = ncclSend(m->data, m->n_bytes, ncclInt8, m->peer, by, stream);
    else
      result = ncclRecv(m->data, m->n_bytes, ncclInt8, m->peer, by, stream);
    if (result == ncclSuccess || result == ncclInProgress) continue;
    (void)snprintf(call, sizeof call, "%s rank %d", what, root >= 0 ? root : m->peer);
    first_bad = result;
  }
  result = ncclGroupEnd(); /* also after a failure, so that the thread has no group open */
  if (first_bad != ncclSuccess) return failed(nccl, first_bad, call);
  return xfi_nccl_launched(
      nccl, result, root >= 0 ? "ncclGroupEnd of broadcasts" : "ncclGroupEnd of a round", deadline);
}
