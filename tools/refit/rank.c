#include "rank.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fill.h"
#include "interrupt.h"
#include "memory.h"
#include "output.h"
#include "progress.h"
#include "text.h"
#include "trace.h"
#include "untouched.h"

enum { POISON = 0xa5 };

typedef struct state {
  xfer_comm *comm;
  int rank;
  int n_ranks;
  const refit_case *what;
  const refit_options *options;
  refit_memory memory;
  xfer_plan *plan;
  char why[REFIT_ERROR_BYTES]; /* what failed here, unless xfer_last_error() has it */
  char *error;
  progress progress;
} state;

static double now_ms(void)
{
  return progress_now() * 1e3;
}

/* Rank 0 says on the terminal what goes on; `total` as in progress.h. */
static void say(state *s, const char *what, const char *unit, double total)
{
  progress_begin(&s->progress, s->rank == 0, what, unit, total);
}

/* ---- agreement ---- */

/* False, and why. */
__attribute__((format(printf, 2, 3))) static bool refuse(state *s, const char *fmt, ...)
{
  va_list args;

  va_start(args, fmt);
  vsnprintf(s->why, sizeof s->why, fmt, args);
  va_end(args);
  return false;
}

/* Is this memory there? */
static bool had(state *s, const void *memory, size_t n_bytes)
{
  return memory != NULL || refuse(s, "no memory for %s", text_bytes((double)n_bytes).at);
}

/* The error of rank `of` to all, in pieces: whole, each rank would take them from all. */
static bool share_error(state *s, int of, const char mine[REFIT_ERROR_BYTES])
{
  enum { PIECE = 16 };
  char *all = calloc((size_t)s->n_ranks, PIECE);
  bool ok = all != NULL;

  for (size_t at = 0; ok && at < REFIT_ERROR_BYTES; at += PIECE) {
    ok = xfer_comm_all_gather(s->comm, all, mine + at, PIECE) == XFER_OK;
    if (ok) memcpy(s->error + at, all + (size_t)of * PIECE, PIECE);
    if (ok && memchr(s->error + at, '\0', PIECE) != NULL) break;
  }
  free(all);
  return ok;
}

/* True if all ranks say so; else the first failed rank's error is everybody's. No rank may leave
 * before. */
static bool agree(state *s, bool ok, const char *what)
{
  char *all = calloc((size_t)s->n_ranks, 1);
  char mine[REFIT_ERROR_BYTES] = "";
  char fine;
  int first = 0;

  if (ok && interrupt_came()) {
    ok = false;
    snprintf(s->why, sizeof s->why, "interrupted");
  }
  fine = (char)ok;
  if (!ok) {
    const char *why = s->why[0] != '\0' ? s->why : xfer_last_error();

    snprintf(mine, sizeof mine, "rank %d: %s: %.600s", s->rank, what,
             why[0] != '\0' ? why : "no memory");
  }
  bool told =
      had(s, all, (size_t)s->n_ranks) && xfer_comm_all_gather(s->comm, all, &fine, 1) == XFER_OK;
  while (told && first < s->n_ranks && all[first] != 0)
    first++;
  if (told && first < s->n_ranks) told = share_error(s, first, mine);
  if (!told)
    snprintf(s->error, REFIT_ERROR_BYTES, "rank %d: %s: %.500s", s->rank, what,
             all == NULL ? s->why : xfer_last_error());
  free(all);
  return told && first == s->n_ranks;
}

/* ---- steps ---- */

/* A folder that files can be written to, made if it is not there; known before anything is moved.
 */
static bool make_folder(state *s, const char *path)
{
  struct stat about;
  char error[128] = "";

  if (path == NULL || mkdir(path, 0777) == 0) return true;
  if (errno == EEXIST) {
    errno = stat(path, &about) == 0 && !S_ISDIR(about.st_mode) ? ENOTDIR : 0;
    if (errno == 0 && access(path, W_OK | X_OK) == 0) return true;
  }
  strerror_r(errno, error, sizeof error);
  return refuse(s, "the folder %.300s cannot be written: %s", path, error);
}

/* Does the library write its file? It is not the one to fail for a trace. */
static bool has_trace(state *s)
{
  const char *path;
  char error[128] = "";

  if (s->options->trace == NULL || trace_is_written(&path)) return true;
  strerror_r(errno, error, sizeof error);
  return refuse(s, "%.300s cannot be written: %s", path, error);
}

static bool make_files(state *s)
{
  const bool ok = make_folder(s, s->options->dump) && make_folder(s, s->options->dump_train);

  return agree(s, ok, "dump") && agree(s, has_trace(s), "trace");
}

/* Compares the memory that the ranks of a host will ask for with what the host has, before they
 * ask. A device reports itself what it lacks. */
static bool enough_memory(state *s)
{
  typedef struct need {
    uint64_t host; /* a number for its name */
    uint64_t n_bytes;
  } need;
  need *all = calloc((size_t)s->n_ranks, sizeof *all);
  char name[64] = "";
  need mine = {0};
  uint64_t here = 0;

  gethostname(name, sizeof name - 1);
  mine.host = fill_box_seed(name);
  const bool counted = had(s, all, (size_t)s->n_ranks * sizeof *all) &&
                       refit_memory_need(s->what, s->rank, &mine.n_bytes);
  bool ok;

  ok = agree(s, counted, "memory") && all != NULL &&
       xfer_comm_all_gather(s->comm, all, &mine, sizeof mine) == XFER_OK;
  for (int r = 0; r < s->n_ranks && ok; r++)
    if (all[r].host == mine.host) here += all[r].n_bytes;
  free(all);
  if (!ok) return false;
  const uint64_t available = refit_memory_available();
  if (available > 0 && here > available)
    ok = refuse(s, "the ranks of this host need %s of memory, %s are free%s",
                text_bytes((double)here).at, text_bytes((double)available).at,
                s->what->refit != NULL ? "; --layers takes a part" : "");
  return agree(s, ok, "memory");
}

static bool make_plan(state *s, double *ms)
{
  const double start = now_ms();
  bool ok;

  say(s, "planning", NULL, 0);
  ok = xfer_plan_create(&s->plan, s->comm, s->what->tensors, s->what->n_tensors,
                        &s->options->plan) == XFER_OK;
  *ms = now_ms() - start;
  if (!agree(s, ok, "plan")) return false;
  say(s, "memory", NULL, 0);
  if (s->options->device == NULL && !enough_memory(s)) return false;
  ok = refit_memory_create(&s->memory, s->what, s->options->device, s->rank);
  if (!ok && s->memory.lacks > 0)
    (void)refuse(s, "no memory for a tensor of %s", text_bytes((double)s->memory.lacks).at);
  if (!agree(s, ok, "memory")) return false;
  ok = refit_memory_bind(&s->memory, s->plan);
  if (!agree(s, ok, "bind")) return false;
  ok = xfer_plan_commit(s->plan) == XFER_OK;
  return agree(s, ok, "commit");
}

static void advance(void *context, double n_bytes)
{
  progress_add(context, n_bytes);
}

/* A tensor's part of the wanted side, in host memory or what `boxes` is for. False: it failed. */
static bool each_part(state *s, size_t t, xfer_locals_views wanted, const fill_device *boxes,
                      fill_sum *sum)
{
  const fill_watch watch = {advance, &s->progress};
  xfer_refit_tensor info;
  xfer_view views[2];
  uint32_t has = 0;
  fill_job job = {
      .rank = s->rank, .view = &views[wanted == XFER_LOCALS_DST], .device = boxes, .watch = &watch};

  if (!refit_memory_view(&s->memory, t, &views[0], &views[1], &has)) return false;
  if ((has & wanted) == 0) return true;
  if (!fill_job_of(&job, &info, s->what->refit, s->what->tensors, t, wanted == XFER_LOCALS_SRC))
    return false;
  return sum == NULL ? fill_write(&job) : fill_check(&job, sum);
}

static bool each_tensor(state *s, xfer_locals_views wanted, const fill_device *boxes, fill_sum *sum)
{
  bool ok = true;

  for (size_t t = 0; t < s->what->n_tensors && ok && !interrupt_came(); t++)
    ok = each_part(s, t, wanted, boxes, sum);
  return ok;
}

static bool fill_sources(state *s)
{
  const refit_device *device = s->options->device;
  uint64_t none[2];

  say(s, "filling the sources:", NULL, (double)refit_memory_bytes(&s->memory, false));
  const bool ok = each_tensor(s, XFER_LOCALS_SRC, device == NULL ? NULL : &device->boxes, NULL);
  return agree(s, ok && (device == NULL || device->sums(&none[0], &none[1])), "fill");
}

/* Destinations are poisoned before the first run and before the last, which is the one that is
 * checked. */
static bool run_all(state *s, double *median)
{
  const int64_t n = s->options->iters;
  double *ms = calloc((size_t)n, sizeof *ms);
  double *all = calloc((size_t)s->n_ranks, sizeof *all);
  bool ok = had(s, ms, (size_t)n * sizeof *ms) && had(s, all, (size_t)s->n_ranks * sizeof *all);

  ok = agree(s, ok, "runs") && ms != NULL && all != NULL;

  say(s, "running:", "runs", (double)n);
  for (int64_t i = 0; i < n && ok; i++) {
    double mine, start;

    ok = (i > 0 && i < n - 1) || refit_memory_set_all(&s->memory, POISON);
    ok = agree(s, ok, "runs"); /* all start together */
    start = now_ms();
    if (ok) { /* all wait, whatever their runs came to */
      const bool began = xfer_plan_run(s->plan, (uint64_t)i + 1, NULL) == XFER_OK;

      ok = xfer_plan_wait(s->plan, 0) == XFER_OK && began;
    }
    mine = now_ms() - start;
    ok = agree(s, ok, "run") && xfer_comm_all_gather(s->comm, all, &mine, sizeof mine) == XFER_OK;
    for (int r = 0; r < s->n_ranks && ok; r++) {
      if (all[r] > ms[i]) ms[i] = all[r];
    }
    progress_add(&s->progress, 1);
  }
  if (ok && ms != NULL) *median = progress_median(ms, (size_t)n);
  free(ms);
  free(all);
  return ok;
}

/* Flips `corrupt` bytes that lie evenly spread over the destinations of all ranks. */
static bool corrupt(state *s)
{
  const uint64_t n = (uint64_t)s->options->corrupt;
  uint64_t *all = calloc((size_t)s->n_ranks, sizeof *all);
  const uint64_t mine = refit_memory_bytes(&s->memory, true);
  uint64_t before = 0, total = 0;
  bool ok;

  ok = agree(s, had(s, all, (size_t)s->n_ranks * sizeof *all), "corrupt") && all != NULL &&
       xfer_comm_all_gather(s->comm, all, &mine, sizeof mine) == XFER_OK;
  for (int r = 0; r < s->n_ranks && ok; r++) {
    if (r < s->rank) before += all[r];
    total += all[r];
  }
  free(all);
  if (!ok) return false;
  if (n > total) return refuse(s, "there are only %" PRIu64 " bytes, not %" PRIu64, total, n);
  for (size_t i = 0; i < s->memory.n_buffers && n > 0; i++) {
    const refit_buffer *b = &s->memory.buffers[i];
    const uint64_t step = total / n;

    if (!b->is_dst) continue;
    for (uint64_t k = (before + step - 1) / step; k < n && k * step < before + b->n_bytes; k++) {
      char byte;

      if (!refit_memory_read(&s->memory, &byte, b, k * step - before, 1)) return false;
      byte = (char)(byte ^ 0x10);
      if (!refit_memory_write(&s->memory, b, k * step - before, &byte, 1)) return false;
    }
    before += b->n_bytes;
  }
  return true;
}

/* Bytes that belong to no part: there are none, but where weights were left out, whose rows are as
 * they were before the run. */
static bool check_rest(state *s, fill_sum *sum)
{
  const untouched of = {&s->memory, POISON};
  const fill_device eraser = untouched_eraser(&of);
  const uint64_t bytes = refit_memory_bytes(&s->memory, true);
  fill_sum seen = {0, 0, 0};

  if (s->what->partial)
    return each_tensor(s, XFER_LOCALS_DST, &eraser, &seen) && untouched_count(&of, &sum->wrong);
  if (sum->bytes < bytes) sum->wrong += bytes - sum->bytes;
  return true;
}

static bool check(state *s, fill_sum *sum)
{
  const refit_device *device = s->options->device;

  say(s, "checking:", NULL, (double)refit_memory_bytes(&s->memory, true));
  bool ok = each_tensor(s, XFER_LOCALS_DST, device == NULL ? NULL : &device->boxes, sum);
  if (ok && device != NULL) ok = device->sums(&sum->wrong, &sum->total);
  ok = ok && check_rest(s, sum);
  return agree(s, ok, "check");
}

enum { CHUNK_BYTES = 1 << 24 };

/* False: errno. */
static bool write_file(const refit_memory *memory, const char *path, const refit_buffer *b)
{
  output out;
  char *chunk = malloc(CHUNK_BYTES);
  bool ok = chunk != NULL && output_begin(&out, path);

  if (!ok) {
    free(chunk);
    return false;
  }
  for (size_t at = 0, n; at < b->n_bytes && ok; at += n) {
    n = b->n_bytes - at < CHUNK_BYTES ? b->n_bytes - at : CHUNK_BYTES;
    ok = !interrupt_came() && refit_memory_read(memory, chunk, b, at, n) &&
         fwrite(chunk, 1, n, out.file) == n;
  }
  free(chunk);
  return output_end(&out, ok);
}

/* A tensor's name as one of a file: no folders, no control characters; no two names become one. */
static void name_file(char *text, size_t size, const char *name)
{
  size_t n = 0;

  for (; *name != '\0' && n + 4 < size; name++) {
    const unsigned char c = (unsigned char)*name;

    if (c < 0x20 || c == 0x7f || c == '/' || c == '%')
      n += (size_t)snprintf(text + n, size - n, "%%%02x", c);
    else
      text[n++] = *name;
  }
  text[n] = '\0';
}

static bool dump(state *s)
{
  for (size_t i = 0; i < s->memory.n_buffers; i++) {
    const refit_buffer *b = &s->memory.buffers[i];
    const char *folder = b->is_dst ? s->options->dump : s->options->dump_train;
    char path[4096], name[1024], error[128] = "";
    int n;

    if (folder == NULL) continue;
    name_file(name, sizeof name, b->name);
    n = snprintf(path, sizeof path, "%s/%d.%s.bin", folder, s->rank, name);
    if (n < 0 || (size_t)n >= sizeof path)
      return refuse(s, "a path of %d characters cannot be written", n);
    if (!write_file(&s->memory, path, b)) {
      if (interrupt_came()) return refuse(s, "interrupted");
      strerror_r(errno, error, sizeof error);
      return refuse(s, "%.400s cannot be written: %s", path, error);
    }
  }
  return true;
}

/* Adds the ranks' figures up. */
static bool gather(state *s, const fill_sum *sum, refit_result *result)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  uint64_t *all = calloc((size_t)s->n_ranks, 4 * sizeof *all);
  bool ok = had(s, all, (size_t)s->n_ranks * 4 * sizeof *all) &&
            xfer_plan_report(s->plan, &report) == XFER_OK;

  ok = agree(s, ok, "report") && all != NULL;
  const uint64_t mine[4] = {report.self_bytes + report.wire_bytes, sum->wrong, sum->bytes,
                            sum->total};

  ok = ok && xfer_comm_all_gather(s->comm, all, mine, sizeof mine) == XFER_OK;
  for (int r = 0; r < s->n_ranks && ok; r++) {
    const uint64_t *of = all + (size_t)r * 4;

    result->moved_bytes += of[0];
    result->wrong_bytes += of[1];
    result->checked_bytes += of[2];
    result->sum += of[3];
  }
  free(all);
  return ok;
}

bool refit_rank(xfer_comm *comm, const refit_case *what, const refit_options *options,
                refit_result *result, char *error)
{
  state s = {.comm = comm,
             .rank = xfer_comm_rank(comm),
             .n_ranks = xfer_comm_size(comm),
             .what = what,
             .options = options,
             .error = error};
  fill_sum sum = {0, 0, 0};
  refit_result r = {0};
  const bool ok = make_files(&s) && make_plan(&s, &r.plan_ms) && fill_sources(&s) &&
                  run_all(&s, &r.ms) && agree(&s, corrupt(&s), "corrupt") &&
                  agree(&s, dump(&s), "dump") && check(&s, &sum) && gather(&s, &sum, &r) &&
                  agree(&s, has_trace(&s), "trace");

  if (ok) *result = r;
  xfer_plan_destroy(s.plan);
  refit_memory_free(&s.memory);
  progress_end(&s.progress);
  return ok;
}
