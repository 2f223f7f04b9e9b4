/* What tests of ranks of one host that share memory have in common. */
#ifndef HOST_RANKS_H
#define HOST_RANKS_H

#include "unit/comm_checks.h"
#include "unit/meeting.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static inline xfi_comm *join_at(meeting_place *place, int rank, int first_turn)
{
  visitor v = {place, rank, first_turn, -1};
  xfi_comm *comm = NULL;

  if (xfi_comm_create_host(&comm, gather_there, &v, rank, place->n_ranks, false) != XFER_OK) {
    (void)fprintf(stderr, "rank %d: %s\n", rank, xfer_last_error());
    _exit(9);
  }
  return comm;
}

/* An interrupt. */
static inline int says_no(void *context)
{
  (void)context;
  return 1;
}

/* Each rank's body on a thread of its own. */
static inline void with_threads(int n_ranks, rank_body *body)
{
  meeting_place *place = open_place(n_ranks);

  run_ranks(n_ranks, body, place);
  (void)munmap(place, sizeof *place);
  assert_all_as_expected();
}

#endif
