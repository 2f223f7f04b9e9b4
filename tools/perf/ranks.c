/* Processes that meet in shared memory. */
#include "ranks.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 64, SLOT_BYTES = 1 << 16, SPINS = 2000 };

struct perf_shared {
  atomic_int arrived;
  atomic_int phase;
  atomic_flag spoken;
  char slots[RANKS_MAX][SLOT_BYTES];
};

static int patience_s = 120;

void perf_ranks_patience(perf_ranks *ranks, int seconds)
{
  (void)ranks;
  patience_s = seconds;
}

static double now_s(void)
{
  struct timespec now;

  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int perf_ranks_barrier(perf_ranks *ranks)
{
  perf_shared *shared = ranks->shared;
  int phase = atomic_load(&shared->phase);
  double began = now_s();

  if (atomic_fetch_add(&shared->arrived, 1) == ranks->size - 1) {
    atomic_store(&shared->arrived, 0);
    atomic_store(&shared->phase, phase + 1);
    return 0;
  }
  for (int spins = 0; atomic_load(&shared->phase) == phase; spins++) {
    if (spins < SPINS) continue;
    (void)sched_yield();
    if (patience_s > 0 && now_s() - began > patience_s) return -1;
  }
  return 0;
}

int perf_ranks_all_gather(void *context, void *all, const void *mine, size_t n_bytes)
{
  perf_ranks *ranks = context;

  for (size_t at = 0; at < n_bytes; at += SLOT_BYTES) {
    size_t n = n_bytes - at < SLOT_BYTES ? n_bytes - at : SLOT_BYTES;
    memcpy(ranks->shared->slots[ranks->rank], (const char *)mine + at, n);
    if (perf_ranks_barrier(ranks) != 0) return -1;
    for (int r = 0; r < ranks->size; r++)
      memcpy((char *)all + (size_t)r * n_bytes + at, ranks->shared->slots[r], n);
    if (perf_ranks_barrier(ranks) != 0) return -1;
  }
  return 0;
}

bool perf_ranks_speak(const perf_ranks *ranks)
{
  return !atomic_flag_test_and_set(&ranks->shared->spoken);
}

/* ---- start -------------------------------------------------------------------------------- */

/* The largest exit status of the children. */
static int wait_for_all(const pid_t *children, int size, int may_die)
{
  int worst = 0;

  for (int i = 0; i < size; i++) {
    int status = 0;
    pid_t pid = 0;
    do {
      pid = waitpid(-1, &status, 0);
    } while (pid < 0 && errno == EINTR);
    int rank = 0;
    while (rank < size && children[rank] != pid)
      rank++;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && may_die) code = 0;
    if (WIFSIGNALED(status) && code != 0) /* else it has said why */
      fprintf(stderr, "rank %d was ended by signal %d\n", rank, WTERMSIG(status));
    if (code > worst) worst = code;
  }
  return worst;
}

/* A rank ends when the process that waits for it does, however that was. */
static void end_with(pid_t parent)
{
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(EXIT_FAILURE); /* it was before */
}

void perf_ranks_start(perf_ranks *ranks, int size, int may_die)
{
  const pid_t parent = getpid();
  pid_t children[RANKS_MAX];

  if (size < 1 || size > RANKS_MAX) {
    fprintf(stderr, "%d ranks; 1 to %d\n", size, RANKS_MAX);
    exit(2);
  }
  ranks->size = size;
  ranks->shared =
      mmap(NULL, sizeof *ranks->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (ranks->shared == MAP_FAILED) {
    perror("shared memory");
    exit(EXIT_FAILURE);
  }
  (void)fflush(NULL);
  for (int r = 0; r < size; r++) {
    children[r] = fork();
    if (children[r] < 0) {
      perror("fork");
      exit(EXIT_FAILURE);
    }
    if (children[r] == 0) {
      end_with(parent);
      ranks->rank = r;
      return;
    }
  }
  exit(wait_for_all(children, size, may_die));
}
