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

/* Kept to the end of the process, since events may name it. */
struct sim_capture {
  sim_capture *next;
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
  if (!op->cls->in_graphs) capture->valid = false; /* of NCCL: graphs of it are not simulated */
  if (capture->valid) graph_add(capture->graph, op);
  if (capture->valid) return cudaSuccess;
  sim_op_drop(op);
  return !op->cls->in_graphs ? cudaErrorStreamCaptureUnsupported
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
  SIM_ENTER(SIM_SAFE);
  sim_stream *stream = sim_stream_of(handle);
  if (sim_stream_is_legacy(stream)) return sim_leave(cudaErrorStreamCaptureUnsupported);
  if (*sim_stream_capture(stream) != NULL) return sim_leave(cudaErrorIllegalState);
  sim_capture *made = calloc(1, sizeof *made);
  if (made == NULL) abort();
  *made = (sim_capture){.next = captures,
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

/* ---- graphs ------------------------------------------------------------------------------- */

cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph)
{
  SIM_ENTER(SIM_SAFE);
  graph_free(graph);
  free(graph);
  return sim_leave(cudaSuccess);
}
