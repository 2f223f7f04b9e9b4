/*
 * How flows store their boxes: each in as few words as its dims need, since a plan may have
 * millions.
 */
#include <string.h>

#include "alloc.h"
#include "error.h"
#include "moves_types.h"
#include "vec.h"

xfi_box xfi_flows_box(const xfi_flows *flows, size_t box)
{
  const size_t n = (size_t)flows->n_dims;
  const int64_t *words = flows->boxes + box * xfi_flows_box_words(flows);
  xfi_box out = {.unit = (uint32_t)words[0]};

  for (size_t d = 0; d < n; d++) {
    out.lo[d] = words[1 + d];
    out.length[d] = words[1 + n + d];
    out.src_local[d] = words[1 + 2 * n + d];
    out.dst_local[d] = words[1 + 3 * n + d];
  }
  return out;
}

/* The first of [at, end) at `wanted` or after it. */
static size_t first_from(const xfi_flows *flows, size_t at, size_t end, const int64_t *wanted)
{
  while (at < end) {
    const size_t middle = at + (end - at) / 2;
    const int64_t *lo = xfi_flows_lo(flows, middle);
    int d = 0;

    while (d < flows->n_dims && lo[d] == wanted[d])
      d++;
    if (d < flows->n_dims && lo[d] < wanted[d])
      at = middle + 1;
    else
      end = middle;
  }
  return at;
}

/* Finds the first box from `at` on that lies in [lo, hi) in each dim. From a box outside it goes
 * straight to where the next one inside would be. */
size_t xfi_flows_seek(const xfi_flows *flows, size_t at, size_t end, const int64_t *lo,
                      const int64_t *hi)
{
  while (at < end) {
    const int64_t *box = xfi_flows_lo(flows, at);
    int64_t wanted[XFER_MAX_DIMS];
    int d = 0;

    for (; d < flows->n_dims && box[d] >= lo[d] && box[d] < hi[d]; d++)
      wanted[d] = box[d];
    if (d == flows->n_dims) return at;
    if (box[d] >= hi[d]) {
      if (d == 0) return end;
      wanted[d - 1]++;
    }
    for (; d < flows->n_dims; d++)
      wanted[d] = lo[d];
    at = first_from(flows, at + 1, end, wanted);
  }
  return end;
}

void xfi_flows_put(xfi_flows *flows, size_t at, const xfi_box *box)
{
  const size_t n = (size_t)flows->n_dims;
  int64_t *words = flows->boxes + at * xfi_flows_box_words(flows);

  words[0] = box->unit;
  for (size_t d = 0; d < n; d++) {
    words[1 + d] = box->lo[d];
    words[1 + n + d] = box->length[d];
    words[1 + 2 * n + d] = box->src_local[d];
    words[1 + 3 * n + d] = box->dst_local[d];
  }
}

/* A short line can ask for very many, as one index each in several dims: 2^26 take 5 GB in two
 * dims, and are no redistribution that anybody waits for. */
enum { MOST_BOXES = 1 << 26 };

xfer_status xfi_flows_reserve(xfi_flows *flows, int n_dims, size_t n_boxes)
{
  XFI_CHECK(n_boxes <= MOST_BOXES, XFER_ERR_UNSUPPORTED,
            "more than %d boxes of one tensor on one rank", MOST_BOXES);
  flows->n_dims = n_dims;
  return xfi_vec_reserve(&flows->boxes, &flows->boxes_capacity,
                         n_boxes * xfi_flows_box_words(flows), sizeof *flows->boxes);
}

/* Copy flows and their boxes to the beginning of the memory that is left for each. */
static xfi_flows put_flows(const xfi_flows *from, int64_t **boxes, xfi_flow **at)
{
  const size_t n_words = from->n_boxes * xfi_flows_box_words(from);
  const xfi_flows to = {
      .at = *at, .n = from->n, .n_dims = from->n_dims, .boxes = *boxes, .n_boxes = from->n_boxes};

  if (n_words > 0) memcpy(*boxes, from->boxes, n_words * sizeof **boxes);
  if (from->n > 0) memcpy(*at, from->at, from->n * sizeof **at);
  *boxes += n_words;
  *at += from->n;
  return to;
}

xfer_status xfi_class_keep(xfi_class *cls, const xfi_flows *sends, const xfi_flows *recvs)
{
  const size_t n_words =
      sends->n_boxes * xfi_flows_box_words(sends) + recvs->n_boxes * xfi_flows_box_words(recvs);
  int64_t *boxes =
      xfi_calloc(1, n_words * sizeof *boxes + (sends->n + recvs->n) * sizeof *sends->at);
  xfi_flow *at;

  XFI_CHECK(boxes != NULL, XFER_ERR_NOMEM, "%zu boxes", sends->n_boxes + recvs->n_boxes);
  cls->memory = boxes;
  at = (xfi_flow *)(void *)(boxes + n_words);
  cls->sends = put_flows(sends, &boxes, &at);
  cls->recvs = put_flows(recvs, &boxes, &at);
  return XFER_OK;
}

void xfi_class_free(xfi_class *cls)
{
  xfi_free(cls->memory);
}

void xfi_flows_free(xfi_flows *flows)
{
  xfi_free(flows->at);
  xfi_free(flows->boxes);
  *flows = (xfi_flows){0};
}
