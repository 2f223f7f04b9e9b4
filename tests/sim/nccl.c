/* Communicators of NCCL: see nccl_machine.h. */
#include "nccl_machine.h"

#include "nccl_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 200 };

static job *jobs;
static uint64_t last_job;
static _Thread_local char last_text[TEXT_BYTES];

ncclResult_t sim_nccl_fail(ncclResult_t result, const char *text)
{
  (void)snprintf(last_text, sizeof last_text, "%s", text);
  return result;
}

void sim_nccl_release(struct ncclComm *comm)
{
  job *j = comm->job;
  job **at = &jobs;

  if (--comm->refs > 0) return;
  if (comm->of != NULL) {
    sim_nccl_release(comm->of);
    free(comm);
    return;
  }
  j->comms[comm->rank] = NULL;
  sim.used[comm->device] -= comm->link_bytes;
  free(comm->sent);
  free(comm->received);
  free(comm);
  if (--j->refs > 0) return;
  while (*at != j)
    at = &(*at)->next;
  *at = j->next;
  while (j->meetings != NULL)
    sim_nccl_meeting_free(j, j->meetings);
  free(j->comms);
  free(j->wants);
  free(j->linked);
  free(j->in_ring);
  free(j);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
  NCCL_ENTER();
  memset(id, 0, sizeof *id);
  (void)snprintf(id->internal, sizeof id->internal, "sim %llu", (unsigned long long)++last_job);
  return leave(ncclSuccess);
}

static job *job_of(const ncclUniqueId *id, int size)
{
  job *j = jobs;

  while (j != NULL && memcmp(&j->id, id, sizeof *id) != 0)
    j = j->next;
  if (j != NULL) return j;
  j = calloc(1, sizeof *j);
  if (j == NULL) abort();
  const size_t n = (size_t)size;
  *j = (job){.next = jobs, .id = *id, .size = size};
  j->comms = calloc(n, sizeof(struct ncclComm *));
  j->wants = calloc(n, n);
  j->linked = calloc(n, n);
  j->in_ring = calloc(n, 1);
  if (j->comms == NULL || j->wants == NULL || j->linked == NULL || j->in_ring == NULL) abort();
  jobs = j;
  return j;
}

static ncclResult_t init(ncclComm_t *out, int size, const ncclUniqueId *id, int rank,
                         const ncclConfig_t *config)
{
  const bool blocking = config == NULL || config->blocking != 0;

  *out = NULL;
  if (size < 1 || rank < 0 || rank >= size)
    return sim_nccl_fail(ncclInvalidArgument, "rank or size");
  job *j = job_of(id, size);
  if (j->size != size || j->comms[rank] != NULL)
    return sim_nccl_fail(ncclInvalidUsage, "a rank twice");
  struct ncclComm *comm = calloc(1, sizeof *comm);
  if (comm == NULL) abort();
  *comm = (struct ncclComm){.job = j,
                            .rank = rank,
                            .device = sim_self()->device,
                            .blocking = blocking,
                            .shares = config != NULL && config->splitShare == 1,
                            .refs = 1,
                            .sent = calloc((size_t)size, sizeof(uint64_t)),
                            .received = calloc((size_t)size, sizeof(uint64_t))};
  if (comm->sent == NULL || comm->received == NULL) abort();
  for (int r = 0; r < size; r++)
    if (j->comms[r] != NULL && j->comms[r]->device == comm->device) j->bad = true;
  j->comms[rank] = comm;
  j->n_joined++;
  j->refs++;
  *out = comm;
  if (blocking) sim_wait_until(sim_nccl_is_settled, comm, "NCCL to start");
  return sim_nccl_state(comm);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank)
{
  NCCL_ENTER();
  return leave(init(comm, size, &id, rank, NULL));
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
  NCCL_ENTER();
  return leave(init(comm, size, &id, rank, config));
}

/* What the environment says, and else the configuration. */
static bool asked(const char *name, bool otherwise)
{
  const char *value = getenv(name);

  return value == NULL ? otherwise : strcmp(value, "0") != 0;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config)
{
  NCCL_ENTER();
  *out = NULL;
  if (color != 0 || key != comm->rank || comm->of != NULL)
    return leave(sim_nccl_fail(ncclInvalidArgument, "only the same ranks again are simulated"));
  struct ncclComm *made = calloc(1, sizeof *made);
  if (made == NULL) abort();
  const bool blocks = config == NULL || config->blocking != 0;
  *made = (struct ncclComm){.job = comm->job,
                            .rank = comm->rank,
                            .device = comm->device,
                            .blocking = asked("NCCL_COMM_BLOCKING", blocks),
                            .shares = asked("NCCL_COMM_SPLIT_SHARE_RESOURCES", comm->shares),
                            .refs = 1,
                            .of = comm};
  comm->refs++;
  comm->n_splits++;
  comm->split = made;
  comm->split_at = out;
  return leave(sim_nccl_state(comm));
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
  NCCL_ENTER();
  *state = sim_nccl_state(comm);
  return leave(ncclSuccess);
}

/* Local: own kernels end, those of others do not. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
  NCCL_ENTER();
  struct ncclComm *whole = comm->of != NULL ? comm->of : comm;
  whole->aborted = true;
  if (comm->split_at != NULL) *comm->split_at = comm->split; /* the caller's to abort */
  while (whole->pending != NULL) {
    launch *l = whole->pending;
    whole->pending = l->next;
    sim_op_drop(&l->kernel->op);
    free(l);
  }
  sim_nccl_release(comm);
  return leave(ncclSuccess);
}

static bool has_ended(void *context)
{
  const struct ncclComm *comm = context;

  return comm->ended == comm->launched;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
  NCCL_ENTER();
  return leave(comm->blocking || has_ended(comm) ? ncclSuccess : ncclInProgress);
}

static bool all_leave(void *context)
{
  const struct ncclComm *comm = context;

  for (int r = 0; r < comm->job->size; r++)
    if (comm->job->comms[r] != NULL && !comm->job->comms[r]->leaves) return false;
  return true;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
  NCCL_ENTER();
  sim_wait_until(has_ended, comm->of != NULL ? comm->of : comm, "an NCCL communicator to end");
  comm->leaves = true;
  if (comm->of == NULL && sim.config.nccl_ends_together)
    sim_wait_until(all_leave, comm, "all ranks to destroy theirs");
  sim_nccl_release(comm);
  return leave(ncclSuccess);
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *size)
{
  NCCL_ENTER();
  *size = comm->job->size;
  return leave(ncclSuccess);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
  NCCL_ENTER();
  *rank = comm->rank;
  return leave(ncclSuccess);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
  NCCL_ENTER();
  *device = comm->device;
  return leave(ncclSuccess);
}

const char *xfi_nccl_load(void)
{
  return NULL;
}

ncclResult_t ncclGetVersion(int *version)
{
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};

  return (size_t)result < sizeof texts / sizeof texts[0] ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
  (void)comm;
  return last_text;
}
