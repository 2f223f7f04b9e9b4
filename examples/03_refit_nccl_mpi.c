/*
 * A refit: the weights of a training job move into the engine that serves them, at every step.
 *
 * One MPI process per GPU; the first ranks train, the others generate, as many as the SPECs say.
 * Each hands in the tensors that its framework has, by name, and runs the plan at each step. A real
 * program hands in the pointers that it has; here a step fills new memory. Afterwards each tensor's
 * digest is the same on both sides, unless the SPECs convert it.
 *
 *   mpirun -n 4 03_refit_nccl_mpi models/qwen3-4b.json megatron:tp2 vllm:tp2,loaded
 *
 * "loaded" says that the engine's kernels have not reordered the weights after loading.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <xfer/nccl.h>
#include <xfer/refit.h>

enum { N_STEPS = 3, UNIT = 64 << 10, NOISE = 1 << 20, N_STARTS = 4096 };

static void need(int ok, const char *what, const char *why)
{
  if (ok) return;
  fprintf(stderr, "%s: %s\n", what, why ? why : cudaGetErrorString(cudaGetLastError()));
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}
#define XFER(call) need((call) == XFER_OK, #call, xfer_last_error())
#define CUDA(call) need((call) == cudaSuccess, #call, NULL)

/* Each process of a host takes a GPU of its own; NCCL's id travels over MPI. */
static xfer_comm *make_comm(int rank, int size)
{
  unsigned char id[XFER_NCCL_ID_BYTES];
  xfer_comm *comm = NULL;
  MPI_Comm host;
  int local;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
  MPI_Comm_rank(host, &local);
  MPI_Comm_free(&host);
  CUDA(cudaSetDevice(local)); /* before the comm, which keeps to this GPU */
  if (rank == 0) XFER(xfer_nccl_id(id));
  MPI_Bcast(id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  XFER(xfer_comm_create_nccl_id(&comm, id, rank, size));
  return comm;
}

/* The model's tensors, joined with the rules of both sides. */
static xfer_refit *make_refit(const char *table, const char *train_spec, const char *gen_spec)
{
  xfer_side_options at = XFER_SIDE_OPTIONS_INIT;
  xfer_model *model;
  xfer_side *train, *gen;
  xfer_refit *refit = NULL;
  XFER(xfer_model_load(&model, table, NULL));
  XFER(xfer_side_create(&train, train_spec, &at));
  at.first_rank = xfer_side_size(train);
  XFER(xfer_side_create(&gen, gen_spec, &at));
  XFER(xfer_refit_create(&refit, model, train, gen));
  xfer_side_destroy(gen);
  xfer_side_destroy(train);
  xfer_model_destroy(model);
  return refit;
}

/* One local tensor of the framework, in GPU memory. */
typedef struct weight {
  char *base;
  size_t n_bytes;
  const char *name;
  int is_dst;
} weight;

static weight make_weight(xfer_locals *locals, size_t i)
{
  xfer_local local;
  weight w;
  XFER(xfer_locals_get(locals, i, &local));
  w.n_bytes = xfer_dtype_size((xfer_dtype)local.dtype);
  for (int d = 0; d < local.n_dims; d++)
    w.n_bytes *= (size_t)local.shape[d];
  w.name = local.name;
  w.is_dst = local.side == XFER_REFIT_GEN;
  /* Of sizes that are no multiples of 64 KiB the copy engine is slow. */
  CUDA(cudaMalloc((void **)&w.base, (w.n_bytes / UNIT + 1) * UNIT));
  XFER(xfer_locals_give(locals, (xfer_refit_side)local.side, local.name, (xfer_dtype)local.dtype,
                        w.base, local.shape, NULL, local.n_dims));
  return w;
}

/* The "training": fill a tensor with noise, which begins elsewhere at each step. */
static void train(const weight *w, const unsigned char *noise, int step, cudaStream_t stream)
{
  size_t first = (size_t)step * 97; /* by the name: replicas have one name and one value */
  for (const char *c = w->name; *c != '\0'; c++)
    first = first * 31 + (unsigned char)*c;
  for (size_t at = 0; at < w->n_bytes; at += NOISE) {
    const size_t n = w->n_bytes - at < NOISE ? w->n_bytes - at : NOISE;
    const size_t start = (first + at / NOISE) % N_STARTS;
    CUDA(cudaMemcpyAsync(w->base + at, noise + start, n, cudaMemcpyHostToDevice, stream));
  }
}

/* How many tensors are not on the serving side what they are on the training side. */
static size_t wrong_tensors(xfer_plan *plan, xfer_digest *digests[2], size_t n, xfer_stream stream)
{
  size_t n_wrong = 0;
  XFER(xfer_plan_digest(plan, digests[0], n, XFER_PLAN_SRC, stream));
  XFER(xfer_plan_digest(plan, digests[1], n, XFER_PLAN_DST, stream));
  for (size_t t = 0; t < n; t++)
    n_wrong += memcmp(&digests[0][t], &digests[1][t], sizeof(xfer_digest)) != 0;
  return n_wrong;
}

int main(int argc, char **argv)
{
  int rank, size, thread_level;
  size_t n_tensors, n_wrong = 0;
  static unsigned char noise[NOISE + N_STARTS];
  xfer_locals *locals;
  xfer_plan *plan;
  cudaStream_t stream;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &thread_level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  need(thread_level >= MPI_THREAD_FUNNELED, "MPI", "one for processes without threads");
  need(argc == 4, "usage", "mpiexec -n RANKS 03_refit_nccl_mpi MODEL TRAIN_SPEC GEN_SPEC");
  xfer_refit *refit = make_refit(argv[1], argv[2], argv[3]);
  need(xfer_refit_ranks(refit) == size, "ranks", "the SPECs want another number of processes");
  xfer_comm *comm = make_comm(rank, size);
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  XFER(xfer_locals_create(&locals, refit, rank));

  const size_t n = xfer_locals_count(locals);
  weight *weights = calloc(n + 1, sizeof *weights);
  need(weights != NULL, "weights", "no memory");
  for (size_t i = 0; i < n; i++)
    weights[i] = make_weight(locals, i);
  const xfer_tensor *tensors = xfer_refit_tensors(refit, &n_tensors);
  xfer_digest *digests[2] = {calloc(n_tensors, sizeof **digests),
                             calloc(n_tensors, sizeof **digests)};
  need(digests[0] != NULL && digests[1] != NULL, "digests", "no memory");
  for (size_t i = 0; i < sizeof noise; i++)
    noise[i] = (unsigned char)((i + 1) * 2654435761u >> 24);
  XFER(xfer_plan_create(&plan, comm, tensors, n_tensors, NULL));
  XFER(xfer_locals_bind(locals, plan));
  XFER(xfer_plan_commit(plan)); /* once: the steps below plan and allocate nothing */

  for (int step = 1; step <= N_STEPS; step++) {
    for (size_t i = 0; i < n; i++)
      if (!weights[i].is_dst) train(&weights[i], noise, step, stream);
    const double began = MPI_Wtime();
    XFER(xfer_plan_run(plan, (uint64_t)step, stream)); /* later work on `stream` sees it done */
    XFER(xfer_plan_wait(plan, 0));
    if (rank == 0) printf("step %d: %.1f ms\n", step, 1e3 * (MPI_Wtime() - began));
    n_wrong += wrong_tensors(plan, digests, n_tensors, stream); /* the same on every rank */
  }
  if (rank == 0) printf("%zu tensors, %d steps: %zu wrong\n", n_tensors, N_STEPS, n_wrong);

  xfer_plan_destroy(plan);
  xfer_locals_destroy(locals);
  xfer_refit_destroy(refit);
  xfer_comm_destroy(comm);
  for (size_t i = 0; i < n; i++)
    CUDA(cudaFree(weights[i].base));
  free(weights);
  free(digests[0]);
  free(digests[1]);
  CUDA(cudaStreamDestroy(stream));
  MPI_Finalize();
  return n_wrong != 0;
}
