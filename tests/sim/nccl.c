/*
 * Communicators of NCCL. A group becomes one kernel for each communicator and stream. A kernel
 * starts when those launched before it on its communicator have ended, and holds its stream until
 * all its messages are through; those need the peer's kernel to have started too. Small sends may
 * end earlier, since NCCL has buffers.
 *
 * Pairs connect at their first message, when both ends have one, and collectives when all ranks
 * have one; until then a non-blocking communicator is "in progress" and has launched nothing.
 */
#include "machine.h"

#include <nccl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TASKS_MAX = 256, PAIR_BYTES = 4 << 20, EAGER_BYTES = 64 * 1024, TEXT_BYTES = 200 };

typedef enum task_kind { SEND, RECV, BROADCAST, ALL_GATHER } task_kind;

typedef struct task {
  task_kind kind;
  struct ncclComm *comm;
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
  unsigned char *in_ring;  /* [size] */
  bool bad;                /* two ranks on one device */
  meeting *meetings;
} job;

/* A group that has not been launched. */
typedef struct launch {
  struct launch *next;
  kernel *kernel;
  sim_stream *stream;
  int delay; /* looks at the communicator until it goes */
} launch;

struct ncclComm {
  job *job;
  int rank;
  int device;
  bool blocking;
  bool aborted;
  bool leaves; /* in its destroy */
  int refs;
  launch *pending;
  uint64_t launched; /* kernels */
  uint64_t ended;
  uint64_t *sent;     /* [size] messages */
  uint64_t *received; /* [size] */
  uint64_t collectives;
  uint64_t link_bytes;
  ncclResult_t state;
};

static job *jobs;
static uint64_t last_job;
static _Thread_local struct {
  int depth;
  task tasks[TASKS_MAX];
  int n;
  ncclResult_t error;
} group;
static _Thread_local char last_text[TEXT_BYTES];

static ncclResult_t leave(ncclResult_t result)
{
  (void)pthread_mutex_unlock(&sim.lock);
  return result;
}

#define NCCL_ENTER()                                                                               \
  do {                                                                                             \
    int sim_refused = sim_enter(__func__, SIM_SAFE);                                               \
    if (sim_refused != 0) return leave((ncclResult_t)sim_refused);                                 \
  } while (0)

static ncclResult_t fail(ncclResult_t result, const char *text)
{
  (void)snprintf(last_text, sizeof last_text, "%s", text);
  return result;
}

/* ---- meetings ----------------------------------------------------------------------------- */

static bool is_message(task_kind kind)
{
  return kind == SEND || kind == RECV;
}

/* Where a part stands in its meeting. */
static int seat(const part *p)
{
  if (p->task.kind == SEND) return 0;
  if (p->task.kind == RECV) return 1;
  return p->task.comm->rank;
}

static meeting *meeting_of(const part *p)
{
  const task *t = &p->task;
  job *j = t->comm->job;
  const bool message = is_message(t->kind);
  const int from = t->kind == RECV ? t->peer : message ? t->comm->rank : t->peer;
  const int to = t->kind == SEND ? t->peer : t->comm->rank;

  for (meeting *m = j->meetings; m != NULL; m = m->next) {
    if ((m->kind == SEND) != message || m->index != p->index) continue;
    if (!message || (m->from == from && m->to == to)) return m;
  }
  meeting *made = calloc(1, sizeof *made);
  if (made == NULL) abort();
  *made = (meeting){.next = j->meetings,
                    .kind = message ? SEND : t->kind,
                    .from = from,
                    .to = to,
                    .index = p->index,
                    .n_bytes = t->n_bytes};
  made->parts = calloc(message ? 2 : (size_t)j->size, sizeof(part *));
  if (made->parts == NULL) abort();
  j->meetings = made;
  return made;
}

static void meeting_free(job *j, meeting *m)
{
  meeting **at = &j->meetings;

  while (*at != m)
    at = &(*at)->next;
  *at = m->next;
  free(m->parts);
  free(m->eager);
  free(m);
}

/* A message's sender needs not wait for its receiver where a buffer takes the bytes. */
static void leave_early(part *p)
{
  meeting *m = p->meeting;

  if (p->task.kind != SEND || p->task.n_bytes > EAGER_BYTES || sim_draw(2) == 0) return;
  if (!sim_touch(p->op, p->task.in, p->task.n_bytes, false, 0)) return;
  m->eager = malloc(p->task.n_bytes);
  if (m->eager == NULL) abort();
  memcpy(m->eager, p->task.in, p->task.n_bytes);
}

static void come(part *p)
{
  meeting *m = meeting_of(p);
  const task *t = &p->task;

  if (m->n_bytes != t->n_bytes ||
      (!is_message(t->kind) && (m->kind != t->kind || m->from != t->peer)))
    sim_violation("NCCL: rank %d meets a peer with %zu bytes, it has %zu, or in another call",
                  t->comm->rank, m->n_bytes, t->n_bytes);
  if (t->n_bytes < m->n_bytes) m->n_bytes = t->n_bytes;
  p->meeting = m;
  m->parts[seat(p)] = p;
  m->n_come++;
  leave_early(p);
}

/* Bytes of a collective that this part receives: all of the root's, or each rank's. */
static size_t wanted(const part *p)
{
  const meeting *m = p->meeting;

  if (p->task.kind == SEND) return 0;
  return p->task.kind == ALL_GATHER ? m->n_bytes * (size_t)p->task.comm->job->size : m->n_bytes;
}

static bool has_all_come(const part *p)
{
  const meeting *m = p->meeting;

  if (p->task.kind == RECV && m->eager != NULL) return true;
  return m->n_come == (is_message(p->task.kind) ? 2 : p->task.comm->job->size);
}

/* Whose bytes come next, and which; NULL: they left. */
static const part *source(const part *p, size_t *at, size_t *n_bytes)
{
  const meeting *m = p->meeting;
  const size_t n = m->n_bytes;
  const size_t from = p->task.kind == RECV        ? 0
                      : p->task.kind == BROADCAST ? (size_t)m->from
                                                  : p->at / n;

  *at = p->task.kind == ALL_GATHER ? p->at % n : p->at;
  *n_bytes = n - *at;
  return m->parts[from];
}

/* Can it go on, or end? */
static bool can_go(const part *p)
{
  size_t at;
  size_t n_bytes;

  if (p->over) return false;
  if (p->task.kind == SEND) return p->meeting->eager != NULL || p->meeting->n_done > 0;
  if (!has_all_come(p)) return false;
  if (p->read) {
    const int readers = p->task.kind == RECV ? 1 : p->task.comm->job->size;
    const bool gives = p->task.kind == ALL_GATHER ||
                       (p->task.kind == BROADCAST && p->meeting->from == p->task.comm->rank);
    return !gives || p->meeting->n_done == readers;
  }
  if (p->at == wanted(p)) return true;
  if (p->task.kind == RECV && p->meeting->eager != NULL) return true;
  return source(p, &at, &n_bytes) != NULL;
}

static void leave_meeting(part *p)
{
  meeting *m = p->meeting;
  job *j = p->task.comm->job;
  const int all = is_message(p->task.kind) ? 2 : j->size;

  p->over = true;
  if (m == NULL) return;
  m->parts[seat(p)] = NULL;
  if (++m->n_left == all) meeting_free(j, m);
  p->meeting = NULL;
}

/* Some bytes, or the end. */
static void go(part *p)
{
  size_t at = 0;
  size_t n = 0;

  if (p->task.kind == SEND || p->read) {
    leave_meeting(p);
    return;
  }
  if (p->at < wanted(p)) {
    const part *from = source(p, &at, &n);
    const char *bytes = p->meeting->eager != NULL ? p->meeting->eager + at : from->task.in + at;
    char *to = p->task.out + p->at;
    if (n > 1 && sim_draw(2) == 0) n = 1 + (size_t)sim_draw(n);
    const bool same = to == bytes;
    const xfi_copy copy = {.src = bytes, .dst = to, .run_bytes = (int64_t)n};
    if (!same && (p->meeting->eager != NULL || sim_touch(from->op, bytes, n, false, 0)) &&
        sim_touch(p->op, to, n, true, 0)) {
      sim_touched(p->op, &copy);
      memcpy(to, bytes, n);
    }
    p->at += n;
  }
  p->read = p->at == wanted(p);
  if (p->read) p->meeting->n_done++;
}

/* ---- kernels ------------------------------------------------------------------------------ */

static void comm_release(struct ncclComm *comm)
{
  job *j = comm->job;
  job **at = &jobs;

  if (--comm->refs > 0) return;
  j->comms[comm->rank] = NULL;
  sim.used[comm->device] -= comm->link_bytes;
  free(comm->sent);
  free(comm->received);
  free(comm);
  if (--j->refs > 0) return;
  while (*at != j)
    at = &(*at)->next;
  *at = j->next;
  while (j->meetings != NULL)
    meeting_free(j, j->meetings);
  free(j->comms);
  free(j->wants);
  free(j->linked);
  free(j->in_ring);
  free(j);
}

static bool kernel_ready(sim_op *op)
{
  const kernel *k = (const kernel *)(const void *)op;
  bool left = false;

  if (k->comm->aborted) return true;
  if (!k->started) return k->comm->ended == k->turn;
  for (size_t i = 0; i < k->n; i++) {
    if (can_go(&k->parts[i])) return true;
    left = left || !k->parts[i].over;
  }
  return !left;
}

static bool kernel_step(sim_op *op)
{
  kernel *k = (kernel *)(void *)op;
  const size_t first = (size_t)sim_draw(k->n);
  bool left = false;

  if (k->comm->aborted) {
    for (size_t i = 0; i < k->n; i++)
      if (!k->parts[i].over) leave_meeting(&k->parts[i]);
    return true;
  }
  if (!k->started) {
    for (size_t i = 0; i < k->n; i++)
      come(&k->parts[i]);
    k->started = true;
    return false;
  }
  for (size_t i = 0; i < k->n; i++) {
    part *p = &k->parts[(first + i) % k->n];
    if (!can_go(p)) continue;
    go(p);
    break;
  }
  for (size_t i = 0; i < k->n; i++)
    left = left || !k->parts[i].over;
  if (!left) k->comm->ended++;
  return !left;
}

static void kernel_drop(sim_op *op)
{
  kernel *k = (kernel *)(void *)op;

  free(k->parts);
  comm_release(k->comm);
}

static const sim_op_class kernel_class = {
    .name = "kernel of NCCL", .ready = kernel_ready, .step = kernel_step, .drop = kernel_drop};

/* ---- groups ------------------------------------------------------------------------------- */

static void count_link(struct ncclComm *comm)
{
  sim.counts.nccl_pairs++;
  comm->link_bytes += PAIR_BYTES;
  sim.used[comm->device] += PAIR_BYTES;
}

/* Both ends of all messages have come once, and all ranks to a collective. */
static bool connect_all(struct ncclComm *comm, const kernel *k)
{
  job *j = comm->job;
  const size_t size = (size_t)j->size;
  bool all = true;

  for (size_t i = 0; i < k->n; i++) {
    const task *t = &k->parts[i].task;
    if (!is_message(t->kind)) {
      if (j->in_ring[comm->rank] == 0) count_link(comm);
      j->in_ring[comm->rank] = 1;
      for (size_t r = 0; r < size; r++)
        all = all && j->in_ring[r] != 0;
      continue;
    }
    const size_t mine = (size_t)comm->rank * size + (size_t)t->peer;
    const size_t theirs = (size_t)t->peer * size + (size_t)comm->rank;
    const unsigned char out = t->kind == SEND ? 1 : 2;
    const unsigned char in = t->kind == SEND ? 2 : 1;
    j->wants[mine] |= out;
    if ((j->wants[theirs] & in) == 0) all = false;
    if ((j->linked[mine] & out) == 0 && (j->wants[theirs] & in) != 0) {
      j->linked[mine] |= out;
      count_link(comm);
    }
  }
  return all;
}

/* Launches what can be. */
static ncclResult_t advance(struct ncclComm *comm)
{
  while (comm->pending != NULL && comm->state == ncclSuccess) {
    launch *l = comm->pending;
    if (l->delay-- > 0 || !connect_all(comm, l->kernel)) return ncclInProgress;
    comm->pending = l->next;
    l->kernel->turn = comm->launched++;
    const cudaError_t error = sim_enqueue(l->kernel, l->stream);
    free(l);
    if (error != cudaSuccess) comm->state = ncclUnhandledCudaError;
  }
  return comm->state;
}

static bool is_settled(void *context)
{
  struct ncclComm *comm = context;

  if (comm->aborted || comm->job->bad) return true;
  return comm->job->n_joined == comm->job->size && advance(comm) != ncclInProgress;
}

static ncclResult_t state_of(struct ncclComm *comm)
{
  if (comm->job->bad) return ncclInvalidUsage;
  if (comm->job->n_joined < comm->job->size) return ncclInProgress;
  return advance(comm);
}

static kernel *kernel_make(struct ncclComm *comm, const task *tasks, int n, cudaStream_t stream)
{
  kernel *k = sim_op_make(&kernel_class, sizeof *k);

  k->comm = comm;
  comm->refs++;
  k->parts = calloc((size_t)n, sizeof *k->parts);
  if (k->parts == NULL) abort();
  for (int i = 0; i < n; i++) {
    const task *t = &tasks[i];
    if (t->comm != comm || t->stream != stream) continue;
    part *p = &k->parts[k->n++];
    *p = (part){.task = *t, .op = &k->op};
    p->index = t->kind == SEND   ? comm->sent[t->peer]++
               : t->kind == RECV ? comm->received[t->peer]++
                                 : comm->collectives++;
  }
  return k;
}

static void launch_add(struct ncclComm *comm, kernel *k, cudaStream_t stream)
{
  launch **at = &comm->pending;
  launch *made = calloc(1, sizeof *made);

  if (made == NULL) abort();
  *made = (launch){.kernel = k, .stream = sim_stream_of(stream), .delay = (int)sim_draw(3)};
  while (*at != NULL)
    at = &(*at)->next;
  *at = made;
}

/* A kernel for each communicator and stream; in progress if one of them is. */
static ncclResult_t group_launch(void)
{
  ncclResult_t result = ncclSuccess;

  for (int i = 0; i < group.n; i++) {
    struct ncclComm *comm = group.tasks[i].comm;
    bool seen = false;
    for (int k = 0; k < i; k++)
      seen =
          seen || (group.tasks[k].comm == comm && group.tasks[k].stream == group.tasks[i].stream);
    if (seen) continue;
    kernel *k = kernel_make(comm, group.tasks, group.n, group.tasks[i].stream);
    launch_add(comm, k, group.tasks[i].stream);
  }
  for (int i = 0; i < group.n; i++) {
    struct ncclComm *comm = group.tasks[i].comm;
    if (comm->blocking) sim_wait_until(is_settled, comm, "NCCL to launch");
    const ncclResult_t now = state_of(comm);
    if (now != ncclSuccess && result == ncclSuccess) result = now;
  }
  return result;
}

static ncclResult_t group_end(void)
{
  ncclResult_t result = group.error;

  if (--group.depth > 0) return ncclSuccess;
  if (result == ncclSuccess) result = group_launch();
  group.n = 0;
  group.error = ncclSuccess;
  return result;
}

ncclResult_t ncclGroupStart(void); /* nccl.h declares them without their parameters */
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
  NCCL_ENTER();
  group.depth++;
  return leave(ncclSuccess);
}

ncclResult_t ncclGroupEnd(void)
{
  const int refused = sim_enter(__func__, SIM_SAFE);

  if (group.depth == 0) return leave(ncclInvalidUsage);
  if (refused != 0) group.error = (ncclResult_t)refused;
  return leave(group_end());
}

static ncclResult_t task_add(task t, const char *name)
{
  const int refused = sim_enter(name, SIM_SAFE);
  ncclResult_t result = (ncclResult_t)refused;

  if (refused == 0 &&
      (t.comm == NULL || t.comm->aborted || t.peer < 0 || t.peer >= t.comm->job->size))
    result = fail(ncclInvalidArgument, "a communicator or peer");
  if (result == ncclSuccess && t.comm->job->n_joined < t.comm->job->size)
    result = fail(ncclInvalidUsage, "the communicator is not ready");
  if (result == ncclSuccess && (t.n_bytes == 0 || group.n == TASKS_MAX))
    result = fail(ncclInvalidArgument, "no bytes, or more calls in a group than are simulated");
  if (result != ncclSuccess) {
    if (group.depth > 0) group.error = result;
    return leave(result);
  }
  group.depth++;
  group.tasks[group.n++] = t;
  return leave(group_end());
}

static size_t size_of(ncclDataType_t type)
{
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

  return (size_t)type < sizeof sizes / sizeof sizes[0] ? sizes[type] : 1;
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
  return task_add((task){.kind = SEND,
                         .comm = comm,
                         .stream = stream,
                         .in = in,
                         .n_bytes = count * size_of(type),
                         .peer = peer},
                  __func__);
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
  return task_add((task){.kind = RECV,
                         .comm = comm,
                         .stream = stream,
                         .out = out,
                         .n_bytes = count * size_of(type),
                         .peer = peer},
                  __func__);
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
  return task_add((task){.kind = BROADCAST,
                         .comm = comm,
                         .stream = stream,
                         .in = in,
                         .out = out,
                         .n_bytes = count * size_of(type),
                         .peer = root},
                  __func__);
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
  return task_add((task){.kind = ALL_GATHER,
                         .comm = comm,
                         .stream = stream,
                         .in = in,
                         .out = out,
                         .n_bytes = count * size_of(type)},
                  __func__);
}

/* ---- communicators ------------------------------------------------------------------------ */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
  NCCL_ENTER();
  memset(id, 0, sizeof *id);
  (void)snprintf(id->internal, sizeof id->internal, "sim %llu", (unsigned long long)++last_job);
  return leave(ncclSuccess);
}

static job *job_of(const ncclUniqueId *id, int size)
{
  job *j = jobs;

  while (j != NULL && memcmp(&j->id, id, sizeof *id) != 0)
    j = j->next;
  if (j != NULL) return j;
  j = calloc(1, sizeof *j);
  if (j == NULL) abort();
  const size_t n = (size_t)size;
  *j = (job){.next = jobs, .id = *id, .size = size};
  j->comms = calloc(n, sizeof(struct ncclComm *));
  j->wants = calloc(n, n);
  j->linked = calloc(n, n);
  j->in_ring = calloc(n, 1);
  if (j->comms == NULL || j->wants == NULL || j->linked == NULL || j->in_ring == NULL) abort();
  jobs = j;
  return j;
}

static ncclResult_t init(ncclComm_t *out, int size, const ncclUniqueId *id, int rank, bool blocking)
{
  *out = NULL;
  if (size < 1 || rank < 0 || rank >= size) return fail(ncclInvalidArgument, "rank or size");
  job *j = job_of(id, size);
  if (j->size != size || j->comms[rank] != NULL) return fail(ncclInvalidUsage, "a rank twice");
  struct ncclComm *comm = calloc(1, sizeof *comm);
  if (comm == NULL) abort();
  *comm = (struct ncclComm){.job = j,
                            .rank = rank,
                            .device = sim_self()->device,
                            .blocking = blocking,
                            .refs = 1,
                            .sent = calloc((size_t)size, sizeof(uint64_t)),
                            .received = calloc((size_t)size, sizeof(uint64_t))};
  if (comm->sent == NULL || comm->received == NULL) abort();
  for (int r = 0; r < size; r++)
    if (j->comms[r] != NULL && j->comms[r]->device == comm->device) j->bad = true;
  j->comms[rank] = comm;
  j->n_joined++;
  j->refs++;
  *out = comm;
  if (blocking) sim_wait_until(is_settled, comm, "NCCL to start");
  return state_of(comm);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank)
{
  NCCL_ENTER();
  return leave(init(comm, size, &id, rank, true));
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
  NCCL_ENTER();
  return leave(init(comm, size, &id, rank, config == NULL || config->blocking != 0));
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
  NCCL_ENTER();
  *state = state_of(comm);
  return leave(ncclSuccess);
}

/* Local: own kernels end, those of others do not. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
  NCCL_ENTER();
  comm->aborted = true;
  while (comm->pending != NULL) {
    launch *l = comm->pending;
    comm->pending = l->next;
    sim_op_drop(&l->kernel->op);
    free(l);
  }
  comm_release(comm);
  return leave(ncclSuccess);
}

static bool has_ended(void *context)
{
  const struct ncclComm *comm = context;

  return comm->ended == comm->launched;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
  NCCL_ENTER();
  return leave(comm->blocking || has_ended(comm) ? ncclSuccess : ncclInProgress);
}

static bool all_leave(void *context)
{
  const struct ncclComm *comm = context;

  for (int r = 0; r < comm->job->size; r++)
    if (comm->job->comms[r] != NULL && !comm->job->comms[r]->leaves) return false;
  return true;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
  NCCL_ENTER();
  sim_wait_until(has_ended, comm, "an NCCL communicator to end");
  comm->leaves = true;
  if (sim.config.nccl_ends_together) sim_wait_until(all_leave, comm, "all ranks to destroy theirs");
  comm_release(comm);
  return leave(ncclSuccess);
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *size)
{
  NCCL_ENTER();
  *size = comm->job->size;
  return leave(ncclSuccess);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
  NCCL_ENTER();
  *rank = comm->rank;
  return leave(ncclSuccess);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
  NCCL_ENTER();
  *device = comm->device;
  return leave(ncclSuccess);
}

typedef struct registration {
  size_t n_bytes;
} registration;

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t n_bytes, void **handle)
{
  NCCL_ENTER();
  (void)comm;
  if (!sim_memory_holds(memory, n_bytes)) return leave(fail(ncclInvalidArgument, "memory"));
  registration *made = calloc(1, sizeof *made);
  if (made == NULL) abort();
  made->n_bytes = n_bytes;
  sim.counts.nccl_bytes += n_bytes;
  *handle = made;
  return leave(ncclSuccess);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
  NCCL_ENTER();
  (void)comm;
  sim.counts.nccl_bytes -= ((registration *)handle)->n_bytes;
  free(handle);
  return leave(ncclSuccess);
}

ncclResult_t ncclMemAlloc(void **out, size_t n_bytes)
{
  return cudaMalloc(out, n_bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void *memory)
{
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclGetVersion(int *version)
{
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};

  return (size_t)result < sizeof texts / sizeof texts[0] ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
  (void)comm;
  return last_text;
}
