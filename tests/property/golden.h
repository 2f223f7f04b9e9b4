/* Reading of tests/data/golden_1d.h. */
#ifndef GOLDEN_H
#define GOLDEN_H

#include <stdint.h>
#include <stdlib.h>

#include "data/golden_1d.h"

enum { N_GOLDEN = sizeof golden_1d / sizeof golden_1d[0], GOLDEN_MOST = 64 };

/* The indices of `rank`: returns how many there are. */
static inline int golden_indices(const golden *g, int rank, int64_t *index)
{
  const char *at = g->indices;
  int n = 0;
  for (int r = 0; r < rank; at++)
    r += *at == '/';
  while (*at != '\0' && *at != '/') {
    char *end;
    int64_t last;
    int64_t first = strtoll(at, &end, 10);
    last = *end == '-' ? strtoll(end + 1, &end, 10) : first;
    for (int64_t i = first; i <= last && n < GOLDEN_MOST; i++)
      index[n++] = i;
    at = *end == ' ' ? end + 1 : end;
  }
  return n;
}

#endif
