/* Ranks that are threads, taken for processes of one host while they make a comm. Of the program's
 * link: --wrap=getpid. */
#ifndef XFER_SIM_AS_PROCESSES_H
#define XFER_SIM_AS_PROCESSES_H

#include "ranks.h"

#include <unistd.h>

static _Thread_local int rank_that_meets = -1;

pid_t __real_getpid(void);
pid_t __wrap_getpid(void);

pid_t __wrap_getpid(void)
{
  return rank_that_meets >= 0 ? 1000 + rank_that_meets : __real_getpid();
}

/* ranks_make_comm() of such a rank. */
static inline xfer_status make_comm_as_process(xfer_comm **comm, const ranks_meeting *meeting,
                                               int rank)
{
  rank_that_meets = rank;
  const xfer_status st = ranks_make_comm(comm, meeting, rank);
  rank_that_meets = -1;
  return st;
}

#endif
