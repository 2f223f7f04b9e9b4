/* What a part of a dim holds and which parts hold an interval, against each other and against index
 * lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cut.h"
#include "property/rng.h"

#include "layouts_of.h"

enum { MAX_LIST = 128 };

/* ---- known parts ---- */

static void test_runs_of_known_parts(void **state)
{
  (void)state;
  static const struct {
    const char *side;
    int rank;
    int64_t length;
    int n_runs;
    xfer_run runs[3];
  } cases[] = {
      {"u8[7] (1):R", 0, 7, 1, {{0, 7, 0}}},
      {"u8[0] (2):S0", 1, 0, 0, {{0}}},
      {"u8[5] (4):S0", 3, 0, 0, {{0}}},
      {"u8[18] (4,2):S0,S0", 7, 1, 1, {{17, 1, 0}}}, /* 5,5,5,3, then 2,1 */
      {"u8[18] (4,2):S0,S0", 1, 2, 1, {{3, 2, 0}}},
      {"u8[8] (2,2):S0f2,S0", 0, 2, 1, {{0, 2, 0}}}, /* [0,1,4,5], then [0,1] */
      {"u8[8] (2,2):S0,S0f2", 0, 2, 2, {{0, 1, 0}, {2, 1, 1}}},
      {"u8[8] (2,2):S0,S0f2", 3, 2, 2, {{5, 1, 0}, {7, 1, 1}}},
      {"u8[9] (4):S0f2", 0, 3, 2, {{0, 2, 0}, {5, 1, 2}}},
      {"u8[7] (3,2):S0,S0;order=1,0", 0, 2, 1, {{0, 2, 0}}}, /* by 2: 0-3; by 3: 0-1 */
      {"u8[7] (3,2):S0,S0;order=1,0", 5, 1, 1, {{6, 1, 0}}},
      {"u8[10] (4):S0;pad=0:16", 2, 4, 1, {{8, 2, 0}}},
      {"u8[10] (4):S0;pad=0:16", 3, 4, 0, {{0}}},
      {"u8[10] (1):R;pad=0:16", 0, 16, 1, {{0, 10, 0}}},
      {"u8[8589934592] (3):S0b", 2, 2863311530, 1, {{5726623062, 2863311530, 0}}},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    xfer_layout *layout = layout_of(cases[c].side);
    xfi_runs runs = {NULL, 0, 0};
    xfi_place place;

    print_message("%s, rank %d\n", cases[c].side, cases[c].rank);
    assert_true(xfi_layout_place(layout, cases[c].rank, &place));
    assert_int_equal(xfi_dim_length(&layout->dims[0], place.part[0]), cases[c].length);
    assert_int_equal(xfi_dim_runs(&layout->dims[0], place.part[0], &runs), XFER_OK);
    assert_int_equal(runs.n, cases[c].n_runs);
    for (size_t i = 0; i < runs.n; i++)
      assert_memory_equal(&runs.at[i], &cases[c].runs[i], sizeof runs.at[i]);
    xfi_free(runs.at);
    xfi_layout_destroy(layout);
  }
}

/* ---- forward and back agree ---- */

/* list[i] is the global index at local index i, -1 where ZERO. Returns the part's length. */
static int64_t list_part(const xfi_dim *dim, int64_t part, int64_t *list)
{
  const int64_t n = xfi_dim_length(dim, part);
  xfi_runs runs = {NULL, 0, 0};
  int64_t at = 0;

  assert_true(n <= MAX_LIST);
  for (int64_t i = 0; i < n; i++)
    list[i] = -1;
  assert_int_equal(xfi_dim_runs(dim, part, &runs), XFER_OK);
  for (size_t r = 0; r < runs.n; r++) {
    const xfer_run *run = &runs.at[r];

    assert_true(run->length > 0 && run->local >= at && run->local + run->length <= n);
    assert_true(run->global >= 0 && run->global + run->length <= dim->size);
    if (r > 0 && run->local == at) /* maximal */
      assert_true(run->global != runs.at[r - 1].global + runs.at[r - 1].length);
    at = run->local + run->length;
    for (int64_t i = 0; i < run->length; i++)
      list[run->local + i] = run->global + i;
  }
  for (int64_t i = 0; i < n; i++)
    assert_int_equal(xfi_dim_global(dim, part, i), list[i]);
  xfi_free(runs.at);
  return n;
}

/* Counts how often the holds name (part, local) as the place of a global index, where they should.
 */
static void check_holds(const xfi_dim *dim, const xfi_holds *holds, int64_t lo, int64_t hi)
{
  int64_t list[MAX_LIST];
  int64_t n_places = 0;
  int64_t n_held = 0;

  for (int64_t part = 0; part < dim->n_parts; part++) {
    const int64_t n = list_part(dim, part, list);

    for (int64_t i = 0; i < n; i++) {
      int found = 0;

      if (list[i] < lo || list[i] >= hi) continue;
      n_places++;
      for (size_t h = 0; h < holds->n; h++) {
        const xfi_hold *hold = &holds->at[h];

        found += hold->part == part && hold->local <= i && i < hold->local + hold->length &&
                 hold->global + (i - hold->local) == list[i];
      }
      assert_int_equal(found, 1);
    }
  }
  for (size_t h = 0; h < holds->n; h++)
    n_held += holds->at[h].length;
  assert_int_equal(n_held, n_places);
}

/* With `once`: ascending, each index that anybody holds is given once, at its lowest place. */
static void check_first_holders(const xfi_dim *dim, const xfi_holds *holds, int64_t lo, int64_t hi)
{
  int64_t list[MAX_LIST];
  size_t h = 0;

  for (int64_t x = lo; x < hi; x++) {
    int64_t at = -1;
    int64_t part = 0;

    for (; part < dim->n_parts && at < 0; part++) {
      const int64_t n = list_part(dim, part, list);

      for (int64_t i = 0; i < n && at < 0; i++)
        if (list[i] == x) at = i;
    }
    if (at < 0) continue;
    while (h < holds->n && holds->at[h].global + holds->at[h].length <= x)
      h++;
    assert_true(h < holds->n && holds->at[h].global <= x);
    assert_int_equal(holds->at[h].part, part - 1);
    assert_int_equal(holds->at[h].local + (x - holds->at[h].global), at);
  }
  for (size_t i = 1; i < holds->n; i++)
    assert_true(holds->at[i].global >= holds->at[i - 1].global + holds->at[i - 1].length);
}

static void check_dim(const xfi_dim *dim)
{
  for (int64_t lo = 0; lo <= dim->size; lo += 1 + dim->size / 3) {
    for (int64_t hi = lo; hi <= dim->size; hi += 1 + dim->size / 4) {
      xfi_holds all = {NULL, 0, 0};
      xfi_holds once = {NULL, 0, 0};

      assert_int_equal(xfi_dim_holders(dim, lo, hi, false, &all), XFER_OK);
      assert_int_equal(xfi_dim_holders(dim, lo, hi, true, &once), XFER_OK);
      check_holds(dim, &all, lo, hi);
      if (xfi_dim_has_table(dim))
        check_first_holders(dim, &once, lo, hi);
      else
        check_holds(dim, &once, lo, hi);
      xfi_free(all.at);
      xfi_free(once.at);
    }
  }
}

static void test_forward_and_back_agree_for_every_rule(void **state)
{
  (void)state;
  static const char *const sides[] = {
      "u8[7] (1):R",
      "u8[0] (3):S0",
      "u8[13] (4):S0",
      "u8[13] (4):S0b",
      "u8[12] (4):S0e",
      "u8[13] (3,2,2):S0,S0b,S0",
      "u8[19] (2,3):S0f3,S0",
      "u8[19] (3,2):S0,S0f4",
      "u8[19] (3,2,2):S0f2,S0f3,S0;order=2,0,1",
      "u8[11] (3,2):S0,S0;pad=0:17",
      "u8[1] (2,2):S0f2,S0b;pad=0:9",
  };

  for (size_t c = 0; c < sizeof sides / sizeof *sides; c++) {
    xfer_layout *layout = layout_of(sides[c]);

    print_message("%s\n", sides[c]);
    check_dim(&layout->dims[0]);
    xfi_layout_destroy(layout);
  }
}

/* Tables that repeat and leave out indices, alone, before and after other cuts. */
static void random_table(rng *r, xfer_run *runs, int64_t *first, int64_t *lengths, int n_coords,
                         int64_t n)
{
  int64_t n_runs = 0;

  for (int i = 0; i < n_coords; i++) {
    int64_t local = 0;

    first[i] = n_runs;
    for (int k = rng_int(r, 0, 4); k > 0 && n > 0; k--) {
      const int64_t global = rng_int(r, 0, (int)n - 1);
      const int64_t length = rng_int(r, 1, (int)(n - global));

      local += rng_percent(r, 30) ? rng_int(r, 1, 2) : 0;
      runs[n_runs++] = (xfer_run){global, length, local};
      local += length;
    }
    lengths[i] = local + (rng_percent(r, 30) ? 2 : 0);
  }
  first[n_coords] = n_runs;
}

static void test_forward_and_back_agree_for_random_tables(void **state)
{
  (void)state;
  for (uint64_t i = 0; i < 150; i++) {
    rng r = rng_of(11, i, 0);
    const int axes[] = {rng_int(&r, 1, 3), 3};
    const int64_t size = rng_int(&r, 1, 9);
    const int64_t padded = size + rng_int(&r, 0, 2);
    xfer_run runs[16];
    int64_t first[4];
    int64_t lengths[4];
    const xfer_run_table table = {runs, first, lengths, 3, 1};
    const xfer_placement placements[] = {
        rng_percent(&r, 50) ? xfer_shard(0) : xfer_shard_strided(0, 2), xfer_shard_runs(0, &table)};
    const int32_t table_first[] = {1, 0};
    xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
    xfer_layout *layout = NULL;
    xfer_mesh *mesh = NULL;

    assert_int_equal(xfi_mesh_create(&mesh, axes, 2, NULL), XFER_OK);
    desc.mesh = mesh;
    desc.dtype = XFER_U8;
    desc.n_dims = 1;
    desc.shape = &size;
    desc.padded_shape = &padded;
    desc.placements = placements;
    desc.n_placements = 2;
    if (axes[0] > 1) desc.order = table_first; /* the parts before a later table differ in length */
    desc.n_order = axes[0] > 1 ? 2 : 0;
    random_table(&r, runs, first, lengths, 3, padded);
    if (xfi_layout_create(&layout, &desc) != XFER_OK) fail_msg("%s", xfer_last_error());
    check_dim(&layout->dims[0]);
    xfi_layout_destroy(layout);
    xfi_mesh_destroy(mesh);
  }
}

static void test_holders_are_appended(void **state)
{
  (void)state;
  xfer_layout *layout = layout_of("u8[8] (2):S0");
  xfi_holds holds = {NULL, 0, 0};

  assert_int_equal(xfi_dim_holders(&layout->dims[0], 1, 2, false, &holds), XFER_OK);
  assert_int_equal(xfi_dim_holders(&layout->dims[0], 3, 6, false, &holds), XFER_OK);
  assert_int_equal(xfi_dim_holders(&layout->dims[0], 6, 6, true, &holds), XFER_OK);
  assert_int_equal(holds.n, 3);
  assert_memory_equal(&holds.at[0], (&(xfi_hold){0, 1, 1, 1}), sizeof *holds.at);
  assert_memory_equal(&holds.at[1], (&(xfi_hold){0, 3, 1, 3}), sizeof *holds.at);
  assert_memory_equal(&holds.at[2], (&(xfi_hold){1, 4, 2, 0}), sizeof *holds.at);
  xfi_free(holds.at);
  xfi_layout_destroy(layout);
}

static void test_only_a_table_makes_a_dim_repeat(void **state)
{
  (void)state;
  const xfer_run runs[] = {{0, 4, 0}};
  const int64_t first[] = {0, 1};
  const int64_t lengths[] = {4};
  const xfer_run_table table = {runs, first, lengths, 1, 0};
  xfer_layout *closed = layout_of("u8[8] (2,2):S0f2,S0");
  xfer_layout *listed = layout_of_table(4, &table, NULL);

  assert_false(xfi_dim_has_table(&closed->dims[0]));
  assert_true(xfi_dim_has_table(&listed->dims[0]));
  xfi_layout_destroy(closed);
  xfi_layout_destroy(listed);
}

/* ---- failed allocations ---- */

static xfer_status list_runs(void *context)
{
  xfi_runs runs = {NULL, 0, 0};
  xfer_status st = xfi_dim_runs(context, 0, &runs);

  assert_true(st != XFER_OK || runs.n > 8);
  xfi_free(runs.at);
  return st;
}

static xfer_status list_all(void *context)
{
  xfi_holds holds = {NULL, 0, 0};
  const xfi_dim *dim = context;
  xfer_status st = xfi_dim_holders(dim, 0, dim->size, false, &holds);

  xfi_free(holds.at);
  return st;
}

static xfer_status list_once(void *context)
{
  xfi_holds holds = {NULL, 0, 0};
  const xfi_dim *dim = context;
  xfer_status st = xfi_dim_holders(dim, 0, dim->size, true, &holds);

  xfi_free(holds.at);
  return st;
}

static void test_lists_survive_each_failed_allocation(void **state)
{
  (void)state;
  const xfer_run runs[] = {{0, 3, 0}, {1, 3, 0}};
  const int64_t first[] = {0, 1, 2};
  const int64_t lengths[] = {3, 3};
  const xfer_run_table table = {runs, first, lengths, 2, 0};
  xfer_layout *closed = layout_of("u8[80] (2,2):S0f10,S0f20");
  xfer_layout *uncut = layout_of("u8[80] (2):R");
  xfer_layout *listed = layout_of_table(4, &table, NULL);

  assert_true(fail_each_allocation(list_runs, &closed->dims[0]) >= 4);
  assert_true(fail_each_allocation(list_all, &closed->dims[0]) >= 3);
  assert_int_equal(fail_each_allocation(list_all, &uncut->dims[0]), 1);
  assert_int_equal(fail_each_allocation(list_once, &listed->dims[0]), 3);
  xfi_layout_destroy(closed);
  xfi_layout_destroy(uncut);
  xfi_layout_destroy(listed);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_runs_of_known_parts),
      cmocka_unit_test(test_forward_and_back_agree_for_every_rule),
      cmocka_unit_test(test_forward_and_back_agree_for_random_tables),
      cmocka_unit_test(test_holders_are_appended),
      cmocka_unit_test(test_only_a_table_makes_a_dim_repeat),
      cmocka_unit_test(test_lists_survive_each_failed_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
