/*
 * Bindings: where the caller's memory lies, one tensor at a time, and the checks of all bindings at
 * commit: is everything bound that is needed, and do no two destinations overlap?
 *
 * Binding is local to a rank, and called by src/api. A bind that fails leaves its reason in the
 * binding, so that the next commit reports it on all ranks.
 */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "bind.h"
#include "boxes.h"
#include "conversion.h"
#include "error.h"
#include "held.h"
#include "quant.h"
#include "run.h"

/* What this rank holds of a class on one side. */
typedef struct part {
  const xfer_layout *layout;
  bool in_mesh;
  const xfi_place *place;
  int rank;
} part;

static part part_of(const xfi_class *cls, int rank, xfi_side side)
{
  return side == XFI_SIDE_SRC ? (part){cls->src, cls->in_src, &cls->src_place, rank}
                              : (part){cls->dst, cls->in_dst, &cls->dst_place, rank};
}

/* The shape of this rank's part; false: it has none, or an empty one. */
static bool part_shape(int64_t *shape, const part *s)
{
  bool filled = s->in_mesh;

  if (s->in_mesh && s->layout->boxes != NULL) return xfi_boxes_elems(s->layout, s->rank) > 0;
  for (int d = 0; s->in_mesh && d < s->layout->n_dims; d++) {
    shape[d] = xfi_dim_length(&s->layout->dims[d], s->place->part[d]);
    filled = filled && shape[d] > 0;
  }
  return filled;
}

/* Bind the boxes of a rank. If they stack they are one array, like any other part. */
static xfer_status bind_boxes(xfi_bound *bound, const xfer_view *view, const part *s,
                              const char *what)
{
  const xfer_layout *l = s->layout;
  size_t first;
  const size_t n = xfi_boxes_of(&first, l, s->rank);
  int64_t shape[XFER_MAX_DIMS];
  xfi_bound_box *boxes;

  if (view->kind != XFER_VIEW_BOXES && xfi_boxes_stack(shape, l, s->rank))
    return xfi_bound_set(bound, view, shape, l->n_dims, l->elem_bytes, what);
  boxes = xfi_calloc(n, sizeof *boxes);
  XFI_CHECK(boxes != NULL, XFER_ERR_NOMEM, "%s: %zu boxes", what, n);
  for (size_t i = 0; i < n; i++) {
    const int64_t *bounds = xfi_listed_bounds(l, first + i);

    boxes[i].row = l->boxes->listed[first + i].row;
    for (int d = 0; d < l->n_dims; d++)
      boxes[i].length[d] = bounds[l->n_dims + d] - bounds[d];
  }
  return xfi_bound_set_boxes(bound, view, boxes, (int64_t)n, l->n_dims, l->elem_bytes, what);
}

static xfer_status bind_part(xfi_bound *bound, const xfer_view *view, const part *s,
                             const int64_t *shape, const char *what)
{
  if (s->layout->boxes != NULL) return bind_boxes(bound, view, s, what);
  return xfi_bound_set(bound, view, shape, s->layout->n_dims, s->layout->elem_bytes, what);
}

/* `bound` is all zero. */
static xfer_status bind_side(xfi_bound *bound, const xfer_view *view, const xfi_class *cls,
                             int rank, xfi_side side, const char *name)
{
  const part s = part_of(cls, rank, side);
  int64_t shape[XFER_MAX_DIMS] = {0};
  char what[160];

  if (!part_shape(shape, &s) || view == NULL) return XFER_OK;
  if (bind_part(bound, view, &s, shape, "") == XFER_OK) return XFER_OK;
  /* Bind once more, now with a name for the error text. To compose that name takes longer than a
   * bind, so it is done only where it is needed. */
  snprintf(what, sizeof what, "tensor \"%.100s\", %s view", name, xfi_side_name(side));
  return bind_part(bound, view, &s, shape, what);
}

xfer_status xfi_bind_mirror(const xfer_plan *plan, size_t tensor, xfi_side side, void *memory)
{
  const xfer_view dense = xfer_view_dense(memory);
  xfi_binding *b = plan->memory.bindings[tensor];

  return bind_side(xfi_side_mirror(b, side), &dense, xfi_moves_class(plan->moves, tensor),
                   plan->moves->rank, side, plan->moves->tensors[tensor].name);
}

uint64_t xfi_bind_bytes(const xfer_plan *plan, size_t tensor, xfi_side side)
{
  const part s = part_of(xfi_moves_class(plan->moves, tensor), plan->moves->rank, side);

  if (!s.in_mesh) return 0;
  return (uint64_t)s.layout->elem_bytes * (uint64_t)xfi_layout_elems(s.layout, s.rank, s.place);
}

static void forgive(xfi_binding *binding)
{
  xfi_free(binding->bad);
  binding->bad = NULL;
}

/* Forget all that was bound. NULL is fine. */
static void clear(xfi_binding *binding)
{
  if (binding == NULL) return;
  xfi_bound_clear(&binding->staged);
  xfi_bound_clear(&binding->snapshot);
  xfi_bound_clear(&binding->src);
  xfi_bound_clear(&binding->dst);
  forgive(binding);
}

void xfi_binding_destroy(xfi_binding *binding)
{
  clear(binding);
  xfi_free(binding);
}

/* Is the view like what is bound, but for its address, or NULL? True also for a part without
 * pieces: after a commit that is an empty part, which needs no view. */
static bool is_elsewhere(const xfi_bound *bound, const xfer_view *view, int elem_bytes)
{
  return bound->n_pieces == 0 || view == NULL || xfi_bound_lies_as(bound, view, elem_bytes);
}

static bool rebind_bound(xfi_bound *bound, const xfer_view *view)
{
  const bool was_set = bound->is_set;

  if (bound->n_pieces == 0) return false;
  bound->is_set = view != NULL;
  if (view == NULL || (was_set && bound->only == view->base)) return was_set != bound->is_set;
  bound->only = view->base;
  return true;
}

/* The usual bind after a commit, which needs no checks: the view is like the one that was bound,
 * perhaps at another address, or there is none for now. False: it is another kind of bind, and
 * nothing was done. */
static bool bind_elsewhere(xfer_plan *plan, size_t tensor, const xfer_view *src_view,
                           const xfer_view *dst_view)
{
  const xfi_class *cls = xfi_moves_class(plan->moves, tensor);
  xfi_binding *b = plan->memory.bindings[tensor];
  bool src_rebound;
  bool dst_moved;

  if (!plan->lanes.may_stay || b == NULL || xfi_plan_is_staged(plan)) return false;
  if (!is_elsewhere(&b->src, src_view, cls->src->elem_bytes) ||
      !is_elsewhere(&b->dst, dst_view, cls->dst->elem_bytes))
    return false;
  src_rebound = rebind_bound(&b->src, src_view);
  dst_moved = rebind_bound(&b->dst, dst_view);
  if (src_rebound || dst_moved)
    plan->state = xfi_state_after(plan->state, XFI_CALL_BIND, XFI_ENDED);
  return true;
}

/* After a bind has failed: forget what was bound before, which the caller may free. The error is
 * kept for the next commit to report, if there is memory for it. */
static void unbind(xfer_plan *plan, size_t tensor, xfer_status st)
{
  xfi_error *bad = xfi_calloc(1, sizeof *bad);
  xfi_binding *b = plan->memory.bindings[tensor];

  if (bad != NULL) xfi_error_keep(bad, st);
  if (b == NULL) b = plan->memory.bindings[tensor] = xfi_calloc(1, sizeof *b);
  clear(b);
  if (b != NULL)
    b->bad = bad;
  else
    xfi_free(bad);
  plan->lanes.may_stay = false;
  plan->state = xfi_state_after(plan->state, XFI_CALL_BIND, XFI_ENDED);
}

static xfer_status bind_views(xfer_plan *plan, size_t tensor, const xfer_view *src_view,
                              const xfer_view *dst_view)
{
  const xfi_class *cls = xfi_moves_class(plan->moves, tensor);
  const char *name = plan->moves->tensors[tensor].name;
  xfer_status st = XFER_OK;
  xfi_binding fresh = {.src = {.is_set = false}};
  xfer_view scales;
  xfi_binding *bound = plan->memory.bindings[tensor];

  if (xfi_quant_source(plan->quant, tensor, &scales)) src_view = &scales;
  if (bind_elsewhere(plan, tensor, src_view, dst_view)) return XFER_OK;
  XFI_TRY_DONE(bind_side(&fresh.src, src_view, cls, plan->moves->rank, XFI_SIDE_SRC, name));
  fresh.src.blocks = xfi_quant_blocks(plan->quant, tensor);
  XFI_TRY_DONE(bind_side(&fresh.dst, dst_view, cls, plan->moves->rank, XFI_SIDE_DST, name));
  if (bound != NULL && xfi_bound_equal(&bound->src, &fresh.src) &&
      xfi_bound_equal(&bound->dst, &fresh.dst))
    goto done;
  if (bound == NULL) bound = plan->memory.bindings[tensor] = xfi_calloc(1, sizeof *bound);
  XFI_CHECK_DONE(bound != NULL, XFER_ERR_NOMEM, "tensor \"%.100s\"", name);
  plan->lanes.may_stay = plan->lanes.may_stay && xfi_bound_is_alike(&bound->src, &fresh.src) &&
                         xfi_bound_is_alike(&bound->dst, &fresh.dst);
  fresh.snapshot = bound->snapshot; /* it lies in the plan's own memory, whatever the view is */
  memset(&bound->snapshot, 0, sizeof bound->snapshot);
  clear(bound);
  *bound = fresh;
  memset(&fresh, 0, sizeof fresh);
  plan->state = xfi_state_after(plan->state, XFI_CALL_BIND, XFI_ENDED);
done:
  clear(&fresh);
  return st;
}

xfer_status xfi_plan_bind(xfer_plan *plan, size_t tensor, const xfer_view *src_view,
                          const xfer_view *dst_view)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(plan->comm != NULL, XFER_ERR_STATE, "a simulated plan cannot be bound");
  XFI_TRY(xfi_state_allows(plan->state, XFI_CALL_BIND));
  XFI_CHECK(tensor < plan->moves->n_tensors, XFER_ERR_ARG, "tensor %zu of %zu; they count from 0",
            tensor, plan->moves->n_tensors);
  st = bind_views(plan, tensor, src_view, dst_view);
  if (st != XFER_OK)
    unbind(plan, tensor, st);
  else if (plan->memory.bindings[tensor] != NULL)
    forgive(plan->memory.bindings[tensor]);
  return st;
}

static const xfer_view *view_or_none(const xfer_view *view)
{
  return view->base == NULL && view->pieces == NULL ? NULL : view;
}

xfer_status xfi_plan_bind_many(xfer_plan *plan, const size_t *tensors, const xfer_view *src_views,
                               const xfer_view *dst_views, size_t n)
{
  xfi_error first = {.st = XFER_OK};

  for (size_t i = 0; i < n; i++) {
    const xfer_status st =
        xfi_plan_bind(plan, tensors[i], view_or_none(&src_views[i]), view_or_none(&dst_views[i]));

    if (first.st == XFER_OK) xfi_error_keep(&first, st);
  }
  return xfi_error_report(&first);
}

xfer_status xfi_plan_bind_exchange(xfer_plan *plan, const xfer_view *sends, const xfer_view *recvs)
{
  XFI_CHECK(plan->memory.operations != NULL, XFER_ERR_ARG, "the plan is no exchange");
  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    const uint32_t *operation = plan->memory.operations[t];

    XFI_CHECK((operation[0] == XFI_NO_OPERATION || sends != NULL) &&
                  (operation[1] == XFI_NO_OPERATION || recvs != NULL),
              XFER_ERR_ARG, "xfer_plan_bind_exchange: operations without views");
    XFI_TRY(xfi_plan_bind(plan, t, operation[0] == XFI_NO_OPERATION ? NULL : &sends[operation[0]],
                          operation[1] == XFI_NO_OPERATION ? NULL : &recvs[operation[1]]));
  }
  return XFER_OK;
}

/* GPUs load and store whole elements where they convert them. */
static xfer_status check_aligned(const xfer_plan *plan, size_t t, xfi_side side, int64_t piece)
{
  const xfi_class *cls = xfi_moves_class(plan->moves, t);
  const xfi_bound *b = xfi_side_bound(plan->memory.bindings[t], side);
  const int elem_bytes = xfi_side_layout(cls, side)->elem_bytes;
  uintptr_t at = (uintptr_t)xfi_bound_piece(b, piece);
  int64_t shape[XFER_MAX_DIMS];

  if (cls->conversion.kind == XFER_CONVERSION_NONE || plan->device->ops->is_synchronous)
    return XFER_OK;
  xfi_bound_shape(shape, b, piece);
  for (int d = 0; d < b->n_dims; d++)
    if (shape[d] > 1) at |= (uintptr_t)xfi_bound_strides(b, piece)[d];
  XFI_CHECK(at % (uintptr_t)elem_bytes == 0, XFER_ERR_UNSUPPORTED,
            "tensor \"%.100s\", %s view: a GPU converts elements only where addresses and strides "
            "are multiples of their size, %d bytes; the view begins at %p",
            plan->moves->tensors[t].name, xfi_side_name(side), elem_bytes,
            (const void *)xfi_bound_piece(b, piece));
  return XFER_OK;
}

/* Does the view end within the address space, and may its elements lie where they do? A view at the
 * address of a failed mapping does not end there. */
static xfer_status check_place(const xfer_plan *plan, size_t t, xfi_side side)
{
  const xfi_class *cls = xfi_moves_class(plan->moves, t);
  const xfi_bound *b = xfi_side_bound(plan->memory.bindings[t], side);

  for (int64_t p = 0; p < b->n_pieces; p++) {
    const char *at = xfi_bound_piece(b, p);
    const size_t reach = xfi_bound_reach(b, p, xfi_side_layout(cls, side)->elem_bytes);

    XFI_CHECK((uintptr_t)at <= UINTPTR_MAX - reach, XFER_ERR_ARG,
              "tensor \"%.100s\", %s view: %zu bytes from %p are wanted; no address space is as "
              "large",
              plan->moves->tensors[t].name, xfi_side_name(side), reach, (const void *)at);
    XFI_TRY(check_aligned(plan, t, side, p));
  }
  return XFER_OK;
}

/* Is the part of tensor t on one side bound, if there is one? */
static xfer_status check_bound(const xfer_plan *plan, size_t t, xfi_side side)
{
  const part s = part_of(xfi_moves_class(plan->moves, t), plan->moves->rank, side);
  const xfi_binding *b = plan->memory.bindings[t];
  int64_t shape[XFER_MAX_DIMS];

  if (b != NULL && xfi_side_bound(b, side)->is_set) return check_place(plan, t, side);
  if (!part_shape(shape, &s)) return XFER_OK;
  if (b != NULL && b->bad != NULL) return xfi_error_report(b->bad);
  return XFI_ERROR(XFER_ERR_STATE, "tensor %zu \"%.100s\": the %s part of rank %d is not bound", t,
                   plan->moves->tensors[t].name, xfi_side_name(side), plan->moves->rank);
}

xfer_status xfi_bindings_check(const xfer_plan *plan)
{
  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    XFI_TRY(check_bound(plan, t, XFI_SIDE_SRC));
    XFI_TRY(check_bound(plan, t, XFI_SIDE_DST));
  }
  return XFER_OK;
}

/* NULL if all elements that this rank receives lie at their places already; else why not. *n_elems:
 * how many do. */
static const char *what_moves(int64_t *n_elems, const xfi_class *cls, int rank)
{
  const xfi_flows *recvs = &cls->recvs;
  const size_t n = sizeof(int64_t) * (size_t)cls->src->n_dims;

  *n_elems = 0;
  for (size_t f = 0; f < recvs->n; f++) {
    if (xfi_part_replica(cls->src, recvs->at[f].part, rank) < 0)
      return cls->src->boxes != NULL
                 ? "of its elements some come from another rank, whose box is read for them"
                 : "of its elements some come from another rank";
    for (size_t i = 0; i < recvs->at[f].n; i++) {
      xfi_box box = xfi_flows_box(recvs, recvs->at[f].first + i);

      xfi_box_resolve(box.src_local, box.unit, cls->src, rank);
      if (memcmp(box.src_local, box.dst_local, n) != 0)
        return "some of its elements lie elsewhere on the two sides";
      *n_elems += xfi_box_elems(box.length, cls->src->n_dims);
    }
  }
  return NULL;
}

/* Are some ZERO elements of the destination, which are written, elements of the source? Not if all
 * elements that the source holds stay where they are. */
static xfer_status zeroes_a_source(bool *does, const xfi_class *cls, int rank, int64_t n_staying)
{
  const int n_dims = cls->src->n_dims;
  xfer_status st = XFER_OK;
  xfi_held_list held = {NULL, 0, 0};

  *does = false;
  if (cls->zero_bytes == 0) goto done;
  XFI_TRY_DONE(xfi_layout_held(&held, cls->src, rank, false));
  for (size_t i = 0; i < held.n; i++)
    n_staying -= xfi_bounds_elems(held.at[i].bounds, n_dims);
  *does = n_staying != 0;
done:
  xfi_free(held.at);
  return st;
}

/* *moves becomes NULL for a destination that is its source's view and whose elements stay
 * unchanged, "" for one that is another view; else why it must be another view. */
static xfer_status find_moving(const char **moves, const xfi_class *cls, const xfi_binding *b,
                               int rank)
{
  int64_t n_staying;
  bool zeroes;

  *moves = "";
  if (!b->src.is_set || !b->dst.is_set || !xfi_bound_equal(&b->src, &b->dst)) return XFER_OK;
  *moves = "its elements are converted";
  if (cls->conversion.kind != XFER_CONVERSION_NONE) return XFER_OK;
  *moves = what_moves(&n_staying, cls, rank);
  if (*moves != NULL) return XFER_OK;
  XFI_TRY(zeroes_a_source(&zeroes, cls, rank, n_staying));
  if (zeroes) *moves = "some of the source's elements are ZERO elements of the destination";
  return XFER_OK;
}

xfer_status xfi_bindings_check_disjoint(const xfer_plan *plan)
{
  const size_t n_tensors = plan->moves->n_tensors;
  xfer_status st = XFER_OK;
  xfi_use few[2] = {{.bound = NULL}}; /* of one tensor */
  xfi_use *uses = few;
  size_t n = 0;

  if (plan->moves->in_bytes == 0) return XFER_OK; /* this rank receives nothing */
  if (n_tensors > 1) uses = xfi_calloc(n_tensors, 2 * sizeof *uses);
  XFI_CHECK_DONE(uses != NULL, XFER_ERR_NOMEM, "%zu tensors", n_tensors);
  for (size_t t = 0; t < n_tensors; t++) {
    const xfi_binding *b = plan->memory.bindings[t];
    const xfi_class *cls = xfi_moves_class(plan->moves, t);
    const char *name = plan->moves->tensors[t].name;

    if (b == NULL) continue;
    if (b->dst.is_set) {
      const bool casts = cls->conversion.kind == XFER_CONVERSION_CAST;

      uses[n] = (xfi_use){&b->dst,
                          name,
                          cls->dst->elem_bytes,
                          .tensor = t,
                          .dtype = cls->dst->dtype,
                          .conversion = casts ? (xfer_conversion){0} : cls->conversion};
      XFI_TRY_DONE(find_moving(&uses[n].moves, cls, b, plan->moves->rank));
      uses[n].unties =
          plan->memory.operations != NULL; /* arrays of an exchange: each has its own sender */
      uses[n++].zeroes = cls->zero_bytes > 0;
    }
    if (b->src.is_set)
      uses[n++] = (xfi_use){&b->src, name, cls->src->elem_bytes, .tensor = t, .is_source = true};
  }
  XFI_TRY_DONE(xfi_uses_check_disjoint(uses, n));
done:
  if (uses != few) xfi_free(uses);
  return st;
}
