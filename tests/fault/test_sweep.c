/*
 * Each call of the transport and of the device fails in turn, on one rank, in each call of a plan's
 * life. All ranks must end with an error or all with success, none by its deadline; what was said
 * to be there is there, and what failed before a run has written nothing. The number of points is
 * printed: docs/reliability.md has it. (Allocations are swept in test_allocations.c, CUDA and NCCL
 * on the simulated machine in tests/sim.)
 */
#include "fault/fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "error.h"
#include "object.h"

/* ---- calls that fail ---------------------------------------------------------------------- */

static const xfi_comm_ops *comm_ops;
static const xfi_device_ops *device_ops;
static _Thread_local long until_failure = -1; /* calls of this rank; < 0: none fails */
static _Thread_local const char *failed_call;

static bool fails_now(const char *call)
{
  if (until_failure < 0 || until_failure-- > 0) return false;
  failed_call = call;
  xfi_set_error("%s fails for the test", call);
  return true;
}

/* A transport that fails is of no more use, and tells the others. */
#define COMM_CALL(name, parameters, arguments)                                                     \
  static xfer_status comm_##name parameters                                                        \
  {                                                                                                \
    if (!fails_now("comm " #name)) return comm_ops->name arguments;                                \
    comm_ops->abort(comm, xfi_last_error());                                                       \
    return XFER_ERR_COMM;                                                                          \
  }
#define DEVICE_CALL(name, parameters, arguments)                                                   \
  static xfer_status device_##name parameters                                                      \
  {                                                                                                \
    return fails_now("device " #name) ? XFER_ERR_CUDA : device_ops->name arguments;                \
  }

COMM_CALL(all_gather,
          (xfi_comm * comm, void *all, const void *mine, size_t n_bytes, xfi_deadline deadline),
          (comm, all, mine, n_bytes, deadline))
COMM_CALL(exchange,
          (xfi_comm * comm, const xfi_message *sends, int n_sends, const xfi_message *recvs,
           int n_recvs, xfi_deadline deadline),
          (comm, sends, n_sends, recvs, n_recvs, deadline))
COMM_CALL(round,
          (xfi_comm * comm, const xfi_message *sends, int n_sends, const xfi_message *recvs,
           int n_recvs, xfer_stream stream, xfi_deadline deadline),
          (comm, sends, n_sends, recvs, n_recvs, stream, deadline))
COMM_CALL(broadcast,
          (xfi_comm * comm, const xfi_message *messages, int n, int root, xfer_stream stream,
           xfi_deadline deadline),
          (comm, messages, n, root, stream, deadline))
DEVICE_CALL(alloc, (xfi_device * device, void **memory, size_t n_bytes), (device, memory, n_bytes))
DEVICE_CALL(find_allocation,
            (xfi_device * device, const void *pointer, size_t n_bytes, xfi_allocation *found),
            (device, pointer, n_bytes, found))
DEVICE_CALL(stream_create, (xfi_device * device, xfer_stream *stream), (device, stream))
DEVICE_CALL(stream_check, (xfi_device * device, xfer_stream stream), (device, stream))
DEVICE_CALL(event_create, (xfi_device * device, xfi_event **event), (device, event))
DEVICE_CALL(stream_wait, (xfi_device * device, xfer_stream stream, xfi_event *event),
            (device, stream, event))
DEVICE_CALL(batch_launch, (xfi_device * device, xfi_batch *batch, xfer_stream stream),
            (device, batch, stream))
DEVICE_CALL(digest_create,
            (xfi_device * device, xfi_digest **digest, const xfi_digest_box *boxes, size_t n_boxes,
             size_t n_slots),
            (device, digest, boxes, n_boxes, n_slots))
DEVICE_CALL(digest_launch, (xfi_device * device, xfi_digest *digest, xfer_stream stream),
            (device, digest, stream))
DEVICE_CALL(mem_export, (xfi_device * device, xfi_allocation allocation, xfi_mem_handle *handle),
            (device, allocation, handle))
DEVICE_CALL(mem_import,
            (xfi_device * device, const xfi_mem_handle *handle, void **base, xfi_deadline deadline),
            (device, handle, base, deadline))
DEVICE_CALL(flags_alloc, (xfi_device * device, uint64_t **flags, size_t n_flags, bool by_streams),
            (device, flags, n_flags, by_streams))
DEVICE_CALL(flags_sync,
            (xfi_device * device, const xfi_flags *set, const xfi_flags *wait, uint64_t value,
             xfer_stream stream, xfi_deadline deadline, int *late),
            (device, set, wait, value, stream, deadline, late))

static xfi_comm_ops failing_comm;
static xfi_device_ops failing_device;

static void replace_calls(xfer_comm **comms)
{
  if (comm_ops == NULL) {
    comm_ops = comms[0]->transport->ops;
    device_ops = comms[0]->device->ops;
    failing_comm = *comm_ops;
    failing_comm.all_gather = comm_all_gather;
    failing_comm.exchange = comm_exchange;
    failing_comm.round = comm_round;
    failing_comm.broadcast = comm_broadcast;
    failing_device = *device_ops;
    failing_device.alloc = device_alloc;
    failing_device.find_allocation = device_find_allocation;
    failing_device.stream_create = device_stream_create;
    failing_device.stream_check = device_stream_check;
    failing_device.event_create = device_event_create;
    failing_device.stream_wait = device_stream_wait;
    failing_device.batch_launch = device_batch_launch;
    failing_device.digest_create = device_digest_create;
    failing_device.digest_launch = device_digest_launch;
    failing_device.mem_export = device_mem_export;
    failing_device.mem_import = device_mem_import;
    failing_device.flags_alloc = device_flags_alloc;
    failing_device.flags_sync = device_flags_sync;
  }
  for (int r = 0; r < N_RANKS; r++) {
    comms[r]->transport->ops = &failing_comm;
    comms[r]->device->ops = &failing_device;
  }
}

/* ---- one point ---------------------------------------------------------------------------- */

typedef enum step { CREATE, COMMIT, RUN_AND_WAIT, DIGEST, REPLICAS, RELEASE, N_STEPS } step;

static const char *const step_names[N_STEPS] = {"create", "commit",   "run and wait",
                                                "digest", "replicas", "release"};

typedef struct point {
  step at;
  uint32_t lane;
  int victim;
  long n; /* the call that fails */
  xfer_comm *comms[N_RANKS];
  outcome outcomes[N_RANKS];
  bool untouched[N_RANKS];
  bool delivered[N_RANKS];
  const char *call; /* that failed; NULL: there were fewer */
} point;

static xfer_status take(step at, xfer_plan **plan, input *in, xfer_comm *comm)
{
  xfer_digest digests[N_TENSORS];
  xfer_status st;

  switch (at) {
  case CREATE:
    return xfer_plan_create(plan, comm, in->tensors, in->n_tensors, &in->options);
  case COMMIT:
    return xfer_plan_commit(*plan);
  case RUN_AND_WAIT:
    st = xfer_plan_run(*plan, 1, NULL);
    if (xfer_plan_wait(*plan, 0) == XFER_OK) return st;
    return st == XFER_OK ? XFER_ERR_PEER : st;
  case DIGEST:
    return xfer_plan_digest(*plan, digests, N_TENSORS, XFER_PLAN_DST, NULL);
  case REPLICAS:
    return xfer_plan_check_replicas(*plan, NULL);
  case RELEASE:
    return xfer_plan_release(*plan);
  default:
    return XFER_ERR_INTERNAL;
  }
}

static void play(int rank, void *context)
{
  point *p = context;
  input in;
  xfer_plan *plan = NULL;
  xfer_status st;

  input_create(&in, rank);
  in.options.lane = p->lane;
  in.options.window_bytes = 32;
  in.options.flags = XFER_PLAN_VERIFY;
  for (step s = CREATE; s < p->at; s++) {
    expect(take(s, &plan, &in, p->comms[rank]) == XFER_OK);
    if (s == CREATE) expect(input_bind(&in, plan) == XFER_OK);
  }
  until_failure = rank == p->victim ? p->n : -1;
  failed_call = NULL;
  st = take(p->at, &plan, &in, p->comms[rank]);
  until_failure = -1;
  p->outcomes[rank] = outcome_of(st);
  p->untouched[rank] = is_untouched(&in);
  p->delivered[rank] = is_delivered(&in);
  if (rank == p->victim) p->call = failed_call;
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static bool is_right(const point *p)
{
  int n_failed = 0;
  bool good = true;

  for (int r = 0; r < N_RANKS; r++) {
    const outcome *o = &p->outcomes[r];

    n_failed += o->st != XFER_OK;
    if (o->st != XFER_OK)
      good = good && o->st != XFER_ERR_TIMEOUT && o->st != XFER_ERR_INTERNAL && o->text[0] != '\0';
    good = good && (p->at > COMMIT || p->untouched[r]);
    good = good && (p->at < RUN_AND_WAIT || o->st != XFER_OK || p->delivered[r]);
  }
  return good && (n_failed == 0 || n_failed == N_RANKS);
}

/* The n-th call of `victim` fails, until it makes no more; returns how many there were. */
static long sweep(step at, uint32_t lane, int victim, long *n_wrong)
{
  point p = {.at = at, .lane = lane, .victim = victim};

  for (p.n = 0; p.n < 1000; p.n++) {
    make_comms(p.comms);
    replace_calls(p.comms);
    run_ranks(N_RANKS, play, &p);
    destroy_comms(p.comms);
    assert_all_as_expected();
    if (!is_right(&p)) {
      print_message("%s, lane %u: call %ld of rank %d, %s\n", step_names[at], lane, p.n, victim,
                    p.call == NULL ? "none" : p.call);
      for (int r = 0; r < N_RANKS; r++)
        print_message("  rank %d: %s %s\n", r, xfer_status_name(p.outcomes[r].st),
                      p.outcomes[r].text);
      ++*n_wrong;
    }
    if (p.call == NULL) break;
  }
  return p.n;
}

static void test_e5_each_failed_call_ends_all_ranks_alike(void **state)
{
  long n_points = 0;
  long n_wrong = 0;

  (void)state;
  for (step at = CREATE; at < N_STEPS; at++)
    for (uint32_t lane = XFER_LANE_DIRECT; lane <= XFER_LANE_BROADCAST; lane++)
      for (int victim = 0; victim < N_RANKS; victim++)
        n_points += sweep(at, lane, victim, &n_wrong);
  print_message("calls of transport and device that failed: %ld, wrong: %ld\n", n_points, n_wrong);
  assert_true(n_points > 300);
  assert_int_equal(n_wrong, 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_e5_each_failed_call_ends_all_ranks_alike),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
