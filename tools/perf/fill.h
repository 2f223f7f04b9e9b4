/*
 * The contents of a tensor as a function of its name and the global index, written and checked on
 * the device: element i is the low bytes, little-endian, of splitmix64(fnv1a64(name) + i), i
 * row-major.
 */
#ifndef PERF_FILL_H
#define PERF_FILL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PERF_DIMS 8

/* A box of a tensor in local memory. */
typedef struct perf_box {
  char *base;    /* of its first element */
  uint64_t seed; /* fnv1a64 of the name, plus the first element's global index */
  int64_t n_elems;
  int32_t n_dims;
  int32_t elem_bytes;
  int64_t length[PERF_DIMS];
  int64_t stride[PERF_DIMS];        /* bytes */
  int64_t global_stride[PERF_DIMS]; /* elements */
} perf_box;

struct CUstream_st;

uint64_t perf_seed(const char *name);
/* Both give 0, or -1 with a message on stderr. */
int perf_fill(const perf_box *box, struct CUstream_st *stream);
/* Adds the number of wrong bytes to *wrong, device memory. */
int perf_check(const perf_box *box, unsigned long long *wrong, struct CUstream_st *stream);
/* The same for elements that must be zero. */
int perf_check_zero(const perf_box *box, unsigned long long *wrong, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
