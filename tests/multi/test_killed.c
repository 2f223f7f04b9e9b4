/* A process that is killed while others wait for it: they end with an error that names it, long
 * before any deadline, and nothing of the shared memory stays with them.
 *
 *   test_killed WHEN
 *
 * Of a staged plan destinations are whole, then: those of the run before.
 *
 * Rank 1 is killed at WHEN. Started by a launcher that lets the others live; since it may not tell
 * how they ended, each that found all as it should be says so.
 */
#include "clock.h"
#include "object.h"
#include "xfer/mpi.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KILLED = 1, SIDE = 2048, SOON_MS = 10000, SLOTS_BEFORE = 7 };

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

static void die_at(int now)
{
  if (world_rank == KILLED && now == moment) (void)raise(SIGKILL);
}

static xfer_status gather_or_die(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                                 xfi_deadline deadline)
{
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

static xfer_status stream_or_die(xfi_comm *comm, xfi_channel *channels, size_t n, size_t slot_bytes,
                                 xfi_carry_fn *carries, void *context, xfi_deadline deadline)
{
  carry = carries;
  return mpi_ops->stream(comm, channels, n, slot_bytes, carry_or_die, context, deadline);
}

static xfer_comm *make_comm(void)
{
  xfer_comm *comm = NULL;

  if (xfer_comm_create_mpi(&comm, MPI_COMM_WORLD) != XFER_OK) _exit(1);
  mpi_ops = comm->transport->ops;
  comm_ops = *mpi_ops;
  comm_ops.all_gather = gather_or_die;
  comm_ops.stream = stream_or_die;
  comm->transport->ops = &comm_ops;
  return comm;
}

enum { N_FLOATS = SIDE * SIDE };

static bool is_staged(void)
{
  return moment % 2 == 0;
}

static void fill(float *floats, float value)
{
  for (size_t i = 0; i < N_FLOATS; i++)
    floats[i] = value;
}

static bool is_whole(const float *floats)
{
  const float wanted = moment == SECOND_RUN ? 1 : 0;

  for (size_t i = 0; i < (size_t)n_floats; i++)
    if (floats[i] != wanted) return false;
  return true;
}

/* What each rank does, up to the first call that fails. */
static xfer_status play(xfer_comm *comm, xfer_plan **plan, xfer_layout *const *layouts,
                        char *memory)
{
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  const xfer_tensor tensor = {"matrix", layouts[0], layouts[1], 0};
  const xfer_view src = xfer_view_dense(memory);
  const xfer_view dst = xfer_view_dense(memory + sizeof(float) * N_FLOATS);
  xfer_status st;

  options.flags = is_staged() ? XFER_PLAN_STAGED : 0;
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
  (void)MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
  (void)snprintf(problem, sizeof problem, "f32[%d,%d] (%d)@0-%d:S0 -> (%d)@0-%d:S1", SIDE, SIDE,
                 size, size - 1, size, size - 1);
  n_floats = SIDE * (SIDE / size); /* at least, of each rank */
  char *memory = calloc(2 * N_FLOATS, sizeof(float));
  if (memory == NULL || xfer_problem_parse(&layouts[0], &layouts[1], problem) != XFER_OK) _exit(1);
  xfer_comm *comm = make_comm();
  n_mapped = maps_segments();
  const int64_t start = xfi_now_ns();
  const xfer_status st = play(comm, &plan, layouts, memory);
  (void)snprintf(why, sizeof why, "%s", st == XFER_OK ? "no error" : xfer_last_error());
  xfer_plan_destroy(plan);
  xfer_comm_destroy(comm);
  const int64_t ms = (xfi_now_ns() - start) / 1000000;
  const bool whole = !is_staged() || is_whole((float *)(void *)memory + N_FLOATS);
  free(memory);
  const int is_right = whole && st != XFER_OK && strstr(why, "rank 1") != NULL && ms < SOON_MS &&
                       n_mapped == size && maps_segments() == 0;
  (void)printf("%s%s: rank %d after %lld ms, %d segments then %d: %s: %s\n",
               is_right ? "as expected" : "WRONG", whole ? "" : ", half written", world_rank,
               (long long)ms, n_mapped, maps_segments(), xfer_status_name(st), why);
  (void)fflush(stdout);
  _exit(0); /* MPI_Finalize would wait for the lost one */
}
