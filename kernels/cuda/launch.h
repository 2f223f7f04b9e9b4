/*
 * C launchers of the CUDA kernels, and the tables that they read.
 *
 * xfi_cuda_tables_make() turns copies into five tables:
 *
 * - rows (rows.cu): the fastest dim is the same on both sides;
 * - ragged (ragged.cu): the same, but runs are at odd addresses, and long or in lines;
 * - swapped (swapped.cu): the fastest dims differ, with or without conversion of elements;
 * - converts (convert.cu): runs of elements that are converted;
 * - blocks (blocks.cu): the same with scales of blocks.
 *
 * A table is an array of pieces and the prefix sums of their tiles; a warp or, for swapped pieces,
 * a block of threads finds the piece of a tile by searching these sums.
 */
#ifndef XFI_CUDA_LAUNCH_H
#define XFI_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "digest.h"
#include "kernels.h"
#include "xfer/xfer.h"

/* Launches that run at once have at most a block (of 512 threads) for each multiprocessor in all: a
 * block that shares a multiprocessor with one that waits for a link is as slow as that. With more
 * blocks, GPUs of a host that copy within themselves and to each other reached 0.58 to 0.82 of the
 * link, with this many 0.87 to 0.91. A launch that has the device to itself has so many blocks for
 * each; more bytes in flight are no faster. */
#define XFI_CUDA_ALONE 2

/* How many words a warp loads before it stores the first. */
#define XFI_CUDA_WARP_WORDS 128

/* Elements along a side of the square tiles that are transposed, by an element's size in src: rows
 * of 128 to 512 bytes. */
#define XFI_CUDA_SWAP_SIDE(bytes) ((bytes) <= 2 ? 128 : (bytes) <= 8 ? 64 : 32)
/* The kind of tiles whose elements of `from` bytes (4, 2) are converted to `to` bytes (4, 2, 1),
 * and of those that are quantised by blocks. */
#define XFI_CUDA_SWAP_CONVERT_KIND(from, to)                                                       \
  (XFI_CUDA_SWAP_CONVERT + ((from) == 4 ? 0 : 3) + ((to) == 4 ? 0 : (to) == 2 ? 1 : 2))
#define XFI_CUDA_SWAP_QUANTISE_KIND(from) (XFI_CUDA_SWAP_QUANTISE + ((from) == 4 ? 0 : 1))

/* x / d for 0 <= x < 2^31 and 1 <= d < 2^31, as (umulhi(x, magic) + x) >> shift (Granlund and
 * Montgomery). */
typedef struct xfi_cuda_div {
  uint32_t magic;
  uint32_t shift;
} xfi_cuda_div;

/* Kinds of pieces, numbered from 0 in each table that has several; each kind has a kernel. */
enum {
  /* ragged: */
  XFI_CUDA_RAGGED_TOGETHER = 0,
  XFI_CUDA_RAGGED_BY_IMAGE = 1,
  XFI_CUDA_RAGGED_SKEWED = 2, /* runs begin anywhere in words */
  XFI_CUDA_N_RAGGED = 3,
  /* swapped: */
  XFI_CUDA_SWAP = 0,           /* + log2 of an element's bytes */
  XFI_CUDA_SWAP_APART = 5,     /* the same, but elements do not follow each other on both sides */
  XFI_CUDA_SWAP_CONVERT = 10,  /* XFI_CUDA_SWAP_CONVERT_KIND() */
  XFI_CUDA_SWAP_QUANTISE = 16, /* XFI_CUDA_SWAP_QUANTISE_KIND() */
  XFI_CUDA_N_SWAPS = 18,
  /* converts: */
  XFI_CUDA_CONVERT = 0, /* + 5 * xfi_convert_type() of the source + that of the destination */
  XFI_CUDA_CONVERT_SKEWED = 15, /* the same, for runs that begin anywhere in words */
  XFI_CUDA_CONVERT_ONE_BY_ONE = 30,
  XFI_CUDA_CONVERT_LINES = 31, /* short runs that are put together to lines (lines.cuh) */
  XFI_CUDA_N_CONVERTS = 32,
  /* blocks: */
  XFI_CUDA_QUANTISE = 0, /* + xfi_convert_type() of the source */
  XFI_CUDA_AMAX_OF_4_BYTES = 3,
  XFI_CUDA_AMAX_OF_2_BYTES = 4,
  XFI_CUDA_BLOCKS_ONE_BY_ONE = 5,
  XFI_CUDA_N_BLOCKS = 6
};

/* A copy, or a part of one, as kernels read it: in words instead of bytes, with the fastest dim of
 * dst first. In converts a word is a group of elements. Boxes of digests are pieces too: the
 * fastest dim of memory is first, runs count in bytes, and `dst` is that of an xfi_digest_box. */
typedef struct xfi_cuda_piece {
  const char *src; /* NULL: zeros */
  char *dst;
  int64_t run_words;    /* words of one run; swapped: 1; skewed: most that one touches */
  int64_t run_elems;    /* elements of one run; bytes if they stay as they are */
  int64_t cols_per_row; /* tiles across one run; lines: across one, if that has several, else 1;
                           swapped: tiles along dim 0 */
  uint32_t n_rows;      /* runs, the product of the extents, < 2^31; swapped: tiles along dim 1 */
  uint32_t tile_rows;   /* runs of a full tile: 1 unless a tile holds whole runs; lines: those of
                           whole lines, or of a part of one */
  uint32_t tile_cols;   /* words of each; digests: most units that such a run meets */
  uint32_t word_log2;   /* a word has 1 << word_log2 bytes, 1 to 16; skewed runs of ragged: 0,
                           and words have 16; converts: so many elements; digests: src and dst are
                           apart by a multiple of that */
  xfi_convert convert;
  float *scales;   /* blocks: that of the first run */
  uint64_t factor; /* digests, as is the index of the sum */
  uint32_t sum;
  uint32_t kind; /* not of rows */
  uint32_t n_dims;
  xfi_cuda_div by_tile_cols;
  uint32_t scale_stride[XFI_COPY_DIMS]; /* scales */
  uint32_t extent[XFI_COPY_DIMS];
  xfi_cuda_div by_extent[XFI_COPY_DIMS];
  int64_t src_stride[XFI_COPY_DIMS]; /* bytes */
  int64_t dst_stride[XFI_COPY_DIMS];
} xfi_cuda_piece;

/* A small table of rows, ragged or swapped pieces, which is passed to the kernel as a parameter:
 * then nothing is uploaded, and launches under way read nothing that a later commit changes. At
 * most 4 KiB. */
enum { XFI_CUDA_SMALL_TABLE = 8 }; /* pieces */
typedef struct xfi_cuda_small_table {
  xfi_cuda_piece pieces[XFI_CUDA_SMALL_TABLE];
  int64_t first_tile[XFI_CUDA_SMALL_TABLE + 1];
} xfi_cuda_small_table;

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

/* A table on the host. */
typedef struct xfi_cuda_table {
  xfi_cuda_piece *pieces; /* [n_pieces] */
  int64_t *first_tile;    /* [n_pieces + 1] */
  size_t n_pieces;
  size_t pieces_cap;
  size_t first_tile_cap;
  uint32_t kinds; /* bit k: there are pieces of kind k */
} xfi_cuda_table;

void xfi_cuda_table_free(xfi_cuda_table *table);

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

/* The tables that copies are sorted into; each has a launch of its own. */
enum {
  XFI_CUDA_ROWS,
  XFI_CUDA_RAGGED,
  XFI_CUDA_SWAPPED,
  XFI_CUDA_CONVERTS,
  XFI_CUDA_BLOCKS,
  XFI_CUDA_N_TABLES
};

typedef struct xfi_cuda_tables {
  xfi_cuda_table at[XFI_CUDA_N_TABLES];
} xfi_cuda_tables;

/* The tables of `copies`, for launches of about `n_blocks` blocks. Free with
 * xfi_cuda_tables_free. */
xfer_status xfi_cuda_tables_make(xfi_cuda_tables *tables, const xfi_copy *copies, size_t n_copies,
                                 int n_blocks);
void xfi_cuda_tables_free(xfi_cuda_tables *tables);
/* Puts table `k` into `small`; false: it does not fit. */
bool xfi_cuda_small_table_make(xfi_cuda_small_table *small, const xfi_cuda_tables *tables, int k);

/* The table of a digest. Free with xfi_cuda_table_free, also after a failure. */
xfer_status xfi_cuda_digest_table_make(xfi_cuda_table *table, const xfi_digest_box *boxes,
                                       size_t n_boxes);

/* What tables.c and digest_table.c share. The constants for dividing by d: */
xfi_cuda_div xfi_cuda_div_make(uint32_t d);
/* True if a copy has more runs than 31 bits count: `halves` are two copies in its place. */
bool xfi_cuda_halve(xfi_copy halves[2], const xfi_copy *copy);
/* log2 of the largest word, of at most 16 bytes, of which everything in `bits` (addresses, strides
 * and sizes, combined by "or") is a multiple. */
uint32_t xfi_cuda_word_log2(uint64_t bits);
/* Begins the next piece of a table, in place: the fields that follow from the copy alone, its last
 * dim first; the others are 0. xfi_cuda_piece_end() makes it part of the table. */
xfer_status xfi_cuda_piece_begin(xfi_cuda_piece **piece, xfi_cuda_table *table,
                                 const xfi_copy *copy, uint32_t word_log2);
void xfi_cuda_piece_end(xfi_cuda_table *table, int64_t n_tiles);

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
