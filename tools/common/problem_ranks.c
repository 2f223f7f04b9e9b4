#include "problem_ranks.h"

#include <stdlib.h>
#include <string.h>

/* The highest rank of a list "0-7,9,20-30/5", which ends at ':'. */
static int64_t last_rank(const char *at)
{
  int64_t last = 0;

  while (*at != ':') {
    char *end = NULL;
    int64_t step = 1;
    const int64_t first = strtoll(at, &end, 10);
    int64_t stop = *end == '-' ? strtoll(end + 1, &end, 10) : first;

    if (*end == '/') step = strtoll(end + 1, &end, 10);
    stop -= (stop - first) % step;
    if (stop > last) last = stop;
    at = *end == ',' ? end + 1 : end;
  }
  return last;
}

int64_t problem_ranks(const char *line)
{
  int64_t n_ranks = 0;

  for (const char *at = strchr(line, '('); at != NULL; at = strchr(at, '(')) {
    int64_t n = 1;

    while (*at != ')') {
      char *end = NULL;
      n *= strtoll(at + 1, &end, 10);
      at = end;
    }
    if (at[1] == '@') n = last_rank(at + 2) + 1;
    if (n > n_ranks) n_ranks = n;
  }
  return n_ranks;
}
