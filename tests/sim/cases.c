#include "cases.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "rng.h"

enum { MEMORIES_MAX = 4096, SETTLE_MS = 60000 };

static uint64_t case_seed;
static uint64_t case_now;

typedef struct owned {
  void *memory;
  int rank;
  int guard;
} owned;

static owned memories[MEMORIES_MAX]; /* [n_memories] guarded by lock */
static int n_memories;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cudaStream_t streams[ORC_MAX_RANKS];
static bool entered[ORC_MAX_RANKS];

static void check(cudaError_t error, const char *what)
{
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  abort();
}

/* One of the kinds of streams that a caller may have. */
static void enter(int rank)
{
  rng r = rng_of(case_seed, case_now, 3000 + (uint64_t)rank);

  sim_rank(rank);
  sim_run(0);
  check(cudaSetDevice(rank), "cudaSetDevice");
  streams[rank] = NULL;
  entered[rank] = true;
  if (rng_percent(&r, 20)) return;
  check(cudaStreamCreateWithFlags(&streams[rank],
                                  rng_percent(&r, 60) ? cudaStreamNonBlocking : cudaStreamDefault),
        "cudaStreamCreateWithFlags");
}

static void streams_close(void)
{
  for (int r = 0; r < ORC_MAX_RANKS; r++) {
    if (entered[r] && streams[r] != NULL) check(cudaStreamDestroy(streams[r]), "cudaStreamDestroy");
    entered[r] = false;
  }
}

static void *take(int rank, size_t n_bytes)
{
  void *memory = NULL;

  check(cudaMalloc(&memory, n_bytes), "cudaMalloc");
  (void)pthread_mutex_lock(&lock);
  if (n_memories == MEMORIES_MAX) abort();
  memories[n_memories++] = (owned){memory, rank, sim_guard(rank, memory, n_bytes)};
  (void)pthread_mutex_unlock(&lock);
  return memory;
}

static void release(void *memory)
{
  (void)pthread_mutex_lock(&lock);
  for (int i = 0; i < n_memories; i++) {
    if (memories[i].memory != memory) continue;
    sim_guard_drop(memories[i].guard);
    memories[i] = memories[--n_memories];
    break;
  }
  (void)pthread_mutex_unlock(&lock);
  check(cudaFree(memory), "cudaFree");
}

static xfer_stream stream_of(int rank)
{
  return streams[rank];
}

static void guards_set(int rank, bool open, uint64_t run)
{
  (void)pthread_mutex_lock(&lock);
  for (int i = 0; i < n_memories; i++) {
    if (memories[i].rank != rank) continue;
    if (open)
      sim_guard_open(memories[i].guard, run);
    else
      sim_guard_close(memories[i].guard);
  }
  (void)pthread_mutex_unlock(&lock);
}

static void begin(int rank, uint64_t run)
{
  sim_run(case_now << 16 | run);
  guards_set(rank, true, case_now << 16 | run);
}

static bool end(int rank, bool waited)
{
  const bool done = waited || cudaStreamSynchronize(streams[rank]) == cudaSuccess;

  guards_set(rank, false, 0);
  sim_run(0);
  return done;
}

const rank_device sim_device = {.enter = enter,
                                .alloc = take,
                                .release = release,
                                .stream = stream_of,
                                .begin = begin,
                                .end = end};

/* ---- the machine -------------------------------------------------------------------------- */

void device_topology(uint64_t seed, uint64_t number, bool islands, bool deaf)
{
  sim_config config = {.seed = seed, .n_devices = SIM_DEVICES, .deaf = deaf};
  rng r = rng_of(seed, number, 4000);
  const int n_islands = islands ? rng_int(&r, 1, 3) : 1;
  int island[SIM_DEVICES];

  for (int d = 0; d < SIM_DEVICES; d++)
    island[d] = rng_int(&r, 0, n_islands - 1);
  for (int d = 0; d < SIM_DEVICES; d++)
    for (int e = 0; e < SIM_DEVICES; e++)
      if (island[d] != island[e]) config.apart[d] |= UINT64_C(1) << e;
  config.connections = rng_percent(&r, 25) ? rng_int(&r, 1, 32) : 0;
  config.small_engine = rng_percent(&r, 50);
  config.many_launches = rng_percent(&r, 50);
  config.without_room = rng_int(&r, 0, 2);
  sim_setup(&config);
}

void device_case(uint64_t seed, uint64_t number)
{
  case_seed = seed;
  case_now = number;
  sim_seed(seed * 1000003 + number);
}

bool device_case_end(char *violation, size_t n_bytes)
{
  if (!sim_settle(SETTLE_MS)) {
    sim_dump();
    return false;
  }
  streams_close();
  sim_violations_take(violation, n_bytes);
  return true;
}
