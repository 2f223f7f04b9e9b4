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

/* Ranks that own memory of a device and a stream each, instead of the host's. The engine reads and
 * writes the memory itself, so it must be the host's to look at too. Every call is made on the
 * rank's own thread, but release. */
typedef struct rank_device {
  void (*enter)(int rank); /* before anything else of a problem */
  void *(*alloc)(int rank, size_t n_bytes);
  void (*release)(void *memory);
  xfer_stream (*stream)(int rank);
  /* Around a run, which has the same number on every rank; `end` follows xfer_plan_wait(), or waits
   * for the stream itself. */
  void (*begin)(int rank, uint64_t run);
  bool (*end)(int rank, bool waited);
} rank_device;
void carrier_use_device(carrier *c, const rank_device *device);

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
