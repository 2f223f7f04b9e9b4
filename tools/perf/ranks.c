/* Processes that meet in shared memory. */
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 64, SLOT_BYTES = 1 << 16, NAME_BYTES = 96, SPINS = 2000 };

struct perf_shared {
  atomic_int arrived;
  atomic_int phase;
  atomic_int attached;
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

/* The first of two environment variables that is set, or NULL. */
static const char *either(const char *a, const char *b)
{
  const char *value = getenv(a);

  return value != NULL ? value : getenv(b);
}

/* mpirun's processes find each other by the name of their job; the last to attach removes the name.
 */
static int join_mpirun(perf_ranks *ranks, int size)
{
  const char *rank = either("OMPI_COMM_WORLD_RANK", "PMIX_RANK");
  const char *world = getenv("OMPI_COMM_WORLD_SIZE");
  const char *job = either("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid");
  char name[NAME_BYTES];

  if (rank == NULL || world == NULL || job == NULL) return 0;
  ranks->rank = (int)strtol(rank, NULL, 10);
  ranks->size = (int)strtol(world, NULL, 10);
  if (ranks->size < 1 || ranks->size > RANKS_MAX || (size != 0 && size != ranks->size)) {
    fprintf(stderr, "%d ranks asked for, %d started by mpirun, at most %d\n", size, ranks->size,
            RANKS_MAX);
    exit(2);
  }
  (void)snprintf(name, sizeof name, "/xfer-%u-%.60s", (unsigned)getuid(), job);
  for (char *c = name + 1; *c != '\0'; c++) {
    if (*c == '/' || *c == '@') *c = '-';
  }
  int file = shm_open(name, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, (off_t)sizeof *ranks->shared) != 0) {
    perror("shared memory");
    exit(EXIT_FAILURE);
  }
  ranks->shared = mmap(NULL, sizeof *ranks->shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  (void)close(file);
  if (ranks->shared == MAP_FAILED) {
    perror("shared memory");
    exit(EXIT_FAILURE);
  }
  if (atomic_fetch_add(&ranks->shared->attached, 1) == ranks->size - 1) (void)shm_unlink(name);
  return 1;
}

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

int perf_ranks_start(perf_ranks *ranks, int size, int may_die)
{
  pid_t children[RANKS_MAX];

  if (join_mpirun(ranks, size)) return 0;
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
      ranks->rank = r;
      return 0;
    }
  }
  exit(wait_for_all(children, size, may_die));
}
