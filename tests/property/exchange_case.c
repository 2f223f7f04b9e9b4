#include "exchange_case.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"

enum { SENDS, RECVS, GUARD_BYTES = 64, POISON = 0xa5 };

/* ---- the case ----------------------------------------------------------------------------- */

static int64_t place(rng *r, int64_t *strides, const xfer_operation *o)
{
  const int64_t elem = (int64_t)xfer_dtype_size((xfer_dtype)o->dtype);
  int dims[XFER_MAX_DIMS];
  int64_t stride = elem;
  int64_t reach = elem;

  for (int d = 0; d < o->n_dims; d++)
    dims[d] = o->n_dims - 1 - d;
  if (rng_percent(r, 20)) rng_shuffle(r, dims, o->n_dims);
  for (int i = 0; i < o->n_dims; i++) {
    if (rng_percent(r, 15)) stride += elem * rng_int(r, 1, 3); /* a gap */
    strides[dims[i]] = stride;
    if (o->shape[dims[i]] == 0) return 0;
    reach += stride * (o->shape[dims[i]] - 1);
    stride *= o->shape[dims[i]];
  }
  return reach;
}

static void make_operation(ex_operation *e, const ex_case *c, int k, rng *r)
{
  static const int32_t dtypes[] = {XFER_U8, XFER_BF16, XFER_F32, XFER_I64};
  xfer_operation o = {.dtype = dtypes[rng_int(r, 0, 3)], .n_dims = rng_int(r, 0, 4)};

  /* Numbers come again between other ranks, and are as large as they can be. */
  o.id = rng_percent(r, 5) ? UINT64_MAX - (uint64_t)k : (uint64_t)k * (uint64_t)(k % 3 + 1) % 97;
  e->ranks[0] = rng_int(r, 0, c->n_ranks - 1);
  e->ranks[1] = rng_int(r, 0, c->n_ranks - 1);
  for (int i = 0; i < k; i++)
    if (c->operations[i].at[0].id == o.id &&
        memcmp(c->operations[i].ranks, e->ranks, sizeof e->ranks) == 0)
      o.id = 1000 + (uint64_t)k;
  e->n_elems = 1;
  for (int d = 0; d < o.n_dims; d++) {
    o.shape[d] = rng_percent(r, 3) ? 0 : rng_int(r, 1, 7);
    e->n_elems *= o.shape[d];
  }
  if (o.n_dims == 1 && rng_percent(r, 2)) e->n_elems = o.shape[0] = rng_int(r, 1, 300000);
  for (int side = SENDS; side <= RECVS; side++) {
    e->at[side] = o;
    e->at[side].peer = e->ranks[1 - side];
    e->reach[side] = place(r, e->strides[side], &o);
  }
}

void ex_case_make(ex_case *c, uint64_t seed, uint64_t number, int most)
{
  static const xfer_lane lanes[] = {XFER_LANE_AUTO, XFER_LANE_DIRECT, XFER_LANE_PACKED};
  rng r = rng_of(seed, number, 1);
  const xfer_plan_options defaults = XFER_PLAN_OPTIONS_INIT;

  memset(c, 0, sizeof *c);
  c->seed = seed;
  c->number = number;
  c->n_ranks = rng_int(&r, 1, most < EX_RANKS ? most : EX_RANKS);
  c->n = rng_percent(&r, 5) ? 0 : rng_int(&r, 1, EX_OPERATIONS);
  c->in_one_call = rng_percent(&r, 40);
  c->options = defaults;
  c->options.lane = (uint32_t)lanes[rng_int(&r, 0, 2)];
  if (rng_percent(&r, 40)) c->options.window_bytes = (uint64_t)rng_int(&r, 1, 4000);
  for (int k = 0; k < c->n; k++)
    make_operation(&c->operations[k], c, k, &r);
}

/* ---- one rank ----------------------------------------------------------------------------- */

typedef struct side {
  int n;
  int which[EX_OPERATIONS]; /* of the case's operations, in the order handed over */
  xfer_operation at[EX_OPERATIONS];
  xfer_view views[EX_OPERATIONS];
  int64_t n_bytes; /* of memory */
  unsigned char *memory;
  unsigned char *want;
} side;

typedef struct worker {
  const ex_case *c;
  const rank_device *device;
  int rank;
  side sides[2];
  char *why;
  size_t n_why;
} worker;

__attribute__((format(printf, 2, 3))) static bool wrong(const worker *w, const char *format, ...)
{
  va_list arguments;
  char text[400];

  if (w->why[0] != '\0') return false;
  va_start(arguments, format);
  (void)vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  (void)snprintf(w->why, w->n_why, "rank %d: %s", w->rank, text);
  return false;
}

static bool worked(const worker *w, xfer_status st, const char *what)
{
  return st == XFER_OK || wrong(w, "%s: %s: %s", what, xfer_status_name(st), xfer_last_error());
}

static void list_side(worker *w, int which)
{
  side *s = &w->sides[which];
  rng r = rng_of(w->c->seed, w->c->number, 100 + 2 * (uint64_t)w->rank + (uint64_t)which);

  for (int k = 0; k < w->c->n; k++)
    if (w->c->operations[k].ranks[which] == w->rank) s->which[s->n++] = k;
  if (rng_percent(&r, 70)) rng_shuffle(&r, s->which, s->n);
  s->n_bytes = GUARD_BYTES;
  for (int i = 0; i < s->n; i++) {
    s->at[i] = w->c->operations[s->which[i]].at[which];
    s->n_bytes += w->c->operations[s->which[i]].reach[which] + GUARD_BYTES;
  }
  s->n_bytes += (int64_t)EX_CALLS * GUARD_BYTES;
}

/* Byte `at` of an operation's elements in one call. */
static unsigned char value_of(const ex_case *c, int operation, int64_t at, int call)
{
  return (unsigned char)(rng_mix(((uint64_t)operation << 40) + (uint64_t)at * 8 + (uint64_t)call +
                                 c->number * 77) >>
                         24);
}

static void write_array(unsigned char *to, const ex_case *c, int k, int which, int call)
{
  const ex_operation *e = &c->operations[k];
  const xfer_operation *o = &e->at[which];
  const int64_t elem = (int64_t)xfer_dtype_size((xfer_dtype)o->dtype);
  int64_t x[XFER_MAX_DIMS] = {0};

  for (int64_t i = 0; i < e->n_elems; i++) {
    unsigned char *p = to;

    for (int d = 0; d < o->n_dims; d++)
      p += x[d] * e->strides[which][d];
    for (int64_t b = 0; b < elem; b++)
      p[b] = value_of(c, k, i * elem + b, call);
    for (int d = o->n_dims - 1; d >= 0 && ++x[d] == o->shape[d]; d--)
      x[d] = 0;
  }
}

/* Views of this call, what is sent, and what must be there after it. Nothing lies where it did. */
static void lay_out(worker *w, int which, int call)
{
  side *s = &w->sides[which];
  int64_t at = GUARD_BYTES + (int64_t)call * 8;

  memset(s->memory, POISON, (size_t)s->n_bytes);
  memset(s->want, POISON, (size_t)s->n_bytes);
  for (int i = 0; i < s->n; i++) {
    const ex_operation *e = &w->c->operations[s->which[i]];

    s->views[i] = xfer_view_strided(s->memory + at, e->strides[which], s->at[i].n_dims);
    if (e->reach[which] == 0) continue;
    write_array(which == SENDS ? s->memory + at : s->want + at, w->c, s->which[i], which, call);
    at += (e->reach[which] + GUARD_BYTES) / 8 * 8;
  }
  if (which == SENDS) memcpy(s->want, s->memory, (size_t)s->n_bytes);
}

static bool compare(const worker *w, int call, bool corrupt)
{
  for (int which = SENDS; which <= RECVS; which++) {
    const side *s = &w->sides[which];

    if (corrupt && which == RECVS) s->memory[s->n_bytes / 2] ^= 1;
    for (int64_t b = 0; b < s->n_bytes; b++)
      if (s->memory[b] != s->want[b])
        return wrong(w, "call %d: byte %lld of what it %s is %#x, not %#x", call, (long long)b,
                     which == SENDS ? "sends" : "receives", s->memory[b], s->want[b]);
  }
  return true;
}

static xfer_stream stream_of(const worker *w)
{
  return w->device != NULL && w->device->stream != NULL ? w->device->stream(w->rank) : NULL;
}

static void begin(const worker *w, int call)
{
  if (w->device != NULL && w->device->begin != NULL) w->device->begin(w->rank, (uint64_t)call + 1);
}

static bool end(const worker *w, bool waited)
{
  if (w->device == NULL || w->device->end == NULL) return true;
  return w->device->end(w->rank, waited) || wrong(w, "the device failed");
}

static bool run_call(worker *w, xfer_comm *comm, xfer_plan *plan, int call)
{
  side *s = w->sides;
  bool ok;

  if (plan == NULL) {
    begin(w, call);
    ok = worked(w,
                xfer_exchange(comm, s[0].at, s[0].views, (size_t)s[0].n, s[1].at, s[1].views,
                              (size_t)s[1].n, stream_of(w)),
                "exchange");
    return end(w, false) && ok;
  }
  if (!worked(w, xfer_plan_bind_exchange(plan, s[0].views, s[1].views), "bind") ||
      !worked(w, xfer_plan_commit(plan), "commit"))
    return false;
  begin(w, call);
  ok = worked(w, xfer_plan_run(plan, (uint64_t)call + 1, stream_of(w)), "run") &&
       worked(w, xfer_plan_wait(plan, 0), "wait");
  return end(w, true) && ok;
}

static bool check_report(const worker *w, const xfer_plan *plan)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  uint64_t in = 0;
  uint64_t out = 0;

  for (int k = 0; k < w->c->n; k++) {
    const ex_operation *e = &w->c->operations[k];
    const uint64_t n_bytes = (uint64_t)e->n_elems * xfer_dtype_size((xfer_dtype)e->at[SENDS].dtype);

    if (e->ranks[1] == w->rank) in += n_bytes;
    if (e->ranks[0] == w->rank && e->ranks[1] != w->rank) out += n_bytes;
  }
  if (!worked(w, xfer_plan_report(plan, &report), "report")) return false;
  if (report.in_bytes != in || report.out_bytes != out)
    return wrong(w, "%llu bytes in and %llu out, not %llu and %llu",
                 (unsigned long long)report.in_bytes, (unsigned long long)report.out_bytes,
                 (unsigned long long)in, (unsigned long long)out);
  return true;
}

/* One end of an operation is not what the other is: every rank hears which one. */
static bool refuses_a_difference(worker *w, xfer_comm *comm)
{
  const int k = (int)(w->c->number % (uint64_t)w->c->n);
  const ex_operation *e = &w->c->operations[k];
  const int which = (int)(w->c->number / 3 % 2);
  side *s = &w->sides[which];
  xfer_plan *plan = NULL;
  char text[80];
  int i = 0;

  (void)snprintf(text, sizeof text,
                 "operation %llu from rank %d to rank %d:", (unsigned long long)e->at[0].id,
                 e->ranks[0], e->ranks[1]);
  while (i < s->n && s->which[i] != k)
    i++;
  if (i < s->n && w->c->number % 3 == 0) s->at[i] = s->at[--s->n];
  if (i < s->n && w->c->number % 3 == 1) s->at[i].dtype = XFER_F16;
  if (i < s->n && w->c->number % 3 == 2) s->at[i].n_dims++;
  if (xfer_plan_create_exchange(&plan, comm, w->sides[0].at, (size_t)w->sides[0].n, w->sides[1].at,
                                (size_t)w->sides[1].n, NULL) != XFER_ERR_MISMATCH)
    return wrong(w, "a difference was not refused: %s", xfer_last_error());
  return strstr(xfer_last_error(), text) != NULL ||
         wrong(w, "\"%s\" is not in: %s", text, xfer_last_error());
}

static bool run_all(worker *w, xfer_comm *comm, bool corrupt)
{
  side *s = w->sides;
  xfer_plan *plan = NULL;
  bool ok = true;

  if (!w->c->in_one_call)
    ok = worked(w,
                xfer_plan_create_exchange(&plan, comm, s[0].at, (size_t)s[0].n, s[1].at,
                                          (size_t)s[1].n, &w->c->options),
                "create") &&
         check_report(w, plan);
  for (int call = 0; call < EX_CALLS && ok; call++) {
    lay_out(w, SENDS, call);
    lay_out(w, RECVS, call);
    ok = run_call(w, comm, plan, call) && compare(w, call, corrupt);
  }
  xfer_plan_destroy(plan);
  return ok && (w->c->n == 0 || refuses_a_difference(w, comm));
}

bool ex_case_rank(const ex_case *c, xfer_comm *comm, const rank_device *device, bool corrupt,
                  char *why, size_t n_why)
{
  worker *w = calloc(1, sizeof *w);
  bool ok;

  if (w == NULL) abort();
  *w = (worker){.c = c, .device = device, .rank = xfer_comm_rank(comm), .why = why, .n_why = n_why};
  if (device != NULL && device->enter != NULL) device->enter(w->rank);
  for (int which = SENDS; which <= RECVS; which++) {
    side *s = &w->sides[which];

    list_side(w, which);
    s->memory =
        device != NULL ? device->alloc(w->rank, (size_t)s->n_bytes) : malloc((size_t)s->n_bytes);
    s->want = malloc((size_t)s->n_bytes);
    if (s->memory == NULL || s->want == NULL) abort();
  }
  ok = run_all(w, comm, corrupt);
  for (int which = SENDS; which <= RECVS; which++) {
    if (device != NULL)
      device->release(w->sides[which].memory);
    else
      free(w->sides[which].memory);
    free(w->sides[which].want);
  }
  free(w);
  return ok;
}
