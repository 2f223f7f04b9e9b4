/*
 * Commit: the ranks agree on what has to be done, and build lanes for what is bound, or keep the
 * lanes that there are, or give them other addresses. And release, which gives the lanes back.
 *
 * A commit is a vote of each rank, an all-gather of the votes, and the work that the votes call
 * for. xfi_plan_commit() is all three; plan_cache.c makes the all-gather itself, together with its
 * own.
 */
#include <string.h>

#include "alloc.h"
#include "allocations.h"
#include "bind.h"
#include "count.h"
#include "direct.h"
#include "error.h"
#include "lanes.h"
#include "local.h"
#include "peers.h"
#include "pipeline.h"
#include "quant.h"
#include "run.h"
#include "sequence.h"
#include "staging.h"

/* Frees all that a commit has made, once the last run has ended: perhaps nobody has waited for it.
 */
void xfi_plan_drop_lanes(xfer_plan *plan)
{
  if (plan->relay != NULL) xfi_plan_drop_lanes(plan->relay);
  (void)xfi_run_await_last(plan);
  if (plan->lanes.direct != NULL && plan->comm->ops->unwatch != NULL)
    plan->comm->ops->unwatch(plan->comm, plan->lanes.direct);
  xfi_local_destroy(plan->lanes.local, plan->device);
  xfi_direct_destroy(plan->lanes.direct);
  xfi_pipeline_destroy(plan->lanes.pipeline, plan);
  xfi_verify_drop(plan);
  xfi_mirror_destroy(&plan->lanes.staged, plan);
  xfi_snapshot_destroy(plan);
  if (plan->quant != NULL) xfi_quant_drop(plan->quant);
  xfi_free(plan->memory.allocations);
  plan->lanes.local = NULL;
  plan->lanes.direct = NULL;
  plan->lanes.pipeline = NULL;
  plan->memory.allocations = NULL;
  plan->memory.n_allocations = 0;
  plan->lanes.may_stay = false;
  plan->run.is_open = false;
}

/* The part of building lanes that needs no other rank. */
static xfer_status commit_local(xfer_plan *plan)
{
  if (plan->main == NULL) { /* a relay uses what is bound to its plan */
    XFI_TRY(xfi_bindings_check(plan));
    XFI_TRY(xfi_bindings_check_disjoint(plan));
    XFI_TRY(xfi_staged_create(plan));
    XFI_TRY(xfi_plan_list_allocations(plan));
  }
  XFI_TRY(xfi_quant_prepare(plan));
  XFI_TRY(xfi_local_create(&plan->lanes.local, plan));
  return xfi_verify_prepare(plan);
}

/* What a commit does with the lanes: keeps them, gives them new addresses, or builds them. */
typedef enum work { LANES_KEEP, LANES_REBIND, LANES_REBUILD } work;

/* The votes of all ranks together. */
typedef struct combined {
  int other;            /* the first rank that commits another plan than rank 0; -1: none */
  bool fails;           /* some rank has failed */
  work most;            /* the most that some rank has to do: all ranks do it */
  bool is_exported;     /* some rank has peers that need its addresses */
  bool has_run;         /* some rank has run the present lanes */
  bool have_room;       /* every rank has room for snapshots */
  uint64_t n_sequenced; /* the highest of all ranks */
} combined;

static combined combine(const xfi_commit_vote *votes, int n_ranks)
{
  combined all = {.other = -1, .most = LANES_KEEP, .have_room = true};

  for (int r = 0; r < n_ranks; r++) {
    if (all.other < 0 && votes[r].plan != votes[0].plan) all.other = r;
    if (votes[r].work > all.most) all.most = (work)votes[r].work;
    all.fails = all.fails || votes[r].status != XFER_OK;
    all.is_exported = all.is_exported || votes[r].is_exported != 0;
    all.has_run = all.has_run || votes[r].has_run != 0;
    all.have_room = all.have_room && votes[r].has_room != 0;
    if (votes[r].n_sequenced > all.n_sequenced) all.n_sequenced = votes[r].n_sequenced;
  }
  return all;
}

/* Fails on all ranks unless they commit the same plan and none has failed. */
static xfer_status check_votes(const xfer_plan *plan, const xfi_commit_vote *votes,
                               const combined *all, xfi_deadline deadline)
{
  XFI_CHECK(all->other < 0, XFER_ERR_MISMATCH,
            "rank %d commits plan %llu of the comm and rank 0 plan %llu: all ranks use its plans "
            "in one order",
            all->other, (unsigned long long)votes[all->other].plan,
            (unsigned long long)votes[0].plan);
  if (!all->fails) return XFER_OK;
  return xfi_comm_agree(plan->comm, votes[plan->comm->rank].status,
                        deadline); /* which sets the text */
}

/* Make the connections that the first message would make otherwise. Collective; does nothing if no
 * rank sends messages. */
static xfer_status connect_peers(xfer_plan *plan, xfer_status mine, xfi_deadline deadline)
{
  xfi_comm *comm = plan->comm;
  const xfi_pipeline *p = plan->lanes.pipeline;
  xfer_status st = XFER_OK;
  bool *peers = xfi_comm_calloc(comm, (size_t)comm->size, sizeof *peers); /* in rounds */
  int n_used = 0;

  XFI_CHECK_DONE(peers != NULL, XFER_ERR_NOMEM, "%d ranks", comm->size);
  XFI_TRY_DONE(xfi_plan_count_ranks(&n_used, plan, mine,
                                    mine == XFER_OK && !xfi_pipeline_is_empty(p), deadline));
  plan->lanes.any_sends = n_used > 0;
  if (n_used == 0 || comm->ops->connect == NULL) goto done;
  for (size_t i = 0; i < p->n_steps; i++)
    for (int m = 0; p->steps[i].root < 0 && m < p->steps[i].n_sends + p->steps[i].n_recvs; m++)
      peers[p->steps[i].messages[m].peer] = true;
  st = comm->ops->connect(comm, peers, xfi_plan_n_broadcast(plan) > 0, deadline);
  XFI_TRY_DONE(xfi_comm_agree(comm, st, deadline));
done:
  xfi_free(peers);
  return st;
}

static xfi_near nearness(const xfi_commit_vote *own, const xfi_commit_vote *other)
{
  if (memcmp(other->domain, own->domain, sizeof own->domain) != 0) return XFI_FAR;
  if (own->locality == 0 || own->locality >> 8 != other->locality >> 8) return XFI_SAME_HOST;
  return own->locality == other->locality ? XFI_SAME_DEVICE : XFI_SAME_PROCESS;
}

/* Make snapshots on all ranks, or on none if some rank is out of memory: then data goes in
 * messages. Collective, if plan->lanes.uses_snapshots. */
static xfer_status make_snapshots(xfer_plan *plan, xfer_status mine, xfi_deadline deadline)
{
  int n_made = 0;

  if (!plan->lanes.uses_snapshots) return XFER_OK;
  XFI_TRY(xfi_plan_count_ranks(&n_made, plan, XFER_OK,
                               mine != XFER_OK || xfi_snapshot_create(plan) == XFER_OK, deadline));
  plan->lanes.uses_snapshots = n_made == plan->comm->size;
  if (!plan->lanes.uses_snapshots) xfi_snapshot_destroy(plan);
  return XFER_OK;
}

/* Free this rank's snapshot if no peer reads it, as when all peers are on other hosts. */
static void drop_unread_snapshots(xfer_plan *plan)
{
  for (size_t i = 0; i < plan->moves->sends.n_peers; i++)
    if (xfi_direct_carries(plan->lanes.direct, true, i)) return;
  xfi_snapshot_destroy(plan);
}

/* Build the lanes. Each takes what those before it leave: local, direct, pipeline. */
static xfer_status make_lanes(xfer_plan *plan, const xfi_commit_vote *votes, const combined *all,
                              xfi_deadline deadline)
{
  xfi_comm *comm = plan->comm;
  xfer_status st = XFER_OK;
  xfer_status mine;
  const xfi_commit_vote *own = &votes[comm->rank];
  xfi_near *near = xfi_comm_calloc(comm, (size_t)comm->size, sizeof *near);

  XFI_CHECK_DONE(near != NULL, XFER_ERR_NOMEM, "%d ranks", comm->size);
  plan->lanes.shares_gpu = false;
  for (int r = 0; r < comm->size; r++) {
    const xfi_near is = nearness(own, &votes[r]);

    near[r] = r == comm->rank || comm->ops->exchange == NULL ? XFI_FAR : is;
    if (is == XFI_SAME_HOST && own->gpu != 0 && own->gpu == votes[r].gpu)
      plan->lanes.shares_gpu = true;
  }
  if (all->has_run) /* no rank may free what the last run uses before it has ended on all ranks */
    XFI_TRY_DONE(xfi_comm_agree(comm, xfi_run_drain(plan), deadline));
  xfi_plan_drop_lanes(plan);
  plan->run.epoch = 0;
  mine = commit_local(plan);
  XFI_TRY_DONE(make_snapshots(plan, mine, deadline));
  XFI_TRY_DONE(xfi_direct_create(&plan->lanes.direct, plan, near, &mine, deadline));
  if (mine == XFER_OK) mine = xfi_snapshot_rebind(plan);
  XFI_TRY_DONE(
      xfi_comm_agree(comm, mine, deadline)); /* from here on no peer maps exported memory */
  if (plan->device->ops->exports_end != NULL) plan->device->ops->exports_end(plan->device);
  drop_unread_snapshots(plan);
  mine = xfi_pipeline_create(&plan->lanes.pipeline, plan);
  XFI_TRY_DONE(connect_peers(plan, mine, deadline));
done:
  if (plan->device->ops->exports_end != NULL) plan->device->ops->exports_end(plan->device);
  xfi_free(near);
  return st;
}

/* The device's allocation_mark(); 0 if the plan has few allocations: to look these up takes less
 * time than the mark. */
static uint64_t allocation_mark(const xfer_plan *plan)
{
  enum { MANY = 16 };

  if (plan->memory.n_allocations < MANY || plan->device->ops->allocation_mark == NULL) return 0;
  return plan->device->ops->allocation_mark(plan->device);
}

/* May bound memory lie in other allocations than at the last commit? Not if nothing was allocated
 * since. (The run notices memory that was freed and not allocated again.) */
static bool may_lie_in_others(xfer_plan *plan)
{
  const uint64_t mark = allocation_mark(plan);

  if (mark != 0 && mark == plan->memory.mark) return false;
  if (xfi_plan_find_changed(plan) != NULL) return true;
  plan->memory.mark = mark;
  return false;
}

void xfi_commit_invalidate(xfer_plan *plan)
{
  plan->lanes.may_stay = false;
  plan->state = xfi_state_after(plan->state, XFI_CALL_BIND, XFI_ENDED);
}

/* Was the staging memory of some phase leaked since the last commit? */
static bool is_any_leaked(const xfer_plan *plan)
{
  bool any = false;

  for (const xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p))
    any = any || xfi_staging_is_leaked(p);
  return any;
}

/* What this rank needs from the commit: the least work that makes its lanes fit what is bound. */
static work find_work(xfer_plan *plan)
{
  const bool may_lie_elsewhere = may_lie_in_others(plan);

  if ((may_lie_elsewhere && xfi_rebind_is_mapped(plan)) || is_any_leaked(plan))
    xfi_commit_invalidate(plan);
  if (!may_lie_elsewhere && (plan->state == XFI_COMMITTED || plan->state == XFI_REFUSED))
    return LANES_KEEP;
  if (plan->state == XFI_TORN || !plan->lanes.may_stay || !xfi_rebind_keeps(plan))
    return LANES_REBUILD;
  return LANES_REBIND;
}

/* Do the work that all ranks agreed on; all->most becomes what was done. */
static xfer_status do_work(xfer_plan *plan, const xfi_commit_vote *votes, combined *all,
                           xfi_deadline deadline)
{
  bool rebound = true;

  if (all->most == LANES_REBIND && all->is_exported)
    XFI_TRY(xfi_rebind_direct(plan, &rebound, deadline));
  if (!rebound) all->most = LANES_REBUILD;
  if (all->most != LANES_REBUILD) return XFER_OK;
  plan->lanes.number = ++plan->plans->n_lanes;
  plan->lanes.uses_snapshots = all->have_room;
  if (plan->amax_plan != NULL) XFI_TRY(xfi_plan_commit(plan->amax_plan, XFER_OK));
  XFI_TRY(make_lanes(plan, votes, all, deadline));
  if (plan->relay == NULL) return XFER_OK;
  xfi_commit_invalidate(
      plan->relay); /* its lanes use memory that the plan's lanes have made anew */
  return xfi_plan_commit(plan->relay, XFER_OK);
}

xfi_commit_vote xfi_commit_begin(xfer_plan *plan, xfer_status mine)
{
  const xfer_status allowed =
      mine == XFER_OK ? xfi_state_allows(plan->state, XFI_CALL_COMMIT) : mine;
  const work own = allowed == XFER_OK ? find_work(plan) : LANES_KEEP;
  xfi_commit_vote own_vote = {.work = (uint8_t)own,
                              .is_exported = plan->lanes.direct != NULL &&
                                             !plan->lanes.uses_snapshots &&
                                             xfi_direct_sides_exported(plan->lanes.direct) != 0,
                              .has_room = allowed == XFER_OK && xfi_snapshot_fits(plan),
                              .has_run = plan->run.n_begun > 0 && plan->lanes.direct != NULL,
                              .plan = plan->number,
                              .n_sequenced = plan->plans->n_sequenced,
                              .locality = plan->device->locality,
                              .gpu = plan->device->gpu};

  mine = allowed;
  if (mine == XFER_OK && own == LANES_REBIND) {
    mine = xfi_rebind_local(plan);
    plan->lanes.may_stay = mine == XFER_OK; /* even if the other ranks commit another plan */
  }
  own_vote.status = mine;
  if (own == LANES_REBUILD)
    plan->device->ops->domain(plan->device, plan->lanes.domain); /* for as long as the lanes live */
  memcpy(own_vote.domain, plan->lanes.domain, sizeof own_vote.domain);
  return own_vote;
}

void xfi_commit_send(xfer_plan *plan, const xfi_commit_vote *own)
{
  if (own->status == XFER_OK && own->work != LANES_REBUILD)
    xfi_channels_begin(&plan->lanes.pipeline->channels, plan);
}

/* Do the votes lead to a run without another collective call? Then what xfi_commit_send() has sent
 * stays, since a rank may have read it already; otherwise it has to be undone. */
bool xfi_commit_allows_run(const xfi_commit_vote *votes, int n_ranks)
{
  const combined all = combine(votes, n_ranks);

  if (all.other >= 0 || all.fails || all.most == LANES_REBUILD) return false;
  return all.most == LANES_KEEP || !all.is_exported;
}

void xfi_commit_undo_send(xfer_plan *plan)
{
  if (plan->lanes.pipeline != NULL) xfi_channels_undo(&plan->lanes.pipeline->channels, plan);
}

/* The plan's state after a commit with the result `st`. */
static void conclude(xfer_plan *plan, xfer_status st)
{
  plan->state =
      xfi_state_after(plan->state, XFI_CALL_COMMIT, st == XFER_OK ? XFI_ENDED : XFI_FAILED);
  plan->lanes.may_stay = st == XFER_OK;
}

xfer_status xfi_commit_end(xfer_plan *plan, const xfi_commit_vote *votes, xfi_deadline deadline)
{
  combined all = combine(votes, plan->comm->size);
  xfer_status st = check_votes(plan, votes, &all, deadline);
  const bool agreed = st == XFER_OK; /* else nothing is done, on any rank */

  /* The highest count, since some rank may have counted a run that no other has begun. */
  if (agreed) plan->plans->n_sequenced = plan->plans->n_agreed = all.n_sequenced;
  if (agreed) st = do_work(plan, votes, &all, deadline);
  if (st == XFER_OK && all.most != LANES_KEEP)
    plan->memory.mark = allocation_mark(plan); /* after the commit's own allocations */
  /* A rank with a run in flight cannot commit, so no rank is in a run that this one refused. */
  if (agreed) xfi_run_settle(plan);
  conclude(plan, st);
  if (st != XFER_OK && agreed && all.most != LANES_KEEP) xfi_plan_drop_lanes(plan);
  return st;
}

xfer_status xfi_plan_commit(xfer_plan *plan, xfer_status mine)
{
  const xfi_deadline deadline = xfi_run_deadline(plan);
  xfi_comm *comm = plan->comm;
  xfi_commit_vote own;
  xfi_commit_vote *votes;
  xfer_status st = XFER_OK;

  XFI_CHECK(comm != NULL, XFER_ERR_STATE, "a simulated plan cannot be committed");
  plan->run.refuses_commit = false;
  votes = xfi_comm_calloc(comm, (size_t)comm->size, sizeof *votes);
  if (votes == NULL) st = XFI_NO_MEMORY("%d ranks", comm->size);
  if (st == XFER_OK) {
    own = xfi_commit_begin(plan, mine);
    st = comm->ops->all_gather(comm, votes, &own, sizeof own, deadline);
  }
  if (st == XFER_OK)
    st = xfi_commit_end(plan, votes, deadline);
  else
    conclude(plan, st);
  xfi_free(votes);
  return st;
}

xfer_status xfi_plan_release(xfer_plan *plan, xfer_status mine)
{
  const xfi_deadline deadline = xfi_run_deadline(plan);
  xfi_run_result result = {.plan = plan->number};
  bool failed = false;

  XFI_CHECK(plan->comm != NULL, XFER_ERR_STATE, "a simulated plan has nothing to release");
  if (mine == XFER_OK) mine = xfi_state_allows(plan->state, XFI_CALL_RELEASE);
  result.status = mine;
  result.sequence = plan->plans->n_sequenced;
  /* If ranks meant different plans, some would free memory that others still have mapped. */
  XFI_TRY(xfi_run_gather_results(&failed, plan, &result, "releases", deadline));
  if (failed) XFI_TRY(xfi_comm_agree(plan->comm, mine, deadline));
  xfi_run_settle(plan);
  if (plan->amax_plan != NULL) XFI_TRY(xfi_plan_release(plan->amax_plan, XFER_OK));
  xfi_plan_drop_lanes(plan);
  plan->state = xfi_state_after(plan->state, XFI_CALL_RELEASE, XFI_ENDED);
  return xfi_comm_agree(plan->comm, XFER_OK,
                        xfi_run_deadline(plan)); /* no peer maps this rank's memory any more */
}
