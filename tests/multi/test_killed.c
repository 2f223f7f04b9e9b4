/* A process that is killed while others wait for it: they end with an error that names it, long
 * before any deadline, and nothing of the shared memory stays with them.
 *
 *   test_killed WHEN
 *
 * Of a staged plan destinations are whole, then: those of the run before.
 *
 * Rank 1 is killed at WHEN: a moment, or kill-N, in its N-th call of the transport; or at stop-N is
 * stopped there for longer than anybody waits. The others make a new comm without it and move
 * something. Started by a launcher that lets the others live; since it may not tell how they ended,
 * each that found all as it should be says so. (All calls in turn: tests/multi/kill_all.sh.)
 */
#include "clock.h"
#include "object.h"
#include "xfer/mpi.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KILLED = 1, SIDE = 2048, SLOTS_BEFORE = 7 };
enum { SOON_MS = 120000 };                  /* a loaded host is slow; plans wait ten minutes */
enum { STOPPED_S = 8, DEADLINE_MS = 2000 }; /* of one that is stopped */

static const char *const moments[] = {"create",     "commit",      "first-slot", "later-slot",
                                      "before-run", "before-wait", "second-run"};
enum { CREATE, COMMIT, FIRST_SLOT, LATER_SLOT, BEFORE_RUN, BEFORE_WAIT, SECOND_RUN, N_MOMENTS };

static int moment = N_MOMENTS;
static int world_rank;
static const xfi_comm_ops *mpi_ops;
static xfi_comm_ops comm_ops;
static int n_gathers;
static int n_slots;
static int n_floats;
static xfi_carry_fn *carry;

static long at_call = -1; /* of the transport; -1: at a moment */
static long n_calls;
static bool is_stopped;  /* not killed */
static bool by_messages; /* no rank shares memory with another: a death is found by the deadline */

/* Another process lets it go on. */
static void stop_for_a_while(void)
{
  const pid_t self = getpid();

  if (fork() == 0) {
    (void)sleep(STOPPED_S);
    (void)kill(self, SIGCONT);
    _exit(0);
  }
  (void)raise(SIGSTOP);
}

static void die_at(int now)
{
  if (world_rank == KILLED && now == moment) (void)raise(SIGKILL);
}

static void come_to_a_call(void)
{
  if (world_rank != KILLED || n_calls++ != at_call) return;
  if (is_stopped)
    stop_for_a_while();
  else
    (void)raise(SIGKILL);
}

static xfer_status gather_or_die(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                                 xfi_deadline deadline)
{
  come_to_a_call();
  if (n_gathers++ == 1) die_at(CREATE); /* the others are in the second one then */
  if (n_gathers >= 2) die_at(COMMIT);
  return mpi_ops->all_gather(comm, all, mine, n_bytes, deadline);
}

static void carry_or_die(void *context, size_t channel, char *slot, size_t n_bytes)
{
  die_at(FIRST_SLOT);
  if (n_slots++ == SLOTS_BEFORE) die_at(LATER_SLOT);
  carry(context, channel, slot, n_bytes);
}

static xfer_status stream_or_die(xfi_comm *comm, const xfi_channel_set *all, xfi_deadline deadline)
{
  xfi_channel_set dying = *all;

  come_to_a_call();
  carry = all->carry;
  dying.carry = carry_or_die;
  return mpi_ops->carry_channels(comm, &dying, deadline);
}

static xfer_status round_or_die(xfi_comm *comm, const xfi_messages *messages, xfer_stream stream,
                                xfi_deadline deadline)
{
  come_to_a_call();
  return mpi_ops->round(comm, messages, stream, deadline);
}

static bool shares_none(const xfi_comm *comm, int peer)
{
  (void)comm;
  (void)peer;
  return false;
}

static xfer_comm *make_comm(void)
{
  xfer_comm *comm = NULL;

  if (xfer_comm_create_mpi(&comm, MPI_COMM_WORLD) != XFER_OK) _exit(1);
  mpi_ops = comm->transport->ops;
  comm_ops = *mpi_ops;
  comm_ops.all_gather = gather_or_die;
  comm_ops.round = round_or_die;
  comm_ops.carry_channels = stream_or_die;
  if (by_messages) comm_ops.shares = shares_none;
  comm->transport->ops = &comm_ops;
  return comm;
}

enum { N_FLOATS = SIDE * SIDE };

static bool is_staged(void)
{
  return at_call >= 0 || moment % 2 == 0;
}

static void fill(float *floats, float value)
{
  for (size_t i = 0; i < N_FLOATS; i++)
    floats[i] = value;
}

/* What stands in all of them where all are of one run. */
static bool is_whole(const float *floats, xfer_status st)
{
  const float wanted = st == XFER_OK ? 2 : moment == SECOND_RUN ? 1 : floats[0];

  for (size_t i = 0; i < (size_t)n_floats; i++)
    if (floats[i] != wanted) return false;
  return moment == N_MOMENTS || wanted == (moment == SECOND_RUN);
}

/* Those that are left, in a comm of their own, give each other a number each. */
static bool go_on(MPI_Comm others, int n)
{
  xfer_comm *comm = NULL;
  xfer_layout *layouts[2] = {NULL, NULL};
  char problem[64];
  int32_t all[16] = {0};

  (void)snprintf(problem, sizeof problem, "i32[%d] (%d):S0 -> (%d):R", n, n, n);
  bool right = xfer_comm_create_mpi(&comm, others) == XFER_OK &&
               xfer_problem_parse(&layouts[0], &layouts[1], problem) == XFER_OK;
  const int32_t mine = right ? xfer_comm_rank(comm) + 10 : 0;
  const xfer_view src = xfer_view_dense(&mine);
  const xfer_view dst = xfer_view_dense(all);

  right = right && xfer_redistribute(comm, layouts[0], &src, layouts[1], &dst, NULL) == XFER_OK;
  for (int r = 0; r < n; r++)
    right = right && all[r] == r + 10;
  xfer_layout_destroy(layouts[0]);
  xfer_layout_destroy(layouts[1]);
  xfer_comm_destroy(comm);
  return right;
}

/* What each rank does, up to the first call that fails. */
static xfer_status play(xfer_comm *comm, xfer_plan **plan, xfer_layout *const *layouts,
                        char *memory)
{
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  const xfer_tensor tensor = {"matrix", layouts[0], layouts[1], {0}};
  const xfer_view src = xfer_view_dense(memory);
  const xfer_view dst = xfer_view_dense(memory + sizeof(float) * N_FLOATS);
  xfer_status st;

  options.flags = is_staged() ? XFER_PLAN_STAGED : 0;
  options.timeout_ms = is_stopped || by_messages ? DEADLINE_MS : 0;
  st = xfer_plan_create(plan, comm, &tensor, 1, &options);
  if (st == XFER_OK) st = xfer_plan_bind(*plan, 0, &src, &dst);
  n_gathers = 10; /* of the commit from now on */
  if (st == XFER_OK) st = xfer_plan_commit(*plan);
  for (uint64_t version = 1; version <= 2 && st == XFER_OK; version++) {
    fill((float *)(void *)memory, (float)version);
    die_at(version == 1 ? BEFORE_RUN : SECOND_RUN);
    st = xfer_plan_run(*plan, version, NULL);
    die_at(BEFORE_WAIT);
    if (st == XFER_OK) st = xfer_plan_wait(*plan, 0);
  }
  return st;
}

static int maps_segments(void)
{
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[4096];
  int n = 0;

  while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
    n += strstr(line, "memfd:xfer-comm") != NULL;
  if (maps != NULL) (void)fclose(maps);
  return n;
}

int main(int argc, char **argv)
{
  xfer_layout *layouts[2] = {NULL, NULL};
  xfer_plan *plan = NULL;
  char problem[100];
  char why[600];
  int level = 0;
  int size = 0;
  int n_mapped;

  for (int i = 0; argc > 1 && i < N_MOMENTS; i++)
    if (strcmp(argv[1], moments[i]) == 0) moment = i;
  if (argc > 1 && moment == N_MOMENTS) at_call = strtol(argv[1] + 5, NULL, 10); /* kill-N, stop-N */
  by_messages = argc > 2;
  is_stopped = argc > 1 && strncmp(argv[1], "stop-", 5) == 0;
  (void)MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
  (void)snprintf(problem, sizeof problem, "f32[%d,%d] (%d)@0-%d:S0 -> (%d)@0-%d:S1", SIDE, SIDE,
                 size, size - 1, size, size - 1);
  n_floats = SIDE * (SIDE / size); /* at least, of each rank */
  char *memory = calloc(2 * N_FLOATS, sizeof(float));
  if (memory == NULL || xfer_problem_parse(&layouts[0], &layouts[1], problem) != XFER_OK) _exit(1);
  MPI_Comm others = MPI_COMM_NULL;
  (void)MPI_Comm_split(MPI_COMM_WORLD, world_rank == KILLED, world_rank, &others);
  xfer_comm *comm = make_comm();
  n_mapped = maps_segments();
  const int64_t start = xfi_now_ns();
  const xfer_status st = play(comm, &plan, layouts, memory);
  (void)snprintf(why, sizeof why, "%s", st == XFER_OK ? "no error" : xfer_last_error());
  xfer_plan_destroy(plan);
  xfer_comm_destroy(comm);
  const int64_t ms = (xfi_now_ns() - start) / 1000000;
  const bool whole = !is_staged() || is_whole((float *)(void *)memory + N_FLOATS, st);
  const bool is_lost = world_rank == KILLED && is_stopped; /* whatever it finds */
  const bool may_end = at_call >= 0 && st == XFER_OK;      /* it had said its last word */
  free(memory);
  const int is_right =
      whole && maps_segments() == 0 &&
      (is_lost || may_end ||
       (st != XFER_OK && strstr(why, "rank 1") != NULL && ms < SOON_MS && n_mapped == size)) &&
      (world_rank == KILLED || go_on(others, size - 1));
  (void)printf("%s%s: rank %d after %lld ms, %d segments then %d: %s: %s\n",
               is_right ? "as expected" : "WRONG",
               whole ? is_lost && n_calls > at_call ? ", stopped" : "" : ", half written",
               world_rank, (long long)ms, n_mapped, maps_segments(), xfer_status_name(st), why);
  (void)fflush(stdout);
  _exit(0); /* MPI_Finalize would wait for the lost one */
}
