/* tools/common/fill_box.cu for the simulated machine: the same values, by functions of the host
 * that streams call. */
#include "fill_host.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct work {
  fill_box box;
  unsigned long long *wrong; /* NULL: fill */
  bool zero;
} work;

static void CUDART_CB all(void *context)
{
  work *w = context;
  fill_sum sum = {0};

  if (w->wrong == NULL)
    fill_host_write(&w->box);
  else
    fill_host_check(&w->box, w->zero, &sum);
  if (w->wrong != NULL) *w->wrong += sum.wrong;
  free(w);
}

static int launch(const fill_box *box, unsigned long long *wrong, bool zero, cudaStream_t stream)
{
  work *w = malloc(sizeof *w);

  if (w == NULL) abort();
  *w = (work){*box, wrong, zero};
  const cudaError_t error = cudaLaunchHostFunc(stream, all, w);
  if (error == cudaSuccess) return 0;
  fprintf(stderr, "cudaLaunchHostFunc: %s\n", cudaGetErrorString(error));
  free(w);
  return -1;
}

int fill_box_write(const fill_box *box, struct CUstream_st *stream)
{
  return launch(box, NULL, false, stream);
}

int fill_box_check(const fill_box *box, unsigned long long *wrong, struct CUstream_st *stream)
{
  return launch(box, wrong, false, stream);
}

int fill_box_check_zero(const fill_box *box, unsigned long long *wrong, struct CUstream_st *stream)
{
  return launch(box, wrong, true, stream);
}
