/*
 * Slicing a box: at each dim, a partial first row, whole rows, and a partial last row; the partial
 * ones are sliced the same way one dim further in.
 */
#include "slice.h"

#include <string.h>

typedef struct slicer {
  xfi_slice *slices;
  int n;
  const int64_t *length;
  int n_dims;
  int64_t first;                /* of the whole slice: offsets count from here */
  int64_t start[XFER_MAX_DIMS]; /* of the row that is being sliced */
} slicer;

/* Rows [lo, hi) of dim d, whole; `at` is their first element. d == n_dims: one element. */
static void add_rows(slicer *s, int d, int64_t lo, int64_t hi, int64_t at)
{
  xfi_slice *slice = &s->slices[s->n++];

  memset(slice, 0, sizeof *slice);
  for (int k = 0; k < s->n_dims; k++) {
    slice->start[k] = k < d ? s->start[k] : 0;
    slice->length[k] = k < d ? 1 : s->length[k];
  }
  if (d < s->n_dims) {
    slice->start[d] = lo;
    slice->length[d] = hi - lo;
  }
  slice->offset = at - s->first;
}

/* Elements [first, end) of the box that dims d.. span, which starts at element `base`. */
static void slice_dim(slicer *s, int d, int64_t base, int64_t first, int64_t end)
{
  int64_t row = 1;
  int64_t lo;
  int64_t hi;

  if (first >= end) return;
  if (d == s->n_dims) {
    add_rows(s, d, 0, 1, first);
    return;
  }
  for (int k = d + 1; k < s->n_dims; k++)
    row *= s->length[k];
  lo = (first - base) / row; /* row of the first element */
  hi = (end - base) / row;   /* first row that is not whole */
  s->start[d] = lo;
  if (base + lo * row < first) {
    const int64_t next = base + (lo + 1) * row;

    slice_dim(s, d + 1, base + lo * row, first, next < end ? next : end);
    lo++;
  }
  if (lo < hi) add_rows(s, d, lo, hi, base + lo * row);
  if (lo <= hi && base + hi * row < end) {
    s->start[d] = hi;
    slice_dim(s, d + 1, base + hi * row, base + hi * row, end);
  }
}

int xfi_slice_box(xfi_slice *slices, const int64_t *length, int n_dims, int64_t first, int64_t end)
{
  slicer s = {slices, 0, length, n_dims, first, {0}};

  slice_dim(&s, 0, 0, first, end);
  return s.n;
}
