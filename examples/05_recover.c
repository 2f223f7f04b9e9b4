/*
 * A serving process is killed between two steps, and the others go on without it.
 *
 * Ranks 0 and 1 train, ranks 2 to 4 serve; each is a process of this host. Before step 3 rank 4 is
 * killed. The run of the others fails at once and names it: the version that they serve stays the
 * last complete one, and the plan's report says whether a destination is half written. They destroy
 * plan and comm, make a new comm of the four that are left, and a new plan that puts the weights on
 * two ranks in place of three, and run step 3 again.
 *
 * How the processes that are left find each other is the program's part: here it is a barrier in
 * memory that they share, elsewhere the launcher's store, or a new MPI communicator.
 *
 *   cc 05_recover.c $(pkg-config --cflags --libs xfer) -lpthread && ./a.out
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <xfer/xfer.h>

enum { N_RANKS = 5, N_TRAIN = 2, LOST = 4, LOST_AT = 3, N_STEPS = 5, ROWS = 6, COLUMNS = 12 };

/* Where the ranks of a comm meet to make it. */
typedef struct {
  pthread_barrier_t barrier;
  unsigned char bytes[N_RANKS * 1024];
} meeting;

typedef struct {
  meeting *at;
  int rank;
  int size;
} member;

static void need(xfer_status st, const char *what)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, xfer_status_name(st), xfer_last_error());
  exit(1);
}

/* The all-gather that xfer_comm_create_host() asks for; see xfer_all_gather_fn. */
static int gather(void *context, void *all, const void *mine, size_t n_bytes)
{
  const member *self = context;

  if (n_bytes > sizeof self->at->bytes / N_RANKS) return 1;
  memcpy(self->at->bytes + (size_t)self->rank * n_bytes, mine, n_bytes);
  pthread_barrier_wait(&self->at->barrier);
  memcpy(all, self->at->bytes, (size_t)self->size * n_bytes);
  pthread_barrier_wait(&self->at->barrier); /* all have read: the next gather may write */
  return 0;
}

/* This rank's part of a layout at `step`: fill it, or count what differs. */
static int visit(const xfer_layout *layout, int rank, float *part, int step, int fill)
{
  const size_t n = xfer_layout_local_bytes(layout, rank) / sizeof *part;
  int wrong = 0;

  for (size_t i = 0; i < n; i++) {
    int64_t index[2];

    need(xfer_layout_global_index(layout, rank, (int64_t)i, index), "index");
    const float value = (float)(1000 * step) + (float)(index[0] * COLUMNS + index[1]);
    if (fill) part[i] = value;
    wrong += part[i] != value;
  }
  return wrong;
}

/* One step: the new weights are trained, sent and served. */
static xfer_status step_once(xfer_plan *plan, const xfer_tensor *tensor, int rank, int step,
                             float *weights)
{
  xfer_status ran, waited;

  if (rank < N_TRAIN) (void)visit(tensor->src, rank, weights, step, 1); /* "train" */
  ran = xfer_plan_run(plan, (uint64_t)step, NULL);
  waited = xfer_plan_wait(plan, 0); /* also after a run that failed: all ranks agree in it */
  return ran != XFER_OK ? ran : waited;
}

/* Runs steps until `end`, or until one fails. *step: the first step; receives the one that failed,
 * or `end`. Returns the number of wrong elements and reports. */
static int serve(meeting *at, int rank, int size, int *step, int end)
{
  float weights[ROWS * COLUMNS], served[ROWS * COLUMNS];
  const xfer_view src_view = xfer_view_dense(weights);
  const xfer_view dst_view = xfer_view_dense(served);
  member self = {at, rank, size};
  xfer_tensor tensor = {.name = "w"};
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  xfer_layout *src = NULL, *dst = NULL;
  xfer_comm *comm = NULL;
  xfer_plan *plan = NULL;
  xfer_status st = XFER_OK;
  char line[64];
  int wrong = 0;

  need(xfer_comm_create_host(&comm, gather, &self, rank, size), "comm");
  snprintf(line, sizeof line, "f32[6,12] (2)@0-1:S0 -> (%d)@2-%d:S1", size - N_TRAIN, size - 1);
  need(xfer_problem_parse(&src, &dst, line), line);
  tensor.src = src;
  tensor.dst = dst;
  need(xfer_plan_create(&plan, comm, &tensor, 1, NULL), "plan");
  need(xfer_plan_bind(plan, 0, &src_view, &dst_view), "bind");
  need(xfer_plan_commit(plan), "commit");
  for (; *step < end; ++*step) {
    if (rank == LOST && *step == LOST_AT) raise(SIGKILL);
    st = step_once(plan, &tensor, rank, *step, weights);
    if (st != XFER_OK) break;
    if (rank >= N_TRAIN) wrong += visit(dst, rank, served, *step, 0);
  }
  if (st != XFER_OK) printf("rank %d: step %d failed: %s\n", rank, *step, xfer_last_error());
  need(xfer_plan_report(plan, &report), "report");
  if (report.torn && rank >= N_TRAIN) printf("rank %d: what it serves may be half written\n", rank);
  wrong += report.committed_version != (uint64_t)*step - 1;
  xfer_plan_destroy(plan);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  xfer_comm_destroy(comm);
  return wrong;
}

/* Returns the exit status of the rank's process. */
static int be_a_rank(meeting *meetings, int rank)
{
  int step = 1;
  int wrong = serve(&meetings[0], rank, N_RANKS, &step, N_STEPS + 1);

  if (step != LOST_AT) return 1;
  wrong += serve(&meetings[1], rank, N_RANKS - 1, &step, N_STEPS + 1);
  return wrong != 0 || step != N_STEPS + 1;
}

static meeting *make_meetings(void)
{
  meeting *made =
      mmap(NULL, 2 * sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrierattr_t shared;

  if (made == MAP_FAILED || pthread_barrierattr_init(&shared) != 0) return NULL;
  (void)pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  for (int i = 0; i < 2; i++)
    if (pthread_barrier_init(&made[i].barrier, &shared, (unsigned)(N_RANKS - i)) != 0) return NULL;
  return made;
}

int main(int argc, char **argv)
{
  meeting *const meetings = make_meetings();
  pid_t processes[N_RANKS];
  int n_done = 0, n_killed = 0;

  if (argc > 1) {
    fprintf(stderr, "usage: %s\n", argv[0]);
    return 2;
  }
  if (meetings == NULL) return 1;
  for (int r = 0; r < N_RANKS; r++) {
    processes[r] = fork();
    if (processes[r] < 0) return 1;
    if (processes[r] == 0) return be_a_rank(meetings, r);
  }
  for (int r = 0; r < N_RANKS; r++) {
    int status = 0;

    if (waitpid(processes[r], &status, 0) < 0) return 1;
    n_done += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    n_killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }
  printf("%d process killed before step %d; %d others did all %d steps\n", n_killed, LOST_AT,
         n_done, N_STEPS);
  return n_killed == 1 && n_done == N_RANKS - 1 ? 0 : 1;
}
