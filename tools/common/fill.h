/*
 * A rank's part of a tensor, filled and checked box by box, so that every rank writes and checks
 * its own without the others; what elements are is in fill_box.h, i being their row-major index in
 * the checkpoint's tensor. Padding is zero.
 */
#ifndef TOOLS_FILL_H
#define TOOLS_FILL_H

#include <stdbool.h>
#include <xfer/refit.h>

#include "fill_host.h"

/* What does it to boxes that are not in host memory. Both false: after a message on stderr. */
typedef struct fill_device {
  bool (*fill)(void *context, const fill_box *box);
  bool (*check)(void *context, const fill_box *box, bool zero); /* counts what is wrong */
  void *context;
} fill_device;

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
  const xfer_view *view;     /* of boxes each is dense */
  const fill_device *device; /* NULL: host memory */
  const fill_watch *watch;   /* NULL: nobody */
} fill_job;

/* Bytes of a rank's part; 0 where it has none, or boxes that do not stack. Its shape in `shape`
 * unless that is NULL. */
size_t fill_part_bytes(const xfer_layout *layout, int rank, int64_t *shape);
/* A tensor that is all that has its name, of the layout's shape. */
xfer_refit_tensor fill_whole(const char *name, const xfer_layout *layout);
/* What tensor `t` of an array holds as a source, or must hold where it goes: tensor, change, extent
 * and layout. Of a refit's array the refit tells the tensor, into *info, for as long as the job is
 * in use; `refit` NULL: all are whole. False: it cannot be said. */
bool fill_job_of(fill_job *job, xfer_refit_tensor *info, const xfer_refit *refit,
                 const xfer_tensor *tensors, size_t t, bool is_source);

/* Both false: xfer_last_error(), no memory, or after a message of the device. */
bool fill_write(const fill_job *job);
/* Compare with what fill_write() writes, padding with zero, and add to `sum`. On a device the
 * figures but the bytes are the device's to count. */
bool fill_check(const fill_job *job, fill_sum *sum);

#endif
