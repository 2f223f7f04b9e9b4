/*
 * Memory that a program maps chunk by chunk with cuMemCreate() and cuMemMap(), as torch does for
 * its expandable segments, or the allocator of an engine that can sleep. CUDA IPC does not support
 * such memory, so each chunk is exported as a file.
 *
 * The files go over a socket of this host, which a thread of the owner serves from the first export
 * of a commit until the end of that commit. It has a random name, and serves only processes of the
 * same user, and only what was exported: a request names a range, whose chunks follow one after the
 * other.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* struct ucred, accept4 */
#endif
#include "cuda_device.h"

#include "alloc.h"
#include "error.h"
#include "process.h"
#include "socket.h"
#include "vec.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum {
  BACKLOG = 256,
  REQUEST_TIMEOUT_MS = 1000, /* how long a client that has connected may take to send its request */
  SEND_TIMEOUT_MS =
      20000,    /* how long it may take to receive a chunk, after it has mapped another */
  POLL_MS = 50, /* how often a wait for the other end checks the deadline */
  PAUSE_NS = 1000 * 1000
};

typedef struct request {
  uint64_t base;
  uint64_t n_bytes;
} request;

struct xfi_cuda_exports {
  const xfi_cuda_device *device;
  char name[XFI_SOCKET_NAME_BYTES];
  int listener;
  _Atomic bool stops; /* the thread is to end; the listener is shut down */
  pthread_t thread;
  pthread_mutex_t lock; /* of all below */
  request *ranges;      /* [n] what may be requested */
  size_t n;
  size_t capacity;
  int served; /* the socket of the client that is being served; -1: none */
};

/* ---- sockets ------------------------------------------------------------------------------ */

static void set_timeouts(int socket, int64_t receive_ms, int64_t send_ms)
{
  const struct timeval receive = {receive_ms / 1000, receive_ms % 1000 * 1000};
  const struct timeval send = {send_ms / 1000, send_ms % 1000 * 1000};

  (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &receive, sizeof receive);
  (void)setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &send, sizeof send); /* of connecting too */
}

/* ---- the side that owns the memory -------------------------------------------------------- */

/* The file of the chunk that begins at `at`, and its size. */
static bool export_chunk(const xfi_cuda_device *device, uint64_t at, int *file, size_t *n_bytes)
{
  const xfi_cuda_driver *driver = &device->driver;
  CUmemGenericAllocationHandle chunk = 0;
  CUdeviceptr base = 0;

  if (driver->address_range(&base, n_bytes, (CUdeviceptr)at) != CUDA_SUCCESS || base != at)
    return false;
  if (driver->retain(&chunk, (void *)(uintptr_t)at) != CUDA_SUCCESS) /* NOLINT: an address */
    return false;
  const CUresult error =
      driver->export_handle(file, chunk, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  (void)driver->release(chunk);
  return error == CUDA_SUCCESS;
}

static bool is_exported(xfi_cuda_exports *exports, const request *requested)
{
  bool found = false;

  (void)pthread_mutex_lock(&exports->lock);
  for (size_t i = 0; i < exports->n && !found; i++)
    found = exports->ranges[i].base == requested->base &&
            exports->ranges[i].n_bytes == requested->n_bytes;
  (void)pthread_mutex_unlock(&exports->lock);
  return found;
}

static void serve(xfi_cuda_exports *exports, int socket)
{
  const int few = 1; /* files in flight, since the kernel limits them per user */
  request requested;
  ssize_t got;

  set_timeouts(socket, REQUEST_TIMEOUT_MS, SEND_TIMEOUT_MS);
  (void)setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &few, sizeof few);
  if (!xfi_socket_is_same_user(socket)) return;
  XFI_AGAIN(got, recv(socket, &requested, sizeof requested, 0));
  if (got != (ssize_t)sizeof requested || !is_exported(exports, &requested)) return;
  for (uint64_t at = requested.base; at < requested.base + requested.n_bytes;) {
    size_t n_bytes = 0;
    int file = -1;
    const bool exported = export_chunk(exports->device, at, &file, &n_bytes);
    const uint64_t chunk_bytes = exported ? n_bytes : 0;
    const bool sent = xfi_socket_send(socket, &chunk_bytes, sizeof chunk_bytes, file);

    if (file >= 0) (void)close(file);
    if (!exported || !sent || atomic_load(&exports->stops)) return;
    at += n_bytes;
  }
}

static void set_served(xfi_cuda_exports *exports, int socket)
{
  (void)pthread_mutex_lock(&exports->lock);
  exports->served = socket;
  (void)pthread_mutex_unlock(&exports->lock);
}

static void *serve_main(void *argument)
{
  xfi_cuda_exports *exports = argument;

  xfi_cuda_begin_thread((void *)exports->device); /* which only reads it */
  while (!atomic_load(&exports->stops)) {
    const int socket = xfi_descriptor_kept(accept4(exports->listener, NULL, NULL, SOCK_CLOEXEC));
    if (socket >= 0) {
      set_served(exports, socket);
      serve(exports, socket);
      set_served(exports, -1);
      (void)close(socket);
    } else if (!atomic_load(&exports->stops)) {
      xfi_sleep_ns(PAUSE_NS); /* there may be no descriptor left for the moment */
    }
  }
  return NULL;
}

static void exports_free(xfi_cuda_exports *exports)
{
  if (exports == NULL) return;
  if (exports->listener >= 0) (void)close(exports->listener);
  (void)pthread_mutex_destroy(&exports->lock);
  xfi_free(exports->ranges);
  xfi_free(exports);
}

/* XFER_ERR_UNSUPPORTED: the system does not allow it, and other processes cannot map the memory. */
static xfer_status exports_open(xfi_cuda_exports **out, const xfi_cuda_device *device)
{
  xfer_status st = XFER_OK;
  xfi_cuda_exports *exports = NULL;

  exports = xfi_calloc(1, sizeof *exports);
  XFI_CHECK_DONE(exports != NULL, XFER_ERR_NOMEM, "a socket for peers");
  exports->device = device;
  exports->served = -1;
  (void)pthread_mutex_init(&exports->lock, NULL);
  exports->listener = xfi_socket_listen(SOCK_SEQPACKET, BACKLOG, exports->name);
  XFI_CHECK_DONE(exports->listener >= 0, XFER_ERR_UNSUPPORTED,
                 "a socket for peers that map our memory: %s", strerror(errno));
  XFI_CHECK_DONE(xfi_thread_start(&exports->thread, serve_main, exports), XFER_ERR_UNSUPPORTED,
                 "no thread for peers that map our memory");
  *out = exports;
  exports = NULL;
done:
  exports_free(exports);
  return st;
}

xfer_status xfi_cuda_chunks_export(xfi_cuda_device *device, const xfi_allocation *allocation,
                                   char *name)
{
  const request range = {(uint64_t)(uintptr_t)allocation->base, allocation->n_bytes};
  xfer_status st = XFER_OK;
  xfi_cuda_exports *exports = device->exports;

  if (exports == NULL) XFI_TRY(exports_open(&exports, device));
  device->exports = exports;
  memcpy(name, exports->name, sizeof exports->name);
  if (is_exported(exports, &range)) return XFER_OK;
  (void)pthread_mutex_lock(&exports->lock);
  st = XFI_APPEND(exports->ranges, exports->n, exports->capacity, range);
  (void)pthread_mutex_unlock(&exports->lock);
  return st;
}

void xfi_cuda_chunks_close(xfi_device *base)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfi_cuda_exports *exports = device->exports;

  if (exports == NULL) return;
  atomic_store(&exports->stops, true);
  (void)shutdown(exports->listener,
                 SHUT_RDWR); /* ends accept4(); a forked process may have it too */
  (void)pthread_mutex_lock(&exports->lock);
  if (exports->served >= 0)
    (void)shutdown(exports->served, SHUT_RDWR); /* in case the client is stuck */
  (void)pthread_mutex_unlock(&exports->lock);
  (void)pthread_join(exports->thread, NULL);
  exports_free(exports);
  device->exports = NULL;
}

/* ---- the side that maps it ---------------------------------------------------------------- */

static xfer_status connect_to(int *connected, const char *name, const request *requested,
                              xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  struct sockaddr_un address;
  const socklen_t n_bytes = xfi_socket_address(&address, name);
  int made = xfi_socket_make(SOCK_SEQPACKET);
  ssize_t n = -1;

  if (made >= 0) {
    set_timeouts(made, POLL_MS, POLL_MS);
    do {
      XFI_AGAIN(n, connect(made, (struct sockaddr *)&address, n_bytes));
    } while (n < 0 && errno == EAGAIN && !xfi_deadline_expired(deadline));
  }
  XFI_CHECK_DONE(n != 0 || xfi_socket_is_same_user(made), XFER_ERR_UNSUPPORTED,
                 "the process whose memory is to be mapped is another user's");
  if (n == 0) XFI_AGAIN(n, send(made, requested, sizeof *requested, MSG_NOSIGNAL));
  XFI_CHECK_DONE(n == (ssize_t)sizeof *requested, XFER_ERR_UNSUPPORTED,
                 "the socket of a peer whose memory is to be mapped: %s", strerror(errno));
  *connected = made;
  made = -1;
done:
  if (made >= 0) (void)close(made);
  return st;
}

/* Receive the next chunk and map it at `at`. */
static xfer_status map_chunk(const xfi_cuda_device *device, int socket, CUdeviceptr at, size_t most,
                             size_t *n_bytes, xfi_deadline deadline)
{
  const xfi_cuda_driver *driver = &device->driver;
  xfer_status st = XFER_OK;
  CUmemGenericAllocationHandle chunk = 0;
  CUresult error;
  uint64_t chunk_bytes = 0;
  bool is_lost = false;
  bool received;
  int file = -1;

  do { /* other clients may be served first, and a chunk takes about 1 ms */
    errno = 0;
    received = xfi_socket_receive(socket, &chunk_bytes, sizeof chunk_bytes, 0, &file, &is_lost);
  } while (!received && errno == EAGAIN && !xfi_deadline_expired(deadline));
  XFI_CHECK_DONE(received && file >= 0 && chunk_bytes > 0 && chunk_bytes <= most,
                 XFER_ERR_UNSUPPORTED,
                 "a peer's memory, mapped chunk by chunk, was not made to leave its process");
  error = driver->import_handle(&chunk, (void *)(intptr_t)file, /* NOLINT: as the driver wants it */
                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (error == CUDA_SUCCESS) {
    error = driver->map(at, (size_t)chunk_bytes, 0, chunk, 0);
    (void)driver->release(chunk); /* the mapping keeps it */
  }
  if (error != CUDA_SUCCESS) {
    (void)xfi_cuda_driver_failed(device, error, "a chunk of a peer's memory");
    st = XFER_ERR_UNSUPPORTED; /* the pair takes another lane */
    goto done;
  }
  *n_bytes = (size_t)chunk_bytes;
done:
  if (file >= 0) (void)close(file);
  return st;
}

static void unmap(const xfi_cuda_device *device, CUdeviceptr base, size_t n_mapped, size_t n_bytes)
{
  if (n_mapped > 0) (void)device->driver.unmap(base, n_mapped);
  (void)device->driver.address_free(base, n_bytes);
}

xfer_status xfi_cuda_chunks_map(const xfi_cuda_device *device, const char *name, uint64_t base,
                                size_t n_bytes, char **mapped, xfi_deadline deadline)
{
  const request requested = {base, n_bytes};
  const CUmemAccessDesc access = {
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal},
      .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  xfer_status st = XFER_OK;
  CUdeviceptr at = 0;
  size_t n_mapped = 0;
  int socket = -1;

  XFI_TRY_DONE(connect_to(&socket, name, &requested, deadline));
  CUresult error = device->driver.address_reserve(&at, n_bytes, 0, 0, 0);
  XFI_CHECK_DONE(error == CUDA_SUCCESS, XFER_ERR_UNSUPPORTED,
                 "no addresses for %zu bytes of a peer", n_bytes);
  for (size_t n = 0; n_mapped < n_bytes; n_mapped += n)
    XFI_TRY_DONE(map_chunk(device, socket, at + n_mapped, n_bytes - n_mapped, &n, deadline));
  error = device->driver.set_access(at, n_bytes, &access, 1);
  XFI_CHECK_DONE(error == CUDA_SUCCESS, XFER_ERR_UNSUPPORTED,
                 "device %d cannot reach a peer's memory that is mapped chunk by chunk",
                 device->ordinal);
  *mapped = (char *)(uintptr_t)at; /* NOLINT: the driver's pointers are integers */
  at = 0;
done:
  if (st != XFER_OK && xfi_deadline_expired(deadline)) st = XFER_ERR_TIMEOUT;
  if (at != 0) unmap(device, at, n_mapped, n_bytes);
  if (socket >= 0) (void)close(socket);
  return st;
}

void xfi_cuda_chunks_unmap(const xfi_cuda_device *device, char *mapped, size_t n_bytes)
{
  unmap(device, (CUdeviceptr)(uintptr_t)mapped, n_bytes, n_bytes);
}
