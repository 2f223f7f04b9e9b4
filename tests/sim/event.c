/* Events: places in streams that others wait for. */
#include "machine.h"

#include <stdlib.h>

struct CUevent_st {
  int refs;
  uint64_t recorded; /* times */
  uint64_t passed;
  int device;
  bool blocking;
  sim_capture *capture; /* last recorded in */
};

typedef struct event_op {
  sim_op op;
  struct CUevent_st *event;
  uint64_t version;
} event_op;

static void event_release(struct CUevent_st *event)
{
  if (--event->refs == 0) free(event);
}

static void event_drop(sim_op *op)
{
  event_release(((event_op *)(void *)op)->event);
}

static bool record_step(sim_op *op)
{
  event_op *o = (event_op *)(void *)op;

  if (o->version > o->event->passed) o->event->passed = o->version;
  return true;
}

static bool wait_ready(sim_op *op)
{
  const event_op *o = (const event_op *)(const void *)op;

  return o->event->passed >= o->version;
}

static bool wait_step(sim_op *op)
{
  (void)op;
  return true;
}

static const sim_op_class record_class = {
    .name = "event record", .step = record_step, .drop = event_drop};
static const sim_op_class wait_class = {
    .name = "wait for an event", .ready = wait_ready, .step = wait_step, .drop = event_drop};

static cudaError_t event_enqueue(const sim_op_class *cls, struct CUevent_st *event,
                                 uint64_t version, sim_stream *stream)
{
  event_op *op = sim_op_make(cls, sizeof *op);

  op->event = event;
  op->version = version;
  event->refs++;
  return sim_enqueue(op, stream);
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
  SIM_ENTER(SIM_SAFE);
  struct CUevent_st *event = calloc(1, sizeof *event);
  if (event == NULL) abort();
  event->refs = 1;
  event->device = sim_self()->device;
  event->blocking = (flags & cudaEventBlockingSync) != 0;
  sim.counts.events++;
  *out = event;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t *event)
{
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event)
{
  SIM_ENTER(SIM_SAFE);
  if (event == NULL) return sim_leave(cudaErrorInvalidResourceHandle);
  sim.counts.events--;
  event_release(event);
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
  SIM_ENTER(SIM_SAFE);
  sim_stream *stream = sim_stream_of(handle);
  if (event->device != sim_stream_device(stream)) return sim_leave(cudaErrorInvalidResourceHandle);
  event->capture = *sim_stream_capture(stream);
  if (event->capture == NULL) event->recorded++;
  if (event->capture != NULL && !sim_capture_is_valid(event->capture))
    return sim_leave(cudaErrorStreamCaptureInvalidated);
  if (event->capture != NULL) return sim_leave(cudaSuccess); /* an edge of its graph */
  return sim_leave(event_enqueue(&record_class, event, event->recorded, stream));
}

/* An event that was last recorded in a capture has passed nothing once that is over. */
static void forget_ended(struct CUevent_st *event)
{
  if (event->capture != NULL && sim_capture_is_over(event->capture)) event->capture = NULL;
}

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags)
{
  SIM_ENTER(SIM_SAFE);
  sim_stream *stream = sim_stream_of(handle);
  sim_capture *capture = *sim_stream_capture(stream);
  (void)flags;
  forget_ended(event);
  if (event->capture != NULL && capture == NULL && !sim_stream_is_legacy(stream)) {
    sim_capture_join(event->capture, stream);
    return sim_leave(cudaSuccess);
  }
  if (event->capture != NULL && event->capture == capture) return sim_leave(cudaSuccess);
  if (capture != NULL || event->capture != NULL) { /* of two captures, or of none */
    if (capture != NULL) sim_capture_invalidate(capture);
    return sim_leave(cudaErrorStreamCaptureIsolation);
  }
  if (event->recorded == 0) return sim_leave(cudaSuccess);
  return sim_leave(event_enqueue(&wait_class, event, event->recorded, stream));
}

typedef struct event_until {
  const struct CUevent_st *event;
  uint64_t version;
} event_until;

static bool event_has_passed(void *context)
{
  const event_until *u = context;

  return u->event->passed >= u->version;
}

static cudaError_t refuse_captured(struct CUevent_st *event)
{
  forget_ended(event);
  if (event->capture == NULL) return cudaSuccess;
  sim_capture_invalidate(event->capture);
  return cudaErrorCapturedEvent;
}

cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event)
{
  SIM_ENTER(SIM_UNSAFE);
  const cudaError_t error = refuse_captured(event);
  if (error != cudaSuccess) return sim_leave(error);
  sim_poll_steps();
  return sim_leave(event->passed >= event->recorded ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event)
{
  SIM_ENTER(SIM_UNSAFE);
  const cudaError_t error = refuse_captured(event);
  event_until u = {event, event->recorded};
  if (error != cudaSuccess) return sim_leave(error);
  event->refs++;
  sim_wait_until(event_has_passed, &u, "an event");
  event_release(event);
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
  SIM_ENTER(SIM_SAFE);
  *ms = 0.001f; /* not simulated */
  return sim_leave(from->passed < from->recorded || to->passed < to->recorded ? cudaErrorNotReady
                                                                              : cudaSuccess);
}
