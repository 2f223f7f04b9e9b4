/*
 * How fast plans are between processes of one host, beside what one would write over MPI: MPI's own
 * all-to-all and persistent messages with subarray types, and messages packed by hand. A matrix
 * that some ranks hold by rows goes to ranks that hold it by columns. The ways take turns, so that
 * what else the machine does meets all alike; each way's bytes are checked. "redistribute" is
 * xfer_redistribute() at other addresses in each call.
 *
 *   mpirun -n 2 mpi_peers [ROUNDS]
 *   mpirun -n 8 mpi_peers [ROUNDS [TENSORS]]
 *
 * TENSORS: also how long it takes to make a plan for that many small tensors, all ranks to all.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>
#include <xfer/mpi.h>
#include <xfer/xfer.h>

enum { MAX_RANKS = 64, MAX_ROUNDS = 1001, PLAN = 0, BEST_OF = 4, REDISTRIBUTE = 4, N_WAYS = 5 };
enum { N_PLACES = 64, PLACE_BYTES = 64 }; /* at which arrays of "redistribute" begin in turn */

static const char *const way_names[N_WAYS] = {"xfer", "Alltoallw", "persistent", "by hand",
                                              "redistribute"};

/* An n x n matrix of float: which ranks hold its rows, and which get its columns. */
typedef struct workload {
  MPI_Comm comm; /* of the ranks that take part */
  int rank;
  int size;
  int n_src; /* ranks 0 .. n_src - 1 */
  int first_dst;
  int n_dst;
  int n;
  float *src; /* [rows][n] */
  float *dst; /* [n][cols] */
} workload;

/* What each way prepares, by peer. */
typedef struct prepared {
  xfer_comm *comm;
  xfer_plan *plan;
  uint64_t version;
  MPI_Datatype send_types[MAX_RANKS];
  MPI_Datatype recv_types[MAX_RANKS];
  int send_counts[MAX_RANKS]; /* 0 or 1 */
  int recv_counts[MAX_RANKS];
  int zeros[MAX_RANKS];
  MPI_Request persistent[2 * MAX_RANKS];
  int n_persistent;
  float *send_buffer; /* [n_dst][rows][cols], then as much to receive */
  float *recv_buffer;
  xfer_layout *layouts[2]; /* source, destination */
  char *arrays[2];
  int n_calls;
} prepared;

static void need(xfer_status st, const char *what)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, xfer_status_name(st), xfer_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

static void *room(size_t n_bytes)
{
  void *memory = malloc(n_bytes + 1);

  if (memory == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  memset(memory, 0, n_bytes); /* touched before it is timed */
  return memory;
}

static int n_rows(const workload *w)
{
  return w->n / w->n_src;
}

static int n_cols(const workload *w)
{
  return w->n / w->n_dst;
}

static int is_src(const workload *w, int rank)
{
  return rank < w->n_src;
}

static int is_dst(const workload *w, int rank)
{
  return rank >= w->first_dst && rank < w->first_dst + w->n_dst;
}

static float value(const workload *w, int row, int col, uint64_t round)
{
  return (float)(((uint64_t)row * (uint64_t)w->n + (uint64_t)col + round * 7919) % 16777213);
}

static void fill(const workload *w, uint64_t round)
{
  const int rows = n_rows(w);

  for (int r = 0; r < rows && is_src(w, w->rank); r++)
    for (int c = 0; c < w->n; c++)
      w->src[(size_t)r * (size_t)w->n + (size_t)c] = value(w, w->rank * rows + r, c, round);
}

static int count_wrong(const workload *w, uint64_t round)
{
  const int cols = n_cols(w);
  int n_wrong = 0;

  for (int r = 0; r < w->n && is_dst(w, w->rank); r++)
    for (int c = 0; c < cols; c++)
      n_wrong += w->dst[(size_t)r * (size_t)cols + (size_t)c] !=
                 value(w, r, (w->rank - w->first_dst) * cols + c, round);
  return n_wrong;
}

/* ---- the ways ---- */

/* A square's rows over the ranks 0 .. n_src - 1, its columns over n_dst ranks from first_dst on. */
static void rows_to_columns(xfer_layout *layouts[2], int64_t n, int n_src, int first_dst, int n_dst)
{
  char line[128];

  snprintf(line, sizeof line, "f32[%lld,%lld] (%d):S0 -> (%d)@%d-%d:S1", (long long)n, (long long)n,
           n_src, n_dst, first_dst, first_dst + n_dst - 1);
  need(xfer_problem_parse(&layouts[0], &layouts[1], line), line);
}

static void make_plan(prepared *p, const workload *w)
{
  rows_to_columns(p->layouts, w->n, w->n_src, w->first_dst, w->n_dst);
  const xfer_tensor tensor = {"matrix", p->layouts[0], p->layouts[1], 0};
  const xfer_view src_view = xfer_view_dense(w->src);
  const xfer_view dst_view = xfer_view_dense(w->dst);

  need(xfer_comm_create_mpi(&p->comm, w->comm), "comm");
  need(xfer_plan_create(&p->plan, p->comm, &tensor, 1, NULL), "plan");
  need(xfer_plan_bind(p->plan, 0, &src_view, &dst_view), "bind");
  need(xfer_plan_commit(p->plan), "commit");
}

/* Where the next call's array of one side begins. */
static char *next_array(const prepared *p, int side)
{
  return p->arrays[side] + p->n_calls % N_PLACES * PLACE_BYTES;
}

static void redistribute(prepared *p)
{
  const xfer_view src = xfer_view_dense(next_array(p, 0));
  const xfer_view dst = xfer_view_dense(next_array(p, 1));

  need(xfer_redistribute(p->comm, p->layouts[0], &src, p->layouts[1], &dst, NULL), "redistribute");
  p->n_calls++;
}

/* Rows [rows] x columns [cols] of a matrix of `pitch` columns, from (row, col). */
static MPI_Datatype make_type(int of_rows, int pitch, int rows, int cols, int row, int col)
{
  const int sizes[2] = {of_rows, pitch};
  const int lengths[2] = {rows, cols};
  const int starts[2] = {row, col};
  MPI_Datatype type;

  MPI_Type_create_subarray(2, sizes, lengths, starts, MPI_ORDER_C, MPI_FLOAT, &type);
  MPI_Type_commit(&type);
  return type;
}

static void make_types(prepared *p, const workload *w)
{
  for (int r = 0; r < w->size; r++) {
    p->send_types[r] = p->recv_types[r] = MPI_FLOAT;
    if (is_src(w, w->rank) && is_dst(w, r)) {
      p->send_types[r] =
          make_type(n_rows(w), w->n, n_rows(w), n_cols(w), 0, (r - w->first_dst) * n_cols(w));
      p->send_counts[r] = 1;
    }
    if (is_dst(w, w->rank) && is_src(w, r)) {
      p->recv_types[r] = make_type(w->n, n_cols(w), n_rows(w), n_cols(w), r * n_rows(w), 0);
      p->recv_counts[r] = 1;
    }
  }
}

static void make_persistent(prepared *p, const workload *w)
{
  for (int i = 0; i < w->size; i++) {
    const int r = (w->rank + i) % w->size;

    if (p->recv_counts[r] > 0)
      MPI_Recv_init(w->dst, 1, p->recv_types[r], r, 1, w->comm, &p->persistent[p->n_persistent++]);
  }
  for (int i = 0; i < w->size; i++) {
    const int r = (w->rank + i) % w->size;

    if (p->send_counts[r] > 0)
      MPI_Send_init(w->src, 1, p->send_types[r], r, 1, w->comm, &p->persistent[p->n_persistent++]);
  }
}

static void free_types(prepared *p, const workload *w)
{
  for (int i = 0; i < p->n_persistent; i++)
    MPI_Request_free(&p->persistent[i]);
  for (int r = 0; r < w->size; r++) {
    if (p->send_counts[r] > 0) MPI_Type_free(&p->send_types[r]);
    if (p->recv_counts[r] > 0) MPI_Type_free(&p->recv_types[r]);
  }
}

/* As COSTA does: all receives, then each message packed and sent, then unpacked as they come. */
static void run_by_hand(const prepared *p, const workload *w)
{
  const int rows = n_rows(w);
  const int cols = n_cols(w);
  const size_t block = (size_t)rows * (size_t)cols;
  const size_t row_bytes = (size_t)cols * sizeof(float);
  MPI_Request requests[2 * MAX_RANKS];
  int n_recvs = 0;
  int n = 0;

  if (is_dst(w, w->rank)) {
    n_recvs = n = w->n_src;
    for (int r = 0; r < w->n_src; r++) {
      requests[r] = MPI_REQUEST_NULL;
      if (r != w->rank)
        MPI_Irecv(p->recv_buffer + (size_t)r * block, (int)block, MPI_FLOAT, r, 2, w->comm,
                  &requests[r]);
    }
  }
  for (int i = 1; is_src(w, w->rank) && i <= w->size; i++) {
    const int r = (w->rank + i) % w->size;
    const int c = r - w->first_dst;
    float *to = p->send_buffer + (size_t)c * block;

    if (!is_dst(w, r)) continue;
    if (r == w->rank) to = w->dst + (size_t)r * block; /* whole rows of the destination */
    for (int k = 0; k < rows; k++)
      memcpy(to + (size_t)k * (size_t)cols,
             w->src + (size_t)k * (size_t)w->n + (size_t)c * (size_t)cols, row_bytes);
    if (r != w->rank) MPI_Isend(to, (int)block, MPI_FLOAT, r, 2, w->comm, &requests[n++]);
  }
  for (int i = 0, r; i < n_recvs; i++) {
    MPI_Waitany(n_recvs, requests, &r, MPI_STATUS_IGNORE);
    if (r == MPI_UNDEFINED) break;
    memcpy(w->dst + (size_t)r * block, p->recv_buffer + (size_t)r * block, block * sizeof(float));
  }
  MPI_Waitall(n - n_recvs, requests + n_recvs, MPI_STATUSES_IGNORE);
}

static void run_way(int way, prepared *p, const workload *w)
{
  switch (way) {
  case PLAN:
    need(xfer_plan_run(p->plan, ++p->version, NULL), "run");
    need(xfer_plan_wait(p->plan, 0), "wait");
    break;
  case 1:
    MPI_Alltoallw(w->src, p->send_counts, p->zeros, p->send_types, w->dst, p->recv_counts, p->zeros,
                  p->recv_types, w->comm);
    break;
  case 2:
    MPI_Startall(p->n_persistent, p->persistent);
    MPI_Waitall(p->n_persistent, p->persistent, MPI_STATUSES_IGNORE);
    break;
  case REDISTRIBUTE:
    redistribute(p);
    break;
  default:
    run_by_hand(p, w);
  }
}

/* ---- measuring ---- */

static int ascending(const void *a, const void *b)
{
  const double x = *(const double *)a;
  const double y = *(const double *)b;

  return (x > y) - (x < y);
}

static double median(double *values, int n)
{
  qsort(values, (size_t)n, sizeof *values, ascending);
  return values[n / 2];
}

/* Seconds until the last rank is done. */
static double time_way(int way, prepared *p, const workload *w)
{
  double start;
  double mine;
  double all = 0;

  MPI_Barrier(w->comm);
  start = MPI_Wtime();
  run_way(way, p, w);
  mine = MPI_Wtime() - start;
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, w->comm);
  return all;
}

static int check_way(int way, prepared *p, const workload *w)
{
  const size_t part = (size_t)w->n * (size_t)w->n * sizeof(float);
  char *const arrays[2] = {next_array(p, 0), next_array(p, 1)};
  int n_wrong = 0;
  int all = 0;

  fill(w, (uint64_t)way + 1);
  if (way == REDISTRIBUTE) memcpy(arrays[0], w->src, part / (size_t)w->n_src);
  run_way(way, p, w);
  if (way == REDISTRIBUTE) memcpy(w->dst, arrays[1], part / (size_t)w->n_dst);
  n_wrong = count_wrong(w, (uint64_t)way + 1);
  MPI_Allreduce(&n_wrong, &all, 1, MPI_INT, MPI_SUM, w->comm);
  if (all > 0 && w->rank == 0) fprintf(stderr, "%s: %d elements wrong\n", way_names[way], all);
  return all;
}

/* Returns how many elements were wrong. */
static int measure(const char *name, const workload *w, int n_rounds)
{
  static double seconds[N_WAYS][MAX_ROUNDS];
  static prepared p;
  const size_t part = (size_t)w->n * (size_t)w->n * sizeof(float);
  double best = 1e9;
  double times[N_WAYS];
  int n_wrong = 0;

  memset(&p, 0, sizeof p);
  p.send_buffer = room(part / (size_t)w->n_src);
  p.recv_buffer = room(part / (size_t)w->n_dst);
  p.arrays[0] = room(part / (size_t)w->n_src + N_PLACES * PLACE_BYTES);
  p.arrays[1] = room(part / (size_t)w->n_dst + N_PLACES * PLACE_BYTES);
  make_plan(&p, w);
  make_types(&p, w);
  make_persistent(&p, w);
  for (int way = 0; way < N_WAYS; way++)
    n_wrong += check_way(way, &p, w);
  for (int i = 0; i < n_rounds; i++)
    for (int k = 0; k < N_WAYS; k++)
      seconds[(i + k) % N_WAYS][i] = time_way((i + k) % N_WAYS, &p, w);
  for (int way = 0; way < N_WAYS; way++)
    n_wrong += check_way(way, &p, w);
  for (int way = 0; way < N_WAYS; way++) {
    times[way] = 1e3 * median(seconds[way], n_rounds);
    if (way > PLAN && way < BEST_OF && times[way] < best) best = times[way];
  }
  if (w->rank == 0)
    printf("%-8s %5d KiB %10.3f %10.3f %10.3f %10.3f %12.2f %12.3f %12.2f\n", name,
           (int)(part >> 10), times[PLAN], times[1], times[2], times[3], times[PLAN] / best,
           times[REDISTRIBUTE], times[REDISTRIBUTE] / times[1]);
  free_types(&p, w);
  xfer_plan_destroy(p.plan);
  xfer_comm_destroy(p.comm);
  for (int side = 0; side < 2; side++) {
    xfer_layout_destroy(p.layouts[side]);
    free(p.arrays[side]);
  }
  free(p.send_buffer);
  free(p.recv_buffer);
  return n_wrong;
}

static int measure_sizes(const char *name, int n_src, int first_dst, int n_rounds)
{
  static const int sides[] = {64, 512, 4096}; /* 16 KiB, 1 and 64 MiB */
  workload w = {MPI_COMM_WORLD, 0, 0, n_src, first_dst, 0, 0, NULL, NULL};
  int n_wrong = 0;

  MPI_Comm_rank(w.comm, &w.rank);
  MPI_Comm_size(w.comm, &w.size);
  w.n_dst = w.size - first_dst;
  for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
    const size_t bytes = (size_t)sides[i] * (size_t)sides[i] * sizeof(float);

    w.n = sides[i];
    w.src = room(bytes / (size_t)w.n_src);
    w.dst = room(bytes / (size_t)w.n_dst);
    n_wrong += measure(name, &w, n_rounds);
    free(w.src);
    free(w.dst);
  }
  return n_wrong;
}

/* ---- many tensors ---- */

/* Seconds to make a plan for n_tensors of 64 x 64, rows to columns, over all ranks. */
static double time_setup(int n_tensors, int size, xfer_comm *comm)
{
  xfer_layout *layouts[2];
  const size_t part = 4096 / (size_t)size + 64;
  float *memory = room(2 * (size_t)n_tensors * part * sizeof(float));
  xfer_tensor *tensors = room((size_t)n_tensors * sizeof *tensors);
  char(*names)[16] = room((size_t)n_tensors * sizeof *names);
  xfer_plan *plan = NULL;
  double start;
  double mine;
  double all = 0;

  rows_to_columns(layouts, 64, size, 0, size);
  for (int t = 0; t < n_tensors; t++) {
    snprintf(names[t], sizeof names[t], "t%d", t);
    tensors[t] = (xfer_tensor){names[t], layouts[0], layouts[1], 0};
  }
  MPI_Barrier(MPI_COMM_WORLD);
  start = MPI_Wtime();
  need(xfer_plan_create(&plan, comm, tensors, (size_t)n_tensors, NULL), "plan");
  for (int t = 0; t < n_tensors; t++) {
    const xfer_view from = xfer_view_dense(memory + 2 * (size_t)t * part);
    const xfer_view to = xfer_view_dense(memory + (2 * (size_t)t + 1) * part);

    need(xfer_plan_bind(plan, (size_t)t, &from, &to), "bind");
  }
  need(xfer_plan_commit(plan), "commit");
  mine = MPI_Wtime() - start;
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  xfer_plan_destroy(plan);
  xfer_layout_destroy(layouts[0]);
  xfer_layout_destroy(layouts[1]);
  free(memory);
  free(tensors);
  free(names);
  return all;
}

static void measure_setup(int n_tensors, int size, int rank)
{
  enum { TIMES = 5 };
  double seconds[TIMES];
  xfer_comm *comm = NULL;

  need(xfer_comm_create_mpi(&comm, MPI_COMM_WORLD), "comm");
  for (int i = 0; i < TIMES; i++)
    seconds[i] = time_setup(n_tensors, size, comm);
  if (rank == 0)
    printf("a plan for %d tensors over %d ranks: %.1f ms\n", n_tensors, size,
           1e3 * median(seconds, TIMES));
  xfer_comm_destroy(comm);
}

int main(int argc, char **argv)
{
  const int n_rounds = argc > 1 ? atoi(argv[1]) : 21;
  const int n_tensors = argc > 2 ? atoi(argv[2]) : 0;
  int level = 0;
  int rank = 0;
  int size = 0;
  int n_wrong = 0;
  char name[32];

  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (n_rounds < 1 || n_rounds > MAX_ROUNDS || size > MAX_RANKS || n_tensors < 0) return 2;
  if (rank == 0)
    printf("%-8s %9s %10s %10s %10s %10s %12s %12s %12s\n", "ranks", "size", "xfer ms",
           way_names[1], way_names[2], way_names[3], "xfer / best", way_names[REDISTRIBUTE],
           "/ Alltoallw");
  if (size >= 4 && size % 2 == 0) {
    snprintf(name, sizeof name, "%d -> %d", size / 2, size / 2);
    n_wrong += measure_sizes(name, size / 2, size / 2, n_rounds);
  }
  snprintf(name, sizeof name, "%d", size);
  n_wrong += measure_sizes(name, size, 0, n_rounds);
  if (n_tensors > 0) measure_setup(n_tensors, size, rank);
  MPI_Finalize();
  return n_wrong == 0 ? 0 : 1;
}
