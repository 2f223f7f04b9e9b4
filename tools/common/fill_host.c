#include "fill_host.h"

#include <math.h>
#include <string.h>

#include "fill_number.h"

/* A stretch of elements: the i-th lies at `at` + i * step bytes and has index `index` + i * stride.
 */
typedef struct line {
  char *at;
  int64_t step;
  int64_t n;
  uint64_t index; /* seed included */
  uint64_t stride;
  bool zero; /* padding */
} line;

static void put_element(char *at, uint64_t value, size_t size)
{
  memcpy(at, &value, size); /* the low bytes of a little-endian number */
}

static void compare(const char *at, uint64_t want, size_t size, fill_sum *sum)
{
  uint64_t have = 0;

  memcpy(&have, at, size);
  for (size_t i = 0; i < size; i++)
    sum->wrong += (have >> (8 * i) & 255) != (want >> (8 * i) & 255);
  sum->bytes += size;
  sum->total += (have + 1) * (want | 1);
}

/* One loop for each size of element; the compiler unrolls them where the elements are neighbours.
 */
#define DEFINE_LINES(T)                                                                            \
  static void write_##T(const line *l)                                                             \
  {                                                                                                \
    if (l->step == (int64_t)sizeof(T) && l->stride == 1) {                                         \
      T *restrict at = (T *)(void *)l->at;                                                         \
      for (int64_t i = 0; i < l->n; i++)                                                           \
        at[i] = (T)fill_mix(l->index + (uint64_t)i);                                               \
      return;                                                                                      \
    }                                                                                              \
    for (int64_t i = 0; i < l->n; i++) {                                                           \
      *(T *)(void *)(l->at + i * l->step) = (T)fill_mix(l->index + (uint64_t)i * l->stride);       \
    }                                                                                              \
  }                                                                                                \
  static void check_##T(const line *l, fill_sum *sum)                                              \
  {                                                                                                \
    uint64_t differ = 0, total = 0;                                                                \
    for (int64_t i = 0; i < l->n; i++) {                                                           \
      const uint64_t want = l->zero ? 0 : fill_mix(l->index + (uint64_t)i * l->stride);            \
      const T have = *(const T *)(const void *)(l->at + i * l->step);                              \
      differ |= (uint64_t)(T)(have ^ (T)want);                                                     \
      total += ((uint64_t)have + 1) * (want | 1);                                                  \
    }                                                                                              \
    sum->bytes += (uint64_t)l->n * sizeof(T);                                                      \
    if (!l->zero) sum->total += total;                                                             \
    for (int64_t i = 0; i < l->n && differ != 0; i++) {                                            \
      const uint64_t want = l->zero ? 0 : fill_mix(l->index + (uint64_t)i * l->stride);            \
      T have = *(const T *)(const void *)(l->at + i * l->step);                                    \
      for (have = (T)(have ^ (T)want); have != 0; have = (T)(have >> 4 >> 4))                      \
        sum->wrong += (have & 255) != 0;                                                           \
    }                                                                                              \
  }
DEFINE_LINES(uint8_t)
DEFINE_LINES(uint16_t)
DEFINE_LINES(uint32_t)
DEFINE_LINES(uint64_t)

/* Numbers, one by one. */
static void do_numbers(const line *l, const fill_box *box, fill_sum *sum)
{
  for (int64_t i = 0; i < l->n; i++) {
    const uint64_t mixed = fill_mix(l->index + (uint64_t)i * l->stride);
    char *at = l->at + i * l->step;

    if (sum == NULL)
      put_element(at, fill_expect(&box->change, mixed, 0), (size_t)box->elem_bytes);
    else
      compare(at, fill_expect(&box->change, mixed, 0), (size_t)box->elem_bytes, sum);
  }
}

static void do_line(const line *l, const fill_box *box, fill_sum *sum)
{
  const int32_t size = box->elem_bytes;

  if (box->change.from != FILL_BYTES && !l->zero) {
    do_numbers(l, box, sum);
  } else if (sum == NULL) {
    if (size == 1) write_uint8_t(l);
    if (size == 2) write_uint16_t(l);
    if (size == 4) write_uint32_t(l);
    if (size == 8) write_uint64_t(l);
  } else {
    if (size == 1) check_uint8_t(l, sum);
    if (size == 2) check_uint16_t(l, sum);
    if (size == 4) check_uint32_t(l, sum);
    if (size == 8) check_uint64_t(l, sum);
  }
}

/* A box on the host: line by line along the dim whose elements lie closest. */
static void do_box(const fill_box *box, bool zero, fill_sum *sum)
{
  int64_t index[FILL_BOX_DIMS] = {0};
  int inner = box->n_dims - 1;
  int d;

  for (int k = 0; k < box->n_dims; k++)
    if (box->length[k] > 1 && (box->length[inner] < 2 || box->stride[k] < box->stride[inner]))
      inner = k;
  do {
    line l = {box->base, (int64_t)box->elem_bytes, 1, box->seed, 1, zero};

    for (int k = 0; k < box->n_dims; k++) {
      l.at += index[k] * box->stride[k];
      l.index += (uint64_t)(index[k] * box->global_stride[k]);
    }
    if (box->n_dims > 0) {
      l.n = box->length[inner];
      l.step = box->stride[inner];
      l.stride = (uint64_t)box->global_stride[inner];
    }
    do_line(&l, box, sum);
    for (d = box->n_dims - 1; d >= 0; d--) { /* count up the other dims */
      if (d == inner) continue;
      if (++index[d] < box->length[d]) break;
      index[d] = 0;
    }
  } while (d >= 0);
}

/* The box block by block, each after its scale. */
static void check_blocks(const fill_box *box, fill_sum *sum)
{
  const int64_t n_blocks = fill_blocks_count(box);

  for (int64_t k = 0; k < n_blocks; k++) {
    const fill_block b = fill_block_at(box, k);
    const int64_t n = (b.part[1] - b.part[0]) * (b.part[3] - b.part[2]);
    float amax = 0;

    for (int64_t row = b.whole[0]; row < b.whole[1]; row++) {
      for (int64_t column = b.whole[2]; column < b.whole[3]; column++) {
        const uint64_t mixed = fill_block_mix(box, &b, row, column);
        const float x = fabsf(fill_value(mixed, box->change.from));

        if (x > amax) amax = x;
      }
    }
    for (int64_t i = 0; i < n; i++) {
      uint64_t want;
      const char *at = fill_block_element(box, &b, i, fill_scale(&box->change, amax), &want);

      compare(at, want, (size_t)box->elem_bytes, sum);
    }
  }
}

void fill_host_write(const fill_box *box)
{
  do_box(box, false, NULL);
}

void fill_host_check(const fill_box *box, bool zero, fill_sum *sum)
{
  if (box->change.block[0] > 0 && !zero)
    check_blocks(box, sum);
  else
    do_box(box, zero, sum);
}

uint64_t fill_box_seed(const char *name)
{
  uint64_t h = UINT64_C(0xcbf29ce484222325);

  for (; *name != '\0'; name++)
    h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
  return h;
}
