/* Making a layout by boxes. The idea is in boxes.h. */
#include "boxes.h"

#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "error.h"
#include "intern.h"
#include "options.h"
#include "slice.h"
#include "vec.h"

/* ---- what is given ---- */

/* A listed box is one, and with those before it on its rank takes `bytes`. */
static xfer_status check_box(const xfer_layout *l, const int64_t *b, int rank, int64_t i,
                             int64_t *bytes)
{
  int64_t n = l->elem_bytes;
  bool fits = true;

  for (int d = 0; d < l->n_dims; d++) {
    const int64_t lo = b[d];
    const int64_t hi = b[l->n_dims + d];

    XFI_CHECK(lo >= 0 && lo <= hi && hi <= INT64_MAX / 2, XFER_ERR_SHAPE,
              "box %lld of rank %d runs from %lld to %lld in dim %d; want 0 <= lo <= hi < 2^62",
              (long long)i, rank, (long long)lo, (long long)hi, d);
    fits = fits && xfi_imul_fits(n, hi > lo ? hi - lo : 1, &n);
  }
  XFI_CHECK(fits && xfi_iadd_fits(n, *bytes, bytes) && *bytes <= INT64_MAX / 2, XFER_ERR_OVERFLOW,
            "the boxes of rank %d up to box %lld: their bytes do not fit in 62 bits", rank,
            (long long)i);
  return XFER_OK;
}

static xfer_status copy_given(xfer_layout *l, const xfer_boxes_desc *desc)
{
  const int n_ranks = l->mesh->size;
  const size_t n_words = 2 * (size_t)l->n_dims;
  xfi_boxes *b = l->boxes;
  size_t n;

  XFI_CHECK(desc->first != NULL, XFER_ERR_ARG,
            "boxes: first is NULL; it says where each rank's boxes begin");
  XFI_CHECK(desc->first[0] == 0, XFER_ERR_ARG, "boxes: first does not begin at 0");
  for (int p = 0; p < n_ranks; p++)
    XFI_CHECK(desc->first[p] <= desc->first[p + 1], XFER_ERR_ARG,
              "boxes: first[%d] is below first[%d]", p + 1, p);
  XFI_CHECK(desc->first[n_ranks] < INT32_MAX, XFER_ERR_ARG, "%lld boxes in one layout",
            (long long)desc->first[n_ranks]);
  n = (size_t)desc->first[n_ranks];
  XFI_CHECK(n * n_words == 0 || desc->bounds != NULL, XFER_ERR_ARG, "%zu boxes at NULL", n);
  b->first = xfi_calloc((size_t)n_ranks + 1, sizeof *b->first);
  b->bounds = xfi_calloc(n * n_words, sizeof *b->bounds);
  b->listed = xfi_calloc(n, sizeof *b->listed);
  XFI_CHECK(b->first != NULL && b->bounds != NULL && b->listed != NULL, XFER_ERR_NOMEM, "%zu boxes",
            n);
  memcpy(b->first, desc->first, ((size_t)n_ranks + 1) * sizeof *b->first);
  if (n * n_words > 0) memcpy(b->bounds, desc->bounds, n * n_words * sizeof *b->bounds);
  for (int p = 0; p < n_ranks; p++) {
    int64_t row = 0;
    int64_t bytes = 0;

    XFI_CHECK(l->n_dims > 0 || b->first[p + 1] - b->first[p] <= 1, XFER_ERR_UNSUPPORTED,
              "rank %d has %lld boxes of a scalar; 0 or 1 are possible", l->mesh->ranks[p],
              (long long)(b->first[p + 1] - b->first[p]));
    for (int64_t i = b->first[p]; i < b->first[p + 1]; i++) {
      const int64_t *box = xfi_listed_bounds(l, (size_t)i);

      XFI_TRY(check_box(l, box, l->mesh->ranks[p], i - b->first[p], &bytes));
      b->listed[i].row = row;
      if (l->n_dims == 0) continue;
      row += box[l->n_dims] - box[0]; /* at most as many as bytes */
    }
  }
  return XFER_OK;
}

/* ---- units ---- */

/* A listed box that is not empty, clipped. */
typedef struct key {
  const int64_t *bounds;
  uint32_t n_words;
  uint32_t listed;
  uint32_t copy; /* how many equal ones its rank has listed before */
  uint32_t unit;
} key;

static int by_bounds(const void *a, const void *b)
{
  const key *x = a;
  const key *y = b;

  for (uint32_t w = 0; w < x->n_words; w++)
    if (x->bounds[w] != y->bounds[w]) return x->bounds[w] < y->bounds[w] ? -1 : 1;
  if (x->copy != y->copy) return x->copy < y->copy ? -1 : 1;
  return (x->listed > y->listed) - (x->listed < y->listed);
}

static bool is_same_box(const key *a, const key *b)
{
  return a->n_words == 0 || memcmp(a->bounds, b->bounds, a->n_words * sizeof *a->bounds) == 0;
}

/* Clip every listed box into `clipped` and sort those that are left. */
static size_t make_keys(key *keys, int64_t *clipped, const xfer_layout *l, const uint32_t *position)
{
  const xfi_boxes *b = l->boxes;
  const int n_dims = l->n_dims;
  bool copies = false;
  size_t n = 0;

  for (size_t i = 0; i < (size_t)b->first[l->mesh->size]; i++) {
    int64_t *c = clipped + n * 2 * (size_t)n_dims;

    b->listed[i].unit = XFI_NO_UNIT;
    if (xfi_listed_clip(c, l, i)) keys[n++] = (key){c, 2 * (uint32_t)n_dims, (uint32_t)i, 0, 0};
  }
  xfi_sort(keys, n, sizeof *keys, by_bounds);
  for (size_t i = 1; i < n; i++) {
    if (!is_same_box(&keys[i - 1], &keys[i])) continue;
    if (position[keys[i].listed] == position[keys[i - 1].listed])
      keys[i].copy = keys[i - 1].copy + 1;
    copies = copies || keys[i].copy > 0;
  }
  if (copies) xfi_sort(keys, n, sizeof *keys, by_bounds);
  for (size_t i = 1; i < n; i++)
    keys[i].unit = keys[i - 1].unit +
                   (keys[i].copy != keys[i - 1].copy || !is_same_box(&keys[i - 1], &keys[i]));
  return n;
}

static xfer_status fill_units(xfer_layout *l, const key *keys, size_t n)
{
  xfi_boxes *b = l->boxes;
  const size_t n_words = 2 * (size_t)l->n_dims;

  b->n_units = n == 0 ? 0 : keys[n - 1].unit + 1;
  b->unit_bounds = xfi_calloc(xfi_boxes_levels(b, b->n_units), n_words * sizeof *b->unit_bounds);
  b->first_holder = xfi_calloc((size_t)b->n_units + 1, sizeof *b->first_holder);
  b->holders = xfi_calloc(n, sizeof *b->holders);
  b->part_of = xfi_calloc(b->n_units, sizeof *b->part_of);
  XFI_CHECK(b->unit_bounds != NULL && b->first_holder != NULL && b->holders != NULL &&
                b->part_of != NULL,
            XFER_ERR_NOMEM, "%zu boxes", n);
  for (size_t i = 0; i < n; i++) {
    const uint32_t unit = keys[i].unit;
    xfi_listed *listed = &b->listed[keys[i].listed];

    if (n_words > 0)
      memcpy(b->unit_bounds + unit * n_words, keys[i].bounds, n_words * sizeof *b->bounds);
    b->holders[i] = keys[i].listed;
    b->first_holder[unit + 1] = (uint32_t)i + 1;
    listed->unit = unit;
    listed->replica = (int)((uint32_t)i - b->first_holder[unit]);
    l->n_held += (double)xfi_bounds_elems(keys[i].bounds, l->n_dims);
  }
  xfi_boxes_index(l);
  return XFER_OK;
}

/* ---- parts ---- */

/* Units with equal holders get one part, in the order of their first unit. */
static xfer_status fill_parts(xfi_boxes *b, const uint32_t *position)
{
  const size_t n = b->first_holder[b->n_units];
  xfer_status st = XFER_OK;
  xfi_interned known = {0}; /* lists of positions */
  uint32_t end = 0;         /* of the positions so far */

  XFI_TRY_DONE(xfi_interned_create(&known, b->n_units));
  b->parts = xfi_calloc(b->n_units, sizeof *b->parts);
  b->positions = xfi_calloc(n, sizeof *b->positions);
  XFI_CHECK_DONE(b->parts != NULL && b->positions != NULL, XFER_ERR_NOMEM, "%u boxes", b->n_units);
  for (uint32_t u = 0; u < b->n_units; u++) {
    int *at = b->positions + end; /* of a new part, if it is one */
    const size_t n_at = b->first_holder[u + 1] - b->first_holder[u];

    for (size_t i = 0; i < n_at; i++)
      at[i] = (int)position[b->holders[b->first_holder[u] + i]];
    b->part_of[u] = xfi_intern_bytes(&known, at, n_at * sizeof *at);
    if (b->part_of[u] == b->n_parts) {
      b->parts[b->n_parts++] = (xfi_part){end, (int)n_at, at[0]};
      b->has_replicas = b->has_replicas || n_at > 1;
      end += (uint32_t)n_at;
    }
    for (size_t i = 0; i < n_at; i++)
      b->listed[b->holders[b->first_holder[u] + i]].part = b->part_of[u];
  }
done:
  xfi_interned_free(&known);
  return st;
}

/* ---- overlaps ---- */

/* Do units share elements? Those of a flat cut, and others that are split along dim 0, end before
 * the next one begins, in row-major order; only where some do not is the tree asked. */
static xfer_status find_overlaps(xfer_layout *l)
{
  xfi_boxes *b = l->boxes;
  xfer_status st = XFER_OK;
  xfi_units units = {NULL, 0, 0};
  int64_t end = -1; /* flat index of the last element so far */
  bool ordered = true;

  for (uint32_t u = 0; u < b->n_units && ordered; u++) {
    const int64_t *at = xfi_unit_bounds(l, u);
    int64_t first = 0;
    int64_t last = 0;

    for (int d = 0; d < l->n_dims; d++) {
      first = first * l->dims[d].size + at[d];
      last = last * l->dims[d].size + at[l->n_dims + d] - 1;
    }
    ordered = first > end;
    if (last > end) end = last;
  }
  for (uint32_t u = 0; u < b->n_units && !ordered && !b->overlap; u++) {
    units.n = 0;
    XFI_TRY_DONE(xfi_boxes_meet(&units, l, xfi_unit_bounds(l, u)));
    b->overlap = units.n > 1;
  }
done:
  xfi_free(units.at);
  return st;
}

static xfer_status make_units(xfer_layout *l)
{
  const xfi_boxes *b = l->boxes;
  const size_t n = (size_t)b->first[l->mesh->size];
  xfer_status st = XFER_OK;
  key *keys = xfi_calloc(n, sizeof *keys);
  int64_t *clipped = xfi_calloc(n, 2 * (size_t)l->n_dims * sizeof *clipped);
  uint32_t *position = xfi_calloc(n, sizeof *position); /* of each listed box */

  XFI_CHECK_DONE(keys != NULL && clipped != NULL && position != NULL, XFER_ERR_NOMEM, "%zu boxes",
                 n);
  for (int p = 0; p < l->mesh->size; p++)
    for (int64_t i = b->first[p]; i < b->first[p + 1]; i++)
      position[i] = (uint32_t)p;
  XFI_TRY_DONE(fill_units(l, keys, make_keys(keys, clipped, l, position)));
  XFI_TRY_DONE(fill_parts(l->boxes, position));
  XFI_TRY_DONE(find_overlaps(l));
done:
  xfi_free(keys);
  xfi_free(clipped);
  xfi_free(position);
  return st;
}

/* ---- making one ---- */

/* The ranks in a row; NULL: rank 0 stands for the one that is not known. */
static xfer_status row_of_ranks(xfer_mesh **row, const xfer_mesh *mesh)
{
  if (mesh == NULL) return xfi_mesh_create(row, &(int){1}, 1, NULL);
  if (mesh->n_axes > 1) return xfi_mesh_create(row, &mesh->size, 1, mesh->ranks);
  *row = xfi_mesh_share(mesh);
  return XFER_OK;
}

xfer_status xfi_layout_create_boxes(xfer_layout **layout, const xfer_boxes_desc *given)
{
  xfer_status st = XFER_OK;
  xfer_boxes_desc desc;
  xfer_layout_desc base = XFER_LAYOUT_DESC_INIT;
  xfer_mesh *mesh = NULL;
  xfer_layout *l = NULL;

  XFI_TRY_DONE(XFI_OPTIONS_COPY(&desc, given, xfer_boxes_desc, bounds));
  XFI_TRY_DONE(row_of_ranks(&mesh, desc.mesh));
  base.mesh = mesh;
  base.dtype = desc.dtype;
  base.n_dims = desc.n_dims;
  base.shape = desc.shape;
  XFI_TRY_DONE(xfi_layout_begin(&l, &base));
  l->boxes = xfi_calloc(1, sizeof *l->boxes);
  XFI_CHECK_DONE(l->boxes != NULL, XFER_ERR_NOMEM, "boxes");
  l->is_own = desc.mesh == NULL;
  XFI_TRY_DONE(copy_given(l, &desc));
  XFI_TRY_DONE(xfi_layout_end(l));
  XFI_TRY_DONE(make_units(l));

  *layout = l;
  l = NULL;
done:
  xfi_mesh_destroy(mesh);
  xfi_layout_destroy(l);
  return st;
}

/* ---- flat ranges ---- */

xfer_status xfi_bounds_add_flat(xfi_bounds *list, int n_dims, const int64_t *shape, int64_t begin,
                                int64_t end)
{
  xfi_slice slices[XFI_MAX_SLICES];
  int64_t box[2 * XFER_MAX_DIMS] = {0};
  int64_t n_elems = 1;
  int64_t from; /* of the padding, one box past the shape */
  int64_t stop; /* of what is no padding */
  int n;

  for (int d = 0; d < n_dims; d++) {
    XFI_CHECK(shape[d] >= 0, XFER_ERR_SHAPE, "dim %d: size %lld", d, (long long)shape[d]);
    XFI_CHECK(xfi_imul_fits(n_elems, shape[d], &n_elems), XFER_ERR_OVERFLOW, "dim %d: size %lld", d,
              (long long)shape[d]);
  }
  from = begin > n_elems ? begin : n_elems;
  XFI_CHECK(begin >= 0 && begin <= end && end <= INT64_MAX / 2, XFER_ERR_SHAPE,
            "a flat range from %lld to %lld; want 0 <= begin <= end < 2^62", (long long)begin,
            (long long)end);
  stop = end < n_elems ? end : n_elems;
  n = begin < stop ? xfi_slice_box(slices, shape, n_dims, begin, stop) : 0;
  for (int i = 0; i < n; i++) {
    for (int d = 0; d < n_dims; d++) {
      box[d] = slices[i].start[d];
      box[n_dims + d] = slices[i].start[d] + slices[i].length[d];
    }
    XFI_TRY(xfi_bounds_add(list, n_dims, box));
  }
  if (end <= from) return XFER_OK;
  XFI_CHECK(n_dims > 0, XFER_ERR_UNSUPPORTED, "a flat range past the end of a scalar");
  for (int d = 0; d < n_dims; d++) {
    box[d] = d == 0 ? shape[0] : 0;
    XFI_CHECK(xfi_iadd_fits(box[d], 1, &box[n_dims + d]), XFER_ERR_OVERFLOW,
              "a flat range past the end of a dim of %lld", (long long)shape[0]);
  }
  box[2 * n_dims - 1] = box[n_dims - 1] + (end - from);
  return xfi_bounds_add(list, n_dims, box);
}

xfer_status xfi_layout_create_flat(xfer_layout **layout, const xfer_boxes_desc *given)
{
  xfer_status st = XFER_OK;
  xfer_boxes_desc desc;
  xfi_bounds list = {NULL, 0, 0};
  int64_t *first = NULL;
  size_t n_ranks;

  XFI_TRY_DONE(XFI_OPTIONS_COPY(&desc, given, xfer_boxes_desc, bounds));
  XFI_CHECK_DONE(desc.n_dims >= 0 && desc.n_dims <= XFER_MAX_DIMS, XFER_ERR_ARG,
                 "a tensor of %d dims; 0 to %d are possible", (int)desc.n_dims, XFER_MAX_DIMS);
  XFI_CHECK_DONE(desc.bounds != NULL && (desc.n_dims == 0 || desc.shape != NULL), XFER_ERR_ARG,
                 "flat ranges: %s is NULL", desc.bounds == NULL ? "bounds" : "shape");
  XFI_CHECK_DONE(desc.first == NULL, XFER_ERR_ARG,
                 "flat ranges: first is not NULL; bounds has one range for each rank");
  n_ranks = desc.mesh == NULL ? 1 : (size_t)desc.mesh->size;
  first = xfi_calloc(n_ranks + 1, sizeof *first);
  XFI_CHECK_DONE(first != NULL, XFER_ERR_NOMEM, "%zu ranks", n_ranks);
  for (size_t r = 0; r < n_ranks; r++) {
    XFI_TRY_DONE(xfi_bounds_add_flat(&list, desc.n_dims, desc.shape, desc.bounds[2 * r],
                                     desc.bounds[2 * r + 1]));
    first[r + 1] = (int64_t)list.n;
  }
  desc.first = first;
  desc.bounds = list.at;
  XFI_TRY_DONE(xfi_layout_create_boxes(layout, &desc));
done:
  xfi_free(list.at);
  xfi_free(first);
  return st;
}
