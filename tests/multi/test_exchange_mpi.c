/* Random exchanges with MPI: every process is a rank, and those that a case does not need take part
 * in the calls. */
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

#include <xfer/mpi.h>

#include "exchange_case.h"

enum { CASES = 60 };

int main(int argc, char **argv)
{
  int level = MPI_THREAD_SINGLE;
  int rank = 0, size = 0, failed = 0;
  xfer_comm *comm = NULL;
  ex_case *c = calloc(1, sizeof *c);

  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) return 1;
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (c == NULL || xfer_comm_create_mpi(&comm, MPI_COMM_WORLD) != XFER_OK) {
    fprintf(stderr, "rank %d: %s\n", rank, xfer_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  for (uint64_t k = 0; k < CASES && failed == 0; k++) {
    char why[500] = "";

    ex_case_make(c, 21, k, size);
    if (!ex_case_rank(c, comm, NULL, false, why, sizeof why)) {
      failed = 1;
      fprintf(stderr, "case %llu: %s\n", (unsigned long long)k, why);
    }
    (void)MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  }
  if (rank == 0) printf("exchanges over MPI: %d ranks, failed=%d\n", size, failed);
  xfer_comm_destroy(comm);
  free(c);
  (void)MPI_Finalize();
  return failed;
}
