/* Memory that is mapped chunk by chunk, of ranks on two devices of one process: by a socket, as
 * between processes; and what may go wrong there. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* struct ucred */
#endif
#include "chunk_memory.h"
#include "world.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum { WIDTH = 3000, TIMEOUT_MS = 20000, SHORT_MS = 1000, MIB = 1 << 20 };

static tensor tensors[WORLD_RANKS];
static xfer_plan *plans[WORLD_RANKS];

/* That side of a tensor lies in chunks, of `first` and `second` bytes. */
static void put_into_chunks(tensor *t, int side, size_t first, size_t second, bool leaves)
{
  sim_guard_drop(t->guards[side]);
  NEED(cudaFree(t->bytes[side]) == cudaSuccess);
  t->bytes[side] = chunks_alloc(first, second, leaves);
  t->guards[side] = sim_guard(t->rank, t->bytes[side], t->n_bytes[side]);
}

static void make_chunked(int rank, bool leaves, xfer_lane lane, uint64_t timeout_ms)
{
  tensor *t = &tensors[rank];

  tensor_make(t, RING, rank, WIDTH);
  for (int side = FROM; side <= TO; side++)
    put_into_chunks(t, side, (size_t)2 * MIB, 0, leaves);
  plans[rank] = world_plan(rank, t, 1, lane, timeout_ms);
}

static void chunks_work(int rank)
{
  make_chunked(rank, true, XFER_LANE_DIRECT, TIMEOUT_MS);
  OK(xfer_plan_commit(plans[rank]));
  for (uint64_t version = 1; version < 10; version++)
    world_run(plans[rank], &tensors[rank], 1, version, world_stream());
}

/* Memory in chunks, between two devices of one process: by the socket, as between processes. */
static void test_chunks_between_devices(void)
{
  world_of(3, COMM_GATHER, (sim_config){.seed = 0}, chunks_work);
}

/* Memory in chunks of two sizes, one of which is mapped anew: a run says so on all ranks and writes
 * nothing, and the next commit is of what is there. */
static void chunks_change(int rank)
{
  enum { LIVE = 0x77 };
  tensor *t = &tensors[rank];
  const cudaStream_t stream = world_stream();

  tensor_make(t, RING, rank, 5 * MIB);
  for (int side = FROM; side <= TO; side++)
    put_into_chunks(t, side, (size_t)2 * MIB, (size_t)4 * MIB, true);
  plans[rank] = world_plan(rank, t, 1, XFER_LANE_DIRECT, TIMEOUT_MS);
  OK(xfer_plan_commit(plans[rank]));
  world_run(plans[rank], t, 1, 1, stream);
  if (rank == 0) {
    const CUdeviceptr second = (CUdeviceptr)(uintptr_t)t->bytes[FROM] + (size_t)2 * MIB;
    DRIVER(PFN_cuMemUnmap_v10020, cuMemUnmap, (second, (size_t)4 * MIB));
    chunk_map(second, (size_t)4 * MIB, true);
  }
  tensor_fill(t, 2, LIVE);
  ranks_barrier();
  const xfer_status st = xfer_plan_run(plans[rank], 2, stream);
  NEED(rank != 0 || st == XFER_ERR_STATE);
  NEED(rank != 0 || strstr(xfer_last_error(), "freed or remapped") != NULL);
  NEED(xfer_plan_wait(plans[rank], 0) != XFER_OK);
  NEED(tensor_is_all(t, LIVE));
  ranks_barrier();
  const xfer_view src = xfer_view_dense(t->bytes[FROM]);
  const xfer_view dst = xfer_view_dense(t->bytes[TO]);
  OK(xfer_plan_bind(plans[rank], 0, &src, &dst));
  OK(xfer_plan_commit(plans[rank]));
  world_run(plans[rank], t, 1, 3, stream);
}

static void test_chunks_mapped_anew_are_noticed(void)
{
  world_of(2, COMM_GATHER, (sim_config){.seed = 0}, chunks_change);
}

/* Chunks that do not leave their process are another device's alone within it, too. */
static void chunks_stay(int rank)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;

  make_chunked(rank, false, XFER_LANE_AUTO, TIMEOUT_MS);
  OK(xfer_plan_commit(plans[rank]));
  OK(xfer_plan_report(plans[rank], &report));
  NEED(report.direct_bytes == 0);
  world_run(plans[rank], &tensors[rank], 1, 1, world_stream());
}

static void test_chunks_that_stay_are_packed(void)
{
  world_of(2, COMM_NCCL, (sim_config){.seed = 0}, chunks_stay);
}

/* Only one half of each flow can be mapped: whoever can copies it, whoever was meant to. */
static void half_stays(int rank)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  tensor *t = &tensors[rank];

  for (int side = FROM; side <= TO; side++) {
    tensor_make(t, RING, rank, 2 * MIB);
    put_into_chunks(t, side, (size_t)2 * MIB, 0, false);
    plans[rank] = world_plan(rank, t, 1, XFER_LANE_AUTO, TIMEOUT_MS);
    OK(xfer_plan_commit(plans[rank]));
    OK(xfer_plan_report(plans[rank], &report));
    NEED(report.direct_bytes == (uint64_t)2 * MIB && report.packed_bytes == 0);
    world_run(plans[rank], t, 1, 1, world_stream());
    xfer_plan_destroy(plans[rank]);
    for (int k = FROM; k <= TO; k++)
      sim_guard_drop(t->guards[k]);
  }
}

static void test_chunks_that_stay_on_one_side_are_copied_by_it(void)
{
  world_of(3, COMM_NCCL, (sim_config){.seed = 0}, half_stays);
}

/* What goes wrong between one who offers chunks and one who maps them: calls of the driver, and of
 * the system, which are the program's link's. */
typedef struct trouble {
  const char *call; /* of the driver, which fails; NULL: */
  int nth_socket;   /* of a rank: from it on there is none; 0: */
  bool by_rank;     /* whom the other end is another user's for: a rank, or who serves it */
  const char *says;
} trouble;

static const trouble *_Atomic now; /* of both ranks and of those who serve them */
static _Thread_local bool is_rank;
static _Thread_local int n_sockets;

/* libxfer.so has such calls, too. */
#pragma GCC visibility push(default)
int __real_getsockopt(int file, int level, int name, void *value, socklen_t *n_bytes);
int __wrap_getsockopt(int file, int level, int name, void *value, socklen_t *n_bytes);
int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);

int __wrap_getsockopt(int file, int level, int name, void *value, socklen_t *n_bytes)
{
  const int result = __real_getsockopt(file, level, name, value, n_bytes);
  const trouble *it = now;

  if (it != NULL && it->call == NULL && it->nth_socket == 0 && name == SO_PEERCRED &&
      is_rank == it->by_rank)
    ((struct ucred *)value)->uid++;
  return result;
}

int __wrap_socket(int domain, int type, int protocol)
{
  const trouble *it = now;

  if (it == NULL || it->nth_socket == 0 || ++n_sockets < it->nth_socket)
    return __real_socket(domain, type, protocol);
  errno = EMFILE;
  return -1;
}

/* ---- signals ------------------------------------------------------------------------------ */

enum { CONNECT, SEND, RECV, SENDMSG, RECVMSG };
static _Atomic bool signals_come;
static _Thread_local unsigned met; /* bit: a signal came in this thread's first such call */

static bool is_interrupted(int call)
{
  if (!signals_come || (met >> call & 1) != 0) return false;
  met |= 1U << call;
  errno = EINTR;
  return true;
}

#define INTERRUPTED(type, name, which, parameters, arguments)                                      \
  type __real_##name parameters;                                                                   \
  type __wrap_##name parameters;                                                                   \
  type __wrap_##name parameters                                                                    \
  {                                                                                                \
    return is_interrupted(which) ? -1 : __real_##name arguments;                                   \
  }

INTERRUPTED(int, connect, CONNECT, (int file, const struct sockaddr *to, socklen_t n_bytes),
            (file, to, n_bytes))
INTERRUPTED(ssize_t, send, SEND, (int file, const void *bytes, size_t n_bytes, int flags),
            (file, bytes, n_bytes, flags))
INTERRUPTED(ssize_t, recv, RECV, (int file, void *bytes, size_t n_bytes, int flags),
            (file, bytes, n_bytes, flags))
INTERRUPTED(ssize_t, sendmsg, SENDMSG, (int file, const struct msghdr *message, int flags),
            (file, message, flags))
INTERRUPTED(ssize_t, recvmsg, RECVMSG, (int file, struct msghdr *message, int flags),
            (file, message, flags))
#pragma GCC visibility pop

/* A signal in each call of the socket does no harm. */
static void test_chunks_between_signals(void)
{
  signals_come = true;
  world_of(3, COMM_GATHER, (sim_config){.seed = 0}, chunks_work);
}

/* A commit fails, and says why; the next works. */
static void chunks_fail(int rank)
{
  static const trouble troubles[] = {
      {"cuMemAddressReserve", 0, false, "no addresses for"},
      {"cuMemRetainAllocationHandle", 0, false, "was not made to leave its process"},
      {"cuMemExportToShareableHandle", 0, false, "was not made to leave its process"},
      {"cuMemImportFromShareableHandle", 0, false, "a chunk of a peer's memory: "},
      {"cuMemMap", 0, false, "a chunk of a peer's memory: "},
      {"cuMemSetAccess", 0, false, "cannot reach a peer's memory that is mapped chunk by chunk"},
      {NULL, 1, false, "is not of cudaMalloc"},
      {NULL, 2, false, "the socket of a peer whose memory is to be mapped: Too many open files"},
      {NULL, 0, true, "the process whose memory is to be mapped is another user's"},
      {NULL, 0, false, "cannot map rank"}};

  is_rank = true;
  make_chunked(rank, true, XFER_LANE_DIRECT, TIMEOUT_MS);
  for (size_t i = 0; i < sizeof troubles / sizeof *troubles; i++) {
    const sim_fault fault = {
        .name = troubles[i].call, .rank = SIM_NO_RANK, .percent = 100, .code = 2};

    ranks_barrier();
    now = &troubles[i];
    n_sockets = 0;
    if (rank == 0 && troubles[i].call != NULL) sim_fault_add(&fault);
    ranks_barrier();
    NEED(xfer_plan_commit(plans[rank]) != XFER_OK);
    if (strstr(xfer_last_error(), troubles[i].says) == NULL)
      world_failed(__FILE__, __LINE__, troubles[i].says);
    ranks_barrier();
    now = NULL;
    if (rank == 0) sim_fault_clear();
    ranks_barrier();
    OK(xfer_plan_commit(plans[rank]));
    world_run(plans[rank], &tensors[rank], 1, i + 1, world_stream());
    OK(xfer_plan_release(plans[rank]));
  }
}

static void test_chunks_that_cannot_be_mapped(void)
{
  world_of(2, COMM_GATHER, (sim_config){.seed = 0}, chunks_fail);
}

/* The driver takes longer to give a chunk away than the commit may take. */
static void chunks_come_late(int rank)
{
  make_chunked(rank, true, XFER_LANE_DIRECT, TIMEOUT_MS);
  ranks_set_timeout(plans[rank], (uint64_t)world_time(SHORT_MS / 2));
  NEED(xfer_plan_commit(plans[rank]) != XFER_OK);
  NEED_IN_TIME(strstr(xfer_last_error(), "rank 0, whose memory is to be mapped, did not answer") ||
               strstr(xfer_last_error(), "rank 1, whose memory is to be mapped, did not answer"));
}

static void test_chunks_that_come_too_late(void)
{
  const sim_fault fault = {.name = "cuMemExportToShareableHandle",
                           .rank = SIM_NO_RANK,
                           .percent = 100,
                           .delay_us = 1000 * world_time(SHORT_MS)};

  world_make(2, COMM_GATHER, (sim_config){.seed = 0});
  sim_fault_add(&fault);
  world_go(chunks_come_late);
}

/* Who comes back from a commit lets the driver go on. */
static void stuck_exporter(int rank)
{
  make_chunked(rank, true, XFER_LANE_DIRECT, TIMEOUT_MS);
  ranks_set_timeout(plans[rank], SHORT_MS);
  ranks_barrier();
  NEED(xfer_plan_commit(plans[rank]) != XFER_OK);
  sim_fault_clear();
}

/* E11: mapping by chunks obeys the plan's deadline. One rank's driver is stuck while it gives a
 * chunk away: that rank may be so too, the other one not. */
static void test_e11_mapping_by_chunks_obeys_the_deadline(void)
{
  const sim_fault fault = {
      .name = "cuMemExportToShareableHandle", .rank = SIM_NO_RANK, .nth = 1, .delay_us = -1};

  world_make(2, COMM_NCCL, (sim_config){.seed = 0});
  sim_fault_add(&fault);
  world_go(stuck_exporter);
}

static int ends_after_a_while(void *began_ms)
{
  return world_ms() > *(int64_t *)began_ms + SHORT_MS;
}

/* Both have all the time. */
static void interrupted_at_a_stuck_exporter(int rank)
{
  int64_t began_ms;

  make_chunked(rank, true, XFER_LANE_DIRECT, TIMEOUT_MS);
  ranks_barrier();
  began_ms = world_ms();
  xfer_interrupt_set(ends_after_a_while, &began_ms);
  NEED(xfer_plan_commit(plans[rank]) != XFER_OK);
  sim_fault_clear();
  xfer_interrupt_set(NULL, NULL);
  NEED(world_ms() < began_ms + TIMEOUT_MS / 2);
}

static void test_waits_for_chunks_are_interrupted(void)
{
  const sim_fault fault = {
      .name = "cuMemExportToShareableHandle", .rank = SIM_NO_RANK, .nth = 1, .delay_us = -1};

  world_make(2, COMM_NCCL, (sim_config){.seed = 0});
  sim_fault_add(&fault);
  world_go(interrupted_at_a_stuck_exporter);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"chunks_between_devices", test_chunks_between_devices},
      {"chunks_mapped_anew_are_noticed", test_chunks_mapped_anew_are_noticed},
      {"chunks_that_stay_are_packed", test_chunks_that_stay_are_packed},
      {"chunks_that_stay_on_one_side_are_copied_by_it",
       test_chunks_that_stay_on_one_side_are_copied_by_it},
      {"chunks_between_signals", test_chunks_between_signals},
      {"chunks_that_cannot_be_mapped", test_chunks_that_cannot_be_mapped},
      {"chunks_that_come_too_late", test_chunks_that_come_too_late},
      {"e11_mapping_by_chunks_obeys_the_deadline", test_e11_mapping_by_chunks_obeys_the_deadline},
      {"waits_for_chunks_are_interrupted", test_waits_for_chunks_are_interrupted},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
