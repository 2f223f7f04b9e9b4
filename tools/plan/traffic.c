#include "traffic.h"

#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "interrupt.h"
#include "progress.h"

/* As the library predicts by its default options. */
#define LINK_BYTES_PER_S 350e9
#define MESSAGE_NS 30000

typedef struct survey {
  plan_traffic *traffic;
  progress bar;
  bool pairs;
  bool memory; /* false: there was none */
} survey;

static bool keep_pairs(plan_traffic *t, const xfer_traffic *from, size_t n)
{
  if (t->n_pairs + n > t->capacity) {
    const size_t capacity = 2 * (t->n_pairs + n);
    xfer_traffic *grown = realloc(t->pairs, capacity * sizeof *grown);

    if (grown == NULL) return false;
    t->pairs = grown;
    t->capacity = capacity;
  }
  if (n > 0) memcpy(t->pairs + t->n_pairs, from, n * sizeof *from);
  t->n_pairs += n;
  return true;
}

/* A receiver's row also adds to those that send to it. */
static int take(void *context, int rank, const xfer_plan_report_data *report,
                const xfer_traffic *from, size_t n)
{
  survey *s = context;
  xfer_plan_report_data *mine = &s->traffic->ranks[rank];
  const uint64_t out_bytes = mine->out_bytes;
  const uint64_t n_send_peers = mine->n_send_peers;

  *mine = *report;
  mine->out_bytes = out_bytes;
  mine->n_send_peers = n_send_peers;
  for (size_t i = 0; i < n; i++) {
    if (from[i].src_rank == rank) continue;
    s->traffic->ranks[from[i].src_rank].out_bytes += from[i].n_bytes;
    s->traffic->ranks[from[i].src_rank].n_send_peers++;
  }
  s->memory = !s->pairs || keep_pairs(s->traffic, from, n);
  progress_add(&s->bar, 1);
  return !s->memory || interrupt_came();
}

static void predict(xfer_plan_report_data *r)
{
  r->bound_bytes = r->wire_bytes > r->out_bytes ? r->wire_bytes : r->out_bytes;
  r->predicted_ns = (uint64_t)((double)r->bound_bytes / LINK_BYTES_PER_S * 1e9 +
                               (double)(r->n_send_peers + r->n_recv_peers) * MESSAGE_NS);
}

bool plan_traffic_find(plan_traffic *traffic, const plan_whole *whole, bool pairs)
{
  survey s = {.traffic = traffic, .pairs = pairs, .memory = true};
  const xfer_plan_options options = plan_options(whole->domain);
  xfer_status st = XFER_OK;

  memset(traffic, 0, sizeof *traffic);
  traffic->ranks = calloc((size_t)whole->n_ranks, sizeof *traffic->ranks);
  s.memory = traffic->ranks != NULL;
  progress_begin(&s.bar, true, "planning", "ranks", whole->n_ranks);
  if (s.memory)
    st = xfer_plan_traffic(whole->n_ranks, whole->tensors, whole->n_tensors, &options, take, &s);
  progress_end(&s.bar);
  for (int rank = 0; s.memory && rank < whole->n_ranks; rank++)
    predict(&traffic->ranks[rank]);
  if (st == XFER_OK && s.memory && !interrupt_came()) return true;
  if (st != XFER_OK) plan_failed();
  if (!s.memory) args_failed("no memory for the report of %d ranks", whole->n_ranks);
  if (interrupt_came()) args_failed("interrupted");
  plan_traffic_free(traffic);
  return false;
}

void plan_traffic_free(plan_traffic *traffic)
{
  free(traffic->ranks);
  free(traffic->pairs);
  memset(traffic, 0, sizeof *traffic);
}
