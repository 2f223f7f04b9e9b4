/* Which ranks hold which boxes of a tensor: the parts of a layout, each once. */
#ifndef TOOLS_PLAN_SHARDS_H
#define TOOLS_PLAN_SHARDS_H

#include <stdbool.h>
#include <xfer/xfer.h>

typedef struct shard {
  int64_t *bounds; /* [n_boxes][2][n_dims], as xfer_layout_boxes() gives them */
  size_t n_boxes;
  int *ranks; /* [n_ranks] ascending: they hold it alike */
  int n_ranks;
} shard;

typedef struct shards {
  shard *at; /* [n] by their first rank */
  size_t n;
  int n_dims;
  int64_t shape[XFER_MAX_DIMS];
} shards;

/* Of the ranks 0 .. n_ranks - 1. False: no memory. */
bool shards_find(shards *out, const xfer_layout *layout, int n_ranks);
void shards_free(shards *out);

/* A layout in the problem language; a long one ends in dots. */
enum { SHARDS_TEXT_BYTES = 1024 };
void shards_text(char text[SHARDS_TEXT_BYTES], const xfer_layout *layout);

/* "0-7", "3,5", "256-511/32": ranks in ranges. Returns what snprintf() does. */
int shards_ranks(char *text, size_t size, const shard *part);

#endif
