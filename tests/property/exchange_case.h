/*
 * Random exchanges: arrays of any shape and type between any ranks, strided at random on either
 * end, handed over in random order, in several calls at other addresses. What must come out is
 * written element by element.
 */
#ifndef EXCHANGE_CASE_H
#define EXCHANGE_CASE_H

#include <stdbool.h>
#include <xfer/xfer.h>

#include "carry.h"

enum { EX_RANKS = 8, EX_OPERATIONS = 96, EX_CALLS = 3 };

/* One array, and how it lies on both ends. */
typedef struct ex_operation {
  xfer_operation at[2]; /* as its sender and as its receiver hand it over */
  int ranks[2];         /* sender, receiver */
  int64_t n_elems;
  int64_t strides[2][XFER_MAX_DIMS];
  int64_t reach[2]; /* bytes from the first to the last; 0: it is empty */
} ex_operation;

typedef struct ex_case {
  uint64_t seed;
  uint64_t number;
  int n_ranks;
  int n;
  ex_operation operations[EX_OPERATIONS];
  xfer_plan_options options;
  bool in_one_call; /* xfer_exchange() */
} ex_case;

/* Case `number` of `seed`, of at most `most` ranks. */
void ex_case_make(ex_case *c, uint64_t seed, uint64_t number, int most);

/* What one rank does with it, EX_CALLS times. As random_case_rank(). */
bool ex_case_rank(const ex_case *c, xfer_comm *comm, const rank_device *device, bool corrupt,
                  char *why, size_t n_why);

#endif
