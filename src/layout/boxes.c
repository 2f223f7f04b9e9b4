/*
 * What is asked of a layout by boxes; and which units meet a box: a tree over the units in
 * ascending order, each node with bounds around those below it. Units that are neighbours in that
 * order are neighbours in the tensor, so few nodes are visited in vain.
 */
#include "boxes.h"

#include <string.h>

#include "alloc.h"
#include "error.h"
#include "vec.h"

void xfi_boxes_destroy(xfi_boxes *boxes)
{
  if (boxes == NULL) return;
  xfi_free(boxes->first);
  xfi_free(boxes->bounds);
  xfi_free(boxes->listed);
  xfi_free(boxes->unit_bounds);
  xfi_free(boxes->first_holder);
  xfi_free(boxes->holders);
  xfi_free(boxes->part_of);
  xfi_free(boxes->parts);
  xfi_free(boxes->positions);
  xfi_free(boxes);
}

size_t xfi_boxes_of(size_t *first, const xfer_layout *layout, int rank)
{
  const int64_t *at = layout->boxes->first + xfi_mesh_find(layout->mesh, rank);

  *first = (size_t)at[0];
  return (size_t)(at[1] - at[0]);
}

bool xfi_boxes_stack(int64_t *shape, const xfer_layout *layout, int rank)
{
  const int n_dims = layout->n_dims;
  size_t first;
  const size_t n = xfi_boxes_of(&first, layout, rank);

  for (int d = 0; d < n_dims; d++)
    shape[d] = 0;
  for (size_t i = first; i < first + n; i++) {
    const int64_t *b = xfi_listed_bounds(layout, i);

    for (int d = 0; d < n_dims; d++) {
      const int64_t length = b[n_dims + d] - b[d];

      if (d > 0 && i > first && shape[d] != length) return false;
      shape[d] = d == 0 ? shape[0] + length : length;
    }
  }
  return n_dims > 0 || n > 0;
}

int64_t xfi_boxes_elems(const xfer_layout *layout, int rank)
{
  int64_t n = 0;
  size_t first;

  for (size_t i = xfi_boxes_of(&first, layout, rank); i-- > 0;)
    n += xfi_bounds_elems(xfi_listed_bounds(layout, first + i), layout->n_dims);
  return n;
}

int xfi_boxes_replica(const xfi_boxes *boxes, uint32_t part, int position)
{
  const xfi_part *p = &boxes->parts[part];
  const uint32_t end = p->at + (uint32_t)p->n_replicas;
  uint32_t lo = p->at + 1;
  uint32_t hi = end;

  if (position <= p->first) return position == p->first ? 0 : -1;
  XFI_BISECT(lo, hi, mid, boxes->positions[mid] < position);
  return lo < end && boxes->positions[lo] == position ? (int)(lo - p->at) : -1;
}

size_t xfi_boxes_listed(const xfer_layout *layout, uint32_t unit, int rank)
{
  const xfi_boxes *b = layout->boxes;
  const int replica = xfi_boxes_replica(b, b->part_of[unit], xfi_mesh_find(layout->mesh, rank));

  return b->holders[b->first_holder[unit] + (uint32_t)replica];
}

/* ---- the tree ---- */

static void widen(int64_t *bounds, const int64_t *by, int n_dims)
{
  for (int d = 0; d < n_dims; d++) {
    if (by[d] < bounds[d]) bounds[d] = by[d];
    if (by[n_dims + d] > bounds[n_dims + d]) bounds[n_dims + d] = by[n_dims + d];
  }
}

bool xfi_bounds_meet(const int64_t *a, const int64_t *b, int n_dims)
{
  for (int d = 0; d < n_dims; d++)
    if (a[d] >= b[n_dims + d] || b[d] >= a[n_dims + d]) return false;
  return true;
}

size_t xfi_boxes_levels(xfi_boxes *boxes, uint32_t n_units)
{
  uint32_t n = n_units;

  for (boxes->n_levels = 1;; boxes->n_levels++) {
    boxes->level_first[boxes->n_levels] = boxes->level_first[boxes->n_levels - 1] + n;
    if (n <= XFI_FAN) return boxes->level_first[boxes->n_levels];
    n = (n + XFI_FAN - 1) / XFI_FAN;
  }
}

void xfi_boxes_index(xfer_layout *layout)
{
  xfi_boxes *b = layout->boxes;
  const size_t n_words = 2 * (size_t)layout->n_dims;

  for (int level = 1; level < b->n_levels; level++) {
    const int64_t *from = b->unit_bounds + b->level_first[level - 1] * n_words;
    int64_t *to = b->unit_bounds + b->level_first[level] * n_words;
    const size_t n = b->level_first[level] - b->level_first[level - 1];

    for (size_t i = 0; i < n; i++)
      if (i % XFI_FAN == 0)
        memcpy(to + i / XFI_FAN * n_words, from + i * n_words, n_words * sizeof *to);
      else
        widen(to + i / XFI_FAN * n_words, from + i * n_words, layout->n_dims);
  }
}

/* Append the units below the nodes of a level from `first` on, that are below one or the top. */
static xfer_status meet_nodes(xfi_units *units, const xfer_layout *l, const int64_t *bounds,
                              int level, size_t first)
{
  const xfi_boxes *b = l->boxes;
  const size_t n_words = 2 * (size_t)l->n_dims;
  const size_t n = b->level_first[level + 1] - b->level_first[level];
  const size_t end = first + XFI_FAN < n ? first + XFI_FAN : n;
  const int64_t *at = b->unit_bounds + (b->level_first[level] + first) * n_words;

  for (size_t i = first; i < end; i++, at += n_words) {
    if (n_words > 0 && at[0] >= bounds[l->n_dims]) break; /* none of the others begins before */
    if (!xfi_bounds_meet(at, bounds, l->n_dims)) continue;
    if (level > 0) {
      XFI_TRY(meet_nodes(units, l, bounds, level - 1, i * XFI_FAN));
      continue;
    }
    XFI_TRY(XFI_APPEND(units->at, units->n, units->capacity, (uint32_t)i));
  }
  return XFER_OK;
}

xfer_status xfi_boxes_meet(xfi_units *units, const xfer_layout *layout, const int64_t *bounds)
{
  return meet_nodes(units, layout, bounds, layout->boxes->n_levels - 1, 0);
}

/* ---- lists of bounds ---- */

int64_t xfi_bounds_elems(const int64_t *bounds, int n_dims)
{
  int64_t n = 1;

  for (int d = 0; d < n_dims; d++)
    n *= bounds[n_dims + d] - bounds[d];
  return n;
}

xfer_status xfi_bounds_add(xfi_bounds *list, int n_dims, const int64_t *bounds)
{
  const size_t n_words = 2 * (size_t)n_dims;

  XFI_TRY(
      xfi_vec_reserve(&list->at, &list->capacity, (list->n + 1) * n_words + 1, sizeof *list->at));
  if (n_words > 0) memcpy(list->at + list->n * n_words, bounds, n_words * sizeof *bounds);
  list->n++;
  return XFER_OK;
}

/* What is left of `whole` without `bounds`, which it meets: dim by dim what lies before and after.
 */
static xfer_status add_rest(xfi_bounds *list, int n_dims, int64_t *whole, const int64_t *bounds)
{
  for (int d = 0; d < n_dims; d++) {
    const int64_t lo = whole[d];
    const int64_t hi = whole[n_dims + d];

    if (lo < bounds[d]) {
      whole[n_dims + d] = bounds[d];
      XFI_TRY(xfi_bounds_add(list, n_dims, whole));
      whole[n_dims + d] = hi;
      whole[d] = bounds[d];
    }
    if (hi > bounds[n_dims + d]) {
      whole[d] = bounds[n_dims + d];
      XFI_TRY(xfi_bounds_add(list, n_dims, whole));
      whole[d] = lo > bounds[d] ? lo : bounds[d];
      whole[n_dims + d] = bounds[n_dims + d];
    }
  }
  return XFER_OK;
}

xfer_status xfi_bounds_subtract(xfi_bounds *list, size_t from, int n_dims, const int64_t *bounds)
{
  const size_t n_words = 2 * (size_t)n_dims;
  const size_t n = list->n;
  size_t kept = from;

  for (size_t i = from; i < n; i++) {
    int64_t whole[2 * XFER_MAX_DIMS] = {0};

    memcpy(whole, list->at + i * n_words, n_words * sizeof *whole);
    if (xfi_bounds_meet(whole, bounds, n_dims)) {
      XFI_TRY(add_rest(list, n_dims, whole, bounds));
      continue;
    }
    memmove(list->at + kept * n_words, whole, n_words * sizeof *whole);
    kept++;
  }
  if (list->n > n)
    memmove(list->at + kept * n_words, list->at + n * n_words,
            (list->n - n) * n_words * sizeof *list->at);
  list->n = kept + (list->n - n);
  return XFER_OK;
}

xfer_status xfi_boxes_read_from(xfi_bounds *list, const xfer_layout *layout, uint32_t unit)
{
  const xfi_boxes *b = layout->boxes;
  const int64_t *bounds = xfi_unit_bounds(layout, unit);
  const size_t from = list->n;
  xfer_status st = XFER_OK;
  xfi_units units = {NULL, 0, 0};

  XFI_TRY_DONE(xfi_bounds_add(list, layout->n_dims, bounds));
  if (!b->overlap) return XFER_OK;
  XFI_TRY_DONE(xfi_boxes_meet(&units, layout, bounds));
  for (size_t i = 0; i < units.n; i++)
    if (b->holders[b->first_holder[units.at[i]]] < b->holders[b->first_holder[unit]])
      XFI_TRY_DONE(
          xfi_bounds_subtract(list, from, layout->n_dims, xfi_unit_bounds(layout, units.at[i])));
done:
  xfi_free(units.at);
  return st;
}
