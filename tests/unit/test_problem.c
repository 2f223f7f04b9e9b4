/* The problem language: lines that parse, every way in which one does not, and round trips. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "problem.h"

#include "alloc.h"
#include "error.h"
#include "layout.h"
#include "property/rng.h"
#include "test_problem_errors.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE_BYTES = 4096 };

static void destroy(xfer_layout *src, xfer_layout *dst)
{
  xfi_layout_destroy(src);
  xfi_layout_destroy(dst);
}

static void assert_same(const xfer_layout *a, const xfer_layout *b)
{
  assert_memory_equal(a->digest, b->digest, sizeof a->digest);
}

static void test_parse_reads_every_part_of_a_line(void **state)
{
  (void)state;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;

  assert_int_equal(
      xfi_problem_parse(
          &src, &dst,
          "bf16[10,8,6] (2,3)@4,9-0010,1-5/2:S-3b,S0f3;order=1,0;pad=0:12 -> (1,2)@5,3:R,S2e"),
      XFER_OK);

  const int ranks[] = {4, 9, 10, 1, 3, 5};
  const xfi_dim *dim = &src->dims[0];
  assert_int_equal(src->dtype, XFER_BF16);
  assert_int_equal(src->n_dims, 3);
  assert_int_equal(src->mesh->n_axes, 2);
  assert_int_equal(src->mesh->shape[0], 2);
  assert_int_equal(src->mesh->shape[1], 3);
  assert_memory_equal(src->mesh->ranks, ranks, sizeof ranks);
  assert_int_equal(dim->size, 10);
  assert_int_equal(dim->padded, 12);
  assert_int_equal(dim->n_cuts, 2);
  assert_int_equal(dim->cuts[0].axis, 1);
  assert_int_equal(dim->cuts[0].kind, XFER_STRIDED);
  assert_int_equal(dim->cuts[0].split_factor, 3);
  assert_int_equal(dim->cuts[1].axis, 0);
  assert_int_equal(dim->cuts[1].kind, XFER_SHARD);
  assert_int_equal(dim->cuts[1].rule, XFER_BALANCED);
  assert_int_equal(src->dims[1].n_cuts, 0);
  assert_int_equal(dst->n_replicas, 1);
  assert_int_equal(dst->dims[2].cuts[0].rule, XFER_EVEN);
  assert_int_equal(dst->dims[2].padded, 6);
  destroy(src, dst);
}

static void test_a_layout_is_a_problem_up_to_its_arrow(void **state)
{
  (void)state;
  static const char *const lines[] = {
      "f32[17,11] (3,2)@0-5:S0b,S1",
      "bf16[10,8] (2,3)@4,9-0010,1-5/2:S-2b,S0f3;order=1,0;pad=0:12",
      "u8[4,6] {0=[0:2,0:6];3=f12:30;1=}",
      "i64[] (2):R",
  };
  static const bad_line bad[] = {
      {"f32[8] (2):S0 ", "column 14: expected the end of the line", XFER_ERR_ARG},
      {"f32[8] (2):S0 -> (1):R", "column 14: expected the end of the line", XFER_ERR_ARG},
      {"f32[8] {0=[0:8]} -> ?", "column 17: expected the end of the line", XFER_ERR_ARG},
      {"f32[8] (2):S0x", "column 14: expected ';' or the end of the line", XFER_ERR_ARG},
      {"f32[8]", "column 7: expected one blank after ']'", XFER_ERR_ARG},
      {"f32[7] (2):S0e", "EVEN split of 7 indices", XFER_ERR_SHAPE},
  };

  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    xfer_layout *layout = NULL;
    xfer_layout *sides[2] = {NULL, NULL};
    char line[128];

    (void)snprintf(line, sizeof line, "%s -> (1):R", lines[i]);
    assert_int_equal(xfi_problem_parse(&sides[0], &sides[1], line), XFER_OK);
    assert_int_equal(xfi_layout_parse(&layout, lines[i]), XFER_OK);
    assert_same(layout, sides[0]);
    destroy(sides[0], sides[1]);
    xfi_layout_destroy(layout);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    xfer_layout *layout = NULL;

    assert_int_equal(xfi_layout_parse(&layout, bad[i].line), bad[i].st);
    if (strstr(xfer_last_error(), bad[i].text) == NULL)
      fail_msg("%s: \"%s\"", bad[i].line, xfer_last_error());
    assert_null(layout);
  }
}

static void test_parse_knows_every_dtype(void **state)
{
  (void)state;
  static const char *const names[] = {"u8",  "i8",  "bool", "f8e4m3", "f8e5m2", "f8e8m0",
                                      "u16", "i16", "f16",  "bf16",   "u32",    "i32",
                                      "f32", "u64", "i64",  "f64"};
  for (int i = 0; i < 16; i++) {
    xfer_layout *src = NULL;
    xfer_layout *dst = NULL;
    char line[64];
    char again[64];

    snprintf(line, sizeof line, "%s[7] (2):S0 -> (1)@3:R", names[i]);
    assert_int_equal(xfi_problem_parse(&src, &dst, line), XFER_OK);
    assert_int_equal(src->dtype, i + 1);
    assert_int_equal(dst->dtype, i + 1);
    xfi_problem_format(again, sizeof again, src, dst);
    assert_string_equal(again, line);
    destroy(src, dst);
  }
}

static void test_format_writes_the_canonical_line(void **state)
{
  (void)state;
  static const struct {
    const char *given;
    const char *canonical; /* NULL: as given */
  } cases[] = {
      {"bf16[4096,11008] (2,4)@0-7:S0,R -> (4)@8-11:S1",
       "bf16[4096,11008] (2,4):S0,R -> (4)@8-11:S1"},
      {"f32[] (2):R -> (1)@1:R", NULL},
      {"f32[4,6] {0=[0:2,0:6];3=[2:4,0:6]+[0:1,0:9]} -> {7=;2=[0:4,0:6]}", NULL},
      {"f32[] {1=[];0=} -> (1):R", NULL},
      {"u8[4,6] {0=f0:7;1=f7:26} -> {0=f05:5}",
       "u8[4,6] {0=[0:1,0:6]+[1:2,0:1];1=[1:2,1:6]+[2:4,0:6]+[4:5,0:2]} -> {0=}"},
      {"f32[0] (2):S0 -> (3):S0", NULL},
      {"f32[007] (02):S00 -> (3)@00-02/01:S-1", "f32[7] (2):S0 -> (3):S0"},
      {"u8[9] (4)@0,2,4,6:S0 -> (4)@6,4,2,0:S0", "u8[9] (4)@0-6/2:S0 -> (4)@6,4,2,0:S0"},
      {"u8[9] (3)@0-7/3:S0 -> (4)@1,2,5,9:S0", "u8[9] (3)@0-6/3:S0 -> (4)@1-2,5,9:S0"},
      {"u8[9] (2)@3-7/4:S0 -> (1)@0-5/9:S0", "u8[9] (2)@3,7:S0 -> (1):S0"},
      {"u8[9] (6)@1,2,3,10,20,30:S0 -> (5)@7,3,4,5,4000:R",
       "u8[9] (6)@1-3,10-30/10:S0 -> (5)@7,3-5,4000:R"},
      {"u8[9,4] (2,2):S0b,S1e -> (2,2):S0f2,S0", NULL},
      {"u8[9,4] (2,2):S0,S1;order=1,0 -> (2,2):S0,S0;order=0,1",
       "u8[9,4] (2,2):S0,S1 -> (2,2):S0,S0"},
      {"u8[9,4] (2,2,2):S0,R,S0;order=2,1,0 -> (2,2,2):S1,S0,S0;order=2,1,0",
       "u8[9,4] (2,2,2):S0,R,S0;order=1,2,0 -> (2,2,2):S1,S0,S0;order=0,2,1"},
      {"u8[9,4] (2):S0;pad=0:9;pad=-1:4 -> (2):S1;pad=1:8;pad=0:16",
       "u8[9,4] (2):S0 -> (2):S1;pad=0:16;pad=1:8"},
      {"f64[576460752303423486] (1):R -> (1)@16777215:R", NULL},
      {"u8[1] (1):S0f9223372036854775807 -> (1):R", NULL},
      {"bf16[8,4] (2):S0 -> f8e4m3 (2):S1", NULL},
      {"f32[] (1):R -> bf16 {0=[]}", NULL},
      {"f32[3] (1):R -> f32 (1):R", "f32[3] (1):R -> (1):R"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    xfer_layout *src = NULL;
    xfer_layout *dst = NULL;
    xfer_layout *src2 = NULL;
    xfer_layout *dst2 = NULL;
    char text[256];
    const char *want = cases[i].canonical != NULL ? cases[i].canonical : cases[i].given;

    print_message("%s\n", cases[i].given);
    xfer_status st = xfi_problem_parse(&src, &dst, cases[i].given);
    if (st != XFER_OK) print_message("%s\n", xfer_last_error());
    assert_int_equal(st, XFER_OK);
    assert_int_equal(xfi_problem_format(text, sizeof text, src, dst), strlen(want));
    assert_string_equal(text, want);
    assert_int_equal(xfi_problem_parse(&src2, &dst2, text), XFER_OK);
    assert_same(src, src2);
    assert_same(dst, dst2);
    destroy(src, dst);
    destroy(src2, dst2);
  }
}

static void test_parse_names_the_column_and_what_it_expected(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof bad_lines / sizeof *bad_lines; i++) {
    xfer_layout *src = NULL;
    xfer_layout *dst = NULL;

    print_message("%s\n", bad_lines[i].line);
    assert_int_equal(xfi_problem_parse(&src, &dst, bad_lines[i].line), bad_lines[i].st);
    assert_string_equal(xfer_last_error(), bad_lines[i].text);
    assert_null(src);
    assert_null(dst);
  }
}

static void test_parse_refuses_every_prefix_and_every_extra_blank(void **state)
{
  (void)state;
  static const char line[] =
      "f8e4m3[40,24] (2,2)@0-6/2:S0,S0f3;order=1,0;pad=0:48 -> (3)@1,3,5:S-1b;pad=1:30";
  const size_t n = sizeof line - 1;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  char text[sizeof line + 1];

  for (size_t cut = 0; cut < n - 1; cut++) { /* the last digit may go: a pad of 3 is refused too */
    memcpy(text, line, cut);
    text[cut] = '\0';
    xfer_status st = xfi_problem_parse(&src, &dst, text);
    if (st == XFER_OK) { /* the line without its last option, or without the rule, is one too */
      assert_true(line[cut] == ';' || line[cut] == 'b');
      destroy(src, dst);
    }
  }
  for (size_t at = 0; at <= n; at++) {
    memcpy(text, line, at);
    text[at] = ' ';
    memcpy(text + at + 1, line + at, n + 1 - at);
    assert_int_equal(xfi_problem_parse(&src, &dst, text), XFER_ERR_ARG);
  }
}

static void test_format_counts_the_whole_text_and_cuts_it(void **state)
{
  (void)state;
  static const char line[] = "f32[7,300] (3)@5,1-2:S0b -> (2,2):R,S1f2;pad=1:400";
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  char text[sizeof line + 1];

  assert_int_equal(xfi_problem_parse(&src, &dst, line), XFER_OK);
  assert_int_equal(xfi_problem_format(NULL, 0, src, dst), sizeof line - 1);
  for (size_t n = 1; n <= sizeof line; n++) {
    memset(text, '#', sizeof text);
    assert_int_equal(xfi_problem_format(text, n, src, dst), sizeof line - 1);
    assert_int_equal(strlen(text), n - 1);
    assert_memory_equal(text, line, n - 1);
    assert_int_equal(text[n], '#');
  }
  destroy(src, dst);
}

static void test_format_says_what_is_unknown_different_or_has_no_spelling(void **state)
{
  (void)state;
  const xfer_run runs[] = {{0, 4, 0}, {4, 3, 0}};
  const int64_t first[] = {0, 1, 2};
  const int64_t lengths[] = {4, 3};
  const xfer_run_table table = {runs, first, lengths, 2, 0};
  const xfer_placement placement = xfer_shard_runs(0, &table);
  const int64_t shape[] = {7};
  const int axes[] = {2};
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_layout *other = NULL;
  xfer_mesh *mesh = NULL;
  char text[128];

  assert_int_equal(xfi_mesh_create(&mesh, axes, 1, NULL), XFER_OK);
  desc.mesh = mesh;
  desc.dtype = XFER_I16;
  desc.n_dims = 1;
  desc.shape = shape;
  desc.placements = &placement;
  desc.n_placements = 1;
  assert_int_equal(xfi_layout_create(&src, &desc), XFER_OK);
  assert_int_equal(xfi_problem_parse(&other, &dst, "f32[7] (1):R -> (1)@2:R"), XFER_OK);

  xfi_problem_format(text, sizeof text, src, src);
  assert_string_equal(text, "i16[7] (2):S0x -> (2):S0x");
  xfi_problem_format(text, sizeof text, src, NULL);
  assert_string_equal(text, "i16[7] (2):S0x -> ?");
  xfi_problem_format(text, sizeof text, NULL, dst);
  assert_string_equal(text, "f32[7] ? -> (1)@2:R");
  xfi_problem_format(text, sizeof text, NULL, NULL);
  assert_string_equal(text, "? -> ?");
  xfi_problem_format(text, sizeof text, src, dst);
  assert_string_equal(text, "i16[7] (2):S0x -> f32 (1)@2:R");
  destroy(src, dst);
  xfi_layout_destroy(other);
  assert_int_equal(xfi_problem_parse(&src, &other, "u8[7,2,3] (1):R -> (1):R"), XFER_OK);
  xfi_layout_destroy(other);
  assert_int_equal(xfi_problem_parse(&other, &dst, "u8[7,4,3] (1):R -> (1)@2:R"), XFER_OK);
  xfi_problem_format(text, sizeof text, src, dst);
  assert_string_equal(text, "u8[7,2,3] (1):R -> u8[7,4,3] (1)@2:R");
  destroy(src, dst);
  xfi_layout_destroy(other);
  xfi_mesh_destroy(mesh);
}

/* Ranks that ascend with some step here and there, and jump elsewhere. */
static void random_ranks(rng *r, int *ranks, int n)
{
  int pool[1024];
  int at = rng_int(r, 0, 5);

  for (int i = 0; i < n; i++) {
    if (rng_percent(r, 20)) at += rng_int(r, 1, 3);
    pool[i] = at;
    at += rng_percent(r, 70) ? 1 : 4;
  }
  if (rng_percent(r, 40)) rng_shuffle(r, pool, n);
  memcpy(ranks, pool, (size_t)n * sizeof *ranks);
}

static xfer_placement random_placement(rng *r, int n_dims)
{
  const int dim = n_dims > 0 ? rng_int(r, -n_dims, n_dims - 1) : 0;

  switch (n_dims > 0 ? rng_int(r, 0, 4) : 0) {
  case 1:
    return xfer_shard(dim);
  case 2:
    return xfer_shard_rule(dim, XFER_BALANCED);
  case 3:
    return xfer_shard_strided(dim, rng_int(r, 1, 5));
  case 4:
    return rng_percent(r, 50) ? xfer_shard_rule(dim, XFER_EVEN) : xfer_shard(dim);
  default:
    return xfer_replicate();
  }
}

/* NULL where EVEN does not divide. */
static xfer_layout *random_layout(rng *r, const int64_t *shape, int n_dims, xfer_dtype dtype)
{
  const int n_axes = rng_int(r, 1, 4);
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  int axes[4];
  int ranks[1024];
  int order[4];
  int32_t order32[4];
  int64_t padded[4] = {0};
  xfer_placement placements[4];
  xfer_mesh *mesh = NULL;
  xfer_layout *layout = NULL;
  int n = 1;

  for (int a = 0; a < n_axes; a++) {
    n *= axes[a] = rng_int(r, 1, 5);
    placements[a] = random_placement(r, n_dims);
    order[a] = a;
  }
  random_ranks(r, ranks, n);
  assert_int_equal(xfi_mesh_create(&mesh, axes, n_axes, rng_percent(r, 50) ? ranks : NULL),
                   XFER_OK);
  rng_shuffle(r, order, n_axes);
  for (int a = 0; a < n_axes; a++)
    order32[a] = order[a];
  for (int d = 0; d < n_dims; d++)
    padded[d] = shape[d] + (rng_percent(r, 20) ? rng_int(r, 1, 9) : 0);
  desc.mesh = mesh;
  desc.dtype = (int32_t)dtype;
  desc.n_dims = n_dims;
  desc.shape = shape;
  desc.padded_shape = rng_percent(r, 50) ? padded : NULL;
  desc.placements = placements;
  desc.n_placements = n_axes;
  desc.n_order = rng_percent(r, 50) ? n_axes : 0;
  desc.order = desc.n_order > 0 ? order32 : NULL;
  xfer_status st = xfi_layout_create(&layout, &desc);
  assert_true(st == XFER_OK || st == XFER_ERR_SHAPE);
  xfi_mesh_destroy(mesh);
  return layout;
}

static void test_random_problems_survive_the_round_trip(void **state)
{
  (void)state;
  int n_done = 0;

  for (uint64_t i = 0; i < 20000; i++) {
    rng r = rng_of(7, i, 0);
    const int n_dims = rng_int(&r, 0, 4);
    const xfer_dtype dtype = (xfer_dtype)rng_int(&r, 1, 16);
    int64_t shape[4] = {0};
    char text[LINE_BYTES];
    char again[LINE_BYTES];
    xfer_layout *back[2] = {NULL, NULL};

    for (int d = 0; d < n_dims; d++)
      shape[d] = rng_int(&r, 0, 40);
    xfer_layout *src = random_layout(&r, shape, n_dims, dtype);
    xfer_layout *dst = random_layout(&r, shape, n_dims, dtype);
    if (src != NULL && dst != NULL) {
      assert_in_range(xfi_problem_format(text, sizeof text, src, dst), 1, sizeof text - 1);
      if (xfi_problem_parse(&back[0], &back[1], text) != XFER_OK)
        fail_msg("%s: %s", text, xfer_last_error());
      if (memcmp(src->digest, back[0]->digest, sizeof src->digest) != 0)
        fail_msg("%s: another source", text);
      if (memcmp(dst->digest, back[1]->digest, sizeof dst->digest) != 0)
        fail_msg("%s: another destination", text);
      xfi_problem_format(again, sizeof again, back[0], back[1]);
      assert_string_equal(again, text);
      destroy(back[0], back[1]);
      n_done++;
    }
    destroy(src, dst);
  }
  assert_in_range(n_done, 5000, 20000);
}

/* One page again and again, so that such a line takes no memory. */
static void test_a_line_of_2_gib_is_refused(void **state)
{
  (void)state;
  enum { PIECE = 1 << 21 };
  static char piece[PIECE];
  const size_t n_bytes = (size_t)1 << 31;
  xfer_layout *layouts[2] = {NULL, NULL};
  FILE *file = tmpfile();
  char *line = mmap(NULL, n_bytes + PIECE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0); /* ends with a piece of zeros */

  assert_non_null(file);
  assert_true(line != MAP_FAILED);
  memset(piece, 'x', sizeof piece);
  assert_int_equal(fwrite(piece, sizeof piece, 1, file), 1);
  assert_int_equal(fflush(file), 0);
  for (size_t at = 0; at < n_bytes; at += PIECE)
    assert_true(mmap(line + at, PIECE, PROT_READ, MAP_SHARED | MAP_FIXED, fileno(file), 0) !=
                MAP_FAILED);
  assert_int_equal(xfi_problem_parse(&layouts[0], &layouts[1], line), XFER_ERR_ARG);
  assert_string_equal(xfer_last_error(), "a line of more than 2147483646 characters");
  assert_int_equal(munmap(line, n_bytes + PIECE), 0);
  (void)fclose(file);
}

static void test_parse_survives_each_failed_allocation(void **state)
{
  (void)state;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_status st = XFER_ERR_NOMEM;
  long n = 0;

  for (; st != XFER_OK && n < 100; n++) {
    xfi_alloc_fail_after(n);
    st = xfi_problem_parse(&src, &dst,
                           "u8[9,4] (2,2)@3,2,1,0:S0,S0;order=1,0 -> "
                           "{0=[0:2,0:4];1=;2=;3=;4=;5=;6=;7=;8=[2:9,0:4]}");
    if (st != XFER_OK) assert_null(src);
    if (st != XFER_OK) assert_null(dst);
  }
  xfi_alloc_fail_after(-1);
  assert_int_equal(st, XFER_OK);
  assert_true(n > 5);
  destroy(src, dst);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_parse_reads_every_part_of_a_line),
      cmocka_unit_test(test_a_layout_is_a_problem_up_to_its_arrow),
      cmocka_unit_test(test_parse_knows_every_dtype),
      cmocka_unit_test(test_format_writes_the_canonical_line),
      cmocka_unit_test(test_parse_names_the_column_and_what_it_expected),
      cmocka_unit_test(test_parse_refuses_every_prefix_and_every_extra_blank),
      cmocka_unit_test(test_format_counts_the_whole_text_and_cuts_it),
      cmocka_unit_test(test_format_says_what_is_unknown_different_or_has_no_spelling),
      cmocka_unit_test(test_random_problems_survive_the_round_trip),
      cmocka_unit_test(test_a_line_of_2_gib_is_refused),
      cmocka_unit_test(test_parse_survives_each_failed_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
