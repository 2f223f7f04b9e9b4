/* A paragraph for each workload as it goes, and a table of all at the end. */
#include "m2n_table.h"

#include <stdio.h>

const char *table_way_name(int way)
{
  if (way >= FIRST_M2N) return m2n_ways[way - FIRST_M2N].name;
  return way == DIRECT ? "xfer direct" : "xfer packed";
}

void table_way(const perf_world *w, int way, const figures *f)
{
  if (w->rank != 0) return;
  printf("  %-15s", table_way_name(way));
  if (!f->measured) {
    printf(" not measured: %s\n", f->note);
  } else {
    printf(" %9.3f ms, issued in %.3f", f->end, f->issue);
    if (way < FIRST_M2N) printf(", %.3f with its wait", f->done);
    if (way != DIRECT)
      printf("; xfer direct in the same rounds %.3f (%.2f)", f->beside, f->end / f->beside);
    printf("; %d rounds; setup %.1f ms, %.0f MiB; wrong %.0f\n", f->rounds, f->setup, f->mib,
           f->wrong);
  }
  (void)fflush(stdout);
}

static void print_number(double value, bool is_there, int width, int digits)
{
  if (is_there)
    printf(" %*.*f", width, digits, value);
  else
    printf(" %*s", width, "-");
}

/* Of ways whose bytes were right. */
static bool is_better(const figures *f, const figures *best)
{
  return f->measured && f->wrong == 0 && (best == NULL || f->end < best->end);
}

static void print_line(const bench_workload *what, const figures *of, double gb)
{
  const figures *best = NULL;
  double wrong = 0;

  printf("%-26s %7.3f", what->name, gb);
  for (int way = 0; way < N_WAYS; way++) {
    print_number(of[way].end, of[way].measured, 14, 3);
    wrong += of[way].wrong;
    if (way >= FIRST_M2N && is_better(&of[way], best)) best = &of[way];
  }
  print_number(best != NULL ? best->end / best->beside : 0, best != NULL, 9, 2);
  print_number(of[DIRECT].done, of[DIRECT].measured, 11, 3);
  print_number(of[DIRECT].issue, of[DIRECT].measured, 10, 3);
  print_number(best != NULL ? best->issue : 0, best != NULL, 9, 3);
  print_number(of[DIRECT].setup, of[DIRECT].measured, 10, 1);
  print_number(best != NULL ? best->setup : 0, best != NULL, 9, 1);
  printf(" %6.0f\n", wrong);
}

static void print_legend(void)
{
  printf("\nMilliseconds from a common barrier to the end of the last rank's stream, medians.\n"
         "GB: written on the rank that receives most. From one to one all tensors are whole.\n"
         "xfer direct, xfer packed: one plan of all tensors, committed before, by that lane\n");
  for (int i = 0; i < N_M2N_WAYS; i++)
    printf("%s: %s\n", m2n_ways[i].name, m2n_ways[i].usage);
  printf(
      "M2N/xfer: M2N's quickest way over xfer direct in the rounds that they shared; issue and "
      "setup of M2N are that way's\n"
      "xfer waited: with xfer_plan_wait(), in which ranks agree; M2N has nothing like it\n"
      "issue: the host's time until all was enqueued, on the slowest rank\n"
      "setup: plan, bind and commit; M2N's handle and first call, up to its end\n"
      "fused: the same weights into qkv, gate_up and w13 of vLLM, which M2N cannot describe\n\n");
}

/* Why ways were not measured. */
static void print_notes(const results *all)
{
  printf("\n");
  for (int i = 0; bench_workload_get(i) != NULL; i++)
    for (int way = 0; way < N_WAYS; way++)
      if (all->of[i][way].note[0] != '\0')
        printf("%s, %s: %s\n", bench_workload_get(i)->name, table_way_name(way),
               all->of[i][way].note);
}

double table_print(const results *all)
{
  double wrong = 0;

  print_legend();
  printf("%-26s %7s", "workload", "GB");
  for (int way = 0; way < N_WAYS; way++)
    printf(" %14s", table_way_name(way));
  printf(" %9s %11s %10s %9s %10s %9s %6s\n", "M2N/xfer", "xfer waited", "xfer issue", "M2N issue",
         "xfer setup", "M2N setup", "wrong");
  for (int i = 0; bench_workload_get(i) != NULL; i++) {
    if (all->gb[i] > 0) print_line(bench_workload_get(i), all->of[i], all->gb[i]);
    for (int way = 0; way < N_WAYS; way++)
      wrong += all->of[i][way].wrong;
  }
  print_notes(all);
  return wrong;
}
