/*
 * random_cases boxes|exchanges --cases N --seed S [--first K] [--only K] [--threads T] [--corrupt
 * 1]
 *
 * Random cases with ranks that are threads. Prints the first case that is wrong and how.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "crew.h"
#include "random_case.h"

static struct {
  uint64_t cases, seed, first, threads, corrupt;
} set = {1000, 1, 0, 0, 0};
static case_kind kind;
static const char *kind_name;

static atomic_uint_fast64_t next_case, n_moved, n_refused, n_wrong;
static pthread_mutex_t print_lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct job {
  random_case c;
  xfer_comm *comms[ORC_MAX_RANKS];
  bool right[ORC_MAX_RANKS];
  char why[ORC_MAX_RANKS][500];
} job;

static void work(void *context, int rank)
{
  job *j = context;

  j->right[rank] = random_case_rank(&j->c, j->comms[rank], NULL, set.corrupt != 0, j->why[rank],
                                    sizeof j->why[rank]);
}

static void print_wrong(const job *j, const char *why)
{
  (void)pthread_mutex_lock(&print_lock);
  printf("%s FAILED: case %" PRIu64 ": %s\n", kind_name, j->c.number, why);
  random_case_print(stdout, &j->c);
  printf("  again: random_cases %s --seed %" PRIu64 " --only %" PRIu64 "\n", kind_name, j->c.seed,
         j->c.number);
  (void)fflush(stdout);
  (void)pthread_mutex_unlock(&print_lock);
}

static bool run_case(job *j, crew *c)
{
  const int n = j->c.n_ranks;
  bool right = true;

  if (!random_case_check(&j->c, j->why[0], sizeof j->why[0])) {
    print_wrong(j, j->why[0]);
    return false;
  }
  if (xfer_comm_create_local(j->comms, n) != XFER_OK) abort();
  if (!crew_run(c, n, work, j, 180)) {
    print_wrong(j, "hangs");
    _exit(1);
  }
  for (int r = 0; r < n; r++) {
    xfer_comm_destroy(j->comms[r]);
    if (!j->right[r] && right) print_wrong(j, j->why[r]);
    right = right && j->right[r];
  }
  if (right) (void)atomic_fetch_add(random_case_is_refused(&j->c) ? &n_refused : &n_moved, 1);
  return right;
}

static void *carry_some(void *arg)
{
  job *j = calloc(1, sizeof *j);
  crew *c = crew_create(ORC_MAX_RANKS);

  (void)arg;
  if (j == NULL || c == NULL) abort();
  j->c.kind = kind;
  for (;;) {
    const uint64_t k = atomic_fetch_add(&next_case, 1);

    if (k >= set.first + set.cases || (n_wrong > 0 && set.corrupt == 0)) break;
    if (!random_case_make(&j->c, set.seed, k, ORC_MAX_RANKS)) abort();
    if (!run_case(j, c)) (void)atomic_fetch_add(&n_wrong, 1);
  }
  crew_destroy(c);
  random_case_free(&j->c);
  free(j);
  return NULL;
}

static bool read_settings(int argc, char **argv)
{
  const case_setting known[] = {{"--cases", &set.cases},     {"--seed", &set.seed},
                                {"--first", &set.first},     {"--only", &set.first},
                                {"--threads", &set.threads}, {"--corrupt", &set.corrupt}};

  if (!random_case_settings(&kind, &set.cases, known, sizeof known / sizeof *known, argc, argv))
    return false;
  kind_name = argv[1];
  if (set.threads == 0) set.threads = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
  if (set.threads > 64) set.threads = 64;
  return true;
}

int main(int argc, char **argv)
{
  pthread_t threads[64];

  if (!read_settings(argc, argv)) return 2;
  atomic_store(&next_case, set.first);
  for (uint64_t i = 0; i < set.threads; i++)
    if (pthread_create(&threads[i], NULL, carry_some, NULL) != 0) abort();
  for (uint64_t i = 0; i < set.threads; i++)
    (void)pthread_join(threads[i], NULL);
  printf("%s %s: seed=%" PRIu64 " moved=%" PRIu64 " refused=%" PRIu64 " wrong=%" PRIu64 "\n",
         kind_name, n_wrong == 0 ? "ok" : "FAILED", set.seed, (uint64_t)n_moved,
         (uint64_t)n_refused, (uint64_t)n_wrong);
  return n_wrong == 0 ? 0 : 1;
}
