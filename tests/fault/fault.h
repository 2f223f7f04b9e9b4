/* A small plan that meets every lane, played by threads as ranks, with a place to spoil what each
 * rank gives: three tensors between overlapping meshes of four ranks, one with elements that have
 * no source, one with a destination in pieces, one with replicas.
 */
#ifndef FAULT_H
#define FAULT_H

#include "unit/ranks.h"
#include "xfer/xfer.h"

#include <stdbool.h>
#include <string.h>

enum { N_RANKS = 4, N_TENSORS = 3, PART_BYTES = 256, POISON = 0xAB, TEXT_BYTES = 512 };

static const char *const problem_lines[N_TENSORS] = {
    "i32[6,4] (2)@0-1:S0 -> (2)@1-2:S1",
    "u8[5] (2)@0-1:S0;pad=0:8 -> (2)@2-3:S0;pad=0:8",
    "f64[4] (1)@0:R -> (3)@1-3:R",
};
static const char *const tensor_names[N_TENSORS] = {"wide", "padded", "copied"};

/* What one rank gives, and its memory. */
typedef struct input {
  int rank;
  xfer_layout *src[N_TENSORS];
  xfer_layout *dst[N_TENSORS];
  xfer_tensor tensors[N_TENSORS];
  size_t n_tensors;
  xfer_plan_options options;
  xfer_view src_views[N_TENSORS];
  xfer_view dst_views[N_TENSORS];
  void *pieces[2];
  _Alignas(16) unsigned char src_memory[N_TENSORS][PART_BYTES];
  _Alignas(16) unsigned char dst_memory[N_TENSORS][PART_BYTES];
} input;

/* Lanes, each alone; and packed with domains of two, the second of which wants "copied" twice and
 * relays it. */
static const struct {
  uint32_t lane;
  uint32_t ranks_per_domain;
} ways[] = {
    {XFER_LANE_DIRECT, 0}, {XFER_LANE_PACKED, 0}, {XFER_LANE_BROADCAST, 0}, {XFER_LANE_PACKED, 2}};
enum { N_WAYS = sizeof ways / sizeof *ways };

/* What a call came to, with its text. */
typedef struct outcome {
  xfer_status st;
  char text[TEXT_BYTES];
} outcome;

static inline outcome outcome_of(xfer_status st)
{
  outcome o = {.st = st};

  if (st != XFER_OK) (void)snprintf(o.text, sizeof o.text, "%s", xfer_last_error());
  return o;
}

/* The value of a global index, and of what has no source. */
static inline unsigned char value_of(size_t tensor, int64_t global, size_t byte)
{
  return (unsigned char)(1 + tensor * 80 + (size_t)global * 3 + byte);
}

/* A rank's part as it should be, into `bytes`; returns how many. Dims are at most two, runs one. */
static inline size_t expected_part(unsigned char *bytes, const xfer_layout *layout, int rank,
                                   size_t tensor)
{
  const size_t elem = xfer_dtype_size(xfer_layout_dtype(layout));
  int64_t global[2] = {1, 1};
  int64_t local[2] = {1, 1};
  xfer_run runs[2] = {{0, 1, 0}, {0, 1, 0}};
  const int n_dims = xfer_layout_shape(layout, global);
  size_t n = 0;

  if (xfer_layout_local_shape(layout, rank, local) != XFER_OK) return 0;
  for (int d = 0; d < n_dims; d++) {
    size_t n_runs = 0;

    if (xfer_layout_runs(layout, rank, d, &runs[d], 1, &n_runs) != XFER_OK) abort();
    if (n_runs == 0) runs[d].length = 0;
  }
  for (int64_t x = 0; x < local[0]; x++)
    for (int64_t y = 0; y < local[1]; y++)
      for (size_t b = 0; b < elem; b++) {
        const int64_t index = (runs[0].global + x) * global[1] + runs[1].global + y;
        const bool held = x < runs[0].length && y < runs[1].length;

        bytes[n++] = held ? value_of(tensor, index, b) : 0;
      }
  return n;
}

static inline void input_create(input *in, int rank)
{
  static const int64_t strides[2] = {8, 4}; /* of the wide tensor's destination, dense */

  memset(in, 0, sizeof *in);
  in->rank = rank;
  in->n_tensors = N_TENSORS;
  in->options = (xfer_plan_options)XFER_PLAN_OPTIONS_INIT;
  in->options.timeout_ms = 20000;
  memset(in->dst_memory, POISON, sizeof in->dst_memory);
  for (size_t t = 0; t < N_TENSORS; t++) {
    if (xfer_problem_parse(&in->src[t], &in->dst[t], problem_lines[t]) != XFER_OK) abort();
    in->tensors[t] = (xfer_tensor){tensor_names[t], in->src[t], in->dst[t], {0}};
    in->src_views[t] = xfer_view_dense(in->src_memory[t]);
    in->dst_views[t] = xfer_view_dense(in->dst_memory[t]);
    (void)expected_part(in->src_memory[t], in->src[t], rank, t);
  }
  if (rank != 2) return;
  in->pieces[0] = in->dst_memory[0];
  in->pieces[1] = in->dst_memory[0] + 24; /* 3 rows of 8 bytes */
  in->dst_views[0] = xfer_view_pieces(in->pieces, 2, 0, strides, 2);
}

static inline void input_destroy(input *in)
{
  for (size_t t = 0; t < N_TENSORS; t++) {
    xfer_layout_destroy(in->src[t]);
    xfer_layout_destroy(in->dst[t]);
  }
}

/* Bind all tensors; the first failure, but every tensor is tried. */
static inline xfer_status input_bind(input *in, xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  for (size_t t = 0; t < in->n_tensors && st == XFER_OK; t++)
    st = xfer_plan_bind(plan, t, &in->src_views[t], &in->dst_views[t]);
  return st;
}

/* Nothing was written where something could have been. */
static inline bool is_untouched(const input *in)
{
  const unsigned char *bytes = &in->dst_memory[0][0];

  for (size_t i = 0; i < sizeof in->dst_memory; i++)
    if (bytes[i] != POISON) return false;
  return true;
}

/* Every byte is there, and none beside the parts was written. */
static inline bool is_delivered(const input *in)
{
  for (size_t t = 0; t < in->n_tensors; t++) {
    unsigned char want[PART_BYTES];
    size_t n;

    memset(want, POISON, sizeof want);
    n = expected_part(want, in->dst[t], in->rank, t);
    if (memcmp(in->dst_memory[t], want, sizeof want) != 0 && n > 0) return false;
    if (n == 0 && in->dst_memory[t][0] != POISON) return false;
  }
  return true;
}

static inline void make_comms(xfer_comm **comms)
{
  if (xfer_comm_create_local(comms, N_RANKS) != XFER_OK) abort();
}

static inline void destroy_comms(xfer_comm **comms)
{
  for (int r = 0; r < N_RANKS; r++) {
    xfer_comm_destroy(comms[r]);
    comms[r] = NULL;
  }
}

#endif
