/* How long what a rank moves takes on a machine, as the rows of docs/performance.md show it. */
#ifndef TOOLS_PLAN_PREDICT_H
#define TOOLS_PLAN_PREDICT_H

#include <stdbool.h>
#include <xfer/plan.h>

#include "plan.h"

/* What a rank moves by each way, in bytes. Zero: nothing. */
typedef struct rank_load {
  double link_in, link_out; /* to and from ranks of its domain */
  double nic_in, nic_out;   /* beyond it */
  double relay_in, relay_out;
  double broadcast_in, broadcast_out;
  double broadcast_beyond; /* of broadcast_in, from other domains */
  double self;             /* within its own memory */
  double link_in_squares;  /* of what comes from each rank of its domain: how many those are */
} rank_load;

/* Adds what one rank gets from another to the loads of both. */
void predict_add(rank_load *loads, const xfer_traffic *pair, const machine *m);

/* `allocations`: the most local tensors of a rank that takes part. */
double predict_seconds(const rank_load *load, const machine *m, double allocations);

/* Whether parts of it were never measured: a NIC, relays. */
bool predict_is_guess(const rank_load *load);

/* The machine and what its figures stand for, in two or three lines. */
void predict_print_machine(const machine *m, bool guessed);

#endif
