/* NCCL comms: made, borrowed from, given back. */
#include "nccl_comm.h"

#include "alloc.h"
#include "error.h"
#include "plugin.h"
#include "xfer/nccl.h"

#include <sched.h>
#include <string.h>
#include <time.h>

enum { CREATE_TIMEOUT_MS = 10 * 60 * 1000, PAUSE_NS = 20 * 1000 };

static void nccl_destroy(xfi_comm *base)
{
  xfi_nccl_comm *comm = xfi_nccl_of(base);

  if (comm == NULL) return;
  xfi_alarm_clear(comm->alarms, &comm->alarm);
  xfi_nccl_end(comm);
  (void)pthread_mutex_destroy(&comm->lock);
  if (comm->done != NULL) (void)cudaEventDestroy(comm->done);
  if (comm->control_done != NULL) (void)cudaEventDestroy(comm->control_done);
  if (comm->control_stream != NULL) (void)cudaStreamDestroy(comm->control_stream);
  if (comm->device_bytes != NULL) (void)cudaFree(comm->device_bytes);
  if (comm->host_bytes != NULL) (void)cudaFreeHost(comm->host_bytes);
  xfi_free(comm);
}

static void nccl_abort(xfi_comm *base, const char *why)
{
  xfi_nccl_break(&xfi_nccl_of(base)->control, why);
  xfi_nccl_abort_data(base, why);
}

static const xfi_comm_ops nccl_ops = {
    .name = "nccl",
    .has_rounds = true,
    .recv_direct = true,
    .destroy = nccl_destroy,
    .all_gather = xfi_nccl_all_gather,
    .exchange = xfi_nccl_exchange,
    .round = xfi_nccl_round,
    .broadcast = xfi_nccl_broadcast,
    .connect = xfi_nccl_connect,
    .abort = nccl_abort,
    .abort_data = xfi_nccl_abort_data,
    .check_data = xfi_nccl_check_data,
};

static xfer_status transport_create(xfi_comm **transport, xfi_alarms *alarms,
                                    const ncclUniqueId *id, int rank, int size)
{
  xfer_status st = XFER_OK;
  xfi_nccl_comm *made = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  xfi_deadline deadline = xfi_deadline_after(CREATE_TIMEOUT_MS);

  made = xfi_calloc(1, sizeof *made);
  XFI_CHECK(made != NULL, XFER_ERR_NOMEM, "an NCCL comm");
  made->base = (xfi_comm){.ops = &nccl_ops, .rank = rank, .size = size};
  made->alarms = alarms;
  made->alarm.ring = xfi_nccl_ring;
  (void)pthread_mutex_init(&made->lock, NULL);
  XFI_NCCL_CUDA_TRY(cudaGetDevice, (&made->ordinal));
  XFI_NCCL_CUDA_TRY(cudaEventCreateWithFlags, (&made->done, cudaEventDisableTiming));
  XFI_NCCL_CUDA_TRY(cudaEventCreateWithFlags, (&made->control_done, cudaEventDisableTiming));
  XFI_NCCL_CUDA_TRY(cudaStreamCreateWithFlags, (&made->control_stream, cudaStreamNonBlocking));
  XFI_NCCL_CUDA_TRY(cudaMalloc, ((void **)&made->device_bytes, XFI_NCCL_CONTROL_BYTES));
  XFI_NCCL_CUDA_TRY(cudaHostAlloc,
                    ((void **)&made->host_bytes, XFI_NCCL_CONTROL_BYTES, cudaHostAllocDefault));
  config.blocking = 0;
  config.commName = "xfer control";
  config.minCTAs = 1;
  config.maxCTAs = 1;
  ncclResult_t result = ncclCommInitRankConfig(&made->control.handle, size, *id, rank, &config);
  XFI_CHECK(made->control.handle != NULL, XFER_ERR_COMM, "ncclCommInitRankConfig: %s: %s",
            ncclGetErrorString(result), ncclGetLastError(NULL));
  XFI_TRY(xfi_nccl_launched(&made->control, result, "ncclCommInitRankConfig", deadline));
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
  XFI_TRY(transport_create(&transport, device->alarms, id, rank, size));
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
