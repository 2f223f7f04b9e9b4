/*
 * Bindings: where each part lies on this rank, one tensor at a time; and at commit, all of them
 * together.
 */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "error.h"
#include "run.h"

/* The shape of this rank's part of one side; false: it has none, or an empty one. */
static bool part_shape(int64_t *shape, const xfer_layout *layout, bool in_mesh,
                       const xfi_place *place)
{
  bool filled = in_mesh;

  for (int d = 0; in_mesh && d < layout->n_dims; d++) {
    shape[d] = xfi_dim_length(&layout->dims[d], place->part[d]);
    filled = filled && shape[d] > 0;
  }
  return filled;
}

static xfer_status bind_side(xfi_bound *bound, const xfer_view *view, const xfer_layout *layout,
                             bool in_mesh, const xfi_place *place, const char *name,
                             const char *side)
{
  int64_t shape[XFER_MAX_DIMS] = {0};
  char what[160];

  if (!part_shape(shape, layout, in_mesh, place)) return XFER_OK;
  if (view == NULL) {
    xfi_bound_clear(bound);
    return XFER_OK;
  }
  snprintf(what, sizeof what, "tensor \"%.100s\", %s view", name, side);
  return xfi_bound_set(bound, view, shape, layout->n_dims, layout->elem_bytes, what);
}

void xfi_binding_destroy(xfi_binding *binding)
{
  if (binding == NULL) return;
  xfi_bound_clear(&binding->src);
  xfi_bound_clear(&binding->dst);
  xfi_free(binding);
}

static bool is_same_binding(const xfi_binding *a, const xfi_binding *b)
{
  return a != NULL && xfi_bound_equal(&a->src, &b->src) && xfi_bound_equal(&a->dst, &b->dst);
}

xfer_status xfi_run_bind(xfer_plan *plan, size_t tensor, const xfer_view *src_view,
                         const xfer_view *dst_view)
{
  xfer_status st = XFER_OK;
  const xfi_class *cls;
  const char *name;
  xfi_binding *fresh = NULL;

  XFI_CHECK(plan->comm != NULL, XFER_ERR_STATE, "a simulated plan cannot be bound");
  XFI_TRY(xfi_state_allows(plan->state, XFI_CALL_BIND));
  XFI_CHECK(tensor < plan->moves->n_tensors, XFER_ERR_ARG, "tensor %zu of %zu", tensor,
            plan->moves->n_tensors);
  cls = xfi_plan_class(plan->moves, tensor);
  name = plan->moves->tensors[tensor].name;
  fresh = xfi_calloc(1, sizeof *fresh);
  XFI_CHECK(fresh != NULL, XFER_ERR_NOMEM, "tensor \"%s\"", name);
  XFI_TRY(bind_side(&fresh->src, src_view, cls->src, cls->in_src, &cls->src_place, name, "source"));
  XFI_TRY(bind_side(&fresh->dst, dst_view, cls->dst, cls->in_dst, &cls->dst_place, name,
                    "destination"));
  if (is_same_binding(plan->bindings[tensor], fresh)) {
    plan->state = xfi_state_after(plan->state, XFI_CALL_BIND, XFI_AS_IT_WAS);
    goto done;
  }
  xfi_binding_destroy(plan->bindings[tensor]);
  plan->bindings[tensor] = fresh;
  fresh = NULL;
  plan->state = xfi_state_after(plan->state, XFI_CALL_BIND, XFI_ENDED);
done:
  xfi_binding_destroy(fresh);
  return st;
}

/* Every part that is not empty is bound. */
static xfer_status check_all_bound(const xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    const xfi_class *cls = xfi_plan_class(plan->moves, t);
    const xfi_binding *b = plan->bindings[t];
    const char *name = plan->moves->tensors[t].name;
    int64_t shape[XFER_MAX_DIMS];

    XFI_CHECK(!part_shape(shape, cls->src, cls->in_src, &cls->src_place) ||
                  (b != NULL && b->src.is_set),
              XFER_ERR_STATE, "tensor %zu \"%s\": the source part of rank %d is not bound", t, name,
              plan->moves->rank);
    XFI_CHECK(!part_shape(shape, cls->dst, cls->in_dst, &cls->dst_place) ||
                  (b != NULL && b->dst.is_set),
              XFER_ERR_STATE, "tensor %zu \"%s\": the destination part of rank %d is not bound", t,
              name, plan->moves->rank);
  }
done:
  return st;
}

/* Does a tensor's destination part get from its source part, and where both are the same memory,
 * what is there already? */
static bool stays_in_place(const xfi_class *cls, const xfi_binding *b)
{
  const xfi_flows *recvs = &cls->recvs;
  const size_t n = sizeof *cls->src_place.part * (size_t)cls->src->n_dims;
  uint64_t n_bytes = 0;

  if (!b->src.is_set || !b->dst.is_set || !xfi_bound_equal(&b->src, &b->dst)) return false;
  if (recvs->n != 1 || memcmp(recvs->at[0].part, cls->src_place.part, n) != 0) return false;
  for (size_t i = 0; i < recvs->at[0].n; i++) {
    const xfi_box *box = &recvs->boxes[recvs->at[0].first + i];

    if (memcmp(box->src_local, box->dst_local, n) != 0) return false;
    n_bytes += (uint64_t)(xfi_box_elems(box, cls->src->n_dims) * cls->src->elem_bytes);
  }
  return n_bytes == cls->dst_bytes;
}

static xfer_status check_disjoint(const xfer_plan *plan)
{
  const size_t n_tensors = plan->moves->n_tensors;
  xfer_status st = XFER_OK;
  xfi_use *uses = xfi_calloc(n_tensors, 2 * sizeof *uses);
  size_t n = 0;

  XFI_CHECK(uses != NULL, XFER_ERR_NOMEM, "%zu tensors", n_tensors);
  for (size_t t = 0; t < n_tensors; t++) {
    const xfi_binding *b = plan->bindings[t];
    const xfi_class *cls = xfi_plan_class(plan->moves, t);
    const char *name = plan->moves->tensors[t].name;

    if (b == NULL) continue;
    if (b->dst.is_set)
      uses[n++] = (xfi_use){&b->dst, name, cls->dst->elem_bytes, .stays = stays_in_place(cls, b)};
    if (b->src.is_set)
      uses[n++] = (xfi_use){&b->src, name, cls->src->elem_bytes, .is_source = true};
  }
  XFI_TRY(xfi_uses_check_disjoint(uses, n));
done:
  xfi_free(uses);
  return st;
}

xfer_status xfi_bindings_check(const xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  XFI_TRY(check_all_bound(plan));
  XFI_TRY(check_disjoint(plan));
done:
  return st;
}
