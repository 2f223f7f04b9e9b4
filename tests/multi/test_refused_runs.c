/* Runs that processes refuse, over MPI and over memory of a host, by every lane: where all ranks
 * give an old version nothing is broken; where one refuses the others are told at once, whatever
 * they wait for. */
#include "process_ranks.h"

#include <string.h>

enum { MOST_RANKS = 8, WIDTH = 40000, SOON_S = 20 };

static uint32_t from[MOST_RANKS * WIDTH];
static uint32_t to[MOST_RANKS * WIDTH];

/* Row r of each rank goes to rank r, or to all where rows are broadcast; FEW: a few bytes of rank 0
 * go to the last, which does not wait for anybody. */
enum { FEW = XFER_LANE_BROADCAST + 1 };

static xfer_plan *plan_of(xfer_comm *comm, uint32_t lane)
{
  char line[80];

  if (lane == FEW)
    (void)snprintf(line, sizeof line, "u32[%d] (1)@0:R -> (1)@%d:R", 100, size - 1);
  else
    (void)snprintf(line, sizeof line, "u32[%d,%d] (%d):S1 -> (%d):%s", size, WIDTH, size, size,
                   lane == XFER_LANE_BROADCAST ? "R" : "S0");
  return plan_of_line(comm, line, from, to, lane == FEW ? (uint32_t)XFER_LANE_AUTO : lane, 0);
}

static void run_well(xfer_plan *plan, uint32_t lane, uint64_t version)
{
  const int last = lane == FEW ? 99 : WIDTH - 1;
  const size_t n = sizeof from / sizeof from[0];

  for (size_t i = 0; i < n; i++)
    from[i] = (uint32_t)version;
  memset(to, 0, sizeof to);
  NEED(xfer_plan_run(plan, version, NULL) == XFER_OK);
  NEED(xfer_plan_wait(plan, 0) == XFER_OK);
  if (lane != FEW || rank == size - 1)
    NEED(to[0] == (uint32_t)version && to[last] == (uint32_t)version);
}

/* All ranks give the version of the run before, in various states of the comm. */
static void refused_by_all(xfer_comm *comm, uint32_t lane)
{
  xfer_plan *const plan = plan_of(comm, lane);
  xfer_plan *const other = plan_of(comm, XFER_LANE_AUTO);

  for (uint64_t version = 3; version < 6; version++) {
    run_well(plan, lane, version);
    NEED(xfer_plan_run(plan, version, NULL) == XFER_ERR_STATE);
    NEED(xfer_plan_wait(plan, 0) == XFER_ERR_STATE);
    NEED(strstr(xfer_last_error(), "versions must grow") != NULL);
    NEED(xfer_comm_check(comm) == XFER_OK);
    run_well(other, XFER_LANE_AUTO, version);
    NEED(xfer_plan_run(plan, version + 1, NULL) == XFER_ERR_STATE); /* no commit followed */
    NEED(xfer_plan_commit(plan) == XFER_OK);
  }
  run_well(plan, lane, 100);
  xfer_plan_destroy(other);
  xfer_plan_destroy(plan);
}

static const char why[] = "the loss is not a number";

static void pause_s(double s)
{
  (void)usleep((useconds_t)(s * 1e6));
}

/* When the last rank refuses: `s` seconds before or after the others begin. */
typedef struct {
  bool is_late;
  double s;
} timing;

/* The last rank refuses; then it waits, or destroys the plan in place of that. True: that broke the
 * comm. */
static bool refused_by_one(xfer_comm *comm, uint32_t lane, timing when, bool destroys)
{
  xfer_plan *const plan = plan_of(comm, lane);
  const bool refuses = rank == size - 1;
  bool is_broken = true;
  double began;

  run_well(plan, lane, 1);
  began = MPI_Wtime();
  if (refuses == when.is_late) pause_s(when.s);
  if (refuses)
    NEED(xfer_plan_refuse(plan, why) == XFER_OK);
  else
    (void)!xfer_plan_run(plan, 2, NULL);
  if (!refuses || !destroys) {
    NEED(xfer_plan_wait(plan, 0) != XFER_OK);
    NEED(strstr(xfer_last_error(), why) != NULL);
    NEED(MPI_Wtime() - began < when.s + SOON_S); /* the deadline is far */
    is_broken = xfer_comm_check(comm) == XFER_ERR_COMM;
  }
  xfer_plan_destroy(plan);
  return is_broken;
}

/* Once more where the others were so late that they were told before they had begun, so that
 * nothing was left over. */
static void broken_by_one(xfer_comm **comm, means wanted, uint32_t lane, bool is_late,
                          bool destroys)
{
  const bool breaks = is_late || destroys;

  for (double s = 0.1; s < 5; s *= 7) {
    int is_broken = refused_by_one(*comm, lane, (timing){is_late, s}, destroys);

    (void)MPI_Allreduce(MPI_IN_PLACE, &is_broken, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    xfer_comm_destroy(*comm);
    *comm = comm_of(wanted);
    if (is_broken || !breaks) return;
  }
  NEED(false); /* the comm must be broken */
}

/* The comm and the plan are as good as before. */
static void go_on(xfer_comm *comm, xfer_plan *plan, uint32_t lane, uint64_t version)
{
  NEED(xfer_comm_check(comm) == XFER_OK);
  NEED(xfer_plan_commit(plan) == XFER_OK);
  run_well(plan, lane, version);
}

/* The others call run() once the last rank has refused it and waits, which is not broken by that:
 * none has begun. True: they were not too early. */
static bool refused_before_others_come(xfer_comm *comm, uint32_t lane, double pause)
{
  xfer_plan *const plan = plan_of(comm, lane);
  int began = 0;

  if (rank == size - 1) {
    NEED(xfer_plan_refuse(plan, why) == XFER_OK);
  } else {
    pause_s(pause);
    began = xfer_plan_run(plan, 2, NULL) == XFER_OK;
    NEED(began || strstr(xfer_last_error(), why) != NULL);
  }
  NEED(xfer_plan_wait(plan, 0) != XFER_OK);
  NEED(strstr(xfer_last_error(), why) != NULL);
  began = began != 0 || xfer_comm_check(comm) != XFER_OK; /* it was told inside its run */
  (void)MPI_Allreduce(MPI_IN_PLACE, &began, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (began == 0) go_on(comm, plan, lane, 3);
  xfer_plan_destroy(plan);
  return began == 0;
}

/* Rank 0 refuses several runs and is in another one before the others come: they are told of each
 * refusal, and nothing is broken. True: they were not too early. */
static bool refused_several(xfer_comm *comm, double pause)
{
  enum { SEVERAL = 4 };
  xfer_plan *plans[SEVERAL];
  xfer_plan *const last = plan_of(comm, XFER_LANE_PACKED);
  int is_broken;

  for (int i = 0; i < SEVERAL; i++)
    plans[i] = plan_of(comm, XFER_LANE_PACKED);
  if (rank != 0) pause_s(pause);
  for (int i = 0; i < SEVERAL; i++) {
    if (rank == 0)
      NEED(xfer_plan_refuse(plans[i], why) == XFER_OK);
    else
      (void)!xfer_plan_run(plans[i], 1, NULL);
  }
  (void)!xfer_plan_run(last, 1, NULL);
  is_broken = xfer_plan_wait(last, 0) != XFER_OK;
  (void)MPI_Allreduce(MPI_IN_PLACE, &is_broken, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  for (int i = 0; i < SEVERAL; i++)
    xfer_plan_destroy(plans[i]);
  xfer_plan_destroy(last);
  return is_broken == 0;
}

static void several_before_others_come(means wanted)
{
  bool is_well = false;

  for (double s = 0.1; s < 5 && !is_well; s *= 7) {
    xfer_comm *comm = comm_of(wanted);

    is_well = refused_several(comm, s);
    xfer_comm_destroy(comm);
  }
  NEED(is_well);
}

/* The last rank refuses a run to which nobody comes, and destroys its plan once all have committed
 * another one, which numbers their runs anew. */
static void refused_and_destroyed_late(xfer_comm *comm, uint32_t lane)
{
  xfer_plan *const refused = plan_of(comm, lane);
  xfer_plan *plan;

  if (rank == size - 1) NEED(xfer_plan_refuse(refused, why) == XFER_OK);
  plan = plan_of(comm, lane);
  xfer_plan_destroy(refused);
  run_well(plan, lane, 1);
  xfer_plan_destroy(plan);
}

/* Once its wait has returned, a rank refuses the next run and destroys the plan, while others are
 * still about to leave that wait. */
static void left_after_wait(xfer_comm *comm, uint32_t lane)
{
  enum { TIMES = 100 };

  for (int i = 0; i < TIMES && failed == 0; i++) {
    xfer_plan *const plan = plan_of(comm, lane);

    run_well(plan, lane, 1);
    if (rank == i % size) NEED(xfer_plan_refuse(plan, why) == XFER_OK);
    xfer_plan_destroy(plan);
  }
}

/* The last rank leaves two plans by an exception, while the others are in no call; that breaks
 * nothing. They come to the run of the first, and are told why it was left. */
static void left_two(xfer_comm *comm, uint32_t lane)
{
  static const char *const whys[] = {"the first one's reason", "the second one's"};
  xfer_plan *const plans[] = {plan_of(comm, lane), plan_of(comm, lane)};
  xfer_plan *const third = plan_of(comm, lane);
  const double began = MPI_Wtime();

  for (int i = 0; i < 2 && rank == size - 1; i++) {
    NEED(xfer_plan_refuse(plans[i], whys[i]) == XFER_OK);
    xfer_plan_destroy(plans[i]);
  }
  if (rank != size - 1) pause_s(0.5);
  NEED(xfer_comm_check(comm) == XFER_OK);
  run_well(third, lane, 1);
  if (rank != size - 1) {
    (void)!xfer_plan_run(plans[0], 1, NULL);
    NEED(xfer_plan_wait(plans[0], 0) != XFER_OK);
    NEED(strstr(xfer_last_error(), whys[0]) != NULL);
    NEED(MPI_Wtime() - began < SOON_S);
    for (int i = 0; i < 2; i++)
      xfer_plan_destroy(plans[i]);
  }
  xfer_plan_destroy(third);
}

/* The last rank refuses runs of three plans to which nobody comes, and leaves the first two, the
 * older one first or last: then all ranks give the next run the same number. They come to the run
 * of the third plan, which is refused and not left, or run one that was committed before. */
static void left_in_turn(xfer_comm *comm, uint32_t lane, int first, bool comes)
{
  xfer_plan *const refused[] = {plan_of(comm, lane), plan_of(comm, lane), plan_of(comm, lane)};
  xfer_plan *const plan = plan_of(comm, lane);
  const int n = comes ? 3 : 2;
  double began;

  for (int i = 0; i < n && rank == size - 1; i++)
    NEED(xfer_plan_refuse(refused[i], why) == XFER_OK);
  for (int i = 0; i < 2 && rank == size - 1; i++)
    xfer_plan_destroy(refused[i ^ first]);
  (void)MPI_Barrier(MPI_COMM_WORLD);
  began = MPI_Wtime();
  if (comes) {
    if (rank != size - 1) (void)!xfer_plan_run(refused[2], 1, NULL);
    NEED(xfer_plan_wait(refused[2], 0) != XFER_OK);
    NEED(strstr(xfer_last_error(), why) != NULL);
  } else {
    for (uint64_t version = 1; version < 4; version++)
      run_well(plan, lane, version);
  }
  NEED(MPI_Wtime() - began < SOON_S);
  for (int i = 0; i < 2 && rank != size - 1; i++)
    xfer_plan_destroy(refused[i]);
  xfer_plan_destroy(refused[2]);
  xfer_plan_destroy(plan);
}

/* Ranks that have released a plan, of which one had refused a run, give the next run one number. */
static void released_when_refused(xfer_comm *comm, uint32_t lane)
{
  xfer_plan *const refused = plan_of(comm, lane);
  xfer_plan *const plan = plan_of(comm, lane);

  if (rank == size - 1) NEED(xfer_plan_refuse(refused, why) == XFER_OK);
  NEED(xfer_plan_release(refused) == XFER_OK);
  for (uint64_t version = 1; version < 4; version++)
    run_well(plan, lane, version);
  xfer_plan_destroy(refused);
  xfer_plan_destroy(plan);
}

/* The last rank leaves a plan, and then all refuse more runs of another than are remembered. The
 * others come to the run of the first, and are told why it was left. */
static void left_before_refusals(xfer_comm *comm, uint32_t lane)
{
  enum { REFUSALS = 17 };
  xfer_plan *const left = plan_of(comm, lane);
  xfer_plan *const plan = plan_of(comm, lane);
  double began;

  if (rank == size - 1) {
    NEED(xfer_plan_refuse(left, why) == XFER_OK);
    xfer_plan_destroy(left);
  }
  for (int i = 0; i < REFUSALS; i++) {
    NEED(xfer_plan_refuse(plan, "not now") == XFER_OK);
    NEED(xfer_plan_wait(plan, 0) == XFER_ERR_STATE);
    NEED(xfer_plan_commit(plan) == XFER_OK);
  }
  began = MPI_Wtime();
  if (rank != size - 1) {
    (void)!xfer_plan_run(left, 1, NULL);
    NEED(xfer_plan_wait(left, 0) != XFER_OK);
    NEED(strstr(xfer_last_error(), why) != NULL);
    NEED(MPI_Wtime() - began < SOON_S);
    xfer_plan_destroy(left);
  }
  xfer_plan_destroy(plan);
}

/* The last rank leaves a plan that is not committed; the others come to its commit. */
static void left_before_commit(means wanted)
{
  xfer_comm *const comm = comm_of(wanted);
  xfer_plan *const plan = plan_of(comm, XFER_LANE_AUTO);
  const double began = MPI_Wtime();

  NEED(xfer_plan_release(plan) == XFER_OK);
  if (rank == size - 1) {
    NEED(xfer_plan_refuse(plan, why) == XFER_OK);
  } else {
    NEED(xfer_plan_commit(plan) != XFER_OK);
    NEED(strstr(xfer_last_error(), why) != NULL);
    NEED(MPI_Wtime() - began < SOON_S);
  }
  xfer_plan_destroy(plan);
  (void)MPI_Barrier(MPI_COMM_WORLD);
  xfer_comm_destroy(comm);
}

/* A rank that sends and receives nothing refuses a run of the others, in which nothing is left
 * over. */
static void refused_without_part(xfer_comm *comm)
{
  xfer_plan *const plan = plan_of(comm, FEW);
  const bool refuses = rank == 1 && size > 2;

  if (refuses)
    NEED(xfer_plan_refuse(plan, why) == XFER_OK);
  else
    NEED(xfer_plan_run(plan, 2, NULL) == XFER_OK);
  NEED(xfer_plan_wait(plan, 0) == (refuses ? XFER_ERR_STATE : size > 2 ? XFER_ERR_PEER : XFER_OK));
  go_on(comm, plan, FEW, 3);
  xfer_plan_destroy(plan);
}

static void work(void)
{
  static const uint32_t lanes[] = {XFER_LANE_AUTO, XFER_LANE_PACKED, XFER_LANE_BROADCAST, FEW};

  for (size_t i = 0; i < N_MEANS * sizeof lanes / sizeof lanes[0]; i++) {
    const means wanted = (means)(i % N_MEANS);
    const uint32_t lane = lanes[i / N_MEANS];
    xfer_comm *comm = comm_of(wanted);
    bool is_sound;

    refused_by_all(comm, lane);
    refused_and_destroyed_late(comm, lane);
    refused_without_part(comm);
    left_after_wait(comm, lane);
    released_when_refused(comm, lane);
    for (int first = 0; first < 2; first++)
      left_in_turn(comm, lane, first, false);
    is_sound = false;
    for (double pause = 0.1; pause < 5; pause *= 7) {
      is_sound = refused_before_others_come(comm, lane, pause);
      if (is_sound) break;
      xfer_comm_destroy(comm);
      comm = comm_of(wanted);
    }
    NEED(is_sound);
    for (int how = 0; how < 4; how++) {
      broken_by_one(&comm, wanted, lane, how % 2 == 1, how / 2 == 1);
    }
    left_two(comm, lane);
    (void)MPI_Barrier(MPI_COMM_WORLD);
    xfer_comm_destroy(comm);
    comm = comm_of(wanted);
    left_before_refusals(comm, lane);
    (void)MPI_Barrier(MPI_COMM_WORLD);
    for (int first = 0; first < 2; first++) {
      xfer_comm_destroy(comm);
      comm = comm_of(wanted);
      left_in_turn(comm, lane, first, true);
      (void)MPI_Barrier(MPI_COMM_WORLD);
    }
    xfer_comm_destroy(comm);
  }
  for (int wanted = 0; wanted < N_MEANS; wanted++)
    left_before_commit((means)wanted);
  for (int wanted = 0; wanted < N_MEANS; wanted++)
    several_before_others_come((means)wanted);
}

int main(int argc, char **argv)
{
  return with_ranks(argc, argv, work);
}
