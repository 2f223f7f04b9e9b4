/*
 * The contents of a tensor as a function of its name and the global index, so that every rank
 * writes and checks its own part without the others: element i, row-major in the checkpoint's
 * tensor, is the low bytes, little-endian, of splitmix64(fnv1a64(name) + i). Padding is zero.
 */
#ifndef TOOLS_REFIT_FILL_H
#define TOOLS_REFIT_FILL_H

#include <stdbool.h>
#include <xfer/refit.h>

typedef struct fill_sum {
  uint64_t wrong;  /* bytes that are not what they should be */
  uint64_t bytes;  /* checked */
  uint64_t digest; /* of the elements and their global indices, whoever holds them */
} fill_sum;

/* Told of each stretch that is done. */
typedef struct fill_watch {
  void (*done)(void *context, double n_bytes);
  void *context;
} fill_watch;

/* Write a rank's part of a tensor; `watch` (NULL: nobody) is told of its bytes. False:
 * xfer_last_error() or no memory. */
bool fill_write(const xfer_refit_tensor *tensor, const xfer_layout *layout, int rank,
                const xfer_view *view, const fill_watch *watch);
/* Compare a rank's part with what fill_write() writes, padding with zero, and add to `sum`. */
bool fill_check(const xfer_refit_tensor *tensor, const xfer_layout *layout, int rank,
                const xfer_view *view, fill_sum *sum, const fill_watch *watch);

#endif
