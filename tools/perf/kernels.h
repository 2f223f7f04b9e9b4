/* Three small kernels: a copy, a word for the host, and ping-pong. Each gives 0 or -1. */
#ifndef PERF_KERNELS_H
#define PERF_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* dst and src aligned to 16, n_bytes a multiple of 64. */
int perf_copy(char *dst, const char *src, size_t n_bytes, struct CUstream_st *stream);
/* Writes `value` to pinned host memory. */
int perf_stamp(volatile uint64_t *word, uint64_t value, struct CUstream_st *stream);
/* `rounds` times: wait for the next number in our word, write it to the peer's; or first write. */
int perf_ping(volatile uint64_t *mine, volatile uint64_t *theirs, uint64_t rounds, int first,
              struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
