/* Layouts as bytes: they come back the same, and no bytes at all can do harm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layouts_of.h"
#include "property/rng.h"
#include "serial.h"

#include <limits.h>

static const char *const sides[] = {
    "u8[] (1):R",
    "bf16[0] (3):S0",
    "f32[8,8] (2,2):S0,S1",
    "f32[8,9] (2,3)@5,4,3,2,1,0:S1b,S0e;pad=0:9",
    "i64[7,1] (2,2,2):S0,R,S0f3;order=2,1,0",
    "f64[576460752303423487] (2)@7,16777215:S0",
};
enum { N_SIDES = sizeof sides / sizeof *sides };

/* All but one, and one that repeats, skips and leaves ZERO elements. */
static xfer_layout *with_table(void)
{
  const xfer_run runs[] = {{0, 2, 0}, {4, 2, 2}, {4, 2, 1}};
  const int64_t first[] = {0, 2, 2, 3};
  const int64_t lengths[] = {4, 0, 6};
  const xfer_run_table table = {runs, first, lengths, 3, 1};

  return layout_of_table(6, &table, NULL);
}

static xfer_layout *layout_number(int i)
{
  return i < N_SIDES ? layout_of(sides[i]) : with_table();
}

static void test_what_is_written_is_read_back(void **state)
{
  (void)state;
  for (int i = 0; i <= N_SIDES; i++) {
    xfer_layout *layout = layout_number(i);
    xfer_layout *back = NULL;
    xfi_bytes made = {NULL, 0, 0};

    print_message("%s\n", i < N_SIDES ? sides[i] : "a table");
    assert_int_equal(xfi_layout_write(&made, layout), XFER_OK);
    assert_int_equal(xfi_layout_read(&back, made.at, made.n), XFER_OK);
    assert_memory_equal(back->digest, layout->digest, sizeof layout->digest);
    assert_int_equal(back->n_elems, layout->n_elems);
    assert_int_equal(back->n_replicas, layout->n_replicas);
    for (int d = 0; d < layout->n_dims; d++) {
      assert_int_equal(back->dims[d].size, layout->dims[d].size);
      assert_int_equal(back->dims[d].padded, layout->dims[d].padded);
      assert_int_equal(back->dims[d].n_parts, layout->dims[d].n_parts);
    }
    xfi_bytes_free(&made);
    xfi_layout_destroy(back);
    xfi_layout_destroy(layout);
  }
}

/* Reads a copy of its own size, so that the sanitizer sees a step beyond it. */
static xfer_status read_copy(xfer_layout **layout, const unsigned char *bytes, size_t n_bytes)
{
  unsigned char *copy = xfi_calloc(n_bytes, 1);
  xfer_status st;

  assert_non_null(copy);
  memcpy(copy, bytes, n_bytes);
  st = xfi_layout_read(layout, copy, n_bytes);
  xfi_free(copy);
  return st;
}

static void test_every_truncation_is_refused(void **state)
{
  (void)state;
  for (int i = 0; i <= N_SIDES; i++) {
    xfer_layout *layout = layout_number(i);
    xfer_layout *back = NULL;
    xfi_bytes made = {NULL, 0, 0};

    assert_int_equal(xfi_layout_write(&made, layout), XFER_OK);
    for (size_t n = 0; n < made.n; n++) {
      assert_int_equal(read_copy(&back, made.at, n), XFER_ERR_MISMATCH);
      assert_memory_equal(xfer_last_error(), "a received layout is malformed", 30);
      assert_null(back);
    }
    xfi_bytes_free(&made);
    xfi_layout_destroy(layout);
  }
}

static void test_bytes_too_many_are_refused(void **state)
{
  (void)state;
  xfer_layout *layout = with_table();
  xfer_layout *back = NULL;
  xfi_bytes made = {NULL, 0, 0};
  unsigned char *longer = NULL;

  assert_int_equal(xfi_layout_write(&made, layout), XFER_OK);
  longer = xfi_calloc(made.n + 16, 1);
  assert_non_null(longer);
  memcpy(longer, made.at, made.n);
  for (size_t n = 1; n <= 16; n++) {
    assert_int_equal(read_copy(&back, longer, made.n + n), XFER_ERR_MISMATCH);
    assert_memory_equal(xfer_last_error(), "a received layout is malformed", 30);
  }
  assert_null(back);
  xfi_bytes_free(&made);
  xfi_free(longer);
  xfi_layout_destroy(layout);
}

/* What is read in spite of a change must be a whole layout, which writes the bytes it was read
 * from. */
static void read_changed(const unsigned char *bytes, size_t n_bytes, int *n_read)
{
  xfer_layout *back = NULL;
  xfi_bytes again = {NULL, 0, 0};
  xfer_status st = read_copy(&back, bytes, n_bytes);

  if (st != XFER_OK) {
    assert_true(st == XFER_ERR_MISMATCH || st == XFER_ERR_ARG || st == XFER_ERR_SHAPE ||
                st == XFER_ERR_OVERFLOW || st == XFER_ERR_UNSUPPORTED);
    assert_null(back);
    return;
  }
  ++*n_read;
  assert_int_equal(xfi_layout_write(&again, back), XFER_OK);
  assert_int_equal(again.n, n_bytes);
  xfi_bytes_free(&again);
  for (int i = 0; i < back->mesh->size; i++) {
    xfi_place place;

    assert_true(xfi_layout_place(back, back->mesh->ranks[i], &place));
    for (int d = 0; d < back->n_dims; d++)
      assert_true(xfi_dim_length(&back->dims[d], place.part[d]) >= 0);
  }
  xfi_layout_destroy(back);
}

static void test_every_changed_bit_and_byte_is_refused_or_read_as_what_it_is(void **state)
{
  (void)state;
  for (int i = 0; i <= N_SIDES; i++) {
    xfer_layout *layout = layout_number(i);
    xfi_bytes made = {NULL, 0, 0};
    int n_read = 0;

    assert_int_equal(xfi_layout_write(&made, layout), XFER_OK);
    for (size_t at = 0; at < made.n; at++) {
      static const unsigned char others[] = {0, 1, 2, 3, 4, 8, 9, 0x7f, 0x80, 0xff};
      const unsigned char kept = made.at[at];

      for (int bit = 0; bit < 8; bit++) {
        made.at[at] = (unsigned char)(kept ^ (1 << bit));
        read_changed(made.at, made.n, &n_read);
      }
      for (size_t k = 0; k < sizeof others; k++) {
        made.at[at] = others[k];
        read_changed(made.at, made.n, &n_read);
      }
      made.at[at] = kept;
    }
    assert_true(n_read > 0);
    xfi_bytes_free(&made);
    xfi_layout_destroy(layout);
  }
}

static void test_every_changed_word_is_refused_or_read_as_what_it_is(void **state)
{
  (void)state;
  static const int64_t others[] = {0,
                                   1,
                                   2,
                                   3,
                                   7,
                                   -1,
                                   INT64_MIN,
                                   INT64_MAX,
                                   INT32_MAX,
                                   INT64_C(1) << 31,
                                   INT32_MIN,
                                   INT64_C(1) << 32,
                                   INT64_MAX / 2,
                                   INT64_MAX / 2 + 1};

  for (int i = 0; i <= N_SIDES; i++) {
    xfer_layout *layout = layout_number(i);
    xfi_bytes made = {NULL, 0, 0};
    int n_read = 0;

    assert_int_equal(xfi_layout_write(&made, layout), XFER_OK);
    for (size_t at = 0; at < made.n; at += sizeof *others) {
      int64_t kept;

      memcpy(&kept, made.at + at, sizeof kept);
      for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
        memcpy(made.at + at, &others[k], sizeof kept);
        read_changed(made.at, made.n, &n_read);
      }
      memcpy(made.at + at, &kept, sizeof kept);
    }
    assert_true(n_read > 0);
    xfi_bytes_free(&made);
    xfi_layout_destroy(layout);
  }
}

static void test_random_words_are_refused(void **state)
{
  (void)state;
  int n_read = 0;

  for (uint64_t i = 0; i < 20000; i++) {
    rng r = rng_of(5, i, 0);
    int64_t words[40];
    const int n = rng_int(&r, 1, 40);

    words[0] = INT64_C(0x315f72656678); /* as a layout begins */
    for (int k = 1; k < n; k++)
      words[k] = rng_int(&r, rng_percent(&r, 5) ? INT_MIN / 2 : 0, rng_percent(&r, 5) ? 99 : 3);
    read_changed((const unsigned char *)words, (size_t)n * sizeof *words, &n_read);
  }
}

/* ---- failed allocations ---- */

static xfer_status write_again(void *context)
{
  xfi_bytes made = {NULL, 0, 0};
  xfer_status st = xfi_layout_write(&made, context);

  xfi_bytes_free(&made);
  return st;
}

static xfer_status digest_again(void *context)
{
  return xfi_layout_digest(context);
}

static xfer_status read_again(void *context)
{
  const xfi_bytes *t = context;
  xfer_layout *layout = NULL;
  xfer_status st = xfi_layout_read(&layout, t->at, t->n);

  assert_true((layout != NULL) == (st == XFER_OK));
  xfi_layout_destroy(layout);
  return st;
}

static void test_each_failed_allocation_is_reported_as_one(void **state)
{
  (void)state;
  for (int i = 0; i <= N_SIDES; i++) {
    xfer_layout *layout = layout_number(i);
    uint64_t digest[2];
    xfi_bytes made = {NULL, 0, 0};

    print_message("%s\n", i < N_SIDES ? sides[i] : "a table");
    memcpy(digest, layout->digest, sizeof digest);
    assert_true(fail_each_allocation(write_again, layout) >= 1);
    assert_true(fail_each_allocation(digest_again, layout) >= 1);
    assert_memory_equal(layout->digest, digest, sizeof digest);
    assert_int_equal(xfi_layout_write(&made, layout), XFER_OK);
    assert_true(fail_each_allocation(read_again, &made) >= 5);
    xfi_bytes_free(&made);
    xfi_layout_destroy(layout);
  }
}

/* Of several layouts one after the other, each behind its length. */
static void test_a_list_that_is_cut_is_refused(void **state)
{
  const uint64_t longer[2] = {9, 0};
  const size_t n_bytes[2] = {sizeof *longer - 1, sizeof longer};
  xfer_layout *layout = NULL;

  (void)state;
  for (int i = 0; i < 2; i++) {
    xfi_reader r = {(const unsigned char *)longer, n_bytes[i], false};

    assert_int_equal(xfi_layout_take(&layout, &r), XFER_ERR_MISMATCH);
    assert_string_equal(xfer_last_error(), "a received list of layouts is malformed");
    assert_null(layout);
  }
}

static void test_words_of_another_kind_are_refused(void **state)
{
  xfer_layout *layout = layout_of("f32[8,8] (2,2):S0,S1");
  xfer_layout *back = NULL;
  xfi_bytes made = {NULL, 0, 0};
  int64_t
      words[25]; /* kind, dtype, 2 dims, 2 + 2 sizes, 2 axes, their sizes, 4 ranks, 2 cuts of 5 */

  (void)state;
  assert_int_equal(xfi_layout_write(&made, layout), XFER_OK);
  assert_int_equal(made.n, sizeof words);
  memcpy(words, made.at, sizeof words);
  words[0]++;
  assert_int_equal(read_copy(&back, (unsigned char *)words, made.n), XFER_ERR_MISMATCH);
  words[0]--;
  assert_int_equal(words[15], 0);
  assert_int_equal(words[20], 1);
  words[20] = 0; /* the second cut is by the first one's axis */
  assert_int_equal(read_copy(&back, (unsigned char *)words, made.n), XFER_ERR_MISMATCH);
  assert_null(back);
  xfi_bytes_free(&made);
  xfi_layout_destroy(layout);
}

static void test_boxes_of_another_kind_are_refused(void **state)
{
  /* kind, bf16, 2 dims, their sizes, all known, ranks 0 and 1, 2 boxes, whose, bounds */
  int64_t words[] = {
      INT64_C(0x625f72656678), XFER_BF16, 2, 4, 4, 0, 2, 0, 1, 2, 0, 1, 2, 0, 0, 2, 4, 2, 0, 4, 4};
  xfer_layout *back = NULL;

  (void)state;
  assert_int_equal(read_copy(&back, (unsigned char *)words, sizeof words), XFER_OK);
  xfi_layout_destroy(back);
  back = NULL;
  words[0]++;
  assert_int_equal(read_copy(&back, (unsigned char *)words, sizeof words), XFER_ERR_MISMATCH);
  words[0]--;
  words[7] = -1; /* a rank */
  assert_int_equal(read_copy(&back, (unsigned char *)words, sizeof words), XFER_ERR_MISMATCH);
  assert_string_equal(xfer_last_error(), "a received layout is malformed: mesh");
  assert_null(back);
}

static void test_tables_that_may_leave_out_elements_are_others(void **state)
{
  const xfer_run runs[] = {{0, 3, 0}, {3, 3, 0}};
  const int64_t first[] = {0, 1, 2};
  const int64_t lengths[] = {3, 3};
  const xfer_run_table strict = {runs, first, lengths, 2, 0};
  const xfer_run_table lax = {runs, first, lengths, 2, 1};
  xfer_layout *a = layout_of_table(6, &strict, NULL);
  xfer_layout *b = layout_of_table(6, &lax, NULL);

  (void)state;
  assert_memory_not_equal(a->digest, b->digest, sizeof a->digest);
  xfi_layout_destroy(a);
  xfi_layout_destroy(b);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_written_is_read_back),
      cmocka_unit_test(test_every_truncation_is_refused),
      cmocka_unit_test(test_bytes_too_many_are_refused),
      cmocka_unit_test(test_every_changed_bit_and_byte_is_refused_or_read_as_what_it_is),
      cmocka_unit_test(test_every_changed_word_is_refused_or_read_as_what_it_is),
      cmocka_unit_test(test_random_words_are_refused),
      cmocka_unit_test(test_a_list_that_is_cut_is_refused),
      cmocka_unit_test(test_words_of_another_kind_are_refused),
      cmocka_unit_test(test_boxes_of_another_kind_are_refused),
      cmocka_unit_test(test_tables_that_may_leave_out_elements_are_others),
      cmocka_unit_test(test_each_failed_allocation_is_reported_as_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
