/*
 * Steps through slots. Three streams run side by side: while step i is on the wire, step i+1 is
 * gathered and step i-1 is scattered. There are two slots each way, so a step uses those of the
 * step two before it, and waits for that. A single small step has nothing to run beside it, and
 * stays on the caller's stream, since the events between streams would take longer than its copies.
 *
 * On a synchronous device there are no streams, and each step is done before the next one begins.
 */
#include "steps.h"

#include "alloc.h"
#include "error.h"
#include "quant.h"
#include "trace.h"
#include "vec.h"

enum { GATHER, COMM, SCATTER };

/* A single step of at most so many bytes runs on the caller's stream. */
#define ALONE_BYTES ((size_t)8 << 20)

xfer_status xfi_steps_add(xfi_step **step, xfi_pipeline *p, int n_messages)
{
  xfi_step *s;

  XFI_TRY(xfi_vec_reserve(&p->steps, &p->capacity, p->n_steps + 1, sizeof *p->steps));
  s = &p->steps[p->n_steps++];
  *s = (xfi_step){.batches = {s->batches[0], s->batches[1]}, .root = -1};
  s->messages = xfi_calloc((size_t)n_messages, sizeof *s->messages);
  XFI_CHECK(s->messages != NULL, XFER_ERR_NOMEM, "%d messages", n_messages);
  *step = s;
  return XFER_OK;
}

char *xfi_steps_slot(const xfi_pipeline *p, size_t step, bool send)
{
  const size_t parity = step % 2;

  return p->slots + (send ? 0 : 2 * p->slot_bytes[1]) + parity * p->slot_bytes[send];
}

/* Share of the device for each of gather and scatter, which run next to each other and to messages.
 */
#define SLOT_PERCENT 36

xfer_status xfi_steps_make_batches(xfi_pipeline *p, xfi_device *device)
{
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < 2 * p->n_steps && st == XFER_OK; i++) {
    xfi_step *s = &p->steps[i / 2];
    xfi_copies *copies = &s->copies[i % 2];

    st = xfi_batch_make(device, &s->batches[i % 2], copies->at, copies->n, SLOT_PERCENT);
    xfi_copies_free(copies);
  }
  return st;
}

bool xfi_steps_are_read(const xfi_pipeline *p, const xfi_device *device)
{
  bool any = false;

  for (size_t i = 0; i < 2 * p->n_steps && !any; i++)
    any = xfi_batch_is_read(device, p->steps[i / 2].batches[i % 2]);
  return any;
}

static bool is_single(const xfi_pipeline *p)
{
  const xfi_step *s = p->steps;
  size_t n_bytes = 0;

  if (p->n_steps != 1) return false;
  for (int i = 0; i < s->n_sends + s->n_recvs; i++)
    n_bytes += s->messages[i].n_bytes;
  return n_bytes <= ALONE_BYTES;
}

xfer_status xfi_steps_make_streams(xfi_pipeline *p, xfi_device *device)
{
  if (p->n_steps == 0 || is_single(p)) return XFER_OK;
  for (int i = 0; i < XFI_STEP_STREAMS; i++) {
    XFI_TRY(xfi_stream_create(device, &p->streams[i]));
    XFI_TRY(xfi_event_create(device, &p->ended[i]));
    XFI_TRY(xfi_event_create(device, &p->done_with[i][0]));
    XFI_TRY(xfi_event_create(device, &p->done_with[i][1]));
  }
  return XFER_OK;
}

void xfi_steps_clear(xfi_pipeline *p)
{
  for (size_t i = 0; i < p->n_steps; i++) {
    xfi_copies_free(&p->steps[i].copies[0]);
    xfi_copies_free(&p->steps[i].copies[1]);
    xfi_free(p->steps[i].messages);
  }
  p->n_steps = 0;
}

void xfi_steps_free(xfi_pipeline *p, xfi_device *device)
{
  xfi_steps_clear(p);
  for (int i = 0; i < XFI_STEP_STREAMS; i++) {
    xfi_stream_destroy(device, p->streams[i]);
    xfi_event_destroy(device, p->ended[i]);
    xfi_event_destroy(device, p->done_with[i][0]);
    xfi_event_destroy(device, p->done_with[i][1]);
  }
  for (size_t i = 0; i < 2 * p->capacity; i++)
    xfi_batch_drop(device, &p->steps[i / 2].batches[i % 2]);
  xfi_free(p->steps);
}

/* ---- running ---- */

/* Gather what the step sends into its slot (`send`), or scatter what it has received. */
static xfer_status launch(xfer_plan *plan, const xfi_step *s, bool send, xfer_stream stream)
{
  xfer_status st = XFER_OK;
  xfi_span span;

  if (s->batches[send] == NULL) return XFER_OK;
  span = xfi_span_begin(XFI_SYS_RUN, plan->moves->rank, send ? XFI_TRACK_GATHER : XFI_TRACK_SCATTER,
                        send ? "gather" : "scatter");
  st = xfi_batch_launch(plan->device, s->batches[send], stream);
  xfi_span_end(&span, st, "%s", "");
  return st;
}

static xfer_status start_messages(xfer_plan *plan, const xfi_step *s, xfer_stream stream)
{
  const xfi_comm_ops *comm = plan->comm->ops;
  const xfi_span span = xfi_span_begin(XFI_SYS_RUN, plan->moves->rank, XFI_TRACK_MESSAGES,
                                       s->root >= 0 ? "broadcast" : "round");
  xfer_status st;

  if (s->root >= 0)
    st = comm->broadcast(plan->comm, s->messages, s->n_sends, s->root, stream, plan->run.deadline);
  else
    st = comm->round(plan->comm,
                     &(xfi_messages){s->messages, s->n_sends, s->messages + s->n_sends, s->n_recvs},
                     stream, plan->run.deadline);
  xfi_span_end(&span, st, "%d messages sent, %d received", s->n_sends, s->n_recvs);
  return st;
}

static xfer_status start_step(xfi_pipeline *p, xfer_plan *plan, size_t i)
{
  const int parity = (int)(i % 2);
  xfi_step *s = &p->steps[i];

  if (plan->device->ops->is_synchronous) XFI_TRY(xfi_comm_check_deadline(plan->run.deadline));
  if (s->batches[1] != NULL) {
    if (i >= 2)
      XFI_TRY(xfi_stream_wait(plan->device, p->streams[GATHER], p->done_with[COMM][parity]));
    XFI_TRY(launch(plan, s, true, p->streams[GATHER]));
    XFI_TRY(xfi_event_record(plan->device, p->done_with[GATHER][parity], p->streams[GATHER]));
    XFI_TRY(xfi_stream_wait(plan->device, p->streams[COMM], p->done_with[GATHER][parity]));
  }
  if (i >= 2)
    XFI_TRY(xfi_stream_wait(plan->device, p->streams[COMM], p->done_with[SCATTER][parity]));
  XFI_TRY(start_messages(plan, s, p->streams[COMM]));
  XFI_TRY(xfi_event_record(plan->device, p->done_with[COMM][parity], p->streams[COMM]));
  if (s->batches[0] != NULL)
    XFI_TRY(xfi_stream_wait(plan->device, p->streams[SCATTER], p->done_with[COMM][parity]));
  XFI_TRY(launch(plan, s, false, p->streams[SCATTER]));
  return xfi_event_record(plan->device, p->done_with[SCATTER][parity], p->streams[SCATTER]);
}

xfer_status xfi_steps_start(xfi_pipeline *p, xfer_plan *plan, xfi_event *before, xfer_stream stream)
{
  if (p->n_steps == 0) return XFER_OK;
  if (is_single(p)) {
    XFI_TRY(xfi_stream_wait(plan->device, stream, before));
    XFI_TRY(launch(plan, p->steps, true, stream));
    XFI_TRY(start_messages(plan, p->steps, stream));
    return launch(plan, p->steps, false, stream);
  }
  for (int i = 0; i < XFI_STEP_STREAMS; i++) {
    XFI_TRY(xfi_stream_wait(plan->device, p->streams[i], plan->run.started));
    XFI_TRY(xfi_quant_await(plan, XFI_QUANT_PARTS - 1, p->streams[i]));
    XFI_TRY(xfi_stream_wait(plan->device, p->streams[i], before));
  }
  for (size_t i = 0; i < p->n_steps; i++)
    XFI_TRY(start_step(p, plan, i));
  for (int i = 0; i < XFI_STEP_STREAMS; i++) {
    XFI_TRY(xfi_event_record(plan->device, p->ended[i], p->streams[i]));
    XFI_TRY(xfi_stream_wait(plan->device, stream, p->ended[i]));
  }
  return XFER_OK;
}
