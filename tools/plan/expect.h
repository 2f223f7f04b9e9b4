#ifndef XFER_TOOLS_PLAN_EXPECT_H
#define XFER_TOOLS_PLAN_EXPECT_H

#include <stdbool.h>
#include <xfer/refit.h>

/* Prints the local tensors of `rank`; 1 after an error, which is in xfer_last_error(). */
int plan_expect(const xfer_refit *refit, int rank);

#endif
