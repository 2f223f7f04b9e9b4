/*
 * Flows between ranks that share memory: the sender packs into slots that the receiver unpacks,
 * with no message and no copy in between. All that goes to one peer is one sequence of bytes, the
 * boxes of its moves one after the other, as in packed.c. But here a slot ends wherever it is full,
 * so boxes are described independently of slots, those of one form together. Data that several
 * peers get alike is packed once, into slots that all of them read.
 *
 * A commit makes the channels, and a run carries all of them in one call of the comm, which calls
 * back for each slot (carry()) on the same thread.
 */
#include "channels.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "direct.h"
#include "error.h"
#include "peers.h"
#include "trace.h"
#include "vec.h"
#include "wire.h"

/* Boxes of one form that follow each other in a channel. */
typedef struct group {
  xfi_strided form;
  size_t dims; /* where its dims begin */
  size_t n;
  uint64_t n_bytes; /* of a box */
} group;

/* The bytes of a channel, and how many of them are carried. */
struct xfi_load {
  group *groups; /* [n_groups] */
  size_t n_groups;
  size_t groups_capacity;
  xfi_strided_dim *dims; /* [n_dims] of all groups, one after the other */
  size_t n_dims;
  size_t dims_capacity;
  char **bases;        /* [n_boxes] of all groups: the address of each box */
  xfi_anchor *anchors; /* [n_boxes] and its position in the view */
  size_t n_boxes;
  size_t bases_capacity;
  size_t anchors_capacity;
  size_t group; /* the next bytes are of this one, */
  size_t box;   /* whose boxes begin here, */
  uint64_t at;  /* from this byte of all of them on */
};

/* A rank's share of the cache, if its size is unknown or ranks share cores. */
#define CACHE_BYTES (UINT64_C(8) << 20)

/* ---- making them ---- */

/* Is there a channel for a peer of the plan's sends or receives? */
static bool has_channel(const xfer_plan *plan, bool send, size_t p)
{
  const xfi_peer *peer = &xfi_plan_moves(plan, send)->peers[p];

  return xfi_plan_has_unicast(plan, peer) && !xfi_direct_carries(plan->lanes.direct, send, p) &&
         xfi_plan_shares(plan, peer->rank);
}

/* All slots of a channel take two windows: that is what the staging limit allows for a peer. */
static size_t slot_bytes_of(const xfer_plan *plan)
{
  const uint64_t n_bytes = 2 * plan->window_bytes / XFI_CHANNEL_SLOTS;

  return n_bytes < XFI_CHANNEL_SLOT_BYTES ? (size_t)n_bytes : XFI_CHANNEL_SLOT_BYTES;
}

static bool has_form(const xfi_load *l, const group *g, const xfi_strided *form,
                     const xfi_strided_dim *dims)
{
  return g->form.convert == form->convert && g->form.run_bytes == form->run_bytes &&
         g->form.n_dims == form->n_dims &&
         (form->n_dims == 0 ||
          memcmp(l->dims + g->dims, dims, sizeof *dims * (size_t)form->n_dims) == 0);
}

/* Append the box of a copy to or from a slot, in the order of the channel. */
static xfer_status add_copy(xfi_load *l, const xfi_bound *bound, xfi_copy *copy, bool send)
{
  const size_t n_dims = (size_t)copy->n_dims;
  const xfi_strided form = {copy->convert, send ? copy->run_bytes : xfi_copy_src_run(copy),
                            copy->n_dims};
  char *const base = send ? (char *)copy->src : copy->dst; /* a send only reads it */
  xfi_strided_dim dims[XFI_COPY_DIMS];

  if (!send) xfi_copy_sort_dims(copy, copy->src_stride);
  for (size_t d = 0; d < n_dims; d++)
    dims[d] = (xfi_strided_dim){copy->extent[d], send ? copy->src_stride[d] : copy->dst_stride[d]};
  XFI_TRY(xfi_vec_reserve(&l->bases, &l->bases_capacity, l->n_boxes + 1, sizeof *l->bases));
  XFI_TRY(xfi_vec_reserve(&l->anchors, &l->anchors_capacity, l->n_boxes + 1, sizeof *l->anchors));
  l->bases[l->n_boxes] = base;
  l->anchors[l->n_boxes++] = xfi_anchor_at(bound, base);
  if (l->n_groups == 0 || !has_form(l, &l->groups[l->n_groups - 1], &form, dims)) {
    XFI_TRY(XFI_APPEND(l->groups, l->n_groups, l->groups_capacity,
                       (group){form, l->n_dims, 0, (uint64_t)xfi_strided_bytes(&form, dims)}));
    for (size_t d = 0; d < n_dims; d++)
      XFI_TRY(XFI_APPEND(l->dims, l->n_dims, l->dims_capacity, dims[d]));
  }
  l->groups[l->n_groups - 1].n++;
  return XFER_OK;
}

/* Append the boxes of a move. If its view is in pieces, each index of the dims before piece_dim is
 * appended separately, which is the order of the bytes in the channel. */
static xfer_status add_move(xfi_channels *c, xfi_load *l, const xfer_plan *plan,
                            const xfi_move *move, bool send)
{
  const xfi_class *cls = xfi_moves_class(plan->moves, move->tensor);
  const xfi_bound *bound = xfi_plan_bound(plan, send, move->tensor);
  const int first_dim = bound->pieces != NULL && bound->boxes == NULL ? bound->piece_dim : 0;
  const int n_dims = cls->src->n_dims;
  int64_t n_elems;
  int64_t step;
  xfi_box box;

  if (xfi_plan_broadcasts(plan, cls)) return XFER_OK;
  xfi_move_box(&box, cls, xfi_class_flows(cls, send), move);
  c->in_pieces = c->in_pieces || bound->pieces != NULL;
  n_elems = xfi_box_elems(box.length, n_dims);
  step = xfi_box_elems(box.length + first_dim, n_dims - first_dim);
  for (int64_t at = 0; at < n_elems; at += step) {
    c->copies.n = 0;
    XFI_TRY(xfi_slot_copies(&c->copies, plan, &(xfi_elem_range){move->tensor, &box, at, at + step},
                            xfi_bound_piece(bound, 0), send));
    for (size_t i = 0; i < c->copies.n; i++)
      XFI_TRY(add_copy(l, bound, &c->copies.at[i], send));
  }
  return XFER_OK;
}

static xfer_status add_channel(xfi_channels *c, const xfer_plan *plan, const xfi_move_list *list,
                               const xfi_peer *peer, bool send)
{
  xfi_load *l = &c->loads[c->all.n];

  c->all.channels[c->all.n++] = (xfi_channel){
      .peer = peer->rank, .send = send, .n_bytes = xfi_plan_unicast_bytes(plan, send, peer)};
  l->n_groups = l->n_boxes = l->n_dims = 0;
  XFI_TRY(xfi_vec_reserve(&l->bases, &l->bases_capacity, peer->n, sizeof *l->bases));
  XFI_TRY(xfi_vec_reserve(&l->anchors, &l->anchors_capacity, peer->n, sizeof *l->anchors));
  for (size_t i = 0; i < peer->n; i++)
    XFI_TRY(add_move(c, l, plan, &list->moves[peer->first + i], send));
  return XFER_OK;
}

/* Add the channels of one direction, by distance to the peer, so that not all ranks begin with the
 * same peer. */
static xfer_status add_all(xfi_channels *c, const xfer_plan *plan, bool send)
{
  const xfi_move_list *list = xfi_plan_moves(plan, send);

  for (size_t i = 0; i < list->n_peers; i++) {
    const size_t p = xfi_peer_by_distance(list, plan->moves->rank, send, i);

    if (has_channel(plan, send, p)) XFI_TRY(add_channel(c, plan, list, &list->peers[p], send));
  }
  return XFER_OK;
}

static bool are_same(const xfi_channels *c, size_t i, size_t k)
{
  const xfi_load *a = &c->loads[i];
  const xfi_load *b = &c->loads[k];

  return c->all.channels[i].send && c->all.channels[i].n_bytes == c->all.channels[k].n_bytes &&
         a->n_boxes == b->n_boxes && a->n_groups == b->n_groups && a->n_dims == b->n_dims &&
         memcmp(a->bases, b->bases, sizeof *a->bases * a->n_boxes) == 0 &&
         memcmp(a->groups, b->groups, sizeof *a->groups * a->n_groups) == 0 &&
         (a->n_dims == 0 || memcmp(a->dims, b->dims, sizeof *a->dims * a->n_dims) == 0);
}

/* Link channels that send the same bytes, as to replicas, so that these are packed once. Not those
 * of at most one slot, which may be sent before the run begins. */
static void find_same(xfi_channels *c)
{
  for (size_t k = 0; k < c->all.n; k++) {
    size_t i = 0;

    if (!c->all.channels[k].send || c->all.channels[k].n_bytes <= c->all.slot_bytes) continue;
    c->all.channels[k].next_same = 0;
    while (i < k && (c->all.channels[i].next_same != 0 || !are_same(c, i, k)))
      i++;
    if (i < k) c->all.channels[i].next_same = k;
    c->all.channels[k].is_again = i < k;
  }
}

/* Bytes of the third-level cache of a core, shared or not; 0: unknown. From sysfs: sysconf()
 * reports 320 MiB where a core of an EPYC has 32. */
static uint64_t third_level(void)
{
  FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
  unsigned long long kib = 0;
  const bool is_known = file != NULL && fscanf(file, "%lluK", &kib) == 1; /* NOLINT: 20 digits do */

  if (file != NULL) (void)fclose(file);
  return is_known ? (uint64_t)kib << 10 : 0;
}

/* A rank's share of it: a third divided by the ranks, since other data fills the rest. */
static uint64_t cache_bytes(const xfer_plan *plan)
{
  const uint64_t in_all = third_level();
  uint64_t n_ranks = 1;

  for (int r = 0; r < plan->comm->size; r++)
    n_ranks += r != plan->comm->rank && plan->comm->ops->shares(plan->comm, r);
  return in_all > 0 && plan->comm->has_cores ? in_all / 3 / n_ranks : CACHE_BYTES;
}

/* May a cache line that one core has written reach another more slowly than through memory? AMD's
 * cores share caches in groups, and a virtual machine hides which of its cores are in one group: 64
 * MiB from one core to another took 7 or 17.5 ms, and 6.3 ms through memory in both cases. Where
 * all cores of a processor share a cache, memory is slower by a sixth. */
static bool may_lines_be_slow(void)
{
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

static xfer_status fill(xfi_channels *c, const xfer_plan *plan)
{
  const xfi_moves *m = plan->moves;
  xfer_status st;

  c->all.n = 0;
  st = add_all(c, plan, false);
  if (st == XFER_OK) st = add_all(c, plan, true);
  xfi_copies_free(&c->copies);
  XFI_TRY(st);
  c->past_cache = c->all.n > 0 && m->in_bytes + m->self_bytes + m->out_bytes > cache_bytes(plan);
  c->slots_past_cache = c->past_cache && may_lines_be_slow();
  find_same(c);
  return XFER_OK;
}

/* The comm's xfi_carry_fn: copies the channel's next n_bytes into the slot, or out of it. */
static void carry(void *context, size_t channel, char *slot, size_t n_bytes)
{
  xfi_channels *c = context;
  xfi_load *l = &c->loads[channel];
  const bool send = c->all.channels[channel].send;

  for (uint64_t left = n_bytes, n; left > 0; left -= n, slot += n) {
    const group *g = &l->groups[l->group];
    const uint64_t in_group = g->n * g->n_bytes - l->at;
    char *const *bases = l->bases + l->box + l->at / g->n_bytes;
    const xfi_strided_dim *dims = l->dims == NULL ? NULL : l->dims + g->dims;
    const int64_t first = (int64_t)(l->at % g->n_bytes);

    n = left < in_group ? left : in_group;
    xfi_ref_serialise(slot, bases, &g->form, dims, first, (int64_t)n, send,
                      send ? c->slots_past_cache : c->past_cache);
    l->at += n;
    if (n < in_group) break;
    l->group++;
    l->box += g->n;
    l->at = 0;
  }
}

xfer_status xfi_channels_create(xfi_channels *c, const xfer_plan *plan)
{
  const size_t most = plan->moves->sends.n_peers + plan->moves->recvs.n_peers;

  c->all = (xfi_channel_set){.slot_bytes = slot_bytes_of(plan), .carry = carry, .context = c};
  c->all.channels = xfi_calloc(most, sizeof *c->all.channels);
  c->loads = xfi_calloc(most, sizeof *c->loads);
  XFI_CHECK(c->all.channels != NULL && c->loads != NULL, XFER_ERR_NOMEM, "%zu channels", most);
  c->n_loads = most;
  return fill(c, plan);
}

xfer_status xfi_channels_rebind(xfi_channels *c, const xfer_plan *plan)
{
  if (c->in_pieces) return fill(c, plan);
  for (size_t i = 0; i < c->all.n; i++)
    for (size_t k = 0; k < c->loads[i].n_boxes; k++)
      c->loads[i].bases[k] = xfi_anchor_address(&c->loads[i].anchors[k]);
  find_same(c);
  return XFER_OK;
}

void xfi_channels_destroy(xfi_channels *c)
{
  for (size_t i = 0; i < c->n_loads; i++) {
    xfi_free(c->loads[i].groups);
    xfi_free(c->loads[i].dims);
    xfi_free(c->loads[i].bases);
    xfi_free(c->loads[i].anchors);
  }
  xfi_free(c->loads);
  xfi_free(c->all.channels);
}

void xfi_channels_measure(const xfer_plan *plan, uint64_t *sent_bytes, uint64_t *staging_bytes)
{
  for (size_t p = 0; p < plan->moves->sends.n_peers; p++) {
    if (!has_channel(plan, true, p)) continue;
    *sent_bytes += xfi_plan_unicast_bytes(plan, true, &plan->moves->sends.peers[p]);
    *staging_bytes += (uint64_t)XFI_CHANNEL_SLOTS * slot_bytes_of(plan);
  }
}

/* ---- running ---- */

static void rewind_all(xfi_channels *c)
{
  for (size_t i = 0; i < c->all.n; i++) {
    c->loads[i].group = c->loads[i].box = 0;
    c->loads[i].at = 0;
    c->all.channels[i].n_done = 0;
  }
}

void xfi_channels_begin(xfi_channels *c, const xfer_plan *plan)
{
  if (c->all.n == 0) return;
  rewind_all(c);
  plan->comm->run = plan->run.id;
  plan->comm->ops->carry_begin(plan->comm, &c->all);
  c->has_begun = true;
}

void xfi_channels_undo(xfi_channels *c, const xfer_plan *plan)
{
  if (!c->has_begun) return;
  plan->comm->ops->carry_undo(plan->comm, &c->all);
  c->has_begun = false;
}

xfer_status xfi_channels_run(xfi_channels *c, const xfer_plan *plan)
{
  xfer_status st;
  xfi_span span;

  if (c->all.n == 0) return XFER_OK;
  span = xfi_span_begin(XFI_SYS_RUN, plan->moves->rank, XFI_TRACK_SHARED, "channels");
  if (!c->has_begun) rewind_all(c);
  c->has_begun = false;
  st = plan->comm->ops->carry_channels(plan->comm, &c->all, plan->run.deadline);
  xfi_span_end(&span, st, "%zu channels", c->all.n);
  return st;
}
