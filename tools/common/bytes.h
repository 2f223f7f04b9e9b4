/* How many bytes a dense tensor has. */
#ifndef TOOLS_BYTES_H
#define TOOLS_BYTES_H

#include <stddef.h>
#include <stdint.h>

/* Of a shape whose bytes fit, as the library has checked of every layout and local tensor. */
static inline uint64_t bytes_of(const int64_t *shape, int n_dims, size_t elem_bytes)
{
  uint64_t n = elem_bytes;

  for (int d = 0; d < n_dims; d++)
    n *= (uint64_t)shape[d];
  return n;
}

#endif
