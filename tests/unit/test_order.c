/* The order in which ranks go to their peers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "link.h"
#include "order.h"
#include "run.h"

enum { N_RANKS = 7, NOBODY = -1 };

/* Of a set of bits. */
typedef struct ranks_of {
  int32_t at[N_RANKS];
  xfi_ranks ranks;
} ranks_of;

static void list(ranks_of *to, unsigned set)
{
  to->ranks = (xfi_ranks){to->at, 0};
  for (int r = 0; r < N_RANKS; r++)
    if ((set >> r & 1) != 0) to->at[to->ranks.n++] = r;
}

static int count(unsigned set)
{
  return __builtin_popcount(set);
}

/* Where visitor `rank` of all that are visited by all of `visitors` goes, one after the other. */
static bool round_of(int order[N_RANKS], unsigned visited, unsigned visitors, int rank)
{
  xfi_visit visits[N_RANKS];
  ranks_of all;
  size_t n = 0;
  int k = 0;
  bool even;

  list(&all, visitors);
  for (int r = N_RANKS - 1; r >= 0; r--)
    if ((visited >> r & 1) != 0) visits[n++] = (xfi_visit){r, &all.ranks, NULL, 0};
  even = xfi_order_visits(visits, n, rank);
  for (size_t i = 0; i < n; i++)
    if (visits[i].rank != rank) order[k++] = visits[i].rank;
  assert_int_equal(k, count(visited & ~(1u << rank)));
  while (k < N_RANKS)
    order[k++] = NOBODY;
  return even;
}

/* The most visitors that one rank has at a time, while all go on at one pace. */
static int crowd(int orders[N_RANKS][N_RANKS])
{
  int most = 0;

  for (int k = 0; k < N_RANKS; k++) {
    int n[N_RANKS] = {0};

    for (int r = 0; r < N_RANKS; r++)
      if (orders[r][k] != NOBODY && ++n[orders[r][k]] > most) most = n[orders[r][k]];
  }
  return most;
}

/* All sets of ranks, whatever numbers they have and whether or not they overlap. */
static void test_visitors_of_the_same_ranks_do_not_meet(void **state)
{
  (void)state;
  for (unsigned visited = 1; visited < 1u << N_RANKS; visited++)
    for (unsigned visitors = 1; visitors < 1u << N_RANKS; visitors++) {
      const int n = count(visited);
      const int m = count(visitors);
      int orders[N_RANKS][N_RANKS];

      for (int r = 0; r < N_RANKS; r++) {
        for (int k = 0; k < N_RANKS; k++)
          orders[r][k] = NOBODY;
        if ((visitors >> r & 1) != 0)
          assert_int_equal(round_of(orders[r], visited, visitors, r), m <= n || m % n == 0);
      }
      if (m <= n) assert_true(crowd(orders) <= 1);
      if ((visited & visitors) == 0) assert_int_equal(crowd(orders), (m + n - 1) / n);
    }
}

/* Rank 3 of 2 to 4, each of which shares its ends with its neighbours: one's last is the next
 * one's first. */
static void test_neighbours_go_from_end_to_end(void **state)
{
  ranks_of ends[2];
  ranks_of alone;
  ranks_of others;
  xfi_visit visits[4];

  (void)state;
  list(&ends[0], 0x0c); /* 2 and 3 */
  list(&ends[1], 0x18); /* 3 and 4 */
  list(&alone, 0x08);
  list(&others, 0x10); /* to which rank 3 goes for little */
  visits[0] = (xfi_visit){6, &ends[1].ranks, NULL, 0};
  visits[1] = (xfi_visit){0, &others.ranks, NULL, 0};
  visits[2] = (xfi_visit){5, &alone.ranks, NULL, 0};
  visits[3] = (xfi_visit){1, &ends[0].ranks, NULL, 0};
  assert_true(xfi_order_visits(visits, 4, 3));
  for (int i = 0; i < 4; i++) {
    static const int order[] = {1, 5, 6, 0};

    assert_int_equal(visits[i].rank, order[i]);
  }
}

/* Of three that have other visitors, not the same ones, some meet. */
static void test_ranks_that_share_otherwise_meet(void **state)
{
  ranks_of shared[3];
  xfi_visit visits[3];

  (void)state;
  for (unsigned i = 0; i < 3; i++) {
    list(&shared[i], 0x08 | 1u << (4 + i % 2));
    visits[i] = (xfi_visit){(int)i, &shared[i].ranks, NULL, 0};
  }
  assert_false(xfi_order_visits(visits, 3, 3));
  assert_true(xfi_order_visits(visits, 2, 3));
}

/* Who keeps a part of what others have of it and of its replicas does not go to these. */
static void test_visitors_of_replicas_do_not_meet(void **state)
{
  static const int orders[2][3] = {{1, 6, 0}, {6, 1, 0}};

  (void)state;
  for (int rank = 2; rank <= 3; rank++) {
    ranks_of replicas[2];
    ranks_of alone;
    ranks_of own;
    xfi_visit visits[4];

    list(&replicas[0], 0x0e); /* 1, 2 and 3 */
    list(&replicas[1], 0x4c); /* 2, 3 and 6 */
    list(&alone, 1u << rank);
    list(&own, 0x10u | 1u << rank);
    visits[0] = (xfi_visit){0, &alone.ranks, NULL, 0};
    visits[1] = (xfi_visit){rank, &own.ranks, NULL, 0};
    visits[2] = (xfi_visit){6, &replicas[1].ranks, NULL, 0};
    visits[3] = (xfi_visit){1, &replicas[0].ranks, NULL, 0};
    assert_true(xfi_order_visits(visits, 4, rank));
    for (int i = 0; i < 3; i++)
      assert_int_equal(visits[i].rank, orders[rank - 2][i]);
    assert_int_equal(visits[3].rank, rank);
    list(&replicas[0], 0x3e); /* and 4 and 5: two at each */
    list(&replicas[1], 0x7c);
    assert_true(xfi_order_visits(visits, 4, rank));
    list(&replicas[0], 0x1e); /* three at two */
    list(&replicas[1], 0x5c);
    assert_false(xfi_order_visits(visits, 4, rank));
    for (int i = 0; i < 2; i++)
      list(&replicas[i], 0x0c); /* which keep nothing */
    assert_true(xfi_order_visits(visits, 4, rank));
    for (int i = 0; i < 3; i++)
      assert_int_equal(visits[i].rank, orders[rank - 2][i]);
  }
}

/* Ranks 1 and 3 read from 3 to 5, where 1 keeps what others read. */
static void test_what_a_rank_keeps_for_others_is_nothing_to_these(void **state)
{
  static const int orders[2][3] = {{3, 4, 5}, {4, 5, 3}};

  (void)state;
  for (int rank = 1; rank <= 3; rank += 2) {
    ranks_of all;
    ranks_of own;
    xfi_visit visits[4];

    list(&all, 0x0a);
    list(&own, 0x07); /* 0 to 2 */
    for (int i = 0; i < 3; i++)
      visits[i] = (xfi_visit){3 + i, &all.ranks, NULL, 0};
    visits[3] = (xfi_visit){1, &own.ranks, NULL, 0};
    assert_true(xfi_order_visits(visits, rank == 1 ? 4 : 3, rank));
    for (int i = 0; i < 3; i++)
      assert_int_equal(visits[i].rank, orders[rank / 2][i]);
  }
}

/* Three that come to one, and go somewhere else besides. */
static void test_neighbours_of_two_others_meet(void **state)
{
  ranks_of first;
  ranks_of second;
  xfi_visit visits[2];

  (void)state;
  for (int i = 0; i < 2; i++)
    visits[i] = (xfi_visit){i, i == 0 ? &first.ranks : &second.ranks, NULL, 0};
  list(&first, 0x18);  /* 3 and 4 */
  list(&second, 0x28); /* 3 and 5 */
  assert_true(xfi_order_visits(visits, 2, 3));
  list(&second, 0x2a); /* 1 itself */
  assert_true(xfi_order_visits(visits, 2, 3));
  list(&first, 0x0a); /* and 0 */
  assert_true(xfi_order_visits(visits, 2, 3));
  list(&first, 0x08);
  list(&second, 0x38); /* 3, 4 and 5 */
  assert_false(xfi_order_visits(visits, 2, 3));
  assert_true(xfi_order_visits(visits + 1, 1, 3));
  visits[0].rank = 3; /* which keeps something */
  assert_true(xfi_order_visits(visits, 2, 3));
}

/* Whatever peers say, each is gone to once. */
static void test_any_lists_are_borne(void **state)
{
  uint64_t x = 1;

  (void)state;
  for (int n = 0; n < 20000; n++) {
    int32_t at[N_RANKS][N_RANKS];
    xfi_ranks ranks[N_RANKS];
    xfi_visit visits[N_RANKS];
    unsigned seen = 0;

    for (int i = 0; i < N_RANKS; i++) {
      x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
      ranks[i] = (xfi_ranks){at[i], (size_t)(x >> 33) % (N_RANKS + 1)};
      visits[i] = (xfi_visit){(i + n) % N_RANKS, &ranks[i], NULL, 0};
      for (size_t k = 0; k < ranks[i].n; k++) {
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
        at[i][k] = (int32_t)((x >> 33) % (N_RANKS + 2)) - 1;
      }
      if (n % 2 == 0 && i > 0) ranks[i] = ranks[0];
    }
    (void)xfi_order_visits(visits, (size_t)(n % N_RANKS) + 1, n / N_RANKS % N_RANKS);
    for (int i = 0; i < N_RANKS; i++)
      seen |= 1u << visits[i].rank;
    assert_int_equal(seen, (1u << N_RANKS) - 1);
  }
}

static void test_little_alone_is_in_order(void **state)
{
  ranks_of none;
  xfi_visit visits[2];

  (void)state;
  list(&none, 0);
  visits[0] = (xfi_visit){4, &none.ranks, NULL, 0};
  visits[1] = (xfi_visit){2, &none.ranks, NULL, 0};
  assert_true(xfi_order_visits(visits, 2, 3));
  assert_int_equal(visits[0].rank, 2);
  assert_true(xfi_order_visits(visits, 0, 3));
}

/* ---- who exchanges much with whom -------------------------------------------------------------
 */

enum { N_HOST = 5 };

/* `n_bytes` from each of 3 ranks to each other one, and little to and from rank 3; rank 4
 * keeps what it has. */
static void add_tensor(xfer_tensor *tensors, size_t *n, const char *line)
{
  xfer_layout *src;
  xfer_layout *dst;

  assert_int_equal(xfer_problem_parse(&src, &dst, line), XFER_OK);
  tensors[(*n)++] = (xfer_tensor){"t", src, dst, {0}};
}

static size_t make_tensors(xfer_tensor *tensors)
{
  size_t n = 0;

  for (int r = 0; r < 4; r++)
    for (int peer = 0; peer < 4; peer++) {
      const int n_bytes = r == 3 || peer == 3 ? 6 : 96;
      char line[64];

      (void)snprintf(line, sizeof line, "u8[%d] (1)@%d:R -> (1)@%d:R", n_bytes, r, peer);
      if (r != peer) add_tensor(tensors, &n, line);
    }
  add_tensor(tensors, &n, "u8[96] (1)@4:R -> (1)@4:R");
  return n;
}

static void check_ranks(const xfi_ranks *ranks, unsigned set)
{
  ranks_of expected;

  list(&expected, set);
  assert_int_equal(ranks->n, expected.ranks.n);
  assert_memory_equal(ranks->at, expected.at, ranks->n * sizeof *ranks->at);
}

static void test_whoever_sends_and_receives_counts_as_its_own_peer(void **state)
{
  static const xfi_near near[N_HOST] = {XFI_SAME_HOST, XFI_SAME_HOST, XFI_SAME_HOST, XFI_SAME_HOST,
                                        XFI_SAME_HOST};
  /* With 96 bytes to each of two, 6 are a sixteenth. */
  static const unsigned with[N_HOST] = {0x07, 0x07, 0x07, 0x0f, 0x10};
  const xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor tensors[13];
  const size_t n = make_tensors(tensors);

  (void)state;
  for (int r = 0; r < N_HOST; r++) {
    xfi_links links = {.n = 0};
    xfer_plan *plan = NULL;

    assert_int_equal(xfi_plan_simulate(&plan, N_HOST, r, tensors, n, &options), XFER_OK);
    assert_int_equal(xfi_links_list(&links, plan, near), XFER_OK);
    assert_int_equal(xfi_links_list_ranks(&links, plan), XFER_OK);
    for (int send = 0; send < 2; send++)
      check_ranks(&links.ranks[send], with[r]);
    xfi_links_destroy(&links, NULL);
    xfi_plan_destroy(plan);
  }
  for (size_t t = 0; t < n; t++) {
    xfer_layout_destroy((xfer_layout *)(uintptr_t)tensors[t].src);
    xfer_layout_destroy((xfer_layout *)(uintptr_t)tensors[t].dst);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_visitors_of_the_same_ranks_do_not_meet),
      cmocka_unit_test(test_neighbours_go_from_end_to_end),
      cmocka_unit_test(test_ranks_that_share_otherwise_meet),
      cmocka_unit_test(test_visitors_of_replicas_do_not_meet),
      cmocka_unit_test(test_what_a_rank_keeps_for_others_is_nothing_to_these),
      cmocka_unit_test(test_neighbours_of_two_others_meet),
      cmocka_unit_test(test_any_lists_are_borne),
      cmocka_unit_test(test_little_alone_is_in_order),
      cmocka_unit_test(test_whoever_sends_and_receives_counts_as_its_own_peer),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
