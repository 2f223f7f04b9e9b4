/* The one tensor of a --problem line. */
#ifndef TOOLS_PROBLEM_H
#define TOOLS_PROBLEM_H

#include <xfer/xfer.h>

/* All zero: nothing made. */
typedef struct problem {
  xfer_layout *src, *dst;
  xfer_tensor tensor; /* of these, "problem"; where their dtypes differ it is cast */
  int n_ranks;        /* all up to the highest of a mesh */
} problem;

/* 0, or the status to end with, after a sentence. */
int problem_create(problem *out, const char *line);
void problem_destroy(problem *made);

#endif
