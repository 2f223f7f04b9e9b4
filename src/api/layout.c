/*
 * The public functions of meshes, layouts, dtypes and problem lines: they check arguments and call
 * src/layout. None of them involves another rank.
 */
#include "layout.h"

#include <string.h>

#include "alloc.h"
#include "boxes.h"
#include "dtype.h"
#include "error.h"
#include "problem.h"
#include "vec.h"

xfer_status xfer_mesh_create(xfer_mesh **mesh, const int *shape, int n_axes, const int *ranks)
{
  XFI_NEED(mesh);
  XFI_NEED(shape);
  return xfi_mesh_create(mesh, shape, n_axes, ranks);
}

void xfer_mesh_destroy(xfer_mesh *mesh)
{
  xfi_mesh_destroy(mesh);
}

int xfer_mesh_size(const xfer_mesh *mesh)
{
  return mesh == NULL ? 0 : mesh->size;
}

size_t xfer_dtype_size(xfer_dtype dtype)
{
  return xfi_dtype_size((int)dtype);
}

const char *xfer_dtype_name(xfer_dtype dtype)
{
  return xfi_dtype_name((int)dtype);
}

xfer_status xfer_dtype_parse(xfer_dtype *dtype, const char *name)
{
  XFI_NEED(dtype);
  XFI_NEED(name);
  return xfi_dtype_parse(dtype, name);
}

xfer_status xfer_layout_create(xfer_layout **layout, const xfer_layout_desc *desc)
{
  XFI_NEED(layout);
  XFI_NEED(desc);
  return xfi_layout_create(layout, desc);
}

xfer_status xfer_layout_create_boxes(xfer_layout **layout, const xfer_boxes_desc *desc)
{
  XFI_NEED(layout);
  XFI_NEED(desc);
  return xfi_layout_create_boxes(layout, desc);
}

xfer_status xfer_layout_create_flat(xfer_layout **layout, const xfer_boxes_desc *desc)
{
  XFI_NEED(layout);
  XFI_NEED(desc);
  return xfi_layout_create_flat(layout, desc);
}

void xfer_layout_destroy(xfer_layout *layout)
{
  xfi_layout_destroy(layout);
}

xfer_dtype xfer_layout_dtype(const xfer_layout *layout)
{
  return layout == NULL ? (xfer_dtype)0 : layout->dtype;
}

int xfer_layout_shape(const xfer_layout *layout, int64_t *shape)
{
  if (layout == NULL) return 0;
  for (int d = 0; shape != NULL && d < layout->n_dims; d++)
    shape[d] = layout->dims[d].size;
  return layout->n_dims;
}

int xfer_layout_ranks(const xfer_layout *layout, int *ranks)
{
  if (layout == NULL) return 0;
  if (ranks != NULL) memcpy(ranks, layout->mesh->ranks, (size_t)layout->mesh->size * sizeof *ranks);
  return layout->mesh->size;
}

static xfer_status find_place(const xfer_layout *layout, int rank, xfi_place *place)
{
  XFI_CHECK(xfi_layout_place(layout, rank, place), XFER_ERR_ARG, "rank %d is not in the mesh",
            rank);
  return XFER_OK;
}

xfer_status xfer_layout_local_shape(const xfer_layout *layout, int rank, int64_t *shape)
{
  xfi_place place;
  int64_t stacked[XFER_MAX_DIMS];

  XFI_NEED(layout);
  XFI_NEED_WHERE(layout->n_dims > 0, shape);
  XFI_TRY(find_place(layout, rank, &place));
  if (layout->boxes != NULL) {
    XFI_CHECK(xfi_boxes_stack(stacked, layout, rank) || layout->n_dims == 0, XFER_ERR_UNSUPPORTED,
              "the boxes of rank %d have no common shape", rank);
    for (int d = 0; d < layout->n_dims; d++)
      shape[d] = stacked[d];
    return XFER_OK;
  }
  for (int d = 0; d < layout->n_dims; d++)
    shape[d] = xfi_dim_length(&layout->dims[d], place.part[d]);
  return XFER_OK;
}

size_t xfer_layout_local_bytes(const xfer_layout *layout, int rank)
{
  xfi_place place;

  if (layout == NULL || !xfi_layout_place(layout, rank, &place)) return 0;
  return (size_t)xfi_layout_elems(layout, rank, &place) * (size_t)layout->elem_bytes;
}

/* Element number `at` of all boxes of a rank, which has that many; -1 in a dim past the shape. */
static void global_in_boxes(int64_t *index, const xfer_layout *layout, int rank, int64_t at)
{
  const int n = layout->n_dims;
  const int64_t *box;
  size_t i;

  (void)xfi_boxes_of(&i, layout, rank);
  for (box = xfi_listed_bounds(layout, i); at >= xfi_bounds_elems(box, n); box += 2 * (size_t)n)
    at -= xfi_bounds_elems(box, n);
  for (int d = n - 1; d >= 0; d--) {
    const int64_t length = box[n + d] - box[d];

    index[d] = box[d] + at % length;
    if (index[d] >= layout->dims[d].size) index[d] = -1;
    at /= length;
  }
}

/* Finds the index in the tensor of element `at` of a part, for a layout by placements. */
static void global_in_part(int64_t *index, const xfer_layout *layout, const xfi_place *place,
                           int64_t at)
{
  for (int d = layout->n_dims - 1; d >= 0; d--) {
    const int64_t length = xfi_dim_length(&layout->dims[d], place->part[d]);

    index[d] = xfi_dim_global(&layout->dims[d], place->part[d], at % length);
    at /= length;
  }
}

xfer_status xfer_layout_global_index(const xfer_layout *layout, int rank, int64_t element,
                                     int64_t *index)
{
  xfi_place place;
  int64_t n_elems;
  bool is_zero = false;

  XFI_NEED(layout);
  XFI_NEED_WHERE(layout->n_dims > 0, index);
  XFI_TRY(find_place(layout, rank, &place));
  n_elems = xfi_layout_elems(layout, rank, &place);
  XFI_CHECK(element >= 0 && element < n_elems, XFER_ERR_ARG,
            "element %lld of rank %d, whose part has %lld", (long long)element, rank,
            (long long)n_elems);
  if (layout->boxes != NULL)
    global_in_boxes(index, layout, rank, element);
  else
    global_in_part(index, layout, &place, element);
  for (int d = 0; d < layout->n_dims; d++)
    is_zero = is_zero || index[d] < 0;
  for (int d = 0; d < layout->n_dims && is_zero; d++)
    index[d] = -1;
  return XFER_OK;
}

/* The run of the only box of a rank; what lies past the shape is none. */
static xfer_status run_of_box(xfi_runs *runs, const xfer_layout *layout, int rank, int dim)
{
  size_t i;
  const size_t n = xfi_boxes_of(&i, layout, rank);
  const int64_t *b = xfi_listed_bounds(layout, i);
  int64_t hi;

  XFI_CHECK(n <= 1, XFER_ERR_UNSUPPORTED, "rank %d has %zu boxes", rank, n);
  if (n == 0) return XFER_OK;
  hi = b[layout->n_dims + dim];
  if (hi > layout->dims[dim].size) hi = layout->dims[dim].size;
  if (b[dim] >= hi) return XFER_OK;
  return XFI_APPEND(runs->at, runs->n, runs->capacity, (xfer_run){b[dim], hi - b[dim], 0});
}

xfer_status xfer_layout_runs(const xfer_layout *layout, int rank, int dim, xfer_run *runs,
                             size_t capacity, size_t *n_runs)
{
  xfer_status st = XFER_OK;
  xfi_place place;
  xfi_runs found = {NULL, 0, 0};

  XFI_NEED(layout);
  XFI_NEED(n_runs);
  XFI_NEED_WHERE(capacity > 0, runs);
  XFI_CHECK_DONE(dim >= -layout->n_dims && dim < layout->n_dims, XFER_ERR_ARG,
                 "dim %d of a tensor of %d dims; dims count from 0, or from the end as -1", dim,
                 layout->n_dims);
  XFI_TRY_DONE(find_place(layout, rank, &place));
  if (dim < 0) dim += layout->n_dims;
  if (layout->boxes != NULL)
    XFI_TRY_DONE(run_of_box(&found, layout, rank, dim));
  else
    XFI_TRY_DONE(xfi_dim_runs(&layout->dims[dim], place.part[dim], &found));
  if (found.n > 0 && capacity > 0)
    memcpy(runs, found.at, (found.n < capacity ? found.n : capacity) * sizeof *runs);
  *n_runs = found.n;
done:
  xfi_free(found.at);
  return st;
}

/* Lists the first boxes of a part of a layout by placements, as many as `capacity`; *n_boxes counts
 * all of them, which may be far more. */
static xfer_status list_placed(const xfer_layout *l, const xfi_place *place, int64_t *bounds,
                               size_t capacity, size_t *n_boxes)
{
  const int n = l->n_dims;
  xfi_runs runs[XFER_MAX_DIMS] = {{NULL, 0, 0}};
  size_t at[XFER_MAX_DIMS] = {0};
  size_t n_all = 1; /* of each at least one element: their number fits, as that of bytes does */
  xfer_status st = XFER_OK;

  for (int d = 0; d < n; d++) {
    XFI_TRY_DONE(xfi_dim_runs(&l->dims[d], place->part[d], &runs[d]));
    n_all *= runs[d].n;
    if (n_all == 0) break;
  }
  for (size_t i = 0; i < n_all && i < capacity; i++) {
    int64_t *box = bounds + i * 2 * (size_t)n;

    for (int d = 0; d < n; d++) {
      box[d] = runs[d].at[at[d]].global;
      box[n + d] = box[d] + runs[d].at[at[d]].length;
    }
    for (int d = n - 1; d >= 0 && ++at[d] == runs[d].n; d--)
      at[d] = 0;
  }
  *n_boxes = n_all;
done:
  for (int d = 0; d < n; d++)
    xfi_free(runs[d].at);
  return st;
}

xfer_status xfer_layout_boxes(const xfer_layout *layout, int rank, int64_t *bounds, size_t capacity,
                              size_t *n_boxes)
{
  xfi_place place;
  size_t first = 0;
  size_t n;

  XFI_NEED(layout);
  XFI_NEED(n_boxes);
  XFI_NEED_WHERE(capacity > 0, bounds);
  XFI_TRY(find_place(layout, rank, &place));
  if (layout->boxes == NULL) return list_placed(layout, &place, bounds, capacity, n_boxes);
  n = xfi_boxes_of(&first, layout, rank);
  if (n > 0 && capacity > 0 && layout->n_dims > 0)
    memcpy(bounds, xfi_listed_bounds(layout, first),
           (n < capacity ? n : capacity) * 2 * (size_t)layout->n_dims * sizeof *bounds);
  *n_boxes = n;
  return XFER_OK;
}

/* Every listed box that holds the index. */
static xfer_status list_box_owners(const xfer_layout *layout, const int64_t *index,
                                   xfer_owner *owners, size_t capacity, size_t *n)
{
  const xfi_boxes *b = layout->boxes;
  int64_t bounds[2 * XFER_MAX_DIMS];
  xfer_status st = XFER_OK;
  xfi_units units = {NULL, 0, 0};

  for (int d = 0; d < layout->n_dims; d++) {
    bounds[d] = index[d];
    bounds[layout->n_dims + d] = index[d] + 1;
  }
  XFI_TRY_DONE(xfi_boxes_meet(&units, layout, bounds));
  for (size_t u = 0; u < units.n; u++) {
    const uint32_t unit = units.at[u];
    const uint32_t first = b->first_holder[unit];

    for (uint32_t h = first; h < b->first_holder[unit + 1]; h++, ++*n) {
      xfer_owner owner = {{0}, xfi_part_rank(layout, b->part_of[unit], (int)(h - first)), 0};
      const int64_t *given = xfi_listed_bounds(layout, b->holders[h]);

      for (int d = 0; d < layout->n_dims; d++)
        owner.local[d] = index[d] - given[d] + (d == 0 ? b->listed[b->holders[h]].row : 0);
      if (*n < capacity) owners[*n] = owner;
    }
  }
done:
  xfi_free(units.at);
  return st;
}

/* Lists the owners of an index: each combination of one hold per dim is a part, and each of its
 * replicas is an owner. */
static void list_owners(const xfer_layout *layout, const xfi_holds *holds, xfer_owner *owners,
                        size_t capacity, size_t *n)
{
  size_t at[XFER_MAX_DIMS] = {0};
  int d;

  do {
    xfer_owner owner = {{0}, 0, 0};
    uint32_t part = 0;

    for (d = 0; d < layout->n_dims; d++) {
      part += (uint32_t)xfi_dim_position(layout, d, holds[d].at[at[d]].part);
      owner.local[d] = holds[d].at[at[d]].local;
    }
    for (int r = 0; r < layout->n_replicas; r++, ++*n) {
      owner.rank = xfi_part_rank(layout, part, r);
      if (*n < capacity) owners[*n] = owner;
    }
    for (d = layout->n_dims - 1; d >= 0 && ++at[d] == holds[d].n; d--)
      at[d] = 0;
  } while (d >= 0);
}

xfer_status xfer_layout_owners(const xfer_layout *layout, const int64_t *index, xfer_owner *owners,
                               size_t capacity, size_t *n_owners)
{
  xfer_status st = XFER_OK;
  xfi_holds holds[XFER_MAX_DIMS];
  bool held = true;
  size_t n = 0;

  memset(holds, 0, sizeof holds);
  XFI_NEED(layout);
  XFI_NEED_WHERE(layout->n_dims > 0, index);
  XFI_NEED_WHERE(capacity > 0, owners);
  XFI_NEED(n_owners);
  for (int d = 0; d < layout->n_dims; d++) {
    XFI_CHECK_DONE(index[d] >= 0 && index[d] < layout->dims[d].size, XFER_ERR_ARG,
                   "dim %d: index %lld lies outside the size of %lld", d, (long long)index[d],
                   (long long)layout->dims[d].size);
    if (layout->boxes != NULL) continue;
    XFI_TRY_DONE(xfi_dim_holders(&layout->dims[d], index[d], index[d] + 1, false, &holds[d]));
    held = held && holds[d].n > 0;
  }
  if (layout->boxes != NULL)
    XFI_TRY_DONE(list_box_owners(layout, index, owners, capacity, &n));
  else if (held)
    list_owners(layout, holds, owners, capacity, &n);
  *n_owners = n;
done:
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    xfi_free(holds[d].at);
  return st;
}

xfer_status xfer_layout_parse(xfer_layout **layout, const char *line)
{
  XFI_NEED(layout);
  XFI_NEED(line);
  return xfi_layout_parse(layout, line);
}

xfer_status xfer_problem_parse(xfer_layout **src, xfer_layout **dst, const char *line)
{
  XFI_NEED(src);
  XFI_NEED(dst);
  XFI_NEED(line);
  return xfi_problem_parse(src, dst, line);
}

size_t xfer_problem_format(char *text, size_t n_bytes, const xfer_layout *src,
                           const xfer_layout *dst)
{
  return xfi_problem_format(text, text == NULL ? 0 : n_bytes, src, dst);
}
