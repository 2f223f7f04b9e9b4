/* Replicas of a source share what is sent: of whole models, all of them nearly evenly; near ones
 * where there are any. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "class.h"
#include "move_lists.h"

#include "plans_of.h"
#include "sharing_models.h"

enum { MAX_SETS = 512 };

/* Bytes that some rank of a set must send, by set. */
typedef struct demand {
  uint64_t ranks[MAX_SETS]; /* bit r: rank r holds it */
  double n_bytes[MAX_SETS];
  int n;
} demand;

static void add_demand(demand *d, uint64_t ranks, double n_bytes)
{
  int i = 0;

  while (i < d->n && d->ranks[i] != ranks)
    i++;
  assert_true(i < MAX_SETS);
  if (i == d->n) {
    d->ranks[d->n++] = ranks;
    d->n_bytes[i] = 0;
  }
  d->n_bytes[i] += n_bytes;
}

/* All ranks that hold what `rank` holds. */
static uint64_t holders(const xfer_layout *layout, int rank)
{
  uint64_t ranks = 0;
  xfi_place place;

  assert_true(xfi_layout_place(layout, rank, &place));
  for (int r = 0; r < layout->n_replicas; r++)
    ranks |= UINT64_C(1) << xfi_part_rank(layout, (uint32_t)place.number, r);
  return ranks;
}

/* No way to share lets every rank send less than this: what only the ranks of a set can send,
 * shared evenly by them. */
static double least_possible_maximum(const demand *d)
{
  double least = 0;
  uint64_t all = 0;

  for (int i = 0; i < d->n; i++)
    all |= d->ranks[i];
  for (int i = 0; i <= d->n; i++) {
    const uint64_t set = i < d->n ? d->ranks[i] : all;
    double sum = 0;

    for (int k = 0; k < d->n; k++)
      if ((d->ranks[k] & ~set) == 0) sum += d->n_bytes[k];
    sum /= __builtin_popcountll(set);
    if (sum > least) least = sum;
  }
  return least;
}

static void check_sharing(const char *name, const tensor_list *list, int n_ranks)
{
  const double stripe = 1 << 20;
  xfi_moves *plans[MAX_PLANS];
  demand d = {.n = 0};
  double most = 0;
  double least;

  plans_of(plans, list, n_ranks, &plain_options);
  for (int r = 0; r < n_ranks; r++) {
    if ((double)plans[r]->out_bytes > most) most = (double)plans[r]->out_bytes;
    for (size_t i = 0; i < plans[r]->recvs.n_moves; i++) {
      const xfi_move *move = &plans[r]->recvs.moves[i];
      const xfi_class *cls = xfi_moves_class(plans[r], move->tensor);
      xfi_box box;

      xfi_move_box(&box, cls, &cls->recvs, move);
      add_demand(&d, holders(cls->src, move->peer), (double)bytes_of(cls, box.length));
    }
  }
  least = least_possible_maximum(&d);
  print_message("%-32s at least %.0f, is %.0f, %.4f %% more\n", name, least, most,
                least > 0 ? 100 * (most - least) / least : 0);
  assert_true(most - least <= (least * 0.0002 > stripe ? least * 0.0002 : stripe));
  free_plans(plans, n_ranks);
}

static void test_source_replicas_share_the_work(void **state)
{
  (void)state;
  for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
    tensor_list list = {.n = 0};

    for (const weight *w = models[m].weights; w->name != NULL; w++)
      add_line(&list, w->name, w->count, w->line);
    check_sharing(models[m].name, &list, models[m].n_ranks);
    free_tensors(&list);
  }
}

static void test_near_sources_are_preferred_and_share(void **state)
{
  (void)state;
  xfi_moves_options options = plain_options;
  xfi_moves *plans[16];
  tensor_list list = {.n = 0};

  options.ranks_per_domain = 4; /* two sources and two destinations in each of four domains */
  add_line(&list, "w", 8, "bf16[64,64] (8)@0,1,4,5,8,9,12,13:R -> (8)@2,3,6,7,10,11,14,15:S0");
  plans_of(plans, &list, 16, &options);
  for (int r = 0; r < 16; r++) {
    for (size_t p = 0; p < plans[r]->recvs.n_peers; p++)
      assert_int_equal(plans[r]->recvs.peers[p].rank / 4, r / 4);
    if (r % 4 < 2) assert_int_equal(plans[r]->out_bytes, 8 * 64 * 64 * 2 / 8);
  }
  free_plans(plans, 16);
  free_tensors(&list);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_source_replicas_share_the_work),
      cmocka_unit_test(test_near_sources_are_preferred_and_share),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
