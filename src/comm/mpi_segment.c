/* Segments: files in memory, made by each rank and mapped by the others of its host.
 *
 * MPI could make shared memory too (MPI_Win_allocate_shared), but gives it back by a collective
 * call only, which a lost rank would never make, and keeps it in files that a killed job leaves
 * behind.
 */
#define _GNU_SOURCE /* memfd_create, sched_getaffinity */

#include "mpi_segment.h"

#include "alloc.h"
#include "error.h"
#include "futex.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILE_NAME "xfer-comm"

/* ---- making one ---------------------------------------------------------------------------- */

static size_t segment_bytes(int n_places)
{
  return sizeof(xfi_segment) + (size_t)n_places * sizeof(xfi_ring);
}

static xfi_segment *map_file(int file, size_t n_bytes)
{
  void *at = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

  return at == MAP_FAILED ? NULL : at;
}

/* Sealed, so that nobody who maps it can be made to touch what is not there. None where files may
 * not be as large: that is a signal which ends the process. */
static void make_own(xfi_segments *s, int rank, uint64_t token)
{
  xfi_segment *own = NULL;
  struct rlimit most;

  if (getrlimit(RLIMIT_FSIZE, &most) != 0 || most.rlim_cur < s->n_bytes) return;
  s->file = memfd_create(FILE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (s->file < 0) return;
  if (ftruncate(s->file, (off_t)s->n_bytes) == 0 &&
      fcntl(s->file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
    own = map_file(s->file, s->n_bytes);
  if (own == NULL) {
    (void)close(s->file);
    s->file = -1;
    return;
  }
  own->token = token;
  own->rank = rank;
  atomic_store(&own->sleeping, XFI_AWAKE);
  s->at[s->place] = own;
}

static void count_cores(xfi_card *card)
{
  cpu_set_t cores;
  size_t first = 0;

  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return;
  while (first < CPU_SETSIZE - 1 && !CPU_ISSET(first, &cores))
    first++;
  card->first_core = (int32_t)first;
  card->n_cores = CPU_COUNT(&cores);
}

xfer_status xfi_segments_create(xfi_segments **segments, int size, int rank, MPI_Comm host,
                                uint64_t token)
{
  xfer_status st = XFER_OK;
  xfi_segments *s = xfi_calloc(1, sizeof *s);
  size_t n;

  XFI_CHECK_DONE(s != NULL, XFER_ERR_NOMEM, "a comm of %d ranks", size);
  s->size = size;
  s->file = -1;
  (void)MPI_Comm_size(host, &s->n_places);
  (void)MPI_Comm_rank(host, &s->place);
  n = (size_t)s->n_places;
  s->n_bytes = segment_bytes(s->n_places);
  s->cards = xfi_calloc(n, sizeof *s->cards);
  s->places = xfi_calloc((size_t)size, sizeof *s->places);
  s->mapped = xfi_calloc(n, n);
  s->at = xfi_calloc(n, sizeof *s->at);
  XFI_CHECK_DONE(s->cards != NULL && s->places != NULL && s->mapped != NULL && s->at != NULL,
                 XFER_ERR_NOMEM, "a comm of %d ranks", size);
  for (int r = 0; r < size; r++)
    s->places[r] = -1;
  if (s->n_places > 1) make_own(s, rank, token);
  s->cards[s->place] = (xfi_card){getpid(), s->file, rank, token, 0, 0};
  count_cores(&s->cards[s->place]);
  *segments = s;
  s = NULL;
done:
  xfi_segments_destroy(s);
  return st;
}

void xfi_segments_leave(xfi_segments *s)
{
  if (s == NULL || s->at == NULL || s->at[s->place] == NULL) return;
  if (s->cards[s->place].pid == getpid()) /* a child that was forked has not */
    atomic_store(&s->at[s->place]->has_left, 1);
}

void xfi_segments_destroy(xfi_segments *s)
{
  if (s == NULL) return;
  xfi_segments_leave(s);
  for (int i = 0; s->at != NULL && i < s->n_places; i++)
    if (s->at[i] != NULL) (void)munmap(s->at[i], s->n_bytes);
  if (s->file >= 0) (void)close(s->file);
  xfi_free(s->cards);
  xfi_free(s->places);
  xfi_free(s->mapped);
  xfi_free(s->at);
  xfi_free(s);
}

/* ---- mapping the others' ------------------------------------------------------------------- */

/* Under /proc a number may mean another process than the one that gave it, in a container: so look
 * at the file's name before it is opened, and at the token inside before it is used. */
static xfi_segment *open_peer(const xfi_card *card, size_t n_bytes)
{
  static const char wanted[] = "/memfd:" FILE_NAME " (deleted)";
  xfi_segment *peer = NULL;
  struct stat about;
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
  if (fstat(file, &about) == 0 && (size_t)about.st_size == n_bytes) peer = map_file(file, n_bytes);
  (void)close(file);
  if (peer == NULL) return NULL;
  if (peer->token == card->token && peer->rank == card->rank) return peer;
  (void)munmap(peer, n_bytes);
  return NULL;
}

/* Keep those that both ends have. */
static void settle(xfi_segments *s)
{
  const size_t n = (size_t)s->n_places;

  for (size_t i = 0; i < n; i++) {
    if (s->at[i] == NULL || s->mapped[i * n + (size_t)s->place] != 0) continue;
    (void)munmap(s->at[i], s->n_bytes);
    s->at[i] = NULL;
  }
}

/* Ranks are bound alike, or to cores of their own, or to groups of cores that have none in common.
 */
static bool all_have_cores(const xfi_segments *s)
{
  for (int i = 0; i < s->n_places; i++) {
    int n = 0;

    for (int k = 0; k < s->n_places; k++)
      n += s->cards[k].first_core == s->cards[i].first_core;
    if (n > s->cards[i].n_cores) return false;
  }
  return true;
}

/* Row i is rank i's. */
static bool gather_rows(void *rows, size_t row_bytes, MPI_Comm host)
{
  return MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, rows, (int)row_bytes, MPI_BYTE, host) ==
         MPI_SUCCESS;
}

xfer_status xfi_segments_connect(xfi_segments *s, MPI_Comm host, xfi_comm *comm)
{
  const size_t n = (size_t)s->n_places;
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(gather_rows(s->cards, sizeof *s->cards, host), XFER_ERR_COMM,
                 "MPI_Allgather failed");
  for (int i = 0; i < s->n_places; i++) {
    const xfi_card *card = &s->cards[i];

    s->places[card->rank] = i;
    if (i != s->place && s->file >= 0) s->at[i] = open_peer(card, s->n_bytes);
    s->mapped[(size_t)s->place * n + (size_t)i] = s->at[i] != NULL;
  }
  XFI_CHECK_DONE(gather_rows(s->mapped, n, host), XFER_ERR_COMM, "MPI_Allgather failed");
  comm->shares_all = memchr(s->mapped, 0, n * n) == NULL && s->n_places == s->size;
  settle(s);
  comm->has_cores = all_have_cores(s);
done:
  if (s->file >= 0) (void)close(s->file);
  s->file = -1;
  return st;
}

/* ---- bells, alarms, lost ranks ------------------------------------------------------------- */

static void wake(xfi_segment *segment)
{
  (void)atomic_fetch_add(&segment->bell, 1);
  xfi_futex_wake_all(&segment->bell, XFI_FUTEX_SHARED);
}

void xfi_segment_ring(xfi_segment *segment, int rank)
{
  uint32_t sleeping;

  atomic_thread_fence(memory_order_seq_cst); /* either we see it sleep, or it sees what we wrote */
  sleeping = atomic_load_explicit(&segment->sleeping, memory_order_relaxed);
  if (sleeping == XFI_ASLEEP || sleeping == (uint32_t)rank) wake(segment);
}

void xfi_segments_alarm(xfi_segments *s, int rank, const char *why)
{
  xfi_segment *own = s == NULL ? NULL : s->at[s->place];

  if (own == NULL) return;
  (void)snprintf(own->why, sizeof own->why, "%s", why);
  for (int i = 0; i < s->n_places; i++) {
    uint32_t none = 0;

    if (s->at[i] == NULL || i == s->place) continue;
    (void)atomic_compare_exchange_strong(&s->at[i]->alarm, &none, (uint32_t)rank + 1);
    wake(s->at[i]);
  }
}

bool xfi_segment_has_left(const xfi_segments *s, int rank)
{
  const xfi_segment *segment = xfi_segment_of(s, rank);

  return segment != NULL && atomic_load(&segment->has_left) != 0;
}

bool xfi_segment_is_lost(const xfi_segments *s, int rank)
{
  struct pollfd process = {-1, POLLIN, 0};
  bool lost;

  if (xfi_segment_of(s, rank) == NULL) return false;
  process.fd = (int)syscall(SYS_pidfd_open, (pid_t)s->cards[s->places[rank]].pid, 0);
  if (process.fd < 0) return errno == ESRCH;
  lost = poll(&process, 1, 0) == 1;
  (void)close(process.fd);
  return lost;
}
