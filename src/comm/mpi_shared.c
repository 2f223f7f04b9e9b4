/* Gathering and streams between ranks that share memory: flags in it and no message. A rank that
 * waits looks again and again for a while, with more ranks than cores yielding, so that the others
 * come to write what it waits for, and else not, since on a loaded host somebody else's turn may be
 * long; then it sleeps on its bell, and looks now and then whether the comm was broken by a rank of
 * another host, or whether a process that it waits for has ended.
 */
#include "mpi_comm.h"

#include "error.h"
#include "futex.h"

#include <assert.h>
#include <sched.h>
#include <string.h>

enum {
  YIELDS = 1000,  /* before sleeping: to be woken costs more than a turn of all others, */
  LOOKING_MS = 2, /* which on a loaded host may be any time */
  NAP_NS = 1000000,
  LOOK_FOR_LOST = 16 /* naps between looks */
};

/* ---- waiting ------------------------------------------------------------------------------- */

typedef bool is_meant(const xfi_segments *segments, int rank);

static bool is_any(const xfi_segments *segments, int rank)
{
  (void)segments, (void)rank;
  return true;
}

/* What a rank waits for. */
typedef struct awaited {
  const char *name; /* of the call */
  bool (*is_there)(const struct awaited *what);
  /* A rank that has not come, of those that `of` says; -1: none. */
  int (*find_late)(const struct awaited *what, is_meant *of);
  int ringer; /* the rank that will ring; -1: several may */
  xfi_mpi_comm *t;
  const void *of; /* the caller's */
} awaited;

static void nap(xfi_segment *own, const awaited *what, uint32_t sleeping, xfi_deadline deadline)
{
  const int64_t until = xfi_now_ns() + NAP_NS;
  const xfi_deadline end = {until < deadline.at_ns ? until : deadline.at_ns};
  const uint32_t bell = atomic_load(&own->bell);

  atomic_store(&own->sleeping, sleeping);
  atomic_thread_fence(memory_order_seq_cst); /* see xfi_segment_ring */
  if (!what->is_there(what)) xfi_futex_wait(&own->bell, bell, end, XFI_FUTEX_SHARED);
  atomic_store(&own->sleeping, XFI_AWAKE);
}

/* What they wrote before they left is there. */
static xfer_status check_lost(const awaited *what)
{
  const int gone = what->find_late(what, xfi_segment_has_left);
  const int lost = what->find_late(what, xfi_segment_is_lost);

  XFI_CHECK(gone < 0 || what->is_there(what), XFER_ERR_COMM, "%s: rank %d has left the comm",
            what->name, gone);
  XFI_CHECK(lost < 0 || what->is_there(what), XFER_ERR_COMM, "%s: the process of rank %d has ended",
            what->name, lost);
  return XFER_OK;
}

static xfer_status await(const awaited *what, xfi_deadline deadline)
{
  xfi_mpi_comm *t = what->t;
  xfi_segment *own = xfi_segment_of(t->segments, t->base.rank);
  const uint32_t sleeping = what->ringer < 0 ? XFI_ASLEEP : (uint32_t)what->ringer;
  xfer_status st = XFER_OK;
  xfi_deadline looking = {0};
  int n_naps = 0;

  for (int looks = 0; !what->is_there(what); looks++) {
    if (looks == 0) looking = xfi_deadline_after(LOOKING_MS);
    if ((t->base.has_cores || looks < YIELDS) && !xfi_deadline_expired(looking)) {
      if (!t->base.has_cores) (void)sched_yield();
      continue;
    }
    st = xfi_mpi_check_broken(t);
    /* Who breaks the comm may have seen all that this rank waits for. */
    if (st != XFER_OK) return what->is_there(what) ? XFER_OK : st;
    XFI_CHECK_DONE(!xfi_deadline_expired(deadline), XFER_ERR_TIMEOUT,
                   "%s: rank %d did not come before the deadline", what->name,
                   what->find_late(what, is_any));
    if (++n_naps % LOOK_FOR_LOST == 0) XFI_TRY_DONE(check_lost(what));
    nap(own, what, sleeping, deadline);
  }
done:
  return st;
}

/* ---- gathering ----------------------------------------------------------------------------- */

/* A rank's part of a step. */
typedef struct part {
  const xfi_segment *segment;
  uint64_t step;
} part;

static bool is_given(const awaited *what)
{
  const part *p = what->of;

  return atomic_load_explicit(&p->segment->n_given, memory_order_acquire) >= p->step;
}

static int find_giver(const awaited *what, is_meant *of)
{
  const int rank = (int)((const part *)what->of)->segment->rank;

  return of(what->t->segments, rank) ? rank : -1;
}

/* Two places to give in, used in turn: to give a second time after this a rank must have seen
 * everybody give once, when all had read what was given now. */
static xfer_status gather_step(xfi_mpi_comm *t, const unsigned char *mine, unsigned char *all,
                               size_t n_bytes, size_t at, xfi_deadline deadline)
{
  xfi_segments *s = t->segments;
  xfi_segment *own = s->at[s->place];
  const uint64_t step = ++t->n_steps;
  const size_t left = n_bytes - at;
  const size_t n = left < XFI_SEGMENT_GATHER_BYTES ? left : XFI_SEGMENT_GATHER_BYTES;
  xfi_given *given = &own->given[step % 2];

  given->of = xfi_comm_gathering(&t->base, n_bytes, at);
  if (n > 0) memcpy(given->bytes, mine + at, n);
  atomic_store_explicit(&own->n_given, step, memory_order_release);
  for (int i = 0; i < s->n_places; i++)
    if (i != s->place) xfi_segment_ring(s->at[i], t->base.rank);
  for (int i = 0; i < s->n_places; i++) {
    const part peer = {s->at[i], step};

    XFI_TRY(await(&(awaited){"all_gather", is_given, find_giver, s->cards[i].rank, t, &peer},
                  deadline));
  }
  for (int r = 0; r < t->base.size; r++) {
    const xfi_given *theirs = &xfi_segment_of(s, r)->given[step % 2];

    XFI_TRY(xfi_comm_check_same(&t->base, given->of, theirs->of, r));
  }
  for (int r = 0; r < t->base.size && n > 0; r++)
    memcpy(all + (size_t)r * n_bytes + at, xfi_segment_of(s, r)->given[step % 2].bytes, n);
  return XFER_OK;
}

xfer_status xfi_mpi_gather_shared(xfi_mpi_comm *t, void *all, const void *mine, size_t n_bytes,
                                  xfi_deadline deadline)
{
  size_t at = 0;

  do {
    XFI_TRY(gather_step(t, mine, all, n_bytes, at, deadline));
    at += XFI_SEGMENT_GATHER_BYTES;
  } while (at < n_bytes);
  return XFER_OK;
}

/* ---- streams ------------------------------------------------------------------------------- */

#define LAST_SLOT (UINT32_C(1) << 31) /* of a stream; with the slot's bytes */

typedef struct streams {
  xfi_mpi_comm *t;
  xfi_channel *channels; /* [n] */
  size_t n;
  size_t slot_bytes;
  xfi_carry_fn *carry;
  void *context;
  bool rings;    /* somebody may wait for what is moved */
  size_t n_left; /* channels that are not done */
} streams;

bool xfi_mpi_shares(const xfi_comm *comm, int peer)
{
  return xfi_segment_of(((const xfi_mpi_comm *)comm)->segments, peer) != NULL;
}

/* The slots between this rank and the channel's peer: in the sender's segment, at the place of the
 * receiver. */
static xfi_ring *ring_of(const streams *s, const xfi_channel *c)
{
  const xfi_segments *segments = s->t->segments;

  return c->send ? &segments->at[segments->place]->rings[segments->places[c->peer]]
                 : &xfi_segment_of(segments, c->peer)->rings[segments->place];
}

/* The next channel that sends the same; NULL: none. */
static xfi_channel *next_same(const streams *s, const xfi_channel *c)
{
  return c->next_same == 0 ? NULL : &s->channels[c->next_same];
}

/* Has everybody emptied what the next shared slot held, be it of another stream? */
static bool is_shared_free(const streams *s)
{
  const xfi_segments *segments = s->t->segments;
  const xfi_segment *own = segments->at[segments->place];
  const size_t slot = own->n_shared % XFI_CHANNEL_SLOTS;

  for (int i = 0; i < segments->n_places; i++)
    if (atomic_load_explicit(&own->rings[i].n_emptied, memory_order_acquire) <
        own->rings[i].n_when_shared[slot])
      return false;
  return true;
}

/* Is there a slot to fill, or to empty? What the other end did in the slots is acquired with
 * its count. */
static bool can_move(const streams *s, const xfi_channel *c)
{
  const xfi_ring *ring = ring_of(s, c);
  uint64_t emptied;

  if (!c->send)
    return atomic_load_explicit(&ring->n_filled, memory_order_acquire) !=
           atomic_load_explicit(&ring->n_emptied, memory_order_relaxed);
  if (c->next_same != 0 && !is_shared_free(s)) return false;
  for (; c != NULL; c = next_same(s, c)) {
    ring = ring_of(s, c);
    emptied = atomic_load_explicit(&ring->n_emptied, memory_order_acquire);
    if (atomic_load_explicit(&ring->n_filled, memory_order_relaxed) - emptied >= XFI_CHANNEL_SLOTS)
      return false;
  }
  return true;
}

/* What this rank has still to carry in a channel. */
static bool is_to_do(const xfi_channel *c)
{
  return !c->is_again && c->n_done < c->n_bytes;
}

/* The bytes of the channel's next slot, and its label. */
static uint32_t next_bytes(const streams *s, const xfi_channel *c, uint32_t *label)
{
  const uint64_t left = c->n_bytes - c->n_done;
  const uint32_t n = (uint32_t)(left < s->slot_bytes ? left : s->slot_bytes);

  *label = n | (n == left ? LAST_SLOT : 0);
  return n;
}

static void count_slot(streams *s, xfi_channel *c, uint32_t n, _Atomic uint64_t *ours)
{
  const uint64_t count = atomic_load_explicit(ours, memory_order_relaxed);

  c->n_done += n;
  if (c->n_done == c->n_bytes) s->n_left--;
  atomic_store_explicit(ours, count + 1, memory_order_release);
  if (s->rings) xfi_segment_ring(xfi_segment_of(s->t->segments, c->peer), s->t->base.rank);
}

static void fill_slot(streams *s, size_t i)
{
  xfi_segment *own = s->t->segments->at[s->t->segments->place];
  xfi_channel *c = &s->channels[i];
  xfi_ring *ring = ring_of(s, c);
  uint64_t count = atomic_load_explicit(&ring->n_filled, memory_order_relaxed);
  const bool is_shared = c->next_same != 0;
  const uint32_t slot = (uint32_t)((is_shared ? own->n_shared : count) % XFI_CHANNEL_SLOTS);
  xfi_label label = {0, is_shared ? slot + 1 : 0};
  const uint32_t n = next_bytes(s, c, &label.n_bytes);

  s->carry(s->context, i, is_shared ? own->shared[slot] : ring->slots[slot], n);
  for (; c != NULL; c = next_same(s, c)) {
    ring = ring_of(s, c);
    count = atomic_load_explicit(&ring->n_filled, memory_order_relaxed);
    ring->labels[count % XFI_CHANNEL_SLOTS] = label;
    if (is_shared) ring->n_when_shared[slot] = count + 1;
    count_slot(s, c, n, &ring->n_filled);
  }
  own->n_shared += is_shared;
}

static xfer_status empty_slot(streams *s, size_t i)
{
  xfi_channel *c = &s->channels[i];
  xfi_ring *ring = ring_of(s, c);
  const size_t slot =
      atomic_load_explicit(&ring->n_emptied, memory_order_relaxed) % XFI_CHANNEL_SLOTS;
  const xfi_label label = ring->labels[slot];
  uint32_t expected;
  const uint32_t n = next_bytes(s, c, &expected);

  XFI_CHECK(label.n_bytes == expected && label.shared <= XFI_CHANNEL_SLOTS, XFER_ERR_MISMATCH,
            "rank %d streams %u bytes (%#x) to rank %d, which expects %u (%#x)", c->peer,
            (unsigned)(label.n_bytes & ~LAST_SLOT), (unsigned)label.n_bytes, s->t->base.rank,
            (unsigned)n, (unsigned)expected);
  s->carry(s->context, i,
           label.shared == 0 ? ring->slots[slot]
                             : xfi_segment_of(s->t->segments, c->peer)->shared[label.shared - 1],
           n);
  count_slot(s, c, n, &ring->n_emptied);
  return XFER_OK;
}

static xfer_status move_slots(streams *s, size_t i)
{
  while (is_to_do(&s->channels[i]) && can_move(s, &s->channels[i])) {
    if (s->channels[i].send)
      fill_slot(s, i);
    else
      XFI_TRY(empty_slot(s, i));
  }
  return XFER_OK;
}

static bool any_can_move(const awaited *what)
{
  const streams *s = what->of;

  for (size_t i = 0; i < s->n; i++)
    if (is_to_do(&s->channels[i]) && can_move(s, &s->channels[i])) return true;
  return false;
}

static int find_peer(const awaited *what, is_meant *of)
{
  const streams *s = what->of;

  for (size_t i = 0; i < s->n; i++)
    if (s->channels[i].n_done < s->channels[i].n_bytes &&
        of(what->t->segments, s->channels[i].peer))
      return s->channels[i].peer;
  return -1;
}

/* Until all is done: whatever can be moved, channel by channel, and wait when nothing can. */
static xfer_status stream_all(streams *s, xfi_deadline deadline)
{
  const awaited any = {"stream", any_can_move, find_peer, -1, s->t, s};

  while (s->n_left > 0) {
    for (size_t i = 0; i < s->n; i++)
      XFI_TRY(move_slots(s, i));
    if (s->n_left > 0) XFI_TRY(await(&any, deadline));
  }
  return XFER_OK;
}

xfer_status xfi_mpi_stream(xfi_comm *comm, xfi_channel *channels, size_t n, size_t slot_bytes,
                           xfi_carry_fn *carry, void *context, xfi_deadline deadline)
{
  xfi_mpi_comm *t = (xfi_mpi_comm *)comm;
  streams s = {t, channels, n, slot_bytes, carry, context, true, 0};
  xfer_status st = xfi_mpi_check_begin(t);

  assert(slot_bytes > 0 && slot_bytes <= XFI_CHANNEL_SLOT_BYTES);
  if (st != XFER_OK) return st;
  for (size_t i = 0; i < n; i++)
    s.n_left += channels[i].n_done < channels[i].n_bytes;
  st = stream_all(&s, deadline);
  if (st != XFER_OK) (void)xfi_mpi_fail(t, st);
  return st;
}

void xfi_mpi_stream_begin(xfi_comm *comm, xfi_channel *channels, size_t n, size_t slot_bytes,
                          xfi_carry_fn *carry, void *context)
{
  streams s = {(xfi_mpi_comm *)comm, channels, n, slot_bytes, carry, context, false, n};

  for (size_t i = 0; i < n; i++)
    if (channels[i].send && !channels[i].is_again && channels[i].next_same == 0)
      (void)move_slots(&s, i);
}

/* Nobody looks at the slots before the stream. None is shared. */
void xfi_mpi_stream_undo(xfi_comm *comm, xfi_channel *channels, size_t n, size_t slot_bytes)
{
  const streams s = {.t = (xfi_mpi_comm *)comm};

  for (size_t i = 0; i < n; i++) {
    xfi_channel *c = &channels[i];
    xfi_ring *ring = ring_of(&s, c);

    if (c->n_done > 0)
      (void)atomic_fetch_sub(&ring->n_filled, (c->n_done + slot_bytes - 1) / slot_bytes);
    c->n_done = 0;
  }
}
