/* The ways a careful user moves a model without the library: broadcasts, then slicing. */
#ifndef PERF_BASE_H
#define PERF_BASE_H

#include "case.h"

typedef enum perf_base_way {
  BASE_PER_EXPERT, /* one ncclBroadcast per expert's tensor */
  BASE_PER_TENSOR, /* one per tensor of each training rank */
  BASE_PACKED      /* tensors packed in buckets of 1 GiB, one broadcast each */
} perf_base_way;

/* A row; `ratio` is how often `reference_ms` goes into its time. The case has no padding, which no
 * way here would zero. Collective. */
void perf_base(perf_world *w, const perf_case *c, perf_base_way way, const char *name,
               double reference_ms, double bar);

#endif
