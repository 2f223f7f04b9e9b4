/*
 * Digests: two sums over the bytes of a tensor, each byte weighted by where it stands in the
 * tensor's row-major order. A sum does not depend on who adds up what, so parts of a tensor that
 * lie on many ranks, cut in any way, have the digest of the whole; and a value that changed, moved,
 * is missing or counted twice changes it.
 *
 * The order is cut into units of 16 bytes. In unit n, word w (32 bits) has the weight
 * key(n / 32 mod 4, w) times chunk(n / 128 * 32 + n mod 32) modulo 2^64: a warp that reads 2 KiB in
 * order makes one chunk weight for four units. Both are odd; the largest chance that a difference
 * of two words goes unseen in one sum is about 2^-32, of others far less, and the sums are
 * independent. (Multilinear hashing: Carter and Wegman 1979; against mistakes, not attackers.)
 */
#ifndef XFI_DIGEST_H
#define XFI_DIGEST_H

#include "kernels.h"

#ifdef __CUDACC__
#define XFI_DIGEST_INLINE static __host__ __device__ __forceinline__
#else
#define XFI_DIGEST_INLINE static inline
#endif

enum { XFI_DIGEST_UNIT = 16, XFI_DIGEST_KEYS = 16 };

typedef struct xfi_sum {
  uint64_t word[2];
} xfi_sum;

/* Adds to the sum of an index, `factor` times, what `copy` would read if it copied the box to its
 * place in the tensor's row-major order. Nothing is written: copy.dst stands for an offset in that
 * order, in bytes from XFI_DIGEST_ORIGIN. */
typedef struct xfi_digest_box {
  xfi_copy copy;
  uint64_t factor;
  uint32_t sum; /* the index */
} xfi_digest_box;

/* Not NULL, since it is used as a pointer. */
#define XFI_DIGEST_ORIGIN ((uintptr_t)4096)

/* The offset in the order that such a copy.dst stands for. */
XFI_DIGEST_INLINE int64_t xfi_digest_offset(const char *dst)
{
  return (int64_t)((uintptr_t)dst - XFI_DIGEST_ORIGIN);
}

/* The chunk weights of both sums. */
XFI_DIGEST_INLINE void xfi_digest_chunk(uint64_t weight[2], uint64_t chunk)
{
  uint64_t z = (chunk + 1) * UINT64_C(0x9e3779b97f4a7c15);

  z ^= z >> 32;
  z *= UINT64_C(0xd6e8feb86659fd93);
  z ^= z >> 32;
  weight[0] = z | 1;
  weight[1] = ((z >> 32 | z << 32) * UINT64_C(0xff51afd7ed558ccd)) | 1;
}

XFI_DIGEST_INLINE uint64_t xfi_digest_chunk_of(uint64_t unit)
{
  return unit / 128 * 32 + unit % 32;
}

/* The first of a unit's four keys. */
XFI_DIGEST_INLINE uint32_t xfi_digest_key_of(uint64_t unit)
{
  return (uint32_t)(unit / 32 % 4 * 4);
}

/* From splitmix64, made odd. */
#define XFI_DIGEST_KEY_TABLE                                                                       \
  {                                                                                                \
    {0xe220a839, 0x6e789e6b, 0x06c45d19, 0xf88bb8a9, 0x1b39896b, 0x53cb9f0d,                       \
     0x2c829abf, 0xc584133b, 0x3ee57891, 0xf3b8488d, 0x657eecdd, 0xc2d326e1,                       \
     0x8621a03f, 0x8e1f7555, 0xb54e0f17, 0x84bb3f97},                                              \
    {                                                                                              \
      0x7d29825d, 0xc3cf1711, 0x3466e9a1, 0xd81a8d2b, 0xdb01602b, 0xa9038a93, 0xedf5f1d9,          \
          0x54496ad7, 0xdd7c01d5, 0x935e82f1, 0x69b82ebd, 0x40d29eb5, 0xa2f09dab, 0xee521d7b,      \
          0xf16952ef, 0x377d35df                                                                   \
    }                                                                                              \
  }

/* Add boxes to sums, in plain C. */
void xfi_ref_digest(xfi_sum *sums, const xfi_digest_box *boxes, size_t n_boxes);

#endif
