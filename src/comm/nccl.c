/*
 * NCCL as a transport: private, non-blocking communicators (nccl_communicator.c), one for host
 * bytes (nccl_control.c), and one for rounds and broadcasts, which is here.
 *
 * The thread that makes the comm's calls enqueues rounds. What is in flight on the device is
 * checked by an alarm in another thread, since the caller may only ever synchronise its stream.
 * When a deadline is missed, or NCCL reports an error, the alarm aborts the communicator, which
 * ends the kernels that wait for a lost rank. A lock guards what the two threads share.
 */
#include "nccl_comm.h"

#include "alloc.h"
#include "error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  WATCH_MS = 500, /* between two checks, each of which may delay a run that is being enqueued */
  PAUSE_NS = 20 * 1000
};

/* ---- what is in flight -------------------------------------------------------------------- */

static void break_data(xfi_nccl_comm *comm, const char *why)
{
  xfi_nccl_break(&comm->data, why);
  comm->n_ended = comm->n_rounds;
}

static xfi_nccl_flight *flight_of(xfi_nccl_comm *comm, uint64_t round)
{
  return &comm->flights[round % XFI_NCCL_ROUNDS_AHEAD];
}

/* Count the rounds that have ended. Returns CUDA's state of the oldest one in flight; cudaSuccess:
 * none is in flight. The lock is held. */
static cudaError_t count_ended(xfi_nccl_comm *comm)
{
  cudaError_t error = cudaSuccess;

  while (comm->n_ended < comm->n_rounds && error == cudaSuccess) {
    error = xfi_cuda_query_result(cudaEventQuery(flight_of(comm, comm->n_ended)->done));
    if (error == cudaSuccess) comm->n_ended++;
  }
  return error;
}

/* Are at least n rounds in flight? Queries CUDA only if there may be. */
static bool is_behind(xfi_nccl_comm *comm, uint64_t n)
{
  return comm->n_rounds - comm->n_ended >= n && count_ended(comm) == cudaErrorNotReady &&
         comm->n_rounds - comm->n_ended >= n;
}

/* The earliest deadline of the rounds in flight; never, if there are none. */
static xfi_deadline deadline_in_flight(xfi_nccl_comm *comm)
{
  xfi_deadline earliest = {.at_ns = INT64_MAX};

  for (uint64_t i = comm->n_ended; i < comm->n_rounds; i++)
    if (flight_of(comm, i)->deadline.at_ns < earliest.at_ns)
      earliest = flight_of(comm, i)->deadline;
  return earliest;
}

/* Break the communicator with a text like "...with ranks 4,5,6". Later rounds wait for these ranks
 * too. */
static void break_late(xfi_nccl_comm *comm)
{
  const xfi_nccl_flight *oldest = flight_of(comm, comm->n_ended);
  char text[XFI_NCCL_WHY_BYTES];
  int n = snprintf(text, sizeof text,
                   "work in flight missed a deadline; rank %d was exchanging with rank%s ",
                   comm->base.rank, oldest->n_peers == 1 ? "" : "s");

  for (int i = 0; i < oldest->n_peers && n > 0 && (size_t)n < sizeof text; i++)
    n += snprintf(text + n, sizeof text - (size_t)n, i == 0 ? "%d" : ",%d", oldest->peers[i]);
  if (n > 0 && (size_t)n < sizeof text)
    (void)snprintf(text + n, sizeof text - (size_t)n, "%s", comm->data.difference);
  comm->is_late = true;
  break_data(comm, text);
}

/* Has a peer aborted the run of the oldest round in flight, which then would wait for that peer?
 * Earlier rounds, perhaps of a run that has succeeded, have ended. */
static bool is_cancelled(xfi_nccl_comm *comm)
{
  const xfi_cancellation *p = &flight_of(comm, comm->n_ended)->cancellation;

  return p->check != NULL && p->check(p->context, p->number) != XFER_OK;
}

/* Check the work in flight; the lock is held. */
static void check_flights(xfi_nccl_comm *comm)
{
  char text[XFI_NCCL_WHY_BYTES];
  ncclResult_t state = ncclSuccess;
  cudaError_t error;

  if (comm->data.handle == NULL) comm->n_ended = comm->n_rounds; /* a failed connect() broke it */
  error = count_ended(comm);
  if (error == cudaSuccess) return;
  if (error != cudaErrorNotReady) {
    (void)snprintf(text, sizeof text, "CUDA failed beneath a round: %s", cudaGetErrorString(error));
    break_data(comm, text);
  } else if (ncclCommGetAsyncError(comm->data.handle, &state) == ncclSuccess &&
             state != ncclSuccess && state != ncclInProgress) {
    (void)snprintf(text, sizeof text, "%s: %s", ncclGetErrorString(state),
                   ncclGetLastError(comm->data.handle));
    break_data(comm, text);
  } else if (is_cancelled(comm)) {
    break_data(comm, xfer_last_error());
  } else if (xfi_deadline_expired(deadline_in_flight(comm))) {
    break_late(comm);
  }
}

/* The alarm: checks the deadlines of what is in flight, errors of NCCL, and aborts of peers. */
int64_t xfi_nccl_ring(xfi_alarm *alarm, int64_t now_ns)
{
  xfi_nccl_comm *comm = (xfi_nccl_comm *)(void *)((char *)alarm - offsetof(xfi_nccl_comm, alarm));
  int64_t next = now_ns + WATCH_MS * INT64_C(1000000);

  (void)pthread_mutex_lock(&comm->lock);
  if (comm->n_ended < comm->n_rounds) check_flights(comm);
  comm->next_check = deadline_in_flight(comm);
  if (comm->n_ended < comm->n_rounds && comm->next_check.at_ns > next)
    comm->next_check.at_ns = next;
  next = comm->next_check.at_ns;
  (void)pthread_mutex_unlock(&comm->lock);
  return next;
}

/* Count a round that was launched: from here on the alarm enforces its deadline. The alarm repeats
 * as long as it finds work in flight, so that consecutive runs need not wake its thread. The lock
 * is held. */
static xfer_status put_in_flight(xfi_nccl_comm *comm, cudaStream_t stream, xfi_deadline deadline)
{
  xfi_nccl_flight *flight = flight_of(comm, comm->n_rounds);
  xfi_deadline next_check = xfi_deadline_after(WATCH_MS);

  XFI_CUDA_TRY(cudaEventRecord, (flight->done, stream));
  flight->deadline = deadline;
  flight->cancellation = comm->base.cancellation;
  comm->n_rounds++;
  comm->is_late = false;
  if (deadline.at_ns < next_check.at_ns) next_check = deadline;
  if (next_check.at_ns >= comm->next_check.at_ns) return XFER_OK;
  comm->next_check = next_check;
  xfi_alarm_set(comm->alarms, &comm->alarm, next_check);
  return XFER_OK;
}

/* ---- data --------------------------------------------------------------------------------- */

/* Remember the peers that an error names if the next round is late: those that send to this rank,
 * or else those that receive from it. */
static void remember_peers(xfi_nccl_comm *comm, const xfi_messages *messages, int root)
{
  xfi_nccl_flight *next = flight_of(comm, comm->n_rounds);
  const bool receives = messages->n_recvs > 0;
  const xfi_message *them = receives ? messages->recvs : messages->sends;
  const int n = receives ? messages->n_recvs : messages->n_sends;

  next->n_peers = root >= 0 ? 1 : 0;
  next->peers[0] = root;
  for (int i = 0; i < n && root < 0; i++) /* a peer's messages stand together */
    if (i == 0 || them[i].peer != them[i - 1].peer) next->peers[next->n_peers++] = them[i].peer;
}

/* Are the ranks connected? After messages were cancelled they are not, and the next commit connects
 * them again. */
static xfer_status have_data(const xfi_nccl_comm *comm)
{
  XFI_CHECK(comm->data.handle != NULL, XFER_ERR_COMM,
            "messages between the ranks need another commit of the plan: %s",
            comm->data.why[0] != '\0' ? comm->data.why : "they are not connected");
  return XFER_OK;
}

/* Wait until fewer than n rounds are in flight. The lock is held, but released while this waits. */
static xfer_status wait_for_rounds(xfi_nccl_comm *comm, uint64_t n, xfi_deadline deadline)
{
  xfer_status st = have_data(comm);

  for (int n_pauses = 1; st == XFER_OK && is_behind(comm, n); n_pauses++) {
    if (xfi_deadline_expired(deadline)) break_late(comm);
    (void)pthread_mutex_unlock(&comm->lock);
    xfi_sleep_ns(PAUSE_NS);
    (void)pthread_mutex_lock(&comm->lock);
    st = have_data(comm);
    if (st == XFER_OK) st = xfi_nccl_check_warnings(&comm->data, n_pauses);
  }
  return st != XFER_OK && comm->is_late ? XFER_ERR_TIMEOUT : st;
}

/* Are all connections of a group made, so that it waits for no other rank? */
static bool finds_connected(const xfi_nccl_comm *comm, const xfi_messages *messages, int root)
{
  if (root >= 0) return comm->data.is_warm;
  for (int i = 0; i < messages->n_sends; i++)
    if (!comm->is_connected[messages->sends[i].peer]) return false;
  for (int i = 0; i < messages->n_recvs; i++)
    if (!comm->is_connected[messages->recvs[i].peer]) return false;
  return true;
}

/* Record that these peers have exchanged messages, so they are connected. */
static void note_connected(xfi_nccl_comm *comm, const xfi_messages *messages)
{
  for (int i = 0; i < messages->n_sends; i++)
    comm->is_connected[messages->sends[i].peer] = true;
  for (int i = 0; i < messages->n_recvs; i++)
    comm->is_connected[messages->recvs[i].peer] = true;
}

/* Launch a group, whose deadline the alarm enforces from then on. */
static xfer_status carry(xfi_comm *base, const xfi_messages *messages, int root,
                         cudaStream_t stream, xfi_deadline deadline)
{
  xfi_nccl_comm *comm = xfi_nccl_of(base);
  const int n = messages->n_sends + messages->n_recvs;
  xfer_status st = XFER_OK;
  ncclComm_t by;

  (void)pthread_mutex_lock(&comm->lock);
  /* Leave room in the stream's queue. If that is full, the driver blocks every thread, the alarm's
   * too, until a peer arrives, which may never happen. */
  XFI_TRY_DONE(wait_for_rounds(comm, XFI_NCCL_ROUNDS_AHEAD, deadline));
  XFI_CHECK_DONE(n <= XFI_ROUND_MESSAGES, XFER_ERR_INTERNAL, "%d messages in a group", n);
  if (n == 0) goto done;
  remember_peers(comm, messages, root);
  by = comm->data.launcher != NULL && finds_connected(comm, messages, root) ? comm->data.launcher
                                                                            : comm->data.handle;
  XFI_TRY_DONE(xfi_nccl_group(&comm->data, by, messages, root, stream, deadline));
  if (root < 0) note_connected(comm, messages);
  XFI_TRY_DONE(put_in_flight(comm, stream, deadline));
done:
  (void)pthread_mutex_unlock(&comm->lock);
  return st;
}

xfer_status xfi_nccl_round(xfi_comm *comm, const xfi_messages *messages, xfer_stream stream,
                           xfi_deadline deadline)
{
  return carry(comm, messages, -1, stream, deadline);
}

xfer_status xfi_nccl_broadcast(xfi_comm *comm, const xfi_message *messages, int n, int root,
                               xfer_stream stream, xfi_deadline deadline)
{
  return carry(comm, &(xfi_messages){messages, n, NULL, 0}, root, stream, deadline);
}

void xfi_nccl_abort_data(xfi_comm *base, const char *why)
{
  xfi_nccl_comm *comm = xfi_nccl_of(base);

  (void)pthread_mutex_lock(&comm->lock);
  break_data(comm, why);
  (void)pthread_mutex_unlock(&comm->lock);
}

xfer_status xfi_nccl_check_data(xfi_comm *base, uint64_t n_aborts)
{
  xfi_nccl_comm *comm = xfi_nccl_of(base);
  xfer_status st = XFER_OK;

  (void)pthread_mutex_lock(&comm->lock);
  if (comm->data.n_aborts != n_aborts) {
    xfi_set_error("%s", comm->data.why[0] != '\0'
                            ? comm->data.why
                            : "its messages were ended with those of a run that failed");
    st = comm->is_late ? XFER_ERR_TIMEOUT : XFER_ERR_COMM;
  }
  (void)pthread_mutex_unlock(&comm->lock);
  return st;
}

void xfi_nccl_unwatch(xfi_comm *base, const void *context)
{
  xfi_nccl_comm *comm = xfi_nccl_of(base);

  (void)pthread_mutex_lock(&comm->lock);
  for (int i = 0; i < XFI_NCCL_ROUNDS_AHEAD; i++)
    if (comm->flights[i].cancellation.context == context)
      comm->flights[i].cancellation.check = NULL;
  (void)pthread_mutex_unlock(&comm->lock);
}

/* ---- connecting --------------------------------------------------------------------------- */

/* What ranks tell each other before they connect: whether they have a communicator, and rank 0's id
 * for a new one. */
typedef struct proposal {
  ncclUniqueId id;
  int32_t has_id;
  int32_t has_data;
  int32_t shares; /* a communicator that is split off shares its connections */
} proposal;

static xfer_status make_data(xfi_nccl_comm *comm, xfi_deadline deadline)
{
  const size_t size = (size_t)comm->base.size;
  /* Not an option of ours, since NCCL's environment and configuration files override options. */
  const char *shares = getenv("NCCL_COMM_SPLIT_SHARE_RESOURCES");
  xfer_status st = XFER_OK;
  proposal mine = {.shares = shares == NULL || strcmp(shares, "0") != 0};
  proposal *all = NULL;
  bool all_have = true;
  bool all_share = true;

  (void)pthread_mutex_lock(&comm->lock);
  mine.has_data = comm->data.handle != NULL;
  (void)pthread_mutex_unlock(&comm->lock);
  if (comm->base.rank == 0) mine.has_id = ncclGetUniqueId(&mine.id) == ncclSuccess;
  all = xfi_comm_agree_gather(&comm->base, &st, &mine, sizeof mine, deadline);
  XFI_TRY_DONE(st);
  for (size_t r = 0; r < size; r++) {
    all_have = all_have && all[r].has_data != 0;
    all_share = all_share && all[r].shares != 0;
  }
  if (all_have) goto done;
  xfi_nccl_abort_data(&comm->base, "a rank makes a new one");
  XFI_TRY_DONE(
      xfi_nccl_settings_compare(comm, deadline)); /* nothing is in flight: no alarm reads it */
  XFI_CHECK_DONE(all[0].has_id != 0, XFER_ERR_COMM, "rank 0: ncclGetUniqueId failed");
  memset(comm->is_connected, 0, size * sizeof *comm->is_connected);
  XFI_TRY_DONE(xfi_nccl_join(&comm->data, &comm->base, &all[0].id, "xfer", 0, deadline));
  if (all_share) XFI_TRY_DONE(xfi_nccl_make_launcher(&comm->data, &comm->base, deadline));
done:
  xfi_free(all);
  return st;
}

/* Wait until nothing is in flight, so that the alarm does not use the communicator at the same
 * time. That takes no longer: later work waits on the device for what is in flight anyway. */
static xfer_status have_data_alone(xfi_nccl_comm *comm, xfi_deadline deadline)
{
  xfer_status st;

  (void)pthread_mutex_lock(&comm->lock);
  st = wait_for_rounds(comm, 1, deadline);
  (void)pthread_mutex_unlock(&comm->lock);
  return st;
}

/* NCCL connects two ranks at their first message, and all of them at the first collective
 * operation. So the ranks make such first ones here, in a commit. */
xfer_status xfi_nccl_connect(xfi_comm *base, const bool *peers, bool broadcasts,
                             xfi_deadline deadline)
{
  xfi_nccl_comm *comm = xfi_nccl_of(base);
  xfer_status st = XFER_OK;
  const xfi_message first = {comm->device_bytes, XFI_NCCL_SLOT_BYTES, 0};
  xfi_message *warmups = xfi_comm_calloc(base, (size_t)base->size, sizeof *warmups);
  int n = 0;

  comm->data.host = comm->host;
  comm->data.number++;
  XFI_CHECK_DONE(warmups != NULL, XFER_ERR_NOMEM, "%d ranks", base->size);
  for (int r = 0; r < base->size; r++)
    if (peers[r]) warmups[n++] = (xfi_message){NULL, XFI_NCCL_SLOT_BYTES, r};
  XFI_TRY_DONE(make_data(comm, deadline));
  if (n == 0 && !broadcasts) goto done;
  XFI_TRY_DONE(have_data_alone(comm, deadline));
  XFI_TRY_DONE(
      xfi_nccl_carry(comm, &comm->data, &(xfi_messages){warmups, n, warmups, n}, deadline));
  note_connected(comm, &(xfi_messages){warmups, n, NULL, 0});
  if (broadcasts) {
    XFI_TRY_DONE(xfi_nccl_group(&comm->data, comm->data.handle, &(xfi_messages){&first, 1, NULL, 0},
                                0, comm->control_stream, deadline));
    XFI_TRY_DONE(xfi_nccl_control_wait(comm, &comm->data, "a first broadcast", deadline));
  }
  if (broadcasts && comm->data.launcher != NULL) {
    XFI_TRY_DONE(xfi_nccl_warm_up_launcher(&comm->data, &first, comm->ordinal, comm->control_stream,
                                           deadline));
    XFI_TRY_DONE(xfi_nccl_control_wait(comm, &comm->data, "a first broadcast", deadline));
  }
done:
  if (st != XFER_OK && st != XFER_ERR_PEER && comm->host != NULL)
    xfi_shared_refuse(comm->host, comm->data.number, xfer_last_error());
  comm->data.host = NULL;
  xfi_free(warmups);
  return st;
}
