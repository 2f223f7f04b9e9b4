/* What a device says of memory, and what processes tell each other of chunks: a peer that sends
 * what are none, and one that asks for what it was not offered. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* of socket.h */
#endif
#include "cuda_device.h"
#include "error.h"
#include "process.h"
#include "socket.h"

#include "chunk_memory.h"
#include "world.h"

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BYTES = 96, MIB = 1 << 20, CHUNKS_BYTES = 6 * MIB };

/* The only device of a machine. */
static xfi_device *device_of_one(void)
{
  xfi_device *device = NULL;

  world_clear(1, (sim_config){.eager = true});
  OK(xfi_device_create_cuda(&device));
  return device;
}

static char *two_chunks(void)
{
  return chunks_alloc((size_t)2 * MIB, (size_t)4 * MIB, true);
}

/* ---- what memory is ------------------------------------------------------------------------ */

static void test_memory_ends_where_the_driver_says(void)
{
  const sim_fault no_range = {
      .name = "cuMemGetAddressRange", .rank = SIM_NO_RANK, .nth = 1, .code = CUDA_ERROR_UNKNOWN};
  xfi_allocation found = {NULL, 0, 0, 0};
  xfi_allocation moved;
  xfi_device *device = device_of_one();
  char *chunks = two_chunks();
  void *memory = NULL;

  OK(device->ops->alloc(device, &memory, BYTES));
  NEED(device->ops->find_allocation(device, memory, BYTES + 1, &found) == XFER_ERR_ARG);
  NEED(strstr(xfer_last_error(), "are wanted; the allocation ends after 96") != NULL);
  NEED(device->ops->find_allocation(device, chunks, CHUNKS_BYTES + 1, &found) == XFER_ERR_ARG);
  OK(device->ops->find_allocation(device, chunks, CHUNKS_BYTES, &found));
  NEED(device->ops->find_changed(device, &found, 1) == 1);
  moved = found;
  moved.base = (char *)moved.base + 8; /* no chunk begins there */
  NEED(device->ops->find_changed(device, &moved, 1) == 0);
  sim_fault_add(&no_range);
  NEED(device->ops->find_changed(device, &found, 1) == 0);
  sim_fault_clear();
  device->ops->free(device, memory);
  device->ops->destroy(device);
}

/* What is large enough for the copy engine of a peer's, that is. */
static void test_our_own_memory_has_whole_units(void)
{
  xfi_device *device = device_of_one();
  xfi_allocation found = {NULL, 0, 0, 0};
  void *memory = NULL;

  for (size_t more = 0; more <= 1; more++) {
    OK(device->ops->alloc(device, &memory, XFI_CUDA_IPC_BYTES + more));
    OK(device->ops->find_allocation(device, memory, 1, &found));
    NEED(found.n_bytes == (1 + more) * XFI_CUDA_IPC_BYTES);
    device->ops->free(device, memory);
  }
  device->ops->destroy(device);
}

/* ---- flags of a peer ----------------------------------------------------------------------- */

/* Who is told of more bytes than the file has would end by a signal where it looks at them. */
static void test_a_page_has_the_bytes_that_its_file_has(void)
{
  xfi_device *device = device_of_one();
  xfi_allocation page;
  xfi_cuda_file file;
  uint64_t *flags = NULL;
  char *mapped = NULL;

  OK(device->ops->flags_alloc(device, &flags, 8, true));
  NEED(xfi_cuda_page_find(xfi_cuda(device), flags, &page, &file));
  NEED(xfi_cuda_page_open(&file, 2 * page.n_bytes, &mapped) == XFER_ERR_UNSUPPORTED);
  NEED(strstr(xfer_last_error(), "a peer says that its flags have") != NULL);
  NEED(xfi_cuda_page_open(&file, 0, &mapped) == XFER_ERR_UNSUPPORTED);
  NEED(mapped == NULL);
  OK(xfi_cuda_page_open(&file, page.n_bytes, &mapped));
  xfi_cuda_page_unmap(mapped, page.n_bytes, true);
  device->ops->flags_free(device, flags);
  device->ops->destroy(device);
}

/* ---- a peer that lies ---------------------------------------------------------------------- */

enum { NOTHING, NO_FILE, NO_BYTES, CUT, TOO_MANY_BYTES, LIES };

static int lie;
static int listener;

static void send_lie(int to)
{
  const uint64_t n_bytes = lie == NO_BYTES ? 0 : lie == TOO_MANY_BYTES ? 4 * MIB : 2 * MIB;
  const int file = listener;
  struct iovec part = {(void *)&n_bytes, lie == CUT ? 4 : sizeof n_bytes};
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof file)];
  } room = {.bytes = {0}};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

  if (lie == NOTHING) return;
  if (lie != NO_FILE) {
    message.msg_control = room.bytes;
    message.msg_controllen = sizeof room.bytes;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof file);
    memcpy(CMSG_DATA(head), &file, sizeof file);
  }
  NEED(sendmsg(to, &message, MSG_NOSIGNAL) > 0);
}

static void *lie_to_all(void *unused)
{
  char request[64];

  for (lie = NOTHING; lie < LIES; lie++) {
    const int to = accept(listener, NULL, NULL);

    NEED(to >= 0 && recv(to, request, sizeof request, 0) > 0);
    send_lie(to);
    NEED(close(to) == 0);
  }
  return unused;
}

static void test_a_peer_that_lies_about_chunks_is_left_alone(void)
{
  char name[XFI_SOCKET_NAME_BYTES];
  xfi_device *device = device_of_one();
  pthread_t thread;
  char *mapped = NULL;

  listener = xfi_socket_listen(SOCK_SEQPACKET, 1, name);
  NEED(listener >= 0);
  NEED(xfi_thread_start(&thread, lie_to_all, NULL));
  for (int i = 0; i < LIES; i++) {
    NEED(xfi_cuda_chunks_map(xfi_cuda(device), name, 4096, (size_t)2 * MIB, &mapped,
                             xfi_deadline_after(20000)) == XFER_ERR_UNSUPPORTED);
    NEED(strstr(xfer_last_error(), "was not made to leave its process") != NULL);
    NEED(mapped == NULL);
  }
  NEED(pthread_join(thread, NULL) == 0);
  NEED(close(listener) == 0);
  NEED(xfi_cuda_chunks_map(xfi_cuda(device), name, 4096, (size_t)2 * MIB, &mapped,
                           xfi_deadline_after(1000)) == XFER_ERR_UNSUPPORTED);
  NEED(strstr(xfer_last_error(), "Connection refused") != NULL);
  device->ops->destroy(device);
}

/* Whoever asks for what was not offered, or for nothing, gets no file. */
static void test_who_asks_for_other_memory_gets_none(void)
{
  xfi_allocation found = {NULL, 0, 0, 0};
  char name[XFI_SOCKET_NAME_BYTES];
  struct sockaddr_un address;
  xfi_device *device = device_of_one();
  char *chunks = two_chunks();

  OK(device->ops->find_allocation(device, chunks, CHUNKS_BYTES, &found));
  OK(xfi_cuda_chunks_export(xfi_cuda(device), &found, name));
  const socklen_t n_bytes = xfi_socket_address(&address, name);
  const uint64_t base = (uint64_t)(uintptr_t)found.base;
  const uint64_t wanted[][2] = {{base, found.n_bytes + 1}, {base + 8, found.n_bytes}};
  for (size_t i = 0; i < 3; i++) {
    const int to = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    char answer[64];

    NEED(connect(to, (struct sockaddr *)&address, n_bytes) == 0);
    NEED(send(to, wanted[i % 2], i < 2 ? sizeof *wanted : 4, MSG_NOSIGNAL) > 0);
    NEED(recv(to, answer, sizeof answer, 0) <= 0);
    NEED(close(to) == 0);
  }
  device->ops->destroy(device);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"memory_ends_where_the_driver_says", test_memory_ends_where_the_driver_says},
      {"our_own_memory_has_whole_units", test_our_own_memory_has_whole_units},
      {"a_page_has_the_bytes_that_its_file_has", test_a_page_has_the_bytes_that_its_file_has},
      {"a_peer_that_lies_about_chunks_is_left_alone",
       test_a_peer_that_lies_about_chunks_is_left_alone},
      {"who_asks_for_other_memory_gets_none", test_who_asks_for_other_memory_gets_none},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
