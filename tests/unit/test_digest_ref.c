/* Digests against one that weighs each byte by itself, and what they must notice. */
#include "digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "property/rng.h"

enum { BYTES = 3 << 12, N_CASES = 300 };

static unsigned char bytes[BYTES];
static rng random_numbers;

static int64_t random_below(int64_t n)
{
  return rng_below(&random_numbers, n);
}

static int setup(void **state)
{
  (void)state;
  for (int i = 0; i < BYTES; i++)
    bytes[i] = (unsigned char)random_below(256);
  return 0;
}

/* One byte at `offset` of the order. */
static void naive_add(xfi_sum *sum, unsigned char byte, uint64_t offset)
{
  static const uint32_t keys[2][XFI_DIGEST_KEYS] = XFI_DIGEST_KEY_TABLE;
  const uint64_t unit = offset / 16;
  const uint64_t key = unit % 128 / 32 * 4 + offset % 16 / 4;
  uint64_t weight[2];

  xfi_digest_chunk(weight, unit / 128 * 32 + unit % 32);
  for (int s = 0; s < 2; s++)
    sum->word[s] += ((uint64_t)byte << (8 * (offset % 4))) * keys[s][key] * weight[s];
}

static xfi_digest_box box_at(const unsigned char *src, int64_t offset, int64_t run_bytes)
{
  return (xfi_digest_box){{.src = (const char *)src,
                           .dst = (char *)(XFI_DIGEST_ORIGIN + (uintptr_t)offset),
                           .run_bytes = run_bytes},
                          1,
                          0};
}

static xfi_sum sum_of(const unsigned char *src, int64_t offset, int64_t n_bytes)
{
  const xfi_digest_box box = box_at(src, offset, n_bytes);
  xfi_sum sum = {{0, 0}};

  xfi_ref_digest(&sum, &box, 1);
  return sum;
}

static bool differ(xfi_sum a, xfi_sum b)
{
  return a.word[0] != b.word[0] && a.word[1] != b.word[1];
}

static void assert_equal(xfi_sum a, xfi_sum b)
{
  assert_memory_equal(&a, &b, sizeof a);
}

static void test_boxes_have_the_sum_of_their_bytes(void **state)
{
  (void)state;
  for (int k = 0; k < N_CASES; k++) {
    xfi_digest_box box = box_at(bytes + random_below(64), random_below(1 << 20), 0);
    xfi_copy *c = &box.copy;
    xfi_sum want = {{0, 0}};
    xfi_sum got[3] = {{{1, 2}}, {{3, 4}}, {{5, 6}}};

    c->run_bytes = 1 + random_below(k % 2 == 0 ? 8 : 100);
    c->n_dims = random_below(4);
    for (int64_t d = 0; d < c->n_dims; d++) {
      c->extent[d] = 1 + random_below(4);
      c->src_stride[d] = 1 + random_below(300);
      c->dst_stride[d] = 1 + random_below(1 << 14);
    }
    box.factor = (uint64_t)random_below(INT64_MAX);
    box.sum = 1;
    for (int64_t n = 0; n < xfi_copy_bytes(c); n++) {
      int64_t rest = n / c->run_bytes;
      int64_t from = n % c->run_bytes;
      int64_t to = from + xfi_digest_offset(c->dst);
      for (int64_t d = c->n_dims - 1; d >= 0; d--) {
        from += rest % c->extent[d] * c->src_stride[d];
        to += rest % c->extent[d] * c->dst_stride[d];
        rest /= c->extent[d];
      }
      naive_add(&want, (unsigned char)c->src[from], (uint64_t)to);
    }
    want.word[0] = 3 + box.factor * want.word[0];
    want.word[1] = 4 + box.factor * want.word[1];
    xfi_ref_digest(got, &box, 1);
    assert_equal(got[1], want);
    assert_true(got[0].word[0] == 1 && got[2].word[1] == 6);
  }
}

static void test_an_empty_box_adds_nothing(void **state)
{
  xfi_digest_box box = box_at(NULL, 0, 4);
  xfi_sum sum = {{7, 8}};

  (void)state;
  box.copy.n_dims = 1;
  box.copy.extent[0] = 0;
  xfi_ref_digest(&sum, &box, 1);
  assert_true(sum.word[0] == 7 && sum.word[1] == 8);
}

static void test_parts_have_the_sum_of_the_whole(void **state)
{
  const xfi_sum whole = sum_of(bytes, 5, BYTES);

  (void)state;
  for (int k = 0; k < N_CASES; k++) {
    xfi_sum sum = {{0, 0}};

    for (int64_t at = 0, n; at < BYTES; at += n) {
      n = 1 + random_below(k % 2 == 0 ? 40 : 4000);
      if (n > BYTES - at) n = BYTES - at;
      const xfi_digest_box box = box_at(bytes + at, 5 + at, n);
      xfi_ref_digest(&sum, &box, 1);
    }
    assert_equal(sum, whole);
  }
}

static void test_each_flipped_bit_is_seen(void **state)
{
  const xfi_sum whole = sum_of(bytes, 0, BYTES);

  (void)state;
  for (int bit = 0; bit < 8 * BYTES; bit += 1 + bit / 4096) {
    bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    assert_true(differ(sum_of(bytes, 0, BYTES), whole));
    bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
  }
}

/* Two sign bits, which have the least weight of all. */
static void test_pairs_of_top_bits_are_seen(void **state)
{
  static unsigned char zeros[BYTES];

  (void)state;
  for (int i = 0; i < 40; i++) {
    for (int k = i + 1; k < BYTES / 4; k += 7) {
      zeros[4 * i + 3] = zeros[4 * k + 3] = 0x80;
      assert_true(differ(sum_of(zeros, 0, BYTES), (xfi_sum){{0, 0}}));
      zeros[4 * i + 3] = zeros[4 * k + 3] = 0;
    }
  }
}

static void swap(int64_t a, int64_t b, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    const unsigned char kept = bytes[a + i];
    bytes[a + i] = bytes[b + i];
    bytes[b + i] = kept;
  }
}

static void test_swapped_stretches_are_seen(void **state)
{
  const xfi_sum whole = sum_of(bytes, 0, BYTES);

  (void)state;
  for (int k = 0; k < 10 * N_CASES; k++) {
    const int64_t n = INT64_C(1) << random_below(11);
    const int64_t a = random_below(BYTES / n) * n;
    const int64_t b = random_below(BYTES / n) * n;

    if (memcmp(bytes + a, bytes + b, (size_t)n) == 0) continue;
    swap(a, b, n);
    assert_true(differ(sum_of(bytes, 0, BYTES), whole));
    swap(a, b, n);
  }
}

static void test_a_dropped_or_doubled_element_is_seen(void **state)
{
  const xfi_sum whole = sum_of(bytes, 0, BYTES);
  xfi_sum more = whole;
  const xfi_digest_box again = box_at(bytes + 100, 100, 2);

  (void)state;
  assert_true(differ(sum_of(bytes, 0, BYTES - 2), whole));
  xfi_ref_digest(&more, &again, 1);
  assert_true(differ(more, whole));
}

static void test_the_same_bytes_further_on_are_seen(void **state)
{
  (void)state;
  for (int64_t by = 1; by < 5000; by++)
    assert_true(differ(sum_of(bytes, 0, 512), sum_of(bytes, by, 512)));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_boxes_have_the_sum_of_their_bytes),
      cmocka_unit_test(test_an_empty_box_adds_nothing),
      cmocka_unit_test(test_parts_have_the_sum_of_the_whole),
      cmocka_unit_test(test_each_flipped_bit_is_seen),
      cmocka_unit_test(test_pairs_of_top_bits_are_seen),
      cmocka_unit_test(test_swapped_stretches_are_seen),
      cmocka_unit_test(test_a_dropped_or_doubled_element_is_seen),
      cmocka_unit_test(test_the_same_bytes_further_on_are_seen),
  };

  return cmocka_run_group_tests(tests, setup, NULL);
}
