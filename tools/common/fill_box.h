/*
 * The contents of a tensor as a function of its name and the global index: element i is the low
 * bytes, little-endian, of splitmix64(fnv1a64(name) + i), i row-major. Where elements change on the
 * way that is a number of the source's type instead, and what must arrive is computed from it here,
 * by none of the library's arithmetic.
 */
#ifndef TOOLS_FILL_BOX_H
#define TOOLS_FILL_BOX_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FILL_BOX_DIMS 8

typedef enum fill_format {
  FILL_BYTES, /* no numbers */
  FILL_F32,
  FILL_BF16,
  FILL_F16,
  FILL_F8E4M3,
  FILL_F8E5M2,
  FILL_F8E8M0
} fill_format;

/* What becomes of a tensor's numbers on the way; all zero: they are bytes, and stay. */
typedef struct fill_change {
  int32_t from; /* fill_format, of the source */
  int32_t to;
  float factor;     /* 0: none */
  float summand;    /* 0: none */
  int32_t block[2]; /* rows and columns of the last two dims that have a scale; 0: no blocks */
  bool is_scales;   /* elements are the scales of such blocks */
  bool powers;      /* which are powers of two, as MXFP8's */
} fill_change;

/* A box of a tensor in local memory. */
typedef struct fill_box {
  char *base;    /* of its first element */
  uint64_t seed; /* fnv1a64 of the name, plus the first element's global index; of a scale that of
                    its block's first */
  int64_t n_elems;
  int32_t n_dims;
  int32_t elem_bytes;
  int64_t length[FILL_BOX_DIMS];
  int64_t stride[FILL_BOX_DIMS];        /* bytes */
  int64_t global_stride[FILL_BOX_DIMS]; /* elements */
  fill_change change;
  int64_t first[2];  /* with blocks: where in the last two dims of the tensor that has them the box
                        begins, */
  int64_t extent[2]; /* and how long these are */
} fill_box;

struct CUstream_st;

uint64_t fill_box_seed(const char *name);
/* Both give 0, or -1 with a message on stderr. */
int fill_box_write(const fill_box *box, struct CUstream_st *stream);
/* Adds the number of wrong bytes to sums[0], in device memory; with `zero` all must be zero. With
 * two sums, sums[1] gets what of each other element and its index adds up. */
int fill_box_check(const fill_box *box, bool zero, unsigned long long *sums, int n_sums,
                   struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
