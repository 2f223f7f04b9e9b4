/* device/cuda.c behind its table: memory, streams, batches, flags and guards. */
#include "made_device.h"

#include "chunks.h"

#include <cudaTypedefs.h>
#include <pthread.h>
#include <string.h>

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
  assert_non_null(strstr(xfer_last_error(), "pageable"));
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
  assert_non_null(strstr(xfer_last_error(), "memory of CUDA device 1"));
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
  assert_non_null(strstr(xfer_last_error(), "the allocation ends after"));
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
  assert_non_null(strstr(xfer_last_error(), "the allocation ends after 999"));
  CUDA(cudaFree, (memory));
  device->ops->destroy(device);
}

/* One allocation of each kind: all are numbered together, or the mark would miss one. */
static void test_each_kind_of_allocation_makes_another_mark(void **state)
{
  enum { ASYNC, MALLOC, HOST, REGISTERED, MANAGED, CHUNK, KINDS };
  const size_t chunk = 2 << 20;
  static _Alignas(4096) char page[4096];
  void *memory[KINDS] = {NULL};

  (void)state;
  NEEDS_GPUS(1);
  xfi_device *device = device_make(0);
  uint64_t mark = device->ops->allocation_mark(device);
  assert_true(mark != 0);
  for (int kind = ASYNC; kind < KINDS; kind++) {
    assert_int_equal(device->ops->allocation_mark(device), mark);
    if (kind == ASYNC) CUDA(cudaMallocAsync, (&memory[kind], 1000, NULL));
    if (kind == MALLOC) CUDA(cudaMalloc, (&memory[kind], 1000));
    if (kind == HOST) CUDA(cudaHostAlloc, (&memory[kind], 1000, cudaHostAllocDefault));
    if (kind == REGISTERED) CUDA(cudaHostRegister, (page, sizeof page, 0));
    if (kind == MANAGED) CUDA(cudaMallocManaged, (&memory[kind], 1000, cudaMemAttachGlobal));
    if (kind == CHUNK) memory[kind] = chunks_alloc(chunk, true);
    if (device->ops->allocation_mark(device) == mark) fail_msg("kind %d went unseen", kind);
    mark = device->ops->allocation_mark(device);
  }
  CUDA(cudaFreeAsync, (memory[ASYNC], NULL));
  CUDA(cudaFree, (memory[MALLOC]));
  CUDA(cudaFreeHost, (memory[HOST]));
  CUDA(cudaHostUnregister, (page));
  CUDA(cudaFree, (memory[MANAGED]));
  chunks_free(memory[CHUNK], chunk);
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
  assert_non_null(strstr(xfer_last_error(), "capturing"));
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
  const xfi_copy both[2] = {copies[0], copies[1]};
  for (int launch = 0; launch < 3; launch++) {
    if (launch != 1) { /* the third in the place of the first */
      memcpy(copies, both, sizeof both);
      OK(xfi_batch_make(device, &batch, copies, 2, 100));
    }
    CUDA(cudaMemset, (dst, POISON, n_bytes));
    CUDA(cudaDeviceSynchronize, ());
    OK(device->ops->batch_launch(device, batch, stream, NULL));
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
  xfi_copy copy = {.src = memory, .dst = memory + BYTES, .run_bytes = BYTES};
  OK(device->ops->guard_create(device, &guard, &(xfi_flags){watched, 2}, true));
  OK(device->ops->batch_create(
      device, &batch,
      &(xfi_batch_spec){.copies = &copy, .n_copies = 1, .percent = 100, .guard = guard}));
  for (int lap = 0; lap < 6; lap++) { /* by three launches, then by one, in two laps of three */
    const bool is_void = lap % 3 == 1;
    const uint64_t value = (uint64_t)lap + 5;
    bool launched = false;

    CUDA(cudaMemset, (memory, 1 + lap, BYTES));
    device->ops->flags_store(device, flags, value);
    device->ops->flags_store(device, flags + 1, is_void ? XFI_FLAG_VOID | value : value);
    if (lap >= 3) {
      OK(device->ops->guarded_launch(device, batch, &(xfi_flags){&done, 1}, value, stream,
                                     &launched));
      assert_true(launched);
    } else {
      OK(device->ops->guard_check(device, guard, stream));
      OK(device->ops->batch_launch(device, batch, stream, NULL));
      OK(device->ops->flags_set(device, &(xfi_flags){&done, 1}, guard, value, stream));
    }
    CUDA(cudaStreamSynchronize, (stream));
    CUDA(cudaMemcpy, (&seen, memory + 2 * BYTES - 1, 1, cudaMemcpyDeviceToHost));
    assert_int_equal(seen, is_void ? lap : lap + 1);
    assert_true(*done == (is_void ? XFI_FLAG_VOID | value : value));
  }
  device->ops->batch_destroy(device, batch);
  device->ops->guard_destroy(device, guard);
  device->ops->stream_destroy(device, stream);
  device->ops->flags_free(device, flags);
  CUDA(cudaFree, (memory));
  device->ops->destroy(device);
}

/* ---- memory of the host --------------------------------------------------------------------- */

static bool has_context(int ordinal)
{
  enum cudaDriverEntryPointQueryResult result;
  PFN_cuDevicePrimaryCtxGetState_v7000 get_state = NULL;
  void *found = NULL;
  unsigned flags = 0;
  int active = 0;

  CUDA(cudaGetDriverEntryPointByVersion,
       ("cuDevicePrimaryCtxGetState", &found, 12000, cudaEnableDefault, &result));
  memcpy(&get_state, &found, sizeof found);
  assert_int_equal(get_state(ordinal, &flags, &active), CUDA_SUCCESS);
  return active != 0;
}

typedef struct {
  xfi_host_memory of;
  void *memory;
} given;

static void *give_back(void *context)
{
  const given *g = context;

  g->of.free(g->memory);
  return NULL;
}

/* By a thread that has not used CUDA, which would make a context on GPU 0, while another captures,
 * which such a call would end. */
static void test_memory_of_the_host_is_given_back_anywhere(void **state)
{
  struct cudaPointerAttributes about;
  given g;
  cudaStream_t stream = NULL;
  cudaGraph_t graph = NULL;
  pthread_t thread;

  (void)state;
  NEEDS_GPUS(2);
  CUDA(cudaSetDevice, (0));
  CUDA(cudaDeviceReset, ());
  xfi_device *device = device_make(1);
  g.of = device->ops->host_memory;
  OK(g.of.alloc(&g.memory, 1 << 20));
  device->ops->destroy(device);
  CUDA(cudaStreamCreateWithFlags, (&stream, cudaStreamNonBlocking));
  assert_false(has_context(0));
  CUDA(cudaStreamBeginCapture, (stream, cudaStreamCaptureModeGlobal));
  assert_int_equal(pthread_create(&thread, NULL, give_back, &g), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  CUDA(cudaStreamEndCapture, (stream, &graph));
  assert_false(has_context(0));
  CUDA(cudaPointerGetAttributes, (&about, g.memory));
  assert_int_equal(about.type, cudaMemoryTypeUnregistered);
  CUDA(cudaGraphDestroy, (graph));
  CUDA(cudaStreamDestroy, (stream));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_find_allocation_names_what_copies_cannot_use),
      cmocka_unit_test(test_find_allocation_tells_a_new_allocation_at_an_old_address),
      cmocka_unit_test(test_find_allocation_refuses_another_devices_memory),
      cmocka_unit_test(test_find_allocation_counts_the_chunks_of_mapped_memory),
      cmocka_unit_test(test_find_allocation_refuses_bytes_past_the_end),
      cmocka_unit_test(test_each_kind_of_allocation_makes_another_mark),
      cmocka_unit_test(test_capturing_stream_is_refused),
      cmocka_unit_test(test_alloc_gives_zeros_and_too_much_is_named),
      cmocka_unit_test(test_batch_of_engine_and_kernel_equals_ref),
      cmocka_unit_test(test_flags_order_streams),
      cmocka_unit_test(test_a_flag_stored_by_the_host_lets_a_stream_go),
      cmocka_unit_test(test_guarded_copies_do_nothing_where_a_flag_is_void),
      cmocka_unit_test(test_memory_of_the_host_is_given_back_anywhere), /* resets GPU 0: the last */
  };

  return cmocka_run_group_tests_name("cuda device", tests, NULL, NULL);
}
