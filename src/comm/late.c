/*
 * Which rank is late when a deadline passes between ranks that share memory. The rank that is
 * waited for is often itself waiting. So each rank publishes for whom it waits before it sleeps,
 * and one that gives up follows what the others have published, from rank to rank, to those that
 * wait for nobody.
 *
 * A rank that was woken and has not published again counts as awake. So a rank that was stopped in
 * its sleep is found once what it waited for has arrived. A rank that merely had no time to publish
 * is awake for a moment only, so several steps of the search have to agree. Nobody wakes a rank
 * that waits for messages or flags, so such ranks may all seem to wait in a circle: then one that
 * publishes nothing for a while has been stopped. If there is none, and the ranks are in different
 * calls, no deadline would have been long enough, and that is the error.
 *
 * Each rank calls this on the thread that waits.
 */
#include "late.h"

#include "segment.h"

#include <string.h>

enum {
  SAME = 3,   /* so many steps in a row must find the same rank, */
  STEPS = 70, /* of at most so many: 210 ms */
  PAUSE_NS = 3000000,
  PUBLISH_NS = 50000000,      /* a sleeping rank publishes again at least this often, */
  FIRST_PUBLISH_NS = 5000000, /* for the first time after this */
};

static xfi_waiting *own_of(const xfi_shared *s)
{
  return s == NULL ? NULL : xfi_waiting_of(s, s->base.rank);
}

bool *xfi_waits_clear(xfi_shared *s)
{
  return own_of(s) == NULL ? NULL : memset(s->awaits, 0, (size_t)s->base.size * sizeof *s->awaits);
}

void xfi_waits_publish(xfi_shared *s, xfi_until until, xfi_inside inside)
{
  xfi_waiting *own = own_of(s);

  if (own == NULL) return;
  for (int r = 0; r < s->base.size; r++)
    atomic_store_explicit(&own->awaits[r], s->awaits[r], memory_order_relaxed);
  atomic_store_explicit(&own->inside, inside, memory_order_relaxed);
  (void)atomic_fetch_add(&own->n, 1);
  atomic_store(&own->until, until);
}

void xfi_waits_end(xfi_shared *s)
{
  xfi_waiting *own = own_of(s);

  if (own != NULL && atomic_load_explicit(&own->until, memory_order_relaxed) != XFI_AWAKE)
    atomic_store(&own->until, XFI_AWAKE);
}

xfi_deadline xfi_waits_part(xfi_deadline end, int n)
{
  const int64_t at_ns = xfi_now_ns() + (n == 0 ? FIRST_PUBLISH_NS : PUBLISH_NS);

  if (at_ns < end.at_ns) end.at_ns = at_ns;
  return end;
}

/* Add the ranks that a rank waits for to `reached`, but those that were visited before. */
static bool add_awaited(const xfi_shared *s, bool *reached, const xfi_waiting *published)
{
  bool is_new = false;

  for (int r = 0; r < s->base.size; r++) {
    if (s->visited[r] || reached[r] || !atomic_load(&published->awaits[r])) continue;
    is_new = reached[r] = true;
  }
  return is_new;
}

/* Is a rank awake? In the last step one that has published nothing since the first counts too. */
static bool is_awake(const xfi_shared *s, int rank, bool at_last)
{
  const xfi_waiting *published = xfi_waiting_of(s, rank);

  if (rank == s->base.rank) return false;
  return atomic_load(&published->until) == XFI_AWAKE ||
         (at_last && atomic_load(&published->n) == s->n_published[rank]);
}

/* Calls that ranks may be in at the same time count as one: a rank may have gone on from a run to
 * the wait for it, perhaps because the run failed. */
static uint32_t step_of(uint32_t inside)
{
  return inside == XFI_INSIDE_WAIT ? XFI_INSIDE_RUN : inside;
}

/* Record the first rank that is seen to wait in another call than this one. Only the first: once
 * its own deadline has passed, that rank goes on to an agreement, which is another call again. */
static void record_elsewhere(const xfi_shared *s, int rank, xfi_late *late)
{
  const uint32_t inside = atomic_load(&xfi_waiting_of(s, rank)->inside);

  if (late->elsewhere >= 0 || step_of(inside) == step_of(atomic_load(&own_of(s)->inside))) return;
  late->elsewhere = rank;
  late->inside = inside;
}

/* The lowest awake rank that this one waits for, directly or through others; else one whose waits
 * cannot be read; -1: neither. What this rank awaits is published already, so `awaits` is free. */
static int search(xfi_shared *s, bool at_last, xfi_late *late)
{
  bool *reached = xfi_waits_clear(s);
  int awake = -1;
  int unreadable = -1;

  memset(s->visited, 0, (size_t)s->base.size * sizeof *s->visited);
  reached[s->base.rank] = true;
  for (bool more = true; more;) {
    more = false;
    for (int r = 0; r < s->base.size; r++) {
      if (s->visited[r] || !reached[r]) continue;
      s->visited[r] = true;
      if (xfi_waiting_of(s, r) == NULL)
        unreadable = unreadable < 0 || r < unreadable ? r : unreadable;
      else if (is_awake(s, r, at_last))
        awake = awake < 0 || r < awake ? r : awake;
      else {
        record_elsewhere(s, r, late);
        more = add_awaited(s, reached, xfi_waiting_of(s, r)) || more;
      }
    }
  }
  return awake >= 0 ? awake : unreadable;
}

bool xfi_waits_find_late(xfi_shared *s, xfi_late *late)
{
  int found = -1;

  if (late->n_steps == 0) late->rank = late->elsewhere = -1;
  if (own_of(s) == NULL) return true;
  for (int r = 0; late->n_steps == 0 && r < s->base.size; r++)
    if (xfi_waiting_of(s, r) != NULL) s->n_published[r] = atomic_load(&xfi_waiting_of(s, r)->n);
  found = search(s, ++late->n_steps == STEPS, late);
  late->n_same = found == late->rank ? late->n_same + 1 : 1;
  late->rank = found;
  if (late->n_steps == STEPS && late->n_same < STEPS) late->elsewhere = -1;
  if (late->n_steps == STEPS || (found >= 0 && late->n_same == SAME)) return true;
  xfi_sleep_ns(PAUSE_NS);
  return false;
}

xfer_status xfi_late_check(const xfi_comm *comm, const xfi_late *late, xfi_deadline deadline)
{
  if (late->rank >= 0 || late->elsewhere < 0 || xfi_deadline_was_cut(deadline)) return XFER_OK;
  return xfi_comm_check_inside(comm, comm->inside, late->inside, late->elsewhere);
}
