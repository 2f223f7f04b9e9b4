/* What the GPU tests share: a device or a skip, and CUDA calls that must not fail. */
#ifndef XFER_TEST_GPU_H
#define XFER_TEST_GPU_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

static inline void gpu_check(cudaError_t error, const char *call, const char *file, int line)
{
  if (error == cudaSuccess) return;
  print_error("%s: %s\n", call, cudaGetErrorString(error));
  _fail(file, line);
}

#define CUDA(function, arguments) gpu_check(function arguments, #function, __FILE__, __LINE__)
#define OK(call)                                                                                   \
  do {                                                                                             \
    xfer_status ok_st = (call);                                                                    \
    if (ok_st != XFER_OK) print_error("%s: %s\n", #call, xfer_last_error());                       \
    assert_int_equal(ok_st, XFER_OK);                                                              \
  } while (0)

static inline int gpu_count(void)
{
  int n = 0;

  if (cudaGetDeviceCount(&n) != cudaSuccess) return 0;
  return n;
}

/* A test skipped for lack of GPUs says so; run.sh turns it into a failure on a host with that many.
 */
#define NEEDS_GPUS(n)                                                                              \
  do {                                                                                             \
    if (gpu_count() < (n)) {                                                                       \
      print_message("SKIPPED: needs %d GPUs, found %d\n", (n), gpu_count());                       \
      skip();                                                                                      \
    }                                                                                              \
  } while (0)

/* xorshift64*: the same cases everywhere. */
static inline uint64_t random_next(uint64_t *state)
{
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * UINT64_C(2685821657736338717);
}

/* From a to b, both included. */
static inline int64_t random_from(uint64_t *state, int64_t a, int64_t b)
{
  return a + (int64_t)(random_next(state) % (uint64_t)(b - a + 1));
}

static inline void random_fill(uint64_t *state, void *bytes, size_t n_bytes)
{
  unsigned char *at = bytes;

  for (size_t i = 0; i < n_bytes; i++) {
    if (i % 8 == 0) (void)random_next(state);
    at[i] = (unsigned char)(*state >> (8 * (i % 8)));
  }
}

#endif
