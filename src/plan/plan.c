/*
 * How a plan is made: its tensors are checked and sorted into classes, each class is filled once
 * (class.c), and its flows become moves for each of its tensors (moves.c). Pure arithmetic, on one
 * rank: what ranks have to agree on is in src/agree.
 */
#include "plan.h"

#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "cost.h"
#include "error.h"
#include "intern.h"
#include "moves.h"

/* What tensors of one class have in common. */
typedef struct class_key {
  uint64_t src[2];
  uint64_t dst[2];
  xfer_conversion conversion;
} class_key;

static uint32_t class_of(xfi_interned *classes, const xfi_tensor *tensor)
{
  class_key key = {.conversion = tensor->conversion};

  memcpy(key.src, tensor->src->digest, sizeof key.src);
  memcpy(key.dst, tensor->dst->digest, sizeof key.dst);
  return xfi_intern_bytes(classes, &key, sizeof key);
}

/* Once it is known how many there are: each class goes on with the turns of sources where the one
 * before stopped. */
static xfer_status make_classes(xfi_plan *plan)
{
  uint32_t next = 0;

  plan->classes = xfi_calloc(plan->n_classes, sizeof *plan->classes);
  XFI_CHECK(plan->classes != NULL, XFER_ERR_NOMEM, "%zu classes", plan->n_classes);
  for (size_t t = 0; t < plan->n_tensors; t++) {
    xfi_tensor *tensor = &plan->tensors[t];
    xfi_class *cls = &plan->classes[tensor->class_index];

    if (cls->n_tensors == 0) {
      cls->src = tensor->src;
      cls->dst = tensor->dst;
      cls->conversion = tensor->conversion;
      cls->first_tensor = t;
    }
    tensor->ordinal = (uint32_t)cls->n_tensors++;
  }
  for (size_t c = 0; c < plan->n_classes; c++) {
    plan->classes[c].first_ordinal = next;
    next += (uint32_t)plan->classes[c].n_tensors;
  }
  for (size_t t = 0; t < plan->n_tensors; t++)
    plan->tensors[t].ordinal += xfi_plan_class(plan, t)->first_ordinal;
  return XFER_OK;
}

/* Check that the plan has all ranks of a mesh. */
static xfer_status check_mesh(const xfi_plan *plan, const char *name, const char *side,
                              const xfer_mesh *mesh)
{
  XFI_CHECK(mesh->max_rank < plan->n_ranks, XFER_ERR_ARG,
            "tensor \"%.100s\": its %s mesh has rank %d, the comm only ranks 0 to %d", name, side,
            mesh->max_rank, plan->n_ranks - 1);
  return XFER_OK;
}

static xfer_status check_class(xfi_plan *plan, xfi_class *cls)
{
  const char *name = plan->tensors[cls->first_tensor].name;
  const xfer_layout *a = cls->src;
  const xfer_layout *b = cls->dst;
  size_t n_bytes;

  XFI_TRY(xfi_conversion_fits(&cls->conversion, a, b, name));
  XFI_CHECK(a->n_dims == b->n_dims, XFER_ERR_SHAPE,
            "tensor \"%.100s\": the source has %d dims, the destination %d", name, a->n_dims,
            b->n_dims);
  for (int d = 0; d < a->n_dims; d++)
    XFI_CHECK(a->dims[d].size == b->dims[d].size, XFER_ERR_SHAPE,
              "tensor \"%.100s\", dim %d: the source has %lld indices, the destination %lld", name,
              d, (long long)a->dims[d].size, (long long)b->dims[d].size);
  XFI_TRY(check_mesh(plan, name, "source", a->mesh));
  XFI_TRY(check_mesh(plan, name, "destination", b->mesh));
  cls->wire_bytes = b->elem_bytes < a->elem_bytes ? b->elem_bytes : a->elem_bytes;
  XFI_CHECK(xfi_mul_fits((size_t)(a->n_elems * cls->wire_bytes), cls->n_tensors, &n_bytes) &&
                xfi_add_fits(plan->payload_bytes, n_bytes, &plan->payload_bytes),
            XFER_ERR_OVERFLOW, "the tensors' bytes do not fit in 64 bits");
  return XFER_OK;
}

static xfer_status add_tensors(xfi_plan *plan, const xfer_tensor *tensors)
{
  xfer_status st = XFER_OK;
  xfi_interned classes = {0};

  XFI_TRY_DONE(xfi_interned_create(&classes, plan->n_tensors));
  plan->tensors = xfi_calloc(plan->n_tensors, sizeof *plan->tensors);
  XFI_CHECK_DONE(plan->tensors != NULL, XFER_ERR_NOMEM, "%zu tensors", plan->n_tensors);
  for (size_t t = 0; t < plan->n_tensors; t++) {
    xfi_tensor *tensor = &plan->tensors[t];

    tensor->name = xfi_strdup(tensors[t].name);
    XFI_CHECK_DONE(tensor->name != NULL, XFER_ERR_NOMEM, "%zu tensors", plan->n_tensors);
    tensor->src = xfi_layout_share(tensors[t].src);
    tensor->dst = xfi_layout_share(tensors[t].dst);
    tensor->conversion = xfi_conversion_settle(&tensors[t].conversion, tensor->src, tensor->dst);
    plan->n_converted += tensor->conversion.kind != XFER_CONVERSION_NONE;
    plan->n_replicated += xfi_layout_has_replicas(tensor->src);
    tensor->class_index = class_of(&classes, tensor);
  }
  plan->n_classes = classes.n;
  XFI_TRY_DONE(make_classes(plan));
done:
  xfi_interned_free(&classes);
  return st;
}

xfer_status xfi_plan_classify(xfi_plan **plan, int n_ranks, int rank, const xfer_tensor *tensors,
                              size_t n_tensors, const xfi_plan_options *options)
{
  xfer_status st = XFER_OK;
  xfi_plan *p = NULL;

  p = xfi_calloc(1, sizeof *p);
  XFI_CHECK_DONE(p != NULL, XFER_ERR_NOMEM, "plan");
  XFI_CHECK_DONE(n_tensors <= UINT32_MAX / 4, XFER_ERR_UNSUPPORTED, "%zu tensors", n_tensors);
  p->n_ranks = n_ranks;
  p->rank = rank;
  p->options = *options;
  p->n_tensors = n_tensors;
  XFI_TRY_DONE(add_tensors(p, tensors));
  for (size_t c = 0; c < p->n_classes; c++)
    XFI_TRY_DONE(check_class(p, &p->classes[c]));
  XFI_TRY_DONE(xfi_plan_set_order(p, options->order));
  p->options.order = NULL;
  XFI_TRY_DONE(xfi_cost_choose(p));

  *plan = p;
  p = NULL;
done:
  xfi_plan_destroy(p);
  return st;
}

xfer_status xfi_plan_create(xfi_plan **plan, int n_ranks, int rank, const xfer_tensor *tensors,
                            size_t n_tensors, const xfi_plan_options *options)
{
  xfer_status st = XFER_OK;
  xfi_plan *p = NULL;

  XFI_TRY_DONE(xfi_plan_classify(&p, n_ranks, rank, tensors, n_tensors, options));
  XFI_TRY_DONE(xfi_moves_fill(p));
  XFI_TRY_DONE(xfi_relay_fill(p));
  *plan = p;
  p = NULL;
done:
  xfi_plan_destroy(p);
  return st;
}

static void free_list(xfi_move_list *list)
{
  xfi_free(list->moves);
  xfi_free(list->peers);
  xfi_free(list->peer_bytes);
}

void xfi_plan_destroy(xfi_plan *plan)
{
  if (plan == NULL) return;
  if (plan->relay != NULL) plan->relay->tensors = NULL; /* they are the plan's */
  xfi_plan_destroy(plan->relay);
  for (size_t t = 0; plan->tensors != NULL && t < plan->n_tensors; t++) {
    xfi_free(plan->tensors[t].name);
    xfi_layout_destroy(plan->tensors[t].src);
    xfi_layout_destroy(plan->tensors[t].dst);
  }
  for (size_t c = 0; plan->classes != NULL && c < plan->n_classes; c++)
    xfi_class_free(&plan->classes[c]);
  xfi_free(plan->tensors);
  xfi_free(plan->order);
  xfi_free(plan->classes);
  free_list(&plan->sends);
  free_list(&plan->recvs);
  free_list(&plan->selfs);
  xfi_free(plan);
}
