/*
 * What is broadcast, by which root, and which of it in place. Made at commit: the ranks agree on
 * what is one run in the memory of each of them. broadcast_list.h explains the list.
 */
#include "broadcast_list.h"

#include <string.h>

#include "alloc.h"
#include "error.h"
#include "flows_fill.h"
#include "peers.h"
#include "staging.h"
#include "vec.h"
#include "wire.h"

/* A window of a broadcast is as long as so many of a packed round: longer ones are no faster. */
#define WINDOWS_PER_BROADCAST 4

void xfi_bcasts_free(xfi_bcasts *bcasts)
{
  if (bcasts == NULL) return;
  for (size_t c = 0; bcasts->sources != NULL && c < bcasts->n_classes; c++)
    xfi_flows_free(&bcasts->sources[c]);
  xfi_free(bcasts->sources);
  xfi_free(bcasts->at);
  xfi_free(bcasts);
}

/* All ranks wait for one root at a time, so a broadcast may be as long as several peers' windows.
 */
uint64_t xfi_bcasts_window(const xfer_plan *plan)
{
  const uint64_t cap = xfi_plan_staging_share(plan) / 4 / XFI_SLOT_ALIGN * XFI_SLOT_ALIGN;
  uint64_t window = plan->window_bytes * WINDOWS_PER_BROADCAST;

  if (window > XFI_MESSAGE_BYTES) window = XFI_MESSAGE_BYTES;
  return window < cap ? window : cap;
}

/* ---- the list ---- */

static int by_root(const void *a, const void *b)
{
  const xfi_bcast *x = a;
  const xfi_bcast *y = b;

  if (x->root != y->root) return x->root < y->root ? -1 : 1;
  return (x->order > y->order) - (x->order < y->order);
}

static uint64_t flow_bytes(const xfi_class *cls, const xfi_flows *flows, const xfi_flow *flow)
{
  int64_t n = 0;

  for (size_t b = 0; b < flow->n; b++)
    n += xfi_box_elems(xfi_flows_length(flows, flow->first + b), cls->src->n_dims);
  return (uint64_t)(n * cls->wire_bytes);
}

static xfer_status add_tensor(xfi_bcasts *bcasts, const xfi_moves *m, uint32_t tensor)
{
  const xfi_class *cls = xfi_moves_class(m, tensor);
  const xfi_flows *flows = &bcasts->sources[m->tensors[tensor].class_index];

  for (size_t f = 0; f < flows->n; f++) {
    const uint64_t n_bytes = flow_bytes(cls, flows, &flows->at[f]);
    const xfi_turn turn = {.ordinal = m->tensors[tensor].ordinal, .src_part = flows->at[f].part};
    int root;

    if (n_bytes == 0) continue;
    root = xfi_part_rank(cls->src, turn.src_part, xfi_choose_replica(cls, &turn));
    const xfi_bcast bcast = {root, tensor, bcasts->n, flows, &flows->at[f], n_bytes, NULL};
    XFI_TRY(XFI_APPEND(bcasts->at, bcasts->n, bcasts->capacity, bcast));
  }
  return XFER_OK;
}

xfer_status xfi_bcasts_list(xfi_bcasts **out, const xfer_plan *plan)
{
  const xfi_moves *m = plan->moves;
  xfer_status st = XFER_OK;
  xfi_bcasts *bcasts = NULL;

  if (xfi_plan_n_broadcast(plan) == 0) return XFER_OK;
  bcasts = xfi_calloc(1, sizeof *bcasts);
  XFI_CHECK_DONE(bcasts != NULL, XFER_ERR_NOMEM, "broadcasts");
  bcasts->n_classes = m->n_classes;
  bcasts->sources = xfi_calloc(m->n_classes, sizeof *bcasts->sources);
  XFI_CHECK_DONE(bcasts->sources != NULL, XFER_ERR_NOMEM, "%zu classes", m->n_classes);
  for (size_t c = 0; c < m->n_classes; c++)
    if (xfi_plan_broadcasts(plan, &m->classes[c]))
      XFI_TRY_DONE(xfi_flows_of_sources(&bcasts->sources[c], &m->classes[c]));
  for (size_t i = 0; i < m->n_tensors; i++)
    if (xfi_plan_broadcasts(plan, xfi_moves_class(m, m->order[i])))
      XFI_TRY_DONE(add_tensor(bcasts, m, m->order[i]));
  xfi_sort(bcasts->at, bcasts->n, sizeof *bcasts->at, by_root);
  *out = bcasts;
  bcasts = NULL;
done:
  xfi_bcasts_free(bcasts);
  return st;
}

xfi_needed xfi_bcast_needed(const xfer_plan *plan, const xfi_bcast *c)
{
  const xfi_class *cls = xfi_moves_class(plan->moves, c->tensor);
  const uint32_t part = c->source->part;
  xfi_needed needed = {NULL, 0};

  if (xfi_part_replica(cls->src, part, plan->moves->rank) >= 0) return needed;
  for (size_t f = 0; f < cls->recvs.n; f++) { /* flows of one source part are adjacent */
    if (cls->recvs.at[f].part != part) continue;
    if (needed.n++ == 0) needed.at = &cls->recvs.at[f];
  }
  return needed;
}

/* ---- broadcasts in place ---- */

/* Parts of at least this many bytes may be broadcast in place. */
static uint64_t min_in_place(const xfer_plan *plan)
{
  return plan->window_bytes < XFI_MIN_UNPACKED_BYTES ? plan->window_bytes : XFI_MIN_UNPACKED_BYTES;
}

/* The address of a box that is one run of the bound's memory, in row-major order; NULL: it is not
 * one run. `scratch` is empty. */
static xfer_status find_run(char **run, xfi_copies *scratch, const xfi_bound *bound,
                            const int64_t *start, const int64_t *length, const xfi_class *cls)
{
  const int n_dims = cls->src->n_dims;
  xfer_status st = XFER_OK;
  const int elem = cls->wire_bytes;
  const xfi_bound dense = xfi_bound_dense(xfi_bound_piece(bound, 0), length, n_dims, elem);
  const xfi_end in_order = {&dense, {0}};
  xfi_end end = {bound, {0}};

  memcpy(end.start, start, sizeof *start * (size_t)n_dims);
  XFI_TRY_DONE(xfi_copies_add(scratch, &end, &in_order, length, n_dims, (xfi_elem){elem, NULL}));
  if (scratch->n == 1 && scratch->at[0].n_dims == 0) *run = scratch->at[0].dst;
done:
  scratch->n = 0;
  return st;
}

/* The address of a part that is one run in this rank's memory, to send from or to receive into;
 * NULL: it is not. */
static xfer_status find_memory(char **memory, xfi_copies *scratch, const xfer_plan *plan,
                               const xfi_bcast *c)
{
  const xfi_class *cls = xfi_moves_class(plan->moves, c->tensor);
  const bool is_root = c->root == plan->moves->rank;
  const xfi_box all = xfi_bcast_box(c, 0);
  const size_t n = sizeof *all.lo * (size_t)cls->src->n_dims;
  xfi_box box = all;

  *memory = NULL;
  if (c->source->n != 1) return XFER_OK;
  if (xfi_plan_elem(plan, cls, is_root ? XFI_TO_WIRE : XFI_FROM_WIRE).convert != NULL)
    return XFER_OK; /* what is sent differs from what is in memory */
  if (is_root) {
    xfi_box_resolve(box.src_local, box.unit, cls->src, c->root);
  } else {
    const xfi_needed needed = xfi_bcast_needed(plan, c);

    if (needed.n != 1 || needed.at->n != 1) return XFER_OK;
    box = xfi_flows_box(&cls->recvs, needed.at->first);
    if (memcmp(box.lo, all.lo, n) != 0 || memcmp(box.length, all.length, n) != 0) return XFER_OK;
  }
  return find_run(memory, scratch,
                  is_root ? xfi_plan_src(plan, c->tensor) : xfi_plan_dst(plan, c->tensor),
                  is_root ? box.src_local : box.dst_local, box.length, cls);
}

/* mine[i] is 1 if the i-th part that is large enough is one run on this rank. */
static xfer_status find_memories(xfi_bcasts *bcasts, const xfer_plan *plan, unsigned char *mine)
{
  xfer_status st = XFER_OK;
  xfi_copies scratch = {NULL, 0, 0};

  for (size_t i = 0, k = 0; i < bcasts->n; i++) {
    xfi_bcast *c = &bcasts->at[i];

    if (c->n_bytes < min_in_place(plan)) continue;
    XFI_TRY_DONE(find_memory(&c->memory, &scratch, plan, c));
    mine[k++] = c->memory != NULL;
  }
done:
  xfi_copies_free(&scratch);
  return st;
}

xfer_status xfi_bcasts_rebind(bool *kept, xfi_bcasts *bcasts, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_copies scratch = {NULL, 0, 0};

  *kept = true;
  for (size_t i = 0; bcasts != NULL && i < bcasts->n; i++) {
    xfi_bcast *c = &bcasts->at[i];
    char *memory = NULL;

    if (c->memory == NULL) continue; /* on all ranks */
    XFI_TRY_DONE(find_memory(&memory, &scratch, plan, c));
    *kept = *kept && memory != NULL;
    if (memory != NULL) c->memory = memory; /* else keep what all ranks agreed on */
  }
done:
  xfi_copies_free(&scratch);
  return st;
}

/* A part is broadcast in place only if all ranks can. */
static xfer_status agree_on_memories(xfi_bcasts *bcasts, const xfer_plan *plan,
                                     const unsigned char *mine, size_t n_large)
{
  xfi_comm *comm = plan->comm;
  xfer_status st = XFER_OK;
  unsigned char *all = xfi_comm_agree_gather(comm, &st, mine, n_large, xfi_run_deadline(plan));

  XFI_TRY_DONE(st);
  for (size_t i = 0, k = 0; i < bcasts->n; i++) {
    if (bcasts->at[i].n_bytes < min_in_place(plan)) continue;
    for (size_t r = 0; r < (size_t)comm->size; r++)
      if (all[r * n_large + k] == 0) bcasts->at[i].memory = NULL;
    k++;
  }
done:
  xfi_free(all);
  return st;
}

xfer_status xfi_bcasts_create(xfi_bcasts **out, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  unsigned char *mine = NULL;
  size_t n_large = 0;
  xfi_bcasts *bcasts = NULL;

  if (xfi_plan_n_broadcast(plan) == 0) return XFER_OK;
  st = xfi_bcasts_list(&bcasts, plan);
  for (size_t i = 0; bcasts != NULL && i < bcasts->n && plan->comm->ops->recv_direct; i++)
    n_large += bcasts->at[i].n_bytes >= min_in_place(plan);
  if (st == XFER_OK && n_large > 0) {
    mine = xfi_calloc(n_large, sizeof *mine);
    st =
        mine == NULL ? XFI_NO_MEMORY("%zu broadcasts", n_large) : find_memories(bcasts, plan, mine);
  }
  XFI_TRY_DONE(xfi_comm_agree(plan->comm, st, xfi_run_deadline(plan)));
  if (n_large > 0) XFI_TRY_DONE(agree_on_memories(bcasts, plan, mine, n_large));
  *out = bcasts;
  bcasts = NULL;
done:
  xfi_bcasts_free(bcasts);
  xfi_free(mine);
  return st;
}
