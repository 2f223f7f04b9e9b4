/* Refits in which each rank knows its own side alone, with misc tensors that a callback takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <xfer/refit.h>

#include "../../tools/common/fill.h"
#include "../unit/ranks.h"
#include "../unit/refit_files.h"
#ifdef REFIT_ON_SIM
#include "../sim/refit_place.h"
#else
#include "refit_place.h"
#endif

#define EXPERTS(what, shape)                                                                       \
  "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}." what                                 \
  "_proj.weight\",\"layer\":[0,1],\"expert\":[0,7],\"shape\":" shape ",\"dtype\":\"bf16\"}"
#define TABLE                                                                                      \
  REFIT_TABLE(REFIT_DENSE_CONFIG,                                                                  \
              REFIT_ENDS "," REFIT_ATTENTION                                                       \
                         "," EXPERTS("gate", "[8,16]") "," EXPERTS("up", "[8,16]") "," EXPERTS(    \
                             "down", "[16,8]") "," REFIT_N("vision.patch.weight", "[6,10]"))

enum { N_TRAIN = 4, N_GEN = 4, N_RANKS = N_TRAIN + N_GEN, N_RUNS = 3 };

typedef struct job {
  xfer_comm *comms[N_RANKS];
  const char *table;
  bool one_sided;
  int wrong[N_RANKS];
  int taken[N_RANKS];
  char error[N_RANKS][600];
} job;

static xfer_refit *join(const job *j, int rank)
{
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  xfer_model *model = NULL;
  xfer_side *train = NULL, *gen = NULL;
  xfer_refit *refit = NULL;
  bool know_train = !j->one_sided || rank < N_TRAIN, know_gen = !j->one_sided || rank >= N_TRAIN;

  bool ok = xfer_model_load(&model, j->table, NULL) == XFER_OK;
  if (know_train) {
    ok = ok && xfer_side_create(&train, "megatron:tp2,ep4,dp2", NULL) == XFER_OK &&
         xfer_side_give_whole(train, "vision.*", 1) == XFER_OK;
  }
  options.first_rank = N_TRAIN;
  if (know_gen) ok = ok && xfer_side_create(&gen, "vllm:tp4,up_first", &options) == XFER_OK;
  if (ok) ok = xfer_refit_create(&refit, model, train, gen) == XFER_OK;
  xfer_side_destroy(gen);
  xfer_side_destroy(train);
  xfer_model_destroy(model);
  return refit;
}

/* What a rank has taken. */
typedef struct memory {
  char *at[256];
  size_t n;
} memory;

/* Poisoned memory for all that the rank holds, misc apart; before a later run than the first, other
 * memory for every other tensor. */
static bool hand_in(xfer_locals *locals, memory *m, uint64_t run)
{
  size_t n = xfer_locals_count(locals);
  bool ok = true;

  for (size_t i = 0; i < n && ok; i++) {
    xfer_local local;
    size_t bytes;

    ok = xfer_locals_get(locals, i, &local) == XFER_OK;
    if (!ok || local.misc != 0 || (run > 1 && i % 2 != run % 2)) continue;
    bytes = xfer_dtype_size((xfer_dtype)local.dtype);
    for (int d = 0; d < local.n_dims; d++)
      bytes *= (size_t)local.shape[d];
    char *at = place_take(bytes + 1);
    if (at == NULL || m->n == 256) abort();
    m->at[m->n++] = at;
    memset(at, 0xa5, bytes + 1);
    ok = (run == 1 ? xfer_locals_give : xfer_locals_update)(
             locals, (xfer_refit_side)local.side, local.name, (xfer_dtype)local.dtype, at,
             local.shape, NULL, local.n_dims) == XFER_OK;
  }
  return ok;
}

/* Writes every source, or adds up what is wrong in every destination. */
static bool visit(const xfer_refit *refit, xfer_locals *locals, int rank, fill_sum *sum)
{
  size_t n = 0;
  const xfer_tensor *tensors = xfer_refit_tensors(refit, &n);
  bool ok = true;

  for (size_t t = 0; t < n && ok; t++) {
    xfer_refit_tensor info;
    xfer_view src, dst;
    uint32_t has = 0;

    ok = xfer_locals_view(locals, t, &src, &dst, &has) == XFER_OK &&
         xfer_refit_tensor_get(refit, t, &info) == XFER_OK;
    if (ok && sum == NULL && (has & XFER_LOCALS_SRC) != 0)
      ok = fill_write(
          &(fill_job){.tensor = &info, .layout = tensors[t].src, .rank = rank, .view = &src});
    if (ok && sum != NULL && (has & XFER_LOCALS_DST) != 0)
      ok = fill_check(
          &(fill_job){.tensor = &info, .layout = tensors[t].dst, .rank = rank, .view = &dst}, sum);
  }
  return ok;
}

static void take(void *context, const char *name, xfer_dtype dtype, const int64_t *shape,
                 int n_dims, const void *data)
{
  int *taken = context;

  if (strcmp(name, "vision.patch.weight") == 0 && dtype == XFER_BF16 && n_dims == 2 &&
      shape[0] == 6 && shape[1] == 10 && data != NULL)
    (*taken)++;
}

/* What the callback takes is no longer handed in. */
static bool is_taken_by_callback(const job *j, int rank, xfer_locals *locals)
{
  static const int64_t shape[2] = {6, 10};
  char bytes[120];

  return j->taken[rank] == 0 ||
         (xfer_locals_update(locals, XFER_REFIT_GEN, "vision.patch.weight", XFER_BF16, bytes, shape,
                             NULL, 2) == XFER_ERR_MISMATCH &&
          strstr(xfer_last_error(), "is taken by the callback") != NULL);
}

/* A plan of something else has no place for the model's tensors. */
static bool is_refused_elsewhere(const job *j, int rank, xfer_locals *locals)
{
  xfer_plan *other = NULL;
  const bool refused = xfer_plan_create(&other, j->comms[rank], NULL, 0, NULL) == XFER_OK &&
                       xfer_locals_bind(locals, other) == XFER_ERR_ARG &&
                       strstr(xfer_last_error(), "the plan has 0 tensors and the refit") != NULL;

  xfer_plan_destroy(other);
  return refused;
}

static bool run(job *j, int rank, xfer_refit *refit, xfer_plan **plan, xfer_locals **locals,
                memory *m)
{
  size_t n = 0;
  const xfer_tensor *tensors = xfer_refit_tensors(refit, &n);
  bool ok = xfer_plan_create(plan, j->comms[rank], tensors, n, NULL) == XFER_OK;

  ok = ok && xfer_locals_create(locals, refit, rank) == XFER_OK &&
       xfer_locals_take_misc(*locals, take, &j->taken[rank]) == XFER_OK;
  for (uint64_t i = 1; i <= N_RUNS && ok; i++)
    ok = hand_in(*locals, m, i) && xfer_locals_bind(*locals, *plan) == XFER_OK &&
         visit(refit, *locals, rank, NULL) && xfer_plan_commit(*plan) == XFER_OK &&
         xfer_plan_run(*plan, i, NULL) == XFER_OK && xfer_locals_wait(*locals, *plan, 0) == XFER_OK;
  return ok && is_taken_by_callback(j, rank, *locals) && is_refused_elsewhere(j, rank, *locals);
}

static void body(int rank, void *context)
{
  job *j = context;
  place_enter(rank);
  xfer_refit *refit = join(j, rank);
  xfer_locals *locals = NULL;
  xfer_plan *plan = NULL;
  memory m = {{NULL}, 0};
  fill_sum sum = {0, 0, 0};

  if (refit == NULL || !run(j, rank, refit, &plan, &locals, &m) ||
      !visit(refit, locals, rank, &sum)) {
    snprintf(j->error[rank], sizeof j->error[rank], "rank %d: %s", rank, xfer_last_error());
    j->wrong[rank] = -1;
  } else {
    j->wrong[rank] = (int)sum.wrong;
  }
  xfer_plan_destroy(plan);
  xfer_locals_destroy(locals);
  xfer_refit_destroy(refit);
  for (size_t i = 0; i < m.n; i++)
    place_give(m.at[i]);
  xfer_comm_destroy(j->comms[rank]);
}

static void run_job(bool one_sided)
{
  job j = {.one_sided = one_sided, .table = refit_write("table.json", TABLE)};

  assert_int_equal(place_make_comms(j.comms, N_RANKS), XFER_OK);
  run_ranks(N_RANKS, body, &j);
  assert_all_as_expected();
  for (int r = 0; r < N_RANKS; r++) {
    print_message("%s", j.error[r]);
    assert_int_equal(j.wrong[r], 0);
    assert_int_equal(j.taken[r], r < N_TRAIN ? 0 : N_RUNS);
  }
}

static void test_both_sides_known_everywhere(void **state)
{
  (void)state;
  run_job(false);
}

static void test_each_rank_knows_its_own_side_alone(void **state)
{
  (void)state;
  run_job(true);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_both_sides_known_everywhere),
      cmocka_unit_test(test_each_rank_knows_its_own_side_alone),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
