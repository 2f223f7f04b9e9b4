/* What a plan says of itself, its report and its moves, against the oracle. */
#include <string.h>

#include "rank.h"

static bool dims_hold(const orc_part *part, const int64_t *lo, const int64_t *hi,
                      const int64_t *local)
{
  for (int d = 0; d < part->n_dims; d++) {
    if (lo[d] >= hi[d] || local[d] < 0 || local[d] + hi[d] - lo[d] > part->dims[d].n) return false;
    for (int64_t k = 0; k < hi[d] - lo[d]; k++) {
      if (part->dims[d].index[local[d] + k] != lo[d] + k) return false;
    }
  }
  return true;
}

/* Count each destination element of a move. */
static void mark_move(unsigned char *marks, const orc_part *part, const xfer_move *m)
{
  int64_t x[ORC_MAX_DIMS] = {0};
  int64_t n = 1;
  for (int d = 0; d < part->n_dims; d++)
    n *= m->hi[d] - m->lo[d];
  for (int64_t e = 0; e < n; e++) {
    int64_t at = 0;
    for (int d = 0; d < part->n_dims; d++)
      at = at * part->dims[d].n + m->dst_local[d] + x[d];
    if (marks[at] < 2) marks[at]++;
    for (int d = part->n_dims - 1; d >= 0 && ++x[d] == m->hi[d] - m->lo[d]; d--)
      x[d] = 0;
  }
}

static uint64_t move_hash(uint64_t h, const xfer_move *m)
{
  h = rng_mix(h + m->tensor * 31 + m->n_bytes);
  for (int d = 0; d < m->n_dims; d++) {
    h = rng_mix(h + (uint64_t)m->lo[d]);
    h = rng_mix(h ^ (uint64_t)m->hi[d]);
    h = rng_mix(h + (uint64_t)m->src_local[d]);
    h = rng_mix(h ^ (uint64_t)m->dst_local[d]);
  }
  return rng_mix(h + (uint64_t)m->broadcast + 2 * (uint64_t)m->relayed);
}

static bool check_move(worker *w, const xfer_move *m, unsigned char *const *marks)
{
  if (m->tensor >= (uint64_t)w->p->n_tensors) return false;
  const problem_tensor *t = &w->p->tensors[m->tensor];
  uint64_t n_bytes = problem_wire_bytes(t);
  const int64_t size = w->p->null_options ? 0 : w->p->options.ranks_per_domain;
  const int from = m->relayed ? DST : SRC;
  bool sends = m->src_rank == w->rank, receives = m->dst_rank == w->rank;
  if (m->n_dims != t->sides[SRC].n_dims || (!sends && !receives)) return false;
  if (m->src_rank < 0 || m->src_rank >= w->p->n_ranks || m->dst_rank < 0 ||
      m->dst_rank >= w->p->n_ranks)
    return false;
  for (int d = 0; d < m->n_dims; d++)
    n_bytes *= (uint64_t)(m->hi[d] - m->lo[d]);
  if (n_bytes != m->n_bytes) return false;
  if (sends && !(w->has[from][m->tensor] &&
                 dims_hold(&w->parts[m->tensor][from], m->lo, m->hi, m->src_local)))
    return false;
  if (m->relayed && (size == 0 || sends == receives || m->src_rank / size != m->dst_rank / size))
    return false;
  if (receives) {
    const orc_part *part = &w->parts[m->tensor][DST];
    if (!w->has[DST][m->tensor] || !dims_hold(part, m->lo, m->hi, m->dst_local)) return false;
    mark_move(marks[m->tensor], part, m);
    w->rec->from[m->src_rank] = move_hash(w->rec->from[m->src_rank], m);
  }
  if (sends) w->rec->to[m->dst_rank] = move_hash(w->rec->to[m->dst_rank], m);
  if (sends && !receives) w->rec->out_bytes += m->n_bytes;
  if (receives && !sends) w->rec->wire_bytes += m->n_bytes;
  if (receives && m->relayed) w->rec->relayed_bytes += m->n_bytes;
  if (receives && size > 0 && !m->broadcast && m->src_rank / size != m->dst_rank / size)
    w->rec->crossed_bytes += m->n_bytes;
  return true;
}

/* Every element of the part that is not ZERO is the destination of one move, a ZERO one of none. */
static bool marks_tile(const orc_part *part, const unsigned char *marks)
{
  int64_t x[ORC_MAX_DIMS] = {0};
  int64_t n = orc_n_elems(part);
  for (int64_t e = 0; e < n; e++) {
    bool zero = false;
    for (int d = 0; d < part->n_dims; d++)
      zero = zero || part->dims[d].index[x[d]] == ORC_ZERO;
    if (marks[e] != (zero ? 0 : 1)) return false;
    for (int d = part->n_dims - 1; d >= 0 && ++x[d] == part->dims[d].n; d--)
      x[d] = 0;
  }
  return true;
}

static void check_moves(worker *w, const xfer_plan *plan, uint64_t n_moves)
{
  unsigned char *marks[MAX_TENSORS];
  xfer_move m;
  for (int i = 0; i < w->p->n_tensors; i++) {
    size_t n = w->has[DST][i] ? (size_t)orc_n_elems(&w->parts[i][DST]) : 0;
    marks[i] = orc_alloc(&w->rec->arena, n);
    memset(marks[i], 0, n);
  }
  for (uint64_t k = 0; k < n_moves; k++) {
    if (!worked(w, xfer_plan_move_get(plan, k, &m), "plan_move")) return;
    if (!check_move(w, &m, marks))
      wrong(w, "move %llu: not what the oracle has there", (unsigned long long)k);
    if (w->rec->why[0] != '\0') return;
  }
  if (xfer_plan_move_get(plan, n_moves, &m) != XFER_ERR_ARG)
    wrong(w, "plan_move past the end is not refused");
  for (int i = 0; i < w->p->n_tensors; i++) {
    if (w->has[DST][i] && !marks_tile(&w->parts[i][DST], marks[i])) {
      wrong(w, "tensor %d: moves do not cover each element once", i);
    }
  }
}

static void check_figure(worker *w, const char *name, uint64_t is, uint64_t wanted)
{
  if (is != wanted)
    wrong(w, "report: %s is %llu, not %llu", name, (unsigned long long)is,
          (unsigned long long)wanted);
}

void check_plan(worker *w, const xfer_plan *plan)
{
  xfer_plan_report_data rep = XFER_PLAN_REPORT_INIT;
  uint64_t in = 0, zero = 0, self = 0, payload = 0;
  bool any_table = false;
  if (!worked(w, xfer_plan_report(plan, &rep), "report")) return;
  for (int i = 0; i < w->p->n_tensors; i++) {
    const problem_tensor *t = &w->p->tensors[i];
    uint64_t elem = problem_wire_bytes(t);
    uint64_t whole = elem;
    for (int d = 0; d < t->sides[SRC].n_dims; d++)
      whole *= (uint64_t)t->sides[SRC].shape[d];
    payload += whole;
    any_table = any_table || orc_has_table(&t->sides[SRC]);
    if (!w->has[DST][i]) continue;
    in += elem * (uint64_t)orc_n_elems(&w->parts[i][DST]);
    zero += elem * (uint64_t)orc_n_zeros(&w->parts[i][DST]);
    if (!w->has[SRC][i]) continue;
    self += elem * (uint64_t)orc_n_common(&w->parts[i][DST], &w->parts[i][SRC], &w->rec->arena);
  }
  check_figure(w, "n_tensors", rep.n_tensors, (uint64_t)w->p->n_tensors);
  check_figure(w, "payload_bytes", rep.payload_bytes, payload);
  check_figure(w, "in_bytes", rep.in_bytes, in);
  check_figure(w, "zero_bytes", rep.zero_bytes, zero);
  /* A run table may list an index on several coordinates; then a peer's may be taken although there
   * is an own one. */
  if (rep.self_bytes > self || !any_table) check_figure(w, "self_bytes", rep.self_bytes, self);
  check_figure(w, "wire_bytes", rep.wire_bytes, in - zero - rep.self_bytes);
  check_moves(w, plan, rep.n_moves);
  check_figure(w, "wire_bytes by moves", w->rec->wire_bytes, rep.wire_bytes);
  check_figure(w, "out_bytes", rep.out_bytes, w->rec->out_bytes);
  check_figure(w, "crossed_bytes", rep.crossed_bytes, w->rec->crossed_bytes);
  check_figure(w, "relayed_bytes", rep.relayed_bytes, w->rec->relayed_bytes);
}

void check_report_after(worker *w, const xfer_plan *plan, uint64_t version)
{
  xfer_plan_report_data rep = XFER_PLAN_REPORT_INIT;
  const xfer_plan_options *o = &w->p->options;
  if (!worked(w, xfer_plan_report(plan, &rep), "report")) return;
  check_figure(w, "committed_version", rep.committed_version, version);
  check_figure(w, "torn", rep.torn, 0);
  if (!w->p->null_options && o->max_staging_bytes != 0 && (o->flags & XFER_PLAN_STAGED) == 0 &&
      rep.staging_bytes > o->max_staging_bytes) {
    wrong(w, "staging_bytes %llu above the cap", (unsigned long long)rep.staging_bytes);
  }
}

void check_simulation(worker *w, const xfer_plan *plan, const xfer_plan_options *options)
{
  xfer_tensor tensors[MAX_TENSORS] = {{0}};
  char names[MAX_TENSORS][16];
  xfer_plan *sim = NULL;
  xfer_plan_report_data a = XFER_PLAN_REPORT_INIT, b = XFER_PLAN_REPORT_INIT;
  char *text = NULL;
  for (int i = 0; i < w->p->n_tensors; i++) {
    (void)snprintf(names[i], sizeof names[i], "t%d", i);
    tensors[i] = (xfer_tensor){names[i], w->job->layouts[i][SRC], w->job->layouts[i][DST],
                               problem_conversion(&w->p->tensors[i])};
  }
  const xfer_status st =
      xfer_plan_simulate(&sim, w->p->n_ranks, w->rank, tensors, (size_t)w->p->n_tensors, options);
  /* Without a comm that has no broadcasts, these take half of what may be staged. */
  if (st != XFER_OK && (set_of(st) & w->job->may_refuse) != 0) return;
  if (!worked(w, st, "simulate")) return;
  if (worked(w, xfer_plan_report(plan, &a), "report") &&
      worked(w, xfer_plan_report(sim, &b), "report")) {
    check_figure(w, "simulated n_classes", b.n_classes, a.n_classes);
    check_figure(w, "simulated n_moves", b.n_moves, a.n_moves);
    check_figure(w, "simulated out_bytes", b.out_bytes, a.out_bytes);
    check_figure(w, "simulated wire_bytes", b.wire_bytes, a.wire_bytes);
  }
  for (uint64_t k = 0; k < a.n_moves && w->rec->why[0] == '\0'; k++) {
    xfer_move x, y;
    if (!worked(w, xfer_plan_move_get(plan, k, &x), "plan_move")) break;
    if (!worked(w, xfer_plan_move_get(sim, k, &y), "plan_move")) break;
    if (move_hash(0, &x) != move_hash(0, &y) || x.src_rank != y.src_rank ||
        x.dst_rank != y.dst_rank) {
      wrong(w, "simulated move %llu differs", (unsigned long long)k);
    }
  }
  if (worked(w, xfer_plan_print(sim, &text, (int)rng_below(&w->r, 2)), "print") && text[0] == '\0')
    wrong(w, "empty print");
  xfer_text_free(text);
  xfer_plan_destroy(sim);
}
