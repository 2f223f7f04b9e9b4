/* Plans of two ranks on the simulated machine, whose tensors go from one rank to the other. */
#ifndef TWO_RANKS_H
#define TWO_RANKS_H

#include "world.h"

#include <stdio.h>
#include <stdlib.h>

enum { MIB = 1 << 20 };
static const char BATCH[] = "cuMemcpyBatchAsync";

/* A tensor that goes from one rank to the other, and where it lies on this one. */
typedef struct part {
  const char *line; /* NULL: the layouts are given */
  int from;
  xfer_view view;
  xfer_layout *layouts[2];
} part;

/* Bound, and not committed. */
static inline xfer_plan *plan_of(int rank, part *parts, size_t n)
{
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor *tensors = calloc(n, sizeof *tensors);
  char(*names)[24] = calloc(n, sizeof *names);
  xfer_plan *plan = NULL;

  NEED(tensors != NULL && names != NULL);
  for (size_t i = 0; i < n; i++) {
    part *p = &parts[i];

    (void)snprintf(names[i], sizeof names[i], "t%zu", i);
    if (p->line != NULL) OK(xfer_problem_parse(&p->layouts[0], &p->layouts[1], p->line));
    tensors[i] = (xfer_tensor){.name = names[i], .src = p->layouts[0], .dst = p->layouts[1]};
  }
  options.lane = XFER_LANE_DIRECT;
  OK(xfer_plan_create(&plan, w.comms[rank], tensors, n, &options));
  for (size_t i = 0; i < n; i++)
    OK(xfer_plan_bind(plan, i, rank == parts[i].from ? &parts[i].view : NULL,
                      rank == parts[i].from ? NULL : &parts[i].view));
  free(tensors);
  free(names);
  return plan;
}

static inline void plan_end(xfer_plan *plan, part *parts, size_t n)
{
  ranks_barrier();
  xfer_plan_destroy(plan);
  for (size_t i = 0; i < 2 * n; i++)
    xfer_layout_destroy(parts[i / 2].layouts[i % 2]);
}

/* Ranks of one process pull what goes at once: that of the rank that comes to a run last. */
static inline xfer_status run_last(int last, int rank, xfer_plan *plan, uint64_t version,
                                   cudaStream_t stream)
{
  xfer_status st = XFER_OK;

  ranks_barrier();
  if (rank != last) st = xfer_plan_run(plan, version, stream);
  ranks_barrier();
  return rank == last ? xfer_plan_run(plan, version, stream) : st;
}

/* Two ranks of a driver that has all but `lacks`. */
static inline void go(void (*work)(int rank), const char *lacks)
{
  world_make(2, COMM_GATHER, (sim_config){.eager = true, .lacks = lacks});
  world_go(work);
  world_destroy();
}

#endif
