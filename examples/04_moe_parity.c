/*
 * Does a mixture-of-experts block give the same answer before and after a refit?
 *
 * Each of n ranks trains an n-th of the experts, fc1 [E/n, 2I, H], gate rows then up rows, and fc2
 * [E/n, H, I], and serves an n-th of each: w13 [E, 2I/n, H], w2 [E, H, I/n]. Weights are multiples
 * of 1/8 and activations of 1/64: sums are exact in any order, and a correct refit gives equal
 * outputs. Then a wrong one: rows [g0 u0 g1 u1 ...], read as [gate; up]. On a GPU or more, which
 * ranks may share: mpirun -n 4 04_moe_parity
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <xfer/nccl.h>

#define E INT64_C(8)
#define I INT64_C(64)
#define H INT64_C(32)
#define T INT64_C(16)
#define F INT64_C(4) /* bytes of a float */

static int rank, size;
static cublasHandle_t blas;
static float *fc1, *fc2, *w13, *w2, before[T * H], after[T * H];
static float *scratch, *x; /* pinned, for two [T, I] and one [T, H]; the tokens [T, H] on the GPU */

#define NEED(call)                                                                                 \
  need((int)(call), #call,                                                                         \
       _Generic((call), cudaError_t                                                                \
                : 'c', cublasStatus_t                                                              \
                : 'b', xfer_status                                                                 \
                : 'x'))

static void need(int status, const char *call, char of)
{
  if (status == 0) return;
  fprintf(stderr, "%s: %s\n", call,
          of == 'c'   ? cudaGetErrorString((cudaError_t)status)
          : of == 'b' ? cublasGetStatusString((cublasStatus_t)status)
          : of == 'x' ? xfer_last_error()
                      : "no");
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static int all_gather(void *context, void *all, const void *mine, size_t n)
{
  (void)context;
  return MPI_Allgather(mine, (int)n, MPI_BYTE, all, (int)n, MPI_BYTE, MPI_COMM_WORLD);
}

/* n multiples of 1/8 from -1 to 1 on the GPU, those from index `first` of array number `which`. */
static float *numbers(uint64_t which, size_t first, size_t n)
{
  float *host = malloc(n * sizeof(float)), *device = NULL;
  need(host == NULL, "malloc", 'n');
  for (size_t i = 0; i < n; i++) {
    const uint64_t hash = ((which << 32) + first + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    host[i] = (float)((int)(hash >> 33) % 17 - 8) / 8;
  }
  NEED(cudaMalloc((void **)&device, n * sizeof(float)));
  NEED(cudaMemcpy(device, host, n * sizeof(float), cudaMemcpyHostToDevice));
  free(host);
  return device;
}

/* c[m, n] = a[m, k] b[n, k]^T, all row-major. */
static void times(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k)
{
  const float one = 1, zero = 0;
  NEED(cublasSgemm(blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)n, (int)m, (int)k, &one, b, (int)k, a,
                   (int)k, &zero, c, (int)n));
}

/* down(silu(gate x) * up x) by `rows` rows of n experts from `first` on, summed over the ranks. */
static void block(float *sum, int64_t first, int64_t n, const float *w, const float *v, int rows)
{
  float *gate = scratch, *up = scratch + T * I, *y = scratch + 2 * T * I;
  memset(sum, 0, T * H * F);
  for (int64_t e = first; e < first + n; e++, w += H * rows * 2, v += H * rows) {
    times(gate, x, w, T, rows, H);
    times(up, x, w + H * rows, T, rows, H);
    NEED(cudaDeviceSynchronize());
    for (int64_t i = 0; i < T * rows; i++) /* rounded to 1/64: exact from here on */
      gate[i] = rintf(gate[i] / (1 + expf(-gate[i])) * up[i] * 64) / 64;
    times(y, gate, v, T, H, rows);
    NEED(cudaDeviceSynchronize());
    for (int64_t i = 0; i < T * H; i++) /* each token goes to two experts */
      if (i / H % E == e || (i / H + 3) % E == e) sum[i] += 0.5F * y[i];
  }
  MPI_Allreduce(MPI_IN_PLACE, sum, T * H, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* The engine's output b beside a: mean KL divergence of their softmax, and the largest difference,
 * which is returned. */
static double compare(const char *what, const float *a)
{
  double most = 0, kl = 0;
  block(after, 0, E, w13, w2, I / size);
  for (const float *b = after; b < after + T * H; a += H, b += H) {
    double sum_a = 0, sum_b = 0, dot = 0;
    for (int64_t h = 0; h < H; h++) {
      most = fmax(most, fabs((double)a[h] - b[h]));
      sum_a += exp(a[h] / 8);
      sum_b += exp(b[h] / 8);
      dot += exp(a[h] / 8) * (a[h] - b[h]) / 8;
    }
    kl += (dot / sum_a - log(sum_a / sum_b)) / T;
  }
  if (rank == 0) printf("%-46s max difference %g, KL divergence %g\n", what, most, kl);
  return most;
}

/* Refit fc1 and fc2 to w13 and w2. In w13 up begins `up` rows after gate; rows are `step` apart. */
static void refit(xfer_plan *plan, uint64_t version, int64_t up, int64_t step)
{
  const int64_t a[3] = {2 * I * H * F, H * F, F}, b[3] = {2 * I / size * H * F, step * H * F, F};
  for (int64_t t = 0; t < 3; t++) { /* gate, up, down */
    const xfer_view src = t < 2 ? xfer_view_strided(fc1 + t * I * H, a, 3) : xfer_view_dense(fc2);
    const xfer_view dst = t < 2 ? xfer_view_strided(w13 + t * up * H, b, 3) : xfer_view_dense(w2);
    NEED(xfer_plan_bind(plan, (size_t)t, &src, &dst));
  }
  NEED(xfer_plan_commit(plan));
  NEED(xfer_plan_run(plan, version, NULL));
  NEED(xfer_plan_wait(plan, 0));
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
  need(argc > 1, "arguments", 'n');
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  need(E % size, "1, 2, 4 or 8 ranks are wanted", 'n');
  NEED(cudaGetDeviceCount(&n_gpus));
  NEED(cudaSetDevice(rank % n_gpus));
  NEED(cublasCreate(&blas));
  NEED(xfer_comm_create_cuda(&comm, all_gather, NULL, rank, size));
  for (int t = 0; t < 3; t++) { /* experts are dim 0; the engine cuts I */
    const char *cut = t < 2 ? "f32[8,64,32] (%d):S0 -> (%d):S1" : "f32[8,32,64] (%d):S0 -> (%d):S2";
    snprintf(text, sizeof text, cut, size, size);
    NEED(xfer_problem_parse(&src, &dst, text));
    tensors[t] = (xfer_tensor){t == 0 ? "gate" : t == 1 ? "up" : "down", src, dst, {0}};
  }
  const size_t share = (size_t)(E * I * H / size), mine = (size_t)rank * share;
  fc1 = numbers(1, 2 * mine, 2 * share), fc2 = numbers(2, mine, share);
  w13 = numbers(0, 0, 2 * share), w2 = numbers(0, 0, share); /* nonsense until the refit */
  x = numbers(3, 0, T * H);
  NEED(cudaMallocHost((void **)&scratch, (2 * T * I + T * H) * F));
  NEED(xfer_plan_create(&plan, comm, tensors, 3, NULL));
  block(before, rank * (E / size), E / size, fc1, fc2, I);
  refit(plan, 1, I / size, 1);
  const double right = compare("w13 as the block reads it:", before);
  refit(plan, 2, 1, 2);
  const double wrong = compare("w13 with alternating rows, read as [gate; up]:", before);
  xfer_plan_destroy(plan);
  xfer_comm_destroy(comm);
  MPI_Finalize();
  return right != 0 || wrong == 0;
}
