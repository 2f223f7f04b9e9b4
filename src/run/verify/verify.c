/*
 * Verified runs: behind its copies a run counts what sources and destinations hold, and each rank
 * reports its total with the result of the run. If the totals do not add up to 0, the ranks look
 * for the first tensor and index that differ: by bisection over the tensors, and then over the dims
 * of one, where each step is a sum over all ranks. That search is collective.
 */
#include "count.h"

#include <string.h>

#include "alloc.h"
#include "error.h"
#include "text.h"

void xfi_verify_drop(xfer_plan *plan)
{
  if (plan->lanes.verify != NULL)
    plan->device->ops->digest_destroy(plan->device, plan->lanes.verify);
  plan->lanes.verify = NULL;
}

xfer_status xfi_verify_prepare(xfer_plan *plan)
{
  xfi_verify_drop(plan);
  if ((plan->options.flags & XFER_PLAN_VERIFY) == 0) return XFER_OK;
  return xfi_count_make(
      &plan->lanes.verify,
      &(xfi_counting){.plan = plan, .n = plan->moves->n_tensors, .what = XFI_COUNT_RUN});
}

xfer_status xfi_verify_start(const xfer_plan *plan, xfer_stream stream)
{
  if (plan->lanes.verify == NULL) return XFER_OK;
  return plan->device->ops->digest_launch(plan->device, plan->lanes.verify, stream);
}

xfi_sum xfi_verify_total(const xfi_sum *sums, size_t n)
{
  xfi_sum total = {{0, 0}};

  for (size_t t = 0; t < n; t++) {
    uint64_t weight[2];

    xfi_digest_chunk(weight, (UINT64_C(1) << 60) + t);
    total.word[0] += weight[0] * sums[t].word[0];
    total.word[1] += weight[1] * sums[t].word[1];
  }
  return total;
}

static const xfi_sum *sums_of(const xfer_plan *plan)
{
  return plan->device->ops->digest_sums(plan->lanes.verify);
}

xfi_sum xfi_verify_mine(const xfer_plan *plan)
{
  if (plan->lanes.verify == NULL) return (xfi_sum){{0, 0}};
  return xfi_verify_total(sums_of(plan), plan->moves->n_tensors);
}

xfer_status xfi_verify_outcome(const xfer_plan *plan, xfi_deadline deadline)
{
  xfi_sum total = {{0, 0}};

  if (plan->lanes.verify == NULL) return XFER_OK;
  for (int r = 0; r < plan->comm->size; r++)
    xfi_sum_add(&total, plan->run.results[r].sum);
  if (xfi_sum_is_zero(total)) return XFER_OK;
  return xfi_verify_explain(plan, sums_of(plan), XFI_COUNT_RUN, deadline);
}

/* ---- what is wrong ---- */

/* A search for what is wrong. All ranks take the same steps. */
typedef struct search {
  const xfer_plan *plan;
  xfi_deadline deadline;
  xfer_stream stream;
  xfer_status status; /* of this rank, so far */
  xfi_count what;
  size_t tensor;
  xfi_within within;
} search;

/* Is the sum of all ranks' sums 0? A rank that failed ends the search everywhere. */
static xfer_status is_zero(const search *s, xfi_sum mine, bool *zero)
{
  xfer_status st = s->status;
  xfi_sum total = {{0, 0}};
  xfi_sum *all = xfi_comm_agree_gather(s->plan->comm, &st, &mine, sizeof mine, s->deadline);

  for (int r = 0; all != NULL && r < s->plan->comm->size; r++)
    xfi_sum_add(&total, all[r]);
  *zero = xfi_sum_is_zero(total);
  xfi_free(all);
  return st;
}

/* Count the tensor again within the bounds of the search: is the sum over all ranks 0? */
static xfer_status count(search *s, bool *zero)
{
  xfi_sum sum = {{0, 0}};
  const xfi_counting counting = {s->plan, s->tensor, 1, s->what, &s->within};

  if (s->status == XFER_OK) s->status = xfi_count_now(&sum, &counting, s->stream);
  return is_zero(s, sum, zero);
}

/* The first of n tensors, or where `sums` is NULL of n indices within in dim d, whose sums do not
 * come to 0. */
static xfer_status bisect(search *s, int64_t *first, int64_t n, const xfi_sum *sums, int d)
{
  int64_t good = 0; /* so many are known to be right */
  int64_t bad = n;

  while (bad - good > 1) {
    const int64_t mid = good + (bad - good) / 2;
    bool zero = false;

    if (sums == NULL) {
      s->within.lo[d] = good;
      s->within.hi[d] = mid;
    }
    XFI_TRY(sums == NULL ? count(s, &zero)
                         : is_zero(s, xfi_verify_total(sums, (size_t)mid), &zero));
    *(zero ? &good : &bad) = mid;
  }
  *first = good;
  return XFER_OK;
}

/* The first index, in the order of the tensor, of those within, and the first box that has it. */
static xfer_status find_index(search *s, int n_dims)
{
  for (int d = 0; d <= XFI_WITHIN_UNIT; d++) {
    if (d < XFI_WITHIN_UNIT ? d >= n_dims : s->what != XFI_COUNT_REPLICAS) continue;
    XFI_TRY(bisect(s, &s->within.lo[d], s->within.hi[d], NULL, d));
    s->within.hi[d] = s->within.lo[d] + 1;
  }
  return XFER_OK;
}

/* What a rank has of one element. */
typedef struct own {
  uint64_t has[2]; /* as a source, as a destination */
  xfi_sum sum[2];
} own;

static xfer_status count_own(const search *s, own *mine)
{
  xfer_status st = s->status;

  for (int side = 0; side < 2 && st == XFER_OK; side++) {
    const xfi_count what = side == 1                       ? XFI_COUNT_OWN_DST
                           : s->what == XFI_COUNT_REPLICAS ? XFI_COUNT_OWN_REPLICA
                                                           : XFI_COUNT_OWN_SRC;
    const xfi_counting counting = {s->plan, s->tensor, 1, what, &s->within};
    xfi_counted list = {NULL, 0, 0};

    st = xfi_count_add(&list, &counting, 0);
    mine->has[side] = list.n > 0;
    xfi_free(list.at);
    if (st != XFER_OK) break;
    st = xfi_count_now(&mine->sum[side], &counting, s->stream);
  }
  return st;
}

/* A rank that has the element as a source, and one that has another value on `side`; -1: none. */
static void compare_own(const own *all, int n, int side, int *ref, int *other)
{
  *ref = *other = -1;
  for (int r = 0; r < n && *ref < 0; r++)
    if (all[r].has[0] != 0) *ref = r;
  for (int r = 0; r < n && *ref >= 0 && *other < 0; r++)
    if (all[r].has[side] != 0 && memcmp(&all[r].sum[side], &all[*ref].sum[0], sizeof(xfi_sum)) != 0)
      *other = r;
}

/* All ranks know tensor and index: say them, and who differs. */
static xfer_status name_ranks(search *s)
{
  xfi_comm *comm = s->plan->comm;
  const xfi_tensor *t = &s->plan->moves->tensors[s->tensor];
  const int side = s->what == XFI_COUNT_REPLICAS ? 0 : 1;
  own mine = {{0, 0}, {{{0, 0}}, {{0, 0}}}};
  xfer_status st = count_own(s, &mine);
  own *all = xfi_comm_agree_gather(comm, &st, &mine, sizeof mine, s->deadline);
  int ref;
  int other;
  char index[160];
  xfi_text text;

  XFI_TRY_DONE(st);
  compare_own(all, comm->size, side, &ref, &other);
  xfi_text_fixed(&text, index, sizeof index);
  for (int d = 0; d < t->src->n_dims; d++)
    xfi_text_printf(&text, "%s%lld", d == 0 ? "" : ",", (long long)s->within.lo[d]);
  XFI_CHECK_DONE(
      other >= 0, XFER_ERR_MISMATCH, "tensor \"%.100s\": %s at [%s]", t->name,
      side == 0 ? "replicas of the source differ" : "destinations differ from the source", index);
  XFI_CHECK_DONE(
      side == 1, XFER_ERR_MISMATCH,
      "tensor \"%.100s\": replicas of the source differ, first at [%s]: rank %d has another "
      "value than rank %d",
      t->name, index, other, ref);
  st = XFI_ERROR(XFER_ERR_MISMATCH,
                 "tensor \"%.100s\": rank %d did not get what rank %d has, first at [%s]", t->name,
                 other, ref, index);
done:
  xfi_free(all);
  return st;
}

static xfer_status explain(search *s, const xfi_sum *sums)
{
  const xfi_moves *m = s->plan->moves;
  int64_t tensor = 0;
  bool zero = true;

  XFI_TRY(bisect(s, &tensor, (int64_t)m->n_tensors, sums, 0));
  s->tensor = (size_t)tensor;
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    s->within.hi[d] = m->tensors[s->tensor].src->dims[d].size; /* 0 past the last */
  s->within.hi[XFI_WITHIN_UNIT] = INT64_C(1) << 32;            /* also past XFI_NO_UNIT */
  if (s->what == XFI_COUNT_RUN) {
    s->what = XFI_COUNT_REPLICAS;
    XFI_TRY(count(s, &zero));
    if (zero) s->what = XFI_COUNT_MOVED;
  }
  if (zero) XFI_TRY(count(s, &zero));
  XFI_CHECK(!zero, XFER_ERR_MISMATCH,
            "tensor \"%.100s\": sources and destinations differed, and do not any more",
            m->tensors[s->tensor].name);
  XFI_TRY(find_index(s, m->tensors[s->tensor].src->n_dims));
  return name_ranks(s);
}

xfer_status xfi_verify_explain(const xfer_plan *plan, const xfi_sum *sums, xfi_count what,
                               xfi_deadline deadline)
{
  search s = {.plan = plan, .deadline = deadline, .what = what};
  xfer_status st;

  s.status = xfi_stream_create(plan->device, &s.stream);
  st = explain(&s, sums);
  xfi_stream_destroy(plan->device, s.stream);
  return st;
}
