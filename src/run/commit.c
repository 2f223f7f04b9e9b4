/*
 * Commit: from bindings to lanes. And release, which takes the lanes back.
 */
#include <string.h>

#include "alloc.h"
#include "bind.h"
#include "count.h"
#include "direct.h"
#include "error.h"
#include "lanes.h"
#include "pipeline.h"
#include "quant.h"
#include "run.h"

/* All that commit made. What a run that nobody waited for may still do is waited for. */
void xfi_run_drop_lanes(xfer_plan *plan)
{
  if (plan->relay != NULL) xfi_run_drop_lanes(plan->relay);
  (void)xfi_run_await_last(plan);
  if (plan->direct != NULL && plan->comm->ops->unwatch != NULL)
    plan->comm->ops->unwatch(plan->comm, plan->direct);
  xfi_local_destroy(plan->local, plan->device);
  xfi_direct_destroy(plan->direct);
  xfi_pipeline_destroy(plan->pipeline, plan);
  xfi_verify_drop(plan);
  xfi_twins_destroy(&plan->shadow, plan);
  xfi_offer_destroy(plan);
  if (plan->quant != NULL) xfi_quant_drop(plan->quant);
  xfi_free(plan->allocations);
  plan->local = NULL;
  plan->direct = NULL;
  plan->pipeline = NULL;
  plan->allocations = NULL;
  plan->n_allocations = 0;
  plan->keeps_lanes = false;
  plan->is_open = false;
}

/* The part of commit that needs no other rank. */
static xfer_status commit_local(xfer_plan *plan)
{
  if (plan->main == NULL) { /* a relay uses what is bound to its plan */
    XFI_TRY(xfi_bindings_check(plan));
    XFI_TRY(xfi_bindings_check_disjoint(plan));
    XFI_TRY(xfi_shadow_create(plan));
    XFI_TRY(xfi_run_note_allocations(plan));
  }
  XFI_TRY(xfi_quant_prepare(plan));
  XFI_TRY(xfi_local_create(&plan->local, plan));
  return xfi_verify_prepare(plan);
}

/* What a commit has to do with the lanes: nothing, give them other addresses, or make them. */
typedef enum work { LANES_STAY, LANES_MOVE, LANES_MADE } work;

/* What all ranks' words come to. */
typedef struct heard {
  int other;  /* the first rank that means another plan than rank 0; -1: none does */
  bool fails; /* some rank has failed */
  work most;  /* that some rank needs: then all do it */
  bool tells; /* some rank does, */
  bool has_run;
  bool offers;      /* and every rank */
  uint64_t n_turns; /* the most that one had */
} heard;

static heard hear(const xfi_commit_word *words, int n_ranks)
{
  heard all = {.other = -1, .most = LANES_STAY, .offers = true};

  for (int r = 0; r < n_ranks; r++) {
    if (all.other < 0 && words[r].plan != words[0].plan) all.other = r;
    if (words[r].work > all.most) all.most = (work)words[r].work;
    all.fails = all.fails || words[r].status != XFER_OK;
    all.tells = all.tells || words[r].tells != 0;
    all.has_run = all.has_run || words[r].has_run != 0;
    all.offers = all.offers && words[r].offers != 0;
    if (words[r].n_turns > all.n_turns) all.n_turns = words[r].n_turns;
  }
  return all;
}

/* All ranks mean this plan, and none has failed before; else all fail. */
static xfer_status check_words(const xfer_plan *plan, const xfi_commit_word *words,
                               const heard *all, xfi_deadline deadline)
{
  XFI_CHECK(all->other < 0, XFER_ERR_MISMATCH,
            "rank %d commits plan %llu of the comm and rank 0 plan %llu: all ranks use its plans "
            "in one order",
            all->other, (unsigned long long)words[all->other].plan,
            (unsigned long long)words[0].plan);
  if (!all->fails) return XFER_OK;
  return xfi_comm_agree(plan->comm, words[plan->comm->rank].status, deadline); /* for the text */
}

/* Whom this rank exchanges messages with in rounds. */
static void mark_peers(bool *peers, const xfi_pipeline *p)
{
  for (size_t i = 0; i < p->n_steps; i++)
    for (int m = 0; p->steps[i].root < 0 && m < p->steps[i].n_sends + p->steps[i].n_recvs; m++)
      peers[p->steps[i].messages[m].peer] = true;
}

/* Connect what connects lazily, where messages will go: nothing where none will. All ranks. */
static xfer_status connect_peers(xfer_plan *plan, xfer_status mine, xfi_deadline deadline)
{
  xfi_comm *comm = plan->comm;
  xfer_status st = XFER_OK;
  bool *peers = xfi_comm_calloc(comm, (size_t)comm->size, sizeof *peers);
  int n_used = 0;

  XFI_CHECK_DONE(peers != NULL, XFER_ERR_NOMEM, "%d ranks", comm->size);
  XFI_TRY_DONE(xfi_run_hear(&n_used, plan, mine,
                            mine == XFER_OK && !xfi_pipeline_is_empty(plan->pipeline), deadline));
  plan->any_sends = n_used > 0;
  if (n_used == 0 || comm->ops->connect == NULL) goto done;
  mark_peers(peers, plan->pipeline);
  st = comm->ops->connect(comm, peers, xfi_run_n_broadcast(plan) > 0, deadline);
  XFI_TRY_DONE(xfi_comm_agree(comm, st, deadline));
done:
  xfi_free(peers);
  return st;
}

static xfi_near nearness(const xfi_commit_word *own, const xfi_commit_word *other)
{
  if (memcmp(other->domain, own->domain, sizeof own->domain) != 0) return XFI_FAR;
  if (own->place == 0 || own->place >> 8 != other->place >> 8) return XFI_SAME_HOST;
  return own->place == other->place ? XFI_SAME_DEVICE : XFI_SAME_PROCESS;
}

/* As two processes do, not threads of one. */
static bool share_gpu(const xfi_commit_word *own, const xfi_commit_word *other)
{
  return memcmp(other->domain, own->domain, sizeof own->domain) == 0 && own->gpu != 0 &&
         own->gpu == other->gpu && own->place >> 8 != other->place >> 8;
}

/* Offers on all ranks, or on none where one gets no memory for them: messages need no block of the
 * plan's own. Collective, where the plan is to offer, as all ranks know. */
static xfer_status make_offers(xfer_plan *plan, xfer_status mine, xfi_deadline deadline)
{
  int n_made = 0;

  if (!plan->offers) return XFER_OK;
  XFI_TRY(xfi_run_hear(&n_made, plan, XFER_OK, mine != XFER_OK || xfi_offer_create(plan) == XFER_OK,
                       deadline));
  plan->offers = n_made == plan->comm->size;
  if (!plan->offers) xfi_offer_destroy(plan);
  return XFER_OK;
}

/* Whom nobody reads, as where all others are on other hosts, keeps none. */
static void drop_unread_offers(xfer_plan *plan)
{
  for (size_t i = 0; i < plan->moves->sends.n_peers; i++)
    if (xfi_direct_carries(plan->direct, true, i)) return;
  xfi_offer_destroy(plan);
}

/* Lanes in the order in which they take what is left: local, direct, pipeline. */
static xfer_status make_lanes(xfer_plan *plan, const xfi_commit_word *words, const heard *all,
                              xfi_deadline deadline)
{
  xfi_comm *comm = plan->comm;
  xfer_status st = XFER_OK;
  xfer_status mine;
  const xfi_commit_word *own = &words[comm->rank];
  xfi_near *near = xfi_comm_calloc(comm, (size_t)comm->size, sizeof *near);

  XFI_CHECK_DONE(near != NULL, XFER_ERR_NOMEM, "%d ranks", comm->size);
  plan->shares_gpu = false;
  for (int r = 0; r < comm->size; r++) {
    near[r] = r == comm->rank || comm->ops->exchange == NULL ? XFI_FAR : nearness(own, &words[r]);
    plan->shares_gpu = plan->shares_gpu || share_gpu(own, &words[r]);
  }
  if (all->has_run) /* that is over on all ranks, before any of them drops what it uses */
    XFI_TRY_DONE(xfi_comm_agree(comm, xfi_run_end_last(plan), deadline));
  xfi_run_drop_lanes(plan);
  plan->epoch = 0;
  mine = commit_local(plan);
  XFI_TRY_DONE(make_offers(plan, mine, deadline));
  XFI_TRY_DONE(xfi_direct_create(&plan->direct, plan, near, &mine, deadline));
  if (mine == XFER_OK) mine = xfi_offer_move(plan);
  XFI_TRY_DONE(
      xfi_comm_agree(comm, mine, deadline)); /* also: nobody maps what is offered any more */
  if (plan->device->ops->exports_end != NULL) plan->device->ops->exports_end(plan->device);
  drop_unread_offers(plan);
  mine = xfi_pipeline_create(&plan->pipeline, plan);
  XFI_TRY_DONE(connect_peers(plan, mine, deadline));
done:
  if (plan->device->ops->exports_end != NULL) plan->device->ops->exports_end(plan->device);
  xfi_free(near);
  return st;
}

/* A few are asked about faster. */
static uint64_t allocation_mark(const xfer_plan *plan)
{
  enum { MANY = 16 };

  if (plan->n_allocations < MANY || plan->device->ops->allocation_mark == NULL) return 0;
  return plan->device->ops->allocation_mark(plan->device);
}

/* May what is bound, maybe anew at the same addresses, lie in other allocations by now? Where
 * nothing was allocated it cannot; what was but freed is the run's to find. */
static bool may_lie_in_others(xfer_plan *plan)
{
  const uint64_t mark = allocation_mark(plan);

  if (mark != 0 && mark == plan->mark) return false;
  if (xfi_run_find_changed(plan) != NULL) return true;
  plan->mark = mark;
  return false;
}

void xfi_commit_anew(xfer_plan *plan)
{
  plan->keeps_lanes = false;
  plan->state = xfi_state_after(plan->state, XFI_CALL_BIND, XFI_ENDED);
}

/* What this rank needs. */
static work find_work(xfer_plan *plan)
{
  const bool may_lie_elsewhere = may_lie_in_others(plan);

  if ((may_lie_elsewhere && xfi_rebind_is_mapped(plan)) || xfi_staging_is_lost(plan) ||
      (plan->relay != NULL && xfi_staging_is_lost(plan->relay)))
    xfi_commit_anew(plan);
  if (!may_lie_elsewhere && (plan->state == XFI_COMMITTED || plan->state == XFI_REFUSED))
    return LANES_STAY;
  if (plan->state == XFI_TORN || !plan->keeps_lanes || !xfi_rebind_keeps(plan)) return LANES_MADE;
  return LANES_MOVE;
}

/* What all do; all->most becomes what that was. */
static xfer_status do_work(xfer_plan *plan, const xfi_commit_word *words, heard *all,
                           xfi_deadline deadline)
{
  bool moved = true;

  if (all->most == LANES_MOVE && all->tells) XFI_TRY(xfi_rebind_direct(plan, &moved, deadline));
  if (!moved) all->most = LANES_MADE;
  if (all->most != LANES_MADE) return XFER_OK;
  plan->offers = all->offers;
  if (plan->asks != NULL) XFI_TRY(xfi_run_commit(plan->asks, XFER_OK));
  XFI_TRY(make_lanes(plan, words, all, deadline));
  if (plan->relay == NULL) return XFER_OK;
  xfi_commit_anew(plan->relay); /* its lanes use what the plan's do */
  return xfi_run_commit(plan->relay, XFER_OK);
}

xfi_commit_word xfi_commit_begin(xfer_plan *plan, xfer_status mine)
{
  const xfer_status allowed =
      mine == XFER_OK ? xfi_state_allows(plan->state, XFI_CALL_COMMIT) : mine;
  const work own = allowed == XFER_OK ? find_work(plan) : LANES_STAY;
  xfi_commit_word said = {.work = (uint8_t)own,
                          .tells = plan->direct != NULL && !plan->offers &&
                                   xfi_direct_has_flows(plan->direct),
                          .offers = allowed == XFER_OK && xfi_offer_fits(plan),
                          .has_run = plan->n_begun > 0 && plan->direct != NULL,
                          .plan = plan->number,
                          .n_turns = plan->of->n_turns,
                          .place = plan->device->place,
                          .gpu = plan->device->gpu};

  mine = allowed;
  if (mine == XFER_OK && own == LANES_MOVE) {
    mine = xfi_rebind_local(plan);
    plan->keeps_lanes = mine == XFER_OK; /* also where the ranks then mean another plan */
  }
  said.status = mine;
  if (own == LANES_MADE) plan->device->ops->domain(plan->device, plan->domain); /* stays so */
  memcpy(said.domain, plan->domain, sizeof said.domain);
  return said;
}

void xfi_commit_send(xfer_plan *plan, const xfi_commit_word *own)
{
  if (own->status == XFER_OK && own->work != LANES_MADE)
    xfi_channels_begin(&plan->pipeline->channels, plan);
}

/* Where ranks meet once more what was begun is taken back; where they do not it stays, since a rank
 * may have read it by then. */
bool xfi_commit_leads_on(const xfi_commit_word *words, int n_ranks)
{
  const heard all = hear(words, n_ranks);

  if (all.other >= 0 || all.fails || all.most == LANES_MADE) return false;
  return all.most == LANES_STAY || !all.tells;
}

void xfi_commit_take_back(xfer_plan *plan)
{
  if (plan->pipeline != NULL) xfi_channels_undo(&plan->pipeline->channels, plan);
}

/* What is known of the plan once its commit came to `st`. */
static void conclude(xfer_plan *plan, xfer_status st)
{
  plan->state =
      xfi_state_after(plan->state, XFI_CALL_COMMIT, st == XFER_OK ? XFI_ENDED : XFI_FAILED);
  plan->keeps_lanes = st == XFER_OK;
}

xfer_status xfi_commit_end(xfer_plan *plan, const xfi_commit_word *words, xfi_deadline deadline)
{
  heard all = hear(words, plan->comm->size);
  xfer_status st = check_words(plan, words, &all, deadline);
  const bool told = st == XFER_OK; /* what all need is known to all */

  if (told) plan->of->n_turns = all.n_turns; /* one rank alone may have tried to run */
  if (told) st = do_work(plan, words, &all, deadline);
  if (st == XFER_OK && all.most != LANES_STAY)
    plan->mark = allocation_mark(plan); /* after what the commit itself allocated */
  conclude(plan, st);
  if (st != XFER_OK && told && all.most != LANES_STAY) xfi_run_drop_lanes(plan);
  return st;
}

xfer_status xfi_run_commit(xfer_plan *plan, xfer_status mine)
{
  const xfi_deadline deadline = xfi_run_deadline(plan);
  xfi_comm *comm = plan->comm;
  xfi_commit_word own;
  xfi_commit_word *words;
  xfer_status st = XFER_OK;

  XFI_CHECK(comm != NULL, XFER_ERR_STATE, "a simulated plan cannot be committed");
  words = xfi_comm_calloc(comm, (size_t)comm->size, sizeof *words);
  if (words == NULL) st = XFI_NO_MEMORY("%d ranks", comm->size);
  if (st == XFER_OK) {
    own = xfi_commit_begin(plan, mine);
    st = comm->ops->all_gather(comm, words, &own, sizeof own, deadline);
  }
  if (st == XFER_OK)
    st = xfi_commit_end(plan, words, deadline);
  else
    conclude(plan, st);
  xfi_free(words);
  return st;
}

xfer_status xfi_run_release(xfer_plan *plan, xfer_status mine)
{
  XFI_CHECK(plan->comm != NULL, XFER_ERR_STATE, "a simulated plan has nothing to release");
  if (mine == XFER_OK) mine = xfi_state_allows(plan->state, XFI_CALL_RELEASE);
  XFI_TRY(xfi_comm_agree(plan->comm, mine, xfi_run_deadline(plan)));
  if (plan->asks != NULL) XFI_TRY(xfi_run_release(plan->asks, XFER_OK));
  xfi_run_drop_lanes(plan);
  plan->state = xfi_state_after(plan->state, XFI_CALL_RELEASE, XFI_ENDED);
  return xfi_comm_agree(plan->comm, XFER_OK, xfi_run_deadline(plan)); /* nobody maps us any more */
}
