/* What one rank of a problem does, and what it leaves for the comparison across ranks. Private to
 * carry.c and rank.c. */
#ifndef RANK_H
#define RANK_H

#include "carry.h"
#include "problem.h"
#include "rng.h"
#include "views.h"

/* Memory with an image of what it must hold. */
typedef struct memory {
  const rank_device *device; /* NULL: the host's */
  unsigned char *bytes;
  unsigned char *want;
  size_t size;
  size_t capacity;
} memory;

typedef struct rank_record {
  orc_arena arena;
  memory memories[2][2]; /* [set][side]: views that are bound anew lie in the other set */

  char why[500];                         /* the first thing that was wrong; "" if nothing was */
  xfer_status refusals[MAX_TENSORS + 1]; /* of the plan, or of each tensor */
  uint64_t to[ORC_MAX_RANKS];            /* a hash of the moves to each rank, in order */
  uint64_t from[ORC_MAX_RANKS];
  uint64_t wire_bytes, out_bytes, crossed_bytes, relayed_bytes;
} rank_record;

/* A set of statuses: bit -status. */
typedef unsigned status_set;

static inline status_set set_of(xfer_status st)
{
  return 1u << -(int)st;
}

typedef struct job {
  const problem *p;
  xfer_comm **comms;
  xfer_layout *layouts[MAX_TENSORS][2];
  status_set refusals[MAX_TENSORS + 1]; /* what a rank that refuses may say; 0: it must not refuse.
                                           The last: the plan */
  status_set
      may_refuse; /* what the plan may be refused with, on every rank, although it need not */
  status_set commit_refusals;
  int unbound_tensor; /* NOT_BOUND: what the culprit leaves out */
  int unbound_side;
  bool corrupt;
  const rank_device *device; /* NULL: the host */
  rank_record *records;      /* [n_ranks] */
} job;

/* The same, and what only the rank itself needs. */
typedef struct worker {
  const job *job;
  const problem *p;
  rank_record *rec;
  xfer_comm *comm;
  int rank;
  rng r;
  orc_part parts[MAX_TENSORS][2];
  bool has[2][MAX_TENSORS];
  placed views[2][MAX_TENSORS];
  memory *memories; /* [2] the set in use */
  bool fresh;       /* its destinations hold nothing yet */
  int set;
} worker;

/* Keep the first thing that is wrong. */
__attribute__((format(printf, 2, 3))) void wrong(worker *w, const char *format, ...);

/* A call that must succeed: whether it did. */
bool worked(worker *w, xfer_status st, const char *what);

/* Compare the figures and moves of a plan with the oracle (figures.c). */
void check_plan(worker *w, const xfer_plan *plan);
void check_report_after(worker *w, const xfer_plan *plan, uint64_t version);
void check_simulation(worker *w, const xfer_plan *plan, const xfer_plan_options *options);

/* `context` is a job. */
void rank_work(void *context, int rank);

void rank_record_free(rank_record *record);

#endif
