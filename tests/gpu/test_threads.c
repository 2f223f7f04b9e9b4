/*
 * Ranks that are threads of one process and share its GPU: calls of xfer_redistribute() that follow
 * each other, from rows to columns, with streams of their own and with the default one.
 *
 *   test_threads RANKS
 *
 * Prints "ok"; anything else that is said is a failure. What a process's streams share is said by
 * CUDA_DEVICE_MAX_CONNECTIONS.
 */
#include <xfer/nccl.h>

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 32, ROWS = 4, CALLS = 200, TIMEOUT_MS = 10000, WORD_BYTES = 4096 };

static int n_ranks;
static size_t n_cols; /* of a rank's part of the columns */
static pthread_barrier_t meeting;
static unsigned char words[RANKS_MAX][WORD_BYTES];

static void die(int line, const char *what, const char *why)
{
  fprintf(stderr, "test_threads.c:%d: %s: %s\n", line, what, why);
  exit(1);
}

#define OK(call)                                                                                   \
  do {                                                                                             \
    if ((call) != XFER_OK) die(__LINE__, #call, xfer_last_error());                                \
  } while (0)
#define CUDA(call)                                                                                 \
  do {                                                                                             \
    const cudaError_t error = (call);                                                              \
    if (error != cudaSuccess) die(__LINE__, #call, cudaGetErrorString(error));                     \
  } while (0)

/* An xfer_all_gather_fn of threads; context: the rank. */
static int gather(void *context, void *all, const void *mine, size_t n_bytes)
{
  const int rank = *(const int *)context;

  if (n_bytes > WORD_BYTES) return 1;
  memcpy(words[rank], mine, n_bytes);
  (void)pthread_barrier_wait(&meeting);
  for (int r = 0; r < n_ranks; r++)
    memcpy((unsigned char *)all + (size_t)r * n_bytes, words[r], n_bytes);
  (void)pthread_barrier_wait(&meeting);
  return 0;
}

/* A matrix of n_ranks * ROWS by n_ranks * n_cols bytes, whose dim is split. */
static xfer_layout *layout_split(int dim)
{
  const int64_t shape[2] = {(int64_t)n_ranks * ROWS, (int64_t)n_ranks * (int64_t)n_cols};
  const xfer_placement placement = xfer_shard(dim);
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  xfer_layout *layout = NULL;
  xfer_mesh *mesh = NULL;

  OK(xfer_mesh_create(&mesh, &n_ranks, 1, NULL));
  desc.mesh = mesh;
  desc.dtype = XFER_U8;
  desc.n_dims = 2;
  desc.shape = shape;
  desc.placements = &placement;
  desc.n_placements = 1;
  OK(xfer_layout_create(&layout, &desc));
  xfer_mesh_destroy(mesh);
  return layout;
}

/* What stands at a place of the matrix in call k. */
static unsigned char byte_at(size_t row, size_t col, int k)
{
  const uint64_t at = row * (uint64_t)n_ranks * n_cols + col + (uint64_t)k;

  return (unsigned char)(at * UINT64_C(0x9e3779b97f4a7c15) >> 56);
}

/* Of `rank`: its rows before a call, or its columns after it. */
static void fill(unsigned char *bytes, int rank, bool columns, int k)
{
  const size_t first_row = columns ? 0 : (size_t)rank * ROWS;
  const size_t first_col = columns ? (size_t)rank * n_cols : 0;
  const size_t rows = columns ? (size_t)n_ranks * ROWS : ROWS;
  const size_t cols = columns ? n_cols : (size_t)n_ranks * n_cols;

  for (size_t i = 0; i < rows; i++)
    for (size_t j = 0; j < cols; j++)
      bytes[i * cols + j] = byte_at(first_row + i, first_col + j, k);
}

static void redistribute(xfer_comm *comm, int rank, cudaStream_t stream)
{
  const size_t n_bytes = (size_t)n_ranks * ROWS * n_cols;
  xfer_layout *const rows = layout_split(0);
  xfer_layout *const columns = layout_split(1);
  unsigned char *const sent = malloc(n_bytes);
  unsigned char *const came = malloc(n_bytes);
  unsigned char *memory[2][2] = {{NULL}}; /* of calls by turns: source, destination */

  if (sent == NULL || came == NULL) die(__LINE__, "malloc", "no memory");
  for (int k = 0; k < 2; k++) {
    CUDA(cudaMalloc((void **)&memory[k][0], n_bytes));
    CUDA(cudaMalloc((void **)&memory[k][1], n_bytes));
    fill(sent, rank, false, k);
    CUDA(cudaMemcpy(memory[k][0], sent, n_bytes, cudaMemcpyHostToDevice));
  }
  for (int k = 0; k < CALLS; k++) {
    const xfer_view src = xfer_view_dense(memory[k % 2][0]);
    const xfer_view dst = xfer_view_dense(memory[k % 2][1]);

    if (k < 2 || k >= CALLS - 2) CUDA(cudaMemsetAsync(memory[k % 2][1], 0xa5, n_bytes, stream));
    OK(xfer_redistribute(comm, rows, &src, columns, &dst, stream));
  }
  CUDA(cudaStreamSynchronize(stream));
  OK(xfer_comm_check(comm));
  for (int k = 0; k < 2; k++) {
    CUDA(cudaMemcpy(came, memory[k][1], n_bytes, cudaMemcpyDeviceToHost));
    fill(sent, rank, true, k);
    if (memcmp(came, sent, n_bytes) != 0) die(__LINE__, "bytes", "wrong");
    CUDA(cudaFree(memory[k][0]));
    CUDA(cudaFree(memory[k][1]));
  }
  free(sent);
  free(came);
  xfer_layout_destroy(rows);
  xfer_layout_destroy(columns);
}

static void *be_rank(void *context)
{
  int *const rank = context;
  cudaStream_t stream = NULL;
  xfer_comm *comm = NULL;

  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(xfer_comm_create_cuda(&comm, gather, rank, *rank, n_ranks));
  OK(xfer_comm_set_timeout(comm, TIMEOUT_MS));
  for (int i = 0; i < 4; i++) {
    (void)pthread_barrier_wait(&meeting);
    n_cols = i < 2 ? 2048 : 65536;
    (void)pthread_barrier_wait(&meeting);
    redistribute(comm, *rank, i % 2 == 0 ? stream : NULL);
  }
  xfer_comm_destroy(comm);
  CUDA(cudaStreamDestroy(stream));
  return NULL;
}

int main(int argc, char **argv)
{
  pthread_t threads[RANKS_MAX];
  int ranks[RANKS_MAX];

  n_ranks = argc == 2 ? atoi(argv[1]) : 0;
  if (n_ranks < 1 || n_ranks > RANKS_MAX) die(__LINE__, "usage", "test_threads RANKS, 1 to 32");
  if (pthread_barrier_init(&meeting, NULL, (unsigned)n_ranks) != 0)
    die(__LINE__, "barrier", "none");
  for (int r = 0; r < n_ranks; r++) {
    ranks[r] = r;
    if (pthread_create(&threads[r], NULL, be_rank, &ranks[r]) != 0) die(__LINE__, "thread", "none");
  }
  for (int r = 0; r < n_ranks; r++)
    (void)pthread_join(threads[r], NULL);
  puts("ok");
  return 0;
}
