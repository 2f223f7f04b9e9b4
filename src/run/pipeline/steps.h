/*
 * What goes through slots, step by step: two slots each way, three streams side by side.
 */
#ifndef XFI_STEPS_H
#define XFI_STEPS_H

#include "channels.h"

/* A message that is one run of at least this many bytes needs no slot. */
#define XFI_MIN_UNPACKED_BYTES ((size_t)1 << 20)

/* One step: copies into a slot, one comm call, copies out of a slot. */
typedef struct xfi_step {
  /* [0] out of a slot, of what is received; [1] into a slot, of what is sent */
  xfi_copies copies[2];
  xfi_batch *batches[2]; /* of these copies; NULL: there are none */
  xfi_message *messages; /* [n_sends + n_recvs], sends first */
  int n_sends;
  int n_recvs;
  int root; /* >= 0: the messages are n_sends broadcasts from this rank */
} xfi_step;

typedef struct xfi_bcasts xfi_bcasts;

enum { XFI_STEP_STREAMS = 3 }; /* gather, comm, scatter */

struct xfi_pipeline {
  xfi_channels channels;
  xfi_bcasts *bcasts; /* NULL: nothing is broadcast */
  xfi_step *steps;
  size_t n_steps;
  size_t capacity;
  size_t n_rounds;
  uint64_t sent_bytes;  /* bytes that a run sends, through channels too */
  size_t slot_bytes[2]; /* the most that the receives [0] and the sends [1] of a step need */
  char *slots; /* two send slots, then two receive slots; in the comm's block (staging.h) */
  uint64_t staging_bytes; /* size of these slots, and of those of channels */
  xfer_stream streams[XFI_STEP_STREAMS];
  xfi_event *done_with[XFI_STEP_STREAMS][2]; /* each stream's part of the last step in each slot */
  xfi_event *ended[XFI_STEP_STREAMS];
};

/* Append an empty step; and the address of a step's slot, by the step's number. */
xfer_status xfi_steps_add(xfi_step **step, xfi_pipeline *pipeline, int n_messages);
char *xfi_steps_slot(const xfi_pipeline *pipeline, size_t step, bool send);

/* Make batches of the steps' copies; make the streams and events that the steps need. */
xfer_status xfi_steps_make_batches(xfi_pipeline *pipeline, xfi_device *device);
xfer_status xfi_steps_make_streams(xfi_pipeline *pipeline, xfi_device *device);
/* Does a run in flight read the batches? */
bool xfi_steps_are_read(const xfi_pipeline *pipeline, const xfi_device *device);
/* Enqueue all steps, after the event `before`. */
xfer_status xfi_steps_start(xfi_pipeline *pipeline, xfer_plan *plan, xfi_event *before,
                            xfer_stream stream);
/* Drop the steps, whose batches the next steps reuse; and free everything. */
void xfi_steps_clear(xfi_pipeline *pipeline);
void xfi_steps_free(xfi_pipeline *pipeline, xfi_device *device);

#endif
