/*
 * Which units meet a box: a binary tree over the units in ascending order, each node with bounds
 * around all below it. Units that are neighbours in that order are neighbours in the tensor, so few
 * nodes are visited in vain.
 */
#include <string.h>

#include "alloc.h"
#include "boxes.h"
#include "error.h"
#include "vec.h"

static int64_t *node_at(const xfer_layout *l, uint32_t node)
{
  return l->boxes->tree + (size_t)node * 2 * (size_t)l->n_dims;
}

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

xfer_status xfi_boxes_index(xfer_layout *layout)
{
  xfi_boxes *b = layout->boxes;
  const int n_dims = layout->n_dims;
  xfer_status st = XFER_OK;

  for (b->n_leaves = 1; (uint64_t)b->n_leaves * XFI_LEAF < b->n_units;)
    b->n_leaves *= 2;
  b->tree = xfi_calloc(2 * (size_t)b->n_leaves, 2 * (size_t)n_dims * sizeof *b->tree);
  XFI_CHECK(b->tree != NULL, XFER_ERR_NOMEM, "%u boxes", b->n_units);
  for (uint32_t i = 2 * b->n_leaves; i-- > 1;) {
    int64_t *node = node_at(layout, i);

    for (int d = 0; d < n_dims; d++) {
      node[d] = INT64_MAX;
      node[n_dims + d] = INT64_MIN;
    }
    if (i < b->n_leaves) {
      widen(node, node_at(layout, 2 * i), n_dims);
      widen(node, node_at(layout, 2 * i + 1), n_dims);
      continue;
    }
    for (uint64_t u = (uint64_t)(i - b->n_leaves) * XFI_LEAF, end = u + XFI_LEAF;
         u < end && u < b->n_units; u++)
      widen(node, xfi_unit_bounds(layout, (uint32_t)u), n_dims);
  }
done:
  return st;
}

static xfer_status meet_leaf(xfi_units *units, const xfer_layout *l, const int64_t *bounds,
                             uint32_t leaf)
{
  xfer_status st = XFER_OK;
  const uint64_t first = (uint64_t)leaf * XFI_LEAF;

  for (uint64_t u = first; u < first + XFI_LEAF && u < l->boxes->n_units; u++) {
    if (!xfi_bounds_meet(xfi_unit_bounds(l, (uint32_t)u), bounds, l->n_dims)) continue;
    XFI_TRY(xfi_vec_reserve(&units->at, &units->capacity, units->n + 1, sizeof *units->at));
    units->at[units->n++] = (uint32_t)u;
  }
done:
  return st;
}

xfer_status xfi_boxes_meet(xfi_units *units, const xfer_layout *layout, const int64_t *bounds)
{
  const uint32_t n_leaves = layout->boxes->n_leaves;
  xfer_status st = XFER_OK;
  uint32_t node = 1;

  while (node != 0) { /* in order; a node that is left out takes all below it along */
    if (xfi_bounds_meet(node_at(layout, node), bounds, layout->n_dims)) {
      if (node < n_leaves) {
        node *= 2;
        continue;
      }
      XFI_TRY(meet_leaf(units, layout, bounds, node - n_leaves));
    }
    while (node % 2 == 1) /* up from every right child: the root is one */
      node /= 2;
    if (node != 0) node++;
  }
done:
  return st;
}

/* ---- lists of bounds ---- */

xfer_status xfi_bounds_add(xfi_bounds *list, int n_dims, const int64_t *bounds)
{
  const size_t n_words = 2 * (size_t)n_dims;
  xfer_status st = XFER_OK;

  XFI_TRY(
      xfi_vec_reserve(&list->at, &list->capacity, (list->n + 1) * n_words + 1, sizeof *list->at));
  if (n_words > 0) memcpy(list->at + list->n * n_words, bounds, n_words * sizeof *bounds);
  list->n++;
done:
  return st;
}

/* What is left of `whole` without `bounds`, which it meets: dim by dim what lies before and after.
 */
static xfer_status add_rest(xfi_bounds *list, int n_dims, int64_t *whole, const int64_t *bounds)
{
  xfer_status st = XFER_OK;

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
done:
  return st;
}

xfer_status xfi_bounds_subtract(xfi_bounds *list, size_t from, int n_dims, const int64_t *bounds)
{
  const size_t n_words = 2 * (size_t)n_dims;
  const size_t n = list->n;
  size_t kept = from;
  xfer_status st = XFER_OK;

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
done:
  return st;
}

xfer_status xfi_boxes_read_from(xfi_bounds *list, const xfer_layout *layout, uint32_t unit)
{
  const xfi_boxes *b = layout->boxes;
  const int64_t *bounds = xfi_unit_bounds(layout, unit);
  const size_t from = list->n;
  xfer_status st = XFER_OK;
  xfi_units units = {NULL, 0, 0};

  XFI_TRY(xfi_bounds_add(list, layout->n_dims, bounds));
  if (!b->overlap) return XFER_OK;
  XFI_TRY(xfi_boxes_meet(&units, layout, bounds));
  for (size_t i = 0; i < units.n; i++)
    if (b->holders[b->first_holder[units.at[i]]] < b->holders[b->first_holder[unit]])
      XFI_TRY(
          xfi_bounds_subtract(list, from, layout->n_dims, xfi_unit_bounds(layout, units.at[i])));
done:
  xfi_free(units.at);
  return st;
}
