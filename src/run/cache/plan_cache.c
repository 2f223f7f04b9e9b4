/*
 * Calls that plan, bind and run in one (xfer_redistribute() and xfer_exchange()), with plans that
 * the comm keeps from call to call. Collective, on the thread that makes the comm's calls.
 *
 * Ranks cannot name a cached plan by their arguments: these differ from rank to rank, and a rank
 * that was not given a layout does not know what the others mean. But every rank has made the same
 * calls, so the same entries of all caches have the same plans. Each rank looks up the entries
 * whose plan was made for its present arguments, and a vote finds an entry that suits all of them;
 * if there is none they make a new plan.
 *
 * Mostly a rank finds one entry alone. Then it guesses that this is the one, and begins the plan's
 * commit, and even to send, before it has heard of the others. If all have guessed the same, a
 * single all-gather settles the vote and the commit.
 *
 * On GPUs a plan may copy its sources, for its peers to read (run/snapshot.c). Its next run has to
 * wait until they have. So if a call comes again before that, the ranks make a second plan, and the
 * two take turns: one is written while the other is read. A loop over 50 MB on 2 H200 takes 158 us
 * a call in this way, and 191 if the caller's stream waits for the readers of each copy.
 */
#include "plan_cache.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "error.h"
#include "sequence.h"

/* What a rank tells the others as a call of xfer_redistribute() or xfer_exchange() begins. */
typedef struct call_vote {
  uint64_t found;         /* bit i: the plan of entry i was made for its present arguments */
  int32_t mapped;         /* 1: its memory can stay mapped */
  int32_t waits;          /* 1: peers still read its copy in the last call's plan, */
  int32_t has_room;       /* 1: there is room for a second plan like that, */
  int32_t has_messages;   /* 1: some of its bytes go in messages, which have an order */
  uint64_t n_sequenced;   /* runs of plans that it has begun, see xfi_run_take_sequence() */
  int32_t status;         /* the result of its own checks */
  xfi_commit_vote commit; /* its vote on the plan that it guesses, or on NO_PLAN */
} call_vote;

/* A vote fits into one gathering of every transport, so that between hosts, too, a call takes only
 * one. */
_Static_assert(sizeof(xfi_gathering) + sizeof(call_vote) <= XFI_GATHER_ROW_BYTES,
               "a vote is gathered at once");

#define NO_PLAN UINT64_MAX

/* The votes of all ranks in one call, in memory of the cache. */
typedef struct call_votes {
  call_vote *all;           /* [size of the comm] */
  xfi_commit_vote *commits; /* likewise */
} call_votes;

xfer_status xfi_cache_check(const xfi_plan_cache *cache)
{
  xfi_error first = {.st = XFER_OK};

  for (int i = 0; i < cache->n; i++) {
    xfer_plan *const plans[] = {cache->at[i].plan, cache->at[i].other};

    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
      const xfer_status came = plans[p] == NULL ? XFER_OK : xfi_run_check(plans[p]);

      if (first.st == XFER_OK) xfi_error_keep(&first, came);
    }
  }
  return xfi_error_report(&first);
}

/* Checks what this rank knows before a call does anything: whether an earlier call failed after it
 * had returned, and whether work may be put on the stream. */
static xfer_status check(const xfi_plan_cache *cache, xfer_stream stream)
{
  XFI_TRY(xfi_cache_check(cache));
  return xfi_stream_check(cache->plans->device, stream);
}

/* Destroys the plan *of once the last call that used it has ended, and returns the outcome of that
 * call, which nobody can ask for later. */
static xfer_status forget_plan(xfer_plan **of)
{
  xfer_plan *plan = *of;
  xfer_status st;

  if (plan == NULL) return XFER_OK;
  *of = NULL;
  (void)xfi_run_await_last(plan);
  st = xfi_run_check(plan);
  if (st == XFER_OK) st = xfi_run_drain(plan);
  xfi_plan_destroy(plan);
  return st;
}

/* Destroys both plans of an entry, and returns the outcome of their last calls. */
static xfer_status forget(xfi_cached *k)
{
  const xfer_status other = forget_plan(&k->other);
  const xfer_status st = forget_plan(&k->plan);

  return st != XFER_OK ? st : other;
}

void xfi_cache_set_timeout(xfi_plan_cache *cache, uint64_t timeout_ms)
{
  cache->plans->timeout_ms = timeout_ms;
  for (int i = 0; i < cache->n; i++) {
    const xfi_cached *k = &cache->at[i];

    if (k->plan != NULL) k->plan->options.timeout_ms = timeout_ms;
    if (k->other != NULL) k->other->options.timeout_ms = timeout_ms;
  }
}

xfer_status xfi_cache_clear(xfi_plan_cache *cache)
{
  xfer_status st = XFER_OK;

  for (int i = 0; i < cache->n; i++) {
    const xfer_status came = forget(&cache->at[i]);

    if (came != XFER_OK) st = came; /* whose text is the last error */
  }
  return st;
}

void xfi_cache_free(xfi_plan_cache *cache)
{
  (void)xfi_cache_clear(cache); /* who asks for its status does so by xfi_cache_check() */
  xfi_free(cache->votes);
}

/* Set the bits of *found for the entries whose plan was made for this call's arguments. Returns the
 * guess: the only such entry that also suits this rank's memory; NULL: there is none, or there are
 * several. */
static xfi_cached *find_cached(uint64_t *found, xfi_plan_cache *cache, const xfi_one_call *call)
{
  xfi_cached *guess = NULL;
  int n = 0;

  for (int i = 0; i < cache->n; i++) {
    xfi_cached *k = &cache->at[i];

    if (k->plan == NULL || memcmp(k->key, call->key, sizeof k->key) != 0) continue;
    *found |= UINT64_C(1) << i;
    if (k->mapped != call->mapped) continue;
    guess = k;
    n++;
  }
  return n == 1 ? guess : NULL;
}

/* Describes in the vote the plan of the last call, if this call is the same on this rank and a
 * second plan may take turns with that one. */
static void describe_last(call_vote *vote, const xfi_plan_cache *cache)
{
  for (int i = 0; i < cache->n; i++) {
    const xfi_cached *k = &cache->at[i];

    if ((vote->found >> i & 1) == 0 || k->used != cache->n_calls) continue;
    if (k->other != NULL || k->is_single) continue;
    vote->waits = xfi_run_awaits_readers(k->plan);
    vote->has_room = xfi_plan_fits_twice(k->plan);
    vote->has_messages = xfi_plan_has_messages(k->plan);
  }
}

/* A call's messages are told from those of runs by their order alone, so all ranks must have begun
 * as many runs that send. */
static xfer_status check_sequence(const call_vote *all, int n_ranks)
{
  int other = 0;

  for (int r = 0; r < n_ranks; r++)
    if (all[r].n_sequenced != all[0].n_sequenced) other = r;
  XFI_CHECK(
      other == 0, XFER_ERR_MISMATCH,
      "rank %d has begun %llu runs of plans that send before this call, rank 0 %llu: all ranks "
      "make runs and calls in one order",
      other, (unsigned long long)all[other].n_sequenced, (unsigned long long)all[0].n_sequenced);
  return XFER_OK;
}

/* Gather the votes. *vote becomes what holds for all ranks, if none has failed. *begun: all have
 * begun the commit of the same guess. Collective. */
static xfer_status combine(call_vote *vote, bool *begun, const call_votes *room, xfi_comm *comm,
                           const xfi_cached *guess, xfi_deadline deadline)
{
  const xfer_status mine = (xfer_status)vote->status;
  xfer_status in_order;
  bool failed = false;

  XFI_TRY(comm->ops->all_gather(comm, room->all, vote, sizeof *vote, deadline));
  *begun = guess != NULL;
  for (int r = 0; r < comm->size; r++) {
    const call_vote *other = &room->all[r];

    room->commits[r] = other->commit;
    *begun = *begun && other->commit.plan == vote->commit.plan;
    vote->found &= other->found;
    vote->mapped &= other->mapped;
    vote->waits |= other->waits;
    vote->has_room &= other->has_room;
    vote->has_messages |= other->has_messages;
    failed = failed || other->status != XFER_OK;
  }
  in_order = check_sequence(room->all, comm->size);
  if (guess != NULL && (in_order != XFER_OK || !xfi_commit_allows_run(room->commits, comm->size)))
    xfi_commit_undo_send(guess->plan);
  if (failed) XFI_TRY(xfi_comm_agree(comm, mine, deadline)); /* for the text */
  /* Nobody goes on, maybe with a run, before all have taken back what they began. */
  return in_order == XFER_OK ? XFER_OK : xfi_comm_agree(comm, in_order, deadline);
}

/* The entry that suits all ranks; NULL: there is none. */
static xfi_cached *find_agreed(xfi_plan_cache *cache, const call_vote *vote)
{
  for (int i = 0; i < cache->n; i++)
    if ((vote->found >> i & 1) != 0 && cache->at[i].mapped == (vote->mapped != 0))
      return &cache->at[i];
  return NULL;
}

/* A free entry, or else the one that was not used for longest, emptied; *mine is then the outcome
 * of its last call. */
static xfi_cached *free_entry(xfi_plan_cache *cache, xfer_status *mine)
{
  xfi_cached *oldest = &cache->at[0];

  for (int i = 0; i < cache->n; i++) {
    if (cache->at[i].plan == NULL) return &cache->at[i];
    if (cache->at[i].used < oldest->used) oldest = &cache->at[i];
  }
  if (cache->n < XFI_CACHE_SIZE) return &cache->at[cache->n++];
  *mine = forget(oldest);
  return oldest;
}

/* Would this call, by the plan of the last call, have to wait for readers of its copy? */
static bool would_wait(const xfi_plan_cache *cache, const xfi_cached *k, const call_vote *vote)
{
  return k->used == cache->n_calls && vote->waits != 0 && vote->has_messages == 0;
}

/* Do snapshots of other plans take the room that this one needs? Either it has none of its own for
 * want of room, so that its data goes in messages; or a second plan would be of use, and there is
 * no room for its. */
static bool lacks_room(const xfi_plan_cache *cache, const xfi_cached *k, const call_vote *vote)
{
  if (k->plan->is_transient && cache->plans->device->ops->pulls && !k->plan->lanes.uses_snapshots)
    return true;
  return would_wait(cache, k, vote) && vote->has_room == 0;
}

/* Makes room for the snapshots of a plan or of its second plan: destroys plans with snapshots that
 * none of the last XFI_CACHE_SIZE calls has used, and, for a first plan and only once, the second
 * plans of other entries. All ranks destroy the same plans. *mine becomes the outcome of their last
 * calls. Returns whether there were any. */
static bool make_room(xfi_plan_cache *cache, xfi_cached *entry, xfer_status *mine)
{
  const bool others = !entry->plan->lanes.uses_snapshots && !entry->had_room;
  bool any = false;

  for (int i = 0; i < cache->n; i++) {
    xfi_cached *k = &cache->at[i];
    xfer_status came;

    if (k == entry || k->plan == NULL || !k->plan->lanes.uses_snapshots) continue;
    if (cache->n_calls - k->used >= XFI_CACHE_SIZE)
      came = forget(k);
    else if (others && k->other != NULL)
      came = forget_plan(&k->other);
    else
      continue;
    if (came != XFER_OK) *mine = came; /* whose text is the last error */
    any = true;
  }
  entry->had_room = entry->had_room || (others && any);
  return any;
}

/* *plan: a new one for the call. Collective. */
static xfer_status make_plan(xfer_plan **plan, xfi_plan_cache *cache, const xfi_one_call *call,
                             bool mapped, xfer_status mine)
{
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;

  options.timeout_ms = cache->plans->timeout_ms;
  XFI_TRY(call->create(plan, cache->plans, mine, call->given, &options));
  (*plan)->is_transient = !mapped;
  (*plan)->is_cached = true;
  return XFER_OK;
}

/* *entry: one with a new plan for the call. Collective. */
static xfer_status make(xfi_cached **entry, xfi_plan_cache *cache, const xfi_one_call *call,
                        bool mapped)
{
  xfer_status mine = XFER_OK;
  xfi_cached *k = free_entry(cache, &mine);

  memcpy(k->key, call->key, sizeof k->key);
  k->mapped = mapped;
  k->is_single = false;
  k->had_room = false;
  *entry = k;
  return make_plan(&k->plan, cache, call, mapped, mine);
}

/* Count the call, and take the plan whose turn it is. */
static xfer_plan *take_turn(xfi_cached *k, xfi_plan_cache *cache)
{
  xfer_plan *plan = k->plan;

  k->used = ++cache->n_calls;
  if (k->other != NULL) {
    k->plan = k->other;
    k->other = plan;
  }
  return plan;
}

static xfer_status bind(xfer_plan *plan, const xfi_one_call *call)
{
  XFI_TRY(xfi_run_assume_complete(plan));
  return call->bind(plan, call->given);
}

/* Bind and commit a plan. `anew`: its lanes are built anew, since it may have snapshots now.
 * Collective. */
static xfer_status commit(xfer_plan *plan, const xfi_one_call *call, bool anew, xfer_status mine)
{
  if (mine == XFER_OK) mine = bind(plan, call);
  if (anew) xfi_commit_invalidate(plan);
  return xfi_plan_commit(plan, mine);
}

/* Make a second plan, commit it, and put it in the place of the first. *is_made is false if that
 * was not possible; it is not tried again then, and the call goes on with the first plan. An error
 * has ended the comm. Collective. */
static xfer_status make_other(bool *is_made, xfi_cached *k, xfi_plan_cache *cache,
                              const xfi_one_call *call)
{
  xfer_plan *plan = NULL;
  xfer_status st = make_plan(&plan, cache, call, k->mapped, XFER_OK);
  char why[XFI_ERROR_BYTES];

  if (st == XFER_OK) {
    plan->lanes.uses_snapshots = true; /* for which there is room */
    st = commit(plan, call, false, XFER_OK);
  }
  k->is_single = st != XFER_OK || !plan->lanes.uses_snapshots;
  *is_made = !k->is_single;
  if (k->is_single) {
    snprintf(why, sizeof why, "%s", xfer_last_error());
    xfi_plan_destroy(plan);
    if (cache->plans->comm->ops->check(cache->plans->comm) == XFER_OK) st = XFER_OK;
    xfi_set_error("%s", why);
    return st;
  }
  k->other = k->plan;
  k->plan = plan;
  return XFER_OK;
}

/* Run a committed plan after its last run, and order `stream` after it. Collective. */
static xfer_status run(xfer_plan *plan, xfer_stream stream)
{
  xfer_status st = xfi_run_follow(plan, stream);

  if (st == XFER_OK) st = xfi_run_start(plan, plan->version + 1, stream);
  if (st != XFER_OK) (void)xfi_run_assume_complete(plan); /* tells the others; keeps the text */
  if (st == XFER_OK && plan->device->ops->is_synchronous) st = xfi_run_assume_complete(plan);
  return st;
}

xfer_status xfi_cache_call(xfi_plan_cache *cache, xfer_status checked, const xfi_one_call *call,
                           xfer_stream stream)
{
  const xfi_deadline deadline = xfi_deadline_after((int64_t)cache->plans->timeout_ms);
  xfi_comm *comm = cache->plans->comm;
  const size_t size = (size_t)comm->size;
  call_vote vote = {.mapped = call->mapped,
                    .n_sequenced = cache->plans->n_sequenced,
                    .status = checked,
                    .commit = {.plan = NO_PLAN}};
  xfi_cached *guess = NULL;
  xfi_cached *k = NULL;
  xfer_plan *plan;
  bool begun = false; /* its commit, on all ranks */
  bool wants_other = false;
  bool is_committed = false;
  bool made_room = false;
  xfer_status mine = XFER_OK;
  call_votes room;

  if (cache->votes == NULL)
    cache->votes = xfi_comm_calloc(comm, size, sizeof *room.all + sizeof *room.commits);
  XFI_CHECK(cache->votes != NULL, XFER_ERR_NOMEM, "%zu ranks", size);
  room.all = cache->votes;
  room.commits = (xfi_commit_vote *)(room.all + size);
  if (checked == XFER_OK) vote.status = check(cache, stream);
  if (vote.status == XFER_OK) guess = find_cached(&vote.found, cache, call);
  describe_last(&vote, cache);
  if (guess != NULL) {
    vote.commit = xfi_commit_begin(guess->plan, bind(guess->plan, call));
    xfi_commit_send(guess->plan, &vote.commit);
  }
  XFI_TRY(combine(&vote, &begun, &room, comm, guess, deadline));
  k = begun ? guess : find_agreed(cache, &vote);
  made_room = k != NULL && lacks_room(cache, k, &vote) && make_room(cache, k, &mine);
  wants_other = begun && xfi_commit_allows_run(room.commits, comm->size) &&
                would_wait(cache, k, &vote) && vote.has_room != 0;
  if (begun && (wants_other || made_room)) {
    xfi_commit_undo_send(k->plan);
    begun = false;
    if (mine == XFER_OK) mine = (xfer_status)vote.commit.status;
  }
  if (wants_other) XFI_TRY(make_other(&is_committed, k, cache, call));
  if (k == NULL) XFI_TRY(make(&k, cache, call, vote.mapped != 0));
  plan = take_turn(k, cache);
  if (begun)
    XFI_TRY(xfi_commit_end(plan, room.commits, deadline));
  else if (!is_committed)
    XFI_TRY(commit(plan, call, made_room && !plan->lanes.uses_snapshots, mine));
  return run(plan, stream);
}
