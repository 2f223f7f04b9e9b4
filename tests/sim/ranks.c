#include "ranks.h"

#include "crew.h"
#include "cuda_device.h"
#include "object.h"
#include "run.h"
#include "sim.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xfer/nccl.h>

enum { RANKS_MAX = 64, START_SECONDS = 60 };
enum { ROOM = 512 << 20 }; /* for snapshots */

void ranks_set_timeout(xfer_plan *plan, uint64_t timeout_ms)
{
  plan->options.timeout_ms = timeout_ms;
}

/* ---- threads ------------------------------------------------------------------------------ */

typedef struct company {
  void (*work)(void *context, int rank);
  void *context;
  int n_devices;
  pthread_barrier_t barrier;
} company;

static _Thread_local company *own_company;

static void join_in(void *context, int rank)
{
  company *c = context;

  own_company = c;
  sim_rank(rank);
  if (cudaSetDevice(rank % c->n_devices) != cudaSuccess) abort();
  c->work(c->context, rank);
}

bool ranks_run(int n_ranks, int n_devices, void (*work)(void *context, int rank), void *context,
               int seconds)
{
  crew *threads = crew_create(n_ranks);
  company *c = calloc(1, sizeof *c);

  if (threads == NULL || c == NULL) abort();
  *c = (company){.work = work, .context = context, .n_devices = n_devices};
  (void)pthread_barrier_init(&c->barrier, NULL, (unsigned)n_ranks);
  if (!crew_run(threads, n_ranks, join_in, c, seconds)) return false; /* both are used still */
  crew_destroy(threads);
  (void)pthread_barrier_destroy(&c->barrier);
  free(c);
  return true;
}

void ranks_barrier(void)
{
  (void)pthread_barrier_wait(&own_company->barrier);
}

/* ---- an all-gather of threads ------------------------------------------------------------- */

typedef struct gathering {
  pthread_mutex_t lock;
  pthread_cond_t all;
  int size;
  int refs;
  int n_come;
  uint64_t round;
  size_t n_bytes;
  char *bytes[2]; /* of even rounds and odd ones: some may not have taken the last one's */
  bool broken;
} gathering;

typedef struct seat {
  gathering *g;
  int rank;
} seat;

enum { GATHER_SECONDS = 100 };

/* 1: the sizes differ, or somebody did not come. */
static int all_gather(void *context, void *all, const void *mine, size_t n_bytes)
{
  const seat *s = context;
  gathering *g = s->g;
  struct timespec until;

  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += GATHER_SECONDS;
  (void)pthread_mutex_lock(&g->lock);
  char **bytes = &g->bytes[g->round % 2];
  if (g->n_come == 0) {
    free(*bytes);
    *bytes = calloc((size_t)g->size, n_bytes);
    g->n_bytes = n_bytes;
  }
  if (g->n_bytes != n_bytes || *bytes == NULL) g->broken = true;
  if (!g->broken) memcpy(*bytes + (size_t)s->rank * n_bytes, mine, n_bytes);
  const uint64_t round = g->round;
  if (++g->n_come == g->size) {
    g->n_come = 0;
    g->round++;
    (void)pthread_cond_broadcast(&g->all);
  }
  while (g->round == round && !g->broken)
    if (pthread_cond_timedwait(&g->all, &g->lock, &until) != 0) g->broken = true;
  if (g->broken) (void)pthread_cond_broadcast(&g->all);
  if (!g->broken) memcpy(all, *bytes, (size_t)g->size * n_bytes);
  const int result = g->broken ? 1 : 0;
  (void)pthread_mutex_unlock(&g->lock);
  return result;
}

/* ---- comms -------------------------------------------------------------------------------- */

struct ranks_meeting {
  comm_kind kind;
  int n_ranks;
  unsigned char id[XFER_NCCL_ID_BYTES];
  ncclUniqueId borrowed;
  ncclComm_t own[RANKS_MAX]; /* each rank's of it */
  seat *seats;
};

static bool borrows(const ranks_meeting *meeting)
{
  return meeting->kind == COMM_BORROWED || meeting->kind == COMM_UNBLOCKED;
}

bool ranks_come(ranks_meeting *meeting, int rank)
{
  ncclComm_t *own = &meeting->own[rank];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclResult_t result = ncclSuccess;
  const struct timespec pause = {.tv_nsec = 100 * 1000};

  if (!borrows(meeting)) return true;
  config.blocking = meeting->kind == COMM_BORROWED;
  result = ncclCommInitRankConfig(own, meeting->n_ranks, meeting->borrowed, rank, &config);
  while (result == ncclInProgress) {
    (void)nanosleep(&pause, NULL);
    if (ncclCommGetAsyncError(*own, &result) != ncclSuccess) return false;
  }
  return result == ncclSuccess;
}

void ranks_go(ranks_meeting *meeting, int rank)
{
  /* A rank that was late may have left work on it that waits for one that gave up. */
  if (borrows(meeting)) (void)ncclCommAbort(meeting->own[rank]);
}

static xfer_status make_comm(xfer_comm **comm, const ranks_meeting *meeting, int rank)
{
  const int n = meeting->n_ranks;

  *comm = NULL;
  switch (meeting->kind) {
  case COMM_NCCL:
    return xfer_comm_create_nccl_id(comm, meeting->id, rank, n);
  case COMM_BORROWED:
  case COMM_UNBLOCKED:
    return xfer_comm_create_nccl(comm, meeting->own[rank]);
  case COMM_GATHER:
    return xfer_comm_create_cuda(comm, all_gather, &meeting->seats[rank], rank, n);
  }
  return XFER_ERR_INTERNAL;
}

static xfer_status never(xfi_device *device, const xfi_batch *batch, const xfi_flags *set,
                         uint64_t value, xfer_stream stream, bool *launched)
{
  (void)device, (void)batch, (void)set, (void)value, (void)stream;
  *launched = false;
  return XFER_OK;
}

/* The device's operations but for guarded_launch(), which batches of several launches refuse. */
static const xfi_device_ops *ops_of_many_launches(const xfi_device_ops *all)
{
  static xfi_device_ops but_one;
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

  (void)pthread_mutex_lock(&lock);
  if (but_one.guarded_launch == NULL) {
    but_one = *all;
    but_one.guarded_launch = never;
  }
  (void)pthread_mutex_unlock(&lock);
  return &but_one;
}

xfer_status ranks_make_comm(xfer_comm **comm, const ranks_meeting *meeting, int rank)
{
  const xfer_status st = make_comm(comm, meeting, rank);

  if (st == XFER_OK && sim_config_now().small_engine) {
    xfi_cuda_device *device = xfi_cuda((*comm)->device);

    device->engine_run_bytes = device->engine_all_bytes = 1;
    device->engine_row_bytes = 16;
    device->engine_call_bytes = 64;
    device->base.one_batch_bytes = 0;
  }
  if (st == XFER_OK && sim_config_now().many_launches)
    (*comm)->device->ops = ops_of_many_launches((*comm)->device->ops);
  if (st == XFER_OK && sim_config_now().without_room == rank + 1)
    (*comm)->plans.snapshot_bytes = UINT64_MAX / 2;
  else if (st == XFER_OK && sim_config_now().room > 0)
    (*comm)->plans.snapshot_bytes = ROOM - sim_config_now().room;
  return st;
}

static seat *seats_make(int n_ranks)
{
  gathering *g = calloc(1, sizeof *g);
  seat *seats = calloc((size_t)n_ranks, sizeof *seats);

  if (g == NULL || seats == NULL) abort();
  (void)pthread_mutex_init(&g->lock, NULL);
  (void)pthread_cond_init(&g->all, NULL);
  g->size = n_ranks;
  for (int r = 0; r < n_ranks; r++)
    seats[r] = (seat){g, r};
  return seats;
}

static void seats_free(seat *seats)
{
  gathering *g = seats->g;

  (void)pthread_cond_destroy(&g->all);
  (void)pthread_mutex_destroy(&g->lock);
  free(g->bytes[0]);
  free(g->bytes[1]);
  free(g);
  free(seats);
}

ranks_meeting *ranks_meet(int n_ranks, comm_kind kind)
{
  ranks_meeting *m = calloc(1, sizeof *m);
  bool met = true;

  if (m == NULL) abort();
  *m = (ranks_meeting){.kind = kind, .n_ranks = n_ranks};
  if (kind == COMM_NCCL) met = xfer_nccl_id(m->id) == XFER_OK;
  if (borrows(m)) met = ncclGetUniqueId(&m->borrowed) == ncclSuccess;
  if (kind == COMM_GATHER) m->seats = seats_make(n_ranks);
  if (met) return m;
  free(m);
  return NULL;
}

void ranks_meeting_free(ranks_meeting *meeting)
{
  if (meeting->seats != NULL) seats_free(meeting->seats);
  free(meeting);
}

typedef struct making {
  ranks_meeting *meeting;
  xfer_comm **comms;
  xfer_status status[RANKS_MAX];
} making;

static void make_one(void *context, int rank)
{
  making *m = context;

  if (!ranks_come(m->meeting, rank)) abort();
  m->status[rank] = ranks_make_comm(&m->comms[rank], m->meeting, rank);
  ranks_go(m->meeting, rank);
}

xfer_status ranks_make_comms(xfer_comm **comms, int n_ranks, comm_kind kind, int n_devices)
{
  making m = {.meeting = ranks_meet(n_ranks, kind), .comms = comms};

  if (m.meeting == NULL) return XFER_ERR_COMM;
  if (!ranks_run(n_ranks, n_devices, make_one, &m, START_SECONDS)) {
    sim_dump(); /* the threads that are left have `m`, so nothing can go on */
    abort();
  }
  ranks_meeting_free(m.meeting);
  for (int r = 0; r < n_ranks; r++)
    if (m.status[r] != XFER_OK) return m.status[r];
  return XFER_OK;
}
