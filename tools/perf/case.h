/* What a row moves: tensors, and this rank's memory for its parts of them. */
#ifndef PERF_CASE_H
#define PERF_CASE_H

#include "world.h"

#include <xfer/refit.h>

/* One allocation: a local tensor of a framework, or a part. */
typedef struct perf_buffer {
  char *base;
  size_t n_bytes;
  bool is_dst;
} perf_buffer;

/* All zero: nothing made. */
typedef struct perf_case {
  const xfer_tensor *tensors;
  size_t n_tensors;
  perf_buffer *buffers; /* of this rank */
  size_t n_buffers;
  uint64_t dst_bytes; /* this rank's */
  /* a model: */
  xfer_model *model;
  xfer_side *sides[2];
  xfer_refit *refit;
  xfer_locals *locals;
  /* lines of the problem language: */
  xfer_tensor *own; /* [n_tensors] */
  char (*names)[24];
  xfer_view (*views)[2]; /* [n_tensors] source, destination */
} perf_case;

/* A whole model between two sides, which start at ranks 0 and `gen_first`. */
bool perf_case_model(perf_case *c, const perf_world *w, const char *table, const char *train,
                     const char *gen, int gen_first);
enum { PERF_LINE_BYTES = 256 };
/* Writes the i-th tensor in the problem language. */
typedef void (*perf_line_fn)(const perf_world *w, int i, char *text, size_t size);
typedef struct perf_lines {
  int n;
  perf_line_fn line;
  const char *from;    /* the sources' dtype, converted on the way; NULL: the lines' */
  perf_line_fn scales; /* of blocks of 128 x 128, whose source is not used; NULL: no blocks */
} perf_lines;
bool perf_case_lines(perf_case *c, const perf_world *w, const perf_lines *lines);
void perf_case_free(perf_case *c, const perf_world *w);

bool perf_case_bind(const perf_case *c, xfer_plan *plan);
/* Where a tensor's parts lie; the views last until the next call. `has` as in xfer_locals_view().
 */
bool perf_case_view(const perf_case *c, size_t tensor, xfer_view *src, xfer_view *dst,
                    uint32_t *has);
/* Enqueue: write the sources; write nonsense to the destinations. */
bool perf_case_fill(const perf_case *c, const perf_world *w);
void perf_case_poison(const perf_case *c, const perf_world *w);
/* Wrong bytes of all ranks' destinations, unvisited ones included. Collective. */
double perf_case_check(const perf_case *c, const perf_world *w);

#endif
