/* Who is late, when a deadline passes between ranks that share memory. Whom a rank waits for often
 * waits itself: so each says in its segment for whom it waits before it sleeps, and one that gives
 * up follows what the others say, from rank to rank, down to those who wait for nobody.
 *
 * A rank that was woken and has not said anything again is taken for awake: one that was stopped in
 * its sleep is found once what it waited for has come. One that only has no time to say it is
 * awake for a moment; so several looks must agree. Who waits for messages is woken by nobody: where
 * all wait in a circle, one that says nothing for a while has been stopped.
 */
#include "shared.h"

#include <string.h>

enum {
  ALIKE = 3,  /* looks that must agree, */
  LOOKS = 70, /* of so many at most: 210 ms; whoever sleeps says so again at least each 50 ms */
  PAUSE_NS = 3000000
};

void xfi_shared_say(xfi_shared *s, uint32_t sleeping)
{
  xfi_segment *own = xfi_segment_of(s, s->base.rank);

  if (own == NULL) return;
  for (int r = 0; r < s->base.size; r++)
    atomic_store_explicit(&xfi_awaits_of(s, own)[r], s->awaits[r], memory_order_relaxed);
  (void)atomic_fetch_add(&own->n_said, 1);
  atomic_store(&own->sleeping, sleeping);
}

/* Whom `rank` waits for is to be asked too, unless it was. */
static bool add_awaited(const xfi_shared *s, bool *to_ask, xfi_segment *segment)
{
  bool is_new = false;

  for (int r = 0; r < s->base.size; r++) {
    if (s->asked[r] || to_ask[r] || !atomic_load(&xfi_awaits_of(s, segment)[r])) continue;
    is_new = to_ask[r] = true;
  }
  return is_new;
}

/* Also one, at last, that has said nothing since the first look. */
static bool is_awake(const xfi_shared *s, const xfi_segment *segment, bool at_last)
{
  if (segment->rank == s->base.rank) return false;
  return atomic_load(&segment->sleeping) == XFI_AWAKE ||
         (at_last && atomic_load(&segment->n_said) == s->n_said[segment->rank]);
}

/* The lowest rank that this one waits for, by others or not, and that is awake; else one that
 * cannot be asked; -1: neither. What this rank waits for has been said, so `awaits` is free. */
static int look(xfi_shared *s, bool at_last)
{
  const size_t n_bytes = (size_t)s->base.size * sizeof *s->asked;
  bool *to_ask = s->awaits;
  int awake = -1;
  int mute = -1;

  memset(to_ask, 0, n_bytes);
  memset(s->asked, 0, n_bytes);
  to_ask[s->base.rank] = true;
  for (bool more = true; more;) {
    more = false;
    for (int r = 0; r < s->base.size; r++) {
      xfi_segment *segment = xfi_segment_of(s, r);

      if (s->asked[r] || !to_ask[r]) continue;
      s->asked[r] = true;
      if (segment == NULL)
        mute = mute < 0 || r < mute ? r : mute;
      else if (is_awake(s, segment, at_last))
        awake = awake < 0 || r < awake ? r : awake;
      else if (add_awaited(s, to_ask, segment))
        more = true;
    }
  }
  return awake >= 0 ? awake : mute;
}

bool xfi_shared_find_late(xfi_shared *s, xfi_late *late)
{
  int found = -1;

  late->rank = late->n_looks == 0 ? -1 : late->rank;
  if (xfi_segment_of(s, s->base.rank) == NULL) return true;
  for (int r = 0; late->n_looks == 0 && r < s->base.size; r++)
    if (xfi_segment_of(s, r) != NULL) s->n_said[r] = atomic_load(&xfi_segment_of(s, r)->n_said);
  found = look(s, ++late->n_looks == LOOKS);
  late->n_alike = found == late->rank ? late->n_alike + 1 : 1;
  late->rank = found;
  if (late->n_looks == LOOKS || (found >= 0 && late->n_alike == ALIKE)) return true;
  xfi_sleep_ns(PAUSE_NS);
  return false;
}
