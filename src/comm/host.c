/* A comm whose ranks are processes of one host, over memory that they share (shared.c): messages
 * are channels whose slots are copied from and to the callers' memory.
 *
 * Sockets between each two ranks carry no data. A byte wakes a rank that sleeps until its peer has
 * come, and a process that ends closes its sockets, which ends the waits for it at once, however it
 * ended; where children that it forked hold them open its pidfd, watched with them, does. A rank
 * that gives up tells all others why, in the memory, and their waits end. What they touch is theirs
 * or a slot: no call leaves anything behind.
 */
#include "host_comm.h"

#include "alloc.h"
#include "descriptor.h"
#include "error.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
  MOST_EVENTS = 16, /* at once */
  LOOK_MS = 50,     /* between looks whether another thread broke the comm */
  /* To sleep costs less than to be late on a core that others want, as where all wait for a GPU. */
  SPIN_NS = 10000,
  YIELDS = 0 /* whoever is no rank takes its whole turn */
};

/* ---- sleeping, lost ranks, failure ---------------------------------------------------------- */

static void end_peer(xfi_host_comm *comm, xfi_host_peer *peer)
{
  peer->has_ended = true;
  (void)epoll_ctl(comm->events, EPOLL_CTL_DEL, peer->in, NULL);
  (void)epoll_ctl(comm->events, EPOLL_CTL_DEL, peer->process, NULL);
}

/* Takes what comes over the sockets, and sleeps until something does or it is time to look round.
 */
static void look(xfi_host_comm *comm, int64_t wait_ms)
{
  struct epoll_event events[MOST_EVENTS];
  char bells[64];
  int n;

  do {
    n = epoll_wait(comm->events, events, MOST_EVENTS, wait_ms < LOOK_MS ? (int)wait_ms : LOOK_MS);
    wait_ms = 0;
    for (int i = 0; i < n; i++) {
      xfi_host_peer *peer = &comm->peers[events[i].data.u64 / 2];
      const bool is_process = events[i].data.u64 % 2 != 0;

      if (is_process || recv(peer->in, bells, sizeof bells, MSG_DONTWAIT) == 0)
        end_peer(comm, peer);
    }
  } while (n == MOST_EVENTS);
}

static void host_nap(xfi_comm *comm, uint32_t bell, xfi_deadline deadline)
{
  (void)bell;
  look((xfi_host_comm *)comm, xfi_deadline_left_ms(deadline));
}

/* A full socket wakes it as well. */
static void host_wake(xfi_comm *comm, int rank)
{
  (void)send(((xfi_host_comm *)comm)->peers[rank].out, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static bool host_is_lost(const xfi_comm *comm, int rank)
{
  return ((const xfi_host_comm *)comm)->peers[rank].has_ended;
}

void xfi_host_warn(xfi_comm *base, uint64_t number, const char *why)
{
  xfi_segment *own = xfi_segment_of(&((xfi_host_comm *)base)->shared, base->rank);

  (void)snprintf(own->warning, sizeof own->warning, "rank %d: %s", base->rank, why);
  atomic_store(&own->warned, number);
}

xfer_status xfi_host_heed(xfi_comm *base, uint64_t number)
{
  xfi_host_comm *comm = (xfi_host_comm *)base;

  look(comm, 0);
  for (int r = 0; r < base->size; r++) {
    const xfi_segment *theirs = xfi_segment_of(&comm->shared, r);
    const bool has_left = atomic_load(&theirs->has_left) != 0;

    XFI_TRY(xfi_shared_check(base)); /* what it told before it left */
    XFI_CHECK(atomic_load(&theirs->warned) != number, XFER_ERR_PEER, "%.*s", XFI_BROKEN_BYTES - 1,
              theirs->warning);
    XFI_CHECK(!has_left && !comm->peers[r].has_ended, XFER_ERR_COMM, "rank %d has %s", r,
              has_left ? "left the comm" : "ended");
  }
  return XFER_OK;
}

/* ---- the calls ---------------------------------------------------------------------------- */

static void copy_message(void *context, size_t i, char *slot, size_t n_bytes)
{
  const xfi_host_comm *comm = context;
  char *at = comm->data[i] + comm->channels[i].n_done;

  if (comm->channels[i].send)
    memcpy(slot, at, n_bytes);
  else
    memcpy(at, slot, n_bytes);
}

static void add(xfi_host_comm *comm, size_t i, const xfi_message *message, bool send)
{
  comm->data[i] = message->data;
  comm->channels[i] =
      (xfi_channel){.peer = message->peer, .send = send, .n_bytes = message->n_bytes};
}

/* Who does not send is late, before who does not read. */
static xfer_status host_carry(xfi_comm *base, xfi_carry_call call, const xfi_messages *messages,
                              xfi_deadline deadline)
{
  xfi_host_comm *comm = (xfi_host_comm *)base;
  xfi_channel *channels = comm->channels;
  size_t n = 0;

  for (int i = 0; i < messages->n_recvs; i++)
    add(comm, n++, &messages->recvs[i], false);
  for (int i = 0; i < messages->n_sends; i++) {
    add(comm, n++, &messages->sends[i], true);
    if (call != XFI_OF_BROADCAST || i == 0) continue;
    channels[n - 2].next_same = n - 1; /* through the same slots */
    channels[n - 1].is_again = true;
  }
  return xfi_shared_carry(base, call,
                          &(xfi_carriage){channels, n, XFI_CHANNEL_SLOT_BYTES, copy_message, comm},
                          deadline);
}

const xfi_shared_ops xfi_host_shared_ops = {
    .nap = host_nap,
    .wake = host_wake,
    .is_lost = host_is_lost,
    .carry = host_carry,
    .naps = 1,
    .spin_ns = SPIN_NS,
    .yields = YIELDS,
};

/* ---- the end ------------------------------------------------------------------------------ */

void xfi_host_hang_up(xfi_host_comm *comm)
{
  for (int r = 0; comm->peers != NULL && r < comm->shared.base.size; r++) {
    (void)xfi_descriptor_drop(comm->peers[r].in);
    (void)xfi_descriptor_drop(comm->peers[r].out);
    (void)xfi_descriptor_drop(comm->peers[r].process);
    comm->peers[r] = XFI_HOST_NO_PEER;
  }
  comm->events = xfi_descriptor_drop(comm->events);
}

void xfi_host_free(xfi_host_comm *comm)
{
  if (comm == NULL) return;
  xfi_shared_leave(&comm->shared); /* before a socket closes */
  xfi_shared_end(&comm->shared);
  xfi_host_hang_up(comm);
  xfi_free(comm->peers);
  xfi_free(comm->channels);
  xfi_free(comm->data);
  xfi_free(comm);
}

static void host_destroy(xfi_comm *base)
{
  xfi_host_free((xfi_host_comm *)base);
}

const xfi_comm_ops xfi_host_ops = {
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
};

static const xfi_comm_ops control_ops = {
    .destroy = host_destroy,
    .all_gather = xfi_shared_all_gather,
    .exchange = xfi_shared_exchange,
    .check = xfi_shared_check,
    .abort = xfi_shared_abort,
};

void xfi_host_control_only(xfi_comm *comm)
{
  comm->ops = &control_ops;
}
