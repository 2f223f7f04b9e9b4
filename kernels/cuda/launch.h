/*
 * C launchers of the CUDA kernels, and the tables that they read.
 *
 * xfi_cuda_compile() turns copies into five tables: rows (kernels/cuda/rows.cu), where the fast
 * dims of both sides agree, ragged (kernels/cuda/ragged.cu), where they do but runs are at odd
 * addresses, swapped (kernels/cuda/swapped.cu), where fast dims do not agree, also if elements
 * change, converts (kernels/cuda/convert.cu), where they do in runs, and blocks
 * (kernels/cuda/blocks.cu), where they do by scales. A table is an array of pieces and the running
 * sum of their tiles; a warp or, of swapped pieces, a block of threads finds the piece of a tile by
 * searching the sum.
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

/* Of an H200. Launches that run side by side have no more blocks of 512 threads in all: those that
 * share a multiprocessor with blocks that wait for a link move at their pace. With more the GPUs of
 * a host that copy within themselves and to each other make 0.58 to 0.82 of the link, with as many
 * 0.87 to 0.91. */
#define XFI_CUDA_MULTIPROCESSORS 132
/* Of a launch that has the device to itself. More bytes in flight than that gained nothing. */
#define XFI_CUDA_BLOCKS_ALONE (2 * XFI_CUDA_MULTIPROCESSORS)

/* What a warp loads before it stores the first. */
#define XFI_CUDA_WARP_WORDS 128

/* Elements along a side of the square tiles that are transposed, by their size in src: rows of 128
 * to 512 bytes. */
#define XFI_CUDA_SWAP_SIDE(bytes) ((bytes) <= 2 ? 128 : (bytes) <= 8 ? 64 : 32)
/* The kind of those whose elements of 4 or 2 bytes become others of 4, 2 or 1, and by scales. */
#define XFI_CUDA_SWAP_CONVERT_KIND(from, to)                                                       \
  (XFI_CUDA_SWAP_CONVERT + ((from) == 4 ? 0 : 3) + ((to) == 4 ? 0 : (to) == 2 ? 1 : 2))
#define XFI_CUDA_SWAP_QUANTISE_KIND(from) (XFI_CUDA_SWAP_QUANTISE + ((from) == 4 ? 0 : 1))

/* x / d for 0 <= x < 2^31 and 1 <= d < 2^31, as (umulhi(x, magic) + x) >> shift (Granlund and
 * Montgomery). */
typedef struct xfi_cuda_div {
  uint32_t magic;
  uint32_t shift;
} xfi_cuda_div;

/* Kinds of pieces in the tables of ragged, of swapped, of converts and of blocks; each has a kernel
 * to itself. */
enum {
  XFI_CUDA_RAGGED_TOGETHER = 0,
  XFI_CUDA_RAGGED_BY_IMAGE = 1,
  XFI_CUDA_RAGGED_SKEWED = 2, /* runs begin anywhere in words */
  XFI_CUDA_N_RAGGED = 3,
  XFI_CUDA_SWAP = 0,           /* + log2 of an element's bytes */
  XFI_CUDA_SWAP_APART = 5,     /* likewise: elements do not follow each other on both sides */
  XFI_CUDA_SWAP_CONVERT = 10,  /* XFI_CUDA_SWAP_CONVERT_KIND() */
  XFI_CUDA_SWAP_QUANTISE = 16, /* XFI_CUDA_SWAP_QUANTISE_KIND() */
  XFI_CUDA_N_SWAPS = 18,
  XFI_CUDA_CONVERT = 0, /* + 5 * xfi_convert_type() of the source + that of the destination */
  XFI_CUDA_CONVERT_SKEWED = 15, /* likewise, of runs that begin anywhere in words */
  XFI_CUDA_CONVERT_ONE_BY_ONE = 30,
  XFI_CUDA_CONVERT_LINES = 31, /* likewise, by lines.cuh */
  XFI_CUDA_N_CONVERTS = 32,
  XFI_CUDA_QUANTISE = 0, /* + xfi_convert_type() of the source */
  XFI_CUDA_AMAX_OF_4_BYTES = 3,
  XFI_CUDA_AMAX_OF_2_BYTES = 4,
  XFI_CUDA_BLOCKS_ONE_BY_ONE = 5,
  XFI_CUDA_N_BLOCKS = 6
};

/* A copy made ready: words instead of bytes, dims from the fastest of dst to the slowest. Of
 * converts a word is a number of elements. A box of a digest is one as well: dims go from the
 * fastest of memory, runs count in bytes, and `dst` is as in an xfi_digest_box. */
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
  uint32_t word_log2;   /* a word has 1 << word_log2 bytes, 1 to 16; converts: so many elements;
                           digests: src and dst are apart by a multiple of that */
  xfi_convert convert;
  float *scales;   /* blocks: that of the first run */
  uint64_t factor; /* digests, as is the slot */
  uint32_t slot;
  uint32_t kind; /* not of rows */
  uint32_t n_dims;
  xfi_cuda_div by_tile_cols;
  uint32_t scale_stride[XFI_COPY_DIMS]; /* scales */
  uint32_t extent[XFI_COPY_DIMS];
  xfi_cuda_div by_extent[XFI_COPY_DIMS];
  int64_t src_stride[XFI_COPY_DIMS]; /* bytes */
  int64_t dst_stride[XFI_COPY_DIMS];
} xfi_cuda_piece;

/* A small table of rows, of ragged or of swapped pieces, which travels with its launch as a
 * parameter: nothing is uploaded, and launches under way read nothing that is written anew. At most
 * 4 KiB. */
enum { XFI_CUDA_FEW = 8 };
typedef struct xfi_cuda_few {
  xfi_cuda_piece pieces[XFI_CUDA_FEW];
  int64_t first_tile[XFI_CUDA_FEW + 1];
} xfi_cuda_few;

/* On the device, of a launch that decides by itself. */
typedef struct xfi_cuda_blocks {
  uint64_t said;  /* the value of the last launch, made void if it copies nothing */
  uint32_t come;  /* 0 before and after a launch, */
  uint32_t ended; /* likewise */
} xfi_cuda_blocks;

/* What a launch waits to be allowed, and whom it tells. Zeros: it copies, and tells nobody. */
enum { XFI_CUDA_GATE_FLAGS = 16, XFI_CUDA_GATE_DONE = 8 };
typedef struct xfi_cuda_gate {
  const uint64_t *go; /* 0 there: copy nothing; NULL: go */
  /* Or it looks by itself: if a flag is void it copies nothing. At its end `value`, another one for
   * each launch, is stored to those of `done` as by xfi_cuda_flags_set(), made void if it did not.
   */
  uint64_t *flags[XFI_CUDA_GATE_FLAGS];
  uint64_t *done[XFI_CUDA_GATE_DONE];
  uint64_t value;
  xfi_cuda_blocks *blocks;
  int n_flags;
  int n_done;
} xfi_cuda_gate;

/* One launch. Pointers are device memory but for `few`. */
typedef struct xfi_cuda_job {
  const xfi_cuda_piece *pieces; /* [n_pieces] */
  const int64_t *first_tile;    /* [n_pieces + 1] */
  const xfi_cuda_few *few;      /* host memory: the table is there; NULL: as above */
  int64_t n_pieces;
  int64_t n_tiles;
  uint32_t kinds; /* a bit for each that there are */
  int n_blocks;   /* at most so many */
  xfi_cuda_gate gate;
} xfi_cuda_job;

/* A table on the host. */
typedef struct xfi_cuda_table {
  xfi_cuda_piece *pieces; /* [n_pieces] */
  int64_t *first_tile;    /* [n_pieces + 1] */
  size_t n_pieces;
  size_t pieces_cap;
  size_t first_tile_cap;
  uint32_t kinds; /* a bit for each that there are */
} xfi_cuda_table;

void xfi_cuda_table_free(xfi_cuda_table *table);

/* What a launch knows of a table, wherever it lies. */
static inline xfi_cuda_job xfi_cuda_job_of(const xfi_cuda_table *table)
{
  xfi_cuda_job job;

  memset(&job, 0, sizeof job); /* in C++ too */
  job.n_pieces = (int64_t)table->n_pieces;
  job.kinds = table->kinds;
  if (table->n_pieces > 0) job.n_tiles = table->first_tile[table->n_pieces];
  return job;
}

/* The tables of copies, each with a launch of its own. */
enum {
  XFI_CUDA_ROWS,
  XFI_CUDA_RAGGED,
  XFI_CUDA_SWAPPED,
  XFI_CUDA_CONVERTS,
  XFI_CUDA_BLOCKS,
  XFI_CUDA_N_TABLES
};

typedef struct xfi_cuda_program {
  xfi_cuda_table tables[XFI_CUDA_N_TABLES];
} xfi_cuda_program;

/* The tables of `copies`, for launches of about `n_blocks` blocks. Free with
 * xfi_cuda_program_free. */
xfer_status xfi_cuda_compile(xfi_cuda_program *program, const xfi_copy *copies, size_t n_copies,
                             int n_blocks);
void xfi_cuda_program_free(xfi_cuda_program *program);
/* Puts table `k` of a program into `few`; false: it cannot go there. */
bool xfi_cuda_few_make(xfi_cuda_few *few, const xfi_cuda_program *program, int k);

/* The table of a digest. Free with xfi_cuda_table_free, also after a failure. */
xfer_status xfi_cuda_digest_compile(xfi_cuda_table *table, const xfi_digest_box *boxes,
                                    size_t n_boxes);

/* What both compilers are made of. x / d by a multiplication: */
xfi_cuda_div xfi_cuda_div_make(uint32_t d);
/* Has a copy more runs than 31 bits count? Then its halves. */
bool xfi_cuda_halve(xfi_copy halves[2], const xfi_copy *copy);
/* log2 of the largest word, at most of 16 bytes, that divides them all. */
uint32_t xfi_cuda_word_log2(uint64_t bits);
/* The next piece of a table, built where it is to lie: what a copy says by itself, its last dim
 * first, and zeros. It is one of the table once it is ended. */
xfer_status xfi_cuda_piece_begin(xfi_cuda_piece **piece, xfi_cuda_table *table,
                                 const xfi_copy *copy, uint32_t word_log2);
void xfi_cuda_piece_end(xfi_cuda_table *table, int64_t n_tiles);

/* The kernels of a table. Left to itself the driver loads a kernel at its first launch and waits
 * for the device to be idle, which never comes while a stream waits for a flag that this kernel is
 * to set. copy() does nothing for an empty job, allocates nothing and does not synchronise. */
typedef struct xfi_cuda_kernels {
  xfer_status (*load)(void); /* on the current device */
  xfer_status (*copy)(const xfi_cuda_job *job, xfer_stream stream);
} xfi_cuda_kernels;
extern const xfi_cuda_kernels xfi_cuda_rows_kernels, xfi_cuda_ragged_kernels,
    xfi_cuda_swapped_kernels, xfi_cuda_converts_kernels, xfi_cuda_blocks_kernels;
xfer_status xfi_cuda_flags_load(void);
xfer_status xfi_cuda_digest_load(void);

/* Those of table k. */
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
/* To `sums`, on the device, it is added. */
xfer_status xfi_cuda_digest(const xfi_cuda_job *job, xfi_sum *sums, xfer_stream stream);

/* Store `value` to each flag, own or a peer's, after all earlier work on `stream` is visible to
 * whoever sees it; where *go is 0 (go NULL: never), made void. */
xfer_status xfi_cuda_flags_set(uint64_t *const *flags, int n_flags, uint64_t value,
                               const uint64_t *go, xfer_stream stream);
/* *go becomes 0 where one of at most 64 flags is void, else 1. */
xfer_status xfi_cuda_guard_check(uint64_t *const *flags, int n_flags, uint64_t *go,
                                 xfer_stream stream);

#ifdef __cplusplus
}
#endif
#endif
