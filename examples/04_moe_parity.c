/*
 * Does a mixture-of-experts block give the same answer before and after a refit?
 *
 * Each of n ranks trains an n-th of the E experts, fc1 [E/n, 2I, H], gate rows then up rows, and
 * fc2 [E/n, H, I], where I is N_ROWS and H is HIDDEN. It serves an n-th of each expert, w13
 * [E, 2I/n, H] and w2 [E, H, I/n]. Weights are multiples of 1/8 and activations of 1/64: sums are
 * exact in any order, and a correct refit gives equal outputs. Then a wrong one: rows
 * [g0 u0 g1 u1 ...], read as [gate; up]. On a GPU or more, which ranks may share:
 * mpirun -n 4 04_moe_parity
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <xfer/nccl.h>

#define N_EXPERTS INT64_C(8)
#define N_ROWS INT64_C(64)
#define HIDDEN INT64_C(32)
#define N_TOKENS INT64_C(16)

static int rank, size;
static cublasHandle_t blas;
static float *fc1, *fc2, *w13, *w2;
static float *scratch; /* pinned, for two [N_TOKENS, N_ROWS] and one [N_TOKENS, HIDDEN] */
static float *tokens;  /* [N_TOKENS, HIDDEN] on the GPU */
static float before[N_TOKENS * HIDDEN], after[N_TOKENS * HIDDEN];

static void need(int ok, const char *what, const char *why)
{
  if (ok) return;
  fprintf(stderr, "%s: %s\n", what, why);
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}
#define XFER(call) need((call) == XFER_OK, #call, xfer_last_error())
#define CUDA(call) need((call) == cudaSuccess, #call, cudaGetErrorString(cudaPeekAtLastError()))
#define CUBLAS(call) need((call) == CUBLAS_STATUS_SUCCESS, #call, "cuBLAS failed")

static int all_gather(void *context, void *all, const void *mine, size_t n)
{
  (void)context;
  return MPI_Allgather(mine, (int)n, MPI_BYTE, all, (int)n, MPI_BYTE, MPI_COMM_WORLD);
}

/* n multiples of 1/8 from -1 to 1 on the GPU, those from index `first` of array number `which`. */
static float *numbers(uint64_t which, size_t first, size_t n)
{
  float *host = malloc(n * sizeof(float)), *device = NULL;
  need(host != NULL, "malloc", "no memory");
  for (size_t i = 0; i < n; i++) {
    const uint64_t hash = ((which << 32) + first + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    host[i] = (float)((int)(hash >> 33) % 17 - 8) / 8;
  }
  CUDA(cudaMalloc((void **)&device, n * sizeof(float)));
  CUDA(cudaMemcpy(device, host, n * sizeof(float), cudaMemcpyHostToDevice));
  free(host);
  return device;
}

/* c[m, n] = a[m, k] b[n, k]^T, all row-major. */
static void times(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k)
{
  const float one = 1, zero = 0;
  CUBLAS(cublasSgemm(blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)n, (int)m, (int)k, &one, b, (int)k, a,
                     (int)k, &zero, c, (int)n));
}

/* down(silu(gate tokens) * up tokens) by `rows` rows of n experts from `first` on, summed over the
 * ranks. */
static void block(float *sum, int64_t first, int64_t n, const float *w, const float *v, int rows)
{
  float *gate = scratch, *up = scratch + N_TOKENS * N_ROWS, *y = scratch + 2 * N_TOKENS * N_ROWS;
  memset(sum, 0, N_TOKENS * HIDDEN * sizeof(float));
  for (int64_t e = first; e < first + n; e++, w += HIDDEN * rows * 2, v += HIDDEN * rows) {
    times(gate, tokens, w, N_TOKENS, rows, HIDDEN);
    times(up, tokens, w + HIDDEN * rows, N_TOKENS, rows, HIDDEN);
    CUDA(cudaDeviceSynchronize());
    for (int64_t i = 0; i < N_TOKENS * rows; i++) /* rounded to 1/64: exact from here on */
      gate[i] = rintf(gate[i] / (1 + expf(-gate[i])) * up[i] * 64) / 64;
    times(y, gate, v, N_TOKENS, HIDDEN, rows);
    CUDA(cudaDeviceSynchronize());
    for (int64_t i = 0; i < N_TOKENS * HIDDEN; i++) /* each token goes to two experts */
      if (i / HIDDEN % N_EXPERTS == e || (i / HIDDEN + 3) % N_EXPERTS == e) sum[i] += 0.5F * y[i];
  }
  MPI_Allreduce(MPI_IN_PLACE, sum, N_TOKENS * HIDDEN, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* The engine's output b beside a: mean KL divergence of their softmax, and the largest difference,
 * which is returned. */
static double compare(const char *what, const float *a)
{
  double most = 0, kl = 0;
  block(after, 0, N_EXPERTS, w13, w2, N_ROWS / size);
  for (const float *b = after; b < after + N_TOKENS * HIDDEN; a += HIDDEN, b += HIDDEN) {
    double sum_a = 0, sum_b = 0, dot = 0;
    for (int64_t h = 0; h < HIDDEN; h++) {
      most = fmax(most, fabs((double)a[h] - b[h]));
      sum_a += exp(a[h] / 8);
      sum_b += exp(b[h] / 8);
      dot += exp(a[h] / 8) * (a[h] - b[h]) / 8;
    }
    kl += (dot / sum_a - log(sum_a / sum_b)) / N_TOKENS;
  }
  if (rank == 0) printf("%-46s max difference %g, KL divergence %g\n", what, most, kl);
  return most;
}

/* Refit fc1 and fc2 to w13 and w2. In w13 up begins `up` rows after gate; rows are `step` apart. */
static void refit(xfer_plan *plan, uint64_t version, int64_t up, int64_t step)
{
  const int64_t row = HIDDEN * (int64_t)sizeof(float);
  const int64_t from[3] = {2 * N_ROWS * row, row, sizeof(float)};
  const int64_t to[3] = {2 * N_ROWS / size * row, step * row, sizeof(float)};
  for (int64_t t = 0; t < 3; t++) { /* gate, up, down */
    xfer_view src = xfer_view_dense(fc2), dst = xfer_view_dense(w2);
    if (t < 2) src = xfer_view_strided(fc1 + t * N_ROWS * HIDDEN, from, 3);
    if (t < 2) dst = xfer_view_strided(w13 + t * up * HIDDEN, to, 3);
    XFER(xfer_plan_bind(plan, (size_t)t, &src, &dst));
  }
  XFER(xfer_plan_commit(plan));
  XFER(xfer_plan_run(plan, version, NULL));
  XFER(xfer_plan_wait(plan, 0));
}

int main(int argc, char **argv)
{
  xfer_tensor tensors[3];
  xfer_layout *src, *dst;
  xfer_comm *comm;
  xfer_plan *plan;
  char text[64];
  int n_gpus;
  MPI_Init(&argc, &argv);
  if (argc > 1) fprintf(stderr, "usage: mpirun -n RANKS %s\n", argv[0]);
  need(argc == 1, "arguments", "none are wanted");
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  need(N_EXPERTS % size == 0, "ranks", "1, 2, 4 or 8 are wanted");
  CUDA(cudaGetDeviceCount(&n_gpus));
  CUDA(cudaSetDevice(rank % n_gpus));
  CUBLAS(cublasCreate(&blas));
  XFER(xfer_comm_create_cuda(&comm, all_gather, NULL, rank, size));
  for (int t = 0; t < 3; t++) { /* experts are dim 0; the engine cuts their rows */
    const char *cut = t < 2 ? "f32[8,64,32] (%d):S0 -> (%d):S1" : "f32[8,32,64] (%d):S0 -> (%d):S2";
    snprintf(text, sizeof text, cut, size, size);
    XFER(xfer_problem_parse(&src, &dst, text));
    tensors[t] = (xfer_tensor){t == 0 ? "gate" : t == 1 ? "up" : "down", src, dst, {0}};
  }
  const size_t share = (size_t)(N_EXPERTS * N_ROWS * HIDDEN / size), mine = (size_t)rank * share;
  fc1 = numbers(1, 2 * mine, 2 * share), fc2 = numbers(2, mine, share);
  w13 = numbers(0, 0, 2 * share), w2 = numbers(0, 0, share); /* nonsense until the refit */
  tokens = numbers(3, 0, N_TOKENS * HIDDEN);
  CUDA(cudaMallocHost((void **)&scratch,
                      (2 * N_TOKENS * N_ROWS + N_TOKENS * HIDDEN) * sizeof(float)));
  XFER(xfer_plan_create(&plan, comm, tensors, 3, NULL));
  block(before, rank * (N_EXPERTS / size), N_EXPERTS / size, fc1, fc2, N_ROWS);
  refit(plan, 1, N_ROWS / size, 1);
  const double right = compare("w13 as the block reads it:", before);
  refit(plan, 2, 1, 2);
  const double wrong = compare("w13 with alternating rows, read as [gate; up]:", before);
  xfer_plan_destroy(plan);
  xfer_comm_destroy(comm);
  MPI_Finalize();
  return right != 0 || wrong == 0;
}
