/*
 * What goes through slots: steps of gather, message and scatter, made of packed rounds (packed.c)
 * and of broadcasts (broadcast.h); and channels between ranks that share memory (channels.h).
 */
#ifndef XFI_PIPELINE_H
#define XFI_PIPELINE_H

#include "run.h"

/* One step: copies into a slot, one comm call, copies out of a slot. */
typedef struct xfi_step {
  xfi_copies gather;
  xfi_copies scatter;
  xfi_batch *gather_batch; /* NULL: nothing to do */
  xfi_batch *scatter_batch;
  xfi_message *messages; /* [n_sends + n_recvs], sends first */
  int n_sends;
  int n_recvs;
  int root; /* >= 0: n_sends broadcasts of this root's */
} xfi_step;

typedef struct xfi_channels xfi_channels;
typedef struct xfi_casts xfi_casts;

struct xfi_pipeline {
  xfi_channels *channels;
  xfi_casts *casts; /* NULL: nothing is broadcast */
  xfi_step *steps;
  size_t n_steps;
  size_t capacity;
  size_t n_rounds;
  uint64_t sent_bytes;
  size_t send_slot_bytes; /* most that a step needs */
  size_t recv_slot_bytes;
  char *slots; /* two send slots, two receive slots, in the block of the comm's plans */
  uint64_t staging_bytes;
  xfer_stream streams[3];     /* gather, comm, scatter */
  xfi_event *done_with[3][2]; /* what a stream did for a step, by the step's slot */
  xfi_event *ended[3];
};

/* Rounds and broadcasts for all that the direct lane does not carry. Collective; its last agreement
 * is the caller's to make. */
xfer_status xfi_pipeline_create(xfi_pipeline **pipeline, xfer_plan *plan);
/* The same steps at other addresses, of what is bound or of the slots. */
xfer_status xfi_pipeline_move(xfi_pipeline *pipeline, const xfer_plan *plan);
void xfi_pipeline_destroy(xfi_pipeline *pipeline, xfer_plan *plan);
/* Staging memory of a plan that is not committed, where nothing goes directly nor in place. */
xfer_status xfi_pipeline_foresee(uint64_t *staging_bytes, const xfer_plan *plan);
xfer_status xfi_pipeline_start(xfi_pipeline *pipeline, xfer_plan *plan, xfer_stream stream,
                               xfi_deadline deadline);
/* Does no peer wait for what it carries? */
bool xfi_pipeline_is_empty(const xfi_pipeline *pipeline);
/* Append an empty step. It uses the slots of its number: */
xfer_status xfi_pipeline_add(xfi_step **step, xfi_pipeline *pipeline, int n_messages);
char *xfi_pipeline_slot(const xfi_pipeline *pipeline, size_t step, bool send);

/* Messages start at multiples of this in a slot, for wide loads; windows are multiples of it. */
#define XFI_SLOT_ALIGN 16

/* One run of at least this is sent from, or received into, the caller's memory. */
#define XFI_MIN_UNPACKED_BYTES ((size_t)1 << 20)

/* ---- packed.c: who sends what when, then what slots that needs, then its steps. broadcast.h has
 * as much ---- */

typedef struct xfi_schedule xfi_schedule;

/* With `first_only`, of each peer the first window alone. None of a peer's is larger, and those of
 * all meet in the same rounds: what they measure is what all do. */
xfer_status xfi_schedule_create(xfi_schedule **schedule, const xfer_plan *plan, bool first_only);
void xfi_schedule_destroy(xfi_schedule *schedule);
void xfi_packed_measure(xfi_pipeline *pipeline, const xfi_schedule *schedule);
xfer_status xfi_packed_add(xfi_pipeline *pipeline, xfi_schedule *schedule, const xfer_plan *plan);

/* Append the copies between a slot at `slot` and elements [first, end) of a box of the class, in
 * row-major order; the box starts at `start` of `bound`. */
xfer_status xfi_slot_copies(xfi_copies *copies, const xfer_plan *plan, const xfi_class *cls,
                            char *slot, bool to_slot, const xfi_bound *bound, const int64_t *start,
                            const int64_t *length, int64_t first, int64_t end);

/* At least as many messages as one packed round can have on this rank, sends and receives apart. */
void xfi_packed_most(int *sends, int *recvs, const xfi_plan *moves);

#endif
