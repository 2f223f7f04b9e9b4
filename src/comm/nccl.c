/*
 * NCCL as a transport: one private, non-blocking communicator.
 *
 * After each group the communicator is polled until NCCL has launched it, under the caller's
 * deadline. A thread per comm watches what is in flight on the device, since the caller may only
 * ever synchronise its stream; when a deadline is missed or NCCL reports an error, it aborts the
 * communicator, which ends the kernels that wait for a lost rank.
 */
#include "nccl_comm.h"

#include "alloc.h"
#include "device.h"
#include "error.h"
#include "plugin.h"
#include "xfer/nccl.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
  CREATE_TIMEOUT_MS = 10 * 60 * 1000,
  FINISH_TIMEOUT_MS = 5000, /* for finalising at destroy, before aborting instead */
  WATCH_MS = 500,     /* between two looks: each may hold up a run that is just being enqueued */
  SPIN_POLLS = 10000, /* polls before yielding the processor for longer */
  PAUSE_NS = 20 * 1000
};

int xfi_nccl_enter(const xfi_nccl_comm *comm)
{
  int before = -1;

  (void)cudaGetDevice(&before);
  if (before != comm->ordinal) (void)cudaSetDevice(comm->ordinal);
  return before;
}

void xfi_nccl_leave(const xfi_nccl_comm *comm, int before)
{
  if (before >= 0 && before != comm->ordinal) (void)cudaSetDevice(before);
}

xfer_status xfi_nccl_cuda_failed(cudaError_t error, const char *call)
{
  (void)cudaGetLastError();
  xfi_set_error("%s: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error));
  return error == cudaErrorMemoryAllocation ? XFER_ERR_NOMEM : XFER_ERR_CUDA;
}

/* ---- failure ------------------------------------------------------------------------------ */

xfer_status xfi_nccl_usable(xfi_nccl_comm *comm)
{
  if (comm->nccl != NULL) return XFER_OK;
  xfi_set_error("the comm is broken: %s", comm->why);
  return XFER_ERR_COMM;
}

void xfi_nccl_break(xfi_nccl_comm *comm, const char *why)
{
  if (comm->nccl == NULL) return;
  (void)snprintf(comm->why, sizeof comm->why, "%s", why);
  (void)ncclCommAbort(comm->nccl);
  comm->nccl = NULL;
  comm->in_flight = false;
}

xfer_status xfi_nccl_failed(xfi_nccl_comm *comm, ncclResult_t result, const char *call)
{
  xfi_set_error("%s: %s: %s", call, ncclGetErrorString(result), ncclGetLastError(comm->nccl));
  xfi_nccl_break(comm, xfi_last_error());
  return XFER_ERR_COMM;
}

xfer_status xfi_nccl_launched(xfi_nccl_comm *comm, ncclResult_t result, const char *call,
                              xfi_deadline deadline)
{
  ncclResult_t state = ncclInProgress;

  if (result != ncclSuccess && result != ncclInProgress) return xfi_nccl_failed(comm, result, call);
  for (int polls = 0;; polls++) {
    result = ncclCommGetAsyncError(comm->nccl, &state);
    if (result != ncclSuccess) return xfi_nccl_failed(comm, result, call);
    if (state == ncclSuccess) return XFER_OK;
    if (state != ncclInProgress) return xfi_nccl_failed(comm, state, call);
    if (xfi_deadline_expired(deadline)) {
      xfi_set_error("%s: not all ranks came in time", call);
      xfi_nccl_break(comm, xfi_last_error());
      return XFER_ERR_TIMEOUT;
    }
    if (polls < SPIN_POLLS) {
      (void)sched_yield();
    } else {
      struct timespec pause = {.tv_sec = 0, .tv_nsec = PAUSE_NS};
      (void)nanosleep(&pause, NULL);
    }
  }
}

/* "...with ranks 4,5,6" */
static void late_text(const xfi_nccl_comm *comm, char *text, size_t size)
{
  int n = snprintf(text, size,
                   "work in flight missed its deadline; rank %d was exchanging with rank%s ",
                   comm->base.rank, comm->n_peers == 1 ? "" : "s");

  for (int i = 0; i < comm->n_peers && n > 0 && (size_t)n < size; i++) {
    n += snprintf(text + n, size - (size_t)n, i == 0 ? "%d" : ",%d", comm->peers[i]);
  }
}

/* Looks at the work in flight; the lock is held. */
static void watch_look(xfi_nccl_comm *comm)
{
  char text[XFI_NCCL_WHY_BYTES];
  ncclResult_t state = ncclSuccess;
  cudaError_t error = cudaEventQuery(comm->done);

  if (error == cudaSuccess) {
    comm->in_flight = false;
  } else if (error != cudaErrorNotReady) {
    (void)snprintf(text, sizeof text, "CUDA failed beneath a round: %s", cudaGetErrorString(error));
    xfi_nccl_break(comm, text);
  } else if (ncclCommGetAsyncError(comm->nccl, &state) == ncclSuccess && state != ncclSuccess &&
             state != ncclInProgress) {
    (void)snprintf(text, sizeof text, "%s: %s", ncclGetErrorString(state),
                   ncclGetLastError(comm->nccl));
    xfi_nccl_break(comm, text);
  } else if (xfi_deadline_expired(comm->deadline)) {
    late_text(comm, text, sizeof text);
    xfi_nccl_break(comm, text);
  }
}

/* Looks at the deadline, and now and then for what NCCL may have to say. Sleeps on for a while when
 * nothing is in flight, so that runs in a row need not wake it. */
static void *watch_main(void *argument)
{
  xfi_nccl_comm *comm = argument;
  bool was_in_flight = false;

  (void)cudaSetDevice(comm->ordinal);
  (void)pthread_mutex_lock(&comm->lock);
  while (!comm->stop) {
    xfi_deadline next = xfi_deadline_after(WATCH_MS);

    if (comm->in_flight && comm->deadline.at_ns < next.at_ns) next = comm->deadline;
    if (!comm->in_flight && !was_in_flight) next.at_ns = INT64_MAX;
    was_in_flight = comm->in_flight;
    comm->looks_at_ns = next.at_ns;
    if (next.at_ns == INT64_MAX) {
      (void)pthread_cond_wait(&comm->wake, &comm->lock);
    } else {
      struct timespec until = xfi_deadline_timespec(next);
      (void)pthread_cond_timedwait(&comm->wake, &comm->lock, &until);
    }
    if (!comm->stop && comm->in_flight && comm->nccl != NULL && xfi_now_ns() >= next.at_ns)
      watch_look(comm);
  }
  (void)pthread_mutex_unlock(&comm->lock);
  return NULL;
}

static xfer_status watch_start(xfi_nccl_comm *comm)
{
  xfer_status st = XFER_OK;
  pthread_condattr_t attr;

  (void)pthread_condattr_init(&attr);
  (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&comm->wake, &attr);
  (void)pthread_condattr_destroy(&attr);
  (void)pthread_mutex_init(&comm->lock, NULL);
  comm->has_lock = true;
  comm->has_watcher = pthread_create(&comm->watcher, NULL, watch_main, comm) == 0;
  XFI_CHECK(comm->has_watcher, XFER_ERR_NOMEM, "no thread to watch over an NCCL comm");
done:
  return st;
}

/* ---- data --------------------------------------------------------------------------------- */

/* From here on the watcher sees to the deadline; the lock is held. */
static xfer_status put_in_flight(xfi_nccl_comm *comm, cudaStream_t stream, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;

  XFI_NCCL_CUDA_TRY(cudaEventRecord, (comm->done, stream));
  comm->deadline = deadline;
  comm->in_flight = true;
  if (deadline.at_ns < comm->looks_at_ns || comm->looks_at_ns == INT64_MAX)
    (void)pthread_cond_signal(&comm->wake);
done:
  return st;
}

xfer_status xfi_nccl_group(xfi_nccl_comm *comm, const xfi_message *sends, int n_sends,
                           const xfi_message *recvs, int n_recvs, cudaStream_t stream,
                           xfi_deadline deadline)
{
  ncclResult_t result = ncclGroupStart();
  ncclResult_t first_bad = ncclSuccess;
  char call[64] = "ncclGroupStart";

  if (result != ncclSuccess) return xfi_nccl_failed(comm, result, call);
  for (int i = 0; i < n_sends && first_bad == ncclSuccess; i++) {
    result = ncclSend(sends[i].data, sends[i].n_bytes, ncclInt8, sends[i].peer, comm->nccl, stream);
    if (result == ncclSuccess || result == ncclInProgress) continue;
    (void)snprintf(call, sizeof call, "ncclSend to rank %d", sends[i].peer);
    first_bad = result;
  }
  for (int i = 0; i < n_recvs && first_bad == ncclSuccess; i++) {
    result = ncclRecv(recvs[i].data, recvs[i].n_bytes, ncclInt8, recvs[i].peer, comm->nccl, stream);
    if (result == ncclSuccess || result == ncclInProgress) continue;
    (void)snprintf(call, sizeof call, "ncclRecv from rank %d", recvs[i].peer);
    first_bad = result;
  }
  result = ncclGroupEnd(); /* also after a failure, so that the thread has no group open */
  if (first_bad != ncclSuccess) return xfi_nccl_failed(comm, first_bad, call);
  return xfi_nccl_launched(comm, result, "ncclGroupEnd of a round", deadline);
}

static void remember_peers(xfi_nccl_comm *comm, const xfi_message *sends, int n_sends,
                           const xfi_message *recvs, int n_recvs)
{
  comm->n_peers = 0;
  for (int i = 0; i < n_recvs; i++)
    comm->peers[comm->n_peers++] = recvs[i].peer;
  for (int i = 0; i < n_sends && n_recvs == 0; i++)
    comm->peers[comm->n_peers++] = sends[i].peer;
}

static xfer_status nccl_round(xfi_comm *base, const xfi_message *sends, int n_sends,
                              const xfi_message *recvs, int n_recvs, xfer_stream stream,
                              xfi_deadline deadline)
{
  xfi_nccl_comm *comm = xfi_nccl(base);
  xfer_status st = XFER_OK;
  int before = xfi_nccl_enter(comm);

  (void)pthread_mutex_lock(&comm->lock);
  XFI_TRY(xfi_nccl_usable(comm));
  XFI_CHECK(n_sends + n_recvs <= XFI_ROUND_MESSAGES, XFER_ERR_INTERNAL, "a round of %d messages",
            n_sends + n_recvs);
  if (n_sends + n_recvs == 0) goto done;
  remember_peers(comm, sends, n_sends, recvs, n_recvs);
  XFI_TRY(xfi_nccl_group(comm, sends, n_sends, recvs, n_recvs, stream, deadline));
  XFI_TRY(put_in_flight(comm, stream, deadline));
done:
  (void)pthread_mutex_unlock(&comm->lock);
  xfi_nccl_leave(comm, before);
  return st;
}

static xfer_status broadcast_group(xfi_nccl_comm *comm, const xfi_message *messages, int n,
                                   int root, cudaStream_t stream, xfi_deadline deadline)
{
  ncclResult_t result = ncclGroupStart();
  ncclResult_t first_bad = ncclSuccess;

  if (result != ncclSuccess) return xfi_nccl_failed(comm, result, "ncclGroupStart");
  for (int i = 0; i < n && first_bad == ncclSuccess; i++) {
    result = ncclBroadcast(messages[i].data, messages[i].data, messages[i].n_bytes, ncclInt8, root,
                           comm->nccl, stream);
    if (result != ncclSuccess && result != ncclInProgress) first_bad = result;
  }
  result = ncclGroupEnd(); /* also after a failure, so that the thread has no group open */
  if (first_bad != ncclSuccess) return xfi_nccl_failed(comm, first_bad, "ncclBroadcast");
  return xfi_nccl_launched(comm, result, "ncclGroupEnd of broadcasts", deadline);
}

static xfer_status nccl_broadcast(xfi_comm *base, const xfi_message *messages, int n, int root,
                                  xfer_stream stream, xfi_deadline deadline)
{
  xfi_nccl_comm *comm = xfi_nccl(base);
  xfer_status st = XFER_OK;
  int before = xfi_nccl_enter(comm);

  (void)pthread_mutex_lock(&comm->lock);
  XFI_TRY(xfi_nccl_usable(comm));
  comm->n_peers = 1;
  comm->peers[0] = root;
  XFI_TRY(broadcast_group(comm, messages, n, root, stream, deadline));
  XFI_TRY(put_in_flight(comm, stream, deadline));
done:
  (void)pthread_mutex_unlock(&comm->lock);
  xfi_nccl_leave(comm, before);
  return st;
}

static void nccl_abort(xfi_comm *base, const char *why)
{
  xfi_nccl_comm *comm = xfi_nccl(base);

  (void)pthread_mutex_lock(&comm->lock);
  xfi_nccl_break(comm, why);
  (void)pthread_mutex_unlock(&comm->lock);
}

/* ---- life --------------------------------------------------------------------------------- */

/* Lets NCCL flush what peers may still be reading; a rank that is gone must not hold us up. */
static void nccl_finish(xfi_nccl_comm *comm)
{
  xfi_deadline deadline = xfi_deadline_after(FINISH_TIMEOUT_MS);

  if (comm->nccl == NULL) return;
  ncclResult_t result = ncclCommFinalize(comm->nccl);
  if (xfi_nccl_launched(comm, result, "ncclCommFinalize", deadline) != XFER_OK)
    return; /* it aborted */
  (void)ncclCommDestroy(comm->nccl);
  comm->nccl = NULL;
}

static void nccl_destroy(xfi_comm *base)
{
  xfi_nccl_comm *comm = xfi_nccl(base);

  if (comm == NULL) return;
  int before = xfi_nccl_enter(comm);
  if (comm->has_watcher) {
    (void)pthread_mutex_lock(&comm->lock);
    comm->stop = true;
    (void)pthread_cond_signal(&comm->wake);
    (void)pthread_mutex_unlock(&comm->lock);
    (void)pthread_join(comm->watcher, NULL);
  }
  nccl_finish(comm);
  if (comm->has_lock) {
    (void)pthread_cond_destroy(&comm->wake);
    (void)pthread_mutex_destroy(&comm->lock);
  }
  if (comm->done != NULL) (void)cudaEventDestroy(comm->done);
  if (comm->control_done != NULL) (void)cudaEventDestroy(comm->control_done);
  if (comm->control != NULL) (void)cudaStreamDestroy(comm->control);
  if (comm->device_bytes != NULL) (void)cudaFree(comm->device_bytes);
  if (comm->host_bytes != NULL) (void)cudaFreeHost(comm->host_bytes);
  xfi_nccl_leave(comm, before);
  xfi_free(comm);
}

static const xfi_comm_ops nccl_ops = {
    .name = "nccl",
    .has_rounds = true,
    .recv_direct = true,
    .destroy = nccl_destroy,
    .all_gather = xfi_nccl_all_gather,
    .exchange = xfi_nccl_exchange,
    .round = nccl_round,
    .broadcast = nccl_broadcast,
    .warm_up = xfi_nccl_warm_up,
    .abort = nccl_abort,
};

static xfer_status transport_create(xfi_comm **transport, const ncclUniqueId *id, int rank,
                                    int size)
{
  xfer_status st = XFER_OK;
  xfi_nccl_comm *made = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  xfi_deadline deadline = xfi_deadline_after(CREATE_TIMEOUT_MS);

  made = xfi_calloc(1, sizeof *made);
  XFI_CHECK(made != NULL, XFER_ERR_NOMEM, "an NCCL comm");
  made->base = (xfi_comm){.ops = &nccl_ops, .rank = rank, .size = size};
  XFI_NCCL_CUDA_TRY(cudaGetDevice, (&made->ordinal));
  XFI_NCCL_CUDA_TRY(cudaEventCreateWithFlags, (&made->done, cudaEventDisableTiming));
  XFI_NCCL_CUDA_TRY(cudaEventCreateWithFlags, (&made->control_done, cudaEventDisableTiming));
  XFI_NCCL_CUDA_TRY(cudaStreamCreateWithFlags, (&made->control, cudaStreamNonBlocking));
  XFI_NCCL_CUDA_TRY(cudaMalloc, ((void **)&made->device_bytes, XFI_NCCL_CONTROL_BYTES));
  XFI_NCCL_CUDA_TRY(cudaHostAlloc,
                    ((void **)&made->host_bytes, XFI_NCCL_CONTROL_BYTES, cudaHostAllocDefault));
  config.blocking = 0;
  config.commName = "xfer";
  ncclResult_t result = ncclCommInitRankConfig(&made->nccl, size, *id, rank, &config);
  XFI_CHECK(made->nccl != NULL, XFER_ERR_COMM, "ncclCommInitRankConfig: %s: %s",
            ncclGetErrorString(result), ncclGetLastError(NULL));
  XFI_TRY(xfi_nccl_launched(made, result, "ncclCommInitRankConfig", deadline));
  XFI_TRY(watch_start(made));
  *transport = &made->base;
  made = NULL;
done:
  if (made != NULL) nccl_destroy(&made->base);
  return st;
}

static xfer_status comm_create(xfer_comm **comm, const ncclUniqueId *id, int rank, int size)
{
  xfer_status st = XFER_OK;
  xfi_device *device = NULL;
  xfi_comm *transport = NULL;

  XFI_TRY(xfi_device_create_cuda(&device));
  XFI_TRY(transport_create(&transport, id, rank, size));
  XFI_TRY(xfi_comm_wrap(comm, transport, device));
  transport = NULL;
  device = NULL;
done:
  if (transport != NULL) transport->ops->destroy(transport);
  if (device != NULL) device->ops->destroy(device);
  return st;
}

/* ---- makers ------------------------------------------------------------------------------- */

_Static_assert(sizeof(ncclUniqueId) == XFER_NCCL_ID_BYTES, "an id is an ncclUniqueId");

xfer_status xfer_nccl_id(unsigned char id[XFER_NCCL_ID_BYTES])
{
  xfer_status st = XFER_OK;
  ncclUniqueId made;

  XFI_CHECK(id != NULL, XFER_ERR_ARG, "id is NULL");
  ncclResult_t result = ncclGetUniqueId(&made);
  XFI_CHECK(result == ncclSuccess, XFER_ERR_COMM, "ncclGetUniqueId: %s: %s",
            ncclGetErrorString(result), ncclGetLastError(NULL));
  memcpy(id, &made, sizeof made);
done:
  return st;
}

xfer_status xfer_comm_create_nccl_id(xfer_comm **comm, const unsigned char id[XFER_NCCL_ID_BYTES],
                                     int rank, int size)
{
  xfer_status st = XFER_OK;
  ncclUniqueId copy;

  XFI_CHECK(comm != NULL && id != NULL, XFER_ERR_ARG, "comm or id is NULL");
  XFI_CHECK(size >= 1 && rank >= 0 && rank < size, XFER_ERR_ARG, "rank %d of %d", rank, size);
  memcpy(&copy, id, sizeof copy);
  st = comm_create(comm, &copy, rank, size);
done:
  return st;
}

/* The id travels with a sign of whether rank 0 has one. */
typedef struct id_message {
  ncclUniqueId id;
  char valid[XFER_NCCL_ID_BYTES];
} id_message;

/* Wait for what is on `stream` and in the borrowed communicator. */
static xfer_status borrowed_wait(ncclComm_t nccl, cudaEvent_t event)
{
  xfer_status st = XFER_OK;
  xfi_deadline deadline = xfi_deadline_after(CREATE_TIMEOUT_MS);
  struct timespec pause = {.tv_sec = 0, .tv_nsec = PAUSE_NS};
  cudaError_t error = cudaErrorNotReady;

  while ((error = cudaEventQuery(event)) == cudaErrorNotReady) {
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = ncclCommGetAsyncError(nccl, &state);
    XFI_CHECK(result == ncclSuccess && (state == ncclSuccess || state == ncclInProgress),
              XFER_ERR_COMM, "the borrowed communicator: %s",
              ncclGetErrorString(result != ncclSuccess ? result : state));
    XFI_CHECK(!xfi_deadline_expired(deadline), XFER_ERR_TIMEOUT,
              "not all ranks of the borrowed communicator came in time");
    (void)nanosleep(&pause, NULL);
  }
  if (error != cudaSuccess) st = xfi_nccl_cuda_failed(error, "cudaEventQuery");
done:
  (void)cudaGetLastError(); /* "not ready" is kept as an error */
  return st;
}

/* Until a group or call on a borrowed communicator, which may be non-blocking, has been launched.
 */
static xfer_status borrowed_launched(ncclComm_t nccl, ncclResult_t result)
{
  xfer_status st = XFER_OK;
  xfi_deadline deadline = xfi_deadline_after(CREATE_TIMEOUT_MS);
  ncclResult_t state = result;

  while (result == ncclInProgress || state == ncclInProgress) {
    result = ncclCommGetAsyncError(nccl, &state);
    XFI_CHECK(!xfi_deadline_expired(deadline), XFER_ERR_TIMEOUT,
              "not all ranks of the borrowed communicator came in time");
    (void)sched_yield();
  }
  if (result == ncclSuccess) result = state;
  XFI_CHECK(result == ncclSuccess, XFER_ERR_COMM,
            "ncclBroadcast on the borrowed communicator: %s: %s", ncclGetErrorString(result),
            ncclGetLastError(nccl));
done:
  return st;
}

/* Rank 0's message to everybody, over the borrowed communicator. */
static xfer_status borrowed_broadcast(ncclComm_t nccl, id_message *message)
{
  xfer_status st = XFER_OK;
  cudaStream_t stream = NULL;
  cudaEvent_t event = NULL;
  void *bytes = NULL;

  XFI_NCCL_CUDA_TRY(cudaStreamCreateWithFlags, (&stream, cudaStreamNonBlocking));
  XFI_NCCL_CUDA_TRY(cudaEventCreateWithFlags, (&event, cudaEventDisableTiming));
  XFI_NCCL_CUDA_TRY(cudaMalloc, (&bytes, sizeof *message));
  XFI_NCCL_CUDA_TRY(cudaMemcpyAsync,
                    (bytes, message, sizeof *message, cudaMemcpyHostToDevice, stream));
  ncclResult_t result = ncclBroadcast(bytes, bytes, sizeof *message, ncclInt8, 0, nccl, stream);
  XFI_TRY(borrowed_launched(nccl, result));
  XFI_NCCL_CUDA_TRY(cudaEventRecord, (event, stream));
  XFI_TRY(borrowed_wait(nccl, event));
  XFI_NCCL_CUDA_TRY(cudaMemcpyAsync,
                    (message, bytes, sizeof *message, cudaMemcpyDeviceToHost, stream));
  XFI_NCCL_CUDA_TRY(cudaStreamSynchronize, (stream));
done:
  /* After a missed deadline NCCL may still touch these: the caller's communicator holds them, so
   * they are leaked. */
  if (st != XFER_ERR_TIMEOUT) {
    if (bytes != NULL) (void)cudaFree(bytes);
    if (event != NULL) (void)cudaEventDestroy(event);
    if (stream != NULL) (void)cudaStreamDestroy(stream);
  }
  return st;
}

xfer_status xfer_comm_create_nccl(xfer_comm **comm, struct ncclComm *nccl)
{
  xfer_status st = XFER_OK;
  id_message message = {.valid = {0}};
  int rank = 0;
  int size = 0;
  int ordinal = 0;
  int current = 0;

  XFI_CHECK(comm != NULL && nccl != NULL, XFER_ERR_ARG, "comm or nccl is NULL");
  XFI_NCCL_CUDA_TRY(cudaGetDevice, (&current));
  ncclResult_t result = ncclCommUserRank(nccl, &rank);
  if (result == ncclSuccess) result = ncclCommCount(nccl, &size);
  if (result == ncclSuccess) result = ncclCommCuDevice(nccl, &ordinal);
  XFI_CHECK(result == ncclSuccess, XFER_ERR_COMM, "the borrowed communicator: %s",
            ncclGetErrorString(result));
  XFI_CHECK(ordinal == current, XFER_ERR_ARG,
            "the communicator's rank %d is on CUDA device %d; the current device is %d", rank,
            ordinal, current);
  if (rank == 0 && ncclGetUniqueId(&message.id) == ncclSuccess) message.valid[0] = 1;
  XFI_TRY(borrowed_broadcast(nccl, &message));
  XFI_CHECK(message.valid[0] == 1, XFER_ERR_COMM, "rank 0: ncclGetUniqueId failed");
  st = comm_create(comm, &message.id, rank, size);
done:
  return st;
}
