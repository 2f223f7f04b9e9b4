/* Rows that run a plan through the public functions. */
#ifndef PERF_PLAN_H
#define PERF_PLAN_H

#include "case.h"

typedef struct perf_plan_row {
  const char *name;
  uint32_t lane; /* xfer_lane */
  perf_ceiling of;
  double bar;
  bool colocated; /* compare with the slower of what the wire and the memory can do */
  bool reads_too; /* GB/s count bytes read plus written */
  uint32_t ranks_per_domain;
} perf_plan_row;

/*
 * Plan, commit, fill, run with checks and with times. Returns the milliseconds of a run; 0: the row
 * was not asked for or did not run. Collective.
 */
double perf_plan(perf_world *w, const perf_case *c, const perf_plan_row *what);
/* The time of small tensors, to a kernel that follows on the caller's stream. */
void perf_small(perf_world *w, const perf_case *c, const char *name, uint32_t lane, double bar_us);

#endif
