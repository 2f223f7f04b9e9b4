/* Copies by the kernels, from start to end. */
#ifndef ON_DEVICE_H
#define ON_DEVICE_H

#include "error.h"
#include "gpu.h"
#include "h200.h"
#include "kernels.h"
#include "launch.h"

/* Small tables: with the launch, or in memory like large ones. */
static bool carries = true;

/* Runs `copies`, whose pointers are device memory, as batch_launch would. */
static inline void run_on_device(const xfi_copy *copies, size_t n_copies, int n_blocks)
{
  xfi_cuda_tables tables;
  xfi_cuda_job jobs[XFI_CUDA_N_TABLES] = {0};
  xfi_cuda_small_table small[XFI_CUDA_N_TABLES];

  OK(xfi_cuda_tables_make(&tables, copies, n_copies, n_blocks));
  for (int i = 0; i < XFI_CUDA_N_TABLES; i++) {
    const xfi_cuda_table *table = &tables.at[i];
    size_t n = table->n_pieces;
    xfi_cuda_piece *pieces = NULL;
    int64_t *first_tile = NULL;
    if (n == 0) continue;
    jobs[i] = xfi_cuda_job_of(table);
    jobs[i].n_blocks = n_blocks;
    jobs[i].is_alone = n_blocks >= BLOCKS_ALONE;
    if (carries && xfi_cuda_small_table_make(&small[i], &tables, i)) {
      jobs[i].small = &small[i];
      continue;
    }
    CUDA(cudaMalloc, ((void **)&pieces, n * sizeof *pieces));
    CUDA(cudaMalloc, ((void **)&first_tile, (n + 1) * sizeof *first_tile));
    CUDA(cudaMemcpy, (pieces, table->pieces, n * sizeof *pieces, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy,
         (first_tile, table->first_tile, (n + 1) * sizeof *first_tile, cudaMemcpyHostToDevice));
    jobs[i].pieces = pieces;
    jobs[i].first_tile = first_tile;
  }
  OK(xfi_cuda_copy_all(jobs, NULL));
  CUDA(cudaDeviceSynchronize, ());
  for (int i = 0; i < XFI_CUDA_N_TABLES; i++) {
    CUDA(cudaFree, ((void *)jobs[i].pieces));
    CUDA(cudaFree, ((void *)jobs[i].first_tile));
  }
  xfi_cuda_tables_free(&tables);
}

#endif
