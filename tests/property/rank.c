/*
 * One rank: places its parts in memory, fills the sources with values that are a function of
 * (tensor, global index, run), poisons the rest, lets the library move, and compares whole
 * memories, gaps and guards included, with an image made by the oracle.
 */
#include "rank.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"
#include "views.h"

void wrong(worker *w, const char *format, ...)
{
  va_list args;
  if (w->rec->why[0] != '\0') return;
  int n = snprintf(w->rec->why, sizeof w->rec->why, "rank %d: ", w->rank);
  va_start(args, format);
  (void)vsnprintf(w->rec->why + n, sizeof w->rec->why - (size_t)n, format, args);
  va_end(args);
}

bool worked(worker *w, xfer_status st, const char *what)
{
  if (st != XFER_OK) wrong(w, "%s: %s: %s", what, xfer_status_name(st), xfer_last_error());
  return st == XFER_OK;
}

/* A call that must succeed if `expected` is 0, else be refused. Returns whether to go on with its
 * product. */
static bool allowed(worker *w, xfer_status st, status_set expected, xfer_status *refusal,
                    const char *what)
{
  if (expected == 0 && st != XFER_OK && w->job->may_refuse != 0) {
    *refusal = st;
    return false;
  }
  if (expected == 0) return worked(w, st, what);
  *refusal = st;
  if (st == XFER_OK) wrong(w, "%s: accepted", what);
  if (st != XFER_OK && xfer_last_error()[0] == '\0') wrong(w, "%s: refused without a text", what);
  return false;
}

/* ---- memory and values ---- */

static void memory_free(memory *m)
{
  if (m->device == NULL) free(m->bytes);
  if (m->device != NULL && m->bytes != NULL) m->device->release(m->bytes);
  free(m->want);
}

static void memory_size(memory *m, int64_t size, const rank_device *device, int rank)
{
  m->size = (size_t)size;
  if (m->size <= m->capacity) return;
  memory_free(m);
  m->device = device;
  m->capacity = m->size * 2;
  m->bytes = device == NULL ? malloc(m->capacity) : device->alloc(rank, m->capacity);
  m->want = malloc(m->capacity);
  if (m->bytes == NULL || m->want == NULL) abort();
}

void rank_record_free(rank_record *record)
{
  orc_free(&record->arena);
  for (int i = 0; i < 4; i++)
    memory_free(&record->memories[i / 2][i % 2]);
}

static uint64_t values_key(const worker *w, int tensor, int run)
{
  rng r = rng_of(w->p->seed, w->p->number,
                 1000 + (uint64_t)(w->p->tensors[tensor].value_of + 10 * run));
  return rng_next(&r);
}

/* Write the values of a part into `bytes` where its view has it: zero for ZERO elements of a
   destination; those of a source are left as they are. */
static void write_values(const worker *w, unsigned char *bytes, int side, int i, uint64_t key)
{
  const placed *v = &w->views[side][i];
  const orc_part *part = &w->parts[i][side];
  const int64_t *shape = w->p->tensors[i].sides[side].shape;
  int64_t x[ORC_MAX_DIMS] = {0};
  int64_t n = v->empty ? 0 : orc_n_elems(part);

  for (int64_t e = 0; e < n; e++) {
    uint64_t flat = 0;
    bool zero = false;
    for (int d = 0; d < part->n_dims; d++) {
      int64_t index = part->dims[d].index[x[d]];
      zero = zero || index == ORC_ZERO;
      flat = flat * (uint64_t)shape[d] + (uint64_t)index;
    }
    uint64_t value = zero ? 0 : rng_mix(key + flat * 0x9e3779b97f4a7c15u);
    if (!zero) value = problem_element(&w->p->tensors[i], side, value);
    if (!zero || side == DST) memcpy(bytes + placed_offset(v, x), &value, (size_t)v->elem);
    for (int d = part->n_dims - 1; d >= 0 && ++x[d] == part->dims[d].n; d--)
      x[d] = 0;
  }
}

static void place_views(worker *w)
{
  w->memories = w->rec->memories[w->set];
  w->fresh = true;
  for (int s = SRC; s <= DST; s++) {
    orc_part parts[MAX_TENSORS];
    for (int i = 0; i < w->p->n_tensors; i++)
      parts[i] = w->parts[i][s];
    memory_size(&w->memories[s],
                views_place(w->views[s], w->p, s, parts, w->has[s], &w->r, &w->rec->arena),
                w->job->device, w->rank);
  }
}

static void fill_memories(worker *w, int run)
{
  memory *src = &w->memories[SRC], *dst = &w->memories[DST];
  int poison = rng_int(&w->r, 1, 255);
  bool repoison = w->fresh || rng_percent(&w->r, 50);
  if (repoison) {
    memset(src->bytes, poison, src->size);
    memset(dst->bytes, poison ^ 0xff, dst->size);
    memcpy(dst->want, dst->bytes, dst->size);
  }
  for (int i = 0; i < w->p->n_tensors; i++)
    write_values(w, src->bytes, SRC, i, values_key(w, i, run));
  memcpy(src->want, src->bytes, src->size);
  w->fresh = false;
}

/* Say which element of which tensor the byte `at` belongs to. */
static void explain(worker *w, int side, size_t at)
{
  const memory *m = &w->memories[side];
  for (int i = 0; i < w->p->n_tensors; i++) {
    const placed *v = &w->views[side][i];
    int64_t x[ORC_MAX_DIMS] = {0};
    int64_t n = v->empty ? 0 : orc_n_elems(&w->parts[i][side]);
    for (int64_t e = 0; e < n; e++) {
      int64_t offset = placed_offset(v, x);
      if ((int64_t)at >= offset && (int64_t)at < offset + v->elem) {
        char local[200] = "";
        int length = 0;
        for (int d = 0; d < v->n_dims; d++) {
          length += snprintf(local + length, sizeof local - (size_t)length, " %lld(global %lld)",
                             (long long)x[d], (long long)w->parts[i][side].dims[d].index[x[d]]);
        }
        wrong(w, "%s of tensor %d, local%s: byte is %02x, not %02x",
              side == SRC ? "source" : "destination", i, local, m->bytes[at], m->want[at]);
        return;
      }
      for (int d = v->n_dims - 1; d >= 0 && ++x[d] == v->shape[d]; d--)
        x[d] = 0;
    }
  }
  wrong(w, "a %s byte outside all parts was written, at %zu of %zu: %02x, not %02x",
        side == SRC ? "source" : "destination", at, m->size, m->bytes[at], m->want[at]);
}

static void compare(worker *w, int side)
{
  const memory *m = &w->memories[side];
  size_t at = 0;
  if (memcmp(m->bytes, m->want, m->size) == 0) return;
  while (m->bytes[at] == m->want[at])
    at++;
  explain(w, side, at);
}

static void corrupt_one_byte(worker *w)
{
  static const int64_t first[ORC_MAX_DIMS] = {0};
  for (int i = 0; w->job->corrupt && i < w->p->n_tensors; i++) {
    const placed *v = &w->views[DST][i];
    if (v->empty) continue;
    w->memories[DST].bytes[placed_offset(v, first)] ^= 1;
    return;
  }
}

/* ---- by a plan ---- */

static const xfer_layout *known_layout(const worker *w, int i, int side)
{
  bool knows = (w->p->tensors[i].giving[side] >> w->rank & 1) != 0;
  return knows ? w->job->layouts[i][side] : NULL;
}

static bool create_plan(worker *w, xfer_plan **plan)
{
  xfer_tensor tensors[MAX_TENSORS] = {{0}};
  char names[MAX_TENSORS][16];
  xfer_plan_options options = w->p->options;
  bool culprit = w->rank == w->p->culprit;

  for (int i = 0; i < w->p->n_tensors; i++) {
    (void)snprintf(names[i], sizeof names[i], "t%d", i);
    tensors[i] = (xfer_tensor){names[i], known_layout(w, i, SRC), known_layout(w, i, DST),
                               problem_conversion(&w->p->tensors[i])};
  }
  if (culprit && w->p->mischief == OTHER_NAME) names[w->p->n_tensors - 1][0] = 'u';
  if (culprit && w->p->mischief == OTHER_WINDOW)
    options.window_bytes = options.window_bytes == 4096 ? 8192 : 4096;
  xfer_status st = xfer_plan_create(plan, w->comm, tensors, (size_t)w->p->n_tensors,
                                    w->p->null_options ? NULL : &options);
  if (!allowed(w, st, w->job->refusals[MAX_TENSORS], &w->rec->refusals[MAX_TENSORS],
               "plan_create")) {
    if (st != XFER_OK && *plan != NULL) wrong(w, "plan_create: refused, and wrote its output");
    return false;
  }
  if (w->p->simulate) check_simulation(w, *plan, w->p->null_options ? NULL : &options);
  return true;
}

static bool bind_views(worker *w, xfer_plan *plan)
{
  bool culprit = w->rank == w->p->culprit && w->p->mischief == NOT_BOUND;
  for (int i = 0; i < w->p->n_tensors; i++) {
    xfer_view views[2];
    bool given[2];
    for (int s = SRC; s <= DST; s++) {
      const placed *v = &w->views[s][i];
      xfer_view nothing = {0}; /* or anything: it is not looked at */
      given[s] = !v->empty || rng_percent(&w->r, 50);
      if (v->empty && rng_percent(&w->r, 30)) nothing = xfer_view_strided(NULL, &v->elem, 1);
      views[s] = v->empty ? nothing : placed_view(v, w->memories[s].bytes, &w->rec->arena);
      if (culprit && w->job->unbound_tensor == i && w->job->unbound_side == s) given[s] = false;
    }
    xfer_status st = xfer_plan_bind(plan, (size_t)i, given[SRC] ? &views[SRC] : NULL,
                                    given[DST] ? &views[DST] : NULL);
    if (!worked(w, st, "bind")) return false;
  }
  return true;
}

/* ---- the device ---- */

static xfer_stream stream_of(const worker *w)
{
  return w->job->device == NULL ? NULL : w->job->device->stream(w->rank);
}

static void device_begin(const worker *w, uint64_t run)
{
  if (w->job->device != NULL) w->job->device->begin(w->rank, run);
}

static bool device_end(worker *w, bool waited)
{
  if (w->job->device == NULL || w->job->device->end(w->rank, waited)) return true;
  wrong(w, "the device does not end what it was given");
  return false;
}

static bool run_once(worker *w, xfer_plan *plan, int run)
{
  uint64_t version = 3 * (uint64_t)run + 1;
  fill_memories(w, run);
  for (int i = 0; i < w->p->n_tensors; i++)
    write_values(w, w->memories[DST].want, DST, i, values_key(w, i, run));
  device_begin(w, version);
  if (!worked(w, xfer_plan_run(plan, version, stream_of(w)), "run")) return false;
  if (!worked(w, xfer_plan_wait(plan, 0), "wait")) return false;
  if (!device_end(w, true)) return false;
  corrupt_one_byte(w);
  compare(w, DST);
  compare(w, SRC);
  check_report_after(w, plan, version);
  return true;
}

static bool change_between(worker *w, xfer_plan *plan)
{
  const bool fresh = !w->p->null_options && (w->p->options.flags & XFER_PLAN_FRESH_SOURCES) != 0;
  const bool binds = w->p->rebind_between || fresh;

  if (w->p->release_between && !worked(w, xfer_plan_release(plan), "release")) return false;
  if (w->p->rebind_between) {
    w->set = 1 - w->set;
    place_views(w);
  }
  if (binds && !bind_views(w, plan)) return false;
  if (!binds && !w->p->release_between) return true;
  return worked(w, xfer_plan_commit(plan), "commit again");
}

static void work_by_plan(worker *w)
{
  xfer_plan *plan = NULL;
  if (create_plan(w, &plan)) {
    check_plan(w, plan);
    bool on = bind_views(w, plan) && allowed(w, xfer_plan_commit(plan), w->job->commit_refusals,
                                             &w->rec->refusals[MAX_TENSORS], "commit");
    for (int run = 0; on && run < w->p->n_runs; run++) {
      on = run_once(w, plan, run) && (run + 1 == w->p->n_runs || change_between(w, plan));
    }
  }
  xfer_plan_destroy(plan);
}

/* ---- by xfer_redistribute ---- */

/* A source may be written again as soon as the call is back. */
static void scribble(worker *w, int i)
{
  bool shared = w->p->tensors[i].fused[SRC] == TIED ||
                (i + 1 < w->p->n_tensors && w->p->tensors[i + 1].fused[SRC] == TIED);
  if (shared) return;
  write_values(w, w->memories[SRC].bytes, SRC, i, 0);
  write_values(w, w->memories[SRC].want, SRC, i, 0);
}

static bool call_once(worker *w, int i, int run)
{
  xfer_view views[2];
  for (int s = SRC; s <= DST; s++) {
    if (!w->views[s][i].empty)
      views[s] = placed_view(&w->views[s][i], w->memories[s].bytes, &w->rec->arena);
  }
  device_begin(w, 1000 + (uint64_t)(run * MAX_TENSORS + i));
  xfer_status st = xfer_redistribute(
      w->comm, known_layout(w, i, SRC), w->views[SRC][i].empty ? NULL : &views[SRC],
      known_layout(w, i, DST), w->views[DST][i].empty ? NULL : &views[DST], stream_of(w));
  if (!device_end(w, false)) return false;
  if (!allowed(w, st, w->job->refusals[i], &w->rec->refusals[i], "redistribute"))
    return w->job->refusals[i] != 0;
  write_values(w, w->memories[DST].want, DST, i, values_key(w, i, run));
  compare(w, SRC);
  scribble(w, i);
  return true;
}

static void work_by_calls(worker *w)
{
  for (int run = 0; run < w->p->n_runs; run++) {
    fill_memories(w, run);
    for (int i = 0; i < w->p->n_tensors; i++) {
      if (!call_once(w, i, run)) return;
    }
    corrupt_one_byte(w);
    compare(w, DST);
    compare(w, SRC);
  }
}

void rank_work(void *context, int rank)
{
  const job *j = context;
  rank_record *rec = &j->records[rank];
  worker w = {.job = j, .p = j->p, .rec = rec, .comm = j->comms[rank], .rank = rank};
  w.r = rng_of(j->p->seed, j->p->number, 200 + (uint64_t)rank);

  if (j->device != NULL) j->device->enter(rank);
  orc_reset(&rec->arena);
  rec->why[0] = '\0';
  rec->wire_bytes = rec->out_bytes = rec->crossed_bytes = rec->relayed_bytes = 0;
  memset(rec->refusals, 0, sizeof rec->refusals);
  memset(rec->to, 0, sizeof rec->to);
  memset(rec->from, 0, sizeof rec->from);
  if (xfer_comm_rank(w.comm) != rank || xfer_comm_size(w.comm) != j->p->n_ranks)
    wrong(&w, "the comm says another rank or size");
  for (int i = 0; i < j->p->n_tensors; i++) {
    for (int s = SRC; s <= DST; s++) {
      w.has[s][i] =
          orc_part_of(&w.parts[i][s], &j->p->tensors[i].sides[s], rank, &rec->arena) == ORC_FINE;
    }
  }
  place_views(&w);
  if (j->p->one_call) {
    work_by_calls(&w);
  } else {
    work_by_plan(&w);
  }
}
