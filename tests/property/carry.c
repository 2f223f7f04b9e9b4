/* See carry.h. Decides what must come out of a problem, sends the ranks to work, and compares
 * across ranks. */
#include "carry.h"

#include <stdlib.h>
#include <string.h>

#include "crew.h"
#include "layouts.h"
#include "rank.h"

enum {
  USES_PER_COMM = 300, /* a comm keeps the plans of xfer_redistribute() */
  PATIENCE_SECONDS = 180
};

typedef struct team {
  xfer_comm *comms[ORC_MAX_RANKS];
  int n_uses;
} team;

struct carrier {
  crew *crew;
  team teams[ORC_MAX_RANKS + 1]; /* by the number of ranks */
  rank_record records[ORC_MAX_RANKS];
  orc_arena arena;
  bool corrupt;
  comms_maker make_comms;
  const rank_device *device;
};

carrier *carrier_create(void)
{
  carrier *c = calloc(1, sizeof *c);
  if (c == NULL) return NULL;
  c->make_comms = xfer_comm_create_local;
  c->crew = crew_create(ORC_MAX_RANKS);
  if (c->crew != NULL) return c;
  free(c);
  return NULL;
}

static void team_dismiss(team *t)
{
  for (int r = 0; r < ORC_MAX_RANKS; r++) {
    xfer_comm_destroy(t->comms[r]);
    t->comms[r] = NULL;
  }
  t->n_uses = 0;
}

void carrier_destroy(carrier *c)
{
  if (c == NULL) return;
  crew_destroy(c->crew);
  for (int n = 0; n <= ORC_MAX_RANKS; n++)
    team_dismiss(&c->teams[n]);
  for (int r = 0; r < ORC_MAX_RANKS; r++)
    rank_record_free(&c->records[r]);
  orc_free(&c->arena);
  free(c);
}

void carrier_make_comms(carrier *c, comms_maker maker)
{
  c->make_comms = maker;
}

void carrier_use_device(carrier *c, const rank_device *device)
{
  c->device = device;
}

void carrier_corrupt(carrier *c)
{
  c->corrupt = true;
}

/* ---- what must come out ---- */

/* What a rank must say to a plan of one tensor, whose layouts exist. */
static status_set expected_refusals(const problem *p, int i, orc_arena *arena)
{
  const problem_tensor *t = &p->tensors[i];
  status_set set = 0;
  /* Only run tables can leave something out. */
  if (orc_has_table(&t->sides[SRC]) && !orc_covers(&t->sides[SRC], &t->sides[DST], arena))
    set |= set_of(XFER_ERR_SHAPE);
  if (p->culprit % p->n_tensors == i) {
    if (p->mischief == OTHER_DTYPE) set |= set_of(XFER_ERR_SHAPE);
    if (p->mischief == RANK_TOO_HIGH) set |= set_of(XFER_ERR_ARG);
  }
  return set;
}

/* The first part of the culprit that is not empty. */
static bool find_unbound(job *j, orc_arena *arena)
{
  for (int i = 0; i < j->p->n_tensors; i++) {
    for (int s = SRC; s <= DST; s++) {
      orc_part part;
      if (orc_part_of(&part, &j->p->tensors[i].sides[s], j->p->culprit, arena) != ORC_FINE)
        continue;
      if (orc_n_elems(&part) == 0) continue;
      j->unbound_tensor = i;
      j->unbound_side = s;
      return true;
    }
  }
  return false;
}

static void expect(job *j, orc_arena *arena)
{
  const problem *p = j->p;
  for (int i = 0; i < p->n_tensors; i++) {
    j->refusals[i] = expected_refusals(p, i, arena);
    j->refusals[MAX_TENSORS] |= j->refusals[i];
  }
  if (p->mischief == OTHER_NAME || p->mischief == OTHER_WINDOW)
    j->refusals[MAX_TENSORS] |= set_of(XFER_ERR_MISMATCH);
  if (!p->null_options && p->options.max_staging_bytes != 0 &&
      p->options.max_staging_bytes <= 4096) {
    j->may_refuse = set_of(XFER_ERR_ARG); /* not room for one byte for each peer */
  }
  j->unbound_tensor = -1;
  if (p->mischief == NOT_BOUND && find_unbound(j, arena))
    j->commit_refusals = set_of(XFER_ERR_STATE);
}

/* ---- before and after the ranks ---- */

/* Make all layouts. A layout that must be refused ends the problem. */
static verdict make_layouts(carrier *c, job *j, char *why, size_t n_bytes)
{
  const problem *p = j->p;
  for (int i = 0; i < p->n_tensors; i++) {
    const problem_tensor *t = &p->tensors[i];
    bool wanted = orc_check(&t->sides[SRC], &c->arena) == ORC_FINE &&
                  orc_check(&t->sides[DST], &c->arena) == ORC_FINE;
    xfer_status st = layouts_create(j->layouts[i], p, i);
    if (st == (wanted ? XFER_OK : XFER_ERR_SHAPE)) {
      if (wanted) continue;
      (void)snprintf(why, n_bytes, "%s", xfer_last_error());
      return REFUSED;
    }
    (void)snprintf(why, n_bytes, "layouts of tensor %d, which %s: %s: %s", i,
                   wanted ? "are fine" : "are to be refused", xfer_status_name(st),
                   st == XFER_OK ? "" : xfer_last_error());
    return WRONG;
  }
  return RIGHT;
}

static bool queries_agree(carrier *c, const job *j, char *why, size_t n_bytes)
{
  const problem *p = j->p;
  rng r = rng_of(p->seed, p->number, 50);
  if (p->mischief == OTHER_DTYPE || p->mischief == RANK_TOO_HIGH) return true;
  for (int i = 0; i < p->n_tensors; i++) {
    for (int s = SRC; s <= DST; s++) {
      char what[300];
      if (layout_agrees(j->layouts[i][s], &p->tensors[i].sides[s], p->tensors[i].dtypes[s],
                        p->n_ranks, &r, &c->arena, what, sizeof what)) {
        continue;
      }
      (void)snprintf(why, n_bytes, "tensor %d, %s layout: %s", i,
                     s == SRC ? "source" : "destination", what);
      return false;
    }
  }
  return true;
}

/* All ranks refused, with a status that was to be expected or because of another rank; at least one
 * says why. */
static bool refusals_agree(const job *j, int which, status_set wanted, char *why, size_t n_bytes)
{
  bool said = false;
  for (int r = 0; r < j->p->n_ranks; r++) {
    xfer_status st = j->records[r].refusals[which];
    bool mine = st < 0 && (set_of(st) & wanted) != 0;
    if (!mine && st != XFER_ERR_PEER) {
      (void)snprintf(why, n_bytes, "rank %d refused with %s", r, xfer_status_name(st));
      return false;
    }
    said = said || mine;
  }
  if (!said) (void)snprintf(why, n_bytes, "each rank says that another one failed");
  return said;
}

static verdict compare_refusals(const job *j, char *why, size_t n_bytes)
{
  verdict v = RIGHT;
  for (int i = 0; i <= MAX_TENSORS; i++) {
    if (j->p->one_call == (i == MAX_TENSORS)) continue;
    status_set wanted = j->refusals[i];
    if (i == MAX_TENSORS && wanted == 0) wanted = j->commit_refusals;
    if (wanted != 0) wanted |= j->may_refuse;
    for (int r = 0; wanted == 0 && r < j->p->n_ranks; r++) {
      if (j->records[r].refusals[i] != XFER_OK) wanted = j->may_refuse;
    }
    if (wanted == 0) continue;
    if (!refusals_agree(j, i, wanted, why, n_bytes)) return WRONG;
    (void)snprintf(why, n_bytes, "refused");
    v = REFUSED;
  }
  return v;
}

/* Each sender's list of moves to a rank is that rank's list from it. */
static bool lists_agree(const job *j, char *why, size_t n_bytes)
{
  uint64_t in = 0, out = 0;
  for (int a = 0; a < j->p->n_ranks; a++) {
    in += j->records[a].wire_bytes;
    out += j->records[a].out_bytes;
    for (int b = 0; b < j->p->n_ranks; b++) {
      if (j->records[a].to[b] == j->records[b].from[a]) continue;
      (void)snprintf(why, n_bytes, "rank %d's moves to rank %d are not that rank's moves from it",
                     a, b);
      return false;
    }
  }
  if (in == out) return true;
  (void)snprintf(why, n_bytes, "%llu bytes are sent and %llu received", (unsigned long long)out,
                 (unsigned long long)in);
  return false;
}

static verdict send_to_work(carrier *c, job *j, char *why, size_t n_bytes)
{
  team *t = &c->teams[j->p->n_ranks];
  if (t->n_uses++ == 0 && c->make_comms(t->comms, j->p->n_ranks) != XFER_OK) {
    (void)snprintf(why, n_bytes, "making comms: %s", xfer_last_error());
    return WRONG;
  }
  j->comms = t->comms;
  if (!crew_run(c->crew, j->p->n_ranks, rank_work, j, PATIENCE_SECONDS)) {
    (void)snprintf(why, n_bytes, "some rank is not back after %d s", PATIENCE_SECONDS);
    return HANGS;
  }
  verdict v = RIGHT;
  for (int r = 0; r < j->p->n_ranks && v == RIGHT; r++) {
    if (j->records[r].why[0] == '\0') continue;
    (void)snprintf(why, n_bytes, "%s", j->records[r].why);
    v = WRONG;
  }
  if (v == RIGHT) v = compare_refusals(j, why, n_bytes);
  if (v == RIGHT && !lists_agree(j, why, n_bytes)) v = WRONG;
  if (v == WRONG || t->n_uses >= USES_PER_COMM) team_dismiss(t);
  return v;
}

verdict carrier_run(carrier *c, const problem *p, char *why, size_t n_bytes)
{
  job j = {.p = p, .corrupt = c->corrupt, .device = c->device, .records = c->records};
  why[0] = '\0';
  orc_reset(&c->arena);
  verdict v = make_layouts(c, &j, why, n_bytes);
  if (v == RIGHT && p->queries && !queries_agree(c, &j, why, n_bytes)) v = WRONG;
  if (v == RIGHT) {
    expect(&j, &c->arena);
    v = send_to_work(c, &j, why, n_bytes);
  }
  if (v == HANGS) return v;
  for (int i = 0; i < p->n_tensors; i++) {
    xfer_layout_destroy(j.layouts[i][SRC]);
    xfer_layout_destroy(j.layouts[i][DST]);
  }
  return v;
}
