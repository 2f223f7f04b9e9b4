/* The segments of the ranks of a host under MPI (shared_create.c): found under /proc by what each
 * tells the others. A sleeping rank is woken by its bell. */
#include "mpi_comm.h"

#include "alloc.h"
#include "error.h"
#include "futex.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- sleeping, lost ranks ------------------------------------------------------------------ */

enum {
  NAP_NS = 1000000,
  NAPS = 16, /* between looks for lost ranks */
  SPIN_NS = 2000000,
  YIELDS = 1000 /* to be woken costs more than a turn of all others */
};

static void mpi_nap(xfi_comm *comm, uint32_t bell, xfi_deadline deadline)
{
  const int64_t until = xfi_now_ns() + NAP_NS;
  const xfi_deadline end = {.at_ns = until < deadline.at_ns ? until : deadline.at_ns};
  const xfi_segment *own = xfi_segment_of(&((xfi_mpi_comm *)comm)->shared, comm->rank);

  xfi_futex_wait(&own->bell, bell, end, XFI_FUTEX_SHARED);
}

static void mpi_wake(xfi_comm *comm, int rank)
{
  xfi_segment *segment = xfi_segment_of(&((xfi_mpi_comm *)comm)->shared, rank);

  (void)atomic_fetch_add(&segment->bell, 1);
  xfi_futex_wake_all(&segment->bell, XFI_FUTEX_SHARED);
}

static bool mpi_is_lost(const xfi_comm *comm, int rank)
{
  const xfi_mpi_comm *t = (const xfi_mpi_comm *)comm;
  struct pollfd process = {-1, POLLIN, 0};
  bool lost;

  process.fd = (int)syscall(SYS_pidfd_open, (pid_t)t->cards[t->shared.places[rank]].pid, 0);
  if (process.fd < 0) return errno == ESRCH;
  lost = poll(&process, 1, 0) == 1;
  (void)close(process.fd);
  return lost;
}

static const xfi_shared_ops mpi_shared_ops = {
    .nap = mpi_nap,
    .wake = mpi_wake,
    .is_lost = mpi_is_lost,
    .naps = NAPS,
    .spin_ns = SPIN_NS,
    .yields = YIELDS,
};

/* ---- making one's own, mapping the others' -------------------------------------------------- */

xfer_status xfi_mpi_segments_create(xfi_mpi_comm *t, MPI_Comm host)
{
  int n_places = 0;
  int place = 0;

  t->file = -1;
  (void)MPI_Comm_size(host, &n_places);
  (void)MPI_Comm_rank(host, &place);
  t->cards = xfi_calloc((size_t)n_places, sizeof *t->cards);
  t->mapped = xfi_calloc((size_t)n_places, (size_t)n_places);
  XFI_CHECK(t->cards != NULL && t->mapped != NULL, XFER_ERR_NOMEM, "a comm of %d ranks",
            t->shared.base.size);
  XFI_TRY(xfi_shared_init(&t->shared, &mpi_shared_ops, n_places, place, true));
  if (n_places > 1) t->file = xfi_shared_make(&t->shared, t->token);
  t->cards[place] = (xfi_card){getpid(), t->file, t->shared.base.rank, t->token, xfi_cores_own()};
  return XFER_OK;
}

void xfi_mpi_segments_end(xfi_mpi_comm *t)
{
  if (t->cards != NULL && t->file >= 0) (void)close(t->file);
  xfi_shared_end(&t->shared);
  xfi_free(t->cards);
  xfi_free(t->mapped);
}

/* Under /proc a number may mean another process than the one that gave it, in a container: so look
 * at the file's name before it is opened, and at the token inside before it is used. */
static xfi_segment *open_peer(const xfi_shared *s, const xfi_card *card)
{
  static const char wanted[] = "/memfd:" XFI_SEGMENT_NAME " (deleted)";
  xfi_segment *peer;
  char path[64];
  char name[sizeof wanted + 1];
  ssize_t length;
  int file;

  if (card->file < 0) return NULL;
  (void)snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)card->pid, (int)card->file);
  length = readlink(path, name, sizeof name);
  if (length != (ssize_t)sizeof wanted - 1 || memcmp(name, wanted, sizeof wanted - 1) != 0)
    return NULL;
  file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return NULL;
  peer = xfi_shared_map(s, file);
  (void)close(file);
  if (peer == NULL || (peer->token == xfi_segment_token(card->token) && peer->rank == card->rank))
    return peer;
  (void)munmap(peer, s->n_bytes);
  return NULL;
}

/* Keep those that both ends have. */
static void settle(xfi_mpi_comm *t)
{
  xfi_shared *s = &t->shared;
  const size_t n = (size_t)s->n_places;

  for (size_t i = 0; i < n; i++) {
    if (s->at[i] == NULL || t->mapped[i * n + (size_t)s->place] != 0) continue;
    (void)munmap(s->at[i], s->n_bytes);
    s->at[i] = NULL;
  }
}

/* Row i is rank i's. */
static bool gather_rows(void *rows, size_t row_bytes, MPI_Comm host)
{
  return MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, rows, (int)row_bytes, MPI_BYTE, host) ==
         MPI_SUCCESS;
}

xfer_status xfi_mpi_segments_connect(xfi_mpi_comm *t, MPI_Comm host)
{
  xfi_shared *s = &t->shared;
  const size_t n = (size_t)s->n_places;
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(gather_rows(t->cards, sizeof *t->cards, host), XFER_ERR_COMM,
                 "MPI_Allgather failed");
  for (int i = 0; i < s->n_places; i++) {
    const xfi_card *card = &t->cards[i];

    s->places[card->rank] = i;
    if (i != s->place && t->file >= 0) s->at[i] = open_peer(s, card);
    t->mapped[(size_t)s->place * n + (size_t)i] = s->at[i] != NULL;
  }
  XFI_CHECK_DONE(gather_rows(t->mapped, n, host), XFER_ERR_COMM, "MPI_Allgather failed");
  t->shared.base.shares_all =
      memchr(t->mapped, 0, n * n) == NULL && s->n_places == t->shared.base.size;
  settle(t);
  xfi_shared_hear(s);
  t->shared.base.has_cores = xfi_cores_suffice(&t->cards[0].cores, sizeof *t->cards, s->n_places);
done:
  if (t->file >= 0) (void)close(t->file);
  t->file = -1;
  return st;
}
