/**
 * @file mpi.h
 * A comm whose ranks are the processes of an MPI communicator; memory is host memory. In
 * libxfer_mpi.
 */
#ifndef XFER_MPI_H
#define XFER_MPI_H

#include <mpi.h>

#include <xfer/xfer.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Make a comm of the ranks of an MPI communicator, in the same order.
 *
 * Collective over `mpi_comm`; like MPI_Comm_dup(), it returns once every rank of it has called,
 * however long that takes. It duplicates the communicator, so the caller's messages never match the
 * library's. Ranks of one host exchange data through shared memory, 256 KiB for each rank that data
 * goes to; the memory leaves no file behind, however a process ends.
 * Threads: any thread level will do, including that of MPI_Init(), since no thread of the library
 * calls MPI. Below MPI_THREAD_SERIALIZED the main thread makes this call and all others on the
 * comm; at MPI_THREAD_SERIALIZED no other thread may be in MPI meanwhile.
 * Failure: a rank that misses a deadline tells the others, whose waits then end with XFER_ERR_COMM;
 * so do waits for a rank of the same host whose process ends or that destroys its comm. The library
 * leaks the communicator of a broken comm and the messages that it could not cancel, since freeing
 * them is not safe.
 *
 * @param comm      Receives the comm; the caller owns it and gives it back with
 *                  xfer_comm_destroy(), on every rank and before MPI_Finalize(), after which
 *                  its calls fail with XFER_ERR_COMM.
 * @param mpi_comm  An intra-communicator; not owned. The caller may free it once this call has
 *                  returned.
 * @retval XFER_OK               The comm is ready on every rank.
 * @retval XFER_ERR_ARG          `comm` is NULL, or `mpi_comm` is null or an inter-communicator. The
 *                               call checks this and the next before it communicates: the rank
 *                               returns alone.
 * @retval XFER_ERR_STATE        MPI is not initialized, or is finalized.
 * @retval XFER_ERR_UNSUPPORTED  The thread level is below MPI_THREAD_SERIALIZED and this is not the
 *                               main thread.
 * @retval XFER_ERR_NOMEM        Out of memory.
 * @retval XFER_ERR_COMM         An MPI call failed; the text quotes MPI.
 * @retval XFER_ERR_PEER         Another rank failed; the text names it and quotes its text.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_mpi(xfer_comm **comm, MPI_Comm mpi_comm);

#ifdef __cplusplus
}
#endif

#endif
