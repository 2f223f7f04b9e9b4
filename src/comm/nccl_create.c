/*
 * NCCL comms: created from an id, or from a communicator of the caller's, and destroyed.
 *
 * A rank first makes what it needs to reach the others. A failure after that and before NCCL has
 * joined the ranks is kept, reported to all once they are joined, and ends the comm everywhere. A
 * rank that cannot reach the others leaves them to their deadline.
 */
#include "nccl_comm.h"

#include "alloc.h"
#include "error.h"
#include "nccl_load.h"
#include "plugin.h"
#include "xfer/nccl.h"

#include <string.h>

static void nccl_destroy(xfi_comm *base)
{
  xfi_nccl_comm *comm = xfi_nccl_of(base);

  if (comm == NULL) return;
  if (comm->alarms != NULL) xfi_alarm_clear(comm->alarms, &comm->alarm);
  if (comm->host != NULL) comm->host->ops->destroy(comm->host);
  xfi_nccl_end(comm);
  (void)pthread_mutex_destroy(&comm->lock);
  for (int i = 0; i < XFI_NCCL_ROUNDS_AHEAD; i++)
    if (comm->flights[i].done != NULL) (void)cudaEventDestroy(comm->flights[i].done);
  if (comm->control_done != NULL) (void)cudaEventDestroy(comm->control_done);
  if (comm->control_stream != NULL) (void)cudaStreamDestroy(comm->control_stream);
  if (comm->device_bytes != NULL) (void)cudaFree(comm->device_bytes);
  if (comm->host_bytes != NULL) (void)cudaFreeHost(comm->host_bytes);
  xfi_free(comm->is_connected);
  xfi_free(comm);
}

static void nccl_abort(xfi_comm *base, const char *why)
{
  xfi_comm *host = xfi_nccl_of(base)->host;

  if (host != NULL) host->ops->abort(host, why);
  xfi_nccl_break(&xfi_nccl_of(base)->control, why);
  xfi_nccl_abort_data(base, why);
}

static xfer_status nccl_check(xfi_comm *base)
{
  xfi_nccl_comm *comm = xfi_nccl_of(base);

  return comm->host != NULL ? comm->host->ops->check(comm->host) : xfi_nccl_usable(&comm->control);
}

/* Tell the ranks of this host. Ranks of several hosts cannot be told: they wait for their deadline.
 */
static void nccl_refuse(xfi_comm *base, uint64_t what, const char *why)
{
  xfi_comm *host = xfi_nccl_of(base)->host;

  if (host != NULL) host->ops->refuse(host, what, why);
}

/* Only plans that a rank has destroyed are looked for: no run is refused over NCCL, and other
 * numbers are used by connect(). */
static xfer_status nccl_check_refused(xfi_comm *base, uint64_t what)
{
  xfi_comm *host = xfi_nccl_of(base)->host;

  return host == NULL || (what & XFI_DESTROYED) == 0 ? XFER_OK
                                                     : host->ops->check_refused(host, what);
}

static const xfi_comm_ops nccl_ops = {
    .recv_direct = true,
    .takes_several = true,
    .fast_unit = 16,
    .destroy = nccl_destroy,
    .all_gather = xfi_nccl_all_gather,
    .exchange = xfi_nccl_exchange,
    .round = xfi_nccl_round,
    .broadcast = xfi_nccl_broadcast,
    .connect = xfi_nccl_connect,
    .check = nccl_check,
    .abort = nccl_abort,
    .decline = xfi_nccl_decline,
    .abort_data = xfi_nccl_abort_data,
    .check_data = xfi_nccl_check_data,
    .unwatch = xfi_nccl_unwatch,
    .refuse = nccl_refuse,
    .check_refused = nccl_check_refused,
};

/* Make what this rank needs to reach the others, without connecting it. Needs no other rank. The
 * caller owns *comm, also after a failure. */
static xfer_status control_create(xfi_nccl_comm **comm, int rank, int size)
{
  const size_t slots_bytes = (size_t)XFI_ROUND_MESSAGES * XFI_NCCL_SLOT_BYTES;
  const size_t rows_bytes = (size_t)size * XFI_GATHER_ROW_BYTES;
  xfi_nccl_comm *made = xfi_calloc(1, sizeof *made);

  *comm = made;
  XFI_CHECK(made != NULL, XFER_ERR_NOMEM, "an NCCL comm");
  made->n_control_bytes = rows_bytes > slots_bytes ? rows_bytes : slots_bytes;
  made->base = (xfi_comm){
      .ops = &nccl_ops, .rank = rank, .size = size, .n_data_aborts = &made->data.n_aborts};
  made->alarm.ring = xfi_nccl_ring;
  made->next_check.at_ns = INT64_MAX;
  (void)pthread_mutex_init(&made->lock, NULL);
  made->is_connected = xfi_calloc((size_t)size, sizeof *made->is_connected);
  XFI_CHECK(made->is_connected != NULL, XFER_ERR_NOMEM, "%d ranks", size);
  XFI_CUDA_TRY(cudaEventCreateWithFlags, (&made->control_done, cudaEventDisableTiming));
  XFI_CUDA_TRY(cudaStreamCreateWithFlags, (&made->control_stream, cudaStreamNonBlocking));
  XFI_CUDA_TRY(cudaMalloc, ((void **)&made->device_bytes, made->n_control_bytes));
  XFI_CUDA_TRY(cudaHostAlloc,
               ((void **)&made->host_bytes, made->n_control_bytes, cudaHostAllocDefault));
  return XFER_OK;
}

/* Make the device, and the public comm around both, which owns `made` on success. Needs no other
 * rank. */
static xfer_status assemble(xfer_comm **comm, xfi_nccl_comm *made, unsigned char domain[64])
{
  xfi_device *device = NULL;

  XFI_CUDA_TRY(cudaGetDevice, (&made->ordinal));
  for (int i = 0; i < XFI_NCCL_ROUNDS_AHEAD; i++)
    XFI_CUDA_TRY(cudaEventCreateWithFlags, (&made->flights[i].done, cudaEventDisableTiming));
  XFI_TRY(xfi_device_create_cuda(&device));
  device->ops->domain(device, domain);
  XFI_TRY(xfi_comm_wrap(comm, &made->base, device));
  made->alarms = device->alarms;
  return XFER_OK;
}

/* Connect the ranks, and make the public comm. Takes `made`, also on failure. Collective. */
static xfer_status comm_create(xfer_comm **comm, xfi_nccl_comm *made, const ncclUniqueId *id,
                               xfi_deadline deadline)
{
  xfer_comm *whole = NULL;
  unsigned char domain[64] = {0};
  xfer_status st = assemble(&whole, made, domain);
  xfi_error mine;

  xfi_error_keep(&mine, st);
  XFI_TRY_DONE(xfi_nccl_join(&made->control, &made->base, id, "xfer control", 1, deadline));
  XFI_TRY_DONE(xfi_nccl_bootstrap_host(made, xfi_error_report(&mine), domain, deadline));
  *comm = whole;
  return XFER_OK;
done:
  if (whole == NULL) nccl_destroy(&made->base);
  xfer_comm_destroy(whole);
  return mine.st != XFER_OK ? xfi_error_report(&mine) : st; /* our own error has priority */
}

/* Fails before any other rank is involved if NCCL or a driver is missing. */
static xfer_status vendors_here(void)
{
  const char *missing = xfi_nccl_load();

  XFI_CHECK(missing == NULL, XFER_ERR_UNSUPPORTED, "NCCL was not found: %s", missing);
  return xfi_cuda_here();
}

/* ---- makers ------------------------------------------------------------------------------- */

_Static_assert(sizeof(ncclUniqueId) == XFER_NCCL_ID_BYTES, "an id is an ncclUniqueId");

xfer_status xfer_nccl_id(unsigned char id[XFER_NCCL_ID_BYTES])
{
  ncclUniqueId made;

  XFI_NEED(id);
  XFI_TRY(vendors_here());
  ncclResult_t result = ncclGetUniqueId(&made);
  XFI_CHECK(result == ncclSuccess, XFER_ERR_COMM, "ncclGetUniqueId: %s: %s",
            ncclGetErrorString(result), ncclGetLastError(NULL));
  memcpy(id, &made, sizeof made);
  return XFER_OK;
}

/* Rank 0's id to everybody, over the borrowed communicator. */
static xfer_status borrowed_broadcast(ncclComm_t nccl, xfi_nccl_comm *made, ncclUniqueId *id,
                                      xfi_deadline deadline)
{
  static const char call[] = "ncclBroadcast on the borrowed communicator";
  xfi_nccl borrowed = {.handle = nccl, .is_borrowed = true};
  char *bytes = made->device_bytes;
  const cudaStream_t stream = made->control_stream;

  memcpy(made->host_bytes, id, sizeof *id);
  XFI_CUDA_TRY(cudaMemcpyAsync,
               (bytes, made->host_bytes, sizeof *id, cudaMemcpyHostToDevice, stream));
  ncclResult_t result = ncclBroadcast(bytes, bytes, sizeof *id, ncclInt8, 0, nccl, stream);
  XFI_TRY(xfi_nccl_launched(&borrowed, result, call, deadline));
  XFI_CUDA_TRY(cudaMemcpyAsync,
               (made->host_bytes, bytes, sizeof *id, cudaMemcpyDeviceToHost, stream));
  XFI_TRY(xfi_nccl_control_wait(made, &borrowed, call, deadline));
  memcpy(id, made->host_bytes, sizeof *id);
  return XFER_OK;
}

/* This rank and the number of ranks in the borrowed communicator. */
static xfer_status borrowed_rank(ncclComm_t nccl, int *rank, int *size)
{
  int ordinal = 0;
  int current = 0;

  XFI_CUDA_TRY(cudaGetDevice, (&current));
  ncclResult_t result = ncclCommUserRank(nccl, rank);
  if (result == ncclSuccess) result = ncclCommCount(nccl, size);
  if (result == ncclSuccess) result = ncclCommCuDevice(nccl, &ordinal);
  XFI_CHECK(result == ncclSuccess, XFER_ERR_COMM, "the borrowed communicator: %s",
            ncclGetErrorString(result));
  XFI_CHECK(ordinal == current, XFER_ERR_ARG,
            "the communicator's rank %d is on CUDA device %d; the current device is %d", *rank,
            ordinal, current);
  return XFER_OK;
}

/* Get the id that rank 0 makes, over the caller's communicator; if rank 0 has none it sends zeros.
 * After a failure the broadcast may be in flight for as long as that communicator lives: then
 * *made, whose buffers it uses, is leaked and becomes NULL. */
static xfer_status borrow_id(ncclUniqueId *id, ncclComm_t lender, xfi_nccl_comm **made,
                             xfi_deadline deadline)
{
  const cudaStream_t stream = (*made)->control_stream;
  const ncclUniqueId none = {{0}};
  xfer_status st = XFER_OK;

  *id = none;
  if ((*made)->base.rank == 0 && ncclGetUniqueId(id) != ncclSuccess) *id = none;
  st = borrowed_broadcast(lender, *made, id, deadline);
  if (st == XFER_ERR_TIMEOUT ||
      (st != XFER_OK && xfi_cuda_query_result(cudaStreamQuery(stream)) == cudaErrorNotReady))
    *made = NULL;
  XFI_TRY(st);
  XFI_CHECK(memcmp(id, &none, sizeof none) != 0, XFER_ERR_COMM, "rank 0: ncclGetUniqueId failed");
  return XFER_OK;
}

/* Make a comm of an id or, if there is a `lender`, of an id that is sent over that. Collective. */
static xfer_status create(xfer_comm **comm, int rank, int size, ncclUniqueId id, ncclComm_t lender)
{
  const xfi_deadline deadline = xfi_deadline_after(XFI_DEFAULT_TIMEOUT_MS);
  const enum cudaStreamCaptureMode before = xfi_cuda_mode(cudaStreamCaptureModeRelaxed);
  xfi_nccl_comm *made = NULL;
  xfer_status st = control_create(&made, rank, size);

  if (st == XFER_OK && lender != NULL) st = borrow_id(&id, lender, &made, deadline);
  if (st == XFER_OK)
    st = comm_create(comm, made, &id, deadline);
  else if (made != NULL)
    nccl_destroy(&made->base);
  (void)xfi_cuda_mode(before);
  return st;
}

xfer_status xfer_comm_create_nccl_id(xfer_comm **comm, const unsigned char id[XFER_NCCL_ID_BYTES],
                                     int rank, int size)
{
  ncclUniqueId copy;

  XFI_NEED(comm);
  XFI_NEED(id);
  XFI_CHECK(size >= 1 && rank >= 0 && rank < size, XFER_ERR_ARG,
            "rank %d of %d: ranks are 0 to size - 1, and size is at least 1", rank, size);
  memcpy(&copy, id, sizeof copy);
  XFI_TRY(vendors_here());
  return create(comm, rank, size, copy, NULL);
}

xfer_status xfer_comm_create_nccl(xfer_comm **comm, struct ncclComm *nccl)
{
  int rank = 0;
  int size = 0;

  XFI_NEED(comm);
  XFI_NEED(nccl);
  XFI_TRY(vendors_here());
  XFI_TRY(borrowed_rank(nccl, &rank, &size));
  return create(comm, rank, size, (ncclUniqueId){{0}}, nccl);
}
