/* Copies by the kernels, from start to end. */
#ifndef ON_DEVICE_H
#define ON_DEVICE_H

#include "error.h"
#include "gpu.h"
#include "kernels.h"
#include "launch.h"

/* Runs `copies`, whose pointers are device memory, as batch_launch would. */
static inline void run_on_device(const xfi_copy *copies, size_t n_copies, int n_blocks)
{
  xfi_cuda_program program;
  const xfi_cuda_table *tables[] = {&program.rows, &program.swapped, &program.converts,
                                    &program.blocks};
  xfer_status (*launchers[])(const xfi_cuda_job *, xfer_stream) = {
      xfi_cuda_copy_rows, xfi_cuda_copy_swapped, xfi_cuda_copy_converts, xfi_cuda_copy_blocks};

  OK(xfi_cuda_compile(&program, copies, n_copies, n_blocks));
  for (int i = 0; i < 4; i++) {
    size_t n = tables[i]->n_pieces;
    xfi_cuda_piece *pieces = NULL;
    int64_t *first_tile = NULL;
    if (n == 0) continue;
    CUDA(cudaMalloc, ((void **)&pieces, n * sizeof *pieces));
    CUDA(cudaMalloc, ((void **)&first_tile, (n + 1) * sizeof *first_tile));
    CUDA(cudaMemcpy, (pieces, tables[i]->pieces, n * sizeof *pieces, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy,
         (first_tile, tables[i]->first_tile, (n + 1) * sizeof *first_tile, cudaMemcpyHostToDevice));
    xfi_cuda_job job = {.pieces = pieces,
                        .first_tile = first_tile,
                        .n_pieces = (int64_t)n,
                        .n_tiles = tables[i]->first_tile[n],
                        .kinds = tables[i]->kinds,
                        .n_blocks = n_blocks};
    OK(launchers[i](&job, NULL));
    CUDA(cudaDeviceSynchronize, ());
    CUDA(cudaFree, (pieces));
    CUDA(cudaFree, (first_tile));
  }
  xfi_cuda_program_free(&program);
}

#endif
