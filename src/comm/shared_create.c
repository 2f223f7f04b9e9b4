/*
 * Segments: files in memory that each rank makes and the others of its host map, as a comm is made.
 * And whether each rank has a core of its own, and whether the processes of ranks are still alive.
 *
 * MPI could make shared memory too (MPI_Win_allocate_shared), but gives it back by a collective
 * call only, which a lost rank would never make, and keeps it in files that a killed job leaves
 * behind.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "shared.h"

#include "alloc.h"
#include "descriptor.h"
#include "error.h"
#include "process.h"

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

xfer_status xfi_shared_init(xfi_shared *s, const xfi_shared_ops *ops, int n_host_ranks,
                            int host_rank, bool processes)
{
  const size_t page = _Alignof(xfi_slots);
  const xfi_comm *comm = &s->base;

  (void)pthread_mutex_init(&s->broken.lock, NULL); /* cannot fail without attributes */
  s->ops = ops;
  s->process = xfi_process_number();
  s->pid = getpid();
  s->n_host_ranks = n_host_ranks;
  s->host_rank = host_rank;
  s->slots_at =
      (sizeof(xfi_segment) + sizeof(xfi_waiting) + (size_t)comm->size + page - 1) / page * page;
  s->n_bytes = s->slots_at;
  if (processes) s->n_bytes += sizeof(xfi_slots) + (size_t)n_host_ranks * sizeof(xfi_ring);
  s->host_ranks = xfi_calloc((size_t)comm->size, sizeof *s->host_ranks);
  s->at = xfi_calloc((size_t)n_host_ranks, sizeof *s->at);
  s->broadcast_sends = xfi_calloc((size_t)comm->size, sizeof *s->broadcast_sends);
  s->awaits = xfi_calloc((size_t)comm->size, sizeof *s->awaits);
  s->visited = xfi_calloc((size_t)comm->size, sizeof *s->visited);
  s->n_published = xfi_calloc((size_t)comm->size, sizeof *s->n_published);
  if (processes) s->endpoints = xfi_host_endpoints(n_host_ranks);
  if (processes) s->neighbours = xfi_calloc((size_t)n_host_ranks, sizeof *s->neighbours);
  for (int i = 0; s->neighbours != NULL && i < n_host_ranks; i++)
    s->neighbours[i] = (xfi_neighbour){
        -1, -1}; /* before anything can fail, since 0 could be a descriptor of the caller's */
  XFI_CHECK(s->host_ranks != NULL && s->at != NULL && s->broadcast_sends != NULL &&
                s->awaits != NULL && s->visited != NULL && s->n_published != NULL &&
                ((s->neighbours != NULL && s->endpoints != NULL) || !processes),
            XFER_ERR_NOMEM, "a comm of %d ranks", comm->size);
  s->base.waits = s;
  for (int r = 0; r < comm->size; r++)
    s->host_ranks[r] = -1;
  s->host_ranks[comm->rank] = host_rank;
  return XFER_OK;
}

void xfi_shared_part(xfi_shared *s)
{
  for (int i = 0; s->at != NULL && s->neighbours != NULL && i < s->n_host_ranks; i++) {
    if (s->at[i] != NULL) (void)munmap(s->at[i], s->n_bytes);
    s->at[i] = NULL;
    s->neighbours[i].socket = xfi_descriptor_drop(s->neighbours[i].socket);
    s->neighbours[i].process = xfi_descriptor_drop(s->neighbours[i].process);
  }
}

void xfi_shared_end(xfi_shared *s)
{
  xfi_shared_part(s);
  xfi_free(s->host_ranks);
  xfi_free(s->at);
  xfi_free(s->neighbours);
  xfi_free(s->endpoints);
  xfi_free(s->broadcast_sends);
  xfi_free(s->awaits);
  xfi_free(s->visited);
  xfi_free(s->n_published);
  (void)pthread_mutex_destroy(&s->broken.lock);
}

xfi_segment *xfi_shared_map(const xfi_shared *s, int file)
{
  struct stat about;
  void *at;

  if (fstat(file, &about) != 0 || (size_t)about.st_size != s->n_bytes) return NULL;
  at = mmap(NULL, s->n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return at == MAP_FAILED ? NULL : at;
}

/* One descriptor is polled at a time: poll() refuses more than the limit of open files, which may
 * be 1. */
bool xfi_shared_is_lost(const xfi_shared *s, int rank)
{
  const int host_rank = s->host_ranks[rank];
  struct pollfd process = {.events = POLLIN};
  char byte;

  if (s->neighbours == NULL || host_rank < 0) return false;
  process.fd = s->neighbours[host_rank].process;
  return recv(s->neighbours[host_rank].socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0 ||
         poll(&process, 1, 0) == 1;
}

int xfi_shared_make(xfi_shared *s)
{
  const int file = xfi_memory_file("xfer-comm", s->n_bytes);
  xfi_segment *own = file < 0 ? NULL : xfi_shared_map(s, file);

  if (own == NULL) return xfi_descriptor_drop(file);
  own->rank = s->base.rank;
  s->at[s->host_rank] = own;
  return file;
}

xfi_cores xfi_cores_own(void)
{
  xfi_cores own = {0};
  cpu_set_t cores;
  int first = 0;

  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return own;
  while (first < CPU_SETSIZE - 1 && !CPU_ISSET((size_t)first, &cores))
    first++;
  return (xfi_cores){first, CPU_COUNT(&cores)};
}

/* This assumes that ranks are all bound alike, or each to cores of its own, or to disjoint groups
 * of cores. */
bool xfi_cores_suffice(const xfi_cores *cores, size_t pitch, int n)
{
  const char *at = (const char *)cores;

  for (size_t i = 0; i < (size_t)n; i++) {
    const xfi_cores *one = (const void *)(at + i * pitch);
    int n_alike = 0;

    for (size_t k = 0; k < (size_t)n; k++)
      n_alike += ((const xfi_cores *)(const void *)(at + k * pitch))->first == one->first;
    if (n_alike > one->n) return false;
  }
  return true;
}
