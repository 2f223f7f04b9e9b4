/* C launchers of the CUDA kernels. */
#ifndef XFI_CUDA_LAUNCH_H
#define XFI_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <string.h>

#include "tables.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Launches that run at the same time have, all together, at most one block of 512 threads for each
 * multiprocessor: a block that shares a multiprocessor with one that waits for a link is as slow as
 * that one. With more blocks, GPUs of a host that copy within themselves and to each other reached
 * 0.58 to 0.82 of the link, with this many 0.87 to 0.91. A launch that has the device to itself has
 * this many blocks for each multiprocessor; more bytes in flight are no faster. */
#define XFI_CUDA_ALONE 2

/* Device memory in which the blocks of a launch agree on whether it copies. */
typedef struct xfi_cuda_blocks {
  uint64_t verdict; /* the value of the last launch, void if it copied nothing */
  uint32_t n_begun; /* blocks that have begun; 0 between launches */
  uint32_t n_ended; /* blocks that have ended; 0 between launches */
} xfi_cuda_blocks;

/* What a launch checks before it copies, and the flags that it sets afterwards. All zero: it always
 * copies, and sets none. */
enum { XFI_CUDA_GATE_FLAGS = 16, XFI_CUDA_GATE_DONE = 8 };
typedef struct xfi_cuda_gate {
  const uint64_t *go; /* what xfi_cuda_guard_check() decided; 0: copy nothing */
  /* If `go` is NULL the launch checks `flags` itself, and copies nothing if one of them is void. At
   * its end it stores `value`, which differs from launch to launch, to the flags `done`; void if it
   * copied nothing. */
  uint64_t *flags[XFI_CUDA_GATE_FLAGS];
  uint64_t *done[XFI_CUDA_GATE_DONE];
  uint64_t value;
  xfi_cuda_blocks *blocks;
  int n_flags;
  int n_done;
} xfi_cuda_gate;

/* One launch of the kernels of a table. */
typedef struct xfi_cuda_job {
  const xfi_cuda_piece *pieces; /* [n_pieces] on the device */
  const int64_t *first_tile;    /* [n_pieces + 1] on the device */
  /* The table itself, on the host, in place of these two; NULL: it is on the device. */
  const xfi_cuda_small_table *small;
  int64_t n_pieces;
  int64_t n_tiles;
  uint32_t kinds; /* bit k: there are pieces of kind k */
  int n_blocks;   /* at most */
  bool is_alone;  /* it has the device to itself: XFI_CUDA_ALONE blocks for each multiprocessor */
  xfi_cuda_gate gate;
} xfi_cuda_job;

/* A job for a table, without the table's address. */
static inline xfi_cuda_job xfi_cuda_job_of(const xfi_cuda_table *table)
{
  xfi_cuda_job job;

  memset(&job, 0, sizeof job); /* in C++ too */
  job.n_pieces = (int64_t)table->n_pieces;
  job.kinds = table->kinds;
  if (table->n_pieces > 0) job.n_tiles = table->first_tile[table->n_pieces];
  return job;
}

/* The kernels of a table. load() loads them before any is launched: at a first launch the driver
 * would load the kernel and wait until the device is idle, which it never is while a stream waits
 * for a flag that this kernel sets. copy() does nothing for an empty job, allocates nothing and
 * does not synchronise. */
typedef struct xfi_cuda_kernels {
  xfer_status (*load)(void); /* on the current device */
  xfer_status (*copy)(const xfi_cuda_job *job, xfer_stream stream);
} xfi_cuda_kernels;
extern const xfi_cuda_kernels xfi_cuda_rows_kernels, xfi_cuda_ragged_kernels,
    xfi_cuda_swapped_kernels, xfi_cuda_converts_kernels, xfi_cuda_blocks_kernels;
xfer_status xfi_cuda_flags_load(void);
xfer_status xfi_cuda_digest_load(void);

/* The kernels of table k. */
static inline const xfi_cuda_kernels *xfi_cuda_kernels_of(int k)
{
  static const xfi_cuda_kernels *const all[XFI_CUDA_N_TABLES] = {
      &xfi_cuda_rows_kernels, &xfi_cuda_ragged_kernels, &xfi_cuda_swapped_kernels,
      &xfi_cuda_converts_kernels, &xfi_cuda_blocks_kernels};

  return all[k];
}

static inline xfer_status xfi_cuda_kernels_load(void)
{
  xfer_status st = xfi_cuda_flags_load();

  for (int k = 0; k < XFI_CUDA_N_TABLES && st == XFER_OK; k++)
    st = xfi_cuda_kernels_of(k)->load();
  return st == XFER_OK ? xfi_cuda_digest_load() : st;
}

/* One job of each table. */
static inline xfer_status xfi_cuda_copy_all(const xfi_cuda_job *jobs, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  for (int k = 0; k < XFI_CUDA_N_TABLES && st == XFER_OK; k++)
    st = xfi_cuda_kernels_of(k)->copy(&jobs[k], stream);
  return st;
}
/* Adds to `sums`, which lie on the device. */
xfer_status xfi_cuda_digest(const xfi_cuda_job *job, xfi_sum *sums, xfer_stream stream);

/* Store `value` to each flag, own or a peer's, so that whoever sees it also sees all earlier work
 * on `stream`. If `go` is not NULL and *go is 0, the value is made void. */
xfer_status xfi_cuda_flags_set(uint64_t *const *flags, int n_flags, uint64_t value,
                               const uint64_t *go, xfer_stream stream);
/* *go becomes 0 where one of at most 64 flags is void, else 1. */
xfer_status xfi_cuda_guard_check(uint64_t *const *flags, int n_flags, uint64_t *go,
                                 xfer_stream stream);

#ifdef __cplusplus
}
#endif
#endif
