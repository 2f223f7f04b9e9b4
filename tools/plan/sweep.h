/* What if: the generation layouts that fit a number of GPUs, each planned, best first. */
#ifndef TOOLS_PLAN_SWEEP_H
#define TOOLS_PLAN_SWEEP_H

#include "plan.h"

/* Returns the status to end with. */
int plan_sweep(const plan_args *args);

#endif
