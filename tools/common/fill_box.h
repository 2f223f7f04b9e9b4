/*
 * The contents of a tensor as a function of its name and the global index, written and checked on
 * the device: element i is the low bytes, little-endian, of splitmix64(fnv1a64(name) + i), i
 * row-major. Where elements change on the way they are numbers that every type holds exactly.
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
  int32_t number_bytes; /* elements are numbers of bf16 (2) or of f8e4m3 (1); 0: just bytes */
  int64_t length[FILL_BOX_DIMS];
  int64_t stride[FILL_BOX_DIMS];        /* bytes */
  int64_t global_stride[FILL_BOX_DIMS]; /* elements */
} fill_box;

/* What `value` is as a number in an element of `elem_bytes`: f32, bf16 or f8e4m3. No NaN, infinity
 * or denormal number. */
#ifdef __CUDACC__
__device__
#endif
    static inline uint64_t
    fill_box_number(uint64_t value, int32_t number_bytes, int32_t elem_bytes)
{
  if (number_bytes == 0) return value;
  if (number_bytes == 1) {
    const uint64_t byte = (value & 0xfe) | 0x08;

    if (elem_bytes == 1) return byte;
    value = (byte & 0x80) << 8 | ((byte >> 3 & 15) + 120) << 7 | (byte & 7) << 4;
  } else {
    value &= 0xbfff;
  }
  return elem_bytes == 4 ? value << 16 : value;
}

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
