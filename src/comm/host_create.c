/* Making a comm of processes of one host: every rank makes memory for what it gives the others and
 * listens for a moment at a random address; the caller's all-gather tells the addresses, each rank
 * connects to every other one, and then hands it the memory's file. Two more of the caller's
 * gatherings see to it that nobody waits for one that failed.
 *
 * An address of Linux's abstract namespace is in no file system and may be connected to by anybody,
 * so both ends look whose process the other is, and the connecting one says the name that was told.
 * A file that comes over a socket needs no process number and no /proc, so ranks may be in
 * containers of their own, where these share the network.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* accept4, struct ucred */
#endif
#include "host_comm.h"

#include "alloc.h"
#include "error.h"
#include "socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { NAME_BYTES = 32, WORD_TEXT_BYTES = 200, REASON_BYTES = 160 };
enum { PAUSE_NS = 50000, MEET_MS = 10 * 60 * 1000 };

/* What each rank tells all others: how it fared, where it listens, who it is, and where it runs. */
typedef struct word {
  /* These three first, whatever follows them in another version. */
  uint32_t version;
  int32_t number; /* 1 + its rank, so that 0 is nobody's */
  int32_t size;
  int32_t status;
  char name[NAME_BYTES];
  xfi_cores cores;
  char text[WORD_TEXT_BYTES];
} word;

/* What a rank says of a connection that it makes. */
typedef struct hello {
  char to[NAME_BYTES];
  char from[NAME_BYTES];
  int32_t rank;
} hello;

typedef struct meeting {
  int rank;
  int size;
  xfi_host_comm *comm;
  xfer_all_gather_fn all_gather;
  void *context;
  int listener;
  int file;      /* of the own segment */
  bool is_known; /* the others were told of the listener */
  bool has_met;  /* and have connected to it */
  word own;
  word *words; /* [size] of all ranks, as last told */
} meeting;

/* What errno says, with the limit where there is one; `text` is room for it. */
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

/* Of the process at the other end; -1: this one, or the system does not let us. */
static int watch_process(int socket)
{
  struct ucred peer = {.pid = 0};
  socklen_t n = sizeof peer;

  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0 || peer.pid <= 0) return -1;
  return peer.pid == getpid() ? -1 : xfi_descriptor_kept((int)syscall(SYS_pidfd_open, peer.pid, 0));
}

static xfer_status listen_here(meeting *m)
{
  unsigned char random[NAME_BYTES / 2];
  struct sockaddr_un address;
  word *own = &m->own;

  XFI_CHECK(getrandom(random, sizeof random, 0) == (ssize_t)sizeof random, XFER_ERR_COMM,
            "no random name for a socket: %s", strerror(errno));
  for (size_t i = 0; i < sizeof random; i++) {
    own->name[2 * i] = "0123456789abcdef"[random[i] >> 4];
    own->name[2 * i + 1] = "0123456789abcdef"[random[i] & 15];
  }
  own->cores = xfi_cores_own();
  m->listener = xfi_descriptor_kept(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  XFI_CHECK(m->listener >= 0 &&
                bind(m->listener, (struct sockaddr *)&address,
                     xfi_socket_address(&address, own->name, NAME_BYTES)) == 0 &&
                listen(m->listener, m->size) == 0,
            XFER_ERR_COMM, "a socket for the other ranks: %s", REASON);
  m->file = xfi_shared_make(&m->comm->shared, 0);
  XFI_CHECK(m->file >= 0, XFER_ERR_COMM, "memory for the other ranks: %s", REASON);
  return XFER_OK;
}

/* Is the word of each rank at its place? */
static xfer_status check_words(const meeting *m)
{
  for (int r = 0; r < m->size; r++) {
    const word *one = &m->words[r];
    const int teller = one->number - 1;

    XFI_CHECK(teller >= 0 && teller < one->size, XFER_ERR_COMM,
              "the caller's all-gather did not put the bytes of rank %d at its place", r);
    XFI_TRY(xfi_comm_check_version(m->rank, one->version, teller));
    XFI_CHECK(one->size == m->size, XFER_ERR_COMM,
              "rank %d makes a comm of %d ranks, rank %d of %d", teller, one->size, m->rank,
              m->size);
    if (teller == r) continue;
    XFI_CHECK(m->words[teller].number != one->number ||
                  memcmp(m->words[teller].name, one->name, NAME_BYTES) == 0,
              XFER_ERR_COMM, "two ranks have the number %d", teller);
    return XFI_ERROR(XFER_ERR_COMM,
                     "the caller's all-gather gave the word of rank %d at the place of rank %d",
                     teller, r);
  }
  XFI_CHECK(memcmp(m->words[m->rank].name, m->own.name, NAME_BYTES) == 0, XFER_ERR_COMM,
            "two ranks have the number %d", m->rank);
  return XFER_OK;
}

/* Of a rank that failed, perhaps since it may open no more files: the caller's all-gather may want
 * one to tell the others so. The listener stays while they may connect to it, since to be refused
 * by it would be what they fail of. */
static void let_go(meeting *m)
{
  if (m->comm != NULL) xfi_host_hang_up(m->comm);
  m->file = xfi_descriptor_drop(m->file);
  if (!m->is_known || m->has_met) m->listener = xfi_descriptor_drop(m->listener);
}

/* Else this rank would have no way to tell the others anything. */
static xfer_status check_room(const meeting *m)
{
  const int one = fcntl(m->listener, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);

  XFI_CHECK(one >= 0, XFER_ERR_COMM, "a file for the caller's all-gather: %s", REASON);
  (void)close(one);
  return XFER_OK;
}

/* All ranks: how each of them fared. Called whatever happened, since the caller's function may not
 * be called by some ranks alone. */
static xfer_status tell(meeting *m, xfer_status mine)
{
  word *own = &m->own;
  char why[XFI_ERROR_BYTES]; /* the caller's function may set another one */
  int answer;

  if (mine == XFER_OK) mine = check_room(m);
  if (mine != XFER_OK) let_go(m);
  m->is_known = true;
  own->status = (int32_t)mine;
  (void)snprintf(why, sizeof why, "%s", xfer_last_error());
  if (mine != XFER_OK)
    (void)snprintf(own->text, sizeof own->text, "%.*s", WORD_TEXT_BYTES - 1, why);
  answer = m->all_gather(m->context, m->words, own, sizeof *own);
  xfi_set_error("%s", why);
  if (mine != XFER_OK) return mine;
  XFI_CHECK(answer == 0, XFER_ERR_COMM, "the caller's all-gather of %zu bytes answered %d",
            sizeof *own, answer);
  XFI_TRY(check_words(m));
  for (int r = 0; r < m->size; r++)
    XFI_CHECK(m->words[r].status == XFER_OK, XFER_ERR_PEER, "rank %d: %.*s", r, WORD_TEXT_BYTES - 1,
              m->words[r].text);
  return XFER_OK;
}

/* Nobody takes connections yet: a listener has room for all ranks, or this fails. */
static xfer_status connect_to(meeting *m, int rank)
{
  int *out = &m->comm->peers[rank].out;
  hello said = {.rank = m->rank};
  struct sockaddr_un address;
  const socklen_t n_bytes = xfi_socket_address(&address, m->words[rank].name, NAME_BYTES);

  memcpy(said.to, m->words[rank].name, NAME_BYTES);
  memcpy(said.from, m->own.name, NAME_BYTES);
  *out = xfi_descriptor_kept(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  XFI_CHECK(*out >= 0, XFER_ERR_COMM, "a socket to rank %d: %s", rank, REASON);
  XFI_CHECK(connect(*out, (struct sockaddr *)&address, n_bytes) == 0, XFER_ERR_COMM,
            "a socket to rank %d, which must be on this host: %s", rank,
            errno == EAGAIN ? "more ranks than net.core.somaxconn allows" : REASON);
  XFI_CHECK(xfi_socket_is_same_user(*out), XFER_ERR_COMM, "rank %d is another user's process",
            rank);
  XFI_CHECK(xfi_socket_send(*out, &said, sizeof said, -1), XFER_ERR_COMM,
            "rank %d was told nothing: %s", rank, REASON);
  return XFER_OK;
}

static xfer_status connect_all(meeting *m)
{
  for (int r = 0; r < m->size; r++)
    if (r != m->rank) XFI_TRY(connect_to(m, r));
  return XFER_OK;
}

/* That it has ended, or rings. */
static xfer_status watch_peer(const xfi_host_comm *comm, int rank)
{
  const int files[] = {comm->peers[rank].in, comm->peers[rank].process};

  for (uint64_t i = 0; i < 2; i++) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 2 * (uint64_t)rank + i};

    XFI_CHECK(files[i] < 0 || epoll_ctl(comm->events, EPOLL_CTL_ADD, files[i], &event) == 0,
              XFER_ERR_COMM, "a watch of rank %d: %s", rank, REASON);
  }
  return XFER_OK;
}

/* Who has connected, once; -1: a stranger. */
static int rank_of(const meeting *m, int made)
{
  hello said;
  ssize_t n;

  XFI_AGAIN(n, recv(made, &said, sizeof said, MSG_DONTWAIT));
  if (n != (ssize_t)sizeof said || !xfi_socket_is_same_user(made) || said.rank < 0 ||
      said.rank >= m->size || said.rank == m->rank || m->comm->peers[said.rank].in >= 0)
    return -1;
  return memcmp(said.to, m->own.name, NAME_BYTES) == 0 &&
                 memcmp(said.from, m->words[said.rank].name, NAME_BYTES) == 0
             ? said.rank
             : -1;
}

/* All have connected; a stranger's is closed. */
static xfer_status accept_all(meeting *m)
{
  for (int n_missing = m->size - 1; n_missing > 0;) {
    const int made = xfi_descriptor_kept(accept4(m->listener, NULL, NULL, SOCK_CLOEXEC));
    int rank;

    if (made < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    XFI_CHECK(made >= 0, XFER_ERR_COMM, "%d ranks did not connect: %s", n_missing, REASON);
    rank = rank_of(m, made);
    if (rank < 0) {
      (void)close(made);
      continue;
    }
    m->comm->peers[rank].in = made;
    m->comm->peers[rank].process = watch_process(made);
    XFI_TRY(watch_peer(m->comm, rank));
    n_missing--;
  }
  return XFER_OK;
}

/* *is_done: the rank has it, or has ended, which it says itself; else it does not fit yet: files of
 * one user that nobody has taken are as many as one process may open. */
static xfer_status give_file(const meeting *m, int rank, bool *is_done)
{
  *is_done = xfi_socket_send(m->comm->peers[rank].out, "", 1, m->file) || errno == EPIPE ||
             errno == ECONNRESET;
  XFI_CHECK(*is_done || errno == ETOOMANYREFS || errno == EAGAIN, XFER_ERR_COMM,
            "rank %d was not given memory: %s", rank, REASON);
  return XFER_OK;
}

/* *is_done: the rank's memory is mapped, or it has ended. */
static xfer_status take_file(const meeting *m, int rank, bool *is_done)
{
  xfi_segment *theirs = NULL;
  bool is_lost = false;
  int file = -1;
  bool is_whole;
  char byte;

  errno = 0; /* stays so at an end */
  is_whole = xfi_socket_receive(m->comm->peers[rank].in, &byte, 1, MSG_DONTWAIT, &file, &is_lost);
  *is_done = is_whole || errno == 0 || errno == ECONNRESET;
  if (!is_whole && (*is_done || errno == EAGAIN)) return XFER_OK;
  if (file >= 0) theirs = xfi_shared_map(&m->comm->shared, file);
  if (file >= 0) (void)close(file);
  m->comm->shared.at[rank] = theirs;
  if (is_lost) errno = EMFILE; /* nothing else drops it */
  XFI_CHECK(theirs != NULL && theirs->rank == rank, XFER_ERR_COMM, "the memory of rank %d: %s",
            rank, REASON);
  return XFER_OK;
}

/* With each rank, whatever it waits for itself: all take while they cannot give. */
static xfer_status exchange_files(const meeting *m, bool *has_given, bool *has_taken)
{
  const xfi_deadline deadline = xfi_deadline_after(MEET_MS);
  int n_left = 2 * (m->size - 1);
  int last = 0; /* of those that are not done */

  for (int before = n_left; n_left > 0; before = n_left) {
    for (int i = 1; i < m->size; i++) {
      const int rank = (m->rank + i) % m->size;
      const int had = has_given[rank] + has_taken[rank];

      if (!has_given[rank]) XFI_TRY(give_file(m, rank, &has_given[rank]));
      if (!has_taken[rank]) XFI_TRY(take_file(m, rank, &has_taken[rank]));
      n_left -= has_given[rank] + has_taken[rank] - had;
      if (!has_given[rank] || !has_taken[rank]) last = rank;
    }
    if (n_left < before) continue;
    XFI_CHECK(!xfi_deadline_expired(deadline), XFER_ERR_TIMEOUT,
              "rank %d and this one did not give each other memory before %s", last,
              xfi_deadline_end(deadline));
    xfi_sleep_ns(PAUSE_NS);
  }
  return XFER_OK;
}

static xfer_status meet_all(meeting *m)
{
  xfer_status st = XFER_OK;
  bool *done = xfi_calloc(2 * (size_t)m->size, sizeof *done);

  XFI_CHECK_DONE(done != NULL, XFER_ERR_NOMEM, "a comm of %d ranks", m->size);
  XFI_TRY_DONE(accept_all(m));
  XFI_TRY_DONE(exchange_files(m, done, done + m->size));
  xfi_shared_hear(&m->comm->shared);
  m->comm->shared.base.has_cores = xfi_cores_suffice(&m->words[0].cores, sizeof *m->words, m->size);
done:
  xfi_free(done);
  return st;
}

/* Of ranks that said that they are well. */
static xfer_status check_memory(const meeting *m)
{
  for (int r = 0; r < m->size; r++)
    XFI_CHECK(m->comm->shared.at[r] != NULL, XFER_ERR_PEER, "rank %d has ended", r);
  return XFER_OK;
}

/* Local. What it has made is in *m, whatever it returns. */
static xfer_status prepare(meeting *m)
{
  const size_t size = (size_t)m->size;
  xfi_host_comm *comm = xfi_calloc(1, sizeof *comm);

  XFI_CHECK(comm != NULL, XFER_ERR_NOMEM, "a comm of %d ranks", m->size);
  m->comm = comm;
  comm->events = -1;
  comm->shared.base = (xfi_comm){.ops = &xfi_host_ops, .rank = m->rank, .size = m->size};
  comm->shared.base.shares_all = true;
  comm->peers = xfi_calloc(size, sizeof *comm->peers);
  comm->channels = xfi_calloc(2 * size, sizeof *comm->channels);
  comm->data = xfi_calloc(2 * size, sizeof *comm->data);
  for (int r = 0; comm->peers != NULL && r < m->size; r++)
    comm->peers[r] = XFI_HOST_NO_PEER;
  XFI_CHECK(comm->peers != NULL && comm->channels != NULL && comm->data != NULL, XFER_ERR_NOMEM,
            "a comm of %d ranks", m->size);
  comm->events = xfi_descriptor_kept(epoll_create1(EPOLL_CLOEXEC));
  XFI_CHECK(comm->events >= 0, XFER_ERR_COMM, "to wait for the other ranks: %s", REASON);
  XFI_TRY(xfi_shared_init(&comm->shared, &xfi_host_shared_ops, m->size, m->rank, true));
  for (int r = 0; r < m->size; r++)
    comm->shared.places[r] = r;
  return listen_here(m);
}

xfer_status xfi_comm_create_host(xfi_comm **comm, xfer_all_gather_fn all_gather, void *context,
                                 int rank, int size)
{
  meeting m = {rank,           size,      .all_gather = all_gather, .context = context,
               .listener = -1, .file = -1};
  xfer_status st = XFER_OK;

  m.own.version = XFI_VERSION;
  m.own.number = rank + 1;
  m.own.size = size;
  m.words = xfi_calloc((size_t)size, sizeof *m.words);
  XFI_CHECK_DONE(m.words != NULL, XFER_ERR_NOMEM, /* without this there is no word to the others */
                 "a comm of %d ranks", size);
  st = tell(&m, prepare(&m));
  st = tell(&m, st == XFER_OK ? connect_all(&m) : st);
  m.has_met = st == XFER_OK;
  st = tell(&m, st == XFER_OK ? meet_all(&m) : st);
  XFI_TRY_DONE(st);
  XFI_TRY_DONE(check_memory(&m));
  *comm = &m.comm->shared.base;
  m.comm = NULL;
done:
  (void)xfi_descriptor_drop(m.listener);
  (void)xfi_descriptor_drop(m.file);
  xfi_free(m.words);
  xfi_host_free(m.comm);
  return st;
}
