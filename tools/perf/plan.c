/* One row: a plan's commit, its runs, its check, and what memory it took. */
#include "plan.h"

#include "ceiling.h"
#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What the row before freed the driver clears in the background, some 450 GB/s of it on an H200,
 * and copies within the GPU take 1.1 times as long meanwhile. */
enum { CLEARED_MS = 300 };

enum { TIMES_MAX = 32, TIMEOUT_MS = 60000 };

typedef struct running {
  const perf_case *c;
  const perf_plan_row *what;
  perf_row *row;
  xfer_plan *plan;
  uint64_t version;
  xfer_status status; /* of the last run call */
} running;

static void enqueue(perf_world *w, void *context)
{
  running *r = context;

  r->status = xfer_plan_run(r->plan, ++r->version, w->stream);
}

/* Seconds; negative: failed, and the row says why. */
static double one_run(perf_world *w, running *r)
{
  double seconds = perf_time(w, enqueue, r);
  bool ok = perf_all(w, r->row, r->status == XFER_OK, "run");

  if (r->status == XFER_OK) {
    xfer_status st = xfer_plan_wait(r->plan, 0);
    ok = perf_all(w, r->row, st == XFER_OK, "wait") && ok;
  }
  return ok ? seconds : -1;
}

static bool create(perf_world *w, running *r)
{
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_status st;
  double began;

  options.lane = r->what->lane;
  options.ranks_per_domain = r->what->ranks_per_domain;
  options.timeout_ms = TIMEOUT_MS;
  st = xfer_plan_create(&r->plan, w->comm, r->c->tensors, r->c->n_tensors, &options);
  if (!perf_all(w, r->row, st == XFER_OK, "create")) return false;
  if (!perf_all(w, r->row, perf_case_bind(r->c, r->plan), "bind")) return false;
  for (int again = 0; again < 2; again++) {
    perf_barrier(w);
    began = progress_now();
    st = xfer_plan_commit(r->plan);
    double ms = perf_max(w, progress_now() - began) * 1e3;
    if (!perf_all(w, r->row, st == XFER_OK, "commit")) return false;
    *(again == 0 ? &r->row->commit_ms : &r->row->again_ms) = ms;
  }
  return true;
}

static bool checked_run(perf_world *w, running *r)
{
  double wrong;

  perf_case_poison(r->c, w);
  if (one_run(w, r) < 0) return false;
  wrong = perf_case_check(r->c, w);
  r->row->wrong = r->row->wrong < 0 ? wrong : r->row->wrong + wrong;
  return true;
}

static bool timed_runs(perf_world *w, running *r)
{
  double seconds[TIMES_MAX];
  int n = w->iters < TIMES_MAX ? w->iters : TIMES_MAX;

  (void)usleep(CLEARED_MS * 1000);
  for (int i = 0; i < n; i++) {
    seconds[i] = one_run(w, r);
    if (seconds[i] < 0) return false;
  }
  r->row->ms = progress_median(seconds, (size_t)n) * 1e3;
  return true;
}

/* How long the run would take at the speed of the wire, or of the memory if that is longer. */
static double bound_ms(const perf_world *w, const xfer_plan_report_data *report)
{
  double wire =
      (double)(report->wire_bytes > report->out_bytes ? report->wire_bytes : report->out_bytes);
  double memory =
      2.0 * (double)report->self_bytes + (double)report->wire_bytes + (double)report->out_bytes;
  double wire_ms = perf_max(w, wire) / w->ceiling[CEILING_ENGINE] / 1e6;
  double memory_ms = perf_max(w, memory) / w->ceiling[CEILING_HBM_ENGINE] / 1e6;

  return wire_ms > memory_ms ? wire_ms : memory_ms;
}

static void rate(perf_world *w, running *r)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  perf_row *row = r->row;
  double bytes = perf_max(w, (double)r->c->dst_bytes) * (r->what->reads_too ? 2 : 1);
  double direct;
  double packed;

  if (xfer_plan_report(r->plan, &report) != XFER_OK) return;
  row->gbps = bytes / row->ms / 1e6;
  row->staging_mib = perf_max(w, (double)report.staging_bytes) / 1048576.0;
  row->bar = r->what->bar;
  row->of = r->what->colocated ? "bound" : perf_ceiling_name(r->what->of);
  if (r->what->colocated) {
    double bound = bound_ms(w, &report);
    if (w->ceiling[CEILING_ENGINE] > 0) row->ratio = bound / row->ms;
  } else if (r->what->of < N_CEILINGS && w->ceiling[r->what->of] > 0) {
    row->ratio = row->gbps / w->ceiling[r->what->of];
  }
  direct = perf_sum(w, (double)report.direct_bytes);
  packed = perf_sum(w, (double)report.packed_bytes);
  (void)snprintf(row->note, sizeof row->note, "direct %.1f packed %.1f GB, staging %.0f MiB",
                 direct / 1e9, packed / 1e9, row->staging_mib);
}

double perf_plan(perf_world *w, const perf_case *c, const perf_plan_row *what)
{
  running r = {.c = c, .what = what, .row = perf_row_new(w, what->name)};
  double before = perf_used_mib(w);

  if (r.row == NULL) return 0;
  if (create(w, &r)) {
    r.row->grown_mib = perf_max(w, perf_used_mib(w) - before);
    if (checked_run(w, &r) && timed_runs(w, &r) && checked_run(w, &r))
      rate(w, &r);
    else
      r.row->wrong = -1;
  }
  xfer_plan_destroy(r.plan);
  perf_row_done(w, r.row);
  return r.row->ms;
}

/* ---- small tensors ------------------------------------------------------------------------ */

/* Times one run, from the call until the host sees the word that a following kernel writes. */
static void small_run(perf_world *w, running *r, volatile uint64_t *word, double *called,
                      double *seen)
{
  uint64_t next = r->version + 1;

  perf_barrier(w);
  *called = progress_now();
  enqueue(w, r);
  if (r->status == XFER_OK && perf_stamp(word, next, w->stream) == 0) {
    while (*word != next && progress_now() - *called < 10) {
    }
  }
  *seen = progress_now();
  if (r->status == XFER_OK) r->status = xfer_plan_wait(r->plan, 0);
}

/* Microseconds from the last rank's call to the last rank's kernel: the median, and what 9 of 10
 * runs stay below. */
static double small_median(perf_world *w, running *r, int n, double *most)
{
  double *times = calloc((size_t)n * 2, sizeof *times); /* [n][called, seen] */
  double *all = calloc((size_t)(w->size * n) * 2, sizeof *all);
  double *us = calloc((size_t)n, sizeof *us);
  volatile uint64_t *word = NULL;
  double median = 0;

  if (times == NULL || all == NULL || us == NULL) perf_die(w, "small", "no memory");
  CUDA(w, cudaHostAlloc, ((void **)&word, sizeof *word, cudaHostAllocMapped));
  *word = 0;
  for (int i = 0; i < n; i++)
    small_run(w, r, word, &times[2 * (size_t)i], &times[2 * (size_t)i + 1]);
  perf_gather(w, all, times, (size_t)n * 2 * sizeof *times);
  for (int i = 0; i < n; i++) {
    double called = 0;
    double seen = 0;
    for (int k = 0; k < w->size; k++) {
      const double *at = &all[((size_t)k * (size_t)n + (size_t)i) * 2];
      if (at[0] > called) called = at[0];
      if (at[1] > seen) seen = at[1];
    }
    us[i] = (seen - called) * 1e6;
  }
  median = progress_median(us, (size_t)n); /* which sorts them */
  *most = us[n * 9 / 10];
  CUDA(w, cudaFreeHost, ((void *)word));
  free(times);
  free(all);
  free(us);
  return median;
}

void perf_small(perf_world *w, const perf_case *c, const char *name, uint32_t lane, double bar_us)
{
  perf_plan_row what = {.name = name, .lane = lane, .of = CEILING_NONE};
  running r = {.c = c, .what = &what, .row = perf_row_new(w, name)};
  double before = perf_used_mib(w);
  double most = 0;

  if (r.row == NULL) return;
  if (create(w, &r) && checked_run(w, &r)) {
    r.row->grown_mib = perf_max(w, perf_used_mib(w) - before);
    (void)small_median(w, &r, 20, &most);
    r.row->us = small_median(w, &r, w->quick ? 100 : 1000, &most);
    if (perf_all(w, r.row, r.status == XFER_OK, "run") && checked_run(w, &r))
      (void)snprintf(r.row->note, sizeof r.row->note, "bar %.0f us; 9 of 10 within %.0f us", bar_us,
                     most);
  }
  xfer_plan_destroy(r.plan);
  perf_row_done(w, r.row);
}
