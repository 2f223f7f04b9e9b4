/* Gathering among threads: slots that are filled in turn, and one wait. The idea is in local.c. */
#include "local.h"

#include "error.h"
#include "futex.h"
#include "vec.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

/* Why a gathering cannot take place, once the alarm was seen. */
static xfer_status gather_failed(const xfi_local_rank *me)
{
  xfer_status st = xfi_broken_check(&me->group->broken);

  if (st != XFER_OK) return st;
  for (int r = 0; r < me->base.size; r++)
    if (atomic_load(&me->group->ranks[r].gone)) return xfi_local_fail_for_gone(me, r);
  return XFI_ERROR(XFER_ERR_INTERNAL, "alarm without a cause");
}

/* Says for whom this rank waits, of whom the lowest is returned. */
static int publish_waits(xfi_local_rank *me, uint32_t generation)
{
  bool *awaits = xfi_waits_note(me->base.waits);
  int first = me->base.size - 1;

  for (int r = me->base.size - 1; r >= 0; r--) {
    awaits[r] = atomic_load(&me->group->ranks[r].arrived) != generation + 1;
    if (awaits[r]) first = r;
  }
  xfi_waits_say(me->base.waits);
  return first;
}

/* The deadline has passed: OK if the gathering has taken place or failed meanwhile, which the
 * caller looks at once more. */
static xfer_status gather_give_up(xfi_local_rank *me, uint32_t generation, int late,
                                  xfi_deadline deadline)
{
  xfi_local_group *group = me->group;
  uint32_t turn = generation * 2;
  (void)pthread_mutex_lock(&group->broken.lock); /* nobody asks why before it is written */
  bool mine = atomic_compare_exchange_strong(&group->turn, &turn, turn | XFI_LOCAL_ALARM);
  if (mine) {
    atomic_store(&group->broken.is, true);
    (void)snprintf(group->broken.why, sizeof group->broken.why,
                   "rank %d waited for rank %d until %s", me->base.rank, late,
                   xfi_deadline_end(deadline));
  }
  (void)pthread_mutex_unlock(&group->broken.lock);
  if (!mine) return XFER_OK;
  xfi_local_raise_alarm(group);
  return XFI_ERROR(XFER_ERR_TIMEOUT, "rank %d did not come before %s", late,
                   xfi_deadline_end(deadline));
}

static xfer_status await_generation(xfi_local_rank *me, uint32_t generation, xfi_deadline deadline)
{
  xfi_local_group *group = me->group;
  xfi_late late = {0};
  int n_naps = 0;

  for (int yields = 0;; yields++) {
    uint32_t turn = atomic_load_explicit(&group->turn, memory_order_acquire);
    if (turn / 2 != generation) return XFER_OK; /* first: it may have completed before the alarm */
    if ((turn & XFI_LOCAL_ALARM) != 0) return gather_failed(me);
    if (yields < XFI_LOCAL_YIELDS) {
      (void)sched_yield();
    } else if (xfi_deadline_expired(deadline)) {
      const int first = publish_waits(me, generation);

      if (xfi_waits_find_late(me->base.waits, &late))
        XFI_TRY(gather_give_up(me, generation, late.rank < 0 ? first : late.rank, deadline));
    } else {
      if (n_naps > 0) (void)publish_waits(me, generation);
      (void)atomic_fetch_add(&group->n_sleepers, 1);
      xfi_futex_wait(&group->turn, turn, xfi_waits_part(deadline, n_naps++), XFI_FUTEX_OWN);
      (void)atomic_fetch_sub(&group->n_sleepers, 1);
    }
  }
}

/* Returns when all ranks have arrived. */
static xfer_status arrive(xfi_local_rank *me, uint32_t generation, xfi_deadline deadline)
{
  xfi_local_group *group = me->group;
  uint32_t turn = generation * 2;

  if (xfi_local_is_alarmed(group)) return gather_failed(me);
  atomic_store(&me->arrived, generation + 1);
  if (atomic_fetch_add(&group->n_arrived, 1) < group->n_ranks - 1)
    return await_generation(me, generation, deadline);
  atomic_store(&group->n_arrived, 0); /* before anybody can arrive at the next */
  if (!atomic_compare_exchange_strong(&group->turn, &turn, turn + 2)) return gather_failed(me);
  if (atomic_load(&group->n_sleepers) > 0) xfi_futex_wake_all(&group->turn, XFI_FUTEX_OWN);
  return XFER_OK;
}

static void slot_fill(xfi_local_slot *slot, xfi_gathering of, const void *bytes)
{
  const size_t n_bytes = of.n_bytes;

  slot->of = of;
  slot->failed = n_bytes > XFI_LOCAL_SLOT_BYTES &&
                 xfi_vec_reserve(&slot->large, &slot->capacity, n_bytes, 1) != XFER_OK;
  if (slot->failed || n_bytes == 0) return;
  memcpy(n_bytes > XFI_LOCAL_SLOT_BYTES ? slot->large : slot->small, bytes, n_bytes);
}

/* Every rank comes to the same conclusion: any two that differ make each rank differ from one. */
static xfer_status slots_check(const xfi_local_rank *me, uint32_t generation, xfi_gathering mine)
{
  const xfi_local_rank *ranks = me->group->ranks;

  for (int r = 0; r < me->base.size; r++)
    XFI_TRY(xfi_comm_check_same(&me->base, mine, ranks[r].slots[generation % 2].of, r));
  for (int r = 0; r < me->base.size; r++)
    XFI_CHECK(!ranks[r].slots[generation % 2].failed,
              r == me->base.rank ? XFER_ERR_NOMEM : XFER_ERR_PEER,
              "a gathering of %zu bytes on rank %d, which has not enough", (size_t)mine.n_bytes, r);
  return XFER_OK;
}

xfer_status xfi_local_all_gather(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                                 xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  xfi_local_rank *me = (xfi_local_rank *)comm;
  /* It cannot advance before we arrive. */
  uint32_t generation = atomic_load(&me->group->turn) / 2;

  const xfi_gathering of = xfi_comm_gathering(comm, n_bytes, 0);
  slot_fill(&me->slots[generation % 2], of, mine);
  XFI_TRY(arrive(me, generation, deadline));
  xfi_waits_end(comm->waits);
  st = slots_check(me, generation, of);
  if (st != XFER_OK) XFI_LOCAL_BREAK(me->group, "%s", xfer_last_error());
  if (st != XFER_OK || n_bytes == 0) return st;
  for (int r = 0; r < comm->size; r++) {
    const xfi_local_slot *slot = &me->group->ranks[r].slots[generation % 2];
    memcpy((char *)all + (size_t)r * n_bytes,
           n_bytes > XFI_LOCAL_SLOT_BYTES ? slot->large : slot->small, n_bytes);
  }
  return st;
}
