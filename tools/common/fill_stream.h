/* Boxes of device memory, filled and checked on a stream. */
#ifndef TOOLS_FILL_STREAM_H
#define TOOLS_FILL_STREAM_H

#include "fill.h"

typedef struct fill_stream {
  unsigned long long *sums; /* [n_sums] in device memory, as fill_box_check() has them */
  int n_sums;
  struct CUstream_st *stream;
} fill_stream;

static inline bool fill_stream_fill(void *context, const fill_box *box)
{
  const fill_stream *s = context;

  return fill_box_write(box, s->stream) == 0;
}

static inline bool fill_stream_check(void *context, const fill_box *box, bool zero)
{
  const fill_stream *s = context;

  return fill_box_check(box, zero, s->sums, s->n_sums, s->stream) == 0;
}

static inline fill_device fill_device_of(fill_stream *s)
{
  return (fill_device){fill_stream_fill, fill_stream_check, s};
}

#endif
