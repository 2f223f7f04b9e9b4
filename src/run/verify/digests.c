/*
 * Digests that a caller asks for (xfer_plan_digest()), and whether replicas of a source are equal
 * (xfer_plan_check_replicas()). Both are collective, are called by src/api, and wait until the
 * device has counted.
 */
#include "count.h"

#include <string.h>

#include "alloc.h"
#include "allocations.h"
#include "bind.h"
#include "error.h"
#include "quant.h"
#include "run.h"

/* May bound memory be read now? */
static xfer_status check_readable(const xfer_plan *plan, xfer_stream stream)
{
  XFI_CHECK(plan->state != XFI_RUNNING, XFER_ERR_STATE,
            "a run is in flight: call xfer_plan_wait() before digesting");
  XFI_CHECK(plan->state != XFI_UNCOMMITTED && plan->state != XFI_REBOUND &&
                plan->state != XFI_WITHHELD && plan->lanes.pipeline != NULL,
            XFER_ERR_STATE, "the plan is not committed: call xfer_plan_commit() first");
  XFI_CHECK(xfi_plan_find_changed(plan) == NULL, XFER_ERR_STATE,
            "bound memory was freed or remapped since the commit; bind and commit again");
  XFI_TRY(xfi_bindings_check(plan));
  return xfi_stream_check(plan->device, stream);
}

/* What a rank counts, for the others to compare. No other struct that ranks gather has this size,
 * so that a rank in another call is noticed. */
typedef struct count_vote {
  uint32_t what;
  uint32_t plan; /* its number */
} count_vote;

static const char *name_of(uint32_t what)
{
  if (what == XFI_COUNT_SRC) return "digests of sources";
  return what == XFI_COUNT_DST ? "digests of destinations" : "replicas that differ";
}

/* What each rank's count came to, if all counted the same. */
static xfer_status agree_on_count(const xfer_plan *plan, xfi_count what, xfer_status mine)
{
  const count_vote vote = {(uint32_t)what, (uint32_t)plan->number};
  xfer_status st = mine;
  count_vote *all =
      xfi_comm_agree_gather(plan->comm, &st, &vote, sizeof vote, xfi_run_deadline(plan));

  XFI_TRY_DONE(st);
  for (int r = 0; r < plan->comm->size; r++)
    XFI_CHECK_DONE(all[r].what == all[0].what && all[r].plan == all[0].plan, XFER_ERR_MISMATCH,
                   "rank %d looks for %s of plan %u of the comm, rank 0 for %s of plan %u", r,
                   name_of(all[r].what), all[r].plan, name_of(all[0].what), all[0].plan);
done:
  xfi_free(all);
  return st;
}

/* Most bytes that one gathering of digests takes. */
#define GATHER_BYTES ((size_t)16 << 20)

/* sums[n] of this rank become those of all ranks together. */
static xfer_status gather_sums(const xfer_plan *plan, xfi_sum *sums, size_t n)
{
  xfi_comm *comm = plan->comm;
  const size_t row = (size_t)comm->size * sizeof *sums;
  const size_t most = row > GATHER_BYTES ? 1 : GATHER_BYTES / row;
  const size_t step = n < most ? n : most;
  xfer_status st = XFER_OK;
  xfi_sum *all = xfi_comm_calloc(comm, step, row);

  XFI_CHECK_DONE(all != NULL, XFER_ERR_NOMEM, "digests of %zu tensors", step);
  for (size_t first = 0; first < n; first += step) {
    const size_t k = n - first < step ? n - first : step;

    XFI_TRY_DONE(
        comm->ops->all_gather(comm, all, sums + first, k * sizeof *sums, xfi_run_deadline(plan)));
    memset(sums + first, 0, k * sizeof *sums);
    for (size_t i = 0; i < (size_t)comm->size * k; i++)
      xfi_sum_add(&sums[first + i % k], all[i]);
  }
done:
  xfi_free(all);
  return st;
}

/* sums[n_tensors] of this rank, once all ranks have counted; the caller's, whatever it returns. */
static xfer_status count_all(xfi_sum **sums, const xfer_plan *plan, xfi_count what,
                             xfer_status mine, xfer_stream stream)
{
  const size_t n = plan->moves->n_tensors;

  XFI_CHECK(plan->comm != NULL, XFER_ERR_STATE, "a simulated plan has no data");
  XFI_CHECK(plan->memory.operations == NULL, XFER_ERR_UNSUPPORTED,
            "an exchange has no digests: its arrays are those of two ranks each");
  *sums = xfi_comm_calloc(plan->comm, n, sizeof **sums);
  XFI_CHECK(*sums != NULL, XFER_ERR_NOMEM, "digests of %zu tensors", n);
  if (mine == XFER_OK) mine = check_readable(plan, stream);
  if (mine == XFER_OK) mine = xfi_count_now(*sums, &(xfi_counting){plan, 0, n, what, NULL}, stream);
  return agree_on_count(plan, what, mine);
}

xfer_status xfi_plan_digest(const xfer_plan *plan, xfer_digest *digests, xfi_side side,
                            xfer_status checked, xfer_stream stream)
{
  const size_t n = plan->moves->n_tensors;
  xfer_status st = XFER_OK;
  xfi_sum *sums = NULL;

  XFI_TRY_DONE(count_all(&sums, plan, side == XFI_SIDE_SRC ? XFI_COUNT_SRC : XFI_COUNT_DST, checked,
                         stream));
  XFI_TRY_DONE(gather_sums(plan, sums, n));
  for (size_t t = 0; t < n; t++)
    memcpy(digests[t].word, sums[t].word, sizeof sums[t].word);
done:
  xfi_free(sums);
  return st;
}

xfer_status xfi_plan_check_replicas(const xfer_plan *plan, xfer_status checked, xfer_stream stream)
{
  xfer_status st = XFER_OK;
  xfi_sum *sums = NULL;
  xfi_sum total;
  xfer_view scales;

  XFI_TRY_DONE(count_all(&sums, plan, XFI_COUNT_REPLICAS, checked, stream));
  /* Scales have no source of the caller's: what ranks have of them is of the last run that they
   * began, which others may have refused. */
  for (size_t t = 0; t < plan->moves->n_tensors; t++)
    if (xfi_quant_source(plan->quant, t, &scales)) memset(&sums[t], 0, sizeof sums[t]);
  total = xfi_verify_total(sums, plan->moves->n_tensors);
  XFI_TRY_DONE(gather_sums(plan, &total, 1));
  if (!xfi_sum_is_zero(total))
    st = xfi_verify_explain(plan, sums, XFI_COUNT_REPLICAS, xfi_run_deadline(plan));
done:
  xfi_free(sums);
  return st;
}
