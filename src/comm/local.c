/* A comm whose ranks are threads of one process.
 *
 * Gathering. Each rank copies its bytes into a slot of its own and arrives; the last one to arrive
 * advances the generation, and everybody reads the others' slots. There are two slots per rank,
 * used in turn: to arrive at generation g + 2 a rank must have seen g + 1 complete, when all had
 * read those of g. So one wait is enough, and nobody reads memory of a caller that may have gone
 * on.
 *
 * Messages. A sender has a post for each other rank, and puts its pointer there; the receiver
 * copies straight into its own memory and tells the sender, who has been waiting (and receiving
 * whatever came for it meanwhile, so that no pattern of calls deadlocks that would not with
 * messages in flight). A sender that gives up takes back the posts that nobody has begun to copy
 * and waits for the others: no rank reads a buffer after its owner's call has returned.
 *
 * Waiting. A rank yields a few times, then sleeps on a futex: on `turn` for gathering, on its own
 * bell for messages. With more ranks than cores that costs about one switch of threads per rank and
 * call.
 *
 * Failure. Bit 0 of `turn` is the alarm: the comm is broken, or a rank has left it. The last
 * arrival and a rank that gives up decide by compare-and-swap on that one word whether a gathering
 * took place, so all of its ranks come to the same result.
 */
#include "local.h"

#include "alloc.h"
#include "error.h"
#include "futex.h"

/* ---- failure ------------------------------------------------------------------------------ */

void xfi_local_ring(xfi_local_rank *rank)
{
  /* Both sequentially consistent: either we see it sleeping, or it sees the bell. */
  (void)atomic_fetch_add(&rank->bell, 1);
  if (atomic_load(&rank->sleeping)) xfi_futex_wake_all(&rank->bell, XFI_FUTEX_OWN);
}

void xfi_local_raise_alarm(xfi_local_group *group)
{
  (void)atomic_fetch_or(&group->turn, XFI_LOCAL_ALARM);
  xfi_futex_wake_all(&group->turn, XFI_FUTEX_OWN);
  for (int r = 0; r < group->n_ranks; r++)
    xfi_local_ring(&group->ranks[r]);
}

bool xfi_local_is_alarmed(const xfi_local_group *group)
{
  return (atomic_load_explicit(&group->turn, memory_order_acquire) & XFI_LOCAL_ALARM) != 0;
}

xfer_status xfi_local_fail_for_gone(const xfi_local_rank *me, int peer)
{
  XFI_LOCAL_BREAK(me->group, "rank %d left the comm while rank %d waited for it", peer,
                  me->base.rank);
  return XFI_ERROR(XFER_ERR_COMM, "rank %d has left the comm", peer);
}

/* ---- the comm ----------------------------------------------------------------------------- */

static void local_abort(xfi_comm *comm, const char *why)
{
  XFI_LOCAL_BREAK(((xfi_local_rank *)comm)->group, "%s", why);
}

static void group_destroy(xfi_local_group *group)
{
  if (group == NULL) return;
  for (int r = 0; group->ranks != NULL && r < group->n_ranks; r++) {
    xfi_local_rank *rank = &group->ranks[r];
    xfi_free(rank->slots[0].large);
    xfi_free(rank->slots[1].large);
    xfi_free(rank->posts);
    xfi_free(rank->awaits);
    xfi_free(rank->casts);
    xfi_free(rank->said);
    xfi_free(rank->base.waits);
  }
  (void)pthread_mutex_destroy(&group->broken.lock);
  xfi_free(group->ranks);
  xfi_free(group);
}

static void local_destroy(xfi_comm *comm)
{
  xfi_local_rank *me = (xfi_local_rank *)comm;
  xfi_local_group *group = me->group;

  atomic_store(&me->gone, true);
  xfi_local_raise_alarm(group);
  if (atomic_fetch_sub(&group->n_handles, 1) == 1) group_destroy(group);
}

static xfer_status local_check(xfi_comm *base)
{
  return xfi_broken_check(&((xfi_local_rank *)base)->group->broken);
}

static const xfi_comm_ops local_ops = {
    .recv_direct = true,
    .destroy = local_destroy,
    .all_gather = xfi_local_all_gather,
    .exchange = xfi_local_exchange,
    .round = xfi_local_round,
    .broadcast = xfi_local_broadcast,
    .check = local_check,
    .abort = local_abort,
    .abort_data = local_abort,
};

static xfer_status rank_init(xfi_local_rank *rank, xfi_local_group *group, int number)
{
  const size_t n = (size_t)group->n_ranks;

  rank->base = (xfi_comm){.ops = &local_ops, .rank = number, .size = group->n_ranks};
  rank->group = group;
  rank->posts = xfi_calloc(n, sizeof *rank->posts);
  rank->awaits = xfi_calloc(n, sizeof *rank->awaits);
  rank->casts = xfi_calloc(n, sizeof *rank->casts);
  rank->said = xfi_calloc(1, xfi_waiting_bytes(group->n_ranks));
  XFI_CHECK(rank->posts != NULL && rank->awaits != NULL && rank->casts != NULL &&
                rank->said != NULL,
            XFER_ERR_NOMEM, "%d ranks of a comm", group->n_ranks);
  return xfi_waits_create(&rank->base.waits, number, group->n_ranks);
}

xfer_status xfi_comm_create_local(xfi_comm **comms, int n_ranks)
{
  xfer_status st = XFER_OK;
  xfi_local_group *made = NULL;

  XFI_CHECK_DONE(n_ranks >= 1, XFER_ERR_ARG, "a comm of %d ranks", n_ranks);
  made = xfi_calloc(1, sizeof *made);
  XFI_CHECK_DONE(made != NULL, XFER_ERR_NOMEM, "a comm of %d ranks", n_ranks);
  (void)pthread_mutex_init(&made->broken.lock, NULL); /* cannot fail without attributes */
  made->n_ranks = n_ranks;
  atomic_init(&made->n_handles, n_ranks);
  made->ranks = xfi_calloc((size_t)n_ranks, sizeof *made->ranks);
  XFI_CHECK_DONE(made->ranks != NULL, XFER_ERR_NOMEM, "%d ranks of a comm", n_ranks);
  for (int r = 0; r < n_ranks; r++)
    XFI_TRY_DONE(rank_init(&made->ranks[r], made, r));
  for (int r = 0; r < n_ranks; r++) {
    for (int of = 0; of < n_ranks; of++)
      made->ranks[r].base.waits->said[of] = made->ranks[of].said;
    comms[r] = &made->ranks[r].base;
  }
  made = NULL; /* the handles' now */
done:
  group_destroy(made);
  return st;
}
