/*
 * A simulated machine: the CUDA runtime, the CUDA driver and NCCL on the CPU, as far as
 * libxfer_nccl uses them. Its objects link against it unchanged, so that what only GPUs can run is
 * tested where there are none. This header is the tests' side of it.
 *
 * What holds, in words. It follows CUDA's documentation where that says something; where it says
 * nothing, the simulator does now this and now that, as its seed decides.
 *
 * - One lock; every call takes it. Streams are queues. A step takes one operation, or a part of it,
 *   from the head of any stream whose order allows it. Steps are made by a thread of the machine,
 * by calls that wait, and by polls. The seed decides which stream goes on, how far ahead of the
 *   others, and how a copy is cut in parts, between which others go on.
 * - The legacy stream of a device waits for, and is waited for by, its blocking streams. Streams
 * made with cudaStreamNonBlocking know no such order. Priorities promise nothing.
 * - A stream holds SIM_QUEUE_LIMIT operations, as was counted on an H100; the call that would put
 * one more blocks, and is counted.
 * - Waits on words compare cyclically (CU_STREAM_WAIT_VALUE_GEQ is a signed difference; so it was
 * on an H100: UINT64_MAX does not end a wait for 5).
 * - Memory has numbers that follow each other, and are never used again, and addresses that are: a
 * free block is taken again at once, more often than not. New and freed memory is poisoned.
 * cudaFree waits for its device. A kernel that was not loaded waits for its device when it is
 * launched.
 * - Capture: a call that may be unsafe, from a thread whose mode forbids it, fails and invalidates.
 * - NCCL: kernels of one communicator run in order of launch; each holds its stream until its
 * peers' kernels have come. Pairs connect at their first message, both at once. An abort is local.
 *
 * Ranks are threads: sim_rank() says which one the calling thread is, and operations belong to the
 * rank that enqueued them.
 */
#ifndef XFER_SIM_H
#define XFER_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SIM_DEVICES = 64, SIM_QUEUE_LIMIT = 1020, SIM_NO_RANK = -1 };

/* ---- the machine -------------------------------------------------------------------------- */

typedef struct sim_config {
  uint64_t seed;
  int n_devices;               /* 0: 8 */
  uint64_t memory_bytes;       /* of each device; 0: 4 GiB */
  uint64_t apart[SIM_DEVICES]; /* bit e of apart[d]: d and e cannot reach each other */
  bool no_wait64;              /* streams cannot wait on 64-bit words */
  int connections;             /* hardware queues that a device's streams share; 0: one each */
  bool eager;                  /* never lag on purpose */
  bool deaf;                   /* streams do not wait for words: a tester must notice */
  bool nccl_ends_together;     /* its destroy waits for that of all ranks, as within a host */
  const char *lacks;           /* a function that the driver has not; NULL: it has all */
  unsigned driver;             /* CUDA's version of it, 12040 say; 0: it knows all */
  bool maps_elsewhere;         /* devices have another address for registered host memory */
  bool numbers_apart;          /* of allocations: each is two above the one before */
  /* ranks_make_comm(): */
  bool small_engine;  /* the copy engine is worth using for any size, a stream for each peer too */
  bool many_launches; /* guards and flags have launches of their own */
  int without_room;   /* 1 + the rank that has no room for snapshots; 0: all have, */
  uint64_t room;      /* and so many bytes; 0: as much as there is */
} sim_config;

/* Set the machine up, or change it. Nothing may be in flight. */
void sim_setup(const sim_config *config);
sim_config sim_config_now(void);
/* A new seed for what follows. */
void sim_seed(uint64_t seed);
/* Which rank the calling thread is, and in which run: tags of what it enqueues from here on. */
void sim_rank(int rank);
void sim_run(uint64_t run);
/* Wait until nothing is in flight on any stream; false: it did not come in time. */
bool sim_settle(int64_t timeout_ms);
/* Hold or let go all streams of a device: a rank whose device is busy with other work. */
void sim_hold(int device, bool held);
/* What is queued, to stderr. */
void sim_dump(void);

typedef struct sim_counts {
  uint64_t calls;      /* of the API */
  uint64_t steps;      /* of streams */
  uint64_t full;       /* host calls that a full queue held up */
  uint64_t queued_max; /* operations on one stream */
  uint64_t faults;     /* calls that were made to fail */
  uint64_t bytes;      /* in allocations of cudaMalloc and cuMemCreate now */
  uint64_t pinned;     /* bytes of registered and pinned host memory now */
  uint64_t streams;    /* that exist now, */
  uint64_t events;     /* likewise, */
  uint64_t imports;    /* and memory of other processes */
  uint64_t nccl_pairs; /* connections that NCCL ever made, one for each end and direction */
  uint64_t nccl_bytes; /* registered with it now */
} sim_counts;
sim_counts sim_count(void);
/* Bit d: something made a context on device d. */
uint64_t sim_contexts(void);
/* How often a function was called, by its name. */
uint64_t sim_calls_of(const char *name);

/* ---- what must not happen ----------------------------------------------------------------- */

/* Memory of a rank. Other ranks' operations may touch it from open() to close(), in run `run` only;
 * its own likewise, once closed, unless they were enqueued later. Reading is allowed before it
 * opens: a rank that gave up waiting for it may, as the memory of a committed plan is there.
 * Without a guard memory may be touched by anybody. Returns a number for the calls below. */
int sim_guard(int rank, const void *memory, size_t n_bytes);
void sim_guard_open(int guard, uint64_t run);
void sim_guard_close(int guard);
void sim_guard_drop(int guard);
/* From here on reading a byte of the guard's that no operation has written is a violation. */
void sim_guard_unwritten(int guard);

/* Violations so far: of guards, touching freed or unmapped memory, counts of NCCL that differ. */
size_t sim_violations(void);
/* The first of them, "" if there is none; forgets all. */
void sim_violations_take(char *text, size_t n_bytes);

/* ---- faults ------------------------------------------------------------------------------- */

typedef struct sim_fault {
  const char *name; /* of the function; NULL: any that may fail */
  int rank;         /* who calls; SIM_NO_RANK: anybody */
  uint64_t nth;     /* the nth such call from here on, from 1; 0: each with chance `percent` */
  int percent;
  int code;         /* what it returns; 0: it works */
  int64_t delay_us; /* and it takes so long; < 0: until sim_fault_clear() */
  bool kills;       /* it ends the process instead */
} sim_fault;
void sim_fault_add(const sim_fault *fault);
void sim_fault_clear(void);

#endif
