/*
 * For tests of runs that go wrong: up to two plans of each rank, of one tensor each, and what all
 * such tests do with them.
 */
#ifndef XFER_SIM_RANK_PLANS_H
#define XFER_SIM_RANK_PLANS_H

#include "world.h"

enum { WIDTH = 5000, LONG_MS = 20000, LIVE = 0x77, PLANS = 2 };
#define SHORT_MS world_time(300)

static tensor tensors[PLANS][WORLD_RANKS]; /* of the first plan, of the second */
static xfer_plan *plans[PLANS][WORLD_RANKS];
static cudaStream_t streams[PLANS][WORLD_RANKS];
static xfer_lane lane;

static inline void make(int rank, int p, form shape)
{
  tensor_make(&tensors[p][rank], shape, rank, WIDTH);
  streams[p][rank] = world_stream();
  plans[p][rank] = world_plan(rank, &tensors[p][rank], 1, lane, LONG_MS);
  OK(xfer_plan_commit(plans[p][rank]));
}

/* The deadline that a rank is to miss; longer ones are for what is to work. */
static inline void set_short_timeout(int rank, int p)
{
  ranks_set_timeout(plans[p][rank], (uint64_t)SHORT_MS);
}

static inline void run_well(int rank, int p, uint64_t version)
{
  world_run(plans[p][rank], &tensors[p][rank], 1, version, streams[p][rank]);
}

static inline void unmake(int rank, int p)
{
  xfer_plan_destroy(plans[p][rank]);
  ranks_barrier();
  tensor_free(&tensors[p][rank]);
}

/* A device is busy with other work once all tensors have their values. */
static inline void fill_and_hold(const tensor *t, uint64_t version, int byte, int held)
{
  tensor_fill(t, version, byte);
  tensor_open(t, version);
  ranks_barrier();
  if (t->rank == 0) sim_hold(held, true);
  ranks_barrier();
}

/* The plan's run fails here, and says so in good time. */
static inline void need_failed_wait(int rank, int p, int64_t within_ms)
{
  const int64_t began = world_ms();
  const xfer_status st = xfer_plan_wait(plans[p][rank], 0);

  NEED(st != XFER_OK);
  NEED(world_ms() - began < within_ms);
  tensor_close(&tensors[p][rank]);
}

static inline void in_world(int n, comm_kind kind, xfer_lane l, void (*work)(int rank))
{
  lane = l;
  world_make(n, kind, (sim_config){.seed = 0});
  world_go(work);
  world_destroy();
}

#endif
