/*
 * The contents of a tensor as a function of its name and the global index, so that every rank
 * writes and checks its own part without the others: element i, row-major in the checkpoint's
 * tensor, is the low bytes, little-endian, of splitmix64(fnv1a64(name) + i). Padding is zero.
 */
#ifndef TOOLS_REFIT_FILL_H
#define TOOLS_REFIT_FILL_H

#include <stdbool.h>
#include <xfer/refit.h>

#include "device.h"

typedef struct fill_sum {
  uint64_t wrong;  /* bytes that are not what they should be */
  uint64_t bytes;  /* checked */
  uint64_t digest; /* of the elements and their global indices, whoever holds them */
} fill_sum;

/* Told of each box that is done. */
typedef struct fill_watch {
  void (*done)(void *context, double n_bytes);
  void *context;
} fill_watch;

/* A rank's part of a tensor, and where it lies. */
typedef struct fill_job {
  const xfer_refit_tensor *tensor;
  const xfer_layout *layout;
  int rank;
  const xfer_view *view;
  const refit_device *device; /* NULL: host memory */
  const fill_watch *watch;    /* NULL: nobody */
} fill_job;

/* Both false: xfer_last_error(), no memory, or after a message of the device. */
bool fill_write(const fill_job *job);
/* Compare with what fill_write() writes, padding with zero, and add to `sum`. On a device the
 * figures but the bytes are the device's, until its sums() are asked for. */
bool fill_check(const fill_job *job, fill_sum *sum);

#endif
