/* What one rank of xfer_refit does: memory, plan, runs, check. */
#ifndef TOOLS_REFIT_RANK_H
#define TOOLS_REFIT_RANK_H

#include <stdbool.h>
#include <stdint.h>
#include <xfer/refit.h>

#include "device.h"

/* What is moved, the same on every rank. */
typedef struct refit_case {
  int n_ranks;
  const xfer_tensor *tensors; /* [n_tensors] */
  size_t n_tensors;
  const xfer_refit *refit; /* NULL: tensors[0] alone, from a problem line */
  uint64_t names;          /* tensors by their names outside */
  uint64_t payload_bytes;  /* of these */
  uint64_t misc_bytes;     /* of these, what no rule places: whole to every rank that serves */
  bool partial;            /* a part of a local tensor may be no tensor's, and stays as it is */
} refit_case;

typedef struct refit_options {
  xfer_plan_options plan;
  int64_t iters;
  int64_t corrupt;            /* destination bytes to flip after the last run */
  const char *dump;           /* folder for the destinations; NULL: none */
  const char *dump_train;     /* and for the sources */
  const char *trace;          /* the file of spans, which the library writes; NULL: none */
  const refit_device *device; /* of the comm; NULL: host memory */
} refit_options;

/* Figures of all ranks together. */
typedef struct refit_result {
  uint64_t moved_bytes;
  uint64_t wrong_bytes;
  uint64_t checked_bytes;
  uint64_t sum; /* of all elements and their indices on every rank that has them */
  double ms;    /* median over the runs of the slowest rank's time */
  double plan_ms;
} refit_result;

enum { REFIT_ERROR_BYTES = 640 };

/*
 * Collective. False on every rank if any failed; `error` then has the first failed rank's sentence.
 */
bool refit_rank(xfer_comm *comm, const refit_case *what, const refit_options *options,
                refit_result *result, char *error);

#endif
