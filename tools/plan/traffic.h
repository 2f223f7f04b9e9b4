/* What all ranks of a plan send and receive. */
#ifndef TOOLS_PLAN_TRAFFIC_H
#define TOOLS_PLAN_TRAFFIC_H

#include "plan.h"

typedef struct plan_traffic {
  xfer_plan_report_data *ranks; /* [n_ranks] */
  xfer_traffic *pairs;          /* [n_pairs] by receiver; only if asked for */
  size_t n_pairs;
  size_t capacity;
  double *seconds; /* [n_ranks] predicted time of a run */
  bool *guesses;   /* [n_ranks] something that was never measured is in that time */
  bool guessed;    /* in that of some rank */
} plan_traffic;

/* False: after a sentence on stderr, or after an interrupt. */
bool plan_traffic_find(plan_traffic *traffic, const plan_whole *whole, bool pairs);
void plan_traffic_free(plan_traffic *traffic);

#endif
