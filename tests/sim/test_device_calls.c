/* A device alone, and a comm of one rank: each call of CUDA, of NCCL and of the system, and each
 * allocation, fails once in all that they do. */
#include "alloc.h"
#include "comm.h"
#include "cuda_device.h"
#include "error.h"
#include "object.h"
#include "plugin.h"
#include "process.h"

#include "chunk_memory.h"
#include "world.h"

#include <errno.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { BYTES = 96, MIB = 1 << 20, CHUNKS_BYTES = 6 * MIB, FOR_EVER = -1 };

/* ---- what is not the machine's and may fail ------------------------------------------------ */

typedef enum kind {
  CALLS,
  GET_DEVICE,
  SET_DEVICE,
  GROUP_END,
  ASYNC_ERROR,
  ALLOCATIONS,
  SYSTEM,
  KINDS
} kind;

static _Atomic kind failing = KINDS;
static _Atomic long until_failure = FOR_EVER; /* of that kind */
static _Atomic bool has_failed;

static bool fails(kind what)
{
  if (what != failing || until_failure < 0 || until_failure-- > 0) return false;
  has_failed = true;
  errno = EMFILE;
  return true;
}

#define MAY_FAIL(type, name, what, failure, parameters, arguments)                                 \
  type __real_##name parameters;                                                                   \
  type __wrap_##name parameters;                                                                   \
  type __wrap_##name parameters                                                                    \
  {                                                                                                \
    return fails(what) ? (failure) : __real_##name arguments;                                      \
  }

MAY_FAIL(void *, xfi_calloc, ALLOCATIONS, NULL, (size_t n, size_t size), (n, size))
MAY_FAIL(bool, xfi_thread_start, SYSTEM, false,
         (pthread_t * thread, void *(*run)(void *context), void *context), (thread, run, context))
MAY_FAIL(xfer_status, xfi_alarms_create, SYSTEM, XFI_NO_MEMORY("a thread"),
         (xfi_alarms * *alarms, void (*begin)(void *context), void *context),
         (alarms, begin, context))
MAY_FAIL(xfer_status, xfi_comm_wrap, SYSTEM,
         (device->ops->destroy(device), XFI_NO_MEMORY("a comm")),
         (xfer_comm * *comm, xfi_comm *transport, xfi_device *device), (comm, transport, device))
/* Libraries have such calls, too. */
#pragma GCC visibility push(default)
MAY_FAIL(int, socket, SYSTEM, -1, (int domain, int type, int protocol), (domain, type, protocol))
MAY_FAIL(int, bind, SYSTEM, -1, (int file, const struct sockaddr *at, socklen_t n_bytes),
         (file, at, n_bytes))
MAY_FAIL(int, listen, SYSTEM, -1, (int file, int n), (file, n))
MAY_FAIL(int, accept4, SYSTEM, -1, (int file, struct sockaddr *from, socklen_t *n_bytes, int flags),
         (file, from, n_bytes, flags))
MAY_FAIL(int, connect, SYSTEM, -1, (int file, const struct sockaddr *to, socklen_t n_bytes),
         (file, to, n_bytes))
MAY_FAIL(int, getsockopt, SYSTEM, -1,
         (int file, int level, int name, void *value, socklen_t *n_bytes),
         (file, level, name, value, n_bytes))
#pragma GCC visibility pop

static void arm(kind what, long n)
{
  static const char *const names[] = {NULL, "cudaGetDevice", "cudaSetDevice", "ncclGroupEnd",
                                      "ncclCommGetAsyncError"};
  const sim_fault fault = {.name = what < ALLOCATIONS ? names[what] : NULL,
                           .rank = SIM_NO_RANK,
                           .nth = (uint64_t)n + 1,
                           .code = cudaErrorInitializationError};

  has_failed = false;
  failing = what;
  if (what < ALLOCATIONS)
    sim_fault_add(&fault);
  else
    until_failure = n;
}

static void disarm(void)
{
  until_failure = FOR_EVER;
  sim_fault_clear();
}

/* ---- all that a device does ---------------------------------------------------------------- */

typedef struct things {
  xfi_device *device;
  xfi_device *other; /* of ordinal 1, which maps what the first one has */
  xfer_stream stream;
  xfi_event *event;
  char *from;
  char *to;
  void *pinned;
  uint64_t *flags;
  xfi_guard *guard;
  xfi_batch *batch;
  xfi_digest *digest;
  xfi_mapping *mapped;
} things;

static char *chunks; /* of 2 and 4 MiB, on device 0 */

static xfer_status on_device(int ordinal, xfi_device **device)
{
  (void)cudaSetDevice(ordinal);
  return xfi_device_create_cuda(device);
}

/* The other device maps what the first one has: twice, and once more what it knows. */
static xfer_status map(things *t, void *pointer, size_t n_bytes)
{
  xfer_status st = XFER_OK;
  xfi_allocation found = {NULL, 0, 0, 0};
  xfi_mem_handle handle;
  xfi_mapping *again = NULL;

  XFI_TRY_DONE(t->device->ops->find_allocation(t->device, pointer, n_bytes, &found));
  XFI_TRY_DONE(t->device->ops->mem_export(t->device, found, &handle));
  XFI_TRY_DONE(t->device->ops->mem_export(t->device, found, &handle));
  (void)t->device->ops->find_changed(t->device, &found, 1);
  (void)cudaSetDevice(1);
  st = t->other->ops->mem_import(t->other, &handle, &t->mapped, xfi_deadline_after(INT64_MAX / 2));
  if (st == XFER_OK)
    st = t->other->ops->mem_import(t->other, &handle, &again, xfi_deadline_after(1000));
  (void)cudaSetDevice(0);
  XFI_TRY_DONE(st);
  NEED(again == t->mapped);
  t->other->ops->mem_unimport(t->other, again);
  t->other->ops->mem_unimport(t->other, t->mapped);
  t->mapped = NULL;
done:
  t->device->ops->exports_end(t->device);
  return st;
}

/* Rows of one buffer go into another, in order. */
static xfer_status copy(things *t)
{
  const xfi_device_ops *ops = t->device->ops;
  xfi_copy rows = {.src = t->from,
                   .dst = t->to,
                   .run_bytes = 8,
                   .n_dims = 1,
                   .extent = {4},
                   .src_stride = {24},
                   .dst_stride = {8}};
  const xfi_digest_box box = {
      {.src = t->to, .dst = (char *)XFI_DIGEST_ORIGIN, .run_bytes = 32}, 1, 0}; /* NOLINT */

  XFI_TRY(xfi_batch_make(t->device, &t->batch, &rows, 1, 50));
  XFI_TRY(ops->digest_create(t->device, &t->digest, &box, 1, 1));
  XFI_TRY(ops->batch_launch(t->device, t->batch, t->stream, NULL));
  XFI_TRY(ops->digest_launch(t->device, t->digest, t->stream));
  XFI_TRY(ops->event_record(t->device, t->event, t->stream));
  XFI_TRY(ops->stream_wait(t->device, t->stream, t->event));
  XFI_TRY(ops->event_sync(t->device, t->event, xfi_deadline_after(20000)));
  for (size_t i = 0; i < 32; i++)
    NEED(t->to[i] == t->from[i / 8 * 24 + i % 8]);
  NEED(ops->digest_sums(t->digest)[0].word[0] != 0);
  return XFER_OK;
}

static xfer_status signal(things *t)
{
  const xfi_device_ops *ops = t->device->ops;
  uint64_t *at[] = {NULL};
  const xfi_flags flags = {at, 1};
  xfi_copy copy = {.src = t->from, .dst = t->to, .run_bytes = 8};
  bool launched = false;

  XFI_TRY(ops->flags_alloc(t->device, &t->flags, 8, true));
  at[0] = t->flags + 3;
  XFI_TRY(ops->guard_create(t->device, &t->guard, &flags, true));
  XFI_TRY(ops->flags_sync(t->device, &flags, &flags, 1, t->stream, xfi_deadline_after(1000), NULL));
  XFI_TRY(ops->guard_check(t->device, t->guard, t->stream));
  XFI_TRY(ops->flags_set(t->device, &flags, t->guard, 2, t->stream));
  XFI_TRY(ops->flags_set(t->device, &flags, NULL, 3, t->stream));
  XFI_TRY(ops->batch_create(
      t->device, &t->batch,
      &(xfi_batch_spec){.copies = &copy, .n_copies = 1, .percent = 100, .guard = t->guard}));
  XFI_TRY(ops->guarded_launch(t->device, t->batch, &flags, 4, t->stream, &launched));
  NEED(launched);
  XFI_TRY(ops->event_record(t->device, t->event, t->stream));
  XFI_TRY(ops->event_sync(t->device, t->event, xfi_deadline_after(20000)));
  NEED(t->flags[3] == 4);
  return XFER_OK;
}

static xfer_status use(things *t)
{
  void *made = NULL;

  XFI_TRY(on_device(1, &t->other));
  XFI_TRY(on_device(0, &t->device));
  XFI_TRY(t->device->ops->alloc(t->device, &made, BYTES));
  t->from = made;
  for (int i = 0; i < BYTES; i++)
    t->from[i] = (char)(i + 1);
  XFI_TRY(t->device->ops->alloc(t->device, &made, 0));
  t->device->ops->free(t->device, made);
  XFI_TRY(t->device->ops->alloc(t->device, &made, BYTES));
  t->to = made;
  XFI_TRY(t->device->ops->host_memory.alloc(&t->pinned, BYTES));
  XFI_TRY(t->device->ops->stream_create(t->device, &t->stream));
  XFI_TRY(t->device->ops->stream_check(t->device, t->stream));
  XFI_TRY(t->device->ops->event_create(t->device, &t->event));
  XFI_TRY(copy(t));
  XFI_TRY(signal(t));
  XFI_TRY(map(t, t->from, BYTES));
  return map(t, chunks, CHUNKS_BYTES);
}

/* What was not made is given back, too. */
static void give_back(things *t)
{
  const xfi_device_ops *ops = t->device == NULL ? NULL : t->device->ops;

  if (t->mapped != NULL) t->other->ops->mem_unimport(t->other, t->mapped);
  if (t->other != NULL) t->other->ops->destroy(t->other);
  (void)cudaSetDevice(0);
  if (ops == NULL) return;
  ops->batch_destroy(t->device, t->batch);
  ops->digest_destroy(t->device, t->digest);
  ops->guard_destroy(t->device, t->guard);
  ops->flags_free(t->device, t->flags);
  ops->event_destroy(t->device, t->event);
  ops->stream_destroy(t->device, t->stream);
  ops->host_memory.free(t->pinned);
  ops->free(t->device, t->to);
  ops->free(t->device, t->from);
  ops->destroy(t->device);
  ops->destroy(NULL);
}

/* ---- a comm of one rank -------------------------------------------------------------------- */

typedef enum maker { NO_COMM, BY_ID, LENT, GATHER } maker;

static maker how;
static ncclComm_t lent;
static cudaStream_t stream_of_comm;
static char *bytes_of_comm; /* on the device */

static xfer_status make_comm(xfer_comm **comm)
{
  unsigned char id[XFER_NCCL_ID_BYTES];
  xfer_status st = XFER_OK;

  if (how == LENT) return xfer_comm_create_nccl(comm, lent);
  if (how == GATHER) return xfer_comm_create_cuda(comm, world_gather_alone, NULL, 0, 1);
  XFI_TRY_DONE(xfer_nccl_id(id));
  st = xfer_comm_create_nccl_id(comm, id, 0, 1);
done:
  return st;
}

static xfer_status use_comm(xfer_comm **made)
{
  enum { LONG = 300 };
  static const char mine[LONG] = "x";
  const xfi_message one = {bytes_of_comm, 8, 0};
  const bool nobody = false;
  char all[LONG] = "";

  XFI_TRY(make_comm(made));
  xfi_comm *comm = (*made)->transport;
  XFI_TRY(comm->ops->all_gather(comm, all, mine, LONG, xfi_deadline_after(20000)));
  NEED(all[0] == 'x');
  XFI_TRY(comm->ops->exchange(comm, &(xfi_messages){NULL, 0, NULL, 0}, xfi_deadline_after(20000)));
  if (how == GATHER) return XFER_OK;
  NEED(comm->ops->round(comm, &(xfi_messages){NULL, 0, NULL, 0}, stream_of_comm,
                        xfi_deadline_after(20000)) == XFER_ERR_COMM);
  NEED(strstr(xfer_last_error(), "not connected") != NULL);
  XFI_TRY(comm->ops->connect(comm, &nobody, true, xfi_deadline_after(20000)));
  XFI_TRY(comm->ops->broadcast(comm, &one, 1, 0, stream_of_comm, xfi_deadline_after(20000)));
  XFI_TRY(comm->ops->round(comm, &(xfi_messages){NULL, 0, NULL, 0}, stream_of_comm,
                           xfi_deadline_after(20000)));
  return comm->ops->check_data(comm, *comm->n_data_aborts);
}

/* ---- each in turn -------------------------------------------------------------------------- */

static void use_with_a_failure(kind what, long n)
{
  const sim_counts before = sim_count();
  const uint64_t faults = before.faults;
  things t = {.device = NULL};
  xfer_comm *comm = NULL;

  world_case((uint64_t)n);
  arm(what, n);
  const xfer_status st = how == NO_COMM ? use(&t) : use_comm(&comm);
  disarm();
  has_failed = has_failed || sim_count().faults != faults;
  NEED(has_failed || st == XFER_OK);
  NEED(st == XFER_OK || xfer_last_error()[0] != '\0');
  NEED(what != ALLOCATIONS || !has_failed || st == XFER_ERR_NOMEM);
  /* What a communicator of the caller's may still touch stays. */
  const bool is_left_to_borrowed =
      how == LENT && st != XFER_OK &&
      (strstr(xfer_last_error(), "the borrowed communicator") != NULL ||
       strstr(xfer_last_error(), "cudaMemcpyAsync") != NULL ||
       strstr(xfer_last_error(), "cudaEvent") != NULL);
  give_back(&t);
  xfer_comm_destroy(comm);
  NEED(sim_settle(10000));
  const sim_counts after = sim_count();
  NEED(is_left_to_borrowed || (after.bytes == before.bytes && after.pinned == before.pinned &&
                               after.streams == before.streams && after.events == before.events &&
                               after.imports == before.imports));
  NEED_NO_VIOLATION();
}

static void fail_each(void)
{
  long n_points = 0;

  for (kind what = CALLS; what < KINDS; what++) {
    has_failed = true;
    for (long n = 0; has_failed; n++, n_points++)
      use_with_a_failure(what, n);
  }
  printf("calls and allocations that failed: %ld\n", n_points);
  NEED(n_points > 30);
}

static void test_machine_sweep_of_a_device(void)
{
  world_clear(2, (sim_config){.eager = true});
  NEED(cudaSetDevice(0) == cudaSuccess);
  chunks = chunks_alloc((size_t)2 * MIB, (size_t)4 * MIB, true);
  fail_each();
}

static void test_a_device_whose_streams_cannot_wait_is_refused(void)
{
  xfi_device *device = NULL;

  world_clear(1, (sim_config){.no_wait64 = true});
  NEED(xfi_device_create_cuda(&device) == XFER_ERR_UNSUPPORTED && device == NULL);
  NEED(strstr(xfer_last_error(), "streams of CUDA device 0 cannot wait for 64-bit words") != NULL);
}

static void with_failures_of_comms(maker maker_now)
{
  const uint64_t n_bytes = 64;
  ncclUniqueId id;
  void *made = NULL;

  world_clear(2, (sim_config){.eager = true});
  NEED(cudaSetDevice(0) == cudaSuccess);
  NEED(cudaMalloc(&made, n_bytes) == cudaSuccess);
  NEED(ncclGetUniqueId(&id) == ncclSuccess && ncclCommInitRank(&lent, 1, id, 0) == ncclSuccess);
  bytes_of_comm = made;
  stream_of_comm = world_stream();
  how = maker_now;
  fail_each();
}

static void test_machine_sweep_of_a_comm_by_id(void)
{
  with_failures_of_comms(BY_ID);
}

static void test_machine_sweep_of_a_comm_that_borrows(void)
{
  with_failures_of_comms(LENT);
}

static void test_machine_sweep_of_a_comm_over_a_gather(void)
{
  with_failures_of_comms(GATHER);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"machine_sweep_of_a_device", test_machine_sweep_of_a_device},
      {"a_device_whose_streams_cannot_wait_is_refused",
       test_a_device_whose_streams_cannot_wait_is_refused},
      {"machine_sweep_of_a_comm_by_id", test_machine_sweep_of_a_comm_by_id},
      {"machine_sweep_of_a_comm_that_borrows", test_machine_sweep_of_a_comm_that_borrows},
      {"machine_sweep_of_a_comm_over_a_gather", test_machine_sweep_of_a_comm_over_a_gather},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
