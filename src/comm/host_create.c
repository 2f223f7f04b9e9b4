/* Making a comm over sockets of one host: every rank listens for a moment at a random address, the
 * caller's all-gather tells the addresses, each rank connects to those below it and accepts those
 * above it. Two more of the caller's gatherings see to it that nobody waits for one that failed.
 *
 * An address of Linux's abstract namespace is in no file system and may be connected to by anybody,
 * so both ends look whose process the other is, and the connecting one says the name that was told.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* accept4, struct ucred */
#endif
#include "host_comm.h"

#include "alloc.h"
#include "error.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { NAME_BYTES = 32, WORD_TEXT_BYTES = 200 };

/* What each rank tells all others: how it fared, and where it listens. */
typedef struct word {
  int32_t status;
  char name[NAME_BYTES];
  char text[WORD_TEXT_BYTES];
} word;

/* What a rank says of a connection that it makes. */
typedef struct hello {
  char name[NAME_BYTES]; /* of whom it connects to */
  int32_t rank;
  int32_t is_alarm;
} hello;

typedef struct meeting {
  int rank;
  int size;
  xfi_host_comm *comm;
  xfer_all_gather_fn all_gather;
  void *context;
  int listener[2]; /* for data and for alarms */
  word *words;     /* [size] */
} meeting;

/* An end that differs from `name` in its last byte is for alarms. */
static socklen_t address_of(struct sockaddr_un *address, const char name[NAME_BYTES], int is_alarm)
{
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  memcpy(address->sun_path + 1, name, NAME_BYTES);
  address->sun_path[1 + NAME_BYTES] = is_alarm ? 'a' : 'd';
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 2 + NAME_BYTES);
}

static int type_of(int is_alarm)
{
  return (is_alarm ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC;
}

static bool is_same_user(int socket)
{
  struct ucred peer = {.uid = (uid_t)-1};
  socklen_t n = sizeof peer;

  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 && peer.uid == geteuid();
}

/* Of the process at the other end; -1: this one, or the system does not let us. */
static int watch_process(int socket)
{
#ifdef SYS_pidfd_open
  struct ucred peer = {.pid = 0};
  socklen_t n = sizeof peer;

  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0 || peer.pid <= 0) return -1;
  return peer.pid == getpid() ? -1 : (int)syscall(SYS_pidfd_open, peer.pid, 0);
#else
  (void)socket;
  return -1;
#endif
}

static xfer_status listen_here(meeting *m)
{
  unsigned char random[NAME_BYTES / 2];
  struct sockaddr_un address;
  word *own = &m->words[m->rank];

  XFI_CHECK(getrandom(random, sizeof random, 0) == (ssize_t)sizeof random, XFER_ERR_COMM,
            "no random name for a socket: %s", strerror(errno));
  for (size_t i = 0; i < sizeof random; i++) {
    own->name[2 * i] = "0123456789abcdef"[random[i] >> 4];
    own->name[2 * i + 1] = "0123456789abcdef"[random[i] & 15];
  }
  for (int is_alarm = 0; is_alarm < 2; is_alarm++) {
    const socklen_t n_bytes = address_of(&address, own->name, is_alarm);
    m->listener[is_alarm] = socket(AF_UNIX, type_of(is_alarm) | SOCK_NONBLOCK, 0);
    XFI_CHECK(m->listener[is_alarm] >= 0 &&
                  bind(m->listener[is_alarm], (struct sockaddr *)&address, n_bytes) == 0 &&
                  listen(m->listener[is_alarm], m->size) == 0,
              XFER_ERR_COMM, "a socket for the other ranks: %s", strerror(errno));
  }
  return XFER_OK;
}

/* All ranks: how each of them fared. Called whatever happened, since the caller's function may not
 * be called by some ranks alone. */
static xfer_status tell(meeting *m, xfer_status mine)
{
  word own = m->words[m->rank];
  int answer;

  own.status = (int32_t)mine;
  if (mine != XFER_OK)
    (void)snprintf(own.text, sizeof own.text, "%.*s", WORD_TEXT_BYTES - 1, xfi_last_error());
  answer = m->all_gather(m->context, m->words, &own, sizeof own);
  if (mine != XFER_OK) return mine;
  XFI_CHECK(answer == 0, XFER_ERR_COMM, "the caller's all-gather of %zu bytes answered %d",
            sizeof own, answer);
  for (int r = 0; r < m->size; r++)
    XFI_CHECK(m->words[r].status == XFER_OK, XFER_ERR_PEER, "rank %d: %.*s", r, WORD_TEXT_BYTES - 1,
              m->words[r].text);
  return XFER_OK;
}

static int *end_of(xfi_host_peer *peer, int is_alarm)
{
  return is_alarm ? &peer->alarm : &peer->data;
}

/* Its listener has room for all ranks, so this does not wait. */
static xfer_status connect_to(meeting *m, int rank, int is_alarm)
{
  int *end = end_of(&m->comm->peers[rank], is_alarm);
  hello said = {.rank = m->rank, .is_alarm = is_alarm};
  struct sockaddr_un address;
  const socklen_t n_bytes = address_of(&address, m->words[rank].name, is_alarm);

  memcpy(said.name, m->words[rank].name, NAME_BYTES);
  *end = socket(AF_UNIX, type_of(is_alarm), 0);
  XFI_CHECK(*end >= 0 && connect(*end, (struct sockaddr *)&address, n_bytes) == 0, XFER_ERR_COMM,
            "a socket to rank %d, which must be on this host: %s", rank, strerror(errno));
  XFI_CHECK(is_same_user(*end), XFER_ERR_COMM, "rank %d is another user's process", rank);
  XFI_CHECK(send(*end, &said, sizeof said, MSG_NOSIGNAL) == (ssize_t)sizeof said, XFER_ERR_COMM,
            "rank %d does not listen: %s", rank, strerror(errno));
  return XFER_OK;
}

/* One that has connected already; a stranger's is closed. Returns whether it was one of ours. */
static bool take(meeting *m, int is_alarm, int made)
{
  hello said = {.rank = -1};
  const word *own = &m->words[m->rank];
  const ssize_t n = recv(made, &said, sizeof said, MSG_DONTWAIT);

  if (n != (ssize_t)sizeof said || !is_same_user(made) || said.is_alarm != is_alarm ||
      memcmp(said.name, own->name, NAME_BYTES) != 0 || said.rank <= m->rank ||
      said.rank >= m->size || *end_of(&m->comm->peers[said.rank], is_alarm) >= 0) {
    (void)close(made);
    return false;
  }
  *end_of(&m->comm->peers[said.rank], is_alarm) = made;
  return true;
}

static xfer_status accept_all(meeting *m, int is_alarm)
{
  int n_missing = m->size - 1 - m->rank;

  while (n_missing > 0) {
    const int made = accept4(m->listener[is_alarm], NULL, NULL, SOCK_CLOEXEC);
    if (made < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    XFI_CHECK(made >= 0, XFER_ERR_COMM, "%d ranks did not connect: %s", n_missing, strerror(errno));
    if (take(m, is_alarm, made)) n_missing--;
  }
  return XFER_OK;
}

static void watch_processes(meeting *m)
{
  for (int r = 0; r < m->size; r++)
    if (r != m->rank) m->comm->peers[r].process = watch_process(m->comm->peers[r].data);
}

static xfer_status connect_below(meeting *m)
{
  for (int r = 0; r < m->rank; r++) {
    XFI_TRY(connect_to(m, r, 0));
    XFI_TRY(connect_to(m, r, 1));
  }
  return XFER_OK;
}

static xfer_status accept_above(meeting *m)
{
  XFI_TRY(accept_all(m, 0));
  XFI_TRY(accept_all(m, 1));
  watch_processes(m);
  return XFER_OK;
}

/* Local. What it has made is in *m, whatever it returns. */
static xfer_status prepare(meeting *m)
{
  const size_t size = (size_t)m->size;
  xfi_host_comm *comm = xfi_calloc(1, sizeof *comm);

  XFI_CHECK(comm != NULL, XFER_ERR_NOMEM, "a comm of %d ranks", m->size);
  m->comm = comm;
  comm->base = (xfi_comm){.ops = &xfi_host_ops, .rank = m->rank, .size = m->size};
  (void)pthread_mutex_init(&comm->broken.lock, NULL); /* cannot fail without attributes */
  comm->peers = xfi_calloc(size, sizeof *comm->peers);
  XFI_CHECK(comm->peers != NULL, XFER_ERR_NOMEM, "a comm of %d ranks", m->size);
  for (int r = 0; r < m->size; r++)
    comm->peers[r] =
        (xfi_host_peer){.data = -1, .alarm = -1, .process = -1, .is_deaf = r == m->rank};
  comm->polled = xfi_calloc(3 * size, sizeof *comm->polled);
  XFI_CHECK(comm->polled != NULL, XFER_ERR_NOMEM, "a comm of %d ranks", m->size);
  return listen_here(m);
}

xfer_status xfi_comm_create_host(xfi_comm **comm, xfer_all_gather_fn all_gather, void *context,
                                 int rank, int size)
{
  meeting m = {rank, size, .all_gather = all_gather, .context = context, .listener = {-1, -1}};
  xfer_status st = XFER_OK;

  m.words = xfi_calloc((size_t)size, sizeof *m.words);
  XFI_CHECK_DONE(m.words != NULL, XFER_ERR_NOMEM, /* without this there is no word to the others */
                 "a comm of %d ranks", size);
  st = tell(&m, prepare(&m));
  st = tell(&m, st == XFER_OK ? connect_below(&m) : st);
  st = tell(&m, st == XFER_OK ? accept_above(&m) : st);
  XFI_TRY_DONE(st);
  *comm = &m.comm->base;
  m.comm = NULL;
done:
  for (int i = 0; i < 2; i++)
    if (m.listener[i] >= 0) (void)close(m.listener[i]);
  xfi_free(m.words);
  xfi_host_free(m.comm);
  return st;
}
