/*
 * cases_on_devices boxes|exchanges --cases N --seed S [--first K] [--only K] [--ranks MOST]
 *                  [--comm 0|1|2] [--islands 1] [--deaf 1]
 *
 * Random cases on the simulated machine, every byte compared, every operation watched. --comm by
 * the numbers of comm_kind. Cases that need more ranks stand back; the last line is
 * `boxes ok: cases=N moved=M refused=R wrong=0`.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cases.h"
#include "random_case.h"
#include "ranks.h"

enum { PATIENCE_S = 120 };

static uint64_t n_cases = 100, seed = 1, first, comm, islands, deaf, most_ranks = 8;

typedef struct job {
  random_case c;
  xfer_comm *comms[ORC_MAX_RANKS];
  bool right[ORC_MAX_RANKS];
  char why[ORC_MAX_RANKS][500];
} job;

static void work(void *context, int rank)
{
  job *j = context;

  j->right[rank] = random_case_rank(&j->c, j->comms[rank], &sim_device, false, j->why[rank],
                                    sizeof j->why[rank]);
  ranks_barrier(); /* a comm of threads of one process goes when all are done with it */
  xfer_comm_destroy(j->comms[rank]);
}

static bool run_case(job *j)
{
  const uint64_t number = j->c.number;
  const char *why = "";
  char violation[400] = "";

  if (comm == COMM_GATHER) random_case_leave_rounds(&j->c);
  device_case(seed, number);
  if (ranks_make_comms(j->comms, j->c.n_ranks, (comm_kind)comm, SIM_DEVICES) != XFER_OK) {
    printf("case %" PRIu64 ": %s\n", number, xfer_last_error());
    return false;
  }
  if (!ranks_run(j->c.n_ranks, SIM_DEVICES, work, j, PATIENCE_S) ||
      !device_case_end(violation, sizeof violation)) {
    printf("case %" PRIu64 " hangs\ncases FAILED\n", number);
    random_case_print(stdout, &j->c);
    sim_dump();
    (void)fflush(stdout);
    _exit(1);
  }
  for (int r = 0; r < j->c.n_ranks && why[0] == '\0'; r++)
    if (!j->right[r]) why = j->why[r];
  if (why[0] == '\0') why = violation;
  if (why[0] == '\0') return true;
  printf("case %" PRIu64 ": %s\n", number, why);
  random_case_print(stdout, &j->c);
  return false;
}

static bool read_settings(int argc, char **argv, case_kind *kind)
{
  const case_setting known[] = {{"--cases", &n_cases}, {"--seed", &seed},
                                {"--first", &first},   {"--only", &first},
                                {"--comm", &comm},     {"--islands", &islands},
                                {"--deaf", &deaf},     {"--ranks", &most_ranks}};

  return random_case_settings(kind, &n_cases, known, sizeof known / sizeof *known, argc, argv) &&
         most_ranks <= SIM_DEVICES;
}

int main(int argc, char **argv)
{
  job *j = calloc(1, sizeof *j);
  uint64_t n[2] = {0, 0}; /* moved, refused */
  uint64_t wrong = 0;

  if (j == NULL) abort();
  if (!read_settings(argc, argv, &j->c.kind)) return 2;
  for (uint64_t k = first; k < first + n_cases; k++) {
    if (k == first || k % CASES_PER_TOPOLOGY == 0)
      device_topology(seed, k / CASES_PER_TOPOLOGY, islands != 0, deaf != 0);
    if (!random_case_make(&j->c, seed, k, (int)most_ranks)) continue;
    if (run_case(j))
      n[random_case_is_refused(&j->c)]++;
    else
      wrong++;
  }
  printf("%s %s: cases=%" PRIu64 " moved=%" PRIu64 " refused=%" PRIu64 " wrong=%" PRIu64 "\n",
         argv[1], wrong == 0 ? "ok" : "FAILED", n_cases, n[0], n[1], wrong);
  random_case_free(&j->c);
  free(j);
  return wrong == 0 ? 0 : 1;
}
