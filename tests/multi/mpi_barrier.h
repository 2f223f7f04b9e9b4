/* MPI_Barrier() for ranks that wait for one that is late: MPI's own waits on the core that the late
 * one, or another test, could use. For one file of a program. */
#ifndef XFER_TEST_MPI_BARRIER_H
#define XFER_TEST_MPI_BARRIER_H

#include <unistd.h>

#include <mpi.h>

/* In place of MPI's: asleep. */
int MPI_Barrier(MPI_Comm comm)
{
  MPI_Request request;
  int code = MPI_Ibarrier(comm, &request);

  for (int done = 0; code == MPI_SUCCESS;) {
    code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) break;
    (void)usleep(500);
  }
  return code;
}

#endif
