/*
 * What the calls of device/cuda.c cost: looking at allocations, CUDA IPC by size and number, and
 * flags. Two processes; the second is on another GPU where there is one.
 */
#include "bench.h"
#include "device.h"
#include "error.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_SIZES = 4, N_BUFFERS = 500, N_MANY = 18000, N_ROUNDS = 2000 };
static const size_t sizes[N_SIZES] = {4096, (size_t)3 << 19, (size_t)3 << 20, (size_t)24 << 20};

/* Shared by the two processes. */
typedef struct mailbox {
  volatile int step;
  xfi_mem_handle handles[N_SIZES][N_BUFFERS];
  xfi_mem_handle page[2];
} mailbox;

static void await(const mailbox *box, int step)
{
  while (box->step < step)
    (void)sched_yield();
}

static double us_since(int64_t began, int n)
{
  return (double)(xfi_now_ns() - began) * 1e-3 / n;
}

/* A buffer per parameter, as models have them. */
static xfer_status wait_flags(xfi_device *device, uint64_t **flags, int n, uint64_t value,
                              xfer_stream stream)
{
  int late = -1;

  return device->ops->flags_sync(device, &(xfi_flags){NULL, 0}, &(xfi_flags){flags, n}, value,
                                 stream, xfi_deadline_after(60000), &late);
}

static xfer_status export(xfi_device *device, void *buffer, xfi_mem_handle *handle)
{
  xfi_allocation found;
  xfer_status st = device->ops->find_allocation(device, buffer, 1, &found);

  return st == XFER_OK ? device->ops->mem_export(device, found, handle) : st;
}

static void look_at_many(xfi_device *device)
{
  static void *buffers[N_MANY];
  static xfi_allocation found[N_MANY];
  int64_t began = xfi_now_ns();

  for (int i = 0; i < N_MANY; i++)
    CUDA(cudaMalloc, (&buffers[i], (size_t)1 << 16));
  printf("%d allocations of 64 KiB: cudaMalloc %.2f us each", N_MANY, us_since(began, N_MANY));
  began = xfi_now_ns();
  for (int i = 0; i < N_MANY; i++)
    OK(device->ops->find_allocation(device, buffers[i], 1 << 16, &found[i]));
  printf(", find_allocation %.3f us each", us_since(began, N_MANY));
  began = xfi_now_ns();
  if (device->ops->find_changed(device, found, N_MANY) != N_MANY) exit(1);
  printf(", find_changed %.3f us each\n", us_since(began, N_MANY));
  for (int i = 0; i < N_MANY; i++)
    CUDA(cudaFree, (buffers[i]));
}

/* Host time of the calls that a run makes. */
static void cost_of_calls(xfi_device *device)
{
  uint64_t *flags = NULL;
  xfer_stream stream = NULL;
  xfi_event *event = NULL;
  double us[4] = {0};

  OK(device->ops->flags_alloc(device, &flags, 512, true));
  OK(device->ops->stream_create(device, &stream));
  OK(device->ops->event_create(device, &event));
  uint64_t *list[4] = {flags, flags + 1, flags + 2, flags + 3};
  for (uint64_t i = 1; i <= N_ROUNDS; i++) {
    int64_t began = xfi_now_ns();
    OK(device->ops->flags_set(device, &(xfi_flags){list, 4}, NULL, i, stream));
    us[0] += us_since(began, N_ROUNDS);
    began = xfi_now_ns();
    OK(wait_flags(device, list, 4, i, stream));
    us[1] += us_since(began, N_ROUNDS);
    began = xfi_now_ns();
    OK(device->ops->event_record(device, event, stream));
    us[2] += us_since(began, N_ROUNDS);
    began = xfi_now_ns();
    OK(device->ops->stream_wait(device, stream, event));
    us[3] += us_since(began, N_ROUNDS);
    if (i % 100 == 0) CUDA(cudaStreamSynchronize, (stream));
  }
  printf("host time of calls: flags_set(4) %.2f us, flags_wait(4) %.2f us, event_record %.2f us, "
         "stream_wait %.2f us\n",
         us[0], us[1], us[2], us[3]);
  device->ops->event_destroy(device, event);
  device->ops->stream_destroy(device, stream);
  device->ops->flags_free(device, flags);
}

/* Copies of 10 KB within the device, guarded: by three launches and by one. */
static void guarded_copies(xfi_device *device, int n)
{
  enum { BYTES = 10240, LAPS = 200 };
  static xfi_copy copies[128];
  const xfi_device_ops *ops = device->ops;
  uint64_t *flags = NULL;
  xfer_stream stream = NULL;
  xfi_guard *guard = NULL;
  xfi_batch *batch = NULL;
  char *memory = NULL;
  double us[2] = {0};
  uint64_t value = 0;

  CUDA(cudaMalloc, ((void **)&memory, (size_t)4 * BYTES * (size_t)n));
  OK(ops->flags_alloc(device, &flags, 512, true));
  OK(ops->stream_create(device, &stream));
  uint64_t *watched[3] = {flags, flags + 1, flags + 2};
  uint64_t *done = flags + 8;
  for (int i = 0; i < n; i++) {
    char *at = memory + (ptrdiff_t)4 * BYTES * i;

    copies[i] = (xfi_copy){.src = at, .dst = at + 2 * BYTES, .run_bytes = BYTES};
  }
  OK(ops->guard_create(device, &guard, &(xfi_flags){watched, 3}, true));
  OK(ops->batch_create(
      device, &batch,
      &(xfi_batch_spec){.copies = copies, .n_copies = (size_t)n, .percent = 100, .guard = guard}));
  for (int way = 0; way < 4; way++) { /* twice, the first time to warm up */
    const int64_t began = xfi_now_ns();

    for (int i = 0; i < LAPS; i++) {
      bool launched = false;

      value++;
      if (way % 2 == 1)
        OK(ops->guarded_launch(device, batch, &(xfi_flags){&done, 1}, value, stream, &launched));
      if (launched) continue;
      OK(ops->guard_check(device, guard, stream));
      OK(ops->batch_launch(device, batch, stream, NULL));
      OK(ops->flags_set(device, &(xfi_flags){&done, 1}, guard, value, stream));
    }
    CUDA(cudaStreamSynchronize, (stream));
    us[way % 2] = us_since(began, LAPS);
  }
  printf("%d guarded copies of %d bytes: %.2f us by three launches, %.2f by one if it may be\n", n,
         BYTES, us[0], us[1]);
  ops->batch_destroy(device, batch);
  ops->guard_destroy(device, guard);
  ops->stream_destroy(device, stream);
  ops->flags_free(device, flags);
  CUDA(cudaFree, (memory));
}

/* The two processes signal each other in turn; everything is enqueued before the first. */
static void ping_pong(xfi_device *device, mailbox *box, int me, int at_step)
{
  enum { TURNS = 200 };
  xfi_allocation found;
  uint64_t *mine = NULL;
  xfi_mapping *theirs = NULL;
  xfer_stream stream = NULL;

  OK(device->ops->flags_alloc(device, &mine, 512, true));
  OK(device->ops->find_allocation(device, mine, 1, &found));
  OK(device->ops->mem_export(device, found, &box->page[me]));
  (void)__sync_add_and_fetch(&box->step, 1);
  await(box, at_step + 2);
  OK(device->ops->mem_import(device, &box->page[1 - me], &theirs, xfi_deadline_after(60000)));
  OK(device->ops->stream_create(device, &stream));
  uint64_t *flag = (uint64_t *)(void *)theirs->base + ((char *)mine - (char *)found.base) / 8;
  uint64_t *own = mine;
  int64_t began = 0;
  for (uint64_t i = 1; i <= TURNS + 1; i++) {
    if (me == 0 && i == 2) {
      CUDA(cudaStreamSynchronize, (stream)); /* both are ready */
      began = xfi_now_ns();
    }
    if (me == 0) OK(device->ops->flags_set(device, &(xfi_flags){&flag, 1}, NULL, i, stream));
    OK(wait_flags(device, &own, 1, i, stream));
    if (me == 1) OK(device->ops->flags_set(device, &(xfi_flags){&flag, 1}, NULL, i, stream));
  }
  CUDA(cudaStreamSynchronize, (stream));
  if (me == 0) printf("flag there and back: %.2f us\n", us_since(began, TURNS));
  (void)__sync_add_and_fetch(&box->step, 1);
  await(box, at_step + 4);
  device->ops->mem_unimport(device, theirs);
  (void)__sync_add_and_fetch(&box->step, 1);
  await(box, at_step + 6);
  device->ops->stream_destroy(device, stream);
  device->ops->flags_free(device, mine);
}

static void exporter(mailbox *box)
{
  static void *buffers[N_SIZES][N_BUFFERS];
  xfi_device *device = NULL;

  CUDA(cudaSetDevice, (0));
  OK(xfi_device_create_cuda(&device));
  look_at_many(device);
  cost_of_calls(device);
  for (int n = 1; n <= 64; n *= 4)
    guarded_copies(device, n);
  guarded_copies(device, 100);
  for (int s = 0; s < N_SIZES; s++) {
    for (int i = 0; i < N_BUFFERS; i++)
      CUDA(cudaMalloc, (&buffers[s][i], sizes[s]));
    int64_t began = xfi_now_ns();
    for (int i = 0; i < N_BUFFERS; i++)
      OK(export(device, buffers[s][i], &box->handles[s][i]));
    printf("%8zu KiB, %d buffers: mem_export %.2f us each\n", sizes[s] >> 10, N_BUFFERS,
           us_since(began, N_BUFFERS));
  }
  (void)fflush(stdout);
  box->step = 1;
  await(box, 2);
  ping_pong(device, box, 0, 2);
  for (int s = 0; s < N_SIZES; s++) {
    for (int i = 0; i < N_BUFFERS; i++)
      CUDA(cudaFree, (buffers[s][i]));
  }
  device->ops->destroy(device);
}

static void importer(mailbox *box)
{
  static xfi_mapping *mapped[N_BUFFERS];
  xfi_device *device = NULL;
  int n_gpus = 0;

  CUDA(cudaGetDeviceCount, (&n_gpus));
  CUDA(cudaSetDevice, (n_gpus > 1 ? 1 : 0));
  OK(xfi_device_create_cuda(&device));
  await(box, 1);
  for (int s = 0; s < N_SIZES; s++) {
    double first = 0;
    int64_t began = xfi_now_ns();
    for (int i = 0; i < N_BUFFERS; i++) {
      OK(device->ops->mem_import(device, &box->handles[s][i], &mapped[i],
                                 xfi_deadline_after(60000)));
      if (i == 0) first = us_since(began, 1);
    }
    double map = us_since(began, N_BUFFERS);
    began = xfi_now_ns();
    for (int i = 0; i < N_BUFFERS; i++)
      device->ops->mem_unimport(device, mapped[i]);
    printf("%8zu KiB, %d buffers: mem_import %.2f us each, the first %.0f us; mem_unimport %.2f us "
           "each\n",
           sizes[s] >> 10, N_BUFFERS, map, first, us_since(began, N_BUFFERS));
  }
  (void)fflush(stdout);
  box->step = 2;
  ping_pong(device, box, 1, 2);
  device->ops->destroy(device);
}

int main(void)
{
  int status = -1;
  mailbox *box = mmap(NULL, sizeof *box, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

  if (box == MAP_FAILED) return 1;
  pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    importer(box);
    return 0;
  }
  exporter(box);
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
