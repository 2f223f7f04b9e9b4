/* What a rank holds: its runs multiplied out, or its boxes. */
#include "held.h"

#include "alloc.h"
#include "boxes.h"
#include "error.h"
#include "vec.h"

/* Another one, to be filled. */
static xfer_status add(xfi_held **held, xfi_held_list *list)
{
  XFI_TRY(xfi_vec_reserve(&list->at, &list->capacity, list->n + 1, sizeof *list->at));
  *held = &list->at[list->n++];
  return XFER_OK;
}

static xfer_status add_placed(xfi_held_list *list, const xfer_layout *l, const xfi_place *place,
                              bool once)
{
  const int n = l->n_dims;
  xfer_status st = XFER_OK;
  xfi_runs runs[XFER_MAX_DIMS] = {{NULL, 0, 0}};
  size_t at[XFER_MAX_DIMS] = {0};
  xfi_held *held;
  int d;

  for (d = 0; d < n; d++) {
    XFI_TRY_DONE((once ? xfi_dim_runs_once : xfi_dim_runs)(&l->dims[d], place->part[d], &runs[d]));
    if (runs[d].n == 0) goto done;
  }
  do {
    XFI_TRY_DONE(add(&held, list));
    held->part = (uint32_t)place->number;
    held->replica = place->replica;
    held->unit = XFI_NO_UNIT;
    for (d = 0; d < n; d++) {
      const xfer_run *run = &runs[d].at[at[d]];

      held->bounds[d] = run->global;
      held->bounds[n + d] = run->global + run->length;
      held->local[d] = run->local;
    }
    for (d = n - 1; d >= 0 && ++at[d] == runs[d].n; d--)
      at[d] = 0;
  } while (d >= 0);
done:
  for (d = 0; d < n; d++)
    xfi_free(runs[d].at);
  return st;
}

/* Of a listed box what lies in `bounds`. */
static xfer_status add_of(xfi_held_list *list, const xfer_layout *l, size_t listed,
                          const int64_t *bounds)
{
  const xfi_listed *box = &l->boxes->listed[listed];
  const int64_t *given = xfi_listed_bounds(l, listed);
  const int n = l->n_dims;
  xfi_held *held;

  XFI_TRY(add(&held, list));
  held->part = box->part;
  held->replica = box->replica;
  held->unit = box->unit;
  for (int d = 0; d < n; d++) {
    held->bounds[d] = bounds[d];
    held->bounds[n + d] = bounds[n + d];
    held->local[d] = bounds[d] - given[d] + (d == 0 ? box->row : 0);
  }
  return XFER_OK;
}

static xfer_status add_boxes(xfi_held_list *list, const xfer_layout *l, int rank, bool once)
{
  const size_t n_words = 2 * (size_t)l->n_dims;
  xfer_status st = XFER_OK;
  xfi_bounds read = {NULL, 0, 0};
  size_t first;
  const size_t n = xfi_boxes_of(&first, l, rank);

  for (size_t i = first; i < first + n; i++) {
    int64_t clipped[2 * XFER_MAX_DIMS];

    if (!xfi_listed_clip(clipped, l, i)) continue;
    if (!once || !l->boxes->overlap) {
      XFI_TRY_DONE(add_of(list, l, i, clipped));
      continue;
    }
    read.n = 0;
    XFI_TRY_DONE(xfi_boxes_read_from(&read, l, l->boxes->listed[i].unit));
    for (size_t k = 0; k < read.n; k++)
      XFI_TRY_DONE(add_of(list, l, i, read.at + k * n_words));
  }
done:
  xfi_free(read.at);
  return st;
}

xfer_status xfi_layout_held(xfi_held_list *list, const xfer_layout *layout, int rank, bool once)
{
  xfi_place place;

  if (!xfi_layout_place(layout, rank, &place)) return XFER_OK;
  return layout->boxes == NULL ? add_placed(list, layout, &place, once)
                               : add_boxes(list, layout, rank, once);
}
