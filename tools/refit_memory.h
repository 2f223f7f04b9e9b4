/* The memory of one rank: a buffer for each local tensor of either side. */
#ifndef TOOLS_REFIT_MEMORY_H
#define TOOLS_REFIT_MEMORY_H

#include "refit_rank.h"

typedef struct refit_buffer {
  const char *name;
  bool is_dst;
  char *base;
  size_t n_bytes;
} refit_buffer;

typedef struct refit_memory {
  refit_buffer *buffers;
  size_t n_buffers;
  xfer_locals *locals; /* NULL: a problem line */
  const refit_case *what;
  int rank;
} refit_memory;

/* False: xfer_last_error() or, if that is empty, no memory. */
bool refit_memory_create(refit_memory *memory, const refit_case *what, int rank);
void refit_memory_free(refit_memory *memory);
/* Hands every view to the plan. */
bool refit_memory_bind(refit_memory *memory, xfer_plan *plan);
/* The views of a tensor, as xfer_locals_view() gives them. */
bool refit_memory_view(refit_memory *memory, size_t tensor, xfer_view *src, xfer_view *dst,
                       int *has);
/* What a tensor is in the table. */
bool refit_memory_tensor(const refit_memory *memory, size_t tensor, xfer_refit_tensor *info);

#endif
