#ifndef XFER_TOOLS_PLAN_EXPECT_H
#define XFER_TOOLS_PLAN_EXPECT_H

#include <stdbool.h>
#include <xfer/refit.h>

/* Prints the local tensors of `rank`; the exit status. */
int plan_expect(const xfer_refit *refit, int rank);

#endif
