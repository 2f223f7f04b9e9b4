/* Moves of all ranks of a problem: both ends agree, destinations are tiled, a domain gets once what
 * its ranks want. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "class.h"
#include "move_lists.h"

#include "plans_of.h"

/* ---- what every problem must satisfy ---- */

static const xfi_peer *find_peer(const xfi_move_list *list, int rank)
{
  for (size_t p = 0; p < list->n_peers; p++)
    if (list->peers[p].rank == rank) return &list->peers[p];
  return NULL;
}

/* What `from` sends to `to` is what `to` receives, in the same order, place by place. */
static void check_pair(const xfi_moves *from, const xfi_moves *to)
{
  const xfi_peer *out = find_peer(&from->sends, to->rank);
  const xfi_peer *in = find_peer(&to->recvs, from->rank);
  uint64_t n_bytes = 0;

  assert_true((out == NULL) == (in == NULL));
  if (out == NULL) return;
  assert_int_equal(out->n, in->n);
  assert_true(out->n > 0);
  for (size_t i = 0; i < out->n; i++) {
    const xfi_move *a = &from->sends.moves[out->first + i];
    const xfi_move *b = &to->recvs.moves[in->first + i];
    const xfi_class *cls = xfi_moves_class(from, a->tensor);
    xfi_box sent = {{0}, {0}, {0}, {0}, 0};
    xfi_box got = {{0}, {0}, {0}, {0}, 0};

    assert_int_equal(a->peer, to->rank);
    assert_int_equal(b->peer, from->rank);
    assert_int_equal(a->tensor, b->tensor);
    assert_int_equal(a->stripe, b->stripe);
    assert_int_equal(a->n_stripes, b->n_stripes);
    xfi_move_box(&sent, cls, &cls->sends, a);
    xfi_move_box(&got, xfi_moves_class(to, b->tensor), &xfi_moves_class(to, b->tensor)->recvs, b);
    for (int d = 0; d < cls->src->n_dims; d++) {
      assert_int_equal(sent.lo[d], got.lo[d]);
      assert_int_equal(sent.length[d], got.length[d]);
      assert_int_equal(sent.src_local[d], got.src_local[d]);
      assert_int_equal(sent.dst_local[d], got.dst_local[d]);
    }
    if (!cls->broadcast) n_bytes += bytes_of(cls, sent.length);
  }
  assert_int_equal(out->n_bytes, n_bytes);
  assert_int_equal(in->n_bytes, n_bytes);
}

/* Peers ascend, are others, and their moves are the list, one after the other. */
static void check_list(const xfi_moves *plan, const xfi_move_list *list)
{
  size_t at = 0;

  for (size_t p = 0; p < list->n_peers; p++) {
    assert_true(p == 0 || list->peers[p - 1].rank < list->peers[p].rank);
    assert_int_not_equal(list->peers[p].rank, plan->rank);
    assert_int_equal(list->peers[p].first, at);
    at += list->peers[p].n;
  }
  assert_int_equal(at, list->n_moves);
}

static uint64_t bytes_in(const xfi_moves *plan)
{
  uint64_t n = 0;

  for (size_t i = 0; i < plan->recvs.n_moves; i++) {
    const xfi_class *cls = xfi_moves_class(plan, plan->recvs.moves[i].tensor);
    xfi_box box;

    xfi_move_box(&box, cls, &cls->recvs, &plan->recvs.moves[i]);
    n += bytes_of(cls, box.length);
  }
  return n;
}

/* Moves into this rank, selfs and relayed ones included, add up to its part without ZERO elements;
 * what each of them writes was proved by class.c, so that bytes suffice. */
static void check_bytes(const xfi_moves *plan)
{
  uint64_t wire;
  uint64_t self = 0;
  uint64_t out = 0;

  wire = bytes_in(plan) + (plan->relay == NULL ? 0 : bytes_in(plan->relay));
  for (size_t i = 0; i < plan->selfs.n_moves; i++) {
    const xfi_class *cls = xfi_moves_class(plan, plan->selfs.moves[i].tensor);

    assert_int_equal(plan->selfs.moves[i].peer, plan->rank);
    assert_int_equal(plan->selfs.moves[i].n_stripes, 1);
    self += bytes_of(cls, xfi_flows_length(&cls->recvs, plan->selfs.moves[i].box));
  }
  for (size_t i = 0; i < plan->sends.n_moves; i++) {
    const xfi_class *cls = xfi_moves_class(plan, plan->sends.moves[i].tensor);
    xfi_box box;

    xfi_move_box(&box, cls, &cls->sends, &plan->sends.moves[i]);
    out += bytes_of(cls, box.length);
  }
  assert_int_equal(plan->self_bytes, self);
  assert_int_equal(plan->out_bytes, out);
  assert_int_equal(plan->in_bytes, wire + self + plan->zero_bytes);
}

/* Of the boxes that moves are cut from. */
static int compare_begins(const xfi_moves *plan, const xfi_move *a, const xfi_move *b)
{
  const xfi_class *cls = xfi_moves_class(plan, a->tensor);
  const int64_t *x = xfi_flows_lo(&cls->recvs, a->box);
  const int64_t *y = xfi_flows_lo(&cls->recvs, b->box);

  for (int d = 0; d < cls->src->n_dims; d++)
    if (x[d] != y[d]) return x[d] < y[d] ? -1 : 1;
  return a->stripe < b->stripe ? -1 : 1;
}

/* What one rank gives of a tensor goes in the tensor's order, whatever its source's parts are. */
static void check_order(const xfi_moves *relay)
{
  for (size_t i = 1; i < relay->recvs.n_moves; i++) {
    const xfi_move *a = &relay->recvs.moves[i - 1];
    const xfi_move *b = &relay->recvs.moves[i];

    if (a->tensor == b->tensor && a->peer == b->peer) assert_true(compare_begins(relay, a, b) < 0);
  }
}

/* What is relayed stays in the domain, and both ends have one list of it. */
static void check_relay(xfi_moves *const *plans, int n_ranks, int rank, int size)
{
  const xfi_moves *relay = plans[rank]->relay;

  if (relay == NULL) return;
  check_list(relay, &relay->sends);
  check_list(relay, &relay->recvs);
  check_order(relay);
  for (int peer = 0; peer < n_ranks; peer++) {
    if (peer == rank) continue;
    check_pair(relay, plans[peer]->relay);
    if (peer / size != rank / size) assert_null(find_peer(&relay->recvs, peer));
  }
}

static void check_problem(const tensor_list *list, int n_ranks, const xfi_moves_options *options)
{
  xfi_moves *plans[MAX_PLANS];

  plans_of(plans, list, n_ranks, options);
  for (int r = 0; r < n_ranks; r++) {
    check_list(plans[r], &plans[r]->sends);
    check_list(plans[r], &plans[r]->recvs);
    check_bytes(plans[r]);
    for (int peer = 0; peer < n_ranks; peer++)
      if (peer != r) check_pair(plans[r], plans[peer]);
    check_relay(plans, n_ranks, r, (int)options->ranks_per_domain);
  }
  free_plans(plans, n_ranks);
}

static const struct {
  const char *line;
  int n_ranks;
} lines[] = {
    {"u8[] (2):R -> (3)@1-3:R", 4},
    {"f32[0,7] (2):S0 -> (2)@2-3:S1", 4},
    {"u8[10] (4):S0 -> (3):S0b", 4},
    {"u8[64,48] (2,2):S0,S1 -> (4)@3,1,4,2:S1", 5},
    {"bf16[31,17] (2,4):S0,R -> (2,2)@8-11:R,S1", 12},
    {"u8[19] (2,3):S0f3,S0 -> (3,2)@5,4,3,2,1,0:S0,S0f4", 6},
    {"u8[40,40] (2,2):S0f5,S1f5 -> (4)@4-7:S0f3", 8},
    {"f16[9,9] (4):R -> (2,4):S0,R", 8},
    {"f16[44,12] (2,2):S1,S0 -> {4=[0:44,0:12];5=[0:44,0:12];6=[0:44,0:12]}", 8},
    {"f16[9,9] (4)@4-7:R -> (2,2)@0-3:R,S0;pad=0:13", 8},
    {"u8[8388608,3] (2,2):R,S1 -> (4)@4-7:S0", 8},   /* stripes of 2 */
    {"f32[3,8388608] (8):R -> (4,4)@8-23:R,S0", 24}, /* stripes along dim 1 */
    {"f32[8388608,3] (16):R -> (5)@16-20:S0", 21},   /* 8 stripes of 16 replicas */
    {"u8[2147483648,3] (6):R -> (2,2)@4-7:R,S1", 8},
    {"u8[4611686018427387903] (8):R -> (2)@8-9:S0", 10},
};

static void test_both_ends_of_each_pair_have_the_same_list(void **state)
{
  (void)state;
  for (size_t c = 0; c < sizeof lines / sizeof *lines; c++) {
    tensor_list list = {.n = 0};

    print_message("%s\n", lines[c].line);
    add_line(&list, "w", 1, lines[c].line);
    for (uint32_t domain = 0; domain <= 4; domain += 2) {
      xfi_moves_options options = plain_options;

      options.ranks_per_domain = domain;
      check_problem(&list, lines[c].n_ranks, &options);
      options.lane = XFER_LANE_BROADCAST;
      check_problem(&list, lines[c].n_ranks, &options);
      options.lane = XFER_LANE_AUTO;
      check_problem(&list, lines[c].n_ranks, &options);
    }
    free_tensors(&list);
  }
}

static void test_tensors_of_many_classes_are_in_one_common_order(void **state)
{
  (void)state;
  tensor_list list = {.n = 0};

  for (int i = 0; i < 3; i++) {
    add_line(&list, "bytes", 2, "u8[64,48] (2,2):S0,S1 -> (4)@3,1,4,2:S1");
    add_line(&list, "halves", 1, "bf16[64,48] (2,2):S0,R -> (4)@3,1,4,2:S1");
    add_line(&list, "words", 3, "f64[31] (2,2)@2-5:R,S0 -> (2,3)@0-5:R,S0b");
  }
  for (uint32_t domain = 0; domain <= 3; domain++) {
    xfi_moves_options options = plain_options;

    options.ranks_per_domain = domain;
    check_problem(&list, 6, &options);
    options.lane = XFER_LANE_AUTO;
    check_problem(&list, 6, &options);
  }
  free_tensors(&list);
}

static void test_a_destination_that_holds_an_index_twice_gets_it_twice(void **state)
{
  (void)state;
  const xfer_run runs[] = {{0, 3, 0}, {1, 2, 4}, {2, 2, 0}, {0, 4, 2}};
  const int64_t first[] = {0, 2, 4};
  const int64_t lengths[] = {6, 6};
  const xfer_run_table table = {runs, first, lengths, 2, 1};
  const int ranks[] = {2, 3};
  tensor_list list = {.n = 0};

  add_layouts(&list, "to the table", 1, layout_of("u8[4] (2):S0"),
              layout_of_table(4, &table, ranks));
  add_layouts(&list, "from the table", 1, layout_of_table(4, &table, NULL),
              layout_of("u8[4] (2)@2-3:S0b"));
  add_layouts(&list, "both", 1, layout_of_table(4, &table, NULL),
              layout_of_table(4, &table, ranks));
  check_problem(&list, 4, &plain_options);
  free_tensors(&list);
}

/* ---- cost ---- */

static void test_a_ranks_moves_do_not_grow_with_the_number_of_ranks(void **state)
{
  (void)state;
  static const int copies[] = {1, 2, 16, 1024, 8192};
  size_t n_first[3] = {0};

  for (size_t c = 0; c < sizeof copies / sizeof *copies; c++) {
    const int n = 4 * copies[c];
    const int ranks[] = {0, n, 2 * n - 1}; /* one source, two destinations */
    tensor_list list = {.n = 0};
    char line[128];

    print_message("%d ranks\n", 2 * n);
    snprintf(line, sizeof line, "bf16[64,64] (%d,4):R,S0 -> (%d,2)@%d-%d:R,S0", copies[c],
             2 * copies[c], n, 2 * n - 1);
    add_line(&list, "w", 16, line);
    for (int i = 0; i < 3; i++) {
      xfi_moves *plan = plan_of(&list, 2 * n, ranks[i], &plain_options);
      const size_t n_moves = plan->sends.n_moves + plan->recvs.n_moves + plan->selfs.n_moves;

      if (c == 0) n_first[i] = n_moves;
      assert_int_equal(n_moves, n_first[i]);
      assert_int_equal(n_moves, 32);
      xfi_moves_destroy(plan);
    }
    free_tensors(&list);
  }
}

static size_t n_looks; /* at who holds a part */

int __real_xfi_part_replica(const xfer_layout *layout, uint32_t part, int rank);
int __wrap_xfi_part_replica(const xfer_layout *layout, uint32_t part, int rank);
int __real_xfi_part_rank(const xfer_layout *layout, uint32_t part, int replica);
int __wrap_xfi_part_rank(const xfer_layout *layout, uint32_t part, int replica);

int __wrap_xfi_part_replica(const xfer_layout *layout, uint32_t part, int rank)
{
  n_looks++;
  return __real_xfi_part_replica(layout, part, rank);
}

int __wrap_xfi_part_rank(const xfer_layout *layout, uint32_t part, int replica)
{
  n_looks++;
  return __real_xfi_part_rank(layout, part, replica);
}

static void test_a_sender_looks_at_domains_once_per_class(void **state)
{
  (void)state;
  static const uint32_t sizes[] = {1, 8, 64};

  for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
    xfi_moves_options options = plain_options;
    size_t n_of_one = 0;

    options.ranks_per_domain = sizes[c];
    for (size_t n = 1; n <= 100; n += 99) {
      tensor_list list = {.n = 0};
      xfi_moves *plan;

      add_line(&list, "w", n, "bf16[64,64] (4,16):R,S0 -> (100,8)@64-863:R,S0");
      n_looks = 0;
      plan = plan_of(&list, 864, 0, &options);
      print_message("domains of %u, %zu tensors: %zu looks, %zu moves\n", sizes[c], n, n_looks,
                    plan->sends.n_moves);
      if (n == 1) n_of_one = n_looks;
      assert_int_equal(n_looks, n_of_one);
      xfi_moves_destroy(plan);
      free_tensors(&list);
    }
  }
}

/* ---- once per domain ---- */

static bool holds(const xfer_layout *layout, uint32_t part, int first, int end)
{
  for (int r = first; r < end; r++)
    if (xfi_part_replica(layout, part, r) >= 0) return true;
  return false;
}

/* Of each source part, what no rank of the domain has is needed there once, however many want it:
 * layouts of one tensor by placements that hold no index twice in one rank. */
static uint64_t needed_in_domain(xfi_moves *const *plans, int first, int end)
{
  uint64_t n = 0;

  for (int r = first; r < end; r++) {
    const xfi_class *cls = xfi_moves_class(plans[r], 0);

    for (size_t f = 0; cls->in_dst && f < cls->recvs.n; f++) {
      const xfi_flow *flow = &cls->recvs.at[f];

      if (holds(cls->src, flow->part, first, end) || holds(cls->dst, flow->mine, first, r))
        continue; /* it is here; it has been counted */
      for (size_t b = 0; b < flow->n; b++)
        n += bytes_of(cls, xfi_flows_length(&cls->recvs, flow->first + b)) * cls->n_tensors;
    }
  }
  return n;
}

static uint64_t bytes_across(const xfi_moves *plan, int size)
{
  uint64_t n = 0;

  for (size_t p = 0; p < plan->recvs.n_peers; p++)
    if (plan->recvs.peers[p].rank / size != plan->rank / size) n += plan->recvs.peers[p].n_bytes;
  return n;
}

static void test_what_ranks_of_a_domain_want_crosses_to_it_once(void **state)
{
  (void)state;
  static const struct {
    const char *line;
    size_t n_tensors;
    int n_ranks;
    int size;
    uint64_t fewer; /* times */
  } cases[] = {
      {"u8[64,65536] (1):R -> (8)@4-11:R", 1, 12, 4, 4},       /* all of it to each */
      {"u8[64,65536] (4):S0 -> (4,2)@8-15:R,S0", 2, 16, 8, 4}, /* TP2 x DP4 */
      {"bf16[96,40] (2):S1 -> (2,3)@3-8:R,S0", 3, 9, 3, 1},    /* a replica in each domain */
      {"bf16[96,40] (2):S1 -> (3,2)@3-8:S0,R", 5, 9, 6, 1},    /* near, or alone */
      {"u8[8388608,3] (2,2):R,S1 -> (4)@4-7:R", 1, 8, 4, 4},   /* stripes of two sources */
      {"u8[8388608,3] (2,2):R,S1 -> (3)@4-6:R", 1, 7, 4, 3},   /* uneven shares */
      {"u8[30] (2):S0 -> (4)@4-7:R", 40, 8, 4, 4},             /* too small to be shared out */
      {"f32[7,9] (3):S0 -> (4,2)@12,5,13,4,14,7,15,6:R,S1b", 9, 16, 4, 4},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    const int n_ranks = cases[c].n_ranks;
    const int size = cases[c].size;
    xfi_moves_options options = {XFER_LANE_PACKED, 0, 0, NULL};
    tensor_list list = {.n = 0};
    xfi_moves *plans[MAX_PLANS];
    uint64_t before = 0;
    uint64_t after = 0;

    print_message("%s\n", cases[c].line);
    add_line(&list, "w", cases[c].n_tensors, cases[c].line);
    plans_of(plans, &list, n_ranks, &options);
    for (int r = 0; r < n_ranks; r++)
      before += bytes_across(plans[r], size);
    free_plans(plans, n_ranks);
    options.ranks_per_domain = (uint32_t)size;
    check_problem(&list, n_ranks, &options);
    plans_of(plans, &list, n_ranks, &options);
    for (int first = 0; first < n_ranks; first += size) {
      const int end = first + size < n_ranks ? first + size : n_ranks;
      uint64_t here = 0;

      for (int r = first; r < end; r++)
        here += bytes_across(plans[r], size);
      assert_int_equal(here, needed_in_domain(plans, first, end));
      after += here;
    }
    if (cases[c].fewer > 1) assert_int_equal(before, after * cases[c].fewer);
    free_plans(plans, n_ranks);
    free_tensors(&list);
  }
}

static void test_ranks_of_a_domain_receive_alike(void **state)
{
  (void)state;
  xfi_moves_options options = {XFER_LANE_PACKED, 4, 0, NULL};
  tensor_list list = {.n = 0};
  xfi_moves *plans[8];

  add_line(&list, "large", 1, "u8[64,65536] (4):R -> (4)@4-7:R"); /* a quarter of it to each */
  add_line(&list, "small", 40, "u8[30] (4):R -> (4)@4-7:R");      /* or in turn */
  plans_of(plans, &list, 8, &options);
  for (int r = 0; r < 4; r++)
    assert_int_equal(plans[r]->out_bytes, (64 * 65536 + 40 * 30) / 4);
  for (int r = 4; r < 8; r++) {
    assert_int_equal(bytes_in(plans[r]), (64 * 65536 + 40 * 30) / 4);
    assert_int_equal(bytes_in(plans[r]->relay), (64 * 65536 + 40 * 30) / 4 * 3);
    assert_int_equal(plans[r]->relay->out_bytes, (64 * 65536 + 40 * 30) / 4 * 3);
  }
  free_plans(plans, 8);
  free_tensors(&list);
}

/* ---- failed allocations ---- */

/* What is made over and over. */
typedef struct case_of {
  tensor_list list;
  xfi_moves_options options;
} case_of;

static xfer_status make(void *context)
{
  const case_of *c = context;
  xfi_moves *plan = NULL;
  xfer_status st = xfi_moves_create(&plan, 8, 4, c->list.at, c->list.n, &c->options);

  assert_true((plan != NULL) == (st == XFER_OK));
  xfi_moves_destroy(plan);
  return st;
}

static void test_growing_lists_survive_each_failed_allocation(void **state)
{
  (void)state;
  case_of c = {.list = {.n = 0}, .options = plain_options};

  add_line(&c.list, "w", 20, "bf16[64,64] (8):S0 -> (8)@7,6,5,4,3,2,1,0:S1");
  add_line(&c.list, "stay", 20, "bf16[64,64] (8):S0 -> (8):S0");
  assert_true(fail_each_allocation(make, &c) > 60);
  c.options.ranks_per_domain = 2;
  assert_true(fail_each_allocation(make, &c) > 60);
  free_tensors(&c.list);
}

/* As for a rank of one side that sends to each of millions. */
static void test_more_moves_than_a_plan_may_have_are_an_error(void **state)
{
  xfi_move_list list = {.n_moves = XFI_MOST_MOVES};

  (void)state;
  assert_int_equal(xfi_move_add(&list, (xfi_move){.peer = 1}, 0), XFER_ERR_OVERFLOW);
  assert_non_null(strstr(xfer_last_error(), "more than 67108864 moves"));
  assert_int_equal(list.n_moves, XFI_MOST_MOVES);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_both_ends_of_each_pair_have_the_same_list),
      cmocka_unit_test(test_tensors_of_many_classes_are_in_one_common_order),
      cmocka_unit_test(test_a_destination_that_holds_an_index_twice_gets_it_twice),
      cmocka_unit_test(test_a_ranks_moves_do_not_grow_with_the_number_of_ranks),
      cmocka_unit_test(test_a_sender_looks_at_domains_once_per_class),
      cmocka_unit_test(test_what_ranks_of_a_domain_want_crosses_to_it_once),
      cmocka_unit_test(test_ranks_of_a_domain_receive_alike),
      cmocka_unit_test(test_more_moves_than_a_plan_may_have_are_an_error),
      cmocka_unit_test(test_growing_lists_survive_each_failed_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
