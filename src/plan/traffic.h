/* What every rank of a plan gets from whom, in time that does not grow with the number of tensors.
 */
#ifndef XFI_TRAFFIC_H
#define XFI_TRAFFIC_H

#include "moves_types.h"

typedef struct xfi_traffic_row {
  int rank; /* the rank that receives */
  uint64_t in_bytes;
  uint64_t zero_bytes;
  xfer_traffic *from; /* [n] the sources, which may include the rank itself */
  size_t n;
} xfi_traffic_row;

/* False: no further ranks are wanted. The plan has classes and no moves. */
typedef bool (*xfi_traffic_fn)(void *context, const xfi_moves *moves, const xfi_traffic_row *row);

/* Calls fn for every rank, ascending. */
xfer_status xfi_traffic(int n_ranks, const xfer_tensor *tensors, size_t n_tensors,
                        const xfi_moves_options *options, xfi_traffic_fn fn, void *context);

#endif
