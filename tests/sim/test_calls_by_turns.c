/* xfer_redistribute() call after call where peers read copies of the sources: two plans take turns,
 * and who sends alone does not wait for its readers. */
#include "world.h"

#include <pthread.h>
#include <string.h>

enum { WIDTH = 3000, TIMEOUT_MS = 20000, CALLS = 7, A_WHILE_MS = 20, KEPT = 64 };
#define SHORT_MS world_time(1000)

static tensor tensors[WORLD_RANKS][CALLS];

/* From here on rank 1 is held up, and no call before this is under way. */
static void hold_up(int rank, cudaStream_t stream)
{
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  NEED(sim_settle(TIMEOUT_MS));
  ranks_barrier();
  if (rank == 1) world_hold_up(stream, w.n);
  ranks_barrier();
}

/* The tensors, of which the first has been moved; rank 1 is held up from here on. */
static void begin(int rank, cudaStream_t stream)
{
  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
  for (int i = 0; i < CALLS; i++) {
    tensor_make(&tensors[rank][i], FROM_FIRST, rank, WIDTH);
    tensor_fill(&tensors[rank][i], (uint64_t)i + 1, 0x5a);
    tensor_open(&tensors[rank][i], (uint64_t)i + 1);
  }
  OK(tensor_redistribute(&tensors[rank][0], stream));
  hold_up(rank, stream);
}

/* Rank 0's stream comes to the end of call i without rank 1, and its source may be written. */
static void moves_without_reader(int rank, int i, cudaStream_t stream)
{
  OK_IN_TIME(tensor_redistribute(&tensors[rank][i], stream));
  if (rank == 0) {
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    memset(tensors[0][i].bytes[FROM], 0xee, WIDTH);
  }
  ranks_barrier();
  NEED(rank == 0 || tensor_is_all(&tensors[rank][i], 0x5a));
}

/* It does not, since nothing is free to be written. */
static void waits_for_reader(int rank, int i, cudaStream_t stream)
{
  OK(tensor_redistribute(&tensors[rank][i], stream));
  world_sleep_ms(A_WHILE_MS);
  NEED(cudaStreamQuery(stream) == cudaErrorNotReady);
  ranks_barrier();
}

static void end(int rank, int n, cudaStream_t stream)
{
  if (rank == 1) sim_hold(w.n, false);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  for (int i = 0; i < n; i++)
    NEED(tensor_holds(&tensors[rank][i], (uint64_t)i + 1));
  for (int i = 0; i < CALLS; i++)
    tensor_close(&tensors[rank][i]);
  NEED(xfer_comm_check(w.comms[rank]) == XFER_OK);
  NEED_NO_VIOLATION();
  ranks_barrier();
}

static void two_plans(int rank)
{
  cudaStream_t stream = world_stream();

  begin(rank, stream);
  moves_without_reader(rank, 1, stream);
  moves_without_reader(rank, 2, stream);
  waits_for_reader(rank, 3, stream);
  end(rank, 4, stream);
}

static void test_two_plans_take_turns(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3});
  world_go(two_plans);
}

static void one_plan(int rank)
{
  cudaStream_t stream = world_stream();

  begin(rank, stream);
  moves_without_reader(rank, 1, stream);
  waits_for_reader(rank, 2, stream);
  end(rank, 3, stream);
}

static void test_one_plan_where_there_is_no_room_for_two(void)
{
  world_make(2, COMM_GATHER, (sim_config){.n_devices = 3, .room = WIDTH + WIDTH / 2});
  world_go(one_plan);
}

/* A rank that is late while the second plan is made is named by who waited for it, though the plan
 * before it is there. */
static void late_second_plan(int rank)
{
  const sim_fault late = {.name = "cudaMalloc", .rank = 0, .nth = 1, .delay_us = -1};
  cudaStream_t stream = world_stream();
  xfer_status st;

  begin(rank, stream);
  moves_without_reader(rank, 1, stream);
  OK(xfer_comm_set_timeout(w.comms[rank], (uint64_t)SHORT_MS));
  if (rank == 0) sim_fault_add(&late);
  ranks_barrier();
  st = tensor_redistribute(&tensors[rank][2], stream);
  if (rank == 1) sim_fault_clear();
  if (rank == 1) sim_hold(w.n, false); /* for which rank 0 waits as it frees memory */
  NEED(st == (rank == 1 ? XFER_ERR_TIMEOUT : XFER_ERR_COMM));
  NEED(strstr(xfer_last_error(), "rank 0 did not come before the deadline") != NULL);
  ranks_barrier();
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  for (int i = 0; i < CALLS; i++)
    tensor_close(&tensors[rank][i]);
  for (int i = 0; i < 2; i++)
    NEED(tensor_holds(&tensors[rank][i], (uint64_t)i + 1));
  NEED_NO_VIOLATION();
}

static void test_who_is_late_for_a_second_plan_is_named(void)
{
  world_make(2, COMM_GATHER, (sim_config){.n_devices = 3});
  world_go(late_second_plan);
}

/* ---- room ---------------------------------------------------------------------------------- */

/* Messages of one call, before which all work has ended. */
static uint64_t sends_of(const tensor *t, cudaStream_t stream)
{
  uint64_t before;
  uint64_t after;

  NEED(sim_settle(TIMEOUT_MS));
  ranks_barrier();
  before = sim_calls_of("ncclSend");
  ranks_barrier();
  OK(tensor_redistribute(t, stream));
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  after = sim_calls_of("ncclSend");
  ranks_barrier();
  NEED(tensor_holds(t, 9));
  return after - before;
}

static void one_call(int rank)
{
  cudaStream_t stream = world_stream();

  tensor_make(&tensors[rank][0], FROM_FIRST, rank, WIDTH);
  tensor_fill(&tensors[rank][0], 9, 0x5a);
  tensor_open(&tensors[rank][0], 9);
  (void)sends_of(&tensors[rank][0], stream); /* making lanes sends as well */
  NEED(sends_of(&tensors[rank][0], stream) > 0);
}

static void test_messages_go_where_there_is_no_room_for_two(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3, .room = WIDTH + WIDTH / 2});
  world_go(one_call);
}

/* A tensor of another form finds the room of the second plan taken: that goes. */
static void another_needs_room(int rank)
{
  cudaStream_t stream = world_stream();
  tensor *const another = &tensors[rank][CALLS - 1];

  begin(rank, stream);
  for (int i = 1; i < 3; i++)
    moves_without_reader(rank, i, stream);
  end(rank, 3, stream);
  tensor_free(another);
  tensor_make(another, FROM_FIRST, rank, WIDTH + 1);
  tensor_fill(another, 9, 0x5a);
  tensor_open(another, 9);
  NEED(sends_of(another, stream) > 0);
  (void)sends_of(another, stream); /* its lanes are made again, which sends as well */
  NEED(sends_of(another, stream) == 0);
  ranks_barrier();
  for (int i = 0; i < 3; i++) { /* and the first plan is there */
    tensor_fill(&tensors[rank][0], 9, 0x5a);
    tensor_open(&tensors[rank][0], 9);
    ranks_barrier();
    NEED(sends_of(&tensors[rank][0], stream) == 0);
    NEED(sends_of(another, stream) == 0);
  }
  NEED_NO_VIOLATION();
}

static void test_the_second_plan_makes_room(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3, .room = 3 * WIDTH + WIDTH / 2});
  world_go(another_needs_room);
}

static void *let_go_later(void *unused)
{
  world_sleep_ms(A_WHILE_MS);
  sim_hold(w.n, false);
  return unused;
}

/* A second plan finds the room taken by two of another form, until no call has used those for long.
 */
static void the_unused_takes_room(int rank)
{
  cudaStream_t stream = world_stream();
  tensor another;
  pthread_t helper;

  tensor_make(&another, FROM_FIRST, rank, WIDTH + 1);
  begin(rank, stream);
  for (int i = 0; i < 2; i++)
    OK(tensor_redistribute(&another, stream));
  if (rank == 1) sim_hold(w.n, false);
  hold_up(rank, stream);
  moves_without_reader(rank, 1, stream);
  waits_for_reader(rank, 2, stream);
  if (rank == 1) sim_hold(w.n, false);
  for (int i = 0; i < KEPT; i++)
    OK(tensor_redistribute(&tensors[rank][0], stream));
  hold_up(rank, stream);
  moves_without_reader(rank, 3, stream);
  if (rank == 1) NEED(pthread_create(&helper, NULL, let_go_later, NULL) == 0);
  OK(tensor_redistribute(&tensors[rank][0], stream)); /* frees, which waits for the device */
  if (rank == 1) NEED(pthread_join(helper, NULL) == 0);
  hold_up(rank, stream);
  moves_without_reader(rank, 4, stream);
  moves_without_reader(rank, 5, stream);
  end(rank, CALLS - 1, stream);
  tensor_free(&another);
}

static void test_what_is_unused_makes_room_for_a_second_plan(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3, .room = 3 * WIDTH + WIDTH / 2});
  world_go(the_unused_takes_room);
}

/* ---- trouble ------------------------------------------------------------------------------- */

/* Rank 1 does not come to a call before its deadline, long after rank 0's stream has: rank 0 is
 * told when it asks then, or by its next call. */
static void the_reader_is_late(int rank, bool asks)
{
  cudaStream_t stream = world_stream();
  xfer_status st;

  begin(rank, stream);
  moves_without_reader(rank, 1, stream); /* as patient as at first */
  if (rank == 1) sim_hold(w.n, false);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  OK(xfer_comm_set_timeout(w.comms[rank], (uint64_t)SHORT_MS));
  tensor_free(&tensors[rank][2]);
  tensor_make(&tensors[rank][2], FROM_FIRST, rank, WIDTH + 1);
  for (int held = 0; held < 2; held++) { /* a plan whose runs have that deadline */
    tensor_fill(&tensors[rank][2], 3, 0x5a);
    tensor_open(&tensors[rank][2], 3);
    ranks_barrier();
    if (rank == 1 && held == 1) world_hold_up(stream, w.n);
    OK_IN_TIME(tensor_redistribute(&tensors[rank][2], stream));
    if (rank == 0 || held == 0) NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    ranks_barrier();
  }
  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
  world_sleep_ms(2 * SHORT_MS);
  if (rank == 0 && asks) {
    NEED(xfer_comm_check(w.comms[0]) == XFER_ERR_TIMEOUT);
    NEED(strstr(xfer_last_error(), "rank 1 did not finish") != NULL);
    NEED(xfer_comm_check(w.comms[0]) == XFER_OK);
  }
  ranks_barrier();
  if (rank == 1) sim_hold(w.n, false);
  st = tensor_redistribute(&tensors[rank][3], stream);
  NEED(rank == 1 || asks || st == XFER_ERR_TIMEOUT);
  NEED(rank == 0 || st != XFER_OK);
  ranks_barrier();
  for (int i = 0; i < 3 && tensor_redistribute(&tensors[rank][3], stream) != XFER_OK; i++)
    ; /* where a rank has not heard of it yet */
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  NEED(tensor_holds(&tensors[rank][3], 4));
  NEED(rank == 0 || tensor_is_all(&tensors[rank][2], 0x5a) || !asks); /* else before rank 0 left */
  NEED(rank == 0 || tensor_is_all(&tensors[rank][2], 0x5a) || tensor_holds(&tensors[rank][2], 3));
  NEED_NO_VIOLATION();
}

static void the_reader_is_late_and_check_tells(int rank)
{
  the_reader_is_late(rank, true);
}

static void the_reader_is_late_and_the_next_call_tells(int rank)
{
  the_reader_is_late(rank, false);
}

static void test_check_tells_who_sends_of_a_late_reader(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3});
  world_go(the_reader_is_late_and_check_tells);
}

static void test_next_call_tells_who_sends_of_a_late_reader(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3});
  world_go(the_reader_is_late_and_the_next_call_tells);
}

/* The run that was under way when the second plan was made misses its deadline: what follows is
 * told of it, and does not write what its reader may come to. */
static void the_run_before_is_late(int rank)
{
  cudaStream_t stream = world_stream();

  begin(rank, stream);
  OK(xfer_comm_set_timeout(w.comms[rank], (uint64_t)SHORT_MS));
  moves_without_reader(rank, 1, stream);
  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
  moves_without_reader(rank, 2, stream);
  world_sleep_ms(3 * SHORT_MS);
  NEED(tensor_redistribute(&tensors[rank][3], stream) != XFER_OK);
  ranks_barrier();
  if (rank == 1) sim_hold(w.n, false);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  NEED(rank == 0 || tensor_is_all(&tensors[rank][1], 0x5a) || tensor_holds(&tensors[rank][1], 2));
  for (int i = 0; i < 3 && tensor_redistribute(&tensors[rank][4], stream) != XFER_OK; i++)
    ;
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  NEED(tensor_holds(&tensors[rank][4], 5));
  NEED_NO_VIOLATION();
}

static void test_the_run_before_a_second_plan_is_not_forgotten(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3});
  world_go(the_run_before_is_late);
}

static void deadline_of_both(int rank)
{
  cudaStream_t stream = world_stream();

  begin(rank, stream);
  for (int i = 1; i < 3; i++)
    moves_without_reader(rank, i, stream);
  if (rank == 1) sim_hold(w.n, false);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  OK(xfer_comm_set_timeout(w.comms[rank], (uint64_t)SHORT_MS));
  OK_IN_TIME(tensor_redistribute(&tensors[rank][3], stream)); /* by one plan */
  hold_up(rank, stream);
  moves_without_reader(rank, 4, stream); /* by the other */
  world_sleep_ms(3 * SHORT_MS);
  NEED(rank == 1 || xfer_comm_check(w.comms[0]) == XFER_ERR_TIMEOUT);
  ranks_barrier();
  if (rank == 1) sim_hold(w.n, false);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  NEED_NO_VIOLATION();
}

static void test_a_timeout_is_of_both_plans(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3});
  world_go(deadline_of_both);
}

/* There is no memory for the second plan: the call is made by the first, and later ones. */
static void no_memory_for_a_second(int rank)
{
  const sim_fault full = {
      .name = "cudaMalloc", .rank = 0, .nth = 1, .code = cudaErrorMemoryAllocation};
  cudaStream_t stream = world_stream();
  pthread_t helper;

  begin(rank, stream);
  moves_without_reader(rank, 1, stream);
  if (rank == 0) sim_fault_add(&full);
  ranks_barrier();
  if (rank == 1) NEED(pthread_create(&helper, NULL, let_go_later, NULL) == 0);
  OK(tensor_redistribute(&tensors[rank][2], stream)); /* frees, which waits for the device */
  if (rank == 1) NEED(pthread_join(helper, NULL) == 0);
  hold_up(rank, stream);
  NEED(sim_count().faults == 1);
  moves_without_reader(rank, 3, stream);
  waits_for_reader(rank, 4, stream);
  end(rank, 5, stream);
}

static void test_one_plan_where_there_is_no_memory_for_two(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3});
  world_go(no_memory_for_a_second);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"two_plans_take_turns", test_two_plans_take_turns},
      {"who_is_late_for_a_second_plan_is_named", test_who_is_late_for_a_second_plan_is_named},
      {"one_plan_where_there_is_no_room_for_two", test_one_plan_where_there_is_no_room_for_two},
      {"messages_go_where_there_is_no_room_for_two",
       test_messages_go_where_there_is_no_room_for_two},
      {"the_second_plan_makes_room", test_the_second_plan_makes_room},
      {"what_is_unused_makes_room_for_a_second_plan",
       test_what_is_unused_makes_room_for_a_second_plan},
      {"the_run_before_a_second_plan_is_not_forgotten",
       test_the_run_before_a_second_plan_is_not_forgotten},
      {"a_timeout_is_of_both_plans", test_a_timeout_is_of_both_plans},
      {"one_plan_where_there_is_no_memory_for_two", test_one_plan_where_there_is_no_memory_for_two},
      {"check_tells_who_sends_of_a_late_reader", test_check_tells_who_sends_of_a_late_reader},
      {"next_call_tells_who_sends_of_a_late_reader",
       test_next_call_tells_who_sends_of_a_late_reader},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
