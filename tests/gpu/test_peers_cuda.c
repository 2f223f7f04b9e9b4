/* device/cuda.c behind its table: the memory of peers, of this process and of another. */
#include "made_device.h"

#include "chunks.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_import_within_the_process_is_counted(void **state)
{
  int other = gpu_count() > 1 ? 1 : 0;
  void *memory = NULL;
  xfi_mapping *first = NULL;
  xfi_mapping *second = NULL;
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
  assert_ptr_equal(first->base, memory);
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
  xfi_mapping *mapped = NULL;
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
  CUDA(cudaMemset, (mapped->base + n_bytes - 1, POISON, 1));
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
  xfi_mapping *mapped[N_BUFFERS];
  xfi_mapping *page = NULL;
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
    OK(device->ops->mem_import(device, &box->handles[i], &mapped[i], soon()));
    for (size_t k = 0; k < buffer_bytes[i]; k++)
      host[k] = (char)byte_of(i, k);
    CUDA(cudaMemcpy, (mine + at, host, buffer_bytes[i], cudaMemcpyHostToDevice));
    copies[n++] = (xfi_copy){.src = mine + at, .dst = mapped[i]->base, .run_bytes = (int64_t)half};
    copies[n++] = (xfi_copy){.src = mine + at + half,
                             .dst = mapped[i]->base + half,
                             .run_bytes = 4,
                             .n_dims = 1,
                             .extent = {(int64_t)(half / 4)},
                             .src_stride = {4},
                             .dst_stride = {4}};
    at += (buffer_bytes[i] + 255) / 256 * 256;
  }
  OK(device->ops->mem_import(device, &box->flag_handle, &page, soon()));
  OK(device->ops->stream_create(device, &stream));
  OK(xfi_batch_make(device, &batch, copies, n, 100));
  OK(device->ops->batch_launch(device, batch, stream, NULL));
  uint64_t *flag = (uint64_t *)(void *)(page->base + box->flag_offset);
  OK(device->ops->flags_set(device, &(xfi_flags){&flag, 1}, NULL, 11, stream));
  CUDA(cudaStreamSynchronize, (stream));
  await(box, 2); /* the parent has looked */
  device->ops->batch_destroy(device, batch);
  for (int i = 0; i < N_BUFFERS; i++)
    device->ops->mem_unimport(device, mapped[i]);
  device->ops->mem_unimport(device, page);
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
      cmocka_unit_test(test_import_within_the_process_is_counted),
      cmocka_unit_test(test_import_of_chunks_within_the_process),
  };

  if (fork_child(NULL) != 0) return 1;
  if (child == 0) {
    if (gpu_count() < 1) return 0;
    return cmocka_run_group_tests_name("cuda peers, second process", in_child, NULL, NULL);
  }
  return cmocka_run_group_tests_name("cuda peers", tests, NULL, NULL);
}
