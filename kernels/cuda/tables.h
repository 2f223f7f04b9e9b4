/*
 * The tables from which the CUDA kernels take their work. tables.c makes five of them from copies:
 *
 * - rows (rows.cu): the fastest dim is the same on both sides;
 * - ragged (ragged.cu): the same, but runs are at odd addresses, and long or in lines;
 * - swapped (swapped.cu): the fastest dims differ, with or without conversion of elements;
 * - converts (convert.cu): runs of elements that are converted;
 * - blocks (blocks.cu): the same, with scales of blocks;
 *
 * and digest_table.c makes one from the boxes of a digest (digest.cu).
 *
 * A table is an array of pieces, each a copy or a part of one, and the prefix sums of the numbers
 * of their tiles. A warp or, for swapped pieces, a block of threads finds the piece of a tile by
 * searching these sums.
 */
#ifndef XFI_CUDA_TABLES_H
#define XFI_CUDA_TABLES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "digest.h"
#include "kernels.h"
#include "xfer/xfer.h"

/* How many words a warp loads before it stores the first. */
#define XFI_CUDA_WARP_WORDS 128

/* Elements along a side of the square tiles that are transposed, by an element's size in src. Rows
 * of a tile then have 128 to 512 bytes. */
#define XFI_CUDA_SWAP_SIDE(bytes) ((bytes) <= 2 ? 128 : (bytes) <= 8 ? 64 : 32)
/* Bytes of the units that are read or written where elements are adjacent in rows. */
#define XFI_CUDA_SWAP_UNIT(bytes) ((bytes) < 4 ? 4 : (bytes))
/* Bytes from one row of a square to the next in shared memory: a row of n elements begins at the
 * same place of its first unit as in memory. */
#define XFI_CUDA_SWAP_PITCH(bytes, n)                                                              \
  ((((n) * (bytes) + 2 * XFI_CUDA_SWAP_UNIT(bytes) - (bytes)-1) / XFI_CUDA_SWAP_UNIT(bytes) | 1) * \
   XFI_CUDA_SWAP_UNIT(bytes))
/* Rows of a square of n elements along dim 0, of which a unit of dst has `in_unit`: whole units,
 * and what one reaches into the next square. */
#define XFI_CUDA_SWAP_ROWS(n, in_unit) (((n) + 2 * (in_unit)-2) / (in_unit) * (in_unit))
#define XFI_CUDA_SWAP_TEAMS_LOG2 3 /* at most: a team is at least a warp */

/* x / d for 0 <= x < 2^31 and 1 <= d < 2^31, as (umulhi(x, magic) + x) >> shift (Granlund and
 * Montgomery). Aligned so that kernels load both at once. */
typedef struct __attribute__((aligned(8))) xfi_cuda_div {
  uint32_t magic;
  uint32_t shift;
} xfi_cuda_div;

/* ---- kinds of pieces ----------------------------------------------------------------------- */

/* Numbered from 0 in each table that has several. Each kind has a kernel of its own. */
enum {
  /* ragged: */
  XFI_CUDA_RAGGED_TOGETHER = 0, /* lines in dst, of runs of at least 16 bytes */
  XFI_CUDA_RAGGED_BY_IMAGE = 1, /* other lines (lines.cuh) */
  XFI_CUDA_RAGGED_SKEWED = 2,   /* runs begin anywhere in words (skewed.cuh) */
  XFI_CUDA_N_RAGGED = 3,
  /* swapped: */
  XFI_CUDA_SWAP = 0,           /* + log2 of an element's bytes */
  XFI_CUDA_SWAP_APART = 5,     /* the same, but elements are not adjacent on both sides */
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

/* Transposed elements of `from` bytes (4, 2) that are converted to `to` bytes (4, 2, 1), and those
 * that are quantised by blocks. */
#define XFI_CUDA_SWAP_CONVERT_KIND(from, to)                                                       \
  (XFI_CUDA_SWAP_CONVERT + ((from) == 4 ? 0 : 3) + ((to) == 4 ? 0 : (to) == 2 ? 1 : 2))
#define XFI_CUDA_SWAP_QUANTISE_KIND(from) (XFI_CUDA_SWAP_QUANTISE + ((from) == 4 ? 0 : 1))

/* ---- pieces -------------------------------------------------------------------------------- */

/* How a piece is cut into tiles depends on its kind. Numbers of runs are below 2^31, and a word has
 * 1 << word_log2 elements, which are bytes where nothing is converted. */

/* Runs one by one: a tile is a part of one run, or several whole runs. */
typedef struct xfi_cuda_run_tiles {
  int64_t run_words;     /* of one run; of a skewed one, the most that it can touch */
  int64_t tiles_per_run; /* 1 unless a run is longer than a tile */
  uint32_t n_runs;
  uint32_t tile_runs;  /* of a full tile; 1 if a run is longer than a tile */
  uint32_t tile_words; /* of each run in a full tile */
  uint32_t word_log2;
  xfi_cuda_div by_tile_words;
} xfi_cuda_run_tiles;

/* Lines of short runs, which lie one after the other along dim 0: a tile is a part of one line, or
 * several whole lines. */
typedef struct xfi_cuda_line_tiles {
  int64_t tiles_per_line; /* 1 unless a line is longer than a tile */
  uint32_t n_runs;        /* of all lines */
  uint32_t tile_runs;     /* of a full tile */
  uint32_t run_words;
  uint32_t word_log2;
  xfi_cuda_div by_run_words;
} xfi_cuda_line_tiles;

/* Squares of at most XFI_CUDA_SWAP_SIDE() elements along dims 0 and 1, for each index of the other
 * dims. The threads of a block form teams, each of which moves a square of its own. */
typedef struct xfi_cuda_square_tiles {
  uint32_t n0; /* squares along dim 0 */
  uint32_t n1;
  uint32_t n; /* squares in all; a tile is one for each team */
  uint32_t teams_log2;
  uint32_t n_rows; /* along dim 0, in shared memory: enough for each square */
  uint32_t pitch;  /* bytes from one row there to the next: an odd number of banks */
} xfi_cuda_square_tiles;

/* Runs of the box of a digest, in units of the tensor's order: a tile is some blocks of one long
 * run, or several whole runs. */
typedef struct xfi_cuda_digest_tiles {
  int64_t run_bytes;
  int64_t tiles_per_run; /* 1 unless a run is long */
  uint32_t n_runs;
  uint32_t tile_runs; /* of a full tile; 1 if a run is long */
  uint32_t run_units; /* the most that a short run can touch */
  uint32_t word_log2; /* addresses and offsets in the order differ by multiples of such words */
  xfi_cuda_div by_run_units;
  uint64_t factor;
  uint32_t sum; /* its index */
} xfi_cuda_digest_tiles;

/* A copy, or a part of one, as kernels read it: the fastest dim of dst is dim 0. The box of a
 * digest is a piece as well: its dim 0 is the fastest in memory, and `dst` is that of an
 * xfi_digest_box. */
typedef struct xfi_cuda_piece {
  const char *src; /* NULL: zeros */
  char *dst;
  int64_t run_elems; /* elements of one run; bytes where nothing is converted */
  union {
    xfi_cuda_run_tiles runs; /* rows, skewed runs, blocks, and what is converted but for lines */
    xfi_cuda_line_tiles lines;
    xfi_cuda_square_tiles squares; /* swapped */
    xfi_cuda_digest_tiles digest;
  };
  xfi_convert convert;                  /* zero where nothing is converted */
  float *scales;                        /* blocks: the scale of the first run */
  uint32_t kind;                        /* 0 in tables that have one kind */
  uint32_t scale_stride[XFI_COPY_DIMS]; /* counted in scales */
  uint32_t extent[XFI_COPY_DIMS];
  uint32_t n_dims; /* not before `extent`: its pairs, loaded at once, make transposes spill more */
  xfi_cuda_div by_extent[XFI_COPY_DIMS];
  int64_t src_stride[XFI_COPY_DIMS]; /* bytes */
  int64_t dst_stride[XFI_COPY_DIMS];
} xfi_cuda_piece;

/* ---- tables -------------------------------------------------------------------------------- */

typedef struct xfi_cuda_table {
  xfi_cuda_piece *pieces; /* [n_pieces] */
  int64_t *first_tile;    /* [n_pieces + 1] the prefix sums */
  size_t n_pieces;
  size_t pieces_cap;
  size_t first_tile_cap;
  uint32_t kinds; /* bit k: there are pieces of kind k */
} xfi_cuda_table;

void xfi_cuda_table_free(xfi_cuda_table *table);

/* The tables of copies. */
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

/* A small table of rows, ragged or swapped pieces, which is passed to the kernel as a parameter.
 * Then nothing is uploaded, and launches under way read nothing that a later commit changes. */
enum { XFI_CUDA_SMALL_TABLE = 8 }; /* pieces */
typedef struct xfi_cuda_small_table {
  xfi_cuda_piece pieces[XFI_CUDA_SMALL_TABLE];
  int64_t first_tile[XFI_CUDA_SMALL_TABLE + 1];
} xfi_cuda_small_table;

/* Puts table `k` into `small`; false: it does not fit. */
bool xfi_cuda_small_table_make(xfi_cuda_small_table *small, const xfi_cuda_tables *tables, int k);

/* The table of a digest. Free with xfi_cuda_table_free, also after a failure. */
xfer_status xfi_cuda_digest_table_make(xfi_cuda_table *table, const xfi_digest_box *boxes,
                                       size_t n_boxes);

/* ---- what tables.c and digest_table.c share ------------------------------------------------ */

/* The constants for dividing by d. */
xfi_cuda_div xfi_cuda_div_make(uint32_t d);
/* True if a copy has more runs than 31 bits count: `halves` are two copies in its place. */
bool xfi_cuda_halve(xfi_copy halves[2], const xfi_copy *copy);
/* log2 of the largest word, of at most 16 bytes, of which everything in `bits` (addresses, strides
 * and sizes, combined by "or") is a multiple. */
uint32_t xfi_cuda_word_log2(uint64_t bits);
/* Begins the next piece of a table, in place: sets the fields that follow from the copy alone, with
 * its last dim as dim 0. The others are 0. xfi_cuda_piece_end() makes it part of the table. */
xfer_status xfi_cuda_piece_begin(xfi_cuda_piece **piece, xfi_cuda_table *table,
                                 const xfi_copy *copy);
void xfi_cuda_piece_end(xfi_cuda_table *table, int64_t n_tiles);

#ifdef __cplusplus
}
#endif
#endif
