/* The life of a layout, where a rank is in it, and who holds a part. */
#include "alloc.h"
#include "boxes.h"
#include "cut.h"

/* Bytes that memory comes in, and how many of a row are asked for ahead. */
enum { LINE_BYTES = 64, FEW = 4 };

xfer_layout *xfi_layout_share(const xfer_layout *layout)
{
  xfer_layout *l = (xfer_layout *)layout; /* only the count changes */

  atomic_fetch_add_explicit(&l->n_refs, 1, memory_order_relaxed);
  return l;
}

/* The last byte too, wherever in a line the first is. */
static inline void fetch(const void *memory, size_t n_bytes)
{
  for (size_t at = 0; at <= n_bytes; at += LINE_BYTES)
    __builtin_prefetch((const char *)memory + at);
}

void xfi_layout_fetch(const xfer_layout *layout, int rank, int step)
{
  const xfi_boxes *b;
  size_t n_words;
  int position;

  if (step == 0) {
    fetch(layout, offsetof(xfer_layout, dims[2]));
    return;
  }
  b = layout->boxes;
  if (b == NULL) return;
  if (step == 1) {
    fetch(b, sizeof *b);
    return;
  }
  position = xfi_mesh_find(layout->mesh, rank);
  if (position < 0) return;
  n_words = 2 * (size_t)layout->n_dims;
  if (step == 2) {
    fetch(&b->first[position], sizeof *b->first);
    fetch(b->unit_bounds + b->level_first[b->n_levels - 1] * n_words,
          XFI_FAN * n_words * sizeof *b->unit_bounds);
    return;
  }
  fetch(xfi_listed_bounds(layout, (size_t)b->first[position]), FEW * n_words * sizeof *b->bounds);
  fetch(&b->listed[b->first[position]], FEW * sizeof *b->listed);
}

void xfi_layout_destroy(xfer_layout *layout)
{
  if (layout == NULL || atomic_fetch_sub_explicit(&layout->n_refs, 1, memory_order_acq_rel) > 1)
    return;
  for (int d = 0; d < layout->n_dims; d++)
    for (int c = 0; c < layout->dims[d].n_cuts; c++)
      xfi_table_destroy(layout->dims[d].cuts[c].table);
  xfi_boxes_destroy(layout->boxes);
  xfi_mesh_destroy(layout->mesh);
  xfi_free(layout);
}

/* ---- places ---- */

static int coordinate(const xfer_mesh *mesh, int position, int axis)
{
  return position / mesh->stride[axis] % mesh->shape[axis];
}

/* By placements: which replica a mesh position is, and in *first that of its part's first one. */
static int replica_at(int *first, const xfer_layout *layout, int position)
{
  const xfer_mesh *mesh = layout->mesh;
  int replica = 0;

  *first = position;
  for (int i = 0; i < layout->n_replica_axes; i++) {
    const int axis = layout->replica_axes[i];
    const int at = coordinate(mesh, position, axis);

    *first -= at * mesh->stride[axis];
    replica = replica * mesh->shape[axis] + at;
  }
  return replica;
}

bool xfi_layout_place(const xfer_layout *layout, int rank, xfi_place *place)
{
  const xfer_mesh *mesh = layout->mesh;
  const int position = xfi_mesh_find(mesh, rank);

  if (position < 0) return false;
  for (int d = 0; d < layout->n_dims; d++) {
    const xfi_dim *dim = &layout->dims[d];

    place->part[d] = 0;
    for (int c = 0; c < dim->n_cuts; c++)
      place->part[d] =
          place->part[d] * dim->cuts[c].n_coords + coordinate(mesh, position, dim->cuts[c].axis);
  }
  place->replica = replica_at(&place->number, layout, position);
  return true;
}

int64_t xfi_layout_elems(const xfer_layout *layout, int rank, const xfi_place *place)
{
  int64_t n = 1; /* what is multiplied fits: the layout was refused otherwise */

  if (layout->boxes != NULL) return xfi_boxes_elems(layout, rank);
  for (int d = 0; d < layout->n_dims; d++)
    n *= xfi_dim_length(&layout->dims[d], place->part[d]);
  return n;
}

int xfi_dim_position(const xfer_layout *layout, int dim, int64_t part)
{
  const xfi_dim *d = &layout->dims[dim];
  int position = 0;

  for (int c = d->n_cuts - 1; c >= 0; c--) {
    position += (int)(part % d->cuts[c].n_coords) * layout->mesh->stride[d->cuts[c].axis];
    part /= d->cuts[c].n_coords;
  }
  return position;
}

/* ---- parts ---- */

int xfi_part_n_replicas(const xfer_layout *layout, uint32_t part)
{
  return layout->boxes == NULL ? layout->n_replicas : layout->boxes->parts[part].n_replicas;
}

bool xfi_layout_has_replicas(const xfer_layout *layout)
{
  if (layout->boxes != NULL) return layout->boxes->has_replicas;
  return layout->n_replicas > 1 && layout->n_elems > 0;
}

int xfi_part_first(const xfer_layout *layout, uint32_t part)
{
  return layout->boxes == NULL ? (int)part : layout->boxes->parts[part].first;
}

int xfi_part_rank(const xfer_layout *layout, uint32_t part, int replica)
{
  const xfer_mesh *mesh = layout->mesh;
  int position = xfi_part_first(layout, part);

  if (layout->boxes != NULL && replica > 0)
    position = layout->boxes->positions[layout->boxes->parts[part].at + (uint32_t)replica];
  for (int i = layout->n_replica_axes - 1; i >= 0; i--) {
    const int axis = layout->replica_axes[i];

    position += replica % mesh->shape[axis] * mesh->stride[axis];
    replica /= mesh->shape[axis];
  }
  return mesh->ranks[position];
}

int xfi_part_replica(const xfer_layout *layout, uint32_t part, int rank)
{
  const int position = xfi_mesh_find(layout->mesh, rank);
  int first;
  int replica;

  if (position < 0) return -1;
  if (layout->boxes != NULL) return xfi_boxes_replica(layout->boxes, part, position);
  replica = replica_at(&first, layout, position);
  return first == (int)part ? replica : -1;
}
