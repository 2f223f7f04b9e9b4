/*
 * How a plan is made: its tensors are checked and sorted into classes, each class is filled once
 * (class.c), and its flows become moves for each of its tensors (move_lists.c). Pure arithmetic, on
 * one rank: what ranks have to agree on is in src/agree.
 */
#include "moves.h"

#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "cost.h"
#include "error.h"
#include "intern.h"
#include "move_lists.h"

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
static xfer_status make_classes(xfi_moves *moves)
{
  uint32_t next = 0;

  moves->classes = xfi_calloc(moves->n_classes, sizeof *moves->classes);
  XFI_CHECK(moves->classes != NULL, XFER_ERR_NOMEM, "%zu classes", moves->n_classes);
  for (size_t t = 0; t < moves->n_tensors; t++) {
    xfi_tensor *tensor = &moves->tensors[t];
    xfi_class *cls = &moves->classes[tensor->class_index];

    if (cls->n_tensors == 0) {
      cls->src = tensor->src;
      cls->dst = tensor->dst;
      cls->conversion = tensor->conversion;
      cls->first_tensor = t;
    }
    tensor->ordinal = (uint32_t)cls->n_tensors++;
  }
  for (size_t c = 0; c < moves->n_classes; c++) {
    moves->classes[c].first_ordinal = next;
    next += (uint32_t)moves->classes[c].n_tensors;
  }
  for (size_t t = 0; t < moves->n_tensors; t++)
    moves->tensors[t].ordinal += xfi_moves_class(moves, t)->first_ordinal;
  return XFER_OK;
}

xfer_status xfi_moves_check_number(size_t n_tensors)
{
  XFI_CHECK(n_tensors <= XFI_MOST_TENSORS, XFER_ERR_OVERFLOW,
            "%zu tensors, more than the %d that a plan may have", n_tensors, XFI_MOST_TENSORS);
  return XFER_OK;
}

/* Check that the plan has all ranks of a mesh. */
static xfer_status check_mesh(const xfi_moves *moves, const char *name, const char *side,
                              const xfer_mesh *mesh)
{
  XFI_CHECK(mesh->max_rank < moves->n_ranks, XFER_ERR_ARG,
            "tensor \"%.100s\": its %s mesh has rank %d, the comm only ranks 0 to %d", name, side,
            mesh->max_rank, moves->n_ranks - 1);
  return XFER_OK;
}

static xfer_status check_class(xfi_moves *moves, xfi_class *cls)
{
  const char *name = moves->tensors[cls->first_tensor].name;
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
  XFI_TRY(check_mesh(moves, name, "source", a->mesh));
  XFI_TRY(check_mesh(moves, name, "destination", b->mesh));
  cls->wire_bytes = b->elem_bytes < a->elem_bytes ? b->elem_bytes : a->elem_bytes;
  XFI_CHECK(xfi_mul_fits((size_t)(a->n_elems * cls->wire_bytes), cls->n_tensors, &n_bytes) &&
                xfi_add_fits(moves->payload_bytes, n_bytes, &moves->payload_bytes),
            XFER_ERR_OVERFLOW, "the tensors' bytes do not fit in 64 bits");
  return XFER_OK;
}

static xfer_status add_tensors(xfi_moves *moves, const xfer_tensor *tensors)
{
  xfer_status st = XFER_OK;
  xfi_interned classes = {0};

  XFI_TRY_DONE(xfi_interned_create(&classes, moves->n_tensors));
  moves->tensors = xfi_calloc(moves->n_tensors, sizeof *moves->tensors);
  XFI_CHECK_DONE(moves->tensors != NULL, XFER_ERR_NOMEM, "%zu tensors", moves->n_tensors);
  for (size_t t = 0; t < moves->n_tensors; t++) {
    xfi_tensor *tensor = &moves->tensors[t];

    tensor->name = xfi_strdup(tensors[t].name);
    XFI_CHECK_DONE(tensor->name != NULL, XFER_ERR_NOMEM, "%zu tensors", moves->n_tensors);
    tensor->src = xfi_layout_share(tensors[t].src);
    tensor->dst = xfi_layout_share(tensors[t].dst);
    tensor->conversion = xfi_conversion_settle(&tensors[t].conversion, tensor->src, tensor->dst);
    moves->n_converted += tensor->conversion.kind != XFER_CONVERSION_NONE;
    moves->n_replicated += xfi_layout_has_replicas(tensor->src);
    tensor->class_index = class_of(&classes, tensor);
  }
  moves->n_classes = classes.n;
  XFI_TRY_DONE(make_classes(moves));
done:
  xfi_interned_free(&classes);
  return st;
}

xfer_status xfi_moves_classify(xfi_moves **moves, int n_ranks, int rank, const xfer_tensor *tensors,
                               size_t n_tensors, const xfi_moves_options *options)
{
  xfer_status st = XFER_OK;
  xfi_moves *p = NULL;

  p = xfi_calloc(1, sizeof *p);
  XFI_CHECK_DONE(p != NULL, XFER_ERR_NOMEM, "plan");
  XFI_TRY_DONE(xfi_moves_check_number(n_tensors));
  p->n_ranks = n_ranks;
  p->rank = rank;
  p->options = *options;
  p->n_tensors = n_tensors;
  XFI_TRY_DONE(add_tensors(p, tensors));
  for (size_t c = 0; c < p->n_classes; c++)
    XFI_TRY_DONE(check_class(p, &p->classes[c]));
  XFI_TRY_DONE(xfi_moves_set_order(p, options->order));
  p->options.order = NULL;
  XFI_TRY_DONE(xfi_cost_choose(p));

  *moves = p;
  p = NULL;
done:
  xfi_moves_destroy(p);
  return st;
}

xfer_status xfi_moves_create(xfi_moves **moves, int n_ranks, int rank, const xfer_tensor *tensors,
                             size_t n_tensors, const xfi_moves_options *options)
{
  xfer_status st = XFER_OK;
  xfi_moves *p = NULL;

  XFI_TRY_DONE(xfi_moves_classify(&p, n_ranks, rank, tensors, n_tensors, options));
  XFI_TRY_DONE(xfi_moves_fill(p));
  XFI_TRY_DONE(xfi_relay_fill(p));
  *moves = p;
  p = NULL;
done:
  xfi_moves_destroy(p);
  return st;
}

static void free_list(xfi_move_list *list)
{
  xfi_free(list->moves);
  xfi_free(list->peers);
  xfi_free(list->peer_bytes);
}

void xfi_moves_destroy(xfi_moves *moves)
{
  if (moves == NULL) return;
  if (moves->relay != NULL) moves->relay->tensors = NULL; /* they are the plan's */
  xfi_moves_destroy(moves->relay);
  for (size_t t = 0; moves->tensors != NULL && t < moves->n_tensors; t++) {
    xfi_free(moves->tensors[t].name);
    xfi_layout_destroy(moves->tensors[t].src);
    xfi_layout_destroy(moves->tensors[t].dst);
  }
  for (size_t c = 0; moves->classes != NULL && c < moves->n_classes; c++)
    xfi_class_free(&moves->classes[c]);
  xfi_free(moves->tensors);
  xfi_free(moves->order);
  xfi_free(moves->classes);
  free_list(&moves->sends);
  free_list(&moves->recvs);
  free_list(&moves->selfs);
  xfi_free(moves);
}
