/* A growable array is a pointer, a capacity and a count, kept by its owner; this makes room. */
#ifndef XFI_VEC_H
#define XFI_VEC_H

#include <stddef.h>
#include <stdlib.h>
#include <xfer/xfer.h>

#include "plugin_api.h"

/* Makes room for `need` elements of `elem_size` bytes. `items` is the address of the owner's
 * pointer, of any type (`&list->moves`); NULL inside and *cap == 0 is an empty array. New elements
 * are zero. On failure, for which there is XFER_ERR_NOMEM alone, nothing changes. */
XFI_PLUGIN_API xfer_status xfi_vec_reserve(void *items, size_t *cap, size_t need, size_t elem_size);

/* Appends one element, which may not depend on `n`, and gives the status.
 *
 *   return XFI_APPEND(list->moves, list->n_moves, list->cap, move);
 */
#define XFI_APPEND(items, n, cap, ...)                                                             \
  (xfi_vec_reserve(&(items), &(cap), (n) + 1, sizeof *(items)) == XFER_OK                          \
       ? ((items)[(n)++] = (__VA_ARGS__), XFER_OK)                                                 \
       : XFER_ERR_NOMEM)

/* qsort(), unless the items are in order already, as most lists here are; n may be 0. */
static inline void xfi_sort(void *items, size_t n, size_t elem_size,
                            int (*compare)(const void *, const void *))
{
  const char *at = items;

  for (size_t i = 1; i < n; i++, at += elem_size) {
    if (compare(at, at + elem_size) <= 0) continue;
    qsort(items, n, elem_size, compare);
    return;
  }
}

/* Where a sorted list turns: `lo` becomes the first index from lo to `hi` for which `before`, an
 * expression of `mid`, is false, and so does `hi`.
 *
 *   XFI_BISECT(lo, hi, mid, list[mid] < wanted);
 */
#define XFI_BISECT(lo, hi, mid, before)                                                            \
  do {                                                                                             \
    while ((lo) < (hi)) {                                                                          \
      const __typeof__(lo) mid = (lo) + ((hi) - (lo)) / 2;                                         \
                                                                                                   \
      if (before)                                                                                  \
        (lo) = mid + 1;                                                                            \
      else                                                                                         \
        (hi) = mid;                                                                                \
    }                                                                                              \
  } while (0)

#endif
