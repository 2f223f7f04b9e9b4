#include "case_runner.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct case_settings set = {.slack = 1};

static const case_program *running;
static uint64_t n_cases = 100;
static uint64_t first_case;
static uint64_t n_in_process;
static uint64_t *reached; /* the case that a process is at */

void case_runner_world(uint64_t number, int n_ranks, comm_kind kind, sim_config config,
                       xfer_comm *(*comms)[WORLD_RANKS], int n_comms)
{
  world_make(n_ranks, kind, config);
  sim_seed(world_seed() * 1000003 + number);
  memcpy(comms[0], w.comms, sizeof w.comms);
  for (int c = 1; c < n_comms; c++) {
    OK(ranks_make_comms(w.comms, n_ranks, kind, n_ranks));
    memcpy(comms[c], w.comms, sizeof w.comms);
  }
}

static void some_cases(void)
{
  for (uint64_t k = *reached, end = k + n_in_process; k < end; k++) {
    *reached = k;
    world_case(k);
    running->one_case(k);
  }
  running->report();
}

/* Cases from *reached up to `end`. Its exit status. */
static int in_process(uint64_t end)
{
  const world_test test = {running->name, some_cases};
  int status = 0;

  (void)fflush(NULL);
  n_in_process = end - *reached;
  const pid_t child = fork();
  if (child == 0) world_run_one(&test);
  if (child < 0 || waitpid(child, &status, 0) != child) abort();
  if (WIFSIGNALED(status))
    printf("case %" PRIu64 " ends by signal %d\n", *reached, WTERMSIG(status));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* Cases [first, first + n); false: something is wrong. */
static bool all_right(uint64_t first, uint64_t n)
{
  int status;

  *reached = first;
  set.slack = 1;
  status = in_process(first + n);
  while (status == WORLD_TOO_SLOW && set.slack < running->slack_most) {
    set.slack *= 2;
    printf("too slow for its deadlines: again from case %" PRIu64 " with slack=%d\n", *reached,
           set.slack);
    status = in_process(first + n);
  }
  return status == 0;
}

static int usage(void)
{
  fprintf(stderr, "usage: %s --cases N --seed S [--first K] [--only K] [--calm] [--verbose]%s%s\n",
          running->name, running->option == NULL ? "" : " ",
          running->option == NULL ? "" : running->option);
  return 2;
}

/* False: it is none, or its value is missing. */
static bool take_option(const char *name, const char *value)
{
  if (value == NULL) return false;
  if (running->option != NULL && strcmp(name, running->option) == 0)
    running->set_option(value);
  else if (strcmp(name, "--cases") == 0)
    n_cases = strtoull(value, NULL, 10);
  else if (strcmp(name, "--seed") == 0)
    world_set_seed(strtoull(value, NULL, 10));
  else if (strcmp(name, "--first") == 0 || strcmp(name, "--only") == 0)
    first_case = strtoull(value, NULL, 10);
  else
    return false;
  return true;
}

int case_runner_main(int argc, char **argv, const case_program *program)
{
  uint64_t n_wrong = 0;
  bool only = false;

  running = program;
  for (int i = 1; i < argc; i++) {
    only = only || strcmp(argv[i], "--only") == 0;
    if (strcmp(argv[i], "--verbose") == 0)
      set.verbose = true;
    else if (strcmp(argv[i], "--calm") == 0)
      set.calm = true;
    else if (take_option(argv[i], i + 1 < argc ? argv[i + 1] : NULL))
      i++;
    else
      return usage();
  }
  if (only) n_cases = 1;
  reached = mmap(NULL, sizeof *reached, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (reached == MAP_FAILED) abort();
  for (uint64_t k = 0; k < n_cases; k += program->n_at_once) {
    const uint64_t n = n_cases - k < program->n_at_once ? n_cases - k : program->n_at_once;
    if (!all_right(first_case + k, n)) n_wrong++;
  }
  printf("%s %s: cases=%" PRIu64 " wrong=%" PRIu64 "\n", program->name,
         n_wrong == 0 ? "ok" : "FAILED", n_cases, n_wrong);
  return n_wrong == 0 ? 0 : 1;
}
