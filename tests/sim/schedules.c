/*
 * schedules --cases N --seed S [--first K] [--only K] [--comm nccl|gather|borrowed] [--ranks MOST]
 *           [--islands] [--deaf] [--verbose]
 *
 * Carries N random problems out on the simulated machine, every byte compared with the oracle of
 * tests/property, every operation watched by guards: memory of a rank may be touched by others only
 * between its xfer_plan_run() and the end of its xfer_plan_wait(), in the same run. Case K of a
 * seed has always the same problem and the same choices of the machine's; the order in which
 * threads come is the host's. The last line is `schedules ok: cases=N wrong=0 ...`.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"
#include "ranks.h"

enum { PROBLEMS_PER_CASE = 64 };

static struct {
  uint64_t cases, seed, first, ranks;
  comm_kind comm;
  bool islands, deaf, verbose;
} set = {.cases = 1000, .seed = 1, .ranks = 8};

/* ---- cases -------------------------------------------------------------------------------- */

static xfer_status make_comms(xfer_comm **comms, int n_ranks)
{
  return ranks_make_comms(comms, n_ranks, set.comm, ORC_MAX_RANKS);
}

/* Case K is the first problem from 64 K on with few enough ranks. */
static void problem_of(problem *p, uint64_t number)
{
  uint64_t at = number * PROBLEMS_PER_CASE;

  do {
    problem_random(p, set.seed, at++);
  } while (p->n_ranks > (int)set.ranks);
  p->number = number;
  if (set.comm != COMM_GATHER) return;
  p->options.lane = number % 2 == 0 ? XFER_LANE_AUTO : XFER_LANE_DIRECT;
}

static verdict carry_one(carrier *c, problem *p, uint64_t number, char *why, size_t n_bytes)
{
  char violation[400];

  problem_of(p, number);
  if (set.verbose) {
    printf("case %" PRIu64 "\n", number);
    problem_print(stdout, p);
    (void)fflush(stdout);
  }
  device_case(set.seed, number);
  verdict v = carrier_run(c, p, why, n_bytes);
  if (v == HANGS) sim_dump();
  if (v == HANGS) return v;
  if (!device_case_end(violation, sizeof violation)) {
    (void)snprintf(why, n_bytes, "operations are left on streams");
    return HANGS;
  }
  if (violation[0] == '\0' || v == WRONG) return v;
  (void)snprintf(why, n_bytes, "%s", violation);
  return WRONG;
}

static bool read_number(const char *text, uint64_t *value)
{
  char *end_of_text = NULL;

  *value = strtoull(text, &end_of_text, 10);
  return *text != '\0' && *end_of_text == '\0';
}

static bool read_settings(int argc, char **argv)
{
  static const char *const kinds[] = {"nccl", "borrowed", "gather"};
  struct {
    const char *name;
    uint64_t *value;
    bool *flag;
  } const known[] = {{"--cases", &set.cases, NULL}, {"--seed", &set.seed, NULL},
                     {"--first", &set.first, NULL}, {"--only", &set.first, NULL},
                     {"--ranks", &set.ranks, NULL}, {"--islands", NULL, &set.islands},
                     {"--deaf", NULL, &set.deaf},   {"--verbose", NULL, &set.verbose}};
  for (int i = 1; i < argc; i++) {
    size_t k = 0;
    while (k < sizeof known / sizeof known[0] && strcmp(known[k].name, argv[i]) != 0)
      k++;
    if (strcmp(argv[i], "--comm") == 0 && i + 1 < argc) {
      int kind = 0;
      i++;
      while (kind < 3 && strcmp(kinds[kind], argv[i]) != 0)
        kind++;
      if (kind == 3) return false;
      set.comm = (comm_kind)kind;
      continue;
    }
    if (k == sizeof known / sizeof known[0]) return false;
    if (known[k].flag != NULL) *known[k].flag = true;
    if (known[k].value == NULL) continue;
    if (i + 1 == argc || !read_number(argv[++i], known[k].value)) return false;
    if (strcmp(known[k].name, "--only") == 0) set.cases = 1;
  }
  return true;
}

static carrier *carrier_new(void)
{
  carrier *c = carrier_create();

  if (c == NULL) abort();
  carrier_make_comms(c, make_comms);
  carrier_use_device(c, &sim_device);
  return c;
}

int main(int argc, char **argv)
{
  problem p = {0};
  uint64_t n[3] = {0}; /* by verdict */
  carrier *c = NULL;
  char why[1000];
  const time_t began = time(NULL);

  if (!read_settings(argc, argv)) {
    fprintf(stderr, "usage: schedules --cases N --seed S [--first K] [--only K] [--comm "
                    "nccl|borrowed|gather]\n                 [--ranks MOST] [--islands] [--deaf] "
                    "[--verbose]\n");
    return 2;
  }
  for (uint64_t k = set.first; k < set.first + set.cases; k++) {
    if (c == NULL || k % CASES_PER_TOPOLOGY == 0) {
      carrier_destroy(c);
      device_topology(set.seed, k / CASES_PER_TOPOLOGY, set.islands, set.deaf);
      c = carrier_new();
    }
    const verdict v = carry_one(c, &p, k, why, sizeof why);
    if (v != HANGS) n[v]++;
    if (v == RIGHT || v == REFUSED) continue;
    printf("case %" PRIu64 " is wrong: %s\n", k, why);
    problem_print(stdout, &p);
    printf("  again: schedules --seed %" PRIu64 " --only %" PRIu64 "\n", set.seed, k);
    (void)fflush(stdout);
    if (v == HANGS) _exit(1); /* its threads cannot be joined */
  }
  carrier_destroy(c);
  problem_free(&p);
  const sim_counts counts = sim_count();
  printf("seed=%" PRIu64 " moved=%" PRIu64 " refused=%" PRIu64 " steps=%" PRIu64 " calls=%" PRIu64
         " full=%" PRIu64 " left=%" PRIu64 "+%" PRIu64 " seconds=%lld\n",
         set.seed, n[RIGHT], n[REFUSED], counts.steps, counts.calls, counts.full, counts.bytes,
         counts.pinned, (long long)(time(NULL) - began));
  printf("schedules %s: cases=%" PRIu64 " wrong=%" PRIu64 "\n", n[WRONG] == 0 ? "ok" : "FAILED",
         set.cases, n[WRONG]);
  return n[WRONG] == 0 ? 0 : 1;
}
