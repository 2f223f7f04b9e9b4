/*
 * Nothing grows: runs, plans that are made and given back, comms. After a tenth of each the process
 * has as much memory in use, as many open files, threads and mappings as at the end. Counts are
 * small here; XFER_GROWTH multiplies them (100: 400,000 runs, 40,000 plans, 10,000 comms).
 */
#include "fault/fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <malloc.h>
#include <stdio.h>

enum { N_RUNS = 4000, N_PLANS = 400, N_COMMS = 100 };

/* A sanitizer's allocator maps a region of its own now and then; one kept for each comm is 90. */
enum { N_OF_ALLOCATOR = 32 };

/* What could grow. */
typedef struct held {
  size_t bytes; /* in use, as malloc counts them; a sanitizer's counts nothing and finds leaks */
  size_t files;
  size_t threads;
  size_t mappings;
} held;

static size_t count_entries(const char *folder)
{
  DIR *dir = opendir(folder);
  size_t n = 0;

  assert_non_null(dir);
  while (readdir(dir) != NULL)
    n++;
  (void)closedir(dir);
  return n;
}

/* But those that have been joined and are only still to be taken off the list. */
static size_t count_threads(void)
{
  enum { PF_EXITING = 4 }; /* of the kernel's flags, the 9th word of stat: proc(5) */
  DIR *dir = opendir("/proc/self/task");
  size_t n = 0;

  assert_non_null(dir);
  for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
    char text[512] = "";
    unsigned flags = PF_EXITING;

    (void)snprintf(text, sizeof text, "/proc/self/task/%.20s/stat", entry->d_name);
    FILE *file = fopen(text, "r");
    if (file == NULL) continue; /* . and .., or it has gone */
    if (fgets(text, sizeof text, file) != NULL && strrchr(text, ')') != NULL)
      (void)sscanf(strrchr(text, ')') + 1, " %*c %*d %*d %*d %*d %*d %u", &flags);
    n += (flags & PF_EXITING) == 0;
    (void)fclose(file);
  }
  (void)closedir(dir);
  return n;
}

static size_t count_lines(const char *path)
{
  FILE *file = fopen(path, "r");
  size_t n = 0;

  assert_non_null(file);
  for (int c = fgetc(file); c != EOF; c = fgetc(file))
    n += c == '\n';
  (void)fclose(file);
  return n;
}

static held look(void)
{
  return (held){mallinfo2().uordblks, count_entries("/proc/self/fd"), count_threads(),
                count_lines("/proc/self/maps")};
}

static long times(long n)
{
  const char *factor = getenv("XFER_GROWTH");

  return factor == NULL ? n : n * atol(factor);
}

/* Ranks meet in the collective calls, so none is ahead of another by more than a step. */
typedef struct play {
  xfer_comm *comms[N_RANKS];
  xfer_plan *plans[N_RANKS];
  long first;
  long end;
  bool plan_each; /* a plan for each step, not one for all */
} play;

static void steps(int rank, void *context)
{
  play *p = context;
  input in;

  input_create(&in, rank);
  in.options.lane = XFER_LANE_AUTO;
  for (long i = p->first; i < p->end; i++) {
    if (p->plan_each || p->plans[rank] == NULL) {
      expect(xfer_plan_create(&p->plans[rank], p->comms[rank], in.tensors, in.n_tensors,
                              &in.options) == XFER_OK);
    }
    expect(input_bind(&in, p->plans[rank]) == XFER_OK);
    expect(xfer_plan_commit(p->plans[rank]) == XFER_OK);
    expect(xfer_plan_run(p->plans[rank], (uint64_t)i + 1, NULL) == XFER_OK);
    expect(xfer_plan_wait(p->plans[rank], 0) == XFER_OK);
    if (p->plan_each) xfer_plan_destroy(p->plans[rank]);
    if (p->plan_each) p->plans[rank] = NULL;
  }
  expect(is_delivered(&in));
  if (!p->plan_each) expect(xfer_plan_release(p->plans[rank]) == XFER_OK); /* `in` goes */
  input_destroy(&in);
}

static void assert_same(held before, held after, const char *what)
{
  print_message("%s: bytes %zu -> %zu, files %zu -> %zu, threads %zu -> %zu, mappings %zu -> %zu\n",
                what, before.bytes, after.bytes, before.files, after.files, before.threads,
                after.threads, before.mappings, after.mappings);
  assert_in_range(after.bytes, 0, before.bytes + 4096); /* what libc keeps for a thread varies */
  assert_int_equal(after.files, before.files);
  assert_int_equal(after.threads, before.threads);
  assert_in_range(after.mappings, 0, before.mappings + N_OF_ALLOCATOR);
}

static void steps_twice(long n, bool plan_each, const char *what)
{
  play p = {.plan_each = plan_each, .end = n / 10};
  held before;

  make_comms(p.comms);
  run_ranks(N_RANKS, steps, &p);
  before = look();
  p.first = p.end;
  p.end = n;
  run_ranks(N_RANKS, steps, &p);
  assert_same(before, look(), what);
  for (int r = 0; r < N_RANKS; r++)
    xfer_plan_destroy(p.plans[r]);
  destroy_comms(p.comms);
  assert_all_as_expected();
}

static void test_f3_runs_do_not_grow(void **state)
{
  (void)state;
  steps_twice(times(N_RUNS), false, "runs");
}

static void test_f3_plans_do_not_grow(void **state)
{
  (void)state;
  steps_twice(times(N_PLANS), true, "plans");
}

static void test_f3_comms_do_not_grow(void **state)
{
  const long n = times(N_COMMS);
  held before = {0, 0, 0, 0};

  (void)state;
  for (long i = 0; i < n; i++) {
    play p = {.end = 1, .plan_each = true};

    if (i == n / 10) before = look();
    make_comms(p.comms);
    run_ranks(N_RANKS, steps, &p);
    destroy_comms(p.comms);
  }
  assert_same(before, look(), "comms");
  assert_all_as_expected();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_f3_runs_do_not_grow),
      cmocka_unit_test(test_f3_plans_do_not_grow),
      cmocka_unit_test(test_f3_comms_do_not_grow),
  };

  (void)mallopt(M_ARENA_MAX, 1); /* or only that of the main thread is counted */
  return cmocka_run_group_tests(tests, NULL, NULL);
}
