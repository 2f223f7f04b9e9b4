/*
 * The contents of a tensor as a function of its name and the global index, written and checked on
 * the device: element i is the low bytes, little-endian, of splitmix64(fnv1a64(name) + i), i
 * row-major.
 */
#ifndef TOOLS_FILL_BOX_H
#define TOOLS_FILL_BOX_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FILL_BOX_DIMS 8

/* A box of a tensor in local memory. */
typedef struct fill_box {
  char *base;    /* of its first element */
  uint64_t seed; /* fnv1a64 of the name, plus the first element's global index */
  int64_t n_elems;
  int32_t n_dims;
  int32_t elem_bytes;
  int64_t length[FILL_BOX_DIMS];
  int64_t stride[FILL_BOX_DIMS];        /* bytes */
  int64_t global_stride[FILL_BOX_DIMS]; /* elements */
} fill_box;

struct CUstream_st;

uint64_t fill_box_seed(const char *name);
/* Both give 0, or -1 with a message on stderr. */
int fill_box_write(const fill_box *box, struct CUstream_st *stream);
/* Adds the number of wrong bytes to *wrong, device memory. */
int fill_box_check(const fill_box *box, unsigned long long *wrong, struct CUstream_st *stream);
/* The same for elements that must be zero. */
int fill_box_check_zero(const fill_box *box, unsigned long long *wrong, struct CUstream_st *stream);

/* The same, adding to sums[0], and to sums[1] a digest of the elements and their indices. */
int fill_box_check_sums(const fill_box *box, unsigned long long *sums, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
