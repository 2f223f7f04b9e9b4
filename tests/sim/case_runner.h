/*
 * Programs of random cases in worlds (world.h), some to a process, since each process has its own
 * machine and one that finds something ends there:
 *
 *   NAME --cases N --seed S [--first K] [--only K] [--calm] [--verbose]
 *
 * The last line is `NAME ok: cases=N wrong=0`.
 */
#ifndef XFER_SIM_CASE_RUNNER_H
#define XFER_SIM_CASE_RUNNER_H

#include "world.h"

typedef struct case_program {
  const char *name;
  uint64_t n_at_once; /* cases of a process */
  int slack_most;     /* how often as long times may be for a host that is too slow for them */
  void (*one_case)(uint64_t number);
  void (*report)(void); /* at the end of a process */
  /* An option of its own, with a value; NULL: it has none. */
  const char *option;
  void (*set_option)(const char *value);
} case_program;

extern struct case_settings {
  bool calm;    /* nothing goes wrong */
  bool verbose; /* each case says what it is */
  int slack;    /* all times are so many times as long */
} set;

int case_runner_main(int argc, char **argv, const case_program *program);
/* The world of a case, and the comms of its ranks: comms[0] to comms[n_comms - 1]. */
void case_runner_world(uint64_t number, int n_ranks, comm_kind kind, sim_config config,
                       xfer_comm *(*comms)[WORLD_RANKS], int n_comms);

#endif
