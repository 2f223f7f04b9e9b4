/*
 * What all transports share: the agreement that ends each collective call, gatherings that are
 * checked, and the texts of a broken comm. src/run, src/agree and src/api call this on the thread
 * that makes the comm's calls; only xfi_broken may be used by any thread.
 *
 * An agreement is usually one all-gather of four bytes. Only if some rank has failed, which all
 * then know, do the ranks exchange texts in a second one.
 */
#include "comm.h"

#include "alloc.h"
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
  STACK_RANKS =
      1024,         /* up to so many ranks an agreement allocates nothing, so it cannot fail here */
  TEXT_BYTES = 256, /* of an error text, as it is quoted to the others */
  DECLINE_MS = 2000 /* how long the others may take to a gathering whose deadline is not known */
};

static void decline(xfi_comm *comm, const char *why, xfi_deadline deadline)
{
  if (comm->ops->decline != NULL) comm->ops->decline(comm, why, deadline);
  comm->ops->abort(comm, why);
}

xfer_status xfi_comm_check_destroyed(xfi_comm *comm)
{
  const bool is_of_plan = comm->inside == XFI_INSIDE_RUN || comm->inside == XFI_INSIDE_WAIT ||
                          comm->inside == XFI_INSIDE_COMMIT;

  return is_of_plan ? comm->ops->check_refused(comm, XFI_DESTROYED | comm->plan) : XFER_OK;
}

/* The last error, as this rank reports it (`why`) and as the others are told of it (`text`). */
typedef struct reason {
  char why[XFI_ERROR_BYTES];
  char text[XFI_ERROR_BYTES + 24];
} reason;

static reason last_reason(const xfi_comm *comm)
{
  reason r;

  (void)snprintf(r.why, sizeof r.why, "%s", xfer_last_error());
  (void)snprintf(r.text, sizeof r.text, "rank %d: %s", comm->rank, r.why);
  return r;
}

void xfi_comm_decline(xfi_comm *comm, xfi_deadline deadline)
{
  const reason r = last_reason(comm);

  decline(comm, r.text, deadline);
  xfi_set_error("%s", r.why);
}

void *xfi_comm_calloc(xfi_comm *comm, size_t n, size_t size)
{
  void *p = xfi_calloc(n, size);
  char why[64];

  if (p != NULL) return p;
  (void)snprintf(why, sizeof why, "rank %d is out of memory", comm->rank);
  decline(comm, why, xfi_deadline_after(DECLINE_MS));
  return NULL;
}

bool xfi_broken_set(xfi_broken *broken, const char *fmt, ...)
{
  char why[XFI_ERROR_BYTES];
  va_list args;

  va_start(args, fmt);
  (void)vsnprintf(why, sizeof why, fmt, args);
  va_end(args);
  (void)pthread_mutex_lock(&broken->lock);
  const bool first = !atomic_load(&broken->is);
  if (first) xfi_cut_text(broken->why, sizeof broken->why, why);
  atomic_store(&broken->is, true);
  (void)pthread_mutex_unlock(&broken->lock);
  return first;
}

xfer_status xfi_broken_check(xfi_broken *broken)
{
  xfer_status st = XFER_OK;

  (void)pthread_mutex_lock(&broken->lock);
  XFI_CHECK_DONE(!atomic_load(&broken->is), XFER_ERR_COMM, XFI_BROKEN "%s", broken->why);
done:
  (void)pthread_mutex_unlock(&broken->lock);
  return st;
}

xfer_status xfi_comm_check_deadline(xfi_deadline deadline)
{
  XFI_CHECK(!xfi_deadline_expired(deadline), XFER_ERR_TIMEOUT, "not all was moved before %s",
            xfi_deadline_end(deadline));
  return XFER_OK;
}

void xfi_comm_abort_with_error(xfi_comm *comm, void (*abort)(xfi_comm *comm, const char *why))
{
  const reason r = last_reason(comm);

  abort(comm, r.text);
  xfi_set_error("%s", r.why);
}

xfer_status xfi_comm_refused(xfi_comm *comm, xfer_status checked)
{
  if (!comm->refuses) return checked;
  comm->refuses = false;
  return XFI_ERROR(XFER_ERR_ARG, "%s", comm->refusal);
}

/* The first row that a rank contributes to a gathering. */
typedef struct head {
  xfi_gathering of;
  unsigned char bytes[XFI_GATHER_ROW_BYTES -
                      sizeof(xfi_gathering)]; /* the first of those that are gathered */
} head;

/* Stands in place of n_bytes if a rank gathers nothing; `bytes` then has a text that says why. */
#define NONE_GATHERED UINT64_MAX

#define IN_ONE_ORDER ": all ranks make the same calls in one order"

static const char *name_of(uint32_t inside)
{
  static const char *const names[] = {[XFI_INSIDE_ANOTHER] = "another call",
                                      [XFI_INSIDE_ALL_GATHER] = "xfer_comm_all_gather()",
                                      [XFI_INSIDE_REGISTER] = "xfer_comm_register()",
                                      [XFI_INSIDE_UNREGISTER] = "xfer_comm_unregister()",
                                      [XFI_INSIDE_PLAN_CREATE] = "xfer_plan_create()",
                                      [XFI_INSIDE_PLAN_EXCHANGE] = "xfer_plan_create_exchange()",
                                      [XFI_INSIDE_COMMIT] = "xfer_plan_commit()",
                                      [XFI_INSIDE_WAIT] = "xfer_plan_wait()",
                                      [XFI_INSIDE_RELEASE] = "xfer_plan_release()",
                                      [XFI_INSIDE_DIGEST] = "xfer_plan_digest()",
                                      [XFI_INSIDE_REPLICAS] = "xfer_plan_check_replicas()",
                                      [XFI_INSIDE_REDISTRIBUTE] = "xfer_redistribute()",
                                      [XFI_INSIDE_EXCHANGE] = "xfer_exchange()",
                                      [XFI_INSIDE_RUN] = "xfer_plan_run()"};

  return names[inside < sizeof names / sizeof *names ? inside : XFI_INSIDE_ANOTHER];
}

xfer_status xfi_comm_check_version(int mine, uint32_t version, int rank)
{
  const unsigned mask = 1023;

  XFI_CHECK(version == XFI_VERSION, XFER_ERR_MISMATCH,
            "rank %d has version %d.%d.%d of xfer and rank %d version %u.%u.%u; all need the same",
            mine, XFER_VERSION_MAJOR, XFER_VERSION_MINOR, XFER_VERSION_PATCH, rank, version >> 20,
            version >> 10 & mask, version & mask);
  return XFER_OK;
}

xfer_status xfi_comm_check_inside(const xfi_comm *comm, xfi_inside mine, uint32_t theirs, int rank)
{
  XFI_CHECK(theirs == mine, XFER_ERR_MISMATCH, "rank %d is in %s and rank %d in %s" IN_ONE_ORDER,
            comm->rank, name_of(mine), rank, name_of(theirs));
  return XFER_OK;
}

xfer_status xfi_comm_check_same(const xfi_comm *comm, xfi_gathering mine, xfi_gathering theirs,
                                int rank)
{
  /* The caller's bytes must not be mistaken for the library's. */
  const bool one_is_callers =
      mine.inside != theirs.inside &&
      (mine.inside == XFI_INSIDE_ALL_GATHER || theirs.inside == XFI_INSIDE_ALL_GATHER);

  XFI_TRY(xfi_comm_check_version(comm->rank, theirs.version, rank));
  if (theirs.n_bytes == mine.n_bytes && theirs.number == mine.number && !one_is_callers)
    return XFER_OK;
  XFI_TRY(xfi_comm_check_inside(comm, (xfi_inside)mine.inside, theirs.inside, rank));
  XFI_CHECK(theirs.n_bytes == mine.n_bytes, XFER_ERR_MISMATCH,
            "rank %d gathers %llu bytes and rank %d %llu" IN_ONE_ORDER, comm->rank,
            (unsigned long long)mine.n_bytes, rank, (unsigned long long)theirs.n_bytes);
  return XFI_ERROR(XFER_ERR_MISMATCH,
                   "rank %d is in gathering %llu and rank %d in %llu" IN_ONE_ORDER, comm->rank,
                   (unsigned long long)mine.number, rank, (unsigned long long)theirs.number);
}

static const char *call_name(xfi_carry_call call)
{
  static const char *const names[] = {"channels", "exchange", "round", "broadcast"};

  return call <= XFI_OF_BROADCAST ? names[call] : "?"; /* another process's word */
}

xfer_status xfi_envelope_check(xfi_envelope sent, int from, xfi_envelope expected, int to)
{
  XFI_CHECK(sent.call == expected.call && sent.n_bytes == expected.n_bytes, XFER_ERR_MISMATCH,
            "rank %d sends %llu bytes in %s to rank %d, which expects %llu in %s" IN_ONE_ORDER,
            from, (unsigned long long)sent.n_bytes, call_name(sent.call), to,
            (unsigned long long)expected.n_bytes, call_name(expected.call));
  XFI_CHECK(sent.run.sequence == expected.run.sequence, XFER_ERR_MISMATCH,
            "rank %d sends in run %llu of the comm's plans, rank %d expects what is sent in run "
            "%llu (0: in a call without a plan)" IN_ONE_ORDER,
            from, (unsigned long long)sent.run.sequence, to,
            (unsigned long long)expected.run.sequence);
  return XFER_OK;
}

/* Copy rows, which are `pitch` bytes apart, into bytes [at, at + n) of each rank's n_bytes in
 * `all`. */
static void scatter_rows(const xfi_comm *comm, char *all, size_t n_bytes, size_t at,
                         const char *rows, size_t pitch, size_t n)
{
  for (size_t r = 0; r < (size_t)comm->size && n > 0; r++)
    memcpy(all + r * n_bytes + at, rows + r * pitch, n);
}

xfer_status xfi_comm_gather(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                            xfi_gather_rows_fn *gather, size_t most, xfi_deadline deadline)
{
  head own = {xfi_comm_gathering(comm, n_bytes, ++comm->n_gatherings), {0}};
  const char *rows = NULL;
  size_t n = n_bytes < sizeof own.bytes ? n_bytes : sizeof own.bytes;

  if (n > 0) memcpy(own.bytes, mine, n);
  XFI_TRY(gather(comm, &rows, &own, sizeof own, deadline));
  for (int r = 0; r < comm->size; r++) {
    xfi_gathering theirs;

    memcpy(&theirs, rows + (size_t)r * sizeof own, sizeof theirs);
    XFI_CHECK(theirs.n_bytes != NONE_GATHERED || theirs.version != own.of.version, XFER_ERR_COMM,
              XFI_BROKEN "%.*s", (int)sizeof own.bytes,
              rows + (size_t)r * sizeof own + offsetof(head, bytes));
    XFI_TRY(xfi_comm_check_same(comm, own.of, theirs, r));
  }
  scatter_rows(comm, all, n_bytes, 0, rows + offsetof(head, bytes), sizeof own, n);
  for (size_t at = n; at < n_bytes; at += n) {
    n = n_bytes - at < most ? n_bytes - at : most;
    XFI_TRY(xfi_comm_check_deadline(deadline));
    XFI_TRY(gather(comm, &rows, (const char *)mine + at, n, deadline));
    scatter_rows(comm, all, n_bytes, at, rows, n, n);
  }
  return XFER_OK;
}

xfer_status xfi_comm_gather_no(xfi_comm *comm, const char *why, xfi_gather_rows_fn *gather,
                               xfi_deadline deadline)
{
  head own = {xfi_comm_gathering(comm, NONE_GATHERED, 0), {0}};
  const char *rows = NULL;

  xfi_cut_text((char *)own.bytes, sizeof own.bytes, why);
  return gather(comm, &rows, &own, sizeof own, deadline);
}

/* The lowest rank that failed by itself, else the lowest that only reports another's failure; -1:
 * none. Rows begin with statuses. */
static int find_failed(const unsigned char *rows, size_t row_bytes, int n_ranks)
{
  int found = -1;

  for (int r = 0; r < n_ranks; r++) {
    int32_t status;

    memcpy(&status, rows + (size_t)r * row_bytes, sizeof status);
    if (status == XFER_OK) continue;
    if (status != XFER_ERR_PEER) return r;
    if (found < 0) found = r;
  }
  return found;
}

/* Every rank's `quote` becomes the text of rank `failed`, or "" if memory is short. Collective. */
static xfer_status share_text(xfi_comm *comm, char quote[TEXT_BYTES], const char mine[TEXT_BYTES],
                              int failed, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  char *texts = NULL;

  texts = xfi_comm_calloc(comm, (size_t)comm->size, TEXT_BYTES);
  XFI_CHECK_DONE(texts != NULL, XFER_ERR_NOMEM, "the texts of a failure");
  XFI_TRY_DONE(comm->ops->all_gather(comm, texts, mine, TEXT_BYTES, deadline));
  memcpy(quote, texts + (size_t)failed * TEXT_BYTES, TEXT_BYTES);
  quote[TEXT_BYTES - 1] = '\0';
done:
  xfi_free(texts);
  return st;
}

xfer_status xfi_comm_unreported(const xfi_error *mine, xfer_status transport)
{
  const char *transport_text = xfer_last_error();
  char own[TEXT_BYTES];

  xfi_cut_text(own, sizeof own, mine->text);
  /* One contains the other if this rank broke the comm for that very reason, or if its own failure
   * is that the comm is broken. Then the caller's text is enough. */
  if (strstr(transport_text, mine->text) != NULL || strstr(mine->text, transport_text) != NULL)
    (void)xfi_error_report(mine);
  else
    xfi_set_error("%s; %s", own, transport_text);
  return mine->st == XFER_ERR_PEER ? transport : mine->st;
}

/* Gather all ranks' rows, of which this rank's, `own`, begins with `mine`, and agree on the
 * statuses. */
static xfer_status gather_rows(xfi_comm *comm, void *rows, const void *own, size_t row_bytes,
                               xfer_status mine, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  xfi_error ours = {.st = XFER_OK};
  char told[TEXT_BYTES] = "";  /* what others see of it, */
  char quote[TEXT_BYTES] = ""; /* and the failed rank's text */
  int failed = -1;

  xfi_error_keep(&ours, mine);
  xfi_cut_text(told, sizeof told, ours.text);
  st = comm->ops->all_gather(comm, rows, own, row_bytes, deadline);
  if (st == XFER_OK) {
    failed = find_failed(rows, row_bytes, comm->size);
    if (failed >= 0) {
      (void)share_text(comm, quote, told, failed, deadline);
      xfi_set_error("rank %d: %s", failed, quote);
      st = XFER_ERR_PEER;
    }
  }
  if (mine == XFER_OK) return st;
  if (st != XFER_OK && failed < 0) return xfi_comm_unreported(&ours, st);
  if (mine != XFER_ERR_PEER || failed < 0 || strstr(ours.text, quote) != NULL)
    return xfi_error_report(&ours);
  xfi_set_error("%s; rank %d: %s", told, failed, quote); /* its cause */
  return mine;
}

xfer_status xfi_comm_agree(xfi_comm *comm, xfer_status mine, xfi_deadline deadline)
{
  int32_t statuses[STACK_RANKS];
  const int32_t status = (int32_t)mine;

  if (comm->size <= STACK_RANKS)
    return gather_rows(comm, statuses, &status, sizeof status, mine, deadline);
  xfi_free(xfi_comm_agree_gather(comm, &mine, NULL, 0, deadline));
  return mine;
}

void *xfi_comm_agree_gather(xfi_comm *comm, xfer_status *st, const void *item, size_t n_bytes,
                            xfi_deadline deadline)
{
  const size_t size = (size_t)comm->size;
  const int32_t status = (int32_t)*st;
  const size_t row_bytes = sizeof status + n_bytes;
  unsigned char *rows = xfi_comm_calloc(comm, size + 1, row_bytes); /* the last is our own */

  if (rows == NULL) {
    if (*st == XFER_OK) *st = XFI_NO_MEMORY("what %d ranks say", comm->size);
    return NULL;
  }
  memcpy(rows + size * row_bytes, &status, sizeof status);
  if (n_bytes > 0) memcpy(rows + size * row_bytes + sizeof status, item, n_bytes);
  *st = gather_rows(comm, rows, rows + size * row_bytes, row_bytes, *st, deadline);
  if (*st != XFER_OK) {
    xfi_free(rows);
    return NULL;
  }
  for (size_t r = 0; r < size; r++)
    memmove(rows + r * n_bytes, rows + r * row_bytes + sizeof status, n_bytes);
  return rows;
}
