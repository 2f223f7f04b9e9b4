/* device/cuda.c behind its table: memory, streams, batches, flags and guards, and peers' memory. */
#include "gpu.h"

#include "chunks.h"

#include "device.h"
#include "error.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POISON = 0x5a };

static xfi_device *device_make(int ordinal)
{
  xfi_device *device = NULL;

  CUDA(cudaSetDevice, (ordinal));
  OK(xfi_device_create_cuda(&device));
  return device;
}

static xfi_deadline soon(void)
{
  return xfi_deadline_after(60000);
}

static xfer_status wait_flags(xfi_device *device, uint64_t **flags, int n, uint64_t value,
                              xfer_stream stream)
{
  int late = -1;

  return device->ops->flags_sync(device, &(xfi_flags){NULL, 0}, &(xfi_flags){flags, n}, value,
                                 stream, soon(), &late);
}

/* ---- memory and streams ------------------------------------------------------------------- */

static void test_find_allocation_names_what_copies_cannot_use(void **state)
{
  xfi_allocation found;
  int on_stack = 0;
  char *memory = NULL;
  char *pinned = NULL;

  (void)state;
  NEEDS_GPUS(1);
  xfi_device *device = device_make(0);
  CUDA(cudaMalloc, ((void **)&memory, 1000));
  CUDA(cudaHostAlloc, ((void **)&pinned, 1000, cudaHostAllocDefault));
  OK(device->ops->find_allocation(device, memory + 999, 1, &found));
  assert_ptr_equal(found.base, memory);
  assert_true(found.n_bytes >= 1000);
  assert_true(found.id != 0);
  OK(device->ops->find_allocation(device, pinned, 1, &found));
  assert_int_equal(device->ops->find_allocation(device, &on_stack, 1, &found), XFER_ERR_ARG);
  assert_non_null(strstr(xfi_last_error(), "pageable"));
  CUDA(cudaFree, (memory));
  assert_int_equal(device->ops->find_allocation(device, memory, 1, &found), XFER_ERR_ARG);
  CUDA(cudaFreeHost, (pinned));
  device->ops->destroy(device);
}

static void test_find_allocation_tells_a_new_allocation_at_an_old_address(void **state)
{
  xfi_allocation first;
  xfi_allocation second;
  void *memory = NULL;
  void *again = NULL;

  (void)state;
  NEEDS_GPUS(1);
  xfi_device *device = device_make(0);
  CUDA(cudaMalloc, (&memory, 64 << 20));
  OK(device->ops->find_allocation(device, memory, 1, &first));
  CUDA(cudaFree, (memory));
  CUDA(cudaMalloc, (&again, 64 << 20));
  if (again != memory) print_message("the driver chose another address\n");
  OK(device->ops->find_allocation(device, again, 1, &second));
  assert_true(first.id != second.id);
  assert_int_equal(device->ops->find_changed(device, (xfi_allocation[]){second, first}, 2), 1);
  CUDA(cudaFree, (again));
  assert_int_equal(device->ops->find_changed(device, &second, 1), 0);
  device->ops->destroy(device);
}

static void test_find_allocation_refuses_another_devices_memory(void **state)
{
  xfi_allocation found;
  void *memory = NULL;

  (void)state;
  NEEDS_GPUS(2);
  xfi_device *device = device_make(0);
  CUDA(cudaSetDevice, (1));
  CUDA(cudaMalloc, (&memory, 1000));
  assert_int_equal(device->ops->find_allocation(device, memory, 1, &found), XFER_ERR_ARG);
  assert_non_null(strstr(xfi_last_error(), "memory of CUDA device 1"));
  CUDA(cudaFree, (memory));
  int current = -1;
  CUDA(cudaGetDevice, (&current));
  assert_int_equal(current, 1); /* the caller's choice is left alone */
  CUDA(cudaSetDevice, (0));
  device->ops->destroy(device);
}

static void test_find_allocation_counts_the_chunks_of_mapped_memory(void **state)
{
  const size_t chunk = 2 << 20;
  xfi_allocation one;
  xfi_allocation three;
  xfi_allocation again;

  (void)state;
  NEEDS_GPUS(1);
  xfi_device *device = device_make(0);
  char *memory = chunks_alloc(4 * chunk, true);
  OK(device->ops->find_allocation(device, memory + chunk + 5, chunk - 5, &one));
  assert_ptr_equal(one.base, memory + chunk);
  assert_int_equal(one.n_bytes, chunk);
  OK(device->ops->find_allocation(device, memory + chunk + 5, 2 * chunk, &three));
  assert_ptr_equal(three.base, memory + chunk);
  assert_int_equal(three.n_bytes, 3 * chunk);
  assert_true(three.id != one.id && three.id != 0);
  OK(device->ops->find_allocation(device, memory + 2 * chunk - 1, 1, &again));
  assert_int_equal(again.id, one.id);
  assert_int_equal(device->ops->find_changed(device, (xfi_allocation[]){one, three}, 2), 2);
  assert_int_equal(device->ops->find_allocation(device, memory, 4 * chunk + 1, &again),
                   XFER_ERR_ARG);
  assert_non_null(strstr(xfi_last_error(), "the allocation ends after"));
  chunks_renew(memory + 3 * chunk, chunk, true); /* the last of three */
  assert_int_equal(device->ops->find_changed(device, (xfi_allocation[]){one, three}, 2), 1);
  chunks_free(memory, 4 * chunk);
  assert_int_equal(device->ops->find_changed(device, &one, 1), 0);
  device->ops->destroy(device);
}

static void test_find_allocation_refuses_bytes_past_the_end(void **state)
{
  xfi_allocation found;
  char *memory = NULL;

  (void)state;
  NEEDS_GPUS(1);
  xfi_device *device = device_make(0);
  CUDA(cudaMalloc, ((void **)&memory, 1000));
  OK(device->ops->find_allocation(device, memory + 1, 999, &found));
  assert_int_equal(device->ops->find_allocation(device, memory + 1, 1000, &found), XFER_ERR_ARG);
  assert_non_null(strstr(xfi_last_error(), "the allocation ends after 999"));
  CUDA(cudaFree, (memory));
  device->ops->destroy(device);
}

static void test_capturing_stream_is_refused(void **state)
{
  cudaStream_t stream = NULL;
  cudaGraph_t graph = NULL;

  (void)state;
  NEEDS_GPUS(1);
  xfi_device *device = device_make(0);
  CUDA(cudaStreamCreate, (&stream));
  OK(device->ops->stream_check(device, stream));
  OK(device->ops->stream_check(device, NULL));
  CUDA(cudaStreamBeginCapture, (stream, cudaStreamCaptureModeThreadLocal));
  assert_int_equal(device->ops->stream_check(device, stream), XFER_ERR_STATE);
  assert_non_null(strstr(xfi_last_error(), "capturing"));
  CUDA(cudaStreamEndCapture, (stream, &graph));
  if (graph != NULL) CUDA(cudaGraphDestroy, (graph));
  CUDA(cudaStreamDestroy, (stream));
  device->ops->destroy(device);
}

static void test_alloc_gives_zeros_and_too_much_is_named(void **state)
{
  void *memory = NULL;
  unsigned char seen[4096];

  (void)state;
  NEEDS_GPUS(1);
  xfi_device *device = device_make(0);
  OK(device->ops->alloc(device, &memory, sizeof seen));
  CUDA(cudaMemcpy, (seen, memory, sizeof seen, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < sizeof seen; i++)
    assert_int_equal(seen[i], 0);
  device->ops->free(device, memory);
  assert_int_equal(device->ops->alloc(device, &memory, (size_t)1 << 45), XFER_ERR_NOMEM);
  assert_int_equal(cudaGetLastError(), cudaSuccess); /* nothing is left for the caller to find */
  device->ops->destroy(device);
}

/* ---- batches ------------------------------------------------------------------------------ */

/* A batch with work for the engine (one dim, large) and for the kernels (small rows), launched
 * twice. */
static void test_batch_of_engine_and_kernel_equals_ref(void **state)
{
  const size_t big = (size_t)8 << 20;
  const size_t n_bytes = 2 * big;
  uint64_t random = 3;
  char *src = NULL;
  char *dst = NULL;
  xfi_batch *batch = NULL;
  xfer_stream stream = NULL;
  char *host = malloc(n_bytes);
  char *want = malloc(n_bytes);
  char *seen = malloc(n_bytes);

  (void)state;
  NEEDS_GPUS(1);
  xfi_device *device = device_make(0);
  CUDA(cudaMalloc, ((void **)&src, n_bytes));
  CUDA(cudaMalloc, ((void **)&dst, n_bytes));
  random_fill(&random, host, n_bytes);
  CUDA(cudaMemcpy, (src, host, n_bytes, cudaMemcpyHostToDevice));
  OK(device->ops->stream_create(device, &stream));
  xfi_copy copies[2] = {
      {.run_bytes = (int64_t)big},
      {.run_bytes = 384, .n_dims = 1, .extent = {5000}, .src_stride = {768}, .dst_stride = {1152}},
  };
  for (int pass = 0; pass < 2; pass++) {
    char *s = pass == 0 ? host : src;
    char *d = pass == 0 ? want : dst;
    copies[0].src = s;
    copies[0].dst = d;
    copies[1].src = s + big;
    copies[1].dst = d + big;
    if (pass == 0) {
      memset(want, POISON, n_bytes);
      xfi_ref_copy(copies, 2);
    }
  }
  OK(device->ops->batch_create(device, &batch, copies, 2, 100, NULL));
  for (int launch = 0; launch < 2; launch++) {
    CUDA(cudaMemset, (dst, POISON, n_bytes));
    CUDA(cudaDeviceSynchronize, ());
    OK(device->ops->batch_launch(device, batch, stream));
    CUDA(cudaStreamSynchronize, (stream));
    CUDA(cudaMemcpy, (seen, dst, n_bytes, cudaMemcpyDeviceToHost));
    assert_memory_equal(seen, want, n_bytes);
  }
  device->ops->batch_destroy(device, batch);
  device->ops->stream_destroy(device, stream);
  CUDA(cudaFree, (src));
  CUDA(cudaFree, (dst));
  free(host);
  free(want);
  free(seen);
  device->ops->destroy(device);
}

/* ---- flags -------------------------------------------------------------------------------- */

static void test_flags_order_streams(void **state)
{
  uint64_t *flags = NULL;
  xfer_stream waiting = NULL;
  xfer_stream setting = NULL;
  xfi_event *event = NULL;

  (void)state;
  NEEDS_GPUS(1);
  if (getenv("CUDA_DEVICE_MAX_CONNECTIONS") != NULL) {
    print_message(
        "left out: with one connection the waiting stream would hold up the setting one\n");
    return;
  }
  xfi_device *device = device_make(0);
  OK(device->ops->flags_alloc(device, &flags, 8, true));
  OK(device->ops->stream_create(device, &waiting));
  OK(device->ops->stream_create(device, &setting));
  OK(device->ops->event_create(device, &event));
  uint64_t *list[3] = {flags, flags + 1, flags + 7};
  for (uint64_t epoch = 1; epoch < 100; epoch++) {
    OK(wait_flags(device, list, 3, epoch, waiting));
    OK(device->ops->event_record(device, event, waiting));
    assert_int_equal(
        device->ops->event_sync(device, event, xfi_deadline_after(epoch == 1 ? 50 : 0)),
        XFER_ERR_TIMEOUT);
    OK(device->ops->flags_set(device, &(xfi_flags){list, 3}, NULL, epoch, setting));
    OK(device->ops->event_sync(device, event, xfi_deadline_after(10000)));
  }
  device->ops->event_destroy(device, event);
  device->ops->stream_destroy(device, waiting);
  device->ops->stream_destroy(device, setting);
  device->ops->flags_free(device, flags);
  device->ops->destroy(device);
}

static void test_a_flag_stored_by_the_host_lets_a_stream_go(void **state)
{
  uint64_t *flags = NULL;
  xfer_stream stream = NULL;

  (void)state;
  NEEDS_GPUS(1);
  xfi_device *device = device_make(0);
  OK(device->ops->flags_alloc(device, &flags, 2000, true));
  OK(device->ops->stream_create(device, &stream));
  uint64_t *list[2] = {flags, flags + 1999};
  OK(wait_flags(device, list, 2, 4, stream));
  device->ops->flags_store(device, list[0], 4);
  device->ops->flags_store(device, list[1], XFI_FLAG_VOID | 4);
  CUDA(cudaStreamSynchronize, (stream));
  device->ops->stream_destroy(device, stream);
  device->ops->flags_free(device, flags);
  device->ops->destroy(device);
}

/* Copies of each kind: by a graph where they are a peer's, else by kernels. */
static void test_guarded_copies_do_nothing_where_a_flag_is_void(void **state)
{
  enum { BYTES = 1 << 20 };
  uint64_t *flags = NULL;
  char *memory = NULL;
  unsigned char seen = 0;
  xfer_stream stream = NULL;
  xfi_guard *guard = NULL;
  xfi_batch *batch = NULL;

  (void)state;
  NEEDS_GPUS(1);
  xfi_device *device = device_make(0);
  CUDA(cudaMalloc, ((void **)&memory, 2 * BYTES));
  OK(device->ops->flags_alloc(device, &flags, 16, true));
  OK(device->ops->stream_create(device, &stream));
  uint64_t *watched[2] = {flags, flags + 1};
  uint64_t *done = flags + 8;
  const xfi_copy copy = {.src = memory, .dst = memory + BYTES, .run_bytes = BYTES};
  OK(device->ops->guard_create(device, &guard, &(xfi_flags){watched, 2}, true));
  OK(device->ops->batch_create(device, &batch, &copy, 1, 100, guard));
  for (int is_void = 0; is_void < 2; is_void++) {
    CUDA(cudaMemset, (memory, 1 + is_void, BYTES));
    device->ops->flags_store(device, flags, 5);
    device->ops->flags_store(device, flags + 1, is_void ? XFI_FLAG_VOID | 5 : 5);
    OK(device->ops->guard_check(device, guard, stream));
    OK(device->ops->batch_launch(device, batch, stream));
    OK(device->ops->flags_set(device, &(xfi_flags){&done, 1}, guard, 5, stream));
    CUDA(cudaStreamSynchronize, (stream));
    CUDA(cudaMemcpy, (&seen, memory + 2 * BYTES - 1, 1, cudaMemcpyDeviceToHost));
    assert_int_equal(seen, 1);
    assert_true(*done == (is_void ? XFI_FLAG_VOID | 5 : 5));
  }
  device->ops->batch_destroy(device, batch);
  device->ops->guard_destroy(device, guard);
  device->ops->stream_destroy(device, stream);
  device->ops->flags_free(device, flags);
  CUDA(cudaFree, (memory));
  device->ops->destroy(device);
}

/* ---- peers' memory ------------------------------------------------------------------------ */

static void test_import_within_the_process_is_counted(void **state)
{
  int other = gpu_count() > 1 ? 1 : 0;
  void *memory = NULL;
  void *first = NULL;
  void *second = NULL;
  xfi_mem_handle handle;
  xfi_allocation found;

  (void)state;
  NEEDS_GPUS(1);
  xfi_device *here = device_make(0);
  xfi_device *there = device_make(other);
  CUDA(cudaMalloc, (&memory, 1 << 20));
  OK(there->ops->find_allocation(there, (char *)memory + 100, 1, &found));
  OK(there->ops->mem_export(there, found, &handle));
  CUDA(cudaSetDevice, (0));
  OK(here->ops->mem_import(here, &handle, &first, soon()));
  OK(here->ops->mem_import(here, &handle, &second, soon()));
  assert_ptr_equal(first, memory);
  assert_ptr_equal(second, first);
  here->ops->mem_unimport(here, first);
  here->ops->mem_unimport(here, second);
  CUDA(cudaFree, (memory));
  CUDA(cudaSetDevice, (0));
  here->ops->destroy(here);
  there->ops->destroy(there);
}

static void test_import_of_chunks_within_the_process(void **state)
{
  const size_t n_bytes = 5 << 20;
  int other = gpu_count() > 1 ? 1 : 0;
  void *mapped = NULL;
  unsigned char seen = 0;
  xfi_mem_handle handle;
  xfi_allocation found;

  (void)state;
  NEEDS_GPUS(1);
  xfi_device *here = device_make(0);
  xfi_device *there = device_make(other);
  char *memory = chunks_alloc(n_bytes, true);
  OK(there->ops->find_allocation(there, memory + 9, n_bytes - 9, &found));
  OK(there->ops->mem_export(there, found, &handle));
  OK(here->ops->mem_import(here, &handle, &mapped, soon()));
  there->ops->exports_end(there);
  CUDA(cudaSetDevice, (0));
  CUDA(cudaMemset, ((char *)mapped + n_bytes - 1, POISON, 1));
  CUDA(cudaDeviceSynchronize, ());
  CUDA(cudaSetDevice, (other));
  CUDA(cudaMemcpy, (&seen, memory + n_bytes - 1, 1, cudaMemcpyDeviceToHost));
  assert_int_equal(seen, POISON);
  here->ops->mem_unimport(here, mapped);
  /* What is no longer offered cannot be mapped anew, by others than its own device. */
  if (other != 0)
    assert_int_equal(here->ops->mem_import(here, &handle, &mapped, soon()), XFER_ERR_UNSUPPORTED);
  chunks_free(memory, n_bytes);
  CUDA(cudaSetDevice, (0));
  here->ops->destroy(here);
  there->ops->destroy(there);
}

enum { N_BUFFERS = 6 };
static const size_t buffer_bytes[N_BUFFERS] = {64, 512, 5000, 1 << 20, 3 << 20, 40 << 20};

/* Shared by the two processes. */
typedef struct mailbox {
  volatile int step;
  unsigned char domain[2][64];
  xfi_mem_handle handles[N_BUFFERS];
  xfi_mem_handle flag_handle;
  size_t flag_offset;
} mailbox;

static void await(const mailbox *box, int step)
{
  for (int i = 0; box->step < step; i++) {
    assert_true(i < 60000);
    (void)usleep(1000);
  }
}

static unsigned char byte_of(int buffer, size_t i)
{
  return (unsigned char)(i * 31 + i / 251 + (size_t)buffer * 17);
}

/* The child writes into the parent's buffers, half of each in rows, and raises the parent's flag.
 */
static void child_main(mailbox *box, int ordinal)
{
  char *base[N_BUFFERS];
  char *flag_base = NULL;
  char *mine = NULL;
  size_t most = buffer_bytes[N_BUFFERS - 1];
  char *host = malloc(most);
  xfi_copy copies[2 * N_BUFFERS];
  size_t n = 0;
  size_t at = 0;
  size_t total = 0;
  xfi_batch *batch = NULL;
  xfer_stream stream = NULL;

  xfi_device *device = device_make(ordinal);
  device->ops->domain(device, box->domain[1]);
  await(box, 1);
  for (int i = 0; i < N_BUFFERS; i++)
    total += buffer_bytes[i] + 256;
  CUDA(cudaMalloc, ((void **)&mine, total));
  for (int i = 0; i < N_BUFFERS; i++) {
    size_t half = buffer_bytes[i] / 2;
    OK(device->ops->mem_import(device, &box->handles[i], (void **)&base[i], soon()));
    for (size_t k = 0; k < buffer_bytes[i]; k++)
      host[k] = (char)byte_of(i, k);
    CUDA(cudaMemcpy, (mine + at, host, buffer_bytes[i], cudaMemcpyHostToDevice));
    copies[n++] = (xfi_copy){.src = mine + at, .dst = base[i], .run_bytes = (int64_t)half};
    copies[n++] = (xfi_copy){.src = mine + at + half,
                             .dst = base[i] + half,
                             .run_bytes = 4,
                             .n_dims = 1,
                             .extent = {(int64_t)(half / 4)},
                             .src_stride = {4},
                             .dst_stride = {4}};
    at += (buffer_bytes[i] + 255) / 256 * 256;
  }
  OK(device->ops->mem_import(device, &box->flag_handle, (void **)&flag_base, soon()));
  OK(device->ops->stream_create(device, &stream));
  OK(device->ops->batch_create(device, &batch, copies, n, 100, NULL));
  OK(device->ops->batch_launch(device, batch, stream));
  uint64_t *flag = (uint64_t *)(void *)(flag_base + box->flag_offset);
  OK(device->ops->flags_set(device, &(xfi_flags){&flag, 1}, NULL, 11, stream));
  CUDA(cudaStreamSynchronize, (stream));
  await(box, 2); /* the parent has looked */
  device->ops->batch_destroy(device, batch);
  for (int i = 0; i < N_BUFFERS; i++)
    device->ops->mem_unimport(device, base[i]);
  device->ops->mem_unimport(device, flag_base);
  device->ops->stream_destroy(device, stream);
  device->ops->destroy(device);
  box->step = 3;
  free(host);
}

static void parent_main(mailbox *box)
{
  char *buffers[N_BUFFERS];
  uint64_t *flags = NULL;
  xfer_stream stream = NULL;
  xfi_event *event = NULL;
  xfi_allocation found;
  char *seen = malloc(buffer_bytes[N_BUFFERS - 1]);

  xfi_device *device = device_make(0);
  device->ops->domain(device, box->domain[0]);
  for (int i = 0; i < N_BUFFERS; i++) {
    CUDA(cudaMalloc, ((void **)&buffers[i], buffer_bytes[i]));
    CUDA(cudaMemset, (buffers[i], POISON, buffer_bytes[i]));
    OK(device->ops->find_allocation(device, buffers[i] + buffer_bytes[i] / 2, 1, &found));
    OK(device->ops->mem_export(device, found, &box->handles[i]));
  }
  OK(device->ops->flags_alloc(device, &flags, 512, true));
  OK(device->ops->find_allocation(device, flags, 1, &found));
  box->flag_offset = (size_t)((char *)(flags + 3) - (char *)found.base);
  OK(device->ops->mem_export(device, found, &box->flag_handle));
  CUDA(cudaDeviceSynchronize, ());
  OK(device->ops->stream_create(device, &stream));
  OK(device->ops->event_create(device, &event));
  uint64_t *flag = flags + 3;
  OK(wait_flags(device, &flag, 1, 11, stream));
  OK(device->ops->event_record(device, event, stream));
  box->step = 1;
  OK(device->ops->event_sync(device, event, xfi_deadline_after(60000)));
  for (int i = 0; i < N_BUFFERS; i++) {
    CUDA(cudaMemcpy, (seen, buffers[i], buffer_bytes[i], cudaMemcpyDeviceToHost));
    for (size_t k = 0; k < buffer_bytes[i]; k++) {
      if ((unsigned char)seen[k] != byte_of(i, k)) print_error("buffer %d, byte %zu\n", i, k);
      assert_int_equal((unsigned char)seen[k], byte_of(i, k));
    }
  }
  assert_memory_equal(box->domain[0], box->domain[1], 64);
  box->step = 2;
  await(box, 3); /* memory may be freed once it is unmapped */
  for (int i = 0; i < N_BUFFERS; i++)
    CUDA(cudaFree, (buffers[i]));
  device->ops->event_destroy(device, event);
  device->ops->stream_destroy(device, stream);
  device->ops->flags_free(device, flags);
  device->ops->destroy(device);
  free(seen);
}

static mailbox *shared_box; /* made before CUDA starts */
static pid_t child;

/* Runs first: a process that has started CUDA cannot fork. The child counts GPUs for itself. */
static int fork_child(void **state)
{
  (void)state;
  shared_box =
      mmap(NULL, sizeof *shared_box, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared_box == MAP_FAILED) return -1;
  child = fork();
  return child < 0 ? -1 : 0;
}

static void test_another_process_writes_through_its_mappings(void **state)
{
  int status = -1;

  (void)state;
  if (gpu_count() < 1) skip();
  parent_main(shared_box);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void child_test(void **state)
{
  (void)state;
  child_main(shared_box, gpu_count() > 1 ? 1 : 0);
}

int main(void)
{
  const struct CMUnitTest in_child[] = {cmocka_unit_test(child_test)};
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_another_process_writes_through_its_mappings),
      cmocka_unit_test(test_find_allocation_names_what_copies_cannot_use),
      cmocka_unit_test(test_find_allocation_tells_a_new_allocation_at_an_old_address),
      cmocka_unit_test(test_find_allocation_refuses_another_devices_memory),
      cmocka_unit_test(test_find_allocation_counts_the_chunks_of_mapped_memory),
      cmocka_unit_test(test_find_allocation_refuses_bytes_past_the_end),
      cmocka_unit_test(test_capturing_stream_is_refused),
      cmocka_unit_test(test_alloc_gives_zeros_and_too_much_is_named),
      cmocka_unit_test(test_batch_of_engine_and_kernel_equals_ref),
      cmocka_unit_test(test_flags_order_streams),
      cmocka_unit_test(test_a_flag_stored_by_the_host_lets_a_stream_go),
      cmocka_unit_test(test_guarded_copies_do_nothing_where_a_flag_is_void),
      cmocka_unit_test(test_import_within_the_process_is_counted),
      cmocka_unit_test(test_import_of_chunks_within_the_process),
  };

  if (fork_child(NULL) != 0) return 1;
  if (child == 0) {
    if (gpu_count() < 1) return 0;
    return cmocka_run_group_tests_name("cuda device, second process", in_child, NULL, NULL);
  }
  return cmocka_run_group_tests_name("cuda device", tests, NULL, NULL);
}
