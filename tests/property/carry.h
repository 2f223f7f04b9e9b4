/* Carrying a problem out with the library, every byte compared with the oracle. */
#ifndef CARRY_H
#define CARRY_H

#include "problem.h"

/* Threads, comms and memory that are kept from problem to problem. */
typedef struct carrier carrier;

carrier *carrier_create(void);
void carrier_destroy(carrier *c);

/* Make comms in another way than xfer_comm_create_local(). */
typedef xfer_status (*comms_maker)(xfer_comm **comms, int n_ranks);
void carrier_make_comms(carrier *c, comms_maker maker);

/* Change a byte of the destinations of each problem after each run: every problem with one must
 * then be found wrong. */
void carrier_corrupt(carrier *c);

typedef enum verdict {
  RIGHT,
  REFUSED, /* as it should be: the library said no, on every rank, with the right status */
  WRONG,
  HANGS /* the carrier is of no more use, and cannot be destroyed */
} verdict;

/* Carry one problem out. `why` has one sentence unless it is RIGHT. */
verdict carrier_run(carrier *c, const problem *p, char *why, size_t n_bytes);

#endif
