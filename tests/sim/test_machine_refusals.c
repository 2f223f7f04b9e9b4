/* What the makers of comms on devices refuse, and memory that a rank cannot use. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "clock.h"
#include "comm.h"
#include "object.h"

#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <nccl.h>
#include <search.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

static int no_gather(void *context, void *all, const void *mine, size_t n_bytes)
{
  (void)context;
  (void)all;
  (void)mine;
  (void)n_bytes;
  return 1;
}

static int n_gathered;

static int gather_alone(void *context, void *all, const void *mine, size_t n_bytes)
{
  (void)context;
  n_gathered++;
  memcpy(all, mine, n_bytes);
  return 0;
}

/* ---- what a driver may lack --------------------------------------------------------------- */

static void commit_without_pages(int rank)
{
  xfer_plan *plan;
  tensor t;

  tensor_make(&t, EACH_EACH, rank, 100);
  plan = world_plan(rank, &t, 1, XFER_LANE_DIRECT, 20000);
  NEED(xfer_plan_commit(plan) == XFER_ERR_UNSUPPORTED);
  NEED(strstr(xfer_last_error(), "another address for registered memory") != NULL);
  xfer_plan_destroy(plan);
}

static void test_a_driver_that_cannot_serve_is_refused(void)
{
  xfer_comm *comm = NULL;

  world_clear(1, (sim_config){.lacks = "cuMemMap"});
  NEED(xfer_comm_create_cuda(&comm, gather_alone, NULL, 0, 1) == XFER_ERR_UNSUPPORTED);
  NEED(strstr(xfer_last_error(), "the CUDA driver has no cuMemMap of CUDA 12.0") != NULL);
  NEED(comm == NULL);
  world_make(2, COMM_GATHER, (sim_config){.maps_elsewhere = true});
  world_go(commit_without_pages);
  world_destroy();
}

/* What newer toolkits know and this driver does not is done without. */
static void test_a_driver_older_than_the_toolkit_serves(void)
{
  xfer_comm *comm = NULL;

  world_clear(1, (sim_config){.driver = 12040});
  OK(xfer_comm_create_cuda(&comm, gather_alone, NULL, 0, 1));
  xfer_comm_destroy(comm);
}

static void test_a_thread_chooses_its_device(void)
{
  int device = -1;

  world_clear(2, (sim_config){.seed = 0});
  OK(xfer_cuda_device_set(1));
  OK(xfer_cuda_device_get(&device));
  NEED(device == 1);
  NEED(xfer_cuda_device_set(2) == XFER_ERR_CUDA);
  NEED(strstr(xfer_last_error(), "cudaSetDevice") != NULL);
  NEED(xfer_cuda_device_get(NULL) == XFER_ERR_ARG);
  OK(xfer_cuda_device_get(&device));
  NEED(device == 1);
  OK(xfer_cuda_device_set(0));
}

/* ---- what the system may refuse ----------------------------------------------------------- */

typedef enum refusal {
  NOTHING,
  FILE_OF_PAGE,
  ROOM,
  ADDRESSES,
  PEERS_FILE,
  SAME_FILE,
  TREE
} refusal;

static _Thread_local refusal refused; /* what this thread's calls for pages of flags meet */

static _Atomic bool has_no_number; /* neither this process nor its host */

/* Libraries have such calls, too. */
#pragma GCC visibility push(default)
int __real_xfi_memory_file(const char *name, size_t n_bytes);
int __wrap_xfi_memory_file(const char *name, size_t n_bytes);
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
void *__real_mmap(void *at, size_t n_bytes, int access, int flags, int file, off_t from);
void *__wrap_mmap(void *at, size_t n_bytes, int access, int flags, int file, off_t from);
void *__real_tsearch(const void *key, void **root, int (*compare)(const void *, const void *));
void *__wrap_tsearch(const void *key, void **root, int (*compare)(const void *, const void *));
ssize_t __real_getrandom(void *bytes, size_t n_bytes, unsigned flags);
ssize_t __wrap_getrandom(void *bytes, size_t n_bytes, unsigned flags);
FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
#pragma GCC visibility pop

static int say(int error)
{
  errno = error;
  return -1;
}

int __wrap_xfi_memory_file(const char *name, size_t n_bytes)
{
  return refused == FILE_OF_PAGE ? say(EMFILE)
         : refused == ROOM       ? say(ENOSPC)
                                 : __real_xfi_memory_file(name, n_bytes);
}

void *__wrap_mmap(void *at, size_t n_bytes, int access, int flags, int file, off_t from)
{
  if (refused != ADDRESSES || flags != MAP_SHARED)
    return __real_mmap(at, n_bytes, access, flags, file, from);
  (void)say(ENOMEM);
  return MAP_FAILED;
}

int __wrap_open(const char *path, int flags, ...)
{
  if (refused == PEERS_FILE) return say(EACCES);
  return __real_open(refused == SAME_FILE ? "/dev/null" : path, flags);
}

void *__wrap_tsearch(const void *key, void **root, int (*compare)(const void *, const void *))
{
  return refused == TREE ? NULL : __real_tsearch(key, root, compare);
}

ssize_t __wrap_getrandom(void *bytes, size_t n_bytes, unsigned flags)
{
  return has_no_number ? say(ENOSYS) : __real_getrandom(bytes, n_bytes, flags);
}

FILE *__wrap_fopen(const char *path, const char *mode)
{
  return has_no_number ? NULL : __real_fopen(path, mode);
}

/* Where files may not be as large as a page, a rank says so, and is not ended by a signal. */
static void no_large_files(int rank, xfer_plan *plan)
{
  struct rlimit before;
  struct rlimit few;

  NEED(getrlimit(RLIMIT_FSIZE, &before) == 0);
  few = (struct rlimit){100, before.rlim_max};
  ranks_barrier();
  NEED(setrlimit(RLIMIT_FSIZE, &few) == 0);
  ranks_barrier();
  NEED(xfer_plan_commit(plan) != XFER_OK);
  NEED(strstr(xfer_last_error(), "of shared memory: File too large") != NULL);
  ranks_barrier();
  NEED(rank != 0 || setrlimit(RLIMIT_FSIZE, &before) == 0);
  ranks_barrier();
  OK(xfer_plan_commit(plan));
}

/* Rank 0 has no page, or cannot reach that of rank 1: all are told why, and the next commit works.
 */
static void commit_without_system(int rank)
{
  static const char *const says[] = {"",
                                     "of shared memory: Too many open files",
                                     "of shared memory: No space left on device",
                                     "of flags: Cannot allocate memory",
                                     "is not a peer's flags any more: Permission denied",
                                     "is not a peer's flags any more: another file",
                                     "no memory for a mapping of "};
  xfer_plan *plan;
  tensor t;

  tensor_make(&t, EACH_EACH, rank, 100);
  plan = world_plan(rank, &t, 1, XFER_LANE_DIRECT, 20000);
  for (refusal what = FILE_OF_PAGE; what <= TREE; what++) {
    refused = rank == 0 ? what : NOTHING;
    NEED(xfer_plan_commit(plan) != XFER_OK);
    refused = NOTHING;
    if (strstr(xfer_last_error(), says[what]) == NULL) world_failed(__FILE__, __LINE__, says[what]);
    OK(xfer_plan_commit(plan));
    world_run(plan, &t, 1, what, NULL);
    OK(xfer_plan_release(plan));
  }
  no_large_files(rank, plan);
  xfer_plan_destroy(plan);
}

static void test_pages_that_the_system_refuses(void)
{
  world_make(2, COMM_GATHER, (sim_config){.seed = 0});
  world_go(commit_without_system);
  world_destroy();
}

/* One tensor, from each rank to each, by one run of a plan in whose commit a call is refused; what
 * goes by which lane. */
static xfer_plan_report_data run_one(int rank, uint32_t lane, refusal what, cudaStream_t stream)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  xfer_plan *plan;
  tensor t;

  tensor_make(&t, EACH_EACH, rank, 100);
  plan = world_plan(rank, &t, 1, lane, 20000);
  refused = what;
  OK(xfer_plan_commit(plan));
  refused = NOTHING;
  world_run(plan, &t, 1, 1, stream);
  OK(xfer_plan_report(plan, &report));
  xfer_plan_destroy(plan);
  return report;
}

/* Rank 0 cannot tell rank 1 anything, which it could tell it: neither copies, and messages go. */
static void run_without_page(int rank)
{
  const refusal what = rank == 0 ? PEERS_FILE : NOTHING;

  NEED(run_one(rank, XFER_LANE_DIRECT, what, world_stream()).direct_bytes == 0);
}

static void test_a_page_that_one_rank_cannot_reach(void)
{
  world_make(2, COMM_NCCL, (sim_config){.seed = 0});
  world_go(run_without_page);
  world_destroy();
}

/* Ranks of one process reach each other's memory, by whatever number they know it. */
static void commit_without_number(int rank)
{
  NEED(run_one(rank, XFER_LANE_AUTO, NOTHING, NULL).direct_bytes > 0);
}

static void test_a_host_without_a_number_is_one(void)
{
  has_no_number = true;
  world_make(2, COMM_NCCL, (sim_config){.seed = 0});
  world_go(commit_without_number);
  world_destroy();
}

/* ---- makers ------------------------------------------------------------------------------- */

static void test_a_gather_serves_to_meet_alone(void)
{
  xfer_comm *comm = NULL;
  char all = 0;

  world_clear(1, (sim_config){.seed = 0});
  n_gathered = 0;
  OK(xfer_comm_create_cuda(&comm, gather_alone, NULL, 0, 1));
  NEED(n_gathered == 3);
  OK(xfer_comm_all_gather(comm, &all, "x", 1));
  NEED(n_gathered == 3 && all == 'x');
  xfer_comm_destroy(comm);
}

/* Whoever listens under a name of another host does not here. */
static int gather_from_afar(void *context, void *all, const void *mine, size_t n_bytes)
{
  enum { NUMBER_AT = sizeof(int32_t), NAME_AT = 4 * sizeof(int32_t), NAME_END = NAME_AT + 32 };
  static const int32_t first = 1;
  char *theirs = all;

  (void)context;
  memcpy(theirs + n_bytes, mine, n_bytes);
  memcpy(theirs, mine, n_bytes);
  for (size_t i = NAME_AT; i < NAME_END; i++)
    theirs[i] ^= 1;
  memcpy(theirs + NUMBER_AT, &first, sizeof first);
  return 0;
}

static void test_ranks_of_two_hosts_are_refused_as_they_meet(void)
{
  xfer_comm *comm = NULL;

  world_clear(1, (sim_config){.seed = 0});
  NEED(xfer_comm_create_cuda(&comm, gather_from_afar, NULL, 1, 2) == XFER_ERR_COMM);
  NEED(strstr(xfer_last_error(), "a socket to rank 0, which must be on this host: ") != NULL);
  NEED(comm == NULL);
}

/* One of three does not come: it is named at the deadline, and the comm is broken for all. */
static void stays_away(int rank)
{
  char all[3];

  OK(xfer_comm_set_timeout(w.comms[rank], 100));
  if (rank == 2) {
    ranks_barrier();
  } else {
    const xfer_status st = xfer_comm_all_gather(w.comms[rank], all, "x", 1);
    NEED(st == XFER_ERR_TIMEOUT || st == XFER_ERR_COMM);
    NEED(strstr(xfer_last_error(), "rank 2 did not come before the deadline of 100 ms") != NULL);
    ranks_barrier();
  }
  NEED(xfer_comm_all_gather(w.comms[rank], all, "x", 1) == XFER_ERR_COMM);
}

static void test_a_rank_that_does_not_come_is_named_at_the_deadline(void)
{
  world_make(3, COMM_GATHER, (sim_config){.seed = 0});
  world_go(stays_away);
  world_destroy();
}

#define REFUSED(words, call)                                                                       \
  do {                                                                                             \
    NEED((call) == XFER_ERR_ARG);                                                                  \
    NEED(strstr(xfer_last_error(), words) != NULL);                                                \
  } while (0)

static void test_makers_refuse_null_and_what_is_not_there(void)
{
  unsigned char id[XFER_NCCL_ID_BYTES] = {0};
  const sim_fault no_id = {
      .name = "ncclGetUniqueId", .rank = SIM_NO_RANK, .nth = 1, .code = 3}; /* internal error */
  xfer_comm *comm = NULL;

  world_clear(2, (sim_config){.seed = 0});
  REFUSED("NULL", xfer_comm_create_cuda(NULL, no_gather, NULL, 0, 1));
  REFUSED("NULL", xfer_comm_create_cuda(&comm, NULL, NULL, 0, 1));
  REFUSED("rank 1 of 1", xfer_comm_create_cuda(&comm, no_gather, NULL, 1, 1));
  REFUSED("rank -1 of 1", xfer_comm_create_cuda(&comm, no_gather, NULL, -1, 1));
  REFUSED("rank 0 of 0", xfer_comm_create_cuda(&comm, no_gather, NULL, 0, 0));
  NEED(xfer_comm_create_cuda(&comm, no_gather, NULL, 0, 2) == XFER_ERR_COMM);
  NEED(strstr(xfer_last_error(), "the caller's all-gather of ") != NULL);
  NEED(strstr(xfer_last_error(), " bytes answered 1") != NULL);
  REFUSED("NULL", xfer_comm_create_nccl_id(NULL, id, 0, 1));
  REFUSED("NULL", xfer_comm_create_nccl_id(&comm, NULL, 0, 1));
  REFUSED("rank 1 of 1", xfer_comm_create_nccl_id(&comm, id, 1, 1));
  REFUSED("rank 0 of 0", xfer_comm_create_nccl_id(&comm, id, 0, 0));
  REFUSED("NULL", xfer_comm_create_nccl(&comm, NULL));
  REFUSED("NULL", xfer_nccl_id(NULL));
  sim_fault_add(&no_id);
  NEED(xfer_nccl_id(id) == XFER_ERR_COMM);
  NEED(strstr(xfer_last_error(), "ncclGetUniqueId") != NULL);
  NEED(comm == NULL);
}

/* CUDA lets eight peers in: a pair that it refuses takes another lane. */
static void commit_without_access(int rank)
{
  const xfer_plan_report_data report = run_one(rank, XFER_LANE_AUTO, NOTHING, world_stream());

  NEED(report.direct_bytes == 0 && report.packed_bytes > 0);
}

static void test_a_pair_that_is_refused_access_takes_another_lane(void)
{
  const sim_fault full = {.name = "cudaDeviceEnablePeerAccess",
                          .rank = SIM_NO_RANK,
                          .percent = 100,
                          .code = cudaErrorTooManyPeers};

  world_make(2, COMM_NCCL, (sim_config){.seed = 0});
  sim_fault_add(&full);
  world_go(commit_without_access);
  sim_fault_clear();
  world_destroy();
}

/* An error that the caller's own call left is the caller's to find, where ours succeed. */
static void keep_error(int rank)
{
  xfer_plan *plan;
  tensor t;
  void *memory = NULL;
  const cudaStream_t stream = world_stream();

  tensor_make(&t, EACH_EACH, rank, 100);
  plan = world_plan(rank, &t, 1, XFER_LANE_AUTO, 20000);
  OK(xfer_plan_commit(plan));
  OK(xfer_plan_run(plan, 1, stream));
  ranks_barrier();
  NEED(sim_settle(10000));
  NEED(cudaMalloc(&memory, SIZE_MAX / 2) != cudaSuccess);
  OK(xfer_plan_wait(plan, 0));
  NEED(cudaGetLastError() == cudaErrorMemoryAllocation);
  xfer_plan_destroy(plan);
}

static void test_an_error_of_the_callers_stays(void)
{
  world_make(2, COMM_GATHER, (sim_config){.eager = true});
  world_go(keep_error);
  world_destroy();
}

static void bind_foreign(int rank)
{
  const int other = (rank + 1) % w.n;
  xfer_plan *plan;
  tensor t;

  NEED(cudaSetDevice(other) == cudaSuccess);
  tensor_make(&t, EACH_EACH, rank, 100);
  NEED(cudaSetDevice(rank) == cudaSuccess);
  plan = world_plan(rank, &t, 1, XFER_LANE_AUTO, 20000);
  NEED(xfer_plan_commit(plan) == XFER_ERR_ARG);
  NEED(strstr(xfer_last_error(), "is memory of CUDA device") != NULL);
  xfer_plan_destroy(plan);
}

static void test_memory_of_another_device_is_refused(void)
{
  world_make(2, COMM_NCCL, (sim_config){.seed = 0});
  world_go(bind_foreign);
}

static xfer_status borrow(ncclComm_t nccl, int device, const sim_fault *fault)
{
  xfer_comm *comm = NULL;
  xfer_status st;

  NEED(cudaSetDevice(device) == cudaSuccess);
  if (fault != NULL) sim_fault_add(fault);
  st = xfer_comm_create_nccl(&comm, nccl);
  sim_fault_clear();
  xfer_comm_destroy(comm);
  return st;
}

static void test_a_borrowed_communicator_is_asked_who_it_is(void)
{
  static const char *const questions[] = {"ncclCommUserRank", "ncclCommCount", "ncclCommCuDevice",
                                          "ncclBroadcast"};
  static const char *const makers[] = {"ncclGetUniqueId", "ncclCommInitRankConfig"};
  ncclUniqueId id;
  ncclComm_t nccl = NULL;

  world_clear(2, (sim_config){.seed = 0});
  NEED(ncclGetUniqueId(&id) == ncclSuccess);
  NEED(ncclCommInitRank(&nccl, 1, id, 0) == ncclSuccess);
  NEED(borrow(nccl, 0, NULL) == XFER_OK);
  NEED(borrow(nccl, 1, NULL) == XFER_ERR_ARG);
  NEED(strstr(xfer_last_error(), "is on CUDA device 0; the current device is 1") != NULL);
  for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
    const sim_fault fault = {.name = questions[i], .rank = SIM_NO_RANK, .nth = 1, .code = 3};

    NEED(borrow(nccl, 0, &fault) == XFER_ERR_COMM);
    NEED(strstr(xfer_last_error(), "the borrowed communicator") != NULL);
  }
  for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
    const sim_fault fault = {.name = makers[i], .rank = SIM_NO_RANK, .nth = 1, .code = 3};

    NEED(borrow(nccl, 0, &fault) == XFER_ERR_COMM);
    NEED(strstr(xfer_last_error(), makers[i]) != NULL);
  }
  NEED(ncclCommDestroy(nccl) == ncclSuccess);
}

/* Rank 0 has no id for the communicator of a plan's messages. */
static void commit_without_id(int rank)
{
  const sim_fault no_id = {.name = "ncclGetUniqueId", .rank = 0, .nth = 1, .code = 3};
  xfer_plan *plan;
  tensor t;

  tensor_make(&t, EACH_EACH, rank, 100);
  plan = world_plan(rank, &t, 1, XFER_LANE_PACKED, 20000);
  ranks_barrier();
  if (rank == 0) sim_fault_add(&no_id);
  ranks_barrier();
  NEED(xfer_plan_commit(plan) != XFER_OK);
  NEED(strstr(xfer_last_error(), "rank 0: ncclGetUniqueId failed") != NULL);
  OK(xfer_plan_commit(plan));
  world_run(plan, &t, 1, 1, NULL);
  xfer_plan_destroy(plan);
}

static void test_a_commit_without_an_id_fails_on_all(void)
{
  world_make(2, COMM_NCCL, (sim_config){.seed = 0});
  world_go(commit_without_id);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"a_host_without_a_number_is_one", test_a_host_without_a_number_is_one},
      {"pages_that_the_system_refuses", test_pages_that_the_system_refuses},
      {"a_page_that_one_rank_cannot_reach", test_a_page_that_one_rank_cannot_reach},
      {"a_driver_that_cannot_serve_is_refused", test_a_driver_that_cannot_serve_is_refused},
      {"a_driver_older_than_the_toolkit_serves", test_a_driver_older_than_the_toolkit_serves},
      {"a_pair_that_is_refused_access_takes_another_lane",
       test_a_pair_that_is_refused_access_takes_another_lane},
      {"an_error_of_the_callers_stays", test_an_error_of_the_callers_stays},
      {"a_thread_chooses_its_device", test_a_thread_chooses_its_device},
      {"makers_refuse_null_and_what_is_not_there", test_makers_refuse_null_and_what_is_not_there},
      {"a_gather_serves_to_meet_alone", test_a_gather_serves_to_meet_alone},
      {"ranks_of_two_hosts_are_refused_as_they_meet",
       test_ranks_of_two_hosts_are_refused_as_they_meet},
      {"a_rank_that_does_not_come_is_named_at_the_deadline",
       test_a_rank_that_does_not_come_is_named_at_the_deadline},
      {"memory_of_another_device_is_refused", test_memory_of_another_device_is_refused},
      {"a_commit_without_an_id_fails_on_all", test_a_commit_without_an_id_fails_on_all},
      {"a_borrowed_communicator_is_asked_who_it_is",
       test_a_borrowed_communicator_is_asked_who_it_is}};

  return world_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
