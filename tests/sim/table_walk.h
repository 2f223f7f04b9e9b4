/*
 * What the kernels do with a tile of their tables (kernels/cuda), in plain C: which elements go
 * where, and which words of the source are loaded for that. Written from the meaning of the tables
 * and of the kernels, of whose code it has nothing, so that tests without a GPU can tell whether a
 * table is right.
 */
#ifndef XFER_SIM_TABLE_WALK_H
#define XFER_SIM_TABLE_WALK_H

#include "tables.h"

/* The table of a digest, beside those of copies. */
enum { DIGEST_TABLE = XFI_CUDA_N_TABLES };

typedef struct tile_visitor tile_visitor;
struct tile_visitor {
  /* Elements, which are bytes if nothing is converted, go from src to dst. They are adjacent on
   * both sides, and `scale` is the index of their scale. A src of NULL: zeros. */
  void (*move)(tile_visitor *v, const xfi_cuda_piece *piece, char *dst, const char *src, int64_t n,
               int64_t scale);
  /* A word of src is loaded. */
  void (*load)(tile_visitor *v, const xfi_cuda_piece *piece, const char *at, int64_t n_bytes);
};

/* Visits tile `index` of a piece of this table. */
void walk_tile(tile_visitor *v, int table, const xfi_cuda_piece *piece, int64_t index);
/* x / d, by the instructions of the kernels. */
uint32_t walk_div(uint32_t x, xfi_cuda_div d);

#endif
