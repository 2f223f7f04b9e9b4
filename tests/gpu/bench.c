#include "bench.h"

static int ascending(const void *a, const void *b)
{
  const float *x = a;
  const float *y = b;

  return (*x > *y) - (*x < *y);
}

double bench_median_ms(void (*enqueue)(void *context), void *context)
{
  cudaEvent_t begin = NULL;
  cudaEvent_t end = NULL;
  float ms[REPEATS];

  CUDA(cudaEventCreate, (&begin));
  CUDA(cudaEventCreate, (&end));
  for (int i = -2; i < REPEATS; i++) {
    CUDA(cudaEventRecord, (begin, NULL));
    enqueue(context);
    CUDA(cudaEventRecord, (end, NULL));
    CUDA(cudaEventSynchronize, (end));
    if (i >= 0) CUDA(cudaEventElapsedTime, (&ms[i], begin, end));
  }
  CUDA(cudaEventDestroy, (begin));
  CUDA(cudaEventDestroy, (end));
  qsort(ms, REPEATS, sizeof ms[0], ascending);
  return (double)ms[REPEATS / 2];
}

typedef struct copy_job {
  char *dst;
  const char *src;
  size_t n_bytes;
} copy_job;

static void enqueue_copy(void *context)
{
  const copy_job *job = context;

  CUDA(cudaMemcpyAsync, (job->dst, job->src, job->n_bytes, cudaMemcpyDeviceToDevice, NULL));
}

double bench_copy_ms(char *dst, const char *src, int64_t n_bytes)
{
  copy_job job = {dst, src, (size_t)n_bytes};

  return bench_median_ms(enqueue_copy, &job);
}

void bench_fill(char *memory, int64_t n_bytes)
{
  enum { CHUNK = 1 << 24 };
  unsigned char *noise = malloc(CHUNK);
  uint32_t state = 1;

  if (noise == NULL) exit(1);
  for (size_t i = 0; i < CHUNK; i++) {
    state = state * 1664525u + 1013904223u;
    noise[i] = (unsigned char)(state >> 24);
  }
  for (int64_t at = 0; at < n_bytes; at += CHUNK)
    CUDA(cudaMemcpy, (memory + at, noise, CHUNK, cudaMemcpyHostToDevice));
  free(noise);
}
