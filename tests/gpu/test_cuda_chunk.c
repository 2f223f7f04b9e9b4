/* device/cuda_chunk.c with a driver that is made up here: what goes over the socket, and what is
   left open after it. Needs CUDA's headers, and no GPU. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create, accept4 */
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "cuda_device.h"
#include "error.h"
#include "socket.h"

enum { CHUNK = 2 << 20, MANY = 300 };

/* Chunks of the made-up memory, from BASE; the one at `stays` cannot be exported. */
#define BASE (UINT64_C(1) << 40)
#define MAPPED (UINT64_C(1) << 41)

static _Atomic uint64_t mapped_bytes; /* under MAPPED, now */
static _Atomic int n_reserved;
static _Atomic uint64_t stays;
static _Atomic int pause_us; /* of each mapping */

/* ---- the driver --------------------------------------------------------------------------- */

cudaError_t cudaSetDevice(int ordinal)
{
  return ordinal == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

xfer_status xfi_cuda_driver_failed(const xfi_cuda_device *device, CUresult error, const char *call)
{
  (void)device;
  xfi_set_error("%s: %d", call, (int)error);
  return XFER_ERR_CUDA;
}

static CUresult CUDAAPI address_range(CUdeviceptr *base, size_t *n_bytes, CUdeviceptr pointer)
{
  *base = pointer / CHUNK * CHUNK;
  *n_bytes = CHUNK;
  return CUDA_SUCCESS;
}

static CUresult CUDAAPI retain(CUmemGenericAllocationHandle *handle, void *pointer)
{
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)pointer;
  return CUDA_SUCCESS;
}

static CUresult CUDAAPI release(CUmemGenericAllocationHandle handle)
{
  return handle != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The file of a chunk has its address in it. */
static CUresult CUDAAPI export_handle(void *file, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
  const uint64_t address = handle;
  int made;

  (void)type, (void)flags;
  if (handle == stays) return CUDA_ERROR_NOT_SUPPORTED;
  made = memfd_create("chunk", MFD_CLOEXEC);
  if (made < 0 || write(made, &address, sizeof address) != (ssize_t)sizeof address)
    return CUDA_ERROR_UNKNOWN;
  memcpy(file, &made, sizeof made);
  return CUDA_SUCCESS;
}

static CUresult CUDAAPI import_handle(CUmemGenericAllocationHandle *handle, void *file,
                                      CUmemAllocationHandleType type)
{
  uint64_t address = 0;

  (void)type;
  if (pread((int)(intptr_t)file, &address, sizeof address, 0) != (ssize_t)sizeof address)
    return CUDA_ERROR_UNKNOWN;
  *handle = address;
  return CUDA_SUCCESS;
}

/* Chunks must come in order. */
static CUresult CUDAAPI map(CUdeviceptr at, size_t n_bytes, size_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags)
{
  (void)offset, (void)flags;
  if (pause_us > 0) (void)usleep((useconds_t)pause_us);
  if ((at - MAPPED) % (UINT64_C(1) << 32) != handle - BASE) return CUDA_ERROR_INVALID_VALUE;
  mapped_bytes += n_bytes;
  return CUDA_SUCCESS;
}

static CUresult CUDAAPI unmap(CUdeviceptr at, size_t n_bytes)
{
  (void)at;
  mapped_bytes -= n_bytes;
  return CUDA_SUCCESS;
}

static CUresult CUDAAPI address_reserve(CUdeviceptr *at, size_t n_bytes, size_t alignment,
                                        CUdeviceptr wanted, unsigned long long flags)
{
  (void)n_bytes, (void)alignment, (void)wanted, (void)flags;
  *at = MAPPED + ((uint64_t)n_reserved++ << 32);
  return CUDA_SUCCESS;
}

static CUresult CUDAAPI address_free(CUdeviceptr at, size_t n_bytes)
{
  (void)at, (void)n_bytes;
  n_reserved--;
  return CUDA_SUCCESS;
}

static CUresult CUDAAPI set_access(CUdeviceptr at, size_t n_bytes, const CUmemAccessDesc *access,
                                   size_t n)
{
  (void)at, (void)n_bytes;
  return access->location.id == 0 && n == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static xfi_cuda_device device = {.driver = {.address_range = address_range,
                                            .retain = retain,
                                            .release = release,
                                            .export_handle = export_handle,
                                            .import_handle = import_handle,
                                            .map = map,
                                            .unmap = unmap,
                                            .address_reserve = address_reserve,
                                            .address_free = address_free,
                                            .set_access = set_access}};

/* ---- what the tests share ----------------------------------------------------------------- */

static int count_files(void)
{
  DIR *folder = opendir("/proc/self/fd");
  int n = 0;

  assert_non_null(folder);
  while (readdir(folder) != NULL)
    n++;
  (void)closedir(folder);
  return n;
}

static int files_before;

static int begin(void **state)
{
  (void)state;
  files_before = count_files();
  mapped_bytes = 0;
  n_reserved = 0;
  stays = 0;
  pause_us = 0;
  return 0;
}

/* Nothing is left open, mapped or reserved. */
static int end(void **state)
{
  (void)state;
  xfi_cuda_chunks_close(&device.base);
  assert_int_equal(count_files(), files_before);
  assert_int_equal(mapped_bytes, 0);
  assert_int_equal(n_reserved, 0);
  return 0;
}

static xfi_allocation chunks(int first, int n)
{
  const uint64_t base = BASE + (uint64_t)first * CHUNK;

  return (xfi_allocation){.base = (void *)(uintptr_t)base, .n_bytes = (size_t)n * CHUNK, .id = 1};
}

void xfi_cuda_begin_thread(void *unused)
{
  (void)unused;
}

static void offer(const xfi_allocation *a, char *name)
{
  assert_int_equal(xfi_cuda_chunks_export(&device, a, name), XFER_OK);
}

static xfer_status map_all(const xfi_allocation *a, const char *name, char **mapped)
{
  return xfi_cuda_chunks_map(&device, name, (uint64_t)(uintptr_t)a->base, a->n_bytes, mapped,
                             xfi_deadline_after(60000));
}

static void map_and_unmap(const xfi_allocation *a, const char *name)
{
  char *mapped = NULL;
  const xfer_status st = map_all(a, name, &mapped);

  if (st != XFER_OK) print_error("%s\n", xfer_last_error());
  assert_int_equal(st, XFER_OK);
  assert_int_equal(mapped_bytes, a->n_bytes);
  xfi_cuda_chunks_unmap(&device, mapped, a->n_bytes);
}

/* ---- tests -------------------------------------------------------------------------------- */

static void test_chunks_are_mapped_in_order(void **state)
{
  const xfi_allocation a = chunks(0, 5);
  char name[XFI_SOCKET_NAME_BYTES];
  char again[XFI_SOCKET_NAME_BYTES];

  (void)state;
  offer(&a, name);
  offer(&a, again); /* to another peer */
  assert_memory_equal(name, again, sizeof name);
  map_and_unmap(&a, name);
  map_and_unmap(&a, name);
}

static void test_only_what_is_offered_and_while_it_is(void **state)
{
  const xfi_allocation a = chunks(0, 4);
  const xfi_allocation more = chunks(0, 5);
  const xfi_allocation inside = chunks(1, 2);
  char name[XFI_SOCKET_NAME_BYTES];
  char *mapped = NULL;

  (void)state;
  offer(&a, name);
  assert_int_equal(map_all(&more, name, &mapped), XFER_ERR_UNSUPPORTED);
  assert_int_equal(map_all(&inside, name, &mapped), XFER_ERR_UNSUPPORTED);
  map_and_unmap(&a, name);
  xfi_cuda_chunks_close(&device.base);
  assert_int_equal(map_all(&a, name, &mapped), XFER_ERR_UNSUPPORTED);
  assert_null(mapped);
}

static void test_a_chunk_that_stays_fails_the_mapping_and_leaves_nothing(void **state)
{
  const xfi_allocation a = chunks(0, 6);
  char name[XFI_SOCKET_NAME_BYTES];
  char *mapped = NULL;

  (void)state;
  offer(&a, name);
  stays = BASE + (uint64_t)4 * CHUNK;
  assert_int_equal(map_all(&a, name, &mapped), XFER_ERR_UNSUPPORTED);
  assert_non_null(strstr(xfer_last_error(), "not made to leave"));
  assert_int_equal(mapped_bytes, 0);
}

static void ignore(int number)
{
  (void)number;
}

/* As a profiler has: a timer, and a handler that restarts what can be. */
static void test_signals_do_no_harm(void **state)
{
  const xfi_allocation a = chunks(0, MANY);
  const struct itimerval often = {{0, 2000}, {0, 2000}};
  const struct itimerval never = {{0, 0}, {0, 0}};
  struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_RESTART};
  char name[XFI_SOCKET_NAME_BYTES];

  (void)state;
  assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
  offer(&a, name);
  pause_us = 200;
  assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
  map_and_unmap(&a, name);
  map_and_unmap(&a, name);
  assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
}

/* A client that connects, and says nothing, holds nobody up for long. */
static void test_a_silent_client_is_left(void **state)
{
  const xfi_allocation a = chunks(0, 3);
  struct sockaddr_un address;
  char name[XFI_SOCKET_NAME_BYTES];
  const int silent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

  (void)state;
  offer(&a, name);
  const socklen_t n_bytes = xfi_socket_address(&address, name);
  assert_int_equal(connect(silent, (struct sockaddr *)&address, n_bytes), 0);
  map_and_unmap(&a, name);
  (void)close(silent);
}

typedef struct client {
  pthread_t thread;
  const char *name;
  xfi_allocation a;
  char *mapped;
  xfer_status st;
} client;

static void *map_beside(void *context)
{
  client *c = context;

  c->st = map_all(&c->a, c->name, &c->mapped);
  return NULL;
}

static void test_clients_take_turns(void **state)
{
  enum { CLIENTS = 6 };
  client all[CLIENTS];
  char name[XFI_SOCKET_NAME_BYTES];
  const xfi_allocation a = chunks(0, MANY);

  (void)state;
  offer(&a, name);
  pause_us = 100;
  for (int i = 0; i < CLIENTS; i++) {
    all[i] = (client){.name = name, .a = a};
    assert_int_equal(pthread_create(&all[i].thread, NULL, map_beside, &all[i]), 0);
  }
  for (int i = 0; i < CLIENTS; i++) {
    (void)pthread_join(all[i].thread, NULL);
    assert_int_equal(all[i].st, XFER_OK);
    xfi_cuda_chunks_unmap(&device, all[i].mapped, a.n_bytes);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_chunks_are_mapped_in_order, begin, end),
      cmocka_unit_test_setup_teardown(test_only_what_is_offered_and_while_it_is, begin, end),
      cmocka_unit_test_setup_teardown(test_a_chunk_that_stays_fails_the_mapping_and_leaves_nothing,
                                      begin, end),
      cmocka_unit_test_setup_teardown(test_signals_do_no_harm, begin, end),
      cmocka_unit_test_setup_teardown(test_a_silent_client_is_left, begin, end),
      cmocka_unit_test_setup_teardown(test_clients_take_turns, begin, end),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
