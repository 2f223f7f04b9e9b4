#ifndef XFER_TOOLS_PLAN_EXPECT_H
#define XFER_TOOLS_PLAN_EXPECT_H

#include <stdbool.h>
#include <xfer/refit.h>

/* Prints the local tensors of `ranks`, "A-B" or "A"; the exit status. */
int plan_expect(const xfer_refit *refit, const char *ranks);

#endif
