/* A comm whose ranks are processes of one host, over sockets between each two of them.
 *
 * Every call is a list of messages, of which one to and one from each peer are under way at a time:
 * whatever socket is ready is served, so no order of calls deadlocks that would not with messages
 * in flight. A message has a head with its size and its call; a rank takes no byte that it does not
 * expect.
 *
 * Failure. A second socket between each two carries alarms alone: a rank that gives up tells all
 * others why, and their waits end. A process that ends closes its sockets, which ends the waits for
 * it at once, however it ended; where children that it forked hold them open its pidfd, watched
 * with them, does. Nobody else touches memory: no call leaves anything behind.
 */
#include "host_comm.h"

#include "alloc.h"
#include "error.h"
#include "vec.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOOK_MS = 50 }; /* between looks whether another thread broke the comm */
enum { TO, FROM };     /* a peer */
enum { GATHER, EXCHANGE, ROUND, BROADCAST };

static const char *const calls[] = {"all_gather", "exchange", "round", "broadcast"};

/* ---- failure ------------------------------------------------------------------------------ */

static void tell_all(const xfi_host_comm *comm, xfi_host_kind kind, uint64_t number,
                     const char *why)
{
  xfi_host_packet packet = {.kind = kind, .number = number};

  (void)snprintf(packet.why, sizeof packet.why, "%s", why);
  for (int r = 0; r < comm->base.size; r++)
    if (r != comm->base.rank)
      (void)send(comm->peers[r].alarm, &packet, sizeof packet, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void host_abort(xfi_comm *base, const char *why)
{
  xfi_host_comm *comm = (xfi_host_comm *)base;

  if (xfi_broken_set(&comm->broken, "%s", why))
    tell_all(comm, XFI_HOST_ALARM, comm->n_gathered, comm->broken.why);
}

/* A rank that had completed more gatherings than this one had what all give in the next: that one
 * ends well here too, and the alarm counts after it. */
static void take_alarm(xfi_host_comm *comm, const xfi_host_packet *said)
{
  if (said->number <= comm->n_gathered)
    (void)xfi_broken_set(&comm->broken, "%s", said->why); /* it has told everybody */
  else if (comm->alarm.kind == 0)
    comm->alarm = *said;
}

/* Takes what came from a peer's alarm, once it is known whether more can come. */
static void hear(xfi_host_comm *comm, int rank)
{
  xfi_host_peer *peer = &comm->peers[rank];
  struct pollfd process = {.fd = peer->process, .events = POLLIN};
  xfi_host_packet said;

  if (!peer->has_ended) peer->has_ended = poll(&process, 1, 0) > 0 && process.revents == POLLIN;
  while (!peer->is_deaf) {
    const ssize_t n = recv(peer->alarm, &said, sizeof said, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    peer->is_deaf = n <= 0;
    if (n <= 0) return;
    said.why[sizeof said.why - 1] = '\0';
    if (n != sizeof said)
      peer->has_left = true;
    else if (said.kind == XFI_HOST_WARNING)
      comm->warning = said;
    else
      take_alarm(comm, &said);
  }
}

void xfi_host_warn(xfi_comm *base, uint64_t number, const char *why)
{
  char told[XFI_BROKEN_BYTES];

  (void)snprintf(told, sizeof told, "rank %d: %s", base->rank, why);
  tell_all((xfi_host_comm *)base, XFI_HOST_WARNING, number, told);
}

xfer_status xfi_host_heed(xfi_comm *base, uint64_t number)
{
  xfi_host_comm *comm = (xfi_host_comm *)base;

  for (int r = 0; r < base->size; r++)
    hear(comm, r);
  XFI_TRY(xfi_broken_check(&comm->broken));
  XFI_CHECK(comm->warning.number != number || comm->warning.kind == 0, XFER_ERR_PEER, "%s",
            comm->warning.why);
  for (int r = 0; r < base->size; r++)
    XFI_CHECK(r == base->rank || !(comm->peers[r].is_deaf || comm->peers[r].has_ended),
              XFER_ERR_COMM, "rank %d has %s", r,
              comm->peers[r].has_left ? "left the comm" : "ended");
  return XFER_OK;
}

/* A peer's socket is closed, or failed with an errno. */
static xfer_status fail_for_lost(xfi_host_comm *comm, int call, int rank, int error)
{
  for (int r = 0; r < comm->base.size; r++)
    hear(comm, r); /* it may have ended for what another one told */
  XFI_TRY(xfi_broken_check(&comm->broken));
  XFI_CHECK(!comm->peers[rank].has_left, XFER_ERR_COMM, "%s: rank %d has left the comm",
            calls[call], rank);
  XFI_CHECK(error != 0 && error != EPIPE && error != ECONNRESET, XFER_ERR_COMM,
            "%s: the process of rank %d has ended", calls[call], rank);
  XFI_CHECK(false, XFER_ERR_COMM, "%s: the socket to rank %d: %s", calls[call], rank,
            strerror(error));
  return XFER_OK;
}

/* ---- carrying ----------------------------------------------------------------------------- */

/* A call in progress. */
typedef struct carrying {
  xfi_host_comm *comm;
  int call;
  size_t n_parcels;
  size_t n_left;
} carrying;

/* Moves what can be moved now of a part that begins at byte `at` of a parcel. 1: it is complete,
 * 0: it is not; -1: an error, in errno; the peer's end is EPIPE. */
static int move_part(xfi_parcel *parcel, int socket, int way, void *part, size_t at, size_t n_bytes)
{
  while (parcel->n_done < at + n_bytes) {
    char *from = (char *)part + (parcel->n_done - at);
    const size_t left = at + n_bytes - parcel->n_done;
    const ssize_t n = way == TO ? send(socket, from, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                                : recv(socket, from, left, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return 0;
    if (n == 0) errno = EPIPE;
    if (n <= 0) return -1;
    parcel->n_done += (size_t)n;
  }
  return 1;
}

static xfer_status check_head(const xfi_parcel *parcel, const xfi_host_comm *comm, int call)
{
  const xfi_host_head *head = &parcel->head;

  XFI_CHECK(head->call == (uint64_t)call && head->n_bytes == parcel->message.n_bytes,
            XFER_ERR_MISMATCH, "rank %d sent %llu bytes in %s, rank %d expects %zu in %s",
            parcel->message.peer, (unsigned long long)head->n_bytes,
            head->call <= BROADCAST ? calls[head->call] : "?", comm->base.rank,
            parcel->message.n_bytes, calls[call]);
  return XFER_OK;
}

/* What can be done now one way between us and a peer. */
static xfer_status serve(carrying *c, int rank, int way)
{
  xfi_host_peer *peer = &c->comm->peers[rank];

  while (peer->next_parcel[way] < c->n_parcels) {
    xfi_parcel *parcel = &c->comm->parcels[peer->next_parcel[way]];
    int moved = move_part(parcel, peer->data, way, &parcel->head, 0, sizeof parcel->head);
    if (moved > 0 && way == FROM) XFI_TRY(check_head(parcel, c->comm, c->call));
    if (moved > 0)
      moved = move_part(parcel, peer->data, way, parcel->message.data, sizeof parcel->head,
                        parcel->message.n_bytes);
    if (moved < 0) XFI_TRY(fail_for_lost(c->comm, c->call, rank, errno));
    if (moved == 0 && peer->has_ended) XFI_TRY(fail_for_lost(c->comm, c->call, rank, EPIPE));
    if (moved == 0) break;
    peer->next_parcel[way] = parcel->next;
    c->n_left--;
  }
  return XFER_OK;
}

/* Sleeps until something can be done, or it is time to look round. */
static void sleep_for_more(const carrying *c, xfi_deadline deadline)
{
  const int64_t left_ms = xfi_deadline_left_ms(deadline);
  struct pollfd *polled = c->comm->polled;

  for (size_t r = 0; r < (size_t)c->comm->base.size; r++) {
    const xfi_host_peer *peer = &c->comm->peers[r];
    const bool sends = peer->next_parcel[TO] < c->n_parcels;
    const bool receives = peer->next_parcel[FROM] < c->n_parcels;
    const int events = (sends ? POLLOUT : 0) | (receives ? POLLIN : 0);
    polled[3 * r] = (struct pollfd){.fd = events != 0 ? peer->data : -1, .events = (short)events};
    polled[3 * r + 1] = (struct pollfd){.fd = peer->is_deaf ? -1 : peer->alarm, .events = POLLIN};
    polled[3 * r + 2] =
        (struct pollfd){.fd = peer->has_ended ? -1 : peer->process, .events = POLLIN};
  }
  (void)poll(polled, 3 * (nfds_t)c->comm->base.size, left_ms < LOOK_MS ? (int)left_ms : LOOK_MS);
}

static xfer_status fail_for_late(const carrying *c)
{
  int late = 0;

  for (int way = FROM; way >= TO; way--) { /* who does not send is late, before who does not read */
    for (late = 0; late < c->comm->base.size; late++)
      XFI_CHECK(c->comm->peers[late].next_parcel[way] >= c->n_parcels, XFER_ERR_TIMEOUT,
                "%s: rank %d did not come before the deadline", calls[c->call], late);
  }
  return XFER_OK;
}

static xfer_status carry_all(carrying *c, xfi_deadline deadline)
{
  xfi_host_comm *comm = c->comm;
  xfi_deadline until = {0}; /* who gave up has sent its part too: alarms are heard before that */

  XFI_TRY(xfi_broken_check(&comm->broken));
  while (c->n_left > 0) {
    sleep_for_more(c, until);
    for (size_t r = 0; r < (size_t)comm->base.size; r++) {
      if ((comm->polled[3 * r + 1].revents | comm->polled[3 * r + 2].revents) != 0)
        hear(comm, (int)r);
    }
    XFI_TRY(xfi_broken_check(&comm->broken));
    for (int r = 0; r < comm->base.size; r++) {
      if (r == comm->base.rank) continue;
      XFI_TRY(serve(c, r, TO));
      XFI_TRY(serve(c, r, FROM));
    }
    if (c->n_left > 0 && xfi_deadline_expired(deadline)) XFI_TRY(fail_for_late(c));
    until = deadline;
  }
  return XFER_OK;
}

/* Makes room for the parcels of a call, none of which is under way. */
static xfer_status begin(carrying *c, xfi_host_comm *comm, int call, size_t n)
{
  *c = (carrying){.comm = comm, .call = call, .n_parcels = n};
  XFI_TRY(xfi_vec_reserve(&comm->parcels, &comm->capacity, n, sizeof *comm->parcels));
  for (int r = 0; r < comm->base.size; r++)
    comm->peers[r].next_parcel[TO] = comm->peers[r].next_parcel[FROM] = n;
  return XFER_OK;
}

/* Puts a parcel in front of the others of its peer, so the last one is added first. */
static void add(carrying *c, int way, xfi_message message)
{
  xfi_host_peer *peer = &c->comm->peers[message.peer];
  const size_t i = c->n_left++;

  c->comm->parcels[i] = (xfi_parcel){.message = message, .next = peer->next_parcel[way]};
  if (way == TO) c->comm->parcels[i].head = (xfi_host_head){message.n_bytes, (uint64_t)c->call};
  peer->next_parcel[way] = i;
}

/* What every failed call ends with: the others learn of it. */
static xfer_status finish(xfi_host_comm *comm, xfer_status st)
{
  if (st != XFER_OK && !atomic_load(&comm->broken.is)) xfi_comm_leave(&comm->base, host_abort);
  return st;
}

static xfer_status carry(xfi_comm *base, int call, const xfi_message *sends, int n_sends,
                         const xfi_message *recvs, int n_recvs, xfi_deadline deadline)
{
  xfi_host_comm *comm = (xfi_host_comm *)base;
  xfer_status st = XFER_OK;
  carrying c;

  XFI_TRY_DONE(begin(&c, comm, call, (size_t)n_sends + (size_t)n_recvs));
  for (int i = n_sends; i-- > 0;)
    add(&c, TO, sends[i]);
  for (int i = n_recvs; i-- > 0;)
    add(&c, FROM, recvs[i]);
  XFI_TRY_DONE(carry_all(&c, deadline));
done:
  return finish(comm, st);
}

/* ---- the calls ---------------------------------------------------------------------------- */

static xfer_status gather(xfi_comm *base, void *all, const void *mine, size_t n_bytes,
                          xfi_deadline deadline)
{
  xfi_host_comm *comm = (xfi_host_comm *)base;
  char *own = (char *)all + (size_t)base->rank * n_bytes;
  carrying c;

  memcpy(own, mine, n_bytes);
  XFI_TRY(begin(&c, comm, GATHER, 2 * (size_t)base->size));
  for (int r = 0; r < base->size && n_bytes > 0; r++) {
    if (r == base->rank) continue;
    add(&c, TO, (xfi_message){own, n_bytes, r});
    add(&c, FROM, (xfi_message){(char *)all + (size_t)r * n_bytes, n_bytes, r});
  }
  return carry_all(&c, deadline);
}

static xfer_status host_all_gather(xfi_comm *base, void *all, const void *mine, size_t n_bytes,
                                   xfi_deadline deadline)
{
  xfi_host_comm *comm = (xfi_host_comm *)base;
  const xfer_status st = xfi_comm_gather(base, all, mine, n_bytes, gather, deadline);

  if (st == XFER_OK) comm->n_gathered = base->n_gatherings;
  if (comm->alarm.kind != 0) (void)xfi_broken_set(&comm->broken, "%s", comm->alarm.why);
  return finish(comm, st);
}

static xfer_status host_exchange(xfi_comm *base, const xfi_message *sends, int n_sends,
                                 const xfi_message *recvs, int n_recvs, xfi_deadline deadline)
{
  return carry(base, EXCHANGE, sends, n_sends, recvs, n_recvs, deadline);
}

static xfer_status host_round(xfi_comm *base, const xfi_message *sends, int n_sends,
                              const xfi_message *recvs, int n_recvs, xfer_stream stream,
                              xfi_deadline deadline)
{
  (void)stream;
  return carry(base, ROUND, sends, n_sends, recvs, n_recvs, deadline);
}

static xfer_status host_broadcast(xfi_comm *base, const xfi_message *messages, int n, int root,
                                  xfer_stream stream, xfi_deadline deadline)
{
  xfi_host_comm *comm = (xfi_host_comm *)base;
  const int way = base->rank == root ? TO : FROM;
  xfer_status st = XFER_OK;
  carrying c;

  (void)stream;
  XFI_TRY_DONE(begin(&c, comm, BROADCAST, (size_t)n * (size_t)base->size));
  for (int i = n; i-- > 0;) {
    for (int r = 0; r < base->size; r++) {
      if (r == base->rank || (way == FROM && r != root)) continue;
      add(&c, way, (xfi_message){messages[i].data, messages[i].n_bytes, r});
    }
  }
  XFI_TRY_DONE(carry_all(&c, deadline));
done:
  return finish(comm, st);
}

/* ---- the end ------------------------------------------------------------------------------ */

void xfi_host_free(xfi_host_comm *comm)
{
  if (comm == NULL) return;
  for (int r = 0; comm->peers != NULL && r < comm->base.size; r++) {
    if (comm->peers[r].alarm >= 0) (void)close(comm->peers[r].alarm);
    if (comm->peers[r].data >= 0) (void)close(comm->peers[r].data);
    if (comm->peers[r].process >= 0) (void)close(comm->peers[r].process);
  }
  (void)pthread_mutex_destroy(&comm->broken.lock);
  xfi_free(comm->peers);
  xfi_free(comm->polled);
  xfi_free(comm->parcels);
  xfi_free(comm);
}

static void host_destroy(xfi_comm *base)
{
  xfi_host_comm *comm = (xfi_host_comm *)base;

  for (int r = 0; r < base->size; r++)
    (void)send(comm->peers[r].alarm, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  xfi_host_free(comm);
}

const xfi_comm_ops xfi_host_ops = {
    .recv_direct = true,
    .destroy = host_destroy,
    .all_gather = host_all_gather,
    .exchange = host_exchange,
    .round = host_round,
    .broadcast = host_broadcast,
    .abort = host_abort,
    .abort_data = host_abort,
};

static const xfi_comm_ops control_ops = {
    .destroy = host_destroy,
    .all_gather = host_all_gather,
    .exchange = host_exchange,
    .abort = host_abort,
};

void xfi_host_control_only(xfi_comm *comm)
{
  comm->ops = &control_ops;
}
