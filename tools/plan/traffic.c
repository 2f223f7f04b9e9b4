#include "traffic.h"

#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "interrupt.h"
#include "predict.h"
#include "progress.h"

typedef struct survey {
  plan_traffic *traffic;
  rank_load *loads; /* [n_ranks] */
  const machine *machine;
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
    predict_add(s->loads, &from[i], s->machine);
    if (from[i].src_rank == rank) continue;
    s->traffic->ranks[from[i].src_rank].out_bytes += from[i].n_bytes;
    s->traffic->ranks[from[i].src_rank].n_send_peers++;
  }
  s->memory = !s->pairs || keep_pairs(s->traffic, from, n);
  progress_add(&s->bar, 1);
  return !s->memory || interrupt_came();
}

/* Counting a rank's own allocations of more tensors takes longer than planning them. */
enum { MANY_TENSORS = 200000 };

/* How many allocations a rank has its parts in, where every local tensor is one. */
static double allocations_of(const plan_whole *whole, int rank)
{
  xfer_locals *locals = NULL;
  double n = (double)whole->n_tensors;

  if (whole->joined == NULL || whole->n_tensors > MANY_TENSORS) return n;
  if (xfer_locals_create(&locals, whole->joined, rank) == XFER_OK)
    n = (double)xfer_locals_count(locals);
  xfer_locals_destroy(locals);
  return n;
}

/* The busiest sender and the busiest receiver stand for all. */
static double most_allocations(const plan_whole *whole, const xfer_plan_report_data *ranks)
{
  int sender = 0;
  int receiver = 0;

  for (int rank = 1; rank < whole->n_ranks; rank++) {
    if (ranks[rank].out_bytes > ranks[sender].out_bytes) sender = rank;
    if (ranks[rank].wire_bytes > ranks[receiver].wire_bytes) receiver = rank;
  }
  const double of_sender = allocations_of(whole, sender);
  const double of_receiver = allocations_of(whole, receiver);
  return of_sender > of_receiver ? of_sender : of_receiver;
}

static void predict(const survey *s, const plan_whole *whole)
{
  const double allocations = most_allocations(whole, s->traffic->ranks);

  for (int rank = 0; rank < whole->n_ranks; rank++) {
    xfer_plan_report_data *r = &s->traffic->ranks[rank];
    const rank_load *load = &s->loads[rank];

    r->bound_bytes = r->wire_bytes > r->out_bytes ? r->wire_bytes : r->out_bytes;
    if (r->bound_bytes + r->self_bytes > 0)
      s->traffic->seconds[rank] = predict_seconds(load, whole->machine, allocations);
    s->traffic->guesses[rank] = predict_is_guess(load);
    s->traffic->guessed = s->traffic->guessed || s->traffic->guesses[rank];
  }
}

bool plan_traffic_find(plan_traffic *traffic, const plan_whole *whole, bool pairs)
{
  survey s = {.traffic = traffic, .machine = whole->machine, .pairs = pairs, .memory = true};
  xfer_plan_options options = plan_options(whole->domain);
  xfer_status st = XFER_OK;

  memset(traffic, 0, sizeof *traffic);
  traffic->ranks = calloc((size_t)whole->n_ranks, sizeof *traffic->ranks);
  traffic->seconds = calloc((size_t)whole->n_ranks, sizeof *traffic->seconds);
  traffic->guesses = calloc((size_t)whole->n_ranks, sizeof *traffic->guesses);
  s.loads = calloc((size_t)whole->n_ranks, sizeof *s.loads);
  s.memory = traffic->ranks != NULL && traffic->seconds != NULL && traffic->guesses != NULL &&
             s.loads != NULL;
  if (whole->machine->packed) options.lane = XFER_LANE_PACKED;
  progress_begin(&s.bar, true, "planning", "ranks", whole->n_ranks);
  if (s.memory)
    st = xfer_plan_traffic(whole->n_ranks, whole->tensors, whole->n_tensors, &options, take, &s);
  progress_end(&s.bar);
  if (st == XFER_OK && s.memory && !interrupt_came()) predict(&s, whole);
  free(s.loads);
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
  free(traffic->seconds);
  free(traffic->guesses);
  free(traffic->pairs);
  memset(traffic, 0, sizeof *traffic);
}
