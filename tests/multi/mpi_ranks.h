/* Ranks of MPI in tests of the comm over it, whose core is played. For one file of a program. */
#ifndef XFER_TEST_MPI_RANKS_H
#define XFER_TEST_MPI_RANKS_H

#include "mpi_barrier.h"
#include "mpi_comm.h"
#include "played_core.h"
#include "unit/comm_checks.h"
#include "xfer/mpi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

static int world_rank;
static int world_size;
static bool by_messages; /* gather, as between hosts */

static xfer_comm *make(void)
{
  xfer_comm *comm = NULL;

  assert_int_equal(xfer_comm_create_mpi(&comm, MPI_COMM_WORLD), XFER_OK);
  assert_int_equal(comm->transport->rank, world_rank);
  assert_int_equal(comm->transport->size, world_size);
  assert_true(comm->transport->shares_all || world_size == 1); /* a host has no reason not to */
  comm->transport->shares_all = comm->transport->shares_all && !by_messages;
  return comm;
}

/* Every rank is done with its waits; nobody leaves MPI while another one still expects it. */
static void drop(xfer_comm *comm)
{
  assert_int_equal(MPI_Barrier(MPI_COMM_WORLD), MPI_SUCCESS);
  xfer_comm_destroy(comm);
  assert_all_as_expected();
}

static void expect_broken(xfi_comm *comm)
{
  int value = 0;
  int all[64];
  xfi_message m = {&value, sizeof value, comm->rank == 0 ? 1 : 0};

  expect(comm->ops->all_gather(comm, all, &value, sizeof value, soon()) == XFER_ERR_COMM);
  expect(comm->ops->round(comm, &(xfi_messages){&m, 1, NULL, 0}, NULL, soon()) == XFER_ERR_COMM);
  expect(comm->ops->broadcast(comm, &m, 1, 0, NULL, soon()) == XFER_ERR_COMM);
  expect(error_has("the comm is broken: "));
}

/* ---- streams ------------------------------------------------------------------------------ */

enum { STREAM_BYTES = 300000 };

/* What one rank's channels carry. */
typedef struct loads {
  const xfi_comm *comm;
  const xfi_channel *channels;
  unsigned char *bytes; /* [n][STREAM_BYTES] */
  size_t at[2 * 64];
  int n_carried;
  int sleeps_at; /* before carrying the n-th time; 0: never */
} loads;

static void carry_load(void *context, size_t channel, char *slot, size_t n_bytes)
{
  loads *l = context;
  unsigned char *bytes = l->bytes + channel * STREAM_BYTES + l->at[channel];

  if (++l->n_carried == l->sleeps_at) (void)usleep(20000);
  if (l->channels[channel].send)
    memcpy(slot, bytes, n_bytes);
  else
    memcpy(bytes, slot, n_bytes);
  l->at[channel] += n_bytes;
}

/* One stream from `from` to `to`, each rank with its own size; what it came to. */
static xfer_status stream_one(xfi_comm *comm, int from, int to, size_t n_bytes, int ms)
{
  xfi_channel channel = {
      .peer = comm->rank == from ? to : from, .send = comm->rank == from, .n_bytes = n_bytes};
  loads l = {.comm = comm, .channels = &channel, .bytes = malloc(STREAM_BYTES)};

  assert_non_null(l.bytes);
  memset(l.bytes, 0, STREAM_BYTES);
  xfer_status st = comm->ops->carry_channels(
      comm, &(xfi_channel_set){&channel, 1, 4096, carry_load, &l}, xfi_deadline_after(ms));
  free(l.bytes); /* nobody has it, whatever it came to */
  return st;
}

/* ---- the program -------------------------------------------------------------------------- */

/* Once as ranks of one host are, once as those of several. The exit status is the maximum over
 * ranks; a failing rank says its number. */
static int run_on_all_ranks(int argc, char **argv, int (*run)(void))
{
  xfer_comm *none = NULL;
  int level = MPI_THREAD_SINGLE;
  int before = xfer_comm_create_mpi(&none, MPI_COMM_NULL) == XFER_ERR_STATE ? 0 : 1;

  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS) return 1;
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  (void)MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  int failed = before + run();
  by_messages = true;
  failed += run();
  if (failed != 0)
    (void)fprintf(stderr, "rank %d of %d: %d failed\n", world_rank, world_size, failed);
  (void)MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  (void)MPI_Finalize();
  return failed;
}

#endif
