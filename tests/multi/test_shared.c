/* Random problems on the processes of one host, every byte compared with the oracle: where all
 * share memory, where only neighbours do, as on several hosts, and where nobody does.
 *
 * The engine of tests/property plays all ranks in one process; here each process plays its own and
 * gets what the others found.
 */
#include "carry.h"
#include "crew.h"
#include "mpi_comm.h"
#include "object.h"
#include "rank.h"
#include "xfer/mpi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { CASES = 150, MIXED_CASES = 10 /* at least, where there can be any */ };

static int world_rank;
static int world_size;

static bool (*shares)(const xfi_comm *comm, int peer); /* of the comms that are made next */
static const xfi_comm_ops *mpi_ops;
static xfi_comm_ops comm_ops;
static int n_rounds; /* what this process did in a case */
static int n_streams;
static int n_again; /* streams that are packed with another, in all cases */

/* ---- the crew: this process and the others ------------------------------------------------ */

struct crew {
  char unused;
};

crew *crew_create(int n_max)
{
  static crew others;

  (void)n_max;
  return &others;
}

void crew_destroy(crew *c)
{
  (void)c;
}

bool crew_run(crew *c, int n, void (*work)(void *context, int rank), void *context, int seconds)
{
  const job *j = context;
  const size_t found = offsetof(rank_record, why); /* and all that follows it */

  (void)c, (void)seconds;
  if (world_rank < n) work(context, world_rank);
  for (int r = 0; r < n; r++)
    (void)MPI_Bcast((char *)&j->records[r] + found, (int)(sizeof *j->records - found), MPI_BYTE, r,
                    MPI_COMM_WORLD);
  return true;
}

/* ---- comms -------------------------------------------------------------------------------- */

static bool share_with_all(const xfi_comm *comm, int peer)
{
  return mpi_ops->shares(comm, peer);
}

static bool share_with_neighbours(const xfi_comm *comm, int peer)
{
  return comm->rank / 2 == peer / 2 && mpi_ops->shares(comm, peer);
}

static bool share_with_none(const xfi_comm *comm, int peer)
{
  (void)comm, (void)peer;
  return false;
}

static xfer_status count_round(xfi_comm *comm, const xfi_messages *messages, xfer_stream stream,
                               xfi_deadline deadline)
{
  n_rounds++;
  return mpi_ops->round(comm, messages, stream, deadline);
}

static xfer_status count_stream(xfi_comm *comm, const xfi_channel_set *all, xfi_deadline deadline)
{
  n_streams += all->n > 0;
  for (size_t i = 0; i < all->n; i++)
    n_again += all->channels[i].is_again;
  return mpi_ops->carry_channels(comm, all, deadline);
}

static xfer_status make_over_mpi(xfer_comm **comms, int n_ranks)
{
  MPI_Comm some = MPI_COMM_NULL;
  xfer_status st = XFER_OK;

  (void)MPI_Comm_split(MPI_COMM_WORLD, world_rank < n_ranks ? 0 : MPI_UNDEFINED, 0, &some);
  if (some == MPI_COMM_NULL) return XFER_OK;
  st = xfer_comm_create_mpi(&comms[world_rank], some);
  (void)MPI_Comm_free(&some);
  if (st != XFER_OK) return st;
  xfi_comm *made = comms[world_rank]->transport;
  mpi_ops = made->ops;
  for (int r = 0; r < n_ranks; r++) /* this host has no reason not to */
    if (r != world_rank && !mpi_ops->shares(made, r)) return XFER_ERR_INTERNAL;
  comm_ops = *mpi_ops;
  comm_ops.round = count_round;
  comm_ops.carry_channels = count_stream;
  comm_ops.shares = shares;
  made->ops = &comm_ops;
  if (shares != share_with_all) made->shares_all = false;
  return XFER_OK;
}

/* ---- problems ----------------------------------------------------------------------------- */

/* The others may be in another case, and would wait. */
static void fail_everywhere(uint64_t number, const char *why)
{
  (void)fprintf(stderr, "rank %d: case %llu: %s\n", world_rank, (unsigned long long)number, why);
  (void)MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Returns how many cases had rounds and streams on this process. */
static int play(bool (*how)(const xfi_comm *comm, int peer), uint64_t seed)
{
  problem p = {0};
  carrier *c = carrier_create();
  char why[800];
  int n_mixed = 0;

  assert_non_null(c);
  shares = how;
  carrier_make_comms(c, make_over_mpi);
  for (uint64_t k = 0, n = 0; n < CASES; k++) {
    problem_random(&p, seed, k);
    if (p.n_ranks > world_size) continue;
    n++;
    n_rounds = n_streams = 0;
    const verdict v = carrier_run(c, &p, why, sizeof why);
    n_mixed += n_rounds > 0 && n_streams > 0;
    if (how == share_with_all && n_rounds > 0) fail_everywhere(k, "a round");
    if (how == share_with_none && n_streams > 0) fail_everywhere(k, "a stream");
    if (v == RIGHT || v == REFUSED) continue;
    if (world_rank == 0) problem_print(stderr, &p);
    fail_everywhere(k, why);
  }
  carrier_destroy(c);
  problem_free(&p);
  return n_mixed;
}

static void test_random_problems_through_shared_memory(void **state)
{
  (void)state;
  (void)play(share_with_all, 5);
  (void)MPI_Allreduce(MPI_IN_PLACE, &n_again, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  assert_true(world_size < 4 || n_again > 0);
}

/* Cheaper to broadcast by count of bytes, so in a simulation too; here it is packed once. */
static void test_what_all_get_is_packed_once(void **state)
{
  carrier *c = carrier_create();
  problem p = {0};
  char line[64];
  char why[800] = "not read";

  (void)state;
  if (world_size < 2) return;
  (void)snprintf(line, sizeof line, "f32[512,512] (1)@0:R -> (%d)@0-%d:R", world_size,
                 world_size - 1);
  assert_non_null(c);
  assert_true(problem_read(&p, line));
  p.simulate = true;
  shares = share_with_all;
  carrier_make_comms(c, make_over_mpi);
  n_rounds = n_streams = n_again = 0;
  if (carrier_run(c, &p, why, sizeof why) != RIGHT) fail_everywhere(0, why);
  assert_int_equal(n_rounds, 0);
  assert_int_equal(n_streams, 1);
  assert_int_equal(n_again, world_rank == 0 ? world_size - 2 : 0);
  carrier_destroy(c);
  problem_free(&p);
}

static void test_random_problems_between_hosts(void **state)
{
  int n_mixed = play(share_with_neighbours, 6);

  (void)state;
  if (world_size >= 4 && world_rank < 2) assert_true(n_mixed >= MIXED_CASES);
}

static void test_random_problems_through_messages(void **state)
{
  (void)state;
  (void)play(share_with_none, 7);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_problems_through_shared_memory),
      cmocka_unit_test(test_what_all_get_is_packed_once),
      cmocka_unit_test(test_random_problems_between_hosts),
      cmocka_unit_test(test_random_problems_through_messages),
  };
  int level = MPI_THREAD_SINGLE;

  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) return 1;
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  (void)MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  (void)MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  (void)MPI_Finalize();
  return failed;
}
