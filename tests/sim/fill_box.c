/* tools/common/fill_box.cu for the simulated machine: the same values, by functions of the host
 * that streams call. */
#include "fill_box.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct work {
  fill_box box;
  unsigned long long *wrong; /* NULL: fill */
  bool zero;
} work;

static uint64_t mix(uint64_t x)
{
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static void one(work *w, char *at, uint64_t value)
{
  const size_t n = (size_t)w->box.elem_bytes;

  if (w->zero) value = 0;
  if (w->wrong == NULL)
    memcpy(at, &value, n); /* the low bytes of a little-endian number */
  else if (memcmp(at, &value, n) != 0)
    ++*w->wrong;
}

static void CUDART_CB all(void *context)
{
  work *w = context;
  const fill_box *box = &w->box;

  for (int64_t i = 0; i < box->n_elems; i++) {
    char *at = box->base;
    uint64_t index = box->seed;
    int64_t left = i;
    for (int d = box->n_dims - 1; d >= 0; d--) {
      const int64_t x = d == 0 ? left : left % box->length[d];
      at += x * box->stride[d];
      index += (uint64_t)(x * box->global_stride[d]);
      left /= box->length[d];
    }
    one(w, at, fill_box_number(mix(index), box->number_bytes, box->elem_bytes));
  }
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

uint64_t fill_box_seed(const char *name)
{
  uint64_t hash = 0xcbf29ce484222325u;

  for (; *name != '\0'; name++)
    hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
  return hash;
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
