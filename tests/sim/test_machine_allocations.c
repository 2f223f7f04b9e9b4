/* Each allocation of the CUDA and NCCL code fails in turn, on one rank, as a plan is committed:
 * both ranks end with an error, the one that has no memory says so, and nothing was written. Where
 * NCCL itself would carry the news, the other ends by its deadline. (Allocations of the engine
 * itself: tests/fault/test_allocations.c.) */
#include "world.h"

#include "alloc.h"

#include <stdatomic.h>
#include <stdio.h>

enum { RANKS = 2, LIVE = 0x77, TIMEOUT_MS = 4000, MOST = 400 };

/* Of the program's link: what those files call. */
void *__real_xfi_calloc(size_t n, size_t size);
void *__wrap_xfi_calloc(size_t n, size_t size);

static _Atomic long until_failure = -1; /* allocations; < 0: none fails */
static _Atomic bool has_failed;
static _Thread_local bool is_victim;

void *__wrap_xfi_calloc(size_t n, size_t size)
{
  if (is_victim && until_failure >= 0 && atomic_fetch_sub(&until_failure, 1) == 0) {
    has_failed = true;
    return NULL;
  }
  return __real_xfi_calloc(n, size);
}

static xfer_lane lane;
static comm_kind kind;
static int victim;
static long at;
static xfer_status said[RANKS];

static void commit(int rank)
{
  tensor t;
  xfer_plan *plan;

  tensor_make(&t, EACH_EACH, rank, 3000);
  tensor_fill(&t, 1, LIVE);
  plan = world_plan(rank, &t, 1, lane, TIMEOUT_MS);
  ranks_barrier();
  is_victim = rank == victim;
  if (is_victim) until_failure = at;
  ranks_barrier();
  said[rank] = xfer_plan_commit(plan);
  if (said[rank] != XFER_OK && is_victim && said[rank] != XFER_ERR_NOMEM)
    world_failed(__FILE__, __LINE__, "the text of who has no memory");
  ranks_barrier();
  until_failure = -1;
  is_victim = false;
  NEED((said[0] == XFER_OK) == (said[1] == XFER_OK));
  NEED(said[0] == XFER_OK || has_failed);
  NEED(tensor_is_all(&t, LIVE));
  if (said[0] == XFER_OK) world_run(plan, &t, 1, 1, NULL); /* it could do without */
  NEED_NO_VIOLATION();
  xfer_plan_destroy(plan);
  ranks_barrier();
  tensor_free(&t);
}

static void sweep_commit(void)
{
  long n_failed = 0;

  for (victim = 0; victim < RANKS; victim++)
    for (at = 0, has_failed = true; has_failed && at < MOST; at++) {
      has_failed = false;
      world_make(RANKS, kind, (sim_config){.seed = 0});
      world_go(commit);
      world_destroy();
      n_failed += has_failed;
    }
  printf("allocations that failed in a commit: %ld\n", n_failed);
  NEED(n_failed > 4 && at < MOST);
}

static void test_commit_direct(void)
{
  lane = XFER_LANE_DIRECT;
  kind = COMM_NCCL;
  sweep_commit();
}

static void test_commit_gather(void)
{
  lane = XFER_LANE_DIRECT;
  kind = COMM_GATHER;
  sweep_commit();
}

static void test_commit_packed(void)
{
  lane = XFER_LANE_PACKED;
  kind = COMM_NCCL;
  sweep_commit();
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {{"allocations_commit_direct", test_commit_direct},
                                     {"allocations_commit_gather", test_commit_gather},
                                     {"allocations_commit_packed", test_commit_packed}};

  return world_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
