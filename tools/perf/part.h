/* A rank's part of a tensor, in any view, as boxes to fill and to check. */
#ifndef PERF_PART_H
#define PERF_PART_H

#include "fill_box.h"

#include <xfer/xfer.h>

typedef enum perf_op { PERF_FILL, PERF_CHECK } perf_op;

/* What a tensor holds. */
typedef struct perf_content {
  uint64_t seed;
  const int64_t *strides; /* in elements, of its dims in the tensor that it is a part of; NULL: it
                             is whole */
  fill_change change;
  int64_t extent[2]; /* with blocks: as in fill_box.h */
} perf_content;

/*
 * Fill, or check and add to *wrong, the elements of `layout` that `rank` holds where `view` says.
 * Adds the bytes of the part, padding included, to *n_bytes unless that is NULL. 0, or -1 with a
 * message on stderr.
 */
int perf_part(perf_op op, const xfer_layout *layout, int rank, const xfer_view *view,
              const perf_content *content, unsigned long long *wrong, uint64_t *n_bytes,
              xfer_stream stream);

/* Bytes of a rank's part; 0 where it has none. Its shape in `shape` unless that is NULL. */
size_t perf_part_bytes(const xfer_layout *layout, int rank, int64_t *shape);

#endif
