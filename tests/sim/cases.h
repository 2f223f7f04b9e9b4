/*
 * Random cases on the simulated machine: its devices, and ranks' memory there, which others may
 * touch only from a rank's xfer_plan_run() to the end of its xfer_plan_wait(), in the same run.
 */
#ifndef CASES_H
#define CASES_H

#include "carry.h"
#include "sim.h"

enum { CASES_PER_TOPOLOGY = 25 };

extern const rank_device sim_device;

/* The machine number `number` of a seed. islands: of devices that cannot reach each other. */
void device_topology(uint64_t seed, uint64_t number, bool islands, bool deaf);
/* What follows is case `number`: the same choices of the machine's each time. */
void device_case(uint64_t seed, uint64_t number);
/* Its ranks are back. False: operations are left on streams. violation: the first thing that must
 * not happen, or "". */
bool device_case_end(char *violation, size_t n_bytes);

#endif
