/*
 * exchanges --cases N --seed S [--only K] [--comm 0|1|2] [--islands 1]
 *
 * Random exchanges on the simulated machine, every byte compared, every operation watched. --comm
 * by the numbers of comm_kind. The last line is `exchanges ok: cases=N wrong=0`.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "exchange_case.h"
#include "ranks.h"

enum { PATIENCE_S = 120 };

static uint64_t n_cases = 100, seed = 1, first, comm, islands;

typedef struct job {
  ex_case c;
  xfer_comm *comms[EX_RANKS];
  bool right[EX_RANKS];
  char why[EX_RANKS][500];
} job;

static void work(void *context, int rank)
{
  job *j = context;

  j->why[rank][0] = '\0';
  j->right[rank] =
      ex_case_rank(&j->c, j->comms[rank], &sim_device, false, j->why[rank], sizeof j->why[rank]);
  ranks_barrier(); /* a comm of threads of one process goes when all are done with it */
  xfer_comm_destroy(j->comms[rank]);
}

static bool run_case(job *j, uint64_t number)
{
  const char *why = "";
  char violation[400] = "";

  ex_case_make(&j->c, seed, number, EX_RANKS);
  if (comm == COMM_GATHER && j->c.options.lane == XFER_LANE_PACKED) j->c.options.lane = 0;
  device_case(seed, number);
  if (ranks_make_comms(j->comms, j->c.n_ranks, (comm_kind)comm, SIM_DEVICES) != XFER_OK) {
    printf("case %" PRIu64 ": %s\n", number, xfer_last_error());
    return false;
  }
  if (!ranks_run(j->c.n_ranks, SIM_DEVICES, work, j, PATIENCE_S) ||
      !device_case_end(violation, sizeof violation)) {
    printf("case %" PRIu64 " hangs\nexchanges FAILED\n", number);
    sim_dump();
    (void)fflush(stdout);
    _exit(1);
  }
  for (int r = 0; r < j->c.n_ranks && why[0] == '\0'; r++)
    if (!j->right[r]) why = j->why[r];
  if (why[0] == '\0') why = violation;
  if (why[0] != '\0') printf("case %" PRIu64 ": %s\n", number, why);
  return why[0] == '\0';
}

int main(int argc, char **argv)
{
  const struct {
    const char *name;
    uint64_t *value;
  } known[] = {{"--cases", &n_cases},
               {"--seed", &seed},
               {"--only", &first},
               {"--comm", &comm},
               {"--islands", &islands}};
  job *j = calloc(1, sizeof *j);
  uint64_t wrong = 0;

  for (int i = 1; i + 1 < argc; i += 2) {
    size_t k = 0;

    while (k < sizeof known / sizeof *known && strcmp(known[k].name, argv[i]) != 0)
      k++;
    if (k == sizeof known / sizeof *known) return 2;
    *known[k].value = strtoull(argv[i + 1], NULL, 10);
    if (strcmp(argv[i], "--only") == 0) n_cases = 1;
  }
  if (j == NULL) abort();
  for (uint64_t k = first; k < first + n_cases; k++) {
    if (k == first || k % CASES_PER_TOPOLOGY == 0)
      device_topology(seed, k / CASES_PER_TOPOLOGY, islands != 0, false);
    wrong += !run_case(j, k);
  }
  free(j);
  printf("exchanges %s: cases=%" PRIu64 " wrong=%" PRIu64 "\n", wrong == 0 ? "ok" : "FAILED",
         n_cases, wrong);
  return wrong == 0 ? 0 : 1;
}
