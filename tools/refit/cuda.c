#include "cuda.h"

#include <stdio.h>

#include <cuda_runtime_api.h>
#include <xfer/nccl.h>

#include "fill_stream.h"

static bool good(cudaError_t error, const char *what)
{
  if (error == cudaSuccess) return true;
  fprintf(stderr, "xfer_refit: %s: %s\n", what, cudaGetErrorString(error));
  return false;
}

static bool cuda_alloc(void **memory, size_t n_bytes)
{
  return good(cudaMalloc(memory, n_bytes > 0 ? n_bytes : 1), "cudaMalloc");
}

static void cuda_free(void *memory)
{
  (void)cudaFree(memory);
}

static bool cuda_copy(void *to, const void *from, size_t n_bytes)
{
  return good(cudaMemcpy(to, from, n_bytes, cudaMemcpyDefault), "cudaMemcpy") &&
         good(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

static bool cuda_set(void *memory, int byte, size_t n_bytes)
{
  return good(cudaMemset(memory, byte, n_bytes), "cudaMemset") &&
         good(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

/* ---- filling and checking, on the default stream ---- */

static fill_stream on = {.n_sums = 2}; /* sums NULL: not made yet */

static bool make_sums(void)
{
  void *made = NULL;

  if (on.sums != NULL) return true;
  if (!cuda_alloc(&made, 2 * sizeof *on.sums)) return false;
  on.sums = made;
  return cuda_set(on.sums, 0, 2 * sizeof *on.sums);
}

static bool cuda_check(void *context, const fill_box *box, bool zero)
{
  return make_sums() && fill_stream_check(context, box, zero);
}

static bool cuda_sums(uint64_t *wrong, uint64_t *total)
{
  unsigned long long now[2];

  if (!make_sums() || !cuda_copy(now, on.sums, sizeof now)) return false;
  *wrong = now[0];
  *total = now[1];
  return cuda_set(on.sums, 0, sizeof now);
}

const refit_device refit_cuda = {
    cuda_alloc, cuda_free, cuda_copy, cuda_set, {fill_stream_fill, cuda_check, &on}, cuda_sums};

static int all_gather(void *context, void *all, const void *mine, size_t n_bytes)
{
  const MPI_Comm *ranks = context;

  return MPI_Allgather(mine, (int)n_bytes, MPI_BYTE, all, (int)n_bytes, MPI_BYTE, *ranks);
}

/* The processes of a host take its GPUs in turn. */
static bool choose_gpu(MPI_Comm ranks, bool shared, char *error, size_t size)
{
  MPI_Comm host;
  int n_gpus = 0;
  int local;

  MPI_Comm_split_type(ranks, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  MPI_Comm_rank(host, &local);
  MPI_Comm_free(&host);
  if (cudaGetDeviceCount(&n_gpus) != cudaSuccess) n_gpus = 0;
  if (n_gpus == 0 || (!shared && local >= n_gpus)) {
    snprintf(error, size, "process %d of this host has no GPU; there are %d", local, n_gpus);
    return false;
  }
  const cudaError_t failed = cudaSetDevice(local % n_gpus);
  if (failed != cudaSuccess)
    snprintf(error, size, "GPU %d of %d: %s", local % n_gpus, n_gpus, cudaGetErrorString(failed));
  return failed == cudaSuccess;
}

xfer_comm *refit_cuda_comm(const MPI_Comm *ranks, bool nccl, char *error, size_t size)
{
  unsigned char id[XFER_NCCL_ID_BYTES] = {0};
  xfer_comm *comm = NULL;
  int rank, n_ranks;
  int mine = choose_gpu(*ranks, !nccl, error, size);
  int every = 0;

  MPI_Comm_rank(*ranks, &rank);
  MPI_Comm_size(*ranks, &n_ranks);
  if (mine != 0 && nccl && rank == 0 && xfer_nccl_id(id) != XFER_OK) {
    snprintf(error, size, "%s", xfer_last_error());
    mine = 0;
  }
  MPI_Allreduce(&mine, &every, 1, MPI_INT, MPI_MIN, *ranks);
  if (every == 0) {
    if (mine != 0) snprintf(error, size, "another process has no GPU");
    return NULL;
  }
  MPI_Bcast(id, sizeof id, MPI_BYTE, 0, *ranks);
  const xfer_status st =
      nccl ? xfer_comm_create_nccl_id(&comm, id, rank, n_ranks)
           : xfer_comm_create_cuda(&comm, all_gather, (void *)ranks, rank, n_ranks);
  if (st == XFER_OK) return comm;
  snprintf(error, size, "%s", xfer_last_error());
  return NULL;
}
