/* The local tensors of a rank: checks arguments, calls src/refit, binds to a plan. */
#include "locals.h"

#include <xfer/refit.h>

#include "error.h"
#include "object.h"

#include <string.h>

xfer_status xfer_locals_create(xfer_locals **locals, const xfer_refit *refit, int rank)
{
  XFI_NEED(locals);
  XFI_NEED(refit);
  XFI_CHECK(rank >= 0, XFER_ERR_ARG, "xfer_locals_create: rank %d; ranks count from 0", rank);
  return xfi_locals_create(locals, refit, rank);
}

void xfer_locals_destroy(xfer_locals *locals)
{
  xfi_locals_destroy(locals);
}

size_t xfer_locals_count(const xfer_locals *locals)
{
  return locals == NULL ? 0 : locals->n_listed;
}

xfer_status xfer_locals_get(const xfer_locals *locals, size_t i, xfer_local *local)
{
  const xfi_local_tensor *l;

  XFI_NEED(locals);
  XFI_NEED(local);
  XFI_CHECK(i < locals->n_listed, XFER_ERR_ARG, "no local tensor %zu: the list has %zu", i,
            locals->n_listed);
  l = &locals->at[i];
  *local = (xfer_local){.name = l->name,
                        .side = l->side,
                        .dtype = (int32_t)l->dtype,
                        .n_dims = l->n_dims,
                        .n_parts = l->n_parts,
                        .expert = l->expert,
                        .misc = l->misc,
                        .made = l->made,
                        .made_dtype = l->made_dtype};
  memcpy(local->shape, l->shape, sizeof local->shape);
  for (int k = 0; k < l->n_dims; k++)
    local->dims[k] = l->dims[k];
  return XFER_OK;
}

xfer_status xfer_locals_part_get(const xfer_locals *locals, size_t i, size_t k,
                                 xfer_local_part *part)
{
  XFI_NEED(locals);
  XFI_NEED(part);
  XFI_CHECK(i < locals->n_listed && k < (size_t)locals->at[i].n_parts, XFER_ERR_ARG,
            "no part %zu of local tensor %zu; n_parts of each and xfer_locals_count() say how many",
            k, i);
  *part = locals->parts[locals->at[i].first_part + k];
  return XFER_OK;
}

static xfer_status hand_in(const char *who, xfer_locals *locals, xfer_refit_side side,
                           const xfi_given *given)
{
  XFI_NEED_IN(who, 1, locals);
  XFI_CHECK(given->name != NULL, XFER_ERR_ARG, "%s: name is NULL", who);
  XFI_CHECK(given->n_dims == 0 || given->shape != NULL, XFER_ERR_ARG, "%s: shape is NULL", who);
  XFI_CHECK(side == XFER_REFIT_TRAIN || side == XFER_REFIT_GEN, XFER_ERR_ARG,
            "\"%s\": side %d; want XFER_REFIT_TRAIN or XFER_REFIT_GEN", given->name, (int)side);
  XFI_CHECK(given->n_dims >= 0 && given->n_dims <= XFER_MAX_DIMS, XFER_ERR_ARG,
            "\"%s\" with %d dims; 0 to 8 are possible", given->name, given->n_dims);
  return xfi_locals_give(locals, (int)side, given);
}

xfer_status xfer_locals_give(xfer_locals *locals, xfer_refit_side side, const char *name,
                             xfer_dtype dtype, void *base, const int64_t *shape,
                             const int64_t *strides, int n_dims)
{
  const xfi_given given = {name, dtype, base, shape, strides, n_dims, false};

  return hand_in(__func__, locals, side, &given);
}

xfer_status xfer_locals_update(xfer_locals *locals, xfer_refit_side side, const char *name,
                               xfer_dtype dtype, void *base, const int64_t *shape,
                               const int64_t *strides, int n_dims)
{
  const xfi_given given = {name, dtype, base, shape, strides, n_dims, true};

  return hand_in(__func__, locals, side, &given);
}

xfer_status xfer_locals_view(xfer_locals *locals, size_t tensor, xfer_view *src, xfer_view *dst,
                             uint32_t *filled)
{
  xfer_view found[2];
  bool has_src, has_dst;

  XFI_NEED(locals);
  XFI_NEED(src);
  XFI_NEED(dst);
  XFI_NEED(filled);
  XFI_CHECK(tensor < locals->refit->n_tensors, XFER_ERR_ARG, "no tensor %zu: the refit has %zu",
            tensor, locals->refit->n_tensors);
  XFI_TRY(xfi_locals_view(locals, tensor, XFER_REFIT_TRAIN, &found[0], &has_src));
  XFI_TRY(xfi_locals_view(locals, tensor, XFER_REFIT_GEN, &found[1], &has_dst));
  if (has_src) *src = found[0];
  if (has_dst) *dst = found[1];
  *filled = (has_src ? XFER_LOCALS_SRC : 0) | (has_dst ? XFER_LOCALS_DST : 0);
  return XFER_OK;
}

static bool is_layout(const xfer_layout *of_plan, const xfer_layout *of_refit)
{
  return of_refit == NULL || (of_plan != NULL && memcmp(of_plan->digest, of_refit->digest,
                                                        sizeof of_plan->digest) == 0);
}

/* Refuses a plan of another rank or of other tensors than the refit's. The memory that was handed
 * in is only as large as this rank's parts of those tensors, so such a plan would go past its end.
 */
static xfer_status check_plan(const xfer_locals *locals, const xfer_plan *plan)
{
  const xfer_refit *refit = locals->refit;

  XFI_CHECK(plan->moves->rank == locals->rank, XFER_ERR_ARG,
            "xfer_locals_bind: the list is rank %d's and the plan rank %d's", locals->rank,
            plan->moves->rank);
  XFI_CHECK(plan->moves->n_tensors >= refit->n_tensors, XFER_ERR_ARG,
            "xfer_locals_bind: the plan has %zu tensors and the refit %zu", plan->moves->n_tensors,
            refit->n_tensors);
  for (size_t t = 0; t < refit->n_tensors && locals->bound_to != plan->serial; t++) {
    const xfi_tensor *planned = &plan->moves->tensors[t];
    const xfer_tensor *tensor = &refit->tensors[t];

    XFI_CHECK(is_layout(planned->src, tensor->src) && is_layout(planned->dst, tensor->dst),
              XFER_ERR_ARG,
              "xfer_locals_bind: tensor %zu of the plan, \"%s\", has other layouts than \"%s\" of "
              "the refit",
              t, planned->name, tensor->name);
  }
  return XFER_OK;
}

/* Was a side bound once, and has no memory now? */
static bool is_unbound(const xfi_binding *b)
{
  return (!b->src.is_set && b->src.n_pieces > 0) || (!b->dst.is_set && b->dst.n_pieces > 0);
}

xfer_status xfer_locals_bind(xfer_locals *locals, xfer_plan *plan)
{
  xfer_view src, dst;
  uint32_t has = 0;
  xfer_status st = XFER_OK;

  XFI_NEED(locals);
  XFI_NEED(plan);
  XFI_TRY(xfi_locals_complete(locals));
  XFI_CHECK(locals->n_problems == 0, XFER_ERR_MISMATCH, "%s (one of %zu problems)",
            locals->problems[0].text, locals->n_problems);
  XFI_CHECK(plan->device != NULL, XFER_ERR_STATE,
            "xfer_locals_bind: a simulated plan cannot be bound");
  XFI_TRY(check_plan(locals, plan));
  XFI_ON_DEVICE(plan->device, st = xfi_locals_own(locals, &plan->device->ops->host_memory));
  XFI_TRY(st);
  for (size_t t = 0; t < locals->refit->n_tensors; t++) {
    if (locals->bound_to == plan->serial && plan->memory.bindings[t] != NULL && !locals->moved[t] &&
        !is_unbound(plan->memory.bindings[t]))
      continue;
    XFI_TRY(xfer_locals_view(locals, t, &src, &dst, &has));
    if (has == 0) continue;
    XFI_TRY(xfer_plan_bind(plan, t, (has & XFER_LOCALS_SRC) != 0 ? &src : NULL,
                           (has & XFER_LOCALS_DST) != 0 ? &dst : NULL));
  }
  memset(locals->moved, 0, locals->refit->n_tensors * sizeof *locals->moved);
  locals->bound_to = plan->serial;
  return XFER_OK;
}

const char *xfer_locals_problem(const xfer_locals *locals, size_t i)
{
  return locals == NULL || i >= locals->n_problems ? NULL : locals->problems[i].text;
}

size_t xfer_locals_ignored(const xfer_locals *locals)
{
  return locals == NULL ? 0 : locals->n_ignored;
}

xfer_status xfer_locals_take_misc(xfer_locals *locals, xfer_misc_fn fn, void *context)
{
  XFI_NEED(locals);
  locals->misc_fn = fn;
  locals->misc_context = context;
  return XFER_OK;
}

xfer_status xfer_locals_wait(xfer_locals *locals, xfer_plan *plan, uint64_t timeout_ms)
{
  XFI_NEED(locals);
  XFI_NEED(plan);
  XFI_TRY(xfer_plan_wait(plan, timeout_ms));
  for (size_t i = 0; i < locals->n && locals->misc_fn != NULL; i++) {
    const xfi_local_tensor *l = &locals->at[i];

    if (l->owned == NULL) continue;
    locals->misc_fn(locals->misc_context, l->name, l->dtype, l->shape, l->n_dims, l->owned);
  }
  return XFER_OK;
}
