/*
 * The calls of a comm over MPI: gatherings, rounds of messages and broadcasts, each waited for in
 * mpi_wait.c. mpi.c has the idea.
 */
#include "mpi_comm.h"

#include "error.h"

#include <assert.h>
#include <string.h>

/* ---- gathering ---------------------------------------------------------------------------- */

static xfer_status gather_timeout(xfi_mpi_comm *t, xfi_deadline deadline)
{
  (void)xfi_broken_set(&t->shared.broken, "rank %d waited for others until %s", t->shared.base.rank,
                       xfi_deadline_end(deadline));
  xfi_mpi_notify_all(t);
  int late = xfi_mpi_find_late(t);
  XFI_CHECK(late < 0, XFER_ERR_TIMEOUT, "rank %d did not come before %s", late,
            xfi_deadline_end(deadline));
  return XFI_ERROR(XFER_ERR_TIMEOUT, "all_gather did not end before %s",
                   xfi_deadline_end(deadline));
}

/* Gather through the comm's own memory, which can be leaked: MPI cannot cancel a collective
 * operation, so it may still write there after a failure. */
static xfer_status gather(xfi_comm *comm, const char **rows, const void *mine, size_t n_bytes,
                          xfi_deadline deadline)
{
  xfi_mpi_comm *t = (xfi_mpi_comm *)comm;
  xfer_status st = XFER_OK;
  int n = (int)n_bytes; /* at most chunk_bytes, which an int can hold */
  int code = MPI_SUCCESS;

  memcpy(t->out, mine, n_bytes);
  XFI_TRY_DONE(
      XFI_MPI(MPI_Iallgather, (t->out, n, MPI_BYTE, t->in, n, MPI_BYTE, t->comm, &t->collective)));
  st = xfi_mpi_await(t, &t->collective, MPI_STATUS_IGNORE, &code, deadline);
  if (st == XFER_OK) st = xfi_mpi_check(code, "MPI_Iallgather");
  if (st == XFER_ERR_TIMEOUT) st = gather_timeout(t, deadline);
  *rows = t->in;
done:
  if (st != XFER_OK && t->collective != MPI_REQUEST_NULL) t->leaks_own = true;
  return st;
}

xfer_status xfi_mpi_all_gather(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                               xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  xfi_mpi_comm *t = (xfi_mpi_comm *)comm;

  if (comm->shares_all) {
    st = xfi_shared_gather(&t->shared, all, mine, n_bytes, deadline);
  } else {
    XFI_TRY(xfi_mpi_check_broken(comm));
    t->gathering = comm->n_gatherings + 1;
    st = xfi_comm_gather(comm, all, mine, n_bytes, gather, t->chunk_bytes, deadline);
    if (st == XFER_OK) t->n_gathered = t->gathering;
  }
  if (st == XFER_ERR_MISMATCH && (!comm->shares_all || xfi_shared_has_gathered(&t->shared)))
    t->has_notified = true; /* no notice is needed: every rank finds the mismatch itself */
  if (st != XFER_OK) xfi_comm_abort_with_error(comm, comm->ops->abort);
  xfi_mpi_end_gathering(t);
  return st;
}

/* ---- messages ----------------------------------------------------------------------------- */

static xfer_status start_one(xfi_mpi_comm *t, const xfi_message *m, bool receives,
                             MPI_Request *request)
{
  const int tag = XFI_MPI_TAG_ROUND + (int)(t->shared.base.run.sequence % t->n_round_tags);
  int n = (int)m->n_bytes; /* the check below comes before its use */

  XFI_CHECK(m->n_bytes <= XFI_MESSAGE_BYTES, XFER_ERR_OVERFLOW,
            "round: a message of %zu bytes; at most %zu", m->n_bytes, XFI_MESSAGE_BYTES);
  if (receives) return XFI_MPI(MPI_Irecv, (m->data, n, MPI_BYTE, m->peer, tag, t->comm, request));
  return XFI_MPI(MPI_Isend, (m->data, n, MPI_BYTE, m->peer, tag, t->comm, request));
}

/* Start all messages of a round; in t->requests receives come first. */
static xfer_status start(xfi_mpi_comm *t, const xfi_messages *round)
{
  MPI_Request *request = t->requests;

  for (int i = 0; i < round->n_recvs; i++)
    XFI_TRY(start_one(t, &round->recvs[i], true, request++));
  for (int i = 0; i < round->n_sends; i++)
    XFI_TRY(start_one(t, &round->sends[i], false, request++));
  return XFER_OK;
}

static xfer_status check_received(const xfi_mpi_comm *t, const xfi_message *recv, int code,
                                  const MPI_Status *status)
{
  int class = MPI_SUCCESS;
  int n_sent = 0;

  if (code != MPI_SUCCESS) (void)MPI_Error_class(code, &class);
  XFI_CHECK(class != MPI_ERR_TRUNCATE, XFER_ERR_MISMATCH,
            "rank %d sends more in round to rank %d than the %zu bytes that it expects", recv->peer,
            t->shared.base.rank, recv->n_bytes);
  XFI_TRY(xfi_mpi_check(code, "MPI_Irecv"));
  XFI_TRY(XFI_MPI(MPI_Get_count, (status, MPI_BYTE, &n_sent)));
  XFI_CHECK((size_t)n_sent == recv->n_bytes, XFER_ERR_MISMATCH,
            "rank %d sends %d bytes in round to rank %d, which expects %zu", recv->peer, n_sent,
            t->shared.base.rank, recv->n_bytes);
  return XFER_OK;
}

/* Wait for all messages of a round, one after the other: all have been started, so their order does
 * not matter. */
static xfer_status await_all(xfi_mpi_comm *t, const xfi_messages *round, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;

  for (int i = 0; i < round->n_recvs + round->n_sends; i++) {
    bool receives = i < round->n_recvs;
    const xfi_message *m = receives ? &round->recvs[i] : &round->sends[i - round->n_recvs];
    MPI_Status status;
    int code = MPI_SUCCESS;

    t->awaited = m->peer;
    st = xfi_mpi_await(t, &t->requests[i], &status, &code, deadline);
    t->awaited = -1;
    XFI_TRY(st);
    XFI_TRY(receives ? check_received(t, m, code, &status) : xfi_mpi_check(code, "MPI_Isend"));
  }
  return st;
}

xfer_status xfi_mpi_round(xfi_comm *comm, const xfi_messages *round, xfer_stream stream,
                          xfi_deadline deadline)
{
  xfi_mpi_comm *t = (xfi_mpi_comm *)comm;
  const int n = round->n_sends + round->n_recvs;
  xfer_status st = xfi_mpi_check_broken(comm);

  (void)stream;
  assert(n <= XFI_ROUND_MESSAGES && n <= 2 * comm->size);
  if (st != XFER_OK) return st;
  for (int i = 0; i < n; i++)
    t->requests[i] = MPI_REQUEST_NULL;
  XFI_TRY_DONE(start(t, round));
  XFI_TRY_DONE(await_all(t, round, deadline));
done:
  if (st != XFER_OK) {
    xfi_comm_abort_with_error(comm, comm->ops->abort);
    for (int i = 0; i < round->n_recvs; i++)
      if (t->requests[i] != MPI_REQUEST_NULL) (void)MPI_Cancel(&t->requests[i]);
    comm->holds_memory = !xfi_mpi_all_end(t->requests, n);
    t->leaks_own = t->leaks_own || comm->holds_memory; /* MPI still uses the requests */
  }
  return st;
}

static xfer_status broadcast_one(xfi_mpi_comm *t, const xfi_message *m, int root,
                                 xfi_deadline deadline)
{
  xfi_segment *own = xfi_segment_of(&t->shared, t->shared.base.rank);
  xfer_status st = XFER_OK;
  int code = MPI_SUCCESS;

  assert(m->n_bytes <= XFI_MESSAGE_BYTES);
  XFI_TRY(XFI_MPI(MPI_Ibcast,
                  (m->data, (int)m->n_bytes, MPI_BYTE, root, t->broadcasts, &t->collective)));
  t->is_broadcasting = true;
  st = xfi_mpi_await(t, &t->collective, MPI_STATUS_IGNORE, &code, deadline);
  t->is_broadcasting = false;
  XFI_CHECK(st != XFER_ERR_TIMEOUT || t->late >= 0, XFER_ERR_TIMEOUT,
            "broadcast: what rank %d sends did not pass before %s", root,
            xfi_deadline_end(deadline));
  XFI_TRY(st);
  if (own != NULL) (void)atomic_fetch_add(&own->n_broadcasts, 1);
  return xfi_mpi_check(code, "MPI_Ibcast");
}

/* Broadcast what the broadcasts of a call belong to, before they follow: they have no tags, so one
 * that a failed run has left behind could be taken for one of these. */
static xfer_status broadcast_label(xfi_mpi_comm *t, const xfi_message *messages, int n, int root,
                                   xfi_deadline deadline)
{
  const xfi_comm *comm = &t->shared.base;
  xfi_envelope expected = xfi_comm_envelope(comm, XFI_OF_BROADCAST, 0);

  for (int i = 0; i < n; i++)
    expected.n_bytes += messages[i].n_bytes;
  t->label = expected;
  XFI_TRY(broadcast_one(t, &(xfi_message){&t->label, sizeof t->label, root}, root, deadline));
  return xfi_envelope_check(t->label, root, expected, comm->rank);
}

xfer_status xfi_mpi_broadcast(xfi_comm *comm, const xfi_message *messages, int n, int root,
                              xfer_stream stream, xfi_deadline deadline)
{
  xfi_mpi_comm *t = (xfi_mpi_comm *)comm;
  xfer_status st = xfi_mpi_check_broken(comm);

  (void)stream;
  if (st != XFER_OK) return st;
  XFI_TRY_DONE(broadcast_label(t, messages, n, root, deadline));
  for (int i = 0; i < n; i++)
    XFI_TRY_DONE(broadcast_one(t, &messages[i], root, deadline));
done:
  if (st != XFER_OK) xfi_comm_abort_with_error(comm, comm->ops->abort);
  if (st != XFER_OK && t->collective != MPI_REQUEST_NULL) comm->holds_memory = t->leaks_own = true;
  return st;
}
