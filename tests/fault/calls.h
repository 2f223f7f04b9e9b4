/* A comm and a device whose calls may fail, and the calls of a plan's life. */
#ifndef FAULT_CALLS_H
#define FAULT_CALLS_H

#include "fault/fault.h"

#include "error.h"
#include "object.h"

static const xfi_comm_ops *comm_ops;
static const xfi_device_ops *device_ops;
/* The including test's: does this call of the rank fail? Then the text is set. */
static bool fails_now(const char *call);

/* A transport that fails is of no more use, and tells the others. */
#define COMM_CALL(name, parameters, arguments)                                                     \
  static xfer_status comm_##name parameters                                                        \
  {                                                                                                \
    if (!fails_now("comm " #name)) return comm_ops->name arguments;                                \
    comm_ops->abort(comm, xfer_last_error());                                                      \
    return XFER_ERR_COMM;                                                                          \
  }
#define DEVICE_CALL(name, parameters, arguments)                                                   \
  static xfer_status device_##name parameters                                                      \
  {                                                                                                \
    return fails_now("device " #name) ? XFER_ERR_CUDA : device_ops->name arguments;                \
  }

COMM_CALL(all_gather,
          (xfi_comm * comm, void *all, const void *mine, size_t n_bytes, xfi_deadline deadline),
          (comm, all, mine, n_bytes, deadline))
COMM_CALL(exchange, (xfi_comm * comm, const xfi_messages *messages, xfi_deadline deadline),
          (comm, messages, deadline))
COMM_CALL(round,
          (xfi_comm * comm, const xfi_messages *messages, xfer_stream stream,
           xfi_deadline deadline),
          (comm, messages, stream, deadline))
COMM_CALL(broadcast,
          (xfi_comm * comm, const xfi_message *messages, int n, int root, xfer_stream stream,
           xfi_deadline deadline),
          (comm, messages, n, root, stream, deadline))
DEVICE_CALL(alloc, (xfi_device * device, void **memory, size_t n_bytes), (device, memory, n_bytes))
DEVICE_CALL(find_allocation,
            (xfi_device * device, const void *pointer, size_t n_bytes, xfi_allocation *found),
            (device, pointer, n_bytes, found))
/* Of streams and events, which the host has not: each event is this one, and has passed. */
#define STREAM_CALL(name, parameters, made)                                                        \
  static xfer_status device_##name parameters                                                      \
  {                                                                                                \
    (void)device, made;                                                                            \
    return fails_now("device " #name) ? XFER_ERR_CUDA : XFER_OK;                                   \
  }
static char the_event;
STREAM_CALL(stream_create, (xfi_device * device, xfer_stream *stream), *stream = NULL)
STREAM_CALL(stream_check, (xfi_device * device, xfer_stream stream), (void)stream)
STREAM_CALL(event_create, (xfi_device * device, xfi_event **event),
            *event = (xfi_event *)(void *)&the_event)
STREAM_CALL(stream_wait, (xfi_device * device, xfer_stream stream, xfi_event *event),
            ((void)stream, (void)event))

static xfer_status device_event_record(xfi_device *device, xfi_event *event, xfer_stream stream)
{
  (void)device, (void)event, (void)stream;
  return XFER_OK;
}

static xfer_status device_event_sync(xfi_device *device, xfi_event *event, xfi_deadline deadline)
{
  (void)device, (void)event, (void)deadline;
  return XFER_OK;
}

static void device_event_destroy(xfi_device *device, xfi_event *event)
{
  (void)device, (void)event;
}

DEVICE_CALL(batch_launch,
            (xfi_device * device, xfi_batch *batch, xfer_stream stream, xfi_event *turn),
            (device, batch, stream, turn))
DEVICE_CALL(digest_create,
            (xfi_device * device, xfi_digest **digest, const xfi_digest_box *boxes, size_t n_boxes,
             size_t n_slots),
            (device, digest, boxes, n_boxes, n_slots))
DEVICE_CALL(digest_launch, (xfi_device * device, xfi_digest *digest, xfer_stream stream),
            (device, digest, stream))
DEVICE_CALL(mem_export, (xfi_device * device, xfi_allocation allocation, xfi_mem_handle *handle),
            (device, allocation, handle))
DEVICE_CALL(mem_import,
            (xfi_device * device, const xfi_mem_handle *handle, xfi_mapping **mapping,
             xfi_deadline deadline),
            (device, handle, mapping, deadline))
DEVICE_CALL(flags_alloc, (xfi_device * device, uint64_t **flags, size_t n_flags, bool by_streams),
            (device, flags, n_flags, by_streams))
DEVICE_CALL(flags_sync,
            (xfi_device * device, const xfi_flags *set, const xfi_flags *wait, uint64_t value,
             xfer_stream stream, xfi_deadline deadline, int *late),
            (device, set, wait, value, stream, deadline, late))

static xfi_comm_ops failing_comm;
static xfi_device_ops failing_device;

/* Of one rank's comm. */
static void replace_calls(xfer_comm *comm)
{
  if (comm_ops == NULL) {
    comm_ops = comm->transport->ops;
    device_ops = comm->device->ops;
    failing_comm = *comm_ops;
    failing_comm.all_gather = comm_all_gather;
    failing_comm.exchange = comm_exchange;
    failing_comm.round = comm_round;
    failing_comm.broadcast = comm_broadcast;
    failing_device = *device_ops;
    failing_device.alloc = device_alloc;
    failing_device.find_allocation = device_find_allocation;
    failing_device.stream_create = device_stream_create;
    failing_device.stream_check = device_stream_check;
    failing_device.event_create = device_event_create;
    failing_device.event_destroy = device_event_destroy;
    failing_device.event_record = device_event_record;
    failing_device.event_sync = device_event_sync;
    failing_device.stream_wait = device_stream_wait;
    failing_device.batch_launch = device_batch_launch;
    failing_device.digest_create = device_digest_create;
    failing_device.digest_launch = device_digest_launch;
    failing_device.mem_export = device_mem_export;
    failing_device.mem_import = device_mem_import;
    failing_device.flags_alloc = device_flags_alloc;
    failing_device.flags_sync = device_flags_sync;
  }
  comm->transport->ops = &failing_comm;
  comm->device->ops = &failing_device;
}

/* ---- the calls of a life ------------------------------------------------------------------- */

typedef enum step { CREATE, COMMIT, RUN_AND_WAIT, DIGEST, REPLICAS, RELEASE, N_STEPS } step;

static const char *const step_names[N_STEPS] = {"create", "commit",   "run and wait",
                                                "digest", "replicas", "release"};

static xfer_status take(step at, xfer_plan **plan, input *in, xfer_comm *comm)
{
  xfer_digest digests[N_TENSORS];
  xfer_status st;

  switch (at) {
  case CREATE:
    return xfer_plan_create(plan, comm, in->tensors, in->n_tensors, &in->options);
  case COMMIT:
    return xfer_plan_commit(*plan);
  case RUN_AND_WAIT:
    st = xfer_plan_run(*plan, 1, NULL);
    if (xfer_plan_wait(*plan, 0) == XFER_OK) return st;
    return st == XFER_OK ? XFER_ERR_PEER : st;
  case DIGEST:
    return xfer_plan_digest(*plan, digests, N_TENSORS, XFER_PLAN_DST, NULL);
  case REPLICAS:
    return xfer_plan_check_replicas(*plan, NULL);
  case RELEASE:
    return xfer_plan_release(*plan);
  default:
    return XFER_ERR_INTERNAL;
  }
}

#endif
