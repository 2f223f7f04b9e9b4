/*
 * A rank's part of a tensor, filled and checked box by box, so that every rank writes and checks
 * its own without the others; what elements are is in ../common/fill_box.h, i being their row-major
 * index in the checkpoint's tensor. Padding is zero.
 */
#ifndef TOOLS_REFIT_FILL_H
#define TOOLS_REFIT_FILL_H

#include <stdbool.h>
#include <xfer/refit.h>

#include "../common/fill_host.h"
#include "device.h"

/* Told of each box that is done. */
typedef struct fill_watch {
  void (*done)(void *context, double n_bytes);
  void *context;
} fill_watch;

/* A rank's part of a tensor, and where it lies. */
typedef struct fill_job {
  const xfer_refit_tensor *tensor; /* whose numbers they are: of scales the weights */
  fill_change change;
  int64_t extent[2]; /* of its last two dims */
  const xfer_layout *layout;
  int rank;
  const xfer_view *view;      /* of boxes each is dense */
  const refit_device *device; /* NULL: host memory */
  const fill_watch *watch;    /* NULL: nobody */
} fill_job;

/* Both false: xfer_last_error(), no memory, or after a message of the device. */
bool fill_write(const fill_job *job);
/* Compare with what fill_write() writes, padding with zero, and add to `sum`. On a device the
 * figures but the bytes are the device's, until its sums() are asked for. */
bool fill_check(const fill_job *job, fill_sum *sum);

#endif
