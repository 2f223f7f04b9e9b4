/*
 * Random problems by boxes with MPI: every process is a rank. Cases that need more ranks than there
 * are stand back; in the others the ranks that are left over take part in the calls.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include <xfer/mpi.h>

#include "box_case.h"

enum { CASES = 400 };

int main(int argc, char **argv)
{
  int level = MPI_THREAD_SINGLE;
  int rank = 0, size = 0, failed = 0, moved = 0;
  xfer_comm *comm = NULL;
  box_case *c = calloc(1, sizeof *c);

  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) return 1;
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (c == NULL || xfer_comm_create_mpi(&comm, MPI_COMM_WORLD) != XFER_OK) {
    fprintf(stderr, "rank %d: %s\n", rank, xfer_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  for (uint64_t k = 0; moved < CASES && failed == 0; k++) {
    char why[500] = "";
    uint64_t n_bytes = 0;

    box_case_make(c, 11, k);
    if (c->p.n_ranks > size) continue;
    moved++;
    if (box_case_rank(c, comm, false, &n_bytes, why, sizeof why)) {
      failed = 0;
    } else {
      failed = 1;
      fprintf(stderr, "case %llu: %s\n", (unsigned long long)k, why);
    }
    (void)MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  }
  if (rank == 0) printf("boxes over MPI: %d ranks, %d cases, failed=%d\n", size, moved, failed);
  xfer_comm_destroy(comm);
  box_case_free(c);
  free(c);
  (void)MPI_Finalize();
  return failed;
}
