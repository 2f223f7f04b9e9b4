/* Comms of ranks that are threads of one process, on the simulated machine. */
#ifndef XFER_SIM_RANKS_H
#define XFER_SIM_RANKS_H

#include <stdbool.h>
#include <xfer/xfer.h>

typedef enum comm_kind {
  COMM_NCCL,     /* xfer_comm_create_nccl_id() */
  COMM_BORROWED, /* xfer_comm_create_nccl() */
  COMM_GATHER,   /* xfer_comm_create_cuda(), over memory of this process */
  COMM_UNBLOCKED /* xfer_comm_create_nccl(), of a communicator that does not block */
} comm_kind;

/* All ranks' comms, rank r on device r modulo n_devices. */
xfer_status ranks_make_comms(xfer_comm **comms, int n_ranks, comm_kind kind, int n_devices);

/* The same where ranks make theirs by themselves: what they must know of each other until all have
 * made them, and each rank's own call. */
typedef struct ranks_meeting ranks_meeting;
ranks_meeting *ranks_meet(int n_ranks, comm_kind kind); /* NULL: there is no id */
bool ranks_come(ranks_meeting *meeting, int rank);      /* each rank, first */
xfer_status ranks_make_comm(xfer_comm **comm, const ranks_meeting *meeting, int rank);
void ranks_go(ranks_meeting *meeting, int rank); /* each rank, when its comm is made, or is not */
void ranks_meeting_free(ranks_meeting *meeting);

/* Run work(context, rank) on a thread for each rank, with sim_rank() said and its device current;
 * false: they are not back after so many seconds, and their threads still run. */
bool ranks_run(int n_ranks, int n_devices, void (*work)(void *context, int rank), void *context,
               int seconds);

/* Among the threads of ranks_run(): all come, then all go. */
void ranks_barrier(void);

/* How long a plan's commits and runs wait from now on: short only for what is to fail, since a
 * loaded host is slow in what is to work. */
void ranks_set_timeout(xfer_plan *plan, uint64_t timeout_ms);

#endif
