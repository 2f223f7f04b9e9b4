/*
 * random_problems --cases N --seed S [--first K] [--only K] [--threads T] [--window BYTES]
 * [--corrupt]
 *                 [--keep-going] [--verbose]
 * random_problems --problem 'LINE' [...]
 *
 * Redistributes N random problems with real bytes and compares everything with the oracle. Problem
 * K of a seed is always the same one. T problems are carried out at once (default: one per
 * processor), each by up to 64 threads. The last line is `random ok: cases=N wrong=0` or `random
 * FAILED: ...`.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "carry.h"

typedef struct settings {
  uint64_t cases, seed, first, threads, window;
  bool has_window, corrupt, keep_going, verbose;
  const char *problem;
} settings;

static settings set = {.cases = 1000, .seed = 1};
static _Atomic uint64_t next_case;
static _Atomic uint64_t n_right, n_refused, n_wrong;
static _Atomic bool stop;
static pthread_mutex_t print_lock = PTHREAD_MUTEX_INITIALIZER;

static void print_wrong(const problem *p, const char *why)
{
  (void)pthread_mutex_lock(&print_lock);
  printf("case %" PRIu64 " is wrong: %s\n", p->number, why);
  problem_print(stdout, p);
  if (set.problem == NULL)
    printf("  again: random_problems --seed %" PRIu64 " --only %" PRIu64 "\n", p->seed, p->number);
  (void)fflush(stdout);
  (void)pthread_mutex_unlock(&print_lock);
}

static void print_case(const problem *p)
{
  (void)pthread_mutex_lock(&print_lock);
  printf("case %" PRIu64 "\n", p->number);
  problem_print(stdout, p);
  (void)fflush(stdout);
  (void)pthread_mutex_unlock(&print_lock);
}

static void *carry_some(void *arg)
{
  problem p = {0};
  carrier *c = carrier_create();
  (void)arg;
  if (c == NULL) abort();
  if (set.corrupt) carrier_corrupt(c);

  while (!atomic_load(&stop)) {
    uint64_t k = atomic_fetch_add(&next_case, 1);
    char why[800];
    if (k >= set.first + set.cases) break;
    if (set.problem == NULL) {
      problem_random(&p, set.seed, k);
    } else {
      if (!problem_read(&p, set.problem)) exit(2);
      p.number = k;
      p.options.lane = (uint32_t)k % 4;
      p.queries = p.simulate = true;
    }
    if (set.has_window) {
      p.null_options = false;
      p.options.window_bytes = set.window;
    }
    if (set.verbose) print_case(&p);
    verdict v = carrier_run(c, &p, why, sizeof why);
    if (v == RIGHT) (void)atomic_fetch_add(&n_right, 1);
    if (v == REFUSED) (void)atomic_fetch_add(&n_refused, 1);
    if (v == RIGHT || v == REFUSED) continue;
    (void)atomic_fetch_add(&n_wrong, 1);
    print_wrong(&p, why);
    if (v == HANGS) {
      printf("random FAILED: case %" PRIu64 " hangs\n", k);
      (void)fflush(stdout);
      _exit(1); /* its threads cannot be joined */
    }
    if (!set.keep_going) atomic_store(&stop, true);
  }
  carrier_destroy(c);
  problem_free(&p);
  return NULL;
}

static bool read_settings(int argc, char **argv)
{
  struct {
    const char *name;
    uint64_t *value;
    bool *flag;
  } const known[] = {
      {"--cases", &set.cases, NULL},     {"--seed", &set.seed, NULL},
      {"--first", &set.first, NULL},     {"--only", &set.first, NULL},
      {"--threads", &set.threads, NULL}, {"--window", &set.window, &set.has_window},
      {"--corrupt", NULL, &set.corrupt}, {"--keep-going", NULL, &set.keep_going},
      {"--verbose", NULL, &set.verbose},
  };
  for (int i = 1; i < argc; i++) {
    size_t k = 0;
    while (k < sizeof known / sizeof known[0] && strcmp(known[k].name, argv[i]) != 0)
      k++;
    if (strcmp(argv[i], "--problem") == 0 && i + 1 < argc) {
      set.problem = argv[++i];
      set.cases = 4;
      continue;
    }
    if (k == sizeof known / sizeof known[0]) return false;
    if (known[k].flag != NULL) *known[k].flag = true;
    if (known[k].value == NULL) continue;
    char *end = NULL;
    if (i + 1 == argc) return false;
    *known[k].value = strtoull(argv[i + 1], &end, 10);
    if (*argv[++i] == '\0' || *end != '\0') return false;
    if (strcmp(known[k].name, "--only") == 0) set.cases = 1;
  }
  return true;
}

int main(int argc, char **argv)
{
  pthread_t threads[64];
  struct timespec begin, end;
  if (!read_settings(argc, argv)) {
    fprintf(stderr, "usage: random_problems --cases N --seed S [--first K] [--only K] [--threads "
                    "T] [--window BYTES]\n"
                    "                       [--corrupt] [--keep-going] [--verbose]\n");
    return 2;
  }
  uint64_t n_threads = set.threads != 0 ? set.threads : (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
  if (n_threads > 64) n_threads = 64;
  if (n_threads > set.cases) n_threads = set.cases > 0 ? set.cases : 1;
  atomic_store(&next_case, set.first);

  (void)clock_gettime(CLOCK_MONOTONIC, &begin);
  for (uint64_t i = 0; i < n_threads; i++) {
    if (pthread_create(&threads[i], NULL, carry_some, NULL) != 0) abort();
  }
  for (uint64_t i = 0; i < n_threads; i++)
    (void)pthread_join(threads[i], NULL);
  (void)clock_gettime(CLOCK_MONOTONIC, &end);

  uint64_t n = n_right + n_refused + n_wrong;
  printf("seed=%" PRIu64 " moved=%" PRIu64 " refused=%" PRIu64 " seconds=%.1f\n", set.seed, n_right,
         n_refused,
         (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec));
  if (n_wrong == 0) {
    printf("random ok: cases=%" PRIu64 " wrong=0\n", n);
    return 0;
  }
  printf("random FAILED: cases=%" PRIu64 " wrong=%" PRIu64 "\n", n, n_wrong);
  return 1;
}
