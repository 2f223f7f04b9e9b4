/*
 * Making a layout: every size and count is checked here, once, so that all later arithmetic is
 * safe.
 */
#include "layout.h"

#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "cut.h"
#include "dtype.h"
#include "error.h"
#include "options.h"
#include "serial.h"
#include "vec.h"

/* Most runs that one part may have: a bound on memory, far above any layout in use. */
#define MAX_STRIDED_PIECES (INT64_C(1) << 24)

/* The distinct lengths that the parts so far can have. */
typedef struct lengths {
  int64_t *at;
  size_t n;
  size_t capacity;
} lengths;

static xfer_status add_length(lengths *list, int64_t length)
{
  for (size_t i = 0; i < list->n; i++)
    if (list->at[i] == length) return XFER_OK;
  return XFI_APPEND(list->at, list->n, list->capacity, length);
}

static xfer_status check_table(const xfi_cut *cut, int dim, int64_t n)
{
  const xfi_table *t = cut->table;

  for (int64_t r = 0; r < t->first[t->n_coords]; r++)
    XFI_CHECK(t->runs[r].global + t->runs[r].length <= n, XFER_ERR_SHAPE,
              "dim %d: the run table of axis %d reaches index %lld of a part of %lld", dim,
              cut->axis, (long long)(t->runs[r].global + t->runs[r].length), (long long)n);
  return XFER_OK;
}

/* Does the cut work on every length it can meet? Leaves the lengths that it makes in `list`. SHARD
 * and STRIDED make few: their first, last and, around the end, some shorter parts. */
static xfer_status check_cut(const xfi_cut *cut, int dim, lengths *list)
{
  xfer_status st = XFER_OK;
  lengths next = {NULL, 0, 0};

  for (size_t i = 0; i < list->n; i++) {
    const int64_t n = list->at[i];

    XFI_CHECK_DONE(cut->kind != XFER_SHARD || cut->rule != XFER_EVEN || n % cut->n_coords == 0,
                   XFER_ERR_SHAPE,
                   "dim %d: EVEN split of %lld indices over the %d coordinates of axis %d", dim,
                   (long long)n, cut->n_coords, cut->axis);
    if (cut->kind == XFER_RUNS) XFI_TRY_DONE(check_table(cut, dim, n));
    XFI_CHECK_DONE(cut->kind != XFER_STRIDED || cut->split_factor <= MAX_STRIDED_PIECES ||
                       n <= MAX_STRIDED_PIECES,
                   XFER_ERR_UNSUPPORTED, "dim %d: split factor %lld makes too many pieces", dim,
                   (long long)cut->split_factor);
    for (int64_t c = 0; c < cut->n_coords; c++)
      XFI_TRY_DONE(add_length(&next, xfi_cut_length(cut, n, c)));
  }
  xfi_free(list->at);
  *list = next;
  next = (lengths){NULL, 0, 0};
done:
  xfi_free(next.at);
  return st;
}

/* All cuts of a dim; checks too that the local sizes of a table do not blow up the part. */
static xfer_status check_dim(const xfi_dim *dim, int d, int64_t *longest)
{
  xfer_status st = XFER_OK;
  lengths list = {NULL, 0, 0};

  XFI_TRY_DONE(add_length(&list, dim->padded));
  for (int c = 0; c < dim->n_cuts; c++)
    XFI_TRY_DONE(check_cut(&dim->cuts[c], d, &list));
  *longest = dim->padded;
  for (size_t i = 0; i < list.n; i++)
    if (list.at[i] > *longest) *longest = list.at[i];
done:
  xfi_free(list.at);
  return st;
}

/* `dim` of a placement in 0 .. n_dims-1. */
static xfer_status resolve_dim(int *dim, const xfer_placement *p, int axis, int n_dims)
{
  XFI_CHECK(
      p->dim >= -n_dims && p->dim < n_dims, XFER_ERR_ARG,
      "axis %d shards dim %d of a tensor of %d dims; dims count from 0, or from the end as -1",
      axis, (int)p->dim, n_dims);
  *dim = p->dim < 0 ? p->dim + n_dims : p->dim;
  return XFER_OK;
}

/* Append axis `axis` with placement p to the cuts of its dim. */
static xfer_status add_cut(xfer_layout *l, const xfer_placement *p, int axis)
{
  int dim = 0;
  xfi_cut *cut;

  XFI_CHECK(p->kind >= XFER_REPLICATE && p->kind <= XFER_RUNS, XFER_ERR_ARG,
            "axis %d has placement kind %d, which is no xfer_placement_kind", axis, (int)p->kind);
  XFI_CHECK(p->reserved == 0, XFER_ERR_ARG, "axis %d: a reserved field is not 0", axis);
  if (p->kind == XFER_REPLICATE) return XFER_OK;
  XFI_TRY(resolve_dim(&dim, p, axis, l->n_dims));
  XFI_CHECK(p->kind != XFER_SHARD || (p->rule >= XFER_CHUNK && p->rule <= XFER_EVEN), XFER_ERR_ARG,
            "axis %d has split rule %d, which is no xfer_split_rule", axis, (int)p->rule);
  XFI_CHECK(p->kind != XFER_STRIDED || p->split_factor >= 1, XFER_ERR_ARG,
            "axis %d has split factor %lld; want at least 1", axis, (long long)p->split_factor);
  cut = &l->dims[dim].cuts[l->dims[dim].n_cuts];
  memmove(cut + 1, cut, (size_t)(l->cuts + XFER_MAX_DIMS - 1 - cut) * sizeof *cut);
  for (int d = dim + 1; d < l->n_dims; d++)
    l->dims[d].cuts++;
  *cut = (xfi_cut){axis,
                   l->mesh->shape[axis],
                   p->kind,
                   p->kind == XFER_SHARD ? p->rule : 0,
                   p->kind == XFER_STRIDED ? p->split_factor : 0,
                   NULL};
  if (p->kind == XFER_RUNS) {
    XFI_CHECK(p->table != NULL, XFER_ERR_ARG,
              "axis %d has no run table: its placement's table is NULL", axis);
    XFI_CHECK(p->table->n_coords == cut->n_coords, XFER_ERR_ARG,
              "axis %d has %d coordinates, its run table %lld", axis, cut->n_coords,
              (long long)p->table->n_coords);
    XFI_TRY(xfi_table_create(&cut->table, p->table));
  }
  l->dims[dim].n_cuts++;
  l->dims[dim].n_parts *= cut->n_coords;
  return XFER_OK;
}

static xfer_status add_cuts(xfer_layout *l, const xfer_layout_desc *desc)
{
  const int n_axes = l->mesh->n_axes;
  bool seen[XFER_MAX_DIMS] = {false};

  XFI_CHECK(desc->n_placements == n_axes, XFER_ERR_ARG,
            "%d placements for a mesh of %d axes; want one for each axis", (int)desc->n_placements,
            n_axes);
  XFI_CHECK(desc->placements != NULL, XFER_ERR_ARG, "%d placements at NULL", n_axes);
  XFI_CHECK(desc->order != NULL || desc->n_order == 0, XFER_ERR_ARG, "an order of %d axes at NULL",
            (int)desc->n_order);
  XFI_CHECK(desc->order == NULL || desc->n_order == n_axes, XFER_ERR_ARG,
            "an order of %d axes for a mesh of %d; it lists every axis, or none",
            (int)desc->n_order, n_axes);
  for (int i = 0; i < n_axes; i++) {
    const int axis = desc->order == NULL ? i : desc->order[i];

    XFI_CHECK(axis >= 0 && axis < n_axes && !seen[axis], XFER_ERR_ARG,
              "the order does not list each of %d axes once: entry %d is %d", n_axes, i, axis);
    seen[axis] = true;
    XFI_TRY(add_cut(l, &desc->placements[axis], axis));
  }
  for (int axis = 0; axis < n_axes; axis++) { /* in this order, whatever that of the cuts is */
    if (desc->placements[axis].kind != XFER_REPLICATE) continue;
    l->replica_axes[l->n_replica_axes++] = axis;
    l->n_replicas *= l->mesh->shape[axis];
  }
  return XFER_OK;
}

static xfer_status set_sizes(xfer_layout *l, const xfer_layout_desc *desc)
{
  l->elem_bytes = (int)xfi_dtype_size(desc->dtype);
  XFI_CHECK(l->elem_bytes != 0, XFER_ERR_ARG, "dtype %d is not known; want an xfer_dtype",
            (int)desc->dtype);
  l->dtype = (xfer_dtype)desc->dtype;
  XFI_CHECK(desc->n_dims >= 0 && desc->n_dims <= XFER_MAX_DIMS, XFER_ERR_ARG,
            "a tensor of %d dims; 0 to %d are possible", (int)desc->n_dims, XFER_MAX_DIMS);
  XFI_CHECK(desc->n_dims == 0 || desc->shape != NULL, XFER_ERR_ARG,
            "a tensor of %d dims without a shape", (int)desc->n_dims);
  l->n_dims = desc->n_dims;
  for (int d = 0; d < l->n_dims; d++) {
    xfi_dim *dim = &l->dims[d];

    dim->size = desc->shape[d];
    dim->padded = desc->padded_shape == NULL ? dim->size : desc->padded_shape[d];
    dim->n_parts = 1;
    dim->cuts = l->cuts;
    XFI_CHECK(dim->size >= 0, XFER_ERR_SHAPE, "dim %d has size %lld", d, (long long)dim->size);
    XFI_CHECK(dim->padded >= dim->size, XFER_ERR_SHAPE,
              "dim %d has size %lld but is padded to %lld", d, (long long)dim->size,
              (long long)dim->padded);
  }
  return XFER_OK;
}

/* Bytes of the padded tensor, and of the largest local part, fit in 62 bits. */
static xfer_status check_bytes(xfer_layout *l)
{
  int64_t bytes = l->elem_bytes;
  int64_t longest;
  bool fits = true;

  l->n_elems = 1;
  for (int d = 0; d < l->n_dims; d++) {
    const int64_t padded = l->dims[d].padded > 0 ? l->dims[d].padded : 1;

    fits = fits && padded <= INT64_MAX / 2 && xfi_imul_fits(bytes, padded, &bytes) &&
           bytes <= INT64_MAX / 2;
    l->n_elems = fits ? l->n_elems * l->dims[d].size : 0;
  }
  XFI_CHECK(fits, XFER_ERR_OVERFLOW, "a tensor of %d dims whose bytes do not fit in 62 bits",
            l->n_dims);
  bytes = l->elem_bytes;
  for (int d = 0; d < l->n_dims; d++) {
    XFI_TRY(check_dim(&l->dims[d], d, &longest));
    fits =
        fits && xfi_imul_fits(bytes, longest > 0 ? longest : 1, &bytes) && bytes <= INT64_MAX / 2;
  }
  XFI_CHECK(fits, XFER_ERR_OVERFLOW, "a local part whose bytes do not fit in 62 bits");
  return XFER_OK;
}

xfer_status xfi_layout_begin(xfer_layout **layout, const xfer_layout_desc *desc)
{
  xfer_status st = XFER_OK;
  xfer_layout *l = NULL;

  XFI_CHECK_DONE(desc->mesh != NULL, XFER_ERR_ARG,
                 "a layout without a mesh: xfer_layout_desc.mesh is NULL");
  l = xfi_calloc(1, sizeof *l);
  XFI_CHECK_DONE(l != NULL, XFER_ERR_NOMEM, "layout");
  atomic_init(&l->n_refs, 1);
  l->mesh = xfi_mesh_share(desc->mesh);
  l->n_replicas = 1;
  XFI_TRY_DONE(set_sizes(l, desc));

  *layout = l;
  l = NULL;
done:
  xfi_layout_destroy(l);
  return st;
}

xfer_status xfi_layout_end(xfer_layout *layout)
{
  XFI_TRY(check_bytes(layout));
  return xfi_layout_digest(layout);
}

xfer_status xfi_layout_create(xfer_layout **layout, const xfer_layout_desc *given)
{
  xfer_status st = XFER_OK;
  xfer_layout *l = NULL;
  xfer_layout_desc desc;

  XFI_TRY_DONE(XFI_OPTIONS_COPY(&desc, given, xfer_layout_desc, order));
  XFI_TRY_DONE(xfi_layout_begin(&l, &desc));
  XFI_TRY_DONE(add_cuts(l, &desc));
  XFI_TRY_DONE(xfi_layout_end(l));

  *layout = l;
  l = NULL;
done:
  xfi_layout_destroy(l);
  return st;
}
