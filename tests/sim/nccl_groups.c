/* Calls between ncclGroupStart and ncclGroupEnd, and when their kernels go. */
#include "nccl_machine.h"

#include <stdlib.h>
#include <string.h>

enum { TASKS_MAX = 256, PAIR_BYTES = 4 << 20, RING = 1, SPLIT_RING = 2 };

static _Thread_local struct {
  int depth;
  task tasks[TASKS_MAX];
  int n;
  ncclResult_t error;
} group;

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
      const unsigned char ring = t->by->of != NULL ? SPLIT_RING : RING;
      if (j->in_ring[comm->rank] == 0) count_link(comm);
      j->in_ring[comm->rank] |= ring;
      for (size_t r = 0; r < size; r++)
        all = all && (j->in_ring[r] & ring) != 0;
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

bool sim_nccl_is_settled(void *context)
{
  struct ncclComm *comm = context;

  if (comm->aborted || comm->job->bad) return true;
  return comm->job->n_joined == comm->job->size && advance(comm) != ncclInProgress;
}

/* Have all ranks come to the split? */
static bool is_split(struct ncclComm *comm)
{
  const job *j = comm->job;

  if (comm->split_at == NULL) return true;
  for (int r = 0; r < j->size; r++)
    if (j->comms[r] == NULL || j->comms[r]->n_splits < comm->n_splits) return false;
  *comm->split_at = comm->split;
  comm->split_at = NULL;
  return true;
}

ncclResult_t sim_nccl_state(struct ncclComm *comm)
{
  struct ncclComm *whole = comm->of != NULL ? comm->of : comm;
  ncclResult_t state = ncclInProgress;
  bool any = false;

  if (whole->job->bad) return ncclInvalidUsage;
  if (whole->job->n_joined < whole->job->size || !is_split(whole)) return ncclInProgress;
  state = advance(whole);
  for (const launch *l = whole->pending; l != NULL; l = l->next)
    any = any || l->split_off == (comm->of != NULL);
  return state == ncclInProgress && !any ? ncclSuccess : state;
}

/* One that was split off is there to launch at once. */
static void check_is_linked(const task *t)
{
  const job *j = t->comm->job;
  const size_t pair = (size_t)t->comm->rank * (size_t)j->size + (size_t)t->peer;
  const bool linked = is_message(t->kind) ? (j->linked[pair] & (t->kind == SEND ? 1 : 2)) != 0
                                          : (j->in_ring[t->comm->rank] & RING) != 0;

  if (t->by->of != NULL && t->by->blocking && !(linked && t->by->shares))
    sim_violation("NCCL: rank %d connects in a call that blocks", t->comm->rank);
}

static void launch_add(struct ncclComm *comm, kernel *k, const task *t)
{
  launch **at = &comm->pending;
  launch *made = calloc(1, sizeof *made);

  if (made == NULL) abort();
  *made = (launch){.kernel = k,
                   .stream = sim_stream_of(t->stream),
                   .split_off = t->by->of != NULL,
                   .delay = (int)sim_draw(3)};
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
    check_is_linked(&group.tasks[i]);
    for (int k = 0; k < i; k++)
      seen =
          seen || (group.tasks[k].comm == comm && group.tasks[k].stream == group.tasks[i].stream);
    if (seen) continue;
    kernel *k = sim_nccl_kernel_make(comm, group.tasks, group.n, group.tasks[i].stream);
    launch_add(comm, k, &group.tasks[i]);
  }
  for (int i = 0; i < group.n; i++) {
    struct ncclComm *comm = group.tasks[i].comm;
    if (group.tasks[i].by->blocking) sim_wait_until(sim_nccl_is_settled, comm, "NCCL to launch");
    const ncclResult_t now = sim_nccl_state(group.tasks[i].by);
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

  t.by = t.comm;
  if (t.comm != NULL && t.comm->of != NULL) t.comm = t.comm->of;
  if (refused == 0 &&
      (t.comm == NULL || t.comm->aborted || t.peer < 0 || t.peer >= t.comm->job->size))
    result = sim_nccl_fail(ncclInvalidArgument, "a communicator or peer");
  if (result == ncclSuccess && t.comm->job->n_joined < t.comm->job->size)
    result = sim_nccl_fail(ncclInvalidUsage, "the communicator is not ready");
  if (result == ncclSuccess && (t.n_bytes == 0 || group.n == TASKS_MAX))
    result =
        sim_nccl_fail(ncclInvalidArgument, "no bytes, or more calls in a group than are simulated");
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
