/*
 * Random exchanges, ranks being threads: random_exchanges --cases N --seed S [--only K]
 * [--corrupt 1]. Prints the first case that is wrong and how.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crew.h"
#include "exchange_case.h"

typedef struct job {
  ex_case c;
  xfer_comm *comms[EX_RANKS];
  bool corrupt;
  bool right[EX_RANKS];
  char why[EX_RANKS][500];
} job;

static void work(void *context, int rank)
{
  job *j = context;

  j->why[rank][0] = '\0';
  j->right[rank] =
      ex_case_rank(&j->c, j->comms[rank], NULL, j->corrupt, j->why[rank], sizeof j->why[rank]);
}

static bool run_case(job *j, crew *c)
{
  bool right = true;

  if (xfer_comm_create_local(j->comms, j->c.n_ranks) != XFER_OK) abort();
  if (!crew_run(c, j->c.n_ranks, work, j, 120)) {
    printf("exchanges FAILED: case %" PRIu64 " hangs\n", j->c.number);
    exit(1);
  }
  for (int r = 0; r < j->c.n_ranks; r++) {
    xfer_comm_destroy(j->comms[r]);
    if (!j->right[r] && right)
      printf("case %" PRIu64 ", %d ranks, %d operations: %s\n", j->c.number, j->c.n_ranks, j->c.n,
             j->why[r]);
    right = right && j->right[r];
  }
  return right;
}

int main(int argc, char **argv)
{
  uint64_t cases = 1000, seed = 1, first = 0, corrupt = 0, wrong = 0;
  const struct {
    const char *name;
    uint64_t *value;
  } known[] = {{"--cases", &cases}, {"--seed", &seed}, {"--only", &first}, {"--corrupt", &corrupt}};
  job *j = calloc(1, sizeof *j);
  crew *c = crew_create(EX_RANKS);

  for (int i = 1; i + 1 < argc; i += 2) {
    size_t k = 0;

    while (k < sizeof known / sizeof *known && strcmp(known[k].name, argv[i]) != 0)
      k++;
    if (k == sizeof known / sizeof *known) return 2;
    *known[k].value = strtoull(argv[i + 1], NULL, 10);
    if (strcmp(argv[i], "--only") == 0) cases = 1;
  }
  if (j == NULL || c == NULL) abort();
  j->corrupt = corrupt != 0;
  for (uint64_t k = first; k < first + cases && (wrong == 0 || j->corrupt); k++) {
    ex_case_make(&j->c, seed, k, EX_RANKS);
    wrong += !run_case(j, c);
  }
  printf("exchanges %s: seed=%" PRIu64 " cases=%" PRIu64 " wrong=%" PRIu64 "\n",
         wrong == 0 ? "ok" : "FAILED", seed, cases, wrong);
  crew_destroy(c);
  free(j);
  return wrong == 0 ? 0 : 1;
}
