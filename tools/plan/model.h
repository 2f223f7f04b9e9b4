/* xfer_plan --model: the plan of a whole model. */
#ifndef TOOLS_PLAN_MODEL_H
#define TOOLS_PLAN_MODEL_H

#include "plan.h"

/* Prints to stdout what the options ask for. Returns the exit status. */
int plan_model_main(const plan_args *args);

#endif
