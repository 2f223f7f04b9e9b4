/*
 * What the tests of single faults share: ranks that are threads, tensors whose bytes are known, and
 * a runner. A test is a function that is run in a process of its own, since a library that fails
 * may leave threads that never end; and again with longer deadlines, if the host was too slow:
 *
 *   test_x [--seed S] [NAME]        without a name: all, one process each
 */
#ifndef XFER_SIM_WORLD_H
#define XFER_SIM_WORLD_H

#include "ranks.h"
#include "sim.h"

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <xfer/nccl.h>
#include <xfer/xfer.h>

enum { WORLD_RANKS = 33, WORLD_PATIENCE_S = 150 };

/* ---- the runner --------------------------------------------------------------------------- */

typedef struct world_test {
  const char *name;
  void (*run)(void);
} world_test;
int world_main(int argc, char **argv, const world_test *tests, size_t n);
/* Runs one and ends the process. */
void world_run_one(const world_test *test);
uint64_t world_seed(void);
void world_set_seed(uint64_t seed);
/* Say which case this is where something fails; time and patience begin anew. */
void world_case(uint64_t number);

/* End the process with this status: nothing was done to the ranks yet, and still a deadline passed,
 * so the host is too loaded for it. */
enum { WORLD_TOO_SLOW = 75 };
/* A deadline that one rank is to miss, and what goes with it; longer in each run of the test. */
int64_t world_time(int64_t ms);
/* Where a condition does not hold, say so and end the process. */
void world_failed(const char *file, int line, const char *what);
#define NEED(condition)                                                                            \
  do {                                                                                             \
    if (!(condition)) world_failed(__FILE__, __LINE__, #condition);                                \
  } while (0)
#define OK(call)                                                                                   \
  do {                                                                                             \
    if ((call) != XFER_OK) world_failed(__FILE__, __LINE__, #call);                                \
  } while (0)
/* The same of what need not hold where a rank misses a deadline that is for another one. */
void world_too_slow(const char *file, int line, const char *what);
#define NEED_IN_TIME(condition)                                                                    \
  do {                                                                                             \
    if (!(condition)) world_too_slow(__FILE__, __LINE__, #condition);                              \
  } while (0)
#define OK_IN_TIME(call) NEED_IN_TIME((call) == XFER_OK)
/* No operation touched what it must not. */
void world_need_no_violation(const char *file, int line);
#define NEED_NO_VIOLATION() world_need_no_violation(__FILE__, __LINE__)

/* ---- ranks -------------------------------------------------------------------------------- */

typedef struct world {
  int n;
  int n_devices;
  uint64_t window_bytes; /* of plans; 0: chosen */
  xfer_comm *comms[WORLD_RANKS];
} world;
extern world w;

/* The comms of n ranks. config->seed is set here; n_devices 0: one for each rank. */
void world_make(int n, comm_kind kind, sim_config config);
/* The same without comms. */
void world_clear(int n, sim_config config);
/* work(rank) on each rank's thread. */
void world_go(void (*work)(int rank));
void world_destroy(void);
int64_t world_ms(void); /* since the process began */
void world_sleep_ms(int64_t ms);

/* ---- tensors ------------------------------------------------------------------------------ */

typedef enum form {
  RING,       /* rank r's bytes go to rank r + 1 */
  EACH_EACH,  /* rows become columns: each rank has some for each */
  FROM_FIRST, /* rank 0's bytes go to all others, */
  FROM_LAST   /* the last rank's do, which are one domain: from 3 ranks on they relay them */
} form;

typedef struct tensor {
  form shape;
  int rank;
  int64_t width; /* bytes of a message */
  unsigned char *bytes[2];
  size_t n_bytes[2]; /* 0: this rank has no part */
  int guards[2];
  xfer_layout *layouts[2];
} tensor;

enum { FROM = 0, TO = 1 };
/* Each part's allocation goes on for so long. */
enum { TENSOR_ROOM = 16 };

void tensor_make(tensor *t, form shape, int rank, int64_t width);
void tensor_free(tensor *t);
/* Give a rank's source the values of `key`, and all of its destination one byte. */
void tensor_fill(const tensor *t, uint64_t key, int byte);
/* In one call of the rank's. */
xfer_status tensor_redistribute(const tensor *t, cudaStream_t stream);
/* Does the destination hold the values of `key`; or nothing but that byte? */
bool tensor_holds(const tensor *t, uint64_t key);
bool tensor_is_all(const tensor *t, int byte);
/* Others may touch it in run `run`; nobody may. */
void tensor_open(const tensor *t, uint64_t run);
void tensor_close(const tensor *t);

/* What a plan of tensors of that form says of domains. */
uint32_t world_ranks_per_domain(form shape);
/* A plan of n tensors, bound, not committed. */
xfer_plan *world_plan(int rank, const tensor *tensors, size_t n, xfer_lane lane,
                      uint64_t timeout_ms);
/* fill, open, run, wait, close, compare: all must work. */
void world_run(xfer_plan *plan, const tensor *tensors, size_t n, uint64_t version,
               cudaStream_t stream);
cudaStream_t world_stream(void);
/* From here on the stream waits, until sim_hold(spare, false), for a device that nobody else uses.
 */
void world_hold_up(cudaStream_t stream, int spare);
/* All ranks: rank 1's stream, which waits for device w.n, waits no more, and all streams end. */
void world_let_go_on(int rank, cudaStream_t stream);
/* Of kernels that copy, so far. */
uint64_t world_launches(void);
/* Device memory, whatever other threads capture. */
void *world_alloc(size_t n_bytes);
void world_free(void *memory);

/* world_make(), world_go() and no violation. */
void world_of(int n, comm_kind kind, sim_config config, void (*work)(int rank));
/* An xfer_all_gather_fn of one rank. */
int world_gather_alone(void *context, void *all, const void *mine, size_t n_bytes);

#endif
