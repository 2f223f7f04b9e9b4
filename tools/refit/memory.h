/* The memory of one rank: a buffer for each local tensor of either side, on the device if there is
 * one. */
#ifndef TOOLS_REFIT_MEMORY_H
#define TOOLS_REFIT_MEMORY_H

#include "rank.h"

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
  void **boxes[2]; /* [n_boxes] of its source and destination, where the part is no one tensor */
  size_t n_boxes[2];
  const refit_device *device;
  const refit_case *what;
  int rank;
  size_t lacks; /* bytes of a tensor that could not be had */
} refit_memory;

/* False: xfer_last_error(), or memory->lacks is not 0. `device` NULL: host memory. */
bool refit_memory_create(refit_memory *memory, const refit_case *what, const refit_device *device,
                         int rank);
void refit_memory_free(refit_memory *memory);
/* Bytes of the sources or of the destinations. */
uint64_t refit_memory_bytes(const refit_memory *memory, bool is_dst);
/* Bytes that refit_memory_create() would take for a rank. */
bool refit_memory_need(const refit_case *what, int rank, uint64_t *n_bytes);
/* Bytes that this host can give without swapping, as the kernel estimates it; 0: not known. */
uint64_t refit_memory_available(void);
/* Of any of its buffers; and every destination byte. */
bool refit_memory_set(const refit_memory *memory, void *at, int byte, size_t n_bytes);
bool refit_memory_set_all(const refit_memory *memory, int byte);
/* Between a buffer's bytes and host memory. */
bool refit_memory_read(const refit_memory *memory, void *to, const refit_buffer *b, size_t first,
                       size_t n_bytes);
bool refit_memory_write(const refit_memory *memory, const refit_buffer *b, size_t first,
                        const void *from, size_t n_bytes);
/* Hands every view to the plan. */
bool refit_memory_bind(refit_memory *memory, xfer_plan *plan);
/* The views of a tensor, as xfer_locals_view() gives them. */
bool refit_memory_view(refit_memory *memory, size_t tensor, xfer_view *src, xfer_view *dst,
                       uint32_t *has);

#endif
