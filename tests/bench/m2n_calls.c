/* As M2N's own tests and benchmarks call it: one handle, descriptors made once, every rank of the
 * comm with both sides' shapes. */
#include "m2n_calls.h"

#include <stdlib.h>
#include <string.h>

/* More entries than that in one group are not fused, but sent one after the other. */
enum { GROUP_MAX = 4096 };

/*
 * In the order of what is worth knowing, since one that hangs takes those after it along. Windows
 * of the caller make no difference, for this version does not look at them.
 */
const m2n_way m2n_ways[N_M2N_WAYS] = {
    {.name = "M2N one by one",
     .usage = "ncclReshard() for each tensor, PACK (its default transport), one stream",
     .copy = "PACK",
     .n_comms = 1},
    {.name = "M2N 4 comms",
     .usage = "the same over four comms in turn, each with a stream and 1 GiB to stage in",
     .copy = "PACK",
     .room = "1024m:4",
     .n_comms = M2N_COMMS},
    {.name = "M2N grouped",
     .usage = "PACK, all tensors in ncclM2nGroupStart() and ncclM2nGroupEnd(), 4096 at most in one",
     .copy = "PACK",
     .n_comms = 1,
     .grouped = true},
    {.name = "M2N pipe",
     .usage = "likewise with NCCL_RESHARD_COPY_ALGORITHM=PIPE and ..PIPE_NET_MODE=HOST_RMA",
     .copy = "PIPE",
     .pipe = "HOST_RMA",
     .n_comms = 1,
     .grouped = true},
    {.name = "M2N direct",
     .usage = "likewise with NCCL_RESHARD_COPY_ALGORITHM=DIRECT",
     .copy = "DIRECT",
     .n_comms = 1,
     .grouped = true},
};

void m2n_need_comms(m2n *m, const perf_world *w, const m2n_way *way)
{
  for (int k = 0; k < way->n_comms; k++) {
    ncclUniqueId all[64];
    ncclUniqueId mine;

    if (m->comms[k] != NULL) continue;
    memset(&mine, 0, sizeof mine);
    if (w->rank == 0) NCCL(w, ncclGetUniqueId(&mine));
    perf_gather(w, all, &mine, sizeof mine);
    NCCL(w, ncclCommInitRank(&m->comms[k], w->size, all[0], w->rank));
    if (m->streams[k] != NULL) continue;
    CUDA(w, cudaStreamCreateWithFlags, (&m->streams[k], cudaStreamNonBlocking));
    CUDA(w, cudaEventCreateWithFlags, (&m->events[k], cudaEventDisableTiming));
  }
}

static void describe_side(const m2n *m, m2n_tensor *t, const bench_tensor *shape, int side,
                          void *data)
{
  const int dim = m->per_side > 1 ? shape->sharded[side] : WHOLE;
  ncclDistTensor_t *of = &t->sides[side];

  for (int d = 0; d < shape->n_dims; d++)
    t->local[side][d] = (size_t)(d == dim ? shape->shape[d] / m->per_side : shape->shape[d]);
  t->placements[side] = dim == WHOLE ? NCCL_RESHARD_REPLICATE : NCCL_RESHARD_SHARD(dim);
  *of = (ncclDistTensor_t)NCCL_M2N_DIST_TENSOR_INITIALIZER;
  of->dataPtr = data;
  of->localShape = t->local[side];
  of->ndims = shape->n_dims;
  of->dtype = ncclBfloat16;
  of->mesh = &m->meshes[side];
  of->placements = &t->placements[side];
}

void m2n_describe(m2n *m, const perf_world *w, const bench_workload *what, const perf_case *c)
{
  m->per_side = w->n_train;
  m->n_tensors = c->n_tensors;
  m->tensors = calloc(c->n_tensors, sizeof *m->tensors);
  if (m->tensors == NULL) perf_die(w, "M2N's descriptors", "no memory");
  for (int side = 0; side < 2; side++) {
    m->meshes[side] = (ncclMesh_t)NCCL_M2N_MESH_INITIALIZER;
    m->meshes[side].ndims = 1;
    m->meshes[side].dims = &m->per_side;
    m->meshes[side].startRank = side * w->n_train;
  }
  for (size_t i = 0; i < c->n_tensors; i++)
    for (int side = 0; side < 2; side++)
      describe_side(m, &m->tensors[i], bench_workload_tensor(what, (int)i), side,
                    c->views[i][side].base);
}

void m2n_forget(m2n *m)
{
  free(m->tensors);
  m->tensors = NULL;
  m->n_tensors = 0;
}

static void set(const char *name, const char *value)
{
  if (value != NULL)
    (void)setenv(name, value, 1);
  else
    (void)unsetenv(name);
}

ncclResult_t m2n_open(m2n *m, const m2n_way *way)
{
  set("NCCL_RESHARD_COPY_ALGORITHM", way->copy);
  set("NCCL_RESHARD_PIPE_NET_MODE", way->pipe);
  set("NCCL_RESHARD_PACK_BUFFSIZES", way->room);
  return ncclM2nInit(&m->handle, NULL);
}

/* The comms' streams begin after `stream`; or it goes on after them. */
static bool fork_or_join(const m2n *m, const m2n_way *way, cudaStream_t stream, bool is_fork)
{
  for (int k = 0; k < way->n_comms; k++) {
    cudaStream_t before = is_fork ? stream : m->streams[k];
    cudaStream_t after = is_fork ? m->streams[k] : stream;

    if (cudaEventRecord(m->events[k], before) != cudaSuccess ||
        cudaStreamWaitEvent(after, m->events[k], 0) != cudaSuccess)
      return false;
  }
  return true;
}

static ncclResult_t issue_some(m2n *m, const m2n_way *way, size_t first, size_t n,
                               cudaStream_t stream)
{
  ncclResult_t result = way->grouped ? ncclM2nGroupStart() : ncclSuccess;

  for (size_t i = first; i < first + n && result == ncclSuccess; i++) {
    const int k = (int)(i % (size_t)way->n_comms);

    result = ncclReshard(m->handle, m->comms[k], &m->tensors[i].sides[0], &m->tensors[i].sides[1],
                         way->n_comms > 1 ? m->streams[k] : stream);
  }
  if (way->grouped && result == ncclSuccess) result = ncclM2nGroupEnd();
  return result;
}

ncclResult_t m2n_issue(m2n *m, const m2n_way *way, cudaStream_t stream)
{
  if (way->n_comms > 1 && !fork_or_join(m, way, stream, true)) return ncclUnhandledCudaError;
  for (size_t first = 0; first < m->n_tensors; first += GROUP_MAX) {
    const size_t left = m->n_tensors - first;
    const ncclResult_t result =
        issue_some(m, way, first, left < GROUP_MAX ? left : GROUP_MAX, stream);

    if (result != ncclSuccess) return result;
  }
  if (way->n_comms > 1 && !fork_or_join(m, way, stream, false)) return ncclUnhandledCudaError;
  return ncclSuccess;
}

ncclResult_t m2n_close(m2n *m)
{
  const ncclResult_t result = ncclM2nFinalize(m->handle);

  m->handle = NULL;
  return result;
}

void m2n_abandon(m2n *m, const m2n_way *way)
{
  (void)ncclM2nGroupAbort();
  if (m->handle != NULL) (void)m2n_close(m);
  for (int k = 0; k < way->n_comms; k++) {
    (void)ncclCommAbort(m->comms[k]);
    m->comms[k] = NULL;
  }
}
