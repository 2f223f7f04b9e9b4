#include "problem.h"

#include <stdlib.h>
#include <string.h>

#include "args.h"

/* Raises *n_ranks above the ranks of a layout. False: no memory. */
static bool count_ranks(int *n_ranks, const xfer_layout *layout)
{
  int *ranks = malloc((size_t)xfer_layout_ranks(layout, NULL) * sizeof *ranks);

  if (ranks == NULL) return false;
  for (int n = xfer_layout_ranks(layout, ranks), i = 0; i < n; i++)
    if (ranks[i] >= *n_ranks) *n_ranks = ranks[i] + 1;
  free(ranks);
  return true;
}

int problem_create(problem *out, const char *line)
{
  problem made = {.n_ranks = 0};
  const xfer_status st = xfer_problem_parse(&made.src, &made.dst, line);

  if (st == XFER_ERR_NOMEM) return args_failed("%s", xfer_last_error());
  if (st != XFER_OK) return args_wrong("--problem: %s", xfer_last_error());
  if (!count_ranks(&made.n_ranks, made.src) || !count_ranks(&made.n_ranks, made.dst)) {
    problem_destroy(&made);
    return args_failed("no memory for the ranks of the problem");
  }
  const bool cast = xfer_layout_dtype(made.src) != xfer_layout_dtype(made.dst);
  made.tensor = (xfer_tensor){"problem", made.src, made.dst, {0}};
  if (cast) made.tensor.conversion = xfer_convert_cast();
  *out = made;
  return 0;
}

void problem_destroy(problem *made)
{
  xfer_layout_destroy(made->src);
  xfer_layout_destroy(made->dst);
  memset(made, 0, sizeof *made);
}
