/*
 * Random cases with MPI: test_random_mpi boxes|exchanges CASES. Every process is a rank. Cases that
 * need more ranks than there are stand back; in the others the ranks that are left over take part
 * in the calls.
 */
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

#include <xfer/mpi.h>

#include "random_case.h"

enum { SEED = 11 };

int main(int argc, char **argv)
{
  int level = MPI_THREAD_SINGLE;
  int rank = 0, size = 0, failed = 0, n_done = 0;
  const int n_cases = argc == 3 ? atoi(argv[2]) : 0;
  xfer_comm *comm = NULL;
  random_case *c = calloc(1, sizeof *c);

  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) return 1;
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (c == NULL || n_cases <= 0 || !case_kind_parse(&c->kind, argv[1])) return 2;
  if (xfer_comm_create_mpi(&comm, MPI_COMM_WORLD) != XFER_OK) {
    fprintf(stderr, "rank %d: %s\n", rank, xfer_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  for (uint64_t k = 0; n_done < n_cases && failed == 0; k++) {
    char why[500];

    if (!random_case_make(c, SEED, k, size)) continue;
    n_done++;
    if (!random_case_rank(c, comm, NULL, false, why, sizeof why)) {
      failed = 1;
      fprintf(stderr, "case %llu: %s\n", (unsigned long long)k, why);
    }
    (void)MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  }
  if (rank == 0)
    printf("%s over MPI: %d ranks, %d cases, failed=%d\n", argv[1], size, n_done, failed);
  xfer_comm_destroy(comm);
  random_case_free(c);
  free(c);
  (void)MPI_Finalize();
  return failed;
}
