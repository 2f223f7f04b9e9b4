/* tools/common/fill_box.cu for the simulated machine: the same values, by functions of the host
 * that streams call. */
#include "fill_host.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct work {
  fill_box box;
  unsigned long long *sums; /* [n_sums]; NULL: fill */
  int n_sums;
  bool zero;
} work;

static void CUDART_CB all(void *context)
{
  work *w = context;
  fill_sum sum = {0};

  if (w->sums == NULL)
    fill_host_write(&w->box);
  else
    fill_host_check(&w->box, w->zero, &sum);
  if (w->n_sums > 0) w->sums[0] += sum.wrong;
  if (w->n_sums > 1) w->sums[1] += sum.total;
  free(w);
}

static int launch(work made, cudaStream_t stream)
{
  work *w = malloc(sizeof *w);

  if (w == NULL) abort();
  *w = made;
  const cudaError_t error = cudaLaunchHostFunc(stream, all, w);
  if (error == cudaSuccess) return 0;
  fprintf(stderr, "cudaLaunchHostFunc: %s\n", cudaGetErrorString(error));
  free(w);
  return -1;
}

int fill_box_write(const fill_box *box, struct CUstream_st *stream)
{
  return launch((work){.box = *box}, stream);
}

int fill_box_check(const fill_box *box, bool zero, unsigned long long *sums, int n_sums,
                   struct CUstream_st *stream)
{
  return launch((work){*box, sums, n_sums, zero}, stream);
}
