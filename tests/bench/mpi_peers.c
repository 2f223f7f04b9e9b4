/*
 * How fast plans are between processes of one host, beside what one would write over MPI: MPI's own
 * all-to-all and persistent messages with types, and messages packed by hand. The ways take turns,
 * so that what else the machine does meets all alike; each way's bytes are checked. "redistribute"
 * is xfer_redistribute() at other addresses in each call, where there is one tensor.
 *
 *   mpirun -n 2 mpi_peers [ROUNDS]
 *   mpirun -n 8 mpi_peers [ROUNDS [TENSORS]]
 *
 * TENSORS: also how long it takes to make a plan for that many small tensors, all ranks to all.
 */
#include "bench.h"
#include "mpi_workload.h"

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <xfer/mpi.h>

enum { MAX_ROUNDS = 1001, PLAN = 0, BEST_OF = 4, REDISTRIBUTE = 4, N_WAYS = 5 };
enum { N_PLACES = 64, PLACE_BYTES = 64 }; /* at which arrays of "redistribute" begin in turn */

static const char *const way_names[N_WAYS] = {"xfer", "Alltoallw", "persistent", "by hand",
                                              "redistribute"};

/* What each way prepares, by peer. */
typedef struct prepared {
  xfer_comm *comm;
  xfer_plan *plan;
  uint64_t version;
  MPI_Datatype types[2][MAX_RANKS]; /* of all tensors, from MPI_BOTTOM */
  int counts[2][MAX_RANKS];         /* 0 or 1 */
  int zeros[MAX_RANKS];
  MPI_Request persistent[2 * MAX_RANKS];
  int n_persistent;
  char *messages[2][MAX_RANKS]; /* of all tensors, packed by hand */
  char *other[2];               /* arrays of "redistribute" */
  int n_calls;
} prepared;

/* ---- the ways ---- */

static void make_plan(xfer_plan **plan, xfer_comm *comm, const workload *w)
{
  xfer_tensor *tensors = workload_room((size_t)w->n_tensors * sizeof *tensors);
  char(*names)[16] = workload_room((size_t)w->n_tensors * sizeof *names);

  for (int t = 0; t < w->n_tensors; t++) {
    snprintf(names[t], sizeof names[t], "t%d", t);
    tensors[t] = (xfer_tensor){names[t], w->layouts[SRC], w->layouts[DST], {0}};
  }
  workload_need(xfer_plan_create(plan, comm, tensors, (size_t)w->n_tensors, NULL), "plan");
  for (int t = 0; t < w->n_tensors; t++) {
    const xfer_view src = xfer_view_dense(w->arrays[SRC] + (size_t)t * w->part_bytes[SRC]);
    const xfer_view dst = xfer_view_dense(w->arrays[DST] + (size_t)t * w->part_bytes[DST]);

    workload_need(xfer_plan_bind(*plan, (size_t)t, &src, &dst), "bind");
  }
  workload_need(xfer_plan_commit(*plan), "commit");
  free(tensors);
  free(names);
}

/* Where the next call's array of one side begins. */
static char *next_array(const prepared *p, int side)
{
  return p->other[side] + p->n_calls % N_PLACES * PLACE_BYTES;
}

static void redistribute(prepared *p, const workload *w)
{
  const xfer_view src = xfer_view_dense(next_array(p, SRC));
  const xfer_view dst = xfer_view_dense(next_array(p, DST));

  workload_need(xfer_redistribute(p->comm, w->layouts[SRC], &src, w->layouts[DST], &dst, NULL),
                "redistribute");
  p->n_calls++;
}

/* All that goes to or comes from a peer: a subarray of each tensor. */
static MPI_Datatype make_type(const workload *w, int side, const box *part)
{
  const box *whole = &w->boxes[side][w->rank];
  int *ones = workload_room((size_t)w->n_tensors * sizeof *ones);
  MPI_Aint *places = workload_room((size_t)w->n_tensors * sizeof *places);
  MPI_Datatype *same = workload_room((size_t)w->n_tensors * sizeof(MPI_Datatype));
  int sizes[MAX_DIMS];
  int lengths[MAX_DIMS];
  int starts[MAX_DIMS];
  MPI_Datatype one;
  MPI_Datatype type;

  for (int d = 0; d < w->n_dims; d++) {
    sizes[d] = (int)(whole->hi[d] - whole->lo[d]);
    lengths[d] = (int)(part->hi[d] - part->lo[d]);
    starts[d] = (int)(part->lo[d] - whole->lo[d]);
  }
  MPI_Type_create_subarray(w->n_dims, sizes, lengths, starts, MPI_ORDER_C, MPI_FLOAT, &one);
  for (int t = 0; t < w->n_tensors; t++) {
    ones[t] = 1;
    MPI_Get_address(w->arrays[side] + (size_t)t * w->part_bytes[side], &places[t]);
    same[t] = one;
  }
  MPI_Type_create_struct(w->n_tensors, ones, places, same, &type);
  MPI_Type_commit(&type);
  MPI_Type_free(&one);
  free(ones);
  free(places);
  free(same);
  return type;
}

static void make_messages(prepared *p, const workload *w)
{
  for (int r = 0; r < w->size; r++)
    for (int side = SRC; side <= DST; side++) {
      const box part =
          side == SRC ? workload_common(w, w->rank, r) : workload_common(w, r, w->rank);
      const size_t n_bytes = (size_t)(workload_elems(w, &part) * w->n_tensors) * sizeof(float);

      p->types[side][r] = MPI_FLOAT;
      p->counts[side][r] = n_bytes > 0;
      if (n_bytes > 0) p->types[side][r] = make_type(w, side, &part);
      if (n_bytes > 0) p->messages[side][r] = workload_room(n_bytes);
    }
  for (int side = DST; side >= SRC; side--)
    for (int i = 0; i < w->size; i++) {
      const int r = (w->rank + i) % w->size;
      MPI_Request *next = &p->persistent[p->n_persistent];

      if (p->counts[side][r] == 0) continue;
      p->n_persistent++;
      if (side == DST)
        MPI_Recv_init(MPI_BOTTOM, 1, p->types[DST][r], r, 1, MPI_COMM_WORLD, next);
      else
        MPI_Send_init(MPI_BOTTOM, 1, p->types[SRC][r], r, 1, MPI_COMM_WORLD, next);
    }
}

static void free_messages(prepared *p, const workload *w)
{
  for (int i = 0; i < p->n_persistent; i++)
    MPI_Request_free(&p->persistent[i]);
  for (int r = 0; r < w->size; r++)
    for (int side = SRC; side <= DST; side++) {
      if (p->counts[side][r] > 0) MPI_Type_free(&p->types[side][r]);
      free(p->messages[side][r]);
    }
}

/* All tensors' parts, between arrays and a message. */
static void pack(const workload *w, int side, const box *part, char *message)
{
  const size_t n_bytes = (size_t)workload_elems(w, part) * sizeof(float);
  const box *whole = &w->boxes[side][w->rank];

  for (int t = 0; t < w->n_tensors; t++, message += n_bytes) {
    char *array = w->arrays[side] + (size_t)t * w->part_bytes[side];

    if (side == SRC)
      workload_copy(w, part, message, part, array, whole);
    else
      workload_copy(w, part, array, whole, message, part);
  }
}

/* As COSTA does: all receives, then each message packed and sent, then unpacked as they come. */
static void run_by_hand(const prepared *p, const workload *w)
{
  MPI_Request recvs[MAX_RANKS];
  MPI_Request sends[MAX_RANKS];
  const box own = workload_common(w, w->rank, w->rank);

  for (int r = 0; r < w->size; r++) {
    const box part = workload_common(w, r, w->rank);

    recvs[r] = sends[r] = MPI_REQUEST_NULL;
    if (p->counts[DST][r] > 0 && r != w->rank)
      MPI_Irecv(p->messages[DST][r], (int)workload_elems(w, &part) * w->n_tensors, MPI_FLOAT, r, 2,
                MPI_COMM_WORLD, &recvs[r]);
  }
  for (int i = 1; i < w->size; i++) {
    const int r = (w->rank + i) % w->size;
    const box part = workload_common(w, w->rank, r);

    if (p->counts[SRC][r] == 0) continue;
    pack(w, SRC, &part, p->messages[SRC][r]);
    MPI_Isend(p->messages[SRC][r], (int)workload_elems(w, &part) * w->n_tensors, MPI_FLOAT, r, 2,
              MPI_COMM_WORLD, &sends[r]);
  }
  for (int t = 0; t < w->n_tensors && p->counts[SRC][w->rank] > 0; t++)
    workload_copy(w, &own, w->arrays[DST] + (size_t)t * w->part_bytes[DST], &w->boxes[DST][w->rank],
                  w->arrays[SRC] + (size_t)t * w->part_bytes[SRC], &w->boxes[SRC][w->rank]);
  for (int r;;) {
    MPI_Waitany(w->size, recvs, &r, MPI_STATUS_IGNORE);
    if (r == MPI_UNDEFINED) break;
    const box part = workload_common(w, r, w->rank);
    pack(w, DST, &part, p->messages[DST][r]);
  }
  MPI_Waitall(w->size, sends, MPI_STATUSES_IGNORE);
}

static void run_way(int way, prepared *p, const workload *w)
{
  switch (way) {
  case PLAN:
    workload_need(xfer_plan_run(p->plan, ++p->version, NULL), "run");
    workload_need(xfer_plan_wait(p->plan, 0), "wait");
    break;
  case 1:
    MPI_Alltoallw(MPI_BOTTOM, p->counts[SRC], p->zeros, p->types[SRC], MPI_BOTTOM, p->counts[DST],
                  p->zeros, p->types[DST], MPI_COMM_WORLD);
    break;
  case 2:
    MPI_Startall(p->n_persistent, p->persistent);
    MPI_Waitall(p->n_persistent, p->persistent, MPI_STATUSES_IGNORE);
    break;
  case REDISTRIBUTE:
    redistribute(p, w);
    break;
  default:
    run_by_hand(p, w);
  }
}

/* ---- measuring ---- */

/* Seconds until the last rank is done. */
static double time_way(int way, prepared *p, const workload *w)
{
  double start;
  double mine;
  double all = 0;

  MPI_Barrier(MPI_COMM_WORLD);
  start = MPI_Wtime();
  run_way(way, p, w);
  mine = MPI_Wtime() - start;
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

static int check_way(int way, prepared *p, const workload *w)
{
  char *const arrays[2] = {next_array(p, SRC), next_array(p, DST)};
  int n_wrong = 0;
  int all = 0;

  (void)workload_visit(w, SRC, (uint64_t)way + 1);
  if (way == REDISTRIBUTE) memcpy(arrays[SRC], w->arrays[SRC], w->part_bytes[SRC]);
  run_way(way, p, w);
  if (way == REDISTRIBUTE) memcpy(w->arrays[DST], arrays[DST], w->part_bytes[DST]);
  n_wrong = workload_visit(w, DST, (uint64_t)way + 1);
  MPI_Allreduce(&n_wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (all > 0 && w->rank == 0)
    fprintf(stderr, "%s, %s: %d elements wrong\n", w->line, way_names[way], all);
  return all;
}

static void print_row(const workload *w, const double times[N_WAYS], int n_ways)
{
  double best = times[1];

  for (int way = 2; way < BEST_OF; way++)
    if (times[way] < best) best = times[way];
  printf("%-38s %6d x %9.3f %10.3f %10.3f %10.3f %11.2f", w->name, w->n_tensors, times[PLAN],
         times[1], times[2], times[3], times[PLAN] / best);
  if (n_ways > REDISTRIBUTE)
    printf(" %12.3f %11.2f", times[REDISTRIBUTE], times[REDISTRIBUTE] / times[1]);
  printf("\n");
}

/* Returns how many elements were wrong. */
static int measure(const workload *w, int n_rounds)
{
  static double seconds[N_WAYS][MAX_ROUNDS];
  static prepared p;
  const int n_ways = w->n_tensors == 1 ? N_WAYS : BEST_OF;
  double times[N_WAYS] = {0};
  int n_wrong = 0;

  memset(&p, 0, sizeof p);
  for (int side = SRC; side <= DST; side++)
    p.other[side] = workload_room(w->part_bytes[side] + N_PLACES * PLACE_BYTES);
  workload_need(xfer_comm_create_mpi(&p.comm, MPI_COMM_WORLD), "comm");
  make_plan(&p.plan, p.comm, w);
  make_messages(&p, w);
  for (int way = 0; way < n_ways; way++)
    n_wrong += check_way(way, &p, w);
  for (int i = 0; i < n_rounds; i++)
    for (int k = 0; k < n_ways; k++)
      seconds[(i + k) % n_ways][i] = time_way((i + k) % n_ways, &p, w);
  for (int way = 0; way < n_ways; way++)
    n_wrong += check_way(way, &p, w);
  for (int way = 0; way < n_ways; way++)
    times[way] = 1e3 * median(seconds[way], n_rounds);
  if (w->rank == 0) print_row(w, times, n_ways);
  free_messages(&p, w);
  xfer_plan_destroy(p.plan);
  xfer_comm_destroy(p.comm);
  free(p.other[SRC]);
  free(p.other[DST]);
  return n_wrong;
}

static int measure_line(workload *w, int n_rounds)
{
  int n_wrong;

  workload_hold(w);
  n_wrong = measure(w, n_rounds);
  workload_free(w);
  return n_wrong;
}

/* Rows over the first ranks, columns over others or the same: 16 KiB, 1 and 64 MiB. */
static int measure_sizes(workload *w, int n_src, int first_dst, int n_rounds)
{
  static const int sides[] = {64, 512, 4096};
  char name[64];
  int n_wrong = 0;

  for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
    snprintf(name, sizeof name, "rows to columns%s, %d KiB", first_dst > 0 ? " of others" : "",
             sides[i] * sides[i] / 256);
    w->name = name;
    w->n_tensors = 1;
    snprintf(w->line, sizeof w->line, "f32[%d,%d] (%d):S0 -> (%d)@%d-%d:S1", sides[i], sides[i],
             n_src, w->size - first_dst, first_dst, w->size - 1);
    n_wrong += measure_line(w, n_rounds);
  }
  return n_wrong;
}

/* To ranks in reverse, so that as little as there can be stays where it is. */
static int measure_others(workload *w, int n_rounds)
{
  static const struct {
    const char *name;
    int n_tensors;
    bool from_one;
    const char *tensor;
    const char *from;
    const char *to;
  } rows[] = {{"whole rows to other ranks, 64 MiB", 1, false, "f32[4096,4096]", "S0", "S0"},
              {"experts to columns, 32 MiB", 1, false, "f32[64,256,512]", "S0", "S2"},
              {"one rank to all, 16 MiB", 1, true, "f32[2048,2048]", "R", "R"},
              {"ragged, 16 MiB each", 8, false, "f32[4097,1021]", "S1b", "S0b"},
              {"4 KiB, rows to columns", 2000, false, "f32[16,64]", "S0", "S1"},
              {"4 KiB, parts to all", 300, false, "f32[1024]", "S0", "R"}};
  char reversed[4 * MAX_RANKS] = "";
  int n_wrong = 0;

  for (int r = w->size - 1, n = 0; r >= 0; r--)
    n += snprintf(reversed + n, sizeof reversed - (size_t)n, r > 0 ? "%d," : "%d", r);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    w->name = rows[i].name;
    w->n_tensors = rows[i].n_tensors;
    snprintf(w->line, sizeof w->line, "%s (%d):%s -> (%d)@%s:%s", rows[i].tensor,
             rows[i].from_one ? 1 : w->size, rows[i].from, w->size, reversed, rows[i].to);
    n_wrong += measure_line(w, n_rounds);
  }
  return n_wrong;
}

/* ---- making plans ---- */

static void measure_setup(workload *w, int n_tensors)
{
  enum { TIMES = 5 };
  double seconds[TIMES];
  xfer_comm *comm = NULL;

  workload_need(xfer_comm_create_mpi(&comm, MPI_COMM_WORLD), "comm");
  snprintf(w->line, sizeof w->line, "f32[64,64] (%d):S0 -> (%d):S1", w->size, w->size);
  w->n_tensors = n_tensors;
  workload_hold(w);
  for (int i = 0; i < TIMES; i++) {
    xfer_plan *plan = NULL;
    double start;
    double mine;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    make_plan(&plan, comm, w);
    mine = MPI_Wtime() - start;
    MPI_Allreduce(&mine, &seconds[i], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    xfer_plan_destroy(plan);
  }
  if (w->rank == 0)
    printf("a plan for %d tensors over %d ranks: %.1f ms\n", n_tensors, w->size,
           1e3 * median(seconds, TIMES));
  workload_free(w);
  xfer_comm_destroy(comm);
}

int main(int argc, char **argv)
{
  static workload w;
  const int n_rounds = argc > 1 ? atoi(argv[1]) : 21;
  const int n_tensors = argc > 2 ? atoi(argv[2]) : 0;
  int level = 0;
  int n_wrong = 0;

  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &w.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &w.size);
  if (n_rounds < 1 || n_rounds > MAX_ROUNDS || w.size > MAX_RANKS || n_tensors < 0) return 2;
  if (w.rank == 0)
    printf("%-38s %7s %10s %10s %10s %10s %11s %12s %11s\n", "ms", "tensors", way_names[0],
           way_names[1], way_names[2], way_names[3], "xfer / best", way_names[REDISTRIBUTE],
           "/ Alltoallw");
  if (w.size >= 4 && w.size % 2 == 0)
    n_wrong += measure_sizes(&w, w.size / 2, w.size / 2, n_rounds);
  n_wrong += measure_sizes(&w, w.size, 0, n_rounds);
  n_wrong += measure_others(&w, n_rounds);
  if (n_tensors > 0) measure_setup(&w, n_tensors);
  MPI_Finalize();
  return n_wrong == 0 ? 0 : 1;
}
