/* What an element is, and what must have become of it, on hosts and on devices. */
#ifndef TOOLS_FILL_NUMBER_H
#define TOOLS_FILL_NUMBER_H

#include "fill_box.h"

#include <string.h>

#ifdef __CUDACC__
#define FILL_FN __host__ __device__ static inline
#else
#define FILL_FN static inline
#endif

FILL_FN uint64_t fill_mix(uint64_t x)
{
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

FILL_FN uint32_t fill_bits(float x)
{
  uint32_t bits;

  memcpy(&bits, &x, sizeof bits);
  return bits;
}

FILL_FN float fill_float(uint32_t bits)
{
  float x;

  memcpy(&x, &bits, sizeof x);
  return x;
}

/* A number that f32, bf16 or f16 holds exactly, from 2^-7 to below 2^7. */
FILL_FN float fill_value(uint64_t mixed, int32_t from)
{
  const uint32_t mantissa = from == FILL_F32    ? 0x7fffffu
                            : from == FILL_BF16 ? 0x7f0000u
                                                : 0x7fe000u;
  const uint32_t exponent = 120 + (uint32_t)(mixed >> 32) % 14;

  return fill_float(((uint32_t)mixed & (0x80000000u | mantissa)) | exponent << 23);
}

/* The nearest of a type with `m` bits of mantissa and that bias of its exponent, to even; what is
 * too large is `most`. Denormal f32 counts as 0. */
FILL_FN uint32_t fill_round(float x, int m, int bias, uint32_t most)
{
  const uint32_t bits = fill_bits(x) & 0x7fffffffu;
  const int exponent = (int)(bits >> 23) - 127;
  const int place = (exponent > 1 - bias ? exponent : 1 - bias) - m; /* of the last bit */
  const int drop = place - (exponent - 23);                          /* bits of f32's mantissa */
  const uint64_t whole = bits >> 23 == 0 ? 0 : (bits & 0x7fffffu) | 0x800000u;
  uint64_t n = 0;

  if (drop < 32) {
    const uint64_t half = drop > 0 ? UINT64_C(1) << (drop - 1) : 0;
    const uint64_t rest = whole & ((UINT64_C(1) << drop) - 1);

    n = whole >> drop;
    n += rest > half || (drop > 0 && rest == half && (n & 1) != 0);
  }
  n += (uint64_t)(place + m + bias - 1) << m;
  return n > most ? most : (uint32_t)n;
}

FILL_FN uint64_t fill_encode(float x, int32_t to)
{
  const uint32_t sign = fill_bits(x) >> 31;

  switch (to) {
  case FILL_F32:
    return fill_bits(x);
  case FILL_BF16:
    return sign << 15 | fill_round(x, 7, 127, 0x7f80);
  case FILL_F16:
    return sign << 15 | fill_round(x, 10, 15, 0x7c00);
  case FILL_F8E4M3:
    return sign << 7 | fill_round(x, 3, 7, 0x7e);
  case FILL_F8E5M2:
    return sign << 7 | fill_round(x, 2, 15, 0x7b);
  default: /* FILL_F8E8M0: a power of two */
    return fill_bits(x) >> 23;
  }
}

/* 2^ceil(log2(x)) of a normal number, log2 being rounded to f32. */
FILL_FN float fill_power(float x)
{
  const uint32_t whole = fill_bits(x) & 0x7f800000u;
  const int k = (int)(whole >> 23) - 127;
  const double log2 = k + ((double)x / (double)fill_float(whole) - 1) * 1.4426950408889634;

  return fill_float(whole + ((float)log2 > (float)k ? 1u << 23 : 0)); /* near 2^k it is that */
}

/* The scale of a block whose largest magnitude is `amax`. */
FILL_FN float fill_scale(const fill_change *c, float amax)
{
  const float least = c->powers ? 1.17549435e-38f : 1e-4f;
  const float scale = (amax > least ? amax : least) / 448.0f;

  return c->powers ? fill_power(scale) : scale;
}

/* The bytes of an element whose index is mixed to `mixed`; `scale` is that of its block, if it has
 * one. */
FILL_FN uint64_t fill_expect(const fill_change *c, uint64_t mixed, float scale)
{
  float x;

  if (c->from == FILL_BYTES) return mixed;
  x = fill_value(mixed, c->from);
  if (c->block[0] > 0) x *= 1.0f / scale;
  if (c->factor != 0) x *= c->factor;
  if (c->summand != 0) x += c->summand;
  return fill_encode(x, c->to);
}

/* A block that a box has a part of; rows and columns count in the tensor that has the blocks. */
typedef struct fill_block {
  char *base;       /* of the box's first element with these leading indices */
  uint64_t seed;    /* of it */
  int64_t whole[4]; /* rows begin, end, columns begin, end */
  int64_t part[4];  /* what the box has of these; of scales: the index of the scale and one past */
} fill_block;

/* Counts the blocks that a box meets in one of its last two dims; *first becomes the first of them.
 */
FILL_FN int64_t fill_blocks_along(const fill_box *box, int d, int64_t *first)
{
  const int64_t length = box->length[box->n_dims - 2 + d];
  const int64_t size = box->change.block[d];

  *first = box->first[d] / size;
  if (box->change.is_scales) return length;
  return (box->first[d] + length - 1) / size - *first + 1;
}

FILL_FN int64_t fill_blocks_count(const fill_box *box)
{
  int64_t first;
  int64_t n = fill_blocks_along(box, 0, &first) * fill_blocks_along(box, 1, &first);

  for (int d = 0; d < box->n_dims - 2; d++)
    n *= box->length[d];
  return n;
}

FILL_FN fill_block fill_block_at(const fill_box *box, int64_t k)
{
  fill_block b = {box->base, box->seed, {0}, {0}};

  for (int d = 1; d >= 0; d--) {
    const int64_t size = box->change.block[d];
    const int64_t end = box->first[d] + box->length[box->n_dims - 2 + d];
    int64_t first;
    const int64_t n = fill_blocks_along(box, d, &first);
    const int64_t at = k % n;

    k /= n;
    b.whole[2 * d] = (first + at) * size;
    b.whole[2 * d + 1] = b.whole[2 * d] + size;
    if (b.whole[2 * d + 1] > box->extent[d]) b.whole[2 * d + 1] = box->extent[d];
    if (box->change.is_scales) {
      b.part[2 * d] = at;
      b.part[2 * d + 1] = at + 1;
    } else {
      b.part[2 * d] = b.whole[2 * d] > box->first[d] ? b.whole[2 * d] : box->first[d];
      b.part[2 * d + 1] = b.whole[2 * d + 1] < end ? b.whole[2 * d + 1] : end;
    }
  }
  for (int d = box->n_dims - 3; d >= 0; d--) {
    b.base += k % box->length[d] * box->stride[d];
    b.seed += (uint64_t)(k % box->length[d] * box->global_stride[d]);
    k /= box->length[d];
  }
  return b;
}

/* The mixed index of an element by its row and column in the tensor that has the blocks. */
FILL_FN uint64_t fill_block_mix(const fill_box *box, const fill_block *b, int64_t row,
                                int64_t column)
{
  const int n = box->n_dims;
  int64_t steps[2] = {box->global_stride[n - 2], box->global_stride[n - 1]};

  for (int d = 0; d < 2 && box->change.is_scales; d++)
    steps[d] /= box->change.block[d];
  return fill_mix(
      b->seed + (uint64_t)((row - box->first[0]) * steps[0] + (column - box->first[1]) * steps[1]));
}

/* The address of the i-th element of a box's part of a block; *want becomes its value. */
FILL_FN const char *fill_block_element(const fill_box *box, const fill_block *b, int64_t i,
                                       float scale, uint64_t *want)
{
  const int n = box->n_dims;
  const int64_t width = b->part[3] - b->part[2];
  int64_t row = b->part[0] + i / width;
  int64_t column = b->part[2] + i % width;

  if (box->change.is_scales) {
    *want = fill_encode(scale, box->change.to);
  } else {
    *want = fill_expect(&box->change, fill_block_mix(box, b, row, column), scale);
    row -= box->first[0];
    column -= box->first[1];
  }
  return b->base + row * box->stride[n - 2] + column * box->stride[n - 1];
}

#endif
