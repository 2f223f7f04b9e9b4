/* Over MPI xfer_redistribute() and xfer_exchange() at other addresses each time: one gathering a
 * call, and no other control, and everything arrives. Nobody asks MPI meanwhile but those
 * who wait for long. Calls that fail leave nothing behind. */
#include <stdio.h>
#include <string.h>

#include <mpi.h>

#include "counted_calls.h"
#include "mpi_comm.h"
#include "xfer/mpi.h"

enum { CALLS = 30, MOST_RANKS = 8, WIDTH = 16, ROOM = 2 * CALLS + MOST_RANKS * WIDTH };

static int need(bool condition, int line)
{
  if (!condition) fprintf(stderr, "line %d: not so: %s\n", line, xfer_last_error());
  return condition ? 0 : 1;
}
#define NEED(condition) failed += need(condition, __LINE__)

static int n_tests; /* of MPI requests */

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
  n_tests++;
  return PMPI_Test(request, flag, status);
}

/* Row r of each rank goes to rank r. */
static int by_layouts(xfer_comm *comm, int rank, int size)
{
  static uint32_t from[ROOM];
  static uint32_t to[ROOM];
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  char line[80];
  int failed = 0;
  int n_quiet = 0; /* calls */

  (void)snprintf(line, sizeof line, "u32[%d,%d] (%d):S1 -> (%d):S0", size, size * WIDTH, size,
                 size);
  NEED(xfer_problem_parse(&src, &dst, line) == XFER_OK);
  for (int call = 0; call < CALLS; call++) {
    const xfer_view source = xfer_view_dense(from + call);
    const xfer_view target = xfer_view_dense(to + 2 * call);

    memset(to, 0, sizeof to);
    for (int i = 0; i < size * WIDTH; i++)
      from[call + i] = (uint32_t)(1000 * call + 100 * rank + i);
    n_gathers = n_exchanges = n_tests = 0;
    NEED(xfer_redistribute(comm, src, &source, dst, &target, NULL) == XFER_OK);
    n_quiet += n_tests == 0;
    NEED(call == 0 || (n_gathers == 1 && n_exchanges == 0));
    for (int i = 0; i < size * WIDTH; i++)
      NEED(to[2 * call + i] ==
           (uint32_t)(1000 * call + 100 * (i / WIDTH) + rank * WIDTH + i % WIDTH));
  }
  NEED(n_quiet > 0);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  return failed;
}

/* Whatever ranks had begun to send in a call that comes to nothing is not there for the next run,
 * of which kind it may be, and nothing of it is written. */
static int after_calls_that_fail(xfer_comm *comm, int rank, int size)
{
  static uint32_t from[2][ROOM];
  static uint32_t to[2][ROOM];
  const xfer_view views[2] = {xfer_view_dense(from[0]), xfer_view_dense(to[0])};
  const xfer_view others[2] = {xfer_view_dense(from[1]), xfer_view_dense(to[1])};
  xfer_tensor tensor = {"t", NULL, NULL, {0}};
  xfer_layout *layouts[4] = {NULL, NULL, NULL, NULL};
  xfer_plan *plan = NULL;
  char line[80];
  int failed = 0;

  (void)snprintf(line, sizeof line, "u32[%d,%d] (%d):S1 -> (%d):S0", size, size * WIDTH, size,
                 size);
  NEED(xfer_problem_parse(&layouts[0], &layouts[1], line) == XFER_OK);
  (void)snprintf(line, sizeof line, "u32[%d,%d] (%d):S1 -> (%d):R", size, size * WIDTH, size, size);
  NEED(xfer_problem_parse(&layouts[2], &layouts[3], line) == XFER_OK);
  tensor.src = layouts[0];
  tensor.dst = layouts[1];
  NEED(xfer_plan_create(&plan, comm, &tensor, 1, NULL) == XFER_OK);
  NEED(xfer_plan_bind(plan, 0, &others[0], &others[1]) == XFER_OK);
  NEED(xfer_plan_commit(plan) == XFER_OK);
  for (int call = 0; call < CALLS; call++) {
    const int odd = call / 3 % size; /* the rank that fails */
    const xfer_view nowhere = xfer_view_dense(NULL);
    const bool wrong_view = rank == odd && call % 3 == 1;
    const bool wrong_layout = rank == odd && call % 3 == 2;
    const int at = wrong_layout ? 3 : 1;

    memset(to, 0, sizeof to);
    for (int i = 0; i < 2 * size * WIDTH; i++)
      from[i / (size * WIDTH)][i % (size * WIDTH)] = (uint32_t)(10000 * call + 500 * rank + i);
    NEED((xfer_redistribute(comm, layouts[0], &views[0], layouts[at],
                            wrong_view ? &nowhere : &views[1], NULL) == XFER_OK) ==
         (call % 3 == 0));
    for (int i = 0; i < size * WIDTH; i++)
      NEED(to[0][i] == (call % 3 != 0 ? 0
                                      : (uint32_t)(10000 * call + 500 * (i / WIDTH) + rank * WIDTH +
                                                   i % WIDTH)));
    NEED(xfer_plan_run(plan, (uint64_t)call, NULL) == XFER_OK);
    NEED(xfer_plan_wait(plan, 0) == XFER_OK);
    for (int i = 0; i < size * WIDTH; i++)
      NEED(to[1][i] ==
           (uint32_t)(10000 * call + 500 * (i / WIDTH) + (size + rank) * WIDTH + i % WIDTH));
  }
  xfer_plan_destroy(plan);
  for (int i = 0; i < 4; i++)
    xfer_layout_destroy(layouts[i]);
  return failed;
}

static int by_operations(xfer_comm *comm, int rank, int size)
{
  static uint32_t from[ROOM];
  static uint32_t to[ROOM];
  xfer_operation sends[MOST_RANKS];
  xfer_operation recvs[MOST_RANKS];
  xfer_view views[2][MOST_RANKS];
  int failed = 0;

  for (int p = 0; p < size; p++) {
    sends[p] = xfer_operation_bytes(7, p, WIDTH * sizeof *from);
    recvs[p] = xfer_operation_bytes(7, p, WIDTH * sizeof *to);
  }
  for (int call = 0; call < CALLS; call++) {
    for (int p = 0; p < size; p++) {
      views[0][p] = xfer_view_dense(from + call + p * WIDTH);
      views[1][p] = xfer_view_dense(to + 2 * call + p * WIDTH);
      sends[p].shape[XFER_MAX_DIMS - 1] = recvs[p].shape[XFER_MAX_DIMS - 1] = call; /* not a dim */
    }
    for (int i = 0; i < size * WIDTH; i++)
      from[call + i] = (uint32_t)(1000 * call + 100 * rank + i);
    n_gathers = n_exchanges = 0;
    NEED(xfer_exchange(comm, sends, views[0], (size_t)size, recvs, views[1], (size_t)size, NULL) ==
         XFER_OK);
    NEED(call == 0 || (n_gathers == 1 && n_exchanges == 0));
    for (int i = 0; i < size * WIDTH; i++)
      NEED(to[2 * call + i] ==
           (uint32_t)(1000 * call + 100 * (i / WIDTH) + rank * WIDTH + i % WIDTH));
  }
  return failed;
}

/* More than a slot to each, from one place for all, from one for two each, or from a place for each
 * by turns; then from two pieces that move apart. */
static int by_large_operations(xfer_comm *comm, int rank, int size)
{
  enum { LARGE = 20000, HALF = LARGE / 2, APART = LARGE + 2 * CALLS };
  static const int64_t strides[1] = {1};
  static uint32_t from[MOST_RANKS * APART];
  static uint32_t to[MOST_RANKS * LARGE];
  xfer_operation sends[MOST_RANKS];
  xfer_operation recvs[MOST_RANKS];
  xfer_view views[2][MOST_RANKS];
  void *pieces[MOST_RANKS][2];
  int failed = 0;

  for (int p = 0; p < size; p++) {
    sends[p] = xfer_operation_bytes(8, p, LARGE * sizeof *from);
    recvs[p] = xfer_operation_bytes(8, p, LARGE * sizeof *to);
    views[1][p] = xfer_view_dense(to + p * LARGE);
  }
  for (int call = 0; call < CALLS; call++) {
    const bool in_pieces = call >= CALLS / 2;
    const int same = in_pieces || call % 3 == 1 ? 1 : call % 3 == 0 ? MOST_RANKS : 2;

    for (int p = 0; p < size; p++) {
      uint32_t *at = from + p / same * APART;

      pieces[p][0] = at + CALLS - call;
      pieces[p][1] = at + CALLS + HALF + call;
      views[0][p] = in_pieces ? xfer_view_pieces(pieces[p], 2, 0, strides, 1) : xfer_view_dense(at);
      for (int i = 0; i < LARGE; i++)
        *(in_pieces ? (uint32_t *)pieces[p][i / HALF] + i % HALF : at + i) =
            (uint32_t)(call * 1000003 + rank * 30011 + p / same * 7919 + i);
    }
    memset(to, 0, sizeof to);
    NEED(xfer_exchange(comm, sends, views[0], (size_t)size, recvs, views[1], (size_t)size, NULL) ==
         XFER_OK);
    for (int i = 0; i < size * LARGE; i++)
      NEED(to[i] ==
           (uint32_t)(call * 1000003 + i / LARGE * 30011 + rank / same * 7919 + i % LARGE));
  }
  return failed;
}

int main(int argc, char **argv)
{
  int rank = 0, size = 0, failed = 0;
  xfer_comm *comm = NULL;

  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 1; /* MPI_THREAD_SINGLE, which is enough */
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size > MOST_RANKS || xfer_comm_create_mpi(&comm, MPI_COMM_WORLD) != XFER_OK)
    MPI_Abort(MPI_COMM_WORLD, 1);
  count_calls(&comm, 1);
  failed = by_layouts(comm, rank, size) + after_calls_that_fail(comm, rank, size) +
           by_operations(comm, rank, size) + by_large_operations(comm, rank, size);
  uncount_calls(&comm, 1);
  (void)MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  xfer_comm_destroy(comm);
  (void)MPI_Finalize();
  return failed == 0 ? 0 : 1;
}
