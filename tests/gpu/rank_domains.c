/* What several ranks of a domain want crosses to it once, and how many bytes that is. */
#include "rank_world.h"

#include <stdio.h>
#include <string.h>

/* One host plays two: the ranks from `size` on have what the first `size` want, each all of it or,
 * where they are more than 3, also TP2. Returns how many tensors. */
static int domain_tensors(tensor *tensors, int size)
{
  static const int rows[] = {20000, 3001, 64, 1};
  const int n = w.ranks.size;
  int n_tensors = 0;

  for (int i = 0; i < 4; i++, n_tensors++) {
    char line[256];
    (void)snprintf(line, sizeof line, "bf16[%d,1000] (%d)@%d-%d:S0 -> (%d)@0-%d:R", rows[i],
                   n - size, size, n - 1, size, size - 1);
    tensor_make(&tensors[n_tensors], n_tensors, line, i % 2 == 1);
  }
  for (int i = 0; i < 2 && size > 3; i++, n_tensors++) {
    char line[256];
    (void)snprintf(line, sizeof line, "f32[%d,512] (%d)@%d-%d:R -> (%d,2)@0-%d:R,S%d", rows[i],
                   n - size, size, n - 1, size / 2, size / 2 * 2 - 1, i);
    tensor_make(&tensors[n_tensors], n_tensors, line, i % 2 == 0);
  }
  return n_tensors;
}

/* Bytes that crossed and that were relayed, over all ranks; each tensor crosses once. */
static void check_crossed(const xfer_plan *plan, uint32_t lane)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  uint64_t all[64][2];
  uint64_t sum[2] = {0, 0};
  char *text = NULL;

  OK(xfer_plan_report(plan, &report));
  const uint64_t mine[2] = {report.crossed_bytes, report.relayed_bytes};
  EXPECT(perf_ranks_all_gather(&w.ranks, all, mine, sizeof mine) == 0, "a rank did not come");
  for (int r = 0; r < w.ranks.size; r++)
    for (int k = 0; k < 2; k++)
      sum[k] += all[r][k];
  EXPECT(sum[0] == report.payload_bytes, "bytes cross more than once");
  EXPECT((sum[1] > 0) == (w.ranks_per_domain > 1), "it is relayed where several ranks want it");
  OK(xfer_plan_print(plan, &text, 0));
  EXPECT((strstr(text, "bytes, relayed, direct") != NULL) ==
             (w.ranks.rank < (int)w.ranks_per_domain && w.ranks_per_domain > 1),
         text);
  xfer_text_free(text);
  if (w.ranks.rank == 0)
    printf("lane %u, domains of %u: %llu bytes crossed, %llu without relays\n", lane,
           w.ranks_per_domain, (unsigned long long)sum[0], (unsigned long long)(sum[0] + sum[1]));
}

void suite_domains(int n_runs)
{
  static const uint32_t nccl_lanes[] = {XFER_LANE_PACKED, XFER_LANE_DIRECT};
  const int n = w.ranks.size;
  const int size = n < 4 ? n - 1 : n / 2;
  tensor tensors[TENSORS_MAX];

  EXPECT(n > 1, "domains need two ranks");
  w.ranks_per_domain = (uint32_t)size;
  for (int staged = 0; staged < 2; staged++) {
    const int n_tensors = domain_tensors(tensors, size);
    w.plan_flags = XFER_PLAN_VERIFY | (staged ? XFER_PLAN_STAGED : 0);
    for (int l = w.has_nccl ? 0 : 1; l < 2; l++) {
      xfer_plan *plan = plan_make(tensors, n_tensors, nccl_lanes[l], 0);
      OK(xfer_plan_commit(plan));
      check_crossed(plan, nccl_lanes[l]);
      for (int i = 1; i <= n_runs; i++) {
        poison(tensors, n_tensors);
        OK(xfer_plan_run(plan, (uint64_t)i, w.stream));
        if (!staged) check(tensors, n_tensors);
        OK(xfer_plan_wait(plan, 0));
        if (staged) check(tensors, n_tensors);
      }
      EXPECT(wrong_bytes() == 0, "wrong bytes");
      xfer_plan_destroy(plan);
      barrier();
    }
    tensors_free(tensors, n_tensors);
  }
}
