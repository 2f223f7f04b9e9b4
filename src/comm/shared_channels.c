/*
 * Channels between ranks that share memory. The sender fills slots and the receiver empties them;
 * each counts its own in the ring that they share, and reads the other's count to know which slots
 * it may touch. channels.c carries a run's data in this way, and host.c messages, on the thread
 * that makes the comm's calls; the caller's function copies to a slot or from it.
 */
#include "shared.h"

#include "error.h"

#include <assert.h>

typedef struct carrying {
  xfi_shared *shared;
  xfi_carry_call call;
  const xfi_channel_set *all;
  bool rings;    /* the peer may sleep until a slot moves */
  size_t n_left; /* channels that are not done */
  bool moved;    /* some slot was filled or emptied in this pass */
} carrying;

static xfi_slots *slots_of(const xfi_shared *s, int rank)
{
  return (void *)((char *)xfi_segment_of(s, rank) + s->slots_at);
}

/* The ring between this rank and the channel's peer, which lies in the sender's segment at the
 * place of the receiver. */
static xfi_ring *ring_of(const carrying *s, const xfi_channel *c)
{
  const xfi_shared *shared = s->shared;

  return c->send ? &slots_of(shared, shared->base.rank)->rings[shared->host_ranks[c->peer]]
                 : &slots_of(shared, c->peer)->rings[shared->host_rank];
}

/* The next channel that sends the same bytes as this one; NULL: none. */
static xfi_channel *next_same(const carrying *s, const xfi_channel *c)
{
  return c->next_same == 0 ? NULL : &s->all->channels[c->next_same];
}

/* A rank that has not read yet what the next shared slot holds, perhaps since an earlier call; -1:
 * all have, so the slot is free. */
static int find_reader(const carrying *s, xfi_rank_filter *of)
{
  const xfi_slots *own = slots_of(s->shared, s->shared->base.rank);
  const size_t slot = own->n_shared % XFI_CHANNEL_SLOTS;

  for (int i = 0; i < s->shared->n_host_ranks; i++) {
    if (atomic_load(&own->rings[i].n_emptied) >= own->rings[i].n_when_shared[slot]) continue;
    if (of(s->shared, (int)s->shared->at[i]->rank)) return (int)s->shared->at[i]->rank;
  }
  return -1;
}

/* Is there a slot to fill, or to empty? What the other end did in the slots is acquired with
 * its count. */
static bool can_move(const carrying *s, const xfi_channel *c)
{
  const xfi_ring *ring = ring_of(s, c);
  uint64_t emptied;

  if (!c->send)
    return atomic_load(&ring->n_filled) !=
           atomic_load_explicit(&ring->n_emptied, memory_order_relaxed);
  if (c->next_same != 0 && find_reader(s, xfi_any_rank) >= 0) return false;
  for (; c != NULL; c = next_same(s, c)) {
    ring = ring_of(s, c);
    emptied = atomic_load(&ring->n_emptied);
    if (atomic_load_explicit(&ring->n_filled, memory_order_relaxed) - emptied >= XFI_CHANNEL_SLOTS)
      return false;
  }
  return true;
}

/* Does this rank still have bytes to carry in the channel? */
static bool is_to_do(const xfi_channel *c)
{
  return !c->is_again && c->n_done < c->n_bytes;
}

/* The label of the channel's next slot. */
static xfi_label next_label(const carrying *s, const xfi_channel *c)
{
  const uint64_t left = c->n_bytes - c->n_done;

  return (xfi_label){.of = xfi_comm_envelope(&s->shared->base, s->call, c->n_bytes),
                     .n_bytes = (uint32_t)(left < s->all->slot_bytes ? left : s->all->slot_bytes)};
}

static void count_slot(carrying *s, xfi_channel *c, uint32_t n, _Atomic uint64_t *ours)
{
  const uint64_t count = atomic_load_explicit(ours, memory_order_relaxed);

  s->moved = true;
  c->n_done += n;
  if (c->n_done == c->n_bytes) s->n_left--;
  atomic_store(ours, count + 1);
  if (s->rings) xfi_shared_ring(s->shared, c->peer);
}

static void fill_slot(carrying *s, size_t i)
{
  xfi_slots *own = slots_of(s->shared, s->shared->base.rank);
  xfi_channel *c = &s->all->channels[i];
  xfi_ring *ring = ring_of(s, c);
  uint64_t count = atomic_load_explicit(&ring->n_filled, memory_order_relaxed);
  const bool is_shared = c->next_same != 0;
  const size_t slot = (is_shared ? own->n_shared : count) % XFI_CHANNEL_SLOTS;
  xfi_label label = next_label(s, c);

  if (is_shared) label.shared = (uint32_t)(slot + 1);
  s->all->carry(s->all->context, i, is_shared ? own->shared[slot] : ring->slots[slot],
                label.n_bytes);
  for (; c != NULL; c = next_same(s, c)) {
    ring = ring_of(s, c);
    count = atomic_load_explicit(&ring->n_filled, memory_order_relaxed);
    ring->labels[count % XFI_CHANNEL_SLOTS] = label;
    if (is_shared) ring->n_when_shared[slot] = count + 1;
    count_slot(s, c, label.n_bytes, &ring->n_filled);
  }
  own->n_shared += is_shared;
}

static xfer_status empty_slot(carrying *s, size_t i)
{
  xfi_channel *c = &s->all->channels[i];
  xfi_ring *ring = ring_of(s, c);
  const size_t slot =
      atomic_load_explicit(&ring->n_emptied, memory_order_relaxed) % XFI_CHANNEL_SLOTS;
  const xfi_label label = ring->labels[slot];
  const xfi_label wanted = next_label(s, c);

  XFI_TRY(xfi_shared_check_envelope(&s->shared->base, label.of, c->peer, wanted.of));
  XFI_CHECK(label.n_bytes == wanted.n_bytes && label.shared <= XFI_CHANNEL_SLOTS, XFER_ERR_MISMATCH,
            "rank %d sends a slot of %u bytes, this rank expects %u", c->peer,
            (unsigned)label.n_bytes, (unsigned)wanted.n_bytes);
  s->all->carry(s->all->context, i,
                label.shared == 0 ? ring->slots[slot]
                                  : slots_of(s->shared, c->peer)->shared[label.shared - 1],
                label.n_bytes);
  count_slot(s, c, label.n_bytes, &ring->n_emptied);
  return XFER_OK;
}

/* Fill or empty slots of a channel as long as there are any, but at most as many as a ring has, so
 * that a peer which is as fast does not keep this rank from its other channels. */
static xfer_status move_slots(carrying *s, size_t i)
{
  for (int n = 0;
       n < XFI_CHANNEL_SLOTS && is_to_do(&s->all->channels[i]) && can_move(s, &s->all->channels[i]);
       n++) {
    if (s->all->channels[i].send)
      fill_slot(s, i);
    else
      XFI_TRY(empty_slot(s, i));
  }
  return XFER_OK;
}

static bool any_can_move(const xfi_awaited *what)
{
  const carrying *s = what->of;

  for (size_t i = 0; i < s->all->n; i++)
    if (is_to_do(&s->all->channels[i]) && can_move(s, &s->all->channels[i])) return true;
  return false;
}

static int find_peer(const xfi_awaited *what, xfi_rank_filter *of)
{
  const carrying *s = what->of;
  bool fills_shared = false;

  for (size_t i = 0; i < s->all->n; i++) {
    const xfi_channel *c = &s->all->channels[i];

    if (c->n_done == c->n_bytes) continue;
    if (of(what->shared, c->peer)) return c->peer;
    if (c->send && c->next_same != 0) fills_shared = true;
  }
  return fills_shared ? find_reader(s, of) : -1;
}

/* Carry all bytes: move what can be moved, channel by channel, and wait when nothing can. As long
 * as slots move no rank is late, so only the deadline is checked. */
static xfer_status carry_all(carrying *s, xfi_deadline deadline)
{
  const xfi_awaited any = {any_can_move, find_peer, s->shared, s, s->call != XFI_OF_EXCHANGE};

  while (s->n_left > 0) {
    s->moved = false;
    for (size_t i = 0; i < s->all->n; i++)
      XFI_TRY(move_slots(s, i));
    if (s->n_left > 0)
      XFI_TRY(s->moved ? xfi_comm_check_deadline(deadline) : xfi_shared_await(&any, deadline));
  }
  return XFER_OK;
}

bool xfi_shared_shares(const xfi_comm *comm, int peer)
{
  return xfi_segment_of((const xfi_shared *)comm, peer) != NULL;
}

xfer_status xfi_shared_carry(xfi_comm *comm, xfi_carry_call call, const xfi_channel_set *all,
                             xfi_deadline deadline)
{
  xfi_shared *shared = (xfi_shared *)comm;
  carrying s = {shared, call, all, .rings = true};
  xfer_status st = xfi_shared_begin(shared);

  assert(all->slot_bytes > 0 && all->slot_bytes <= XFI_CHANNEL_SLOT_BYTES);
  if (st != XFER_OK) return st;
  for (size_t i = 0; i < all->n; i++)
    s.n_left += all->channels[i].n_done < all->channels[i].n_bytes;
  st = carry_all(&s, deadline);
  if (st != XFER_OK) xfi_comm_abort_with_error(comm, comm->ops->abort);
  return st;
}

xfer_status xfi_shared_carry_channels(xfi_comm *comm, const xfi_channel_set *all,
                                      xfi_deadline deadline)
{
  return xfi_shared_carry(comm, XFI_OF_CHANNELS, all, deadline);
}

void xfi_shared_carry_begin(xfi_comm *comm, const xfi_channel_set *all)
{
  carrying s = {(xfi_shared *)comm, XFI_OF_CHANNELS, all, .n_left = all->n};

  if (xfi_shared_is_inherited(s.shared)) return;
  for (size_t i = 0; i < all->n; i++)
    if (all->channels[i].send && !all->channels[i].is_again && all->channels[i].next_same == 0)
      (void)move_slots(&s, i);
}

/* Take back what xfi_shared_carry_begin() filled: no rank has read those slots, since each does so
 * only in carry_channels(), and none of them is a shared one. */
void xfi_shared_carry_undo(xfi_comm *comm, const xfi_channel_set *all)
{
  const carrying s = {.shared = (xfi_shared *)comm};

  for (size_t i = 0; i < all->n; i++) {
    xfi_channel *c = &all->channels[i];
    xfi_ring *ring = ring_of(&s, c);

    if (c->n_done > 0)
      (void)atomic_fetch_sub(&ring->n_filled, (c->n_done + all->slot_bytes - 1) / all->slot_bytes);
    c->n_done = 0;
  }
}
