/*
 * What the files of the simulated NCCL share. nccl_kernels.c: messages and collectives, and the
 * kernels that carry them out; nccl_groups.c: calls between ncclGroupStart and ncclGroupEnd, and
 * when their kernels go; nccl.c: communicators.
 *
 * A group becomes one kernel for each communicator and stream. A kernel starts when those launched
 * before it on its communicator have ended, and holds its stream until all its messages are
 * through; those need the peer's kernel to have started too. Small sends may end earlier, since
 * NCCL has buffers.
 *
 * Pairs connect at their first message, when both ends have one, and collectives when all ranks
 * have one; until then a non-blocking communicator is "in progress" and has launched nothing.
 *
 * A communicator that is split off shares connections, order and end with the one it comes of, but
 * each says of its own groups alone whether they have been launched, and the first collective of
 * each waits for all ranks. The environment decides whether it blocks, and whether it shares,
 * before its configuration does.
 */
#ifndef SIM_NCCL_MACHINE_H
#define SIM_NCCL_MACHINE_H

#include "machine.h"

#include <nccl.h>

typedef enum task_kind { SEND, RECV, BROADCAST, ALL_GATHER } task_kind;

typedef struct task {
  task_kind kind;
  struct ncclComm *by;   /* what it was put to */
  struct ncclComm *comm; /* the first, of one that was split off */
  cudaStream_t stream;
  const char *in;
  char *out;
  size_t n_bytes;
  int peer; /* or root */
} task;

typedef struct part part;

/* One message between two ranks, or one collective: `index` counts them, of a pair and direction or
 * of the communicator. */
typedef struct meeting {
  struct meeting *next;
  task_kind kind; /* SEND stands for a message */
  int from;       /* or root */
  int to;
  uint64_t index;
  size_t n_bytes;
  int n_come;
  int n_done;   /* readers that have all */
  int n_left;   /* parts that ended */
  part **parts; /* [size] of a collective; [2] of a message: sender, receiver */
  char *eager;  /* bytes that a sender left behind */
} meeting;

/* What one kernel does in one meeting. */
struct part {
  task task;
  uint64_t index;
  meeting *meeting; /* once the kernel has started */
  sim_op *op;
  size_t at; /* bytes that have arrived here */
  bool read; /* all of them */
  bool over;
};

typedef struct kernel {
  sim_op op;
  struct ncclComm *comm;
  uint64_t turn;
  bool started;
  part *parts; /* [n] */
  size_t n;
} kernel;

/* All ranks of a communicator. */
typedef struct job {
  struct job *next;
  ncclUniqueId id;
  int size;
  int n_joined;
  int refs;
  struct ncclComm **comms; /* [size] */
  unsigned char *wants;    /* [size][size] row r: rank r has a message to it, or from it */
  unsigned char *linked;   /* [size][size] */
  unsigned char *in_ring;  /* [size] bits: of the first communicators; of those split off */
  bool bad;                /* two ranks on one device */
  meeting *meetings;
} job;

/* A group that has not been launched. */
typedef struct launch {
  struct launch *next;
  kernel *kernel;
  sim_stream *stream;
  bool split_off; /* of the communicator that was split off, which alone says that it is on its way
                   */
  int delay;      /* looks at the communicator until it goes */
} launch;

struct ncclComm {
  job *job;
  int rank;
  int device;
  bool blocking;
  bool aborted;
  bool leaves; /* in its destroy */
  bool shares; /* connections, if it was split off */
  int refs;
  launch *pending;
  uint64_t launched; /* kernels */
  uint64_t ended;
  uint64_t *sent;     /* [size] messages */
  uint64_t *received; /* [size] */
  uint64_t collectives;
  uint64_t link_bytes;
  ncclResult_t state;
  struct ncclComm *of;    /* it was split off this one; NULL: it was not */
  struct ncclComm *split; /* what is being split off, once all ranks have come ... */
  ncclComm_t *split_at;   /* ... to be told here; NULL: nothing is */
  int n_splits;
};

static inline bool is_message(task_kind kind)
{
  return kind == SEND || kind == RECV;
}

/* ---- calls -------------------------------------------------------------------------------- */

static inline ncclResult_t leave(ncclResult_t result)
{
  (void)pthread_mutex_unlock(&sim.lock);
  return result;
}

#define NCCL_ENTER()                                                                               \
  do {                                                                                             \
    int sim_refused = sim_enter(__func__, SIM_SAFE);                                               \
    if (sim_refused != 0) return leave((ncclResult_t)sim_refused);                                 \
  } while (0)

/* `result`; ncclGetLastError() then has the text. */
ncclResult_t sim_nccl_fail(ncclResult_t result, const char *text);

/* ---- parts -------------------------------------------------------------------------------- */

/* The kernel of those of n tasks that are for this communicator and stream. */
kernel *sim_nccl_kernel_make(struct ncclComm *comm, const task *tasks, int n, cudaStream_t stream);
void sim_nccl_meeting_free(job *j, meeting *m);

/* Of a context that is a communicator: has it started, and launched all? */
bool sim_nccl_is_settled(void *context);
ncclResult_t sim_nccl_state(struct ncclComm *comm);

/* Gives up one of what holds the communicator. */
void sim_nccl_release(struct ncclComm *comm);

#endif
