/* What a rank holds and counts: runs multiplied out, or what its boxes are read for. */
#include "held.h"

#include "alloc.h"
#include "boxes.h"
#include "class.h"
#include "error.h"
#include "vec.h"

void xfi_held_list_free(xfi_held_list *list)
{
  xfi_free(list->at);
  *list = (xfi_held_list){NULL, 0, 0};
}

static xfer_status add(xfi_held_list *list, const xfi_held *held)
{
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_vec_reserve(&list->at, &list->capacity, list->n + 1, sizeof *list->at));
  list->at[list->n++] = *held;
done:
  return st;
}

/* The product of runs[d .. n_dims), the dims before d being set. */
static xfer_status add_product(xfi_held_list *list, xfi_held *held, const xfi_runs *runs, int d,
                               int n_dims)
{
  xfer_status st = XFER_OK;

  if (d == n_dims) return add(list, held);
  for (size_t i = 0; i < runs[d].n; i++) {
    held->lo[d] = runs[d].at[i].global;
    held->length[d] = runs[d].at[i].length;
    held->local[d] = runs[d].at[i].local;
    XFI_TRY(add_product(list, held, runs, d + 1, n_dims));
  }
done:
  return st;
}

static xfer_status add_placed(xfi_held_list *list, const xfer_layout *layout, const xfi_place *at)
{
  xfer_status st = XFER_OK;
  xfi_held held = {{0}, {0}, {0}};
  xfi_runs runs[XFER_MAX_DIMS] = {{NULL, 0, 0}};

  for (int d = 0; d < layout->n_dims; d++)
    XFI_TRY(xfi_part_runs(&layout->dims[d], at->part[d], true, &runs[d]));
  XFI_TRY(add_product(list, &held, runs, 0, layout->n_dims));
done:
  for (int d = 0; d < layout->n_dims; d++)
    xfi_runs_free(&runs[d]);
  return st;
}

static xfer_status add_listed(xfi_held_list *list, const xfer_layout *layout, size_t listed)
{
  const int n_dims = layout->n_dims;
  const int64_t *given = xfi_listed_bounds(layout, listed);
  xfer_status st = XFER_OK;
  xfi_bounds bounds = {NULL, 0, 0};

  XFI_TRY(xfi_boxes_read_from(&bounds, layout, layout->boxes->listed[listed].unit));
  for (size_t i = 0; i < bounds.n; i++) {
    const int64_t *b = bounds.at + i * 2 * (size_t)n_dims;
    xfi_held held = {{0}, {0}, {0}};

    for (int d = 0; d < n_dims; d++) {
      held.lo[d] = b[d];
      held.length[d] = b[n_dims + d] - b[d];
      held.local[d] = b[d] - given[d] + (d == 0 ? layout->boxes->listed[listed].row : 0);
    }
    XFI_TRY(add(list, &held));
  }
done:
  xfi_free(bounds.at);
  return st;
}

static xfer_status add_boxes(xfi_held_list *list, const xfer_layout *layout, int rank,
                             uint32_t turn)
{
  xfer_status st = XFER_OK;
  size_t first;
  const size_t n = xfi_boxes_of(&first, layout, rank);

  for (size_t i = first; i < first + n; i++) {
    const uint32_t unit = layout->boxes->listed[i].unit;
    uint32_t part;

    if (unit == XFI_NO_UNIT) continue;
    part = layout->boxes->part_of[unit];
    if (xfi_part_replica(layout, part, rank) ==
        (int)(turn % (uint32_t)xfi_part_n_replicas(layout, part)))
      XFI_TRY(add_listed(list, layout, i));
  }
done:
  return st;
}

xfer_status xfi_layout_held(xfi_held_list *list, const xfer_layout *layout, int rank, uint32_t turn)
{
  xfi_place place;

  if (xfi_mesh_find(layout->mesh, rank) < 0) return XFER_OK;
  if (layout->boxes != NULL) return add_boxes(list, layout, rank, turn);
  (void)xfi_layout_place(layout, rank, &place);
  if (place.replica != (int)(turn % (uint32_t)layout->n_replicas)) return XFER_OK;
  return add_placed(list, layout, &place);
}
