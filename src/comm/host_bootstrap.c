/*
 * How processes of one host connect, as a comm is made. Every rank makes the memory that it shares
 * and listens for a moment at a random address. The caller's all-gather publishes the addresses;
 * each rank connects to those before it; and the two ranks of each pair send each other the file of
 * their memory. After each of these steps the ranks exchange their statuses by the caller's
 * all-gather, so that nobody waits for a rank that has failed.
 *
 * An address of Linux's abstract namespace is in no file system and anybody may connect to it, so
 * both ends check whose process the other is, and the connecting one sends the published name. A
 * file that is sent over a socket needs no process number and no /proc, so ranks may be in
 * containers of their own if these share the network.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* accept4, struct ucred */
#endif
#include "shared.h"

#include "alloc.h"
#include "error.h"
#include "socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { ENDPOINT_TEXT_BYTES = 200, REASON_BYTES = 160 };
enum { PAUSE_NS = 50000 };

/* What each rank publishes: its status, where it listens, who it is, and where it runs. */
typedef struct endpoint {
  /* These three come first in every version. */
  uint32_t version;
  int32_t number; /* 1 + its rank, so that 0 belongs to no rank */
  int32_t size;
  int32_t status;
  char name[XFI_SOCKET_NAME_BYTES];
  xfi_cores cores;
  char text[ENDPOINT_TEXT_BYTES];
} endpoint;

/* The first message on a connection. */
typedef struct hello {
  char to[XFI_SOCKET_NAME_BYTES];
  char from[XFI_SOCKET_NAME_BYTES];
  int32_t rank;
} hello;

/* Ranks are numbered as among those of the host. */
typedef struct bootstrap {
  int rank;
  int size;
  xfi_shared *shared;
  xfer_all_gather_fn all_gather;
  void *context;
  int listener;
  int file;          /* of the own segment */
  bool is_published; /* the others know the listener's name */
  bool is_connected; /* and are connected to it */
  endpoint own;
  endpoint *endpoints; /* [size] of all ranks, as last gathered */
} bootstrap;

/* What errno means; if the limit of open files was reached, with that limit. */
static const char *reason(char text[REASON_BYTES])
{
  const int error = errno;
  struct rlimit most;

  if ((error != EMFILE && error != ETOOMANYREFS) || getrlimit(RLIMIT_NOFILE, &most) != 0)
    return strerror(error);
  (void)snprintf(text, REASON_BYTES, "%s: the limit of this process is %llu (RLIMIT_NOFILE)",
                 strerror(error), (unsigned long long)most.rlim_cur);
  return text;
}
#define REASON reason((char[REASON_BYTES]){""})

/* A pidfd of the process at the other end of a socket; -1: that is this process, or the system does
 * not give one. */
static int watch_process(int socket)
{
  struct ucred peer = {.pid = 0};
  socklen_t n = sizeof peer;

  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0 || peer.pid <= 0) return -1;
  return peer.pid == getpid() ? -1 : xfi_descriptor_kept((int)syscall(SYS_pidfd_open, peer.pid, 0));
}

static xfer_status listen_here(bootstrap *b)
{
  b->own.cores = xfi_cores_own();
  b->listener = xfi_socket_listen(SOCK_STREAM | SOCK_NONBLOCK, b->size, b->own.name);
  XFI_CHECK(b->listener >= 0, XFER_ERR_COMM, "a socket for the other ranks: %s", REASON);
  b->file = xfi_shared_make(b->shared);
  XFI_CHECK(b->file >= 0, XFER_ERR_COMM, "memory for the other ranks: %s", REASON);
  return XFER_OK;
}

/* Is the endpoint of each rank at its place? */
static xfer_status check_endpoints(const bootstrap *b)
{
  for (int r = 0; r < b->size; r++) {
    const endpoint *one = &b->endpoints[r];
    const int owner = one->number - 1;

    XFI_CHECK(owner >= 0 && owner < one->size, XFER_ERR_COMM,
              "the caller's all-gather did not put the bytes of rank %d at its place", r);
    XFI_TRY(xfi_comm_check_version(b->rank, one->version, owner));
    XFI_CHECK(one->size == b->size, XFER_ERR_COMM,
              "rank %d makes a comm of %d ranks, rank %d of %d", owner, one->size, b->rank,
              b->size);
    if (owner == r) continue;
    XFI_CHECK(b->endpoints[owner].number != one->number ||
                  memcmp(b->endpoints[owner].name, one->name, XFI_SOCKET_NAME_BYTES) == 0,
              XFER_ERR_COMM, "two ranks have the number %d", owner);
    return XFI_ERROR(XFER_ERR_COMM,
                     "the caller's all-gather gave the word of rank %d at the place of rank %d",
                     owner, r);
  }
  XFI_CHECK(memcmp(b->endpoints[b->rank].name, b->own.name, XFI_SOCKET_NAME_BYTES) == 0,
            XFER_ERR_COMM, "two ranks have the number %d", b->rank);
  return XFER_OK;
}

/* Close all files after a failure. The failure may be that no more can be opened, and the caller's
 * all-gather may need one to report that. Only the listener stays open as long as others may
 * connect to it: a refused connection would become their error. */
static void close_files(bootstrap *b)
{
  xfi_shared_part(b->shared);
  b->file = xfi_descriptor_drop(b->file);
  if (!b->is_published || b->is_connected) b->listener = xfi_descriptor_drop(b->listener);
}

/* Is there a free descriptor for the caller's all-gather? Without one this rank could not reach the
 * others. */
static xfer_status check_room(const bootstrap *b)
{
  const int one = fcntl(b->listener, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);

  XFI_CHECK(
      one >= 0, XFER_ERR_COMM,
      "no file is left for the caller's all-gather: %s; a rank needs 2 for each other rank, and 3 "
      "more",
      REASON);
  (void)close(one);
  return XFER_OK;
}

/* Exchange endpoints, and with them the statuses. Collective, so a rank calls it also after it has
 * failed. */
static xfer_status exchange_endpoints(bootstrap *b, xfer_status mine)
{
  endpoint *own = &b->own;
  char why[XFI_ERROR_BYTES]; /* the caller's function may overwrite the last error */
  int code;

  if (mine == XFER_OK) mine = check_room(b);
  if (mine != XFER_OK) close_files(b);
  b->is_published = true;
  own->status = (int32_t)mine;
  (void)snprintf(why, sizeof why, "%s", xfer_last_error());
  if (mine != XFER_OK)
    (void)snprintf(own->text, sizeof own->text, "%.*s", ENDPOINT_TEXT_BYTES - 1, why);
  code = b->all_gather(b->context, b->endpoints, own, sizeof *own);
  xfi_set_error("%s", why);
  if (mine != XFER_OK) return mine;
  XFI_CHECK(code == 0, XFER_ERR_COMM, "the caller's all-gather of %zu bytes answered %d",
            sizeof *own, code);
  XFI_TRY(check_endpoints(b));
  for (int r = 0; r < b->size; r++)
    XFI_CHECK(b->endpoints[r].status == XFER_OK, XFER_ERR_PEER, "rank %d: %.*s", r,
              ENDPOINT_TEXT_BYTES - 1, b->endpoints[r].text);
  return XFER_OK;
}

/* Connect to all lower ranks. They accept connections only later, but the backlog of a listener has
 * room for all ranks; if not, this fails. */
static xfer_status connect_all(bootstrap *b)
{
  for (int rank = 0; rank < b->rank; rank++) {
    xfi_neighbour *peer = &b->shared->neighbours[rank];
    hello greeting = {.rank = b->rank};
    struct sockaddr_un address;
    const socklen_t n_bytes = xfi_socket_address(&address, b->endpoints[rank].name);

    memcpy(greeting.to, b->endpoints[rank].name, XFI_SOCKET_NAME_BYTES);
    memcpy(greeting.from, b->own.name, XFI_SOCKET_NAME_BYTES);
    peer->socket = xfi_socket_make(SOCK_STREAM | SOCK_NONBLOCK);
    XFI_CHECK(peer->socket >= 0, XFER_ERR_COMM, "a socket to rank %d: %s", rank, REASON);
    XFI_CHECK(connect(peer->socket, (struct sockaddr *)&address, n_bytes) == 0, XFER_ERR_COMM,
              "a socket to rank %d, which must be on this host: %s", rank,
              errno == EAGAIN ? "more ranks than net.core.somaxconn allows" : REASON);
    XFI_CHECK(xfi_socket_is_same_user(peer->socket), XFER_ERR_COMM,
              "rank %d is another user's process", rank);
    peer->process = watch_process(peer->socket);
    XFI_CHECK(xfi_socket_send(peer->socket, &greeting, sizeof greeting, -1), XFER_ERR_COMM,
              "rank %d was told nothing: %s", rank, REASON);
  }
  return XFER_OK;
}

/* The rank that has connected, once each; -1: a stranger. */
static int identify(const bootstrap *b, int made)
{
  hello greeting;
  ssize_t n;

  XFI_AGAIN(n, recv(made, &greeting, sizeof greeting, MSG_DONTWAIT));
  if (n != (ssize_t)sizeof greeting || !xfi_socket_is_same_user(made) || greeting.rank <= b->rank ||
      greeting.rank >= b->size || b->shared->neighbours[greeting.rank].socket >= 0)
    return -1;
  return memcmp(greeting.to, b->own.name, XFI_SOCKET_NAME_BYTES) == 0 &&
                 memcmp(greeting.from, b->endpoints[greeting.rank].name, XFI_SOCKET_NAME_BYTES) == 0
             ? greeting.rank
             : -1;
}

/* Accept all connections of higher ranks; those of strangers are closed. */
static xfer_status accept_all(bootstrap *b)
{
  for (int n_missing = b->size - 1 - b->rank; n_missing > 0;) {
    const int made =
        xfi_descriptor_kept(accept4(b->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    int rank;

    if (made < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    XFI_CHECK(made >= 0, XFER_ERR_COMM, "%d ranks did not connect: %s", n_missing, REASON);
    rank = identify(b, made);
    if (rank < 0) {
      (void)close(made);
      continue;
    }
    b->shared->neighbours[rank] = (xfi_neighbour){made, watch_process(made)};
    n_missing--;
  }
  return XFER_OK;
}

/* Send the file of this rank's memory to a rank. *is_done is false if it has to be tried again: the
 * kernel limits the files in flight, of all processes of a user together. A rank that has ended
 * counts as done, and is noticed elsewhere. */
static xfer_status send_file(const bootstrap *b, int rank, bool *is_done)
{
  *is_done = xfi_socket_send(b->shared->neighbours[rank].socket, "", 1, b->file) ||
             errno == EPIPE || errno == ECONNRESET;
  XFI_CHECK(*is_done || errno == ETOOMANYREFS || errno == EAGAIN, XFER_ERR_COMM,
            "rank %d was not given memory: %s", rank, REASON);
  return XFER_OK;
}

/* Receive the file of a rank's memory, and map it. *is_done is false if it has not arrived yet; a
 * rank that has ended counts as done. */
static xfer_status receive_file(const bootstrap *b, int rank, bool *is_done)
{
  xfi_segment *theirs = NULL;
  bool is_lost = false;
  int file = -1;
  bool is_whole;
  char byte;

  errno = 0; /* it stays 0 if the other end has closed the socket */
  is_whole = xfi_socket_receive(b->shared->neighbours[rank].socket, &byte, 1, MSG_DONTWAIT, &file,
                                &is_lost);
  *is_done = is_whole || errno == 0 || errno == ECONNRESET;
  if (!is_whole && (*is_done || errno == EAGAIN)) return XFER_OK;
  if (file >= 0) theirs = xfi_shared_map(b->shared, file);
  if (file >= 0) (void)close(file);
  b->shared->at[rank] = theirs;
  if (is_lost) errno = EMFILE; /* the only reason for the kernel to drop a file */
  XFI_CHECK(theirs != NULL && theirs->rank >= 0 && theirs->rank < b->shared->base.size,
            XFER_ERR_COMM, "the memory of rank %d: %s", rank, REASON);
  b->shared->host_ranks[theirs->rank] = rank;
  return XFER_OK;
}

/* Exchange files with all ranks at once, in whatever order it goes: a rank goes on receiving while
 * it cannot send, and so do all others. */
static xfer_status exchange_files(const bootstrap *b, bool *has_sent, bool *has_received)
{
  const xfi_deadline deadline = xfi_deadline_after(XFI_DEFAULT_TIMEOUT_MS);
  int n_left = 2 * (b->size - 1);
  int last = 0; /* some rank that is not done, for the error text */

  for (int before = n_left; n_left > 0; before = n_left) {
    for (int i = 1; i < b->size; i++) {
      const int rank = (b->rank + i) % b->size;
      const int had = has_sent[rank] + has_received[rank];

      if (!has_sent[rank]) XFI_TRY(send_file(b, rank, &has_sent[rank]));
      if (!has_received[rank]) XFI_TRY(receive_file(b, rank, &has_received[rank]));
      n_left -= has_sent[rank] + has_received[rank] - had;
      if (!has_sent[rank] || !has_received[rank]) last = rank;
    }
    if (n_left < before) continue;
    XFI_CHECK(!xfi_deadline_expired(deadline), XFER_ERR_TIMEOUT,
              "rank %d and this one did not give each other memory before %s", last,
              xfi_deadline_end(deadline));
    xfi_sleep_ns(PAUSE_NS);
  }
  return XFER_OK;
}

static xfer_status connect_memory(bootstrap *b)
{
  xfer_status st = XFER_OK;
  bool *done = xfi_calloc(2 * (size_t)b->size, sizeof *done);

  XFI_CHECK_DONE(done != NULL, XFER_ERR_NOMEM, "a comm of %d ranks", b->size);
  XFI_TRY_DONE(accept_all(b));
  XFI_TRY_DONE(exchange_files(b, done, done + b->size));
  b->shared->base.has_cores =
      xfi_cores_suffice(&b->endpoints[0].cores, sizeof *b->endpoints, b->size);
done:
  xfi_free(done);
  return st;
}

void *xfi_host_endpoints(int n)
{
  return xfi_calloc((size_t)n, sizeof(endpoint));
}

xfer_status xfi_host_bootstrap(xfi_shared *shared, xfer_status mine, xfer_all_gather_fn all_gather,
                               void *context)
{
  bootstrap b = {.rank = shared->host_rank,
                 .size = shared->n_host_ranks,
                 .shared = shared,
                 .all_gather = all_gather,
                 .context = context,
                 .listener = -1,
                 .file = -1,
                 .endpoints = shared->endpoints};
  xfer_status st = XFER_OK;

  b.own.version = XFI_VERSION;
  b.own.number = b.rank + 1;
  b.own.size = b.size;
  st = exchange_endpoints(&b, mine == XFER_OK ? listen_here(&b) : mine);
  st = exchange_endpoints(&b, st == XFER_OK ? connect_all(&b) : st);
  b.is_connected = st == XFER_OK;
  st = exchange_endpoints(&b, st == XFER_OK ? connect_memory(&b) : st);
  for (int r = 0; r < b.size && st == XFER_OK; r++)
    if (shared->at[r] == NULL) st = XFI_ERROR(XFER_ERR_PEER, "rank %d has ended", r);
  if (st != XFER_OK) xfi_shared_part(shared);
  (void)xfi_descriptor_drop(b.listener);
  (void)xfi_descriptor_drop(b.file);
  return st;
}
