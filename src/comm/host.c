/*
 * A comm whose ranks are processes of one host, over memory that they share (shared.c): messages
 * are channels whose slots are copied from and to the callers' memory. It is made by the public
 * makers that take an all-gather, and by NCCL comms for their host bytes, where all ranks are of
 * one host; such a *control* comm carries no data.
 *
 * If a process ends, however it does, its bootstrap sockets close, which ends the waits for it. A
 * rank that gives up writes the reason to the shared memory, which ends the others' waits too.
 * Ranks touch only their own memory and slots, so no call leaves anything behind.
 */
#include "shared.h"

#include "alloc.h"
#include "error.h"

#include <string.h>

enum {
  /* So long it takes at most until a rank notices that another thread has broken the comm, or that
   * a process has ended. */
  NAP_NS = 20000000,
  /* Short: on a core that others need, as where all ranks wait for a GPU, it costs less to sleep
   * than to delay them. */
  SPIN_NS = 10000,
  YIELDS = 0 /* a yield to a thread that is no rank costs its whole time slice */
};

typedef struct host_comm {
  xfi_shared shared;
  xfi_channel *channels; /* [2 * size] of the messages in progress */
  char **data;           /* [2 * size] the memory of each of these messages */
} host_comm;

/* ---- the calls ---------------------------------------------------------------------------- */

static void copy_message(void *context, size_t i, char *slot, size_t n_bytes)
{
  const host_comm *comm = context;
  char *at = comm->data[i] + comm->channels[i].n_done;

  if (comm->channels[i].send)
    memcpy(slot, at, n_bytes);
  else
    memcpy(at, slot, n_bytes);
}

static void add(host_comm *comm, size_t i, const xfi_message *message, bool send)
{
  comm->data[i] = message->data;
  comm->channels[i] =
      (xfi_channel){.peer = message->peer, .send = send, .n_bytes = message->n_bytes};
}

/* Carry messages as channels. Receives come first, so that an error names a rank that does not send
 * rather than one that does not read. */
static xfer_status host_carry(xfi_comm *base, xfi_carry_call call, const xfi_messages *messages,
                              xfi_deadline deadline)
{
  host_comm *comm = (host_comm *)base;
  xfi_channel *channels = comm->channels;
  size_t n = 0;

  for (int i = 0; i < messages->n_recvs; i++)
    add(comm, n++, &messages->recvs[i], false);
  for (int i = 0; i < messages->n_sends; i++) {
    add(comm, n++, &messages->sends[i], true);
    if (call != XFI_OF_BROADCAST || i == 0) continue;
    channels[n - 2].next_same = n - 1; /* all sends of a broadcast go through the same slots */
    channels[n - 1].is_again = true;
  }
  return xfi_shared_carry(
      base, call, &(xfi_channel_set){channels, n, XFI_CHANNEL_SLOT_BYTES, copy_message, comm},
      deadline);
}

static const xfi_shared_ops shared_ops = {
    .carry = host_carry,
    .nap_ns = NAP_NS,
    .naps = 1,
    .spin_ns = SPIN_NS,
    .yields = YIELDS,
};

/* ---- the comm ----------------------------------------------------------------------------- */

static void host_destroy(xfi_comm *base)
{
  host_comm *comm = (host_comm *)base;

  if (comm == NULL) return;
  xfi_shared_leave(&comm->shared); /* first: a closed socket alone means that the process died */
  xfi_shared_end(&comm->shared);
  xfi_free(comm->channels);
  xfi_free(comm->data);
  xfi_free(comm);
}

static const xfi_comm_ops host_ops = {
    .recv_direct = true,
    .destroy = host_destroy,
    .all_gather = xfi_shared_all_gather,
    .exchange = xfi_shared_exchange,
    .round = xfi_shared_round,
    .broadcast = xfi_shared_broadcast,
    .shares = xfi_shared_shares,
    .carry_channels = xfi_shared_carry_channels,
    .carry_begin = xfi_shared_carry_begin,
    .carry_undo = xfi_shared_carry_undo,
    .check = xfi_shared_check,
    .abort = xfi_shared_abort,
    .abort_data = xfi_shared_abort,
    .refuse = xfi_shared_refuse,
    .check_refused = xfi_shared_check_refused,
};

static const xfi_comm_ops control_ops = {
    .destroy = host_destroy,
    .all_gather = xfi_shared_all_gather,
    .exchange = xfi_shared_exchange,
    .check = xfi_shared_check,
    .abort = xfi_shared_abort,
    .refuse = xfi_shared_refuse,
    .check_refused = xfi_shared_check_refused,
};

/* What needs no other rank. The caller owns what was made, also after a failure. */
static xfer_status prepare(host_comm *comm, const xfi_comm_ops *ops, int rank, int size)
{
  comm->shared.base = (xfi_comm){.ops = ops, .rank = rank, .size = size, .shares_all = true};
  XFI_TRY(xfi_shared_init(&comm->shared, &shared_ops, size, rank, true));
  comm->channels = xfi_calloc(2 * (size_t)size, sizeof *comm->channels);
  comm->data = xfi_calloc(2 * (size_t)size, sizeof *comm->data);
  XFI_CHECK(comm->channels != NULL && comm->data != NULL, XFER_ERR_NOMEM, "a comm of %d ranks",
            size);
  return XFER_OK;
}

xfer_status xfi_comm_create_host(xfi_comm **comm, xfer_all_gather_fn all_gather, void *context,
                                 int rank, int size, bool control_only)
{
  const xfi_comm_ops *ops = control_only ? &control_ops : &host_ops;
  xfer_status st = XFER_OK;
  xfer_status mine;
  host_comm *made = xfi_calloc(1, sizeof *made);

  XFI_CHECK_DONE(made != NULL, XFER_ERR_NOMEM, "a comm of %d ranks", size);
  mine = prepare(made, ops, rank, size);
  if (made->shared.endpoints == NULL) XFI_TRY_DONE(mine); /* the others cannot be reached */
  XFI_TRY_DONE(xfi_host_bootstrap(&made->shared, mine, all_gather, context));
  *comm = &made->shared.base;
  made = NULL;
done:
  host_destroy((xfi_comm *)made);
  return st;
}
