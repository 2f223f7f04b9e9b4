/* A rank's part of a tensor, in any view, as boxes to fill and to check. */
#ifndef PERF_PART_H
#define PERF_PART_H

#include "fill_box.h"

#include <xfer/xfer.h>

typedef enum perf_op { PERF_FILL, PERF_CHECK } perf_op;

/*
 * Fill, or check and add to *wrong, the elements of `layout` that `rank` holds where `view` says.
 * Both 0, or -1 with a message on stderr.
 */
int perf_part(perf_op op, const xfer_layout *layout, int rank, const xfer_view *view, uint64_t seed,
              unsigned long long *wrong, xfer_stream stream);

/*
 * The same where the tensor is part of a larger one: `strides`, in elements, of its dims there.
 * NULL: as above. `number_bytes` as in fill.h. Adds the bytes that it visits to *n_bytes unless
 * that is NULL.
 */
int perf_part_of(perf_op op, const xfer_layout *layout, int rank, const xfer_view *view,
                 uint64_t seed, const int64_t *strides, int number_bytes, unsigned long long *wrong,
                 uint64_t *n_bytes, xfer_stream stream);

/* Bytes of a rank's part; 0 where it has none. Its shape in `shape` unless that is NULL. */
size_t perf_part_bytes(const xfer_layout *layout, int rank, int64_t *shape);

#endif
