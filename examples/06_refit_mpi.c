/*
 * A refit without GPUs: a layer of a mixture-of-experts model moves from Megatron-Core's tensors
 * into vLLM's.
 *
 * Ranks 0 and 1 train. Each holds half of the experts: the gate rows of an expert and then its up
 * rows in linear_fc1 [2I, H], and its down projection in linear_fc2 [H, I]. Ranks 2 and 3 serve.
 * Each holds half of every expert: w13_weight [E, 2I/2, H], gate rows then up rows, and w2_weight
 * [E, H, I/2]. The other tensors of the layer move along. A value is a function of the step, the
 * expert, the matrix, the row and the column, so each serving rank checks its experts by itself,
 * against what vLLM expects, without asking xfer.
 *
 *   mpiexec -n 4 06_refit_mpi models/qwen3-30b-a3b.json
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>
#include <xfer/mpi.h>
#include <xfer/refit.h>

enum { N_STEPS = 2, N_EXPERTS = 4, N_TRAIN = 2, N_GEN = 2 };
enum { EXPERTS_PER_RANK = N_EXPERTS / N_TRAIN };
enum { GATE, UP, DOWN }; /* an expert's matrices */

static void need(xfer_status st, const char *what)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, xfer_status_name(st), xfer_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

/* A 16-bit pattern for one element; the model's bfloat16 elements are moved as they are. */
static uint16_t value(int64_t step, int64_t expert, int64_t matrix, int64_t row, int64_t column)
{
  uint32_t x = (uint32_t)(((step * N_EXPERTS + expert) * 3 + matrix) * 4096 + row) * 4096u;
  x = (x + (uint32_t)column) * 2654435761u;
  return (uint16_t)(x >> 16);
}

/* Set [n[0], n[1]] elements to those of a matrix from row first[0] and column first[1] on, or count
 * those that differ. `of` is the step, the expert and the matrix. Returns the address after the
 * last row. */
static uint16_t *visit(uint16_t *at, const int64_t of[3], const int64_t first[2],
                       const int64_t n[2], int64_t *n_wrong)
{
  for (int64_t i = 0; i < n[0]; i++)
    for (int64_t j = 0; j < n[1]; j++, at++) {
      const uint16_t v = value(of[0], of[1], of[2], first[0] + i, first[1] + j);
      if (n_wrong == NULL)
        *at = v;
      else
        *n_wrong += *at != v;
    }
  return at;
}

/* Set one of Megatron-Core's tensors on a training rank, if it is one of an expert. */
static void train(const xfer_local *local, uint16_t *at, int rank, int step)
{
  const int64_t zero[2] = {0, 0};
  const int64_t half[2] = {local->shape[0] / 2, local->shape[1]};
  const char *number = strstr(local->name, ".weight"); /* as in "experts.linear_fc1.weight3" */
  int64_t expert;
  if (strstr(local->name, ".experts.") == NULL || number == NULL) return;
  expert = (int64_t)EXPERTS_PER_RANK * rank + strtol(number + strlen(".weight"), NULL, 10);
  if (strstr(local->name, "linear_fc1") != NULL) {
    at = visit(at, (const int64_t[]){step, expert, GATE}, zero, half, NULL);
    (void)visit(at, (const int64_t[]){step, expert, UP}, zero, half, NULL);
  } else {
    (void)visit(at, (const int64_t[]){step, expert, DOWN}, zero, local->shape, NULL);
  }
}

/* The same of vLLM's on a serving rank. Returns how many elements are not what it expects. */
static int64_t check(const xfer_local *local, uint16_t *at, int rank, int step)
{
  int64_t n_wrong = 0;
  if (strstr(local->name, "w13_weight") != NULL) {
    const int64_t n[2] = {local->shape[1] / 2, local->shape[2]};
    const int64_t first[2] = {(rank - N_TRAIN) * n[0], 0};
    for (int64_t e = 0; e < N_EXPERTS; e++)
      for (int m = GATE; m <= UP; m++)
        at = visit(at, (const int64_t[]){step, e, m}, first, n, &n_wrong);
  } else if (strstr(local->name, "w2_weight") != NULL) {
    const int64_t first[2] = {0, (rank - N_TRAIN) * local->shape[2]};
    for (int64_t e = 0; e < N_EXPERTS; e++)
      at = visit(at, (const int64_t[]){step, e, DOWN}, first, local->shape + 1, &n_wrong);
  }
  return n_wrong;
}

/* The first experts of the model's first layer, joined with the rules of both frameworks. */
static xfer_refit *make_refit(const char *table)
{
  xfer_model_options only = XFER_MODEL_OPTIONS_INIT;
  xfer_side_options at = XFER_SIDE_OPTIONS_INIT;
  xfer_model *model = NULL;
  xfer_side *train_side = NULL, *gen_side = NULL;
  xfer_refit *refit = NULL;
  only.layers_end = 1;
  only.experts_end = N_EXPERTS;
  need(xfer_model_load(&model, table, &only), table);
  need(xfer_side_create(&train_side, "megatron:tp2,ep2", &at), "megatron");
  at.first_rank = N_TRAIN;
  /* "loaded": the engine's kernels have not reordered anything */
  need(xfer_side_create(&gen_side, "vllm:tp2,loaded", &at), "vllm");
  need(xfer_refit_create(&refit, model, train_side, gen_side), "refit");
  xfer_side_destroy(gen_side);
  xfer_side_destroy(train_side);
  xfer_model_destroy(model);
  return refit;
}

/* Allocate the i-th tensor of this rank and hand it in. A real program hands in what it has. */
static uint16_t *give(xfer_locals *locals, size_t i, xfer_local *local)
{
  size_t n_bytes;
  need(xfer_locals_get(locals, i, local), "local");
  n_bytes = xfer_dtype_size((xfer_dtype)local->dtype);
  for (int d = 0; d < local->n_dims; d++)
    n_bytes *= (size_t)local->shape[d];
  uint16_t *base = calloc(n_bytes + 1, 1);
  need(base == NULL ? XFER_ERR_NOMEM : XFER_OK, local->name);
  need(xfer_locals_give(locals, (xfer_refit_side)local->side, local->name, (xfer_dtype)local->dtype,
                        base, local->shape, NULL, local->n_dims),
       local->name);
  return base;
}

int main(int argc, char **argv)
{
  int rank, size;
  int64_t n_wrong = 0, n_wrong_all = 0;
  size_t n_tensors;
  xfer_comm *comm = NULL;
  xfer_locals *locals = NULL;
  xfer_plan *plan = NULL;

  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc != 2 || size != N_TRAIN + N_GEN) {
    fprintf(stderr, "usage: mpiexec -n %d %s MODEL\n", N_TRAIN + N_GEN, argv[0]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  xfer_refit *refit = make_refit(argv[1]);
  need(xfer_comm_create_mpi(&comm, MPI_COMM_WORLD), "comm");
  need(xfer_locals_create(&locals, refit, rank), "locals");
  const size_t n = xfer_locals_count(locals);
  xfer_local *local = calloc(n + 1, sizeof *local);
  uint16_t **base = calloc(n + 1, sizeof *base);
  need(local == NULL || base == NULL ? XFER_ERR_NOMEM : XFER_OK, "arrays");
  for (size_t i = 0; i < n; i++)
    base[i] = give(locals, i, &local[i]);
  const xfer_tensor *tensors = xfer_refit_tensors(refit, &n_tensors);
  need(xfer_plan_create(&plan, comm, tensors, n_tensors, NULL), "plan");
  need(xfer_locals_bind(locals, plan), "bind");
  need(xfer_plan_commit(plan), "commit");

  for (int step = 1; step <= N_STEPS; step++) {
    for (size_t i = 0; i < n; i++)
      if (local[i].side == XFER_REFIT_TRAIN) train(&local[i], base[i], rank, step);
    need(xfer_plan_run(plan, (uint64_t)step, NULL), "run");
    need(xfer_plan_wait(plan, 0), "wait");
    for (size_t i = 0; i < n; i++)
      if (local[i].side == XFER_REFIT_GEN) n_wrong += check(&local[i], base[i], rank, step);
  }
  MPI_Allreduce(&n_wrong, &n_wrong_all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    printf("%zu tensors, %d steps: %lld elements wrong\n", n_tensors, N_STEPS,
           (long long)n_wrong_all);

  xfer_plan_destroy(plan);
  xfer_locals_destroy(locals);
  xfer_refit_destroy(refit);
  xfer_comm_destroy(comm);
  for (size_t i = 0; i < n; i++)
    free(base[i]);
  free(base);
  free(local);
  MPI_Finalize();
  return n_wrong_all != 0;
}
