/*
 * How a comm over MPI waits and fails: operations are polled until they end, and notices break the
 * comm on all ranks or tell of a refusal. mpi.c has the idea.
 */
#include "mpi_comm.h"

#include "error.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
  POLLS_YIELDING = 1000, /* after so many polls a rank sleeps between them, */
  QUIET_NS = 5000000, /* and publishes for whom it waits; or after this time, since on a loaded host
                         a single yield may take any time */
  POLL_SLEEP_US = 50,
  GRACE_MS = 200, /* how long operations may take to end by themselves after a failure */
  LEAVE_MS = 2000 /* how long a rank that destroys the comm waits for the others to do so */
};

/* ---- MPI's errors and MPI's pace ---------------------------------------------------------- */

xfer_status xfi_mpi_check(int code, const char *call)
{
  char text[MPI_MAX_ERROR_STRING] = "?";
  int length = 0;

  if (code == MPI_SUCCESS) return XFER_OK;
  (void)MPI_Error_string(code, text, &length);
  return XFI_ERROR(XFER_ERR_COMM, "%s: %s", call, text);
}

/* Let others use the core, among them perhaps the ranks that this one waits for. */
static void back_off(int *n_polls)
{
  if (++*n_polls <= POLLS_YIELDING)
    (void)sched_yield();
  else
    (void)usleep(POLL_SLEEP_US);
}

bool xfi_mpi_all_end(MPI_Request *requests, int n)
{
  const xfi_deadline deadline = xfi_deadline_after(GRACE_MS);
  int n_polls = 0;

  for (int i = 0; i < n;) {
    int done = 0;
    if (requests[i] == MPI_REQUEST_NULL ||
        MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done) {
      i++;
      continue;
    }
    if (xfi_deadline_expired(deadline)) return false;
    back_off(&n_polls);
  }
  return true;
}

/* ---- failure ------------------------------------------------------------------------------ */

/* Break the comm once MPI is finalized, when nearly every MPI call would abort the process. */
static void check_finalized(xfi_mpi_comm *t)
{
  int finalized = 0;

  (void)MPI_Finalized(&finalized);
  if (finalized == 0) return;
  t->has_notified = true;
  t->notice_recv = MPI_REQUEST_NULL;
  (void)xfi_broken_set(&t->shared.broken, "MPI is finalized: destroy comms before MPI_Finalize()");
}

void xfi_mpi_notify_all(xfi_mpi_comm *t)
{
  if (xfi_shared_is_inherited(&t->shared)) return;
  check_finalized(t);
  if (t->has_notified) return;
  t->has_notified = true;
  t->notice_out = (xfi_mpi_notice){.token = t->token,
                                   .gathering = t->gathering,
                                   .n_gathered = t->n_gathered,
                                   .from = t->shared.base.rank};
  memcpy(t->notice_out.why, t->shared.broken.why,
         sizeof t->notice_out.why); /* the reason of a broken comm never changes */
  xfi_shared_alarm(&t->shared, t->notice_out.why);
  for (int r = 0; r < t->shared.base.size; r++)
    if (r != t->shared.base.rank)
      (void)MPI_Isend(&t->notice_out, (int)sizeof t->notice_out, MPI_BYTE, r, XFI_MPI_TAG_NOTICE,
                      t->comm, &t->notice_sends[r]);
  if (!xfi_mpi_all_end(t->notice_sends, t->shared.base.size)) t->leaks_own = true;
}

void xfi_mpi_post_notice(xfi_mpi_comm *t)
{
  (void)MPI_Irecv(&t->notice_in, (int)sizeof t->notice_in, MPI_BYTE, MPI_ANY_SOURCE,
                  XFI_MPI_TAG_NOTICE, t->comm, &t->notice_recv);
}

/* Another rank has broken the comm. It has notified all ranks, so this one need not do so too,
 * unless it is in a gathering: ranks that gave that up want to know who waited in it with them. */
static void handle_notice(xfi_mpi_comm *t, const xfi_mpi_notice *notice)
{
  (void)xfi_broken_set(&t->shared.broken, "%.*s", XFI_BROKEN_BYTES - 1, notice->why);
  if (notice->gathering != 0 && notice->gathering == t->gathering)
    t->is_waiting[notice->from] = true;
  if (t->gathering != 0) xfi_mpi_notify_all(t);
  t->has_notified = true;
}

void xfi_mpi_end_gathering(xfi_mpi_comm *t)
{
  t->gathering = 0;
  if (t->deferred_notice.token != 0) handle_notice(t, &t->deferred_notice);
}

/* The notice of a rank that has refused `what`; NULL: none has arrived. */
static xfi_mpi_notice *find_refused(xfi_mpi_comm *t, uint64_t what)
{
  xfi_mpi_notice *known = t->refused[XFI_KIND_OF(what)];

  for (int i = 0; i < XFI_REFUSALS; i++)
    if (known[i].refused == what) return &known[i];
  return NULL;
}

static void handle_refusal(xfi_mpi_comm *t, const xfi_mpi_notice *notice)
{
  const uint64_t kind = XFI_KIND_OF(notice->refused);
  xfi_mpi_notice *known = find_refused(t, notice->refused);

  if (known == NULL)
    t->refused[kind][t->n_refused[kind]++ % XFI_REFUSALS] = *notice;
  else if (notice->n_gathered < known->n_gathered)
    known->n_gathered = notice->n_gathered;
}

/* If the sender of a notice had completed the gathering that this rank is in, then all ranks have
 * contributed, so that it will complete here too: then the notice is deferred to the end of the
 * gathering. */
static void take_notice(xfi_mpi_comm *t)
{
  if (t->notice_in.token != t->token) return;
  if (t->notice_in.refused != 0)
    handle_refusal(t, &t->notice_in);
  else if (t->gathering == 0 || t->notice_in.n_gathered < t->gathering)
    handle_notice(t, &t->notice_in);
  else if (t->deferred_notice.token == 0)
    t->deferred_notice = t->notice_in;
}

/* Handle all notices that have arrived: a rank that refuses several runs sends one for each, and
 * this rank may be in any of these runs. */
static void poll_notices(xfi_mpi_comm *t)
{
  while (t->notice_recv != MPI_REQUEST_NULL) {
    int done = 0;

    if (MPI_Test(&t->notice_recv, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) return;
    take_notice(t);
    xfi_mpi_post_notice(t);
  }
}

/* Handle an alarm of a rank of this host, which has notified all ranks. Not while this rank is in a
 * gathering by messages: there it has to reply to the notice itself. */
static void check_alarm(xfi_mpi_comm *t)
{
  if (t->gathering == 0 && xfi_shared_poll_alarm(&t->shared)) t->has_notified = true;
}

xfer_status xfi_mpi_check_broken(xfi_comm *comm)
{
  xfi_mpi_comm *t = (xfi_mpi_comm *)comm;

  XFI_TRY(xfi_shared_check_process(&t->shared));
  check_finalized(t);
  check_alarm(t);
  poll_notices(t);
  if (atomic_load(&t->shared.broken.is)) xfi_mpi_notify_all(t);
  return xfi_broken_check(&t->shared.broken);
}

void xfi_mpi_refuse(xfi_comm *comm, uint64_t what, const char *why)
{
  xfi_mpi_comm *t = (xfi_mpi_comm *)comm;
  const size_t place = t->n_refusals_out % XFI_REFUSALS;
  xfi_mpi_notice *notice = &t->refusals_out[place];
  MPI_Request *sends = &t->refusal_sends[place * (size_t)comm->size];

  if (comm->shares_all) xfi_shared_refuse(comm, what, why);
  if (comm->shares_all || xfi_mpi_check_broken(comm) != XFER_OK) return;
  if (!xfi_mpi_all_end(sends, comm->size)) {
    comm->ops->abort(comm, why);
    return;
  }
  t->n_refusals_out++;
  *notice = (xfi_mpi_notice){
      .token = t->token, .refused = what, .n_gathered = t->n_gathered, .from = comm->rank};
  (void)snprintf(notice->why, sizeof notice->why, "rank %d: %s", comm->rank, why);
  for (int r = 0; r < comm->size; r++)
    if (r != comm->rank)
      (void)MPI_Issend(notice, (int)sizeof *notice, MPI_BYTE, r, XFI_MPI_TAG_NOTICE, t->comm,
                       &sends[r]);
}

xfer_status xfi_mpi_check_refused(xfi_comm *comm, uint64_t what)
{
  xfi_mpi_comm *t = (xfi_mpi_comm *)comm;
  const xfi_mpi_notice *known;

  if (comm->shares_all) return xfi_shared_check_refused(comm, what);
  XFI_TRY(xfi_mpi_check_broken(comm));
  known = what == 0 ? NULL : find_refused(t, what);
  if (known == NULL) return XFER_OK;
  /* If all that refused had completed the gathering that this rank is in before they did, it will
   * complete here too. */
  XFI_CHECK(t->gathering != 0 && known->n_gathered >= t->gathering, XFER_ERR_PEER, "%.*s",
            XFI_BROKEN_BYTES - 1, known->why);
  return XFER_OK;
}

/* Ranks that wait in the gathering too reply to this rank's notice, or have sent one themselves.
 * The first that does neither in time is late. */
int xfi_mpi_find_late(xfi_mpi_comm *t)
{
  xfi_deadline grace = xfi_deadline_after(GRACE_MS);
  int n_polls = 0;
  int late = 0;

  t->is_waiting[t->shared.base.rank] = true;
  while (late < t->shared.base.size) {
    if (t->is_waiting[late]) {
      late++;
      continue;
    }
    if (xfi_deadline_expired(grace)) return late;
    poll_notices(t);
    back_off(&n_polls);
  }
  return -1;
}

/* ---- waiting ------------------------------------------------------------------------------ */

bool xfi_mpi_leave_barrier(xfi_mpi_comm *t)
{
  const xfi_deadline deadline = xfi_deadline_after(LEAVE_MS);
  const int size = t->shared.base.size;
  const int rank = t->shared.base.rank;
  int n_polls = 0;

  /* A barrier by messages, since other ranks may be inside one of MPI's collective calls. */
  for (int step = 1; step < size; step *= 2) {
    MPI_Request pair[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    int code = MPI_Irecv(NULL, 0, MPI_BYTE, (rank + size - step) % size, XFI_MPI_TAG_LEAVE, t->comm,
                         &pair[0]);
    int done = 0;

    if (code == MPI_SUCCESS)
      code =
          MPI_Isend(NULL, 0, MPI_BYTE, (rank + step) % size, XFI_MPI_TAG_LEAVE, t->comm, &pair[1]);
    while (code == MPI_SUCCESS && done == 0) {
      check_alarm(t);
      poll_notices(t);
      if (atomic_load(&t->shared.broken.is) || xfi_deadline_expired(deadline)) break;
      code = MPI_Testall(2, pair, &done, MPI_STATUSES_IGNORE);
      if (done == 0) back_off(&n_polls);
    }
    if (done != 0) continue;
    if (pair[0] != MPI_REQUEST_NULL) (void)MPI_Cancel(&pair[0]);
    for (int i = 0; i < 2; i++)
      if (pair[i] != MPI_REQUEST_NULL) (void)MPI_Request_free(&pair[i]);
    return false;
  }
  return true;
}

/* Publish to the ranks of this host for whom the call in progress waits. */
static void publish_waits(xfi_mpi_comm *t)
{
  xfi_shared *s = &t->shared;
  const xfi_segment *own = xfi_segment_of(s, s->base.rank);
  bool *awaits = xfi_waits_clear(s);

  for (int r = 0; awaits != NULL && r < s->base.size; r++) {
    const xfi_segment *theirs = xfi_segment_of(s, r);

    awaits[r] =
        r == t->awaited || (t->is_broadcasting && theirs != NULL &&
                            atomic_load(&theirs->n_broadcasts) <= atomic_load(&own->n_broadcasts));
  }
  xfi_waits_publish(s, XFI_POLLING, s->base.inside);
}

/* The deadline has passed: fail with the name of the late rank. */
static xfer_status give_up(xfi_mpi_comm *t, xfi_deadline deadline)
{
  xfi_late late = {.rank = -1, .elsewhere = -1};

  do {
    XFI_TRY(xfi_mpi_check_broken(&t->shared.base));
    publish_waits(t);
  } while (t->gathering == 0 && !xfi_waits_find_late(&t->shared, &late));
  t->late = late.rank >= 0 ? late.rank : t->awaited;
  XFI_TRY(xfi_late_check(&t->shared.base, &late, deadline));
  return XFI_ERROR(XFER_ERR_TIMEOUT, "rank %d did not come before %s", t->late,
                   xfi_deadline_end(deadline));
}

xfer_status xfi_mpi_await(xfi_mpi_comm *t, MPI_Request *request, MPI_Status *status, int *code,
                          xfi_deadline deadline)
{
  const int64_t quiet_ns = xfi_now_ns() + QUIET_NS;

  for (int n_polls = 0;;) {
    int done = 0;
    *code = MPI_Test(request, &done, status);
    if (*code != MPI_SUCCESS || done) {
      xfi_waits_end(&t->shared);
      return XFER_OK;
    }
    xfer_status st = xfi_mpi_check_broken(&t->shared.base);
    if (st == XFER_OK) st = xfi_shared_check_run(&t->shared.base, t->gathering == 0);
    if (st != XFER_OK) return st;
    if (xfi_deadline_expired(deadline)) return give_up(t, deadline);
    if (n_polls >= POLLS_YIELDING || xfi_now_ns() >= quiet_ns) publish_waits(t);
    back_off(&n_polls);
  }
}
