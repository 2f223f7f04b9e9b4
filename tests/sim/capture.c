/*
 * Capture of a stream into a graph. A graph is the list of its operations in the order of capture,
 * which is one order that its edges allow.
 *
 * Which calls may be unsafe is listed nowhere. SIM_UNSAFE are those that an H100's driver of CUDA
 * 13 refused to a second thread while a capture in global mode ran: waiting for, and asking after,
 * events, streams and the device; cudaMalloc, cudaFree; getting, registering and giving back memory
 * of the host. It let pass: making and destroying streams and events, recording, copies, also those
 * that wait, cudaMemGetInfo, cudaIpcGetMemHandle. Mapping, which was not asked, is SIM_UNSAFE too.
 */
#include "machine.h"

#include "error.h"
#include "launch.h"

#include <stdlib.h>
#include <string.h>

enum { STREAMS_MAX = 32 };

struct CUgraph_st {
  sim_op **ops; /* [n] */
  size_t n;
  size_t capacity;
};

struct CUgraphExec_st {
  struct CUgraph_st graph;
};

/* Kept to the end of the process, since events may name it. */
struct sim_capture {
  sim_capture *next;
  unsigned long long id;
  enum cudaStreamCaptureMode mode;
  const sim_thread *thread;
  sim_stream *origin;
  sim_stream *streams[STREAMS_MAX]; /* [n_streams] that joined */
  int n_streams;
  bool valid;
  bool over;
  struct CUgraph_st *graph;
};

static sim_capture *captures;

bool sim_capture_is_valid(const sim_capture *capture)
{
  return capture->valid;
}

bool sim_capture_is_over(const sim_capture *capture)
{
  return capture->over;
}

void sim_capture_invalidate(sim_capture *capture)
{
  capture->valid = false;
}

/* As cudaThreadExchangeStreamCaptureMode defines it. */
bool sim_capture_allows(void)
{
  const sim_thread *self = sim_self();
  bool allowed = true;

  if (self->mode == cudaStreamCaptureModeRelaxed) return true;
  for (sim_capture *c = captures; c != NULL; c = c->next) {
    const bool forbids = c->thread == self ? c->mode != cudaStreamCaptureModeRelaxed
                                           : self->mode == cudaStreamCaptureModeGlobal &&
                                                 c->mode == cudaStreamCaptureModeGlobal;
    if (c->over || !forbids) continue;
    c->valid = false;
    allowed = false;
  }
  return allowed;
}

bool sim_capture_forbids_legacy(int device, bool only_asked)
{
  bool forbids = false;

  for (sim_capture *c = captures; c != NULL; c = c->next) {
    if (c->over || sim_stream_device(c->origin) != device || !sim_stream_is_blocking(c->origin))
      continue;
    if (!only_asked) c->valid = false;
    forbids = true;
  }
  return forbids;
}

static void graph_add(struct CUgraph_st *graph, sim_op *op)
{
  if (graph->n == graph->capacity) {
    graph->capacity = 2 * graph->capacity + 16;
    graph->ops = realloc(graph->ops, graph->capacity * sizeof(sim_op *));
    if (graph->ops == NULL) abort();
  }
  graph->ops[graph->n++] = op;
}

cudaError_t sim_capture_take(sim_capture *capture, sim_op *op)
{
  if (op->cls->clone == NULL) capture->valid = false; /* of NCCL: graphs of it are not simulated */
  if (capture->valid) graph_add(capture->graph, op);
  if (capture->valid) return cudaSuccess;
  sim_op_drop(op);
  return op->cls->clone == NULL ? cudaErrorStreamCaptureUnsupported
                                : cudaErrorStreamCaptureInvalidated;
}

void sim_capture_join(sim_capture *capture, sim_stream *stream)
{
  if (capture->n_streams == STREAMS_MAX) abort();
  capture->streams[capture->n_streams++] = stream;
  *sim_stream_capture(stream) = capture;
}

/* ---- the API ------------------------------------------------------------------------------ */

cudaError_t CUDARTAPI cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
  sim_thread *self = sim_self();

  SIM_ENTER(SIM_SAFE);
  const enum cudaStreamCaptureMode before = self->mode;
  self->mode = *mode;
  *mode = before;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
  static unsigned long long last_id;

  SIM_ENTER(SIM_SAFE);
  sim_stream *stream = sim_stream_of(handle);
  if (sim_stream_is_legacy(stream)) return sim_leave(cudaErrorStreamCaptureUnsupported);
  if (*sim_stream_capture(stream) != NULL) return sim_leave(cudaErrorIllegalState);
  sim_capture *made = calloc(1, sizeof *made);
  if (made == NULL) abort();
  *made = (sim_capture){.next = captures,
                        .id = ++last_id,
                        .mode = mode,
                        .thread = sim_self(),
                        .origin = stream,
                        .valid = true,
                        .graph = calloc(1, sizeof *made->graph)};
  if (made->graph == NULL) abort();
  captures = made;
  sim_capture_join(made, stream);
  return sim_leave(cudaSuccess);
}

static void graph_free(struct CUgraph_st *graph)
{
  for (size_t i = 0; i < graph->n; i++)
    sim_op_drop(graph->ops[i]);
  free(graph->ops);
  memset(graph, 0, sizeof *graph);
}

cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph)
{
  SIM_ENTER(SIM_SAFE);
  sim_stream *stream = sim_stream_of(handle);
  sim_capture *c = *sim_stream_capture(stream);
  *graph = NULL;
  if (c == NULL || c->origin != stream) return sim_leave(cudaErrorIllegalState);
  if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != sim_self())
    return sim_leave(cudaErrorStreamCaptureWrongThread);
  for (int i = 0; i < c->n_streams; i++)
    *sim_stream_capture(c->streams[i]) = NULL;
  c->over = true;
  if (c->valid) *graph = c->graph;
  if (c->valid) return sim_leave(cudaSuccess);
  graph_free(c->graph);
  free(c->graph);
  return sim_leave(cudaErrorStreamCaptureInvalidated);
}

static enum cudaStreamCaptureStatus status_of(const sim_capture *capture)
{
  if (capture == NULL) return cudaStreamCaptureStatusNone;
  return capture->valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
}

cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t handle,
                                            enum cudaStreamCaptureStatus *status)
{
  SIM_ENTER(SIM_SAFE);
  sim_stream *stream = sim_stream_of(handle);
  if (sim_stream_is_legacy(stream) && sim_capture_forbids_legacy(sim_stream_device(stream), true))
    return sim_leave(cudaErrorStreamCaptureImplicit);
  *status = status_of(*sim_stream_capture(stream));
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(cudaStream_t handle,
                                               enum cudaStreamCaptureStatus *status,
                                               unsigned long long *id, cudaGraph_t *graph,
                                               const cudaGraphNode_t **dependencies,
                                               const cudaGraphEdgeData **edges,
                                               size_t *n_dependencies)
{
  SIM_ENTER(SIM_SAFE);
  sim_stream *stream = sim_stream_of(handle);
  const sim_capture *c = *sim_stream_capture(stream);
  if (sim_stream_is_legacy(stream) && sim_capture_forbids_legacy(sim_stream_device(stream), true))
    return sim_leave(cudaErrorStreamCaptureImplicit);
  *status = status_of(c);
  if (id != NULL) *id = c != NULL ? c->id : 0;
  if (graph != NULL) *graph = c != NULL ? c->graph : NULL;
  if (dependencies != NULL) *dependencies = NULL;
  if (edges != NULL) *edges = NULL;
  if (n_dependencies != NULL) *n_dependencies = 0;
  return sim_leave(cudaSuccess);
}

/* ---- graphs ------------------------------------------------------------------------------- */

static sim_op *op_clone(const sim_op *op)
{
  sim_op *made = sim_op_make(op->cls, op->n_bytes);
  const int rank = made->rank;
  const uint64_t run = made->run;

  memcpy(made, op, op->n_bytes);
  made->rank = rank;
  made->run = run;
  op->cls->clone(made, op);
  return made;
}

static void graph_copy(struct CUgraph_st *to, const struct CUgraph_st *from)
{
  for (size_t i = 0; i < from->n; i++)
    graph_add(to, op_clone(from->ops[i]));
}

cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph)
{
  SIM_ENTER(SIM_SAFE);
  graph_free(graph);
  free(graph);
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
  SIM_ENTER(SIM_SAFE);
  (void)nodes;
  *n = graph->n;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph,
                                           unsigned long long flags)
{
  SIM_ENTER(SIM_SAFE);
  (void)flags;
  struct CUgraphExec_st *made = calloc(1, sizeof *made);
  if (made == NULL) abort();
  graph_copy(&made->graph, graph);
  *out = made;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t exec)
{
  SIM_ENTER(SIM_SAFE);
  graph_free(&exec->graph);
  free(exec);
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle)
{
  cudaError_t error = cudaSuccess;

  SIM_ENTER(SIM_SAFE);
  for (size_t i = 0; i < exec->graph.n && error == cudaSuccess; i++)
    error = sim_enqueue(op_clone(exec->graph.ops[i]), sim_stream_of(handle));
  return sim_leave(error);
}
