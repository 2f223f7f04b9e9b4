/*
 * What the files of the simulated machine share. machine.c: the lock, calls, devices; stream.c:
 * streams, steps; event.c: events; copy.c: copies, sets, kernels; digest.c: digests; words.c: waits
 * and writes of words; memory.c: allocations; chunks.c: mapping by pieces; capture.c: graphs;
 * nccl*.c: communicators; guard.c: what must not happen; fault.c: calls that fail.
 */
#ifndef XFER_SIM_MACHINE_H
#define XFER_SIM_MACHINE_H

#include "sim.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "kernels.h"
#include "launch.h"

typedef struct sim_op sim_op;
typedef struct sim_stream sim_stream;
typedef struct sim_capture sim_capture;

/* ---- calls -------------------------------------------------------------------------------- */

typedef struct sim_machine {
  pthread_mutex_t lock;
  pthread_cond_t work; /* there is something to do for the machine's thread */
  pthread_t thread;
  bool has_thread;
  sim_config config;
  uint64_t random;
  int lag; /* 0 to 3: how long the machine's thread stays behind */
  sim_counts counts;
  bool held[SIM_DEVICES];
  uint64_t reaches[SIM_DEVICES]; /* bit e: peer access to device e is enabled */
  uint64_t loaded[SIM_DEVICES];  /* bit k: kernel k is loaded */
  uint64_t used[SIM_DEVICES];    /* bytes */
  uint64_t contexts;             /* bit d: device d has a primary context */
  uint64_t last_seq;
  uint64_t last_id; /* of allocations */
} sim_machine;

extern sim_machine sim;

/* What a thread is to the machine. */
enum { SIM_CONTEXTS = 8 };
typedef struct sim_thread {
  int device;                 /* the current context's, or, without one, that of the runtime */
  int runtime_device;         /* of cudaSetDevice() */
  int contexts[SIM_CONTEXTS]; /* the stack: devices, [n_contexts] */
  int n_contexts;
  int rank;
  uint64_t run;
  cudaError_t last_error;
  enum cudaStreamCaptureMode mode;
  sim_stream *streams[SIM_DEVICES]; /* cudaStreamPerThread */
} sim_thread;

sim_thread *sim_self(void);

/* 0 to n - 1, by the seed. */
uint64_t sim_draw(uint64_t n);
int64_t sim_now_ns(void);
void sim_sleep_us(int64_t us);

/* Every function of the API begins with one of these, which take the lock, and ends with leave.
 * UNSAFE: capture forbids it. What they return must be returned, if it is not 0. */
enum { SIM_SAFE, SIM_UNSAFE };
int sim_enter(const char *name, int safety);
cudaError_t sim_leave(cudaError_t error);
CUresult sim_leave_driver(CUresult error);

#define SIM_ENTER(safety)                                                                          \
  do {                                                                                             \
    int sim_refused = sim_enter(__func__, safety);                                                 \
    if (sim_refused != 0) return sim_leave((cudaError_t)sim_refused);                              \
  } while (0)
#define SIM_ENTER_DRIVER(safety)                                                                   \
  do {                                                                                             \
    int sim_refused = sim_enter(__func__, safety);                                                 \
    if (sim_refused != 0) return sim_leave_driver((CUresult)sim_refused);                          \
  } while (0)

/* fault.c: 0, or what the call must return; may sleep without the lock. */
int sim_fault_of(const char *name);

/* ---- streams and operations --------------------------------------------------------------- */

typedef struct sim_op_class {
  const char *name;
  bool (*ready)(sim_op *op); /* NULL: always */
  bool (*step)(sim_op *op);  /* do a part; true: that was the last */
  void (*drop)(sim_op *op);  /* NULL: nothing to give back */
  bool in_graphs;            /* a capture may hold it; of NCCL: it may not */
  bool needs_access;         /* to a peer's memory; a copy can go around */
} sim_op_class;

/* The head of every operation. */
struct sim_op {
  const sim_op_class *cls;
  sim_op *next;
  sim_stream *stream;
  uint64_t seq; /* of all operations, in the order of enqueuing */
  int rank;
  uint64_t run;
};

void *sim_op_make(const sim_op_class *cls, size_t n_bytes);
/* The operation is the stream's from here on, whatever this returns. May block at a full queue. */
cudaError_t sim_enqueue(void *op, sim_stream *stream);
void sim_op_drop(sim_op *op);

/* NULL: no such stream. */
sim_stream *sim_stream_of(cudaStream_t handle);
int sim_stream_device(const sim_stream *stream);
sim_capture **sim_stream_capture(sim_stream *stream);
bool sim_stream_is_legacy(const sim_stream *stream);
bool sim_stream_is_blocking(const sim_stream *stream);

/* One step of some stream; false: none can go on. */
bool sim_step(void);
/* Make steps, and let others make theirs, until done(context). */
void sim_wait_until(bool (*done)(void *context), void *context, const char *what);
/* What a look at a stream or an event does to the machine. */
void sim_poll_steps(void);
void sim_wait_device(int device);
void sim_streams_dump(void);
bool sim_is_idle(void);

/* ---- memory ------------------------------------------------------------------------------- */

typedef enum sim_kind {
  SIM_DEVICE,     /* cudaMalloc */
  SIM_PINNED,     /* cudaHostAlloc */
  SIM_REGISTERED, /* cudaHostRegister */
  SIM_CHUNK,      /* mapped by cuMemMap */
  SIM_IMPORTED    /* of another process, by cudaIpcOpenMemHandle */
} sim_kind;

typedef struct sim_chunk sim_chunk; /* chunks.c */

typedef struct sim_memory {
  char *base;
  size_t n_bytes;
  uint64_t id;
  sim_kind kind;
  int device;
  int n_opens; /* SIM_IMPORTED */
  sim_chunk *chunk;
  uint64_t access; /* SIM_CHUNK: bit d: device d may touch it */
} sim_memory;

/* The living memory there, and whether a range lies in what is mapped without a gap. NULL: none. */
const sim_memory *sim_memory_at(const void *pointer);
bool sim_memory_holds(const void *pointer, size_t n_bytes);
/* Gives it an id. NULL: there is memory already. */
sim_memory *sim_memory_add(sim_memory memory);
void sim_memory_remove(const void *base);
/* Is it an address of the machine's, living or not? */
bool sim_memory_is_ours(const void *pointer);
/* Give the system back what devices have where nothing lives. */
void sim_arenas_trim(void);
/* An interval of addresses that is the machine's from here on. */
void sim_addresses_claim(const void *base, size_t n_bytes);
/* One that begins there is not any more, since the system may give it to anybody. */
void sim_addresses_release(const void *base);
/* May operations of `device` touch it? */
bool sim_memory_reaches(int device, const sim_memory *memory);

/* chunks.c: the interval that was reserved around it, and may it leave the process? */
void sim_chunk_reservation(const sim_memory *memory, CUdeviceptr *base, size_t *n_bytes);
bool sim_chunk_leaves(const sim_chunk *chunk);

/* ---- what must not happen ----------------------------------------------------------------- */

__attribute__((format(printf, 1, 2))) void sim_violation(const char *format, ...);
/* An operation is about to touch bytes, which were in allocation `id` when it was enqueued (0: not
 * known). False: they are gone, and it must not. */
bool sim_touch(const sim_op *op, const void *bytes, size_t n_bytes, bool writes, uint64_t id);
/* Of a copy, row by row where bytes are watched. */
void sim_touched(const sim_op *op, const xfi_copy *copy);

/* ---- copies ------------------------------------------------------------------------------- */

/* Several copies as one kernel, in no order, which reads a table on the device, behind a gate. */
cudaError_t sim_copies_enqueue(const xfi_copy *copies, size_t n, const void *table,
                               size_t table_bytes, const xfi_cuda_gate *gate, sim_stream *stream);
/* Does a part of *copy, which becomes the rest; true: nothing is left. */
bool sim_copy_part(const sim_op *op, xfi_copy *copy, uint64_t src_id, uint64_t dst_id);
uint64_t sim_id_at(const void *pointer);

/* Kernels that must be loaded, and launching one. */
enum {
  SIM_KERNEL_ROWS,
  SIM_KERNEL_RAGGED,
  SIM_KERNEL_SWAPPED,
  SIM_KERNEL_CONVERTS,
  SIM_KERNEL_BLOCKS,
  SIM_KERNEL_FLAGS,
  SIM_KERNEL_DIGEST
};
cudaError_t sim_kernel_enqueue(int kernel, void *op, sim_stream *stream);

/* ---- capture ------------------------------------------------------------------------------ */

/* May the calling thread make a call that may be unsafe? If not, captures that forbid it are
 * invalid from here on. */
bool sim_capture_allows(void);
/* An operation of a capturing stream. */
cudaError_t sim_capture_take(sim_capture *capture, sim_op *op);
/* An implicit use of the legacy stream while a blocking stream of the device captures. */
bool sim_capture_forbids_legacy(int device, bool only_asked);
bool sim_capture_is_valid(const sim_capture *capture);
bool sim_capture_is_over(const sim_capture *capture);
void sim_capture_invalidate(sim_capture *capture);
void sim_capture_join(sim_capture *capture, sim_stream *stream);

/* The driver's functions of a file, by name; the last name is NULL. */
typedef struct sim_function {
  const char *name;
  void (*function)(void);
} sim_function;
extern const sim_function sim_copy_functions[];
extern const sim_function sim_word_functions[];
extern const sim_function sim_memory_functions[];
extern const sim_function sim_chunk_functions[];
#define SIM_FUNCTION(name)                                                                         \
  {                                                                                                \
#name, (void (*)(void))sim_##name                                                              \
  }

#endif
