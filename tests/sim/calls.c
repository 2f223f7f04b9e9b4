/*
 * calls --cases N --seed S [--first K] [--only K] [--calm] [--verbose]
 *
 * xfer_redistribute() at random: calls of several kinds in turn, on several comms and streams,
 * without a wait between them, of tensors that lie elsewhere, are strided or registered on some
 * ranks, are overwritten at once and freed once the streams are done; and ranks that are late,
 * busy, refuse, have no memory or fail. What must hold:
 *
 * - a call fails on all ranks or on none, until something went wrong;
 * - calls that came to OK, and after which one more of each kind does so too, moved all bytes;
 * - no operation touches memory that was freed, or of another rank;
 * - once nothing goes wrong any more calls work, unless the comm is broken, which only what failed
 *   halfway may have done.
 *
 * The last line is `calls ok: cases=N wrong=0`.
 */
#include "case_runner.h"
#include "rng.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  KINDS = 5,
  PLACES = 3,
  COMMS = 2,
  STREAMS = 3,
  ROUNDS = 4,
  BURST = 6,
  SPREAD = 3,
  TRIES = 4,
  CASES = 20
};
enum { CALM_MS = 60000, PROMPT_MS = 20000, SETTLE_MS = 30000, MANY = 70 };

typedef enum mishap { NOTHING, REFUSES, NO_MEMORY, LATE, BUSY, FAILING, MISHAPS } mishap;
static const char *const names[] = {"nothing", "refuses", "no memory", "late", "busy", "failing"};

/* One tensor of a kind on one rank. */
typedef struct place {
  tensor t;
  unsigned char *spread[2]; /* the same elements, SPREAD bytes apart; NULL: none */
  bool is_registered;
} place;

static struct {
  int n_ranks, n_comms, n_kinds, n_rounds;
  comm_kind kind;
  int timeout_ms;
  struct {
    form shape;
    int64_t width;
    int comm;
  } kinds[KINDS];
} now;

typedef struct call {
  int kind;
  int place;
  uint64_t key;
  xfer_status st;
} call;

static xfer_comm *comms[COMMS][WORLD_RANKS];
static place places[WORLD_RANKS][KINDS][PLACES];
static cudaStream_t streams[WORLD_RANKS][STREAMS];
static call calls[WORLD_RANKS][BURST + KINDS];
static _Atomic uint64_t n_calls, n_failed, n_broken;

static void draw(uint64_t number)
{
  rng r = rng_of(world_seed(), number, 1);

  now.n_ranks = rng_int(&r, 2, 5);
  now.n_comms = rng_int(&r, 1, COMMS);
  now.n_kinds = rng_int(&r, 1, KINDS);
  now.n_rounds = rng_int(&r, 2, ROUNDS);
  now.kind = rng_percent(&r, 80) ? COMM_NCCL : COMM_GATHER;
  now.timeout_ms = set.calm ? CALM_MS : rng_int(&r, 200, 600);
  for (int k = 0; k < now.n_kinds; k++) {
    now.kinds[k].shape = (form)rng_int(&r, RING, FROM_LAST);
    now.kinds[k].width = rng_percent(&r, 70) ? rng_int(&r, 1, 20000) : rng_int(&r, 100000, 600000);
    now.kinds[k].comm = rng_int(&r, 0, now.n_comms - 1);
  }
}

static sim_config topology(uint64_t number)
{
  rng r = rng_of(world_seed(), number, 2);
  sim_config config = {.n_devices = now.n_ranks};

  if (now.kind == COMM_NCCL && rng_percent(&r, 25))
    for (int d = 1; d < now.n_ranks; d++) {
      if (rng_percent(&r, 40)) continue;
      config.apart[0] |= UINT64_C(1) << d;
      config.apart[d] |= 1;
    }
  config.small_engine = rng_percent(&r, 30);
  config.many_launches = rng_percent(&r, 50);
  if (rng_percent(&r, 25)) config.room = (uint64_t)rng_int(&r, 1, 400000);
  if (rng_percent(&r, 15)) config.without_room = rng_int(&r, 1, now.n_ranks);
  return config;
}

/* ---- places --------------------------------------------------------------------------------- */

static void make_place(place *p, int rank, int kind)
{
  *p = (place){0};
  tensor_make(&p->t, now.kinds[kind].shape, rank, now.kinds[kind].width);
}

static void make_spread(place *p, int side)
{
  if (p->spread[side] == NULL && p->t.n_bytes[side] > 0)
    p->spread[side] = world_alloc(SPREAD * p->t.n_bytes[side]);
}

static void drop_spread(place *p)
{
  for (int side = FROM; side <= TO; side++) {
    if (p->spread[side] != NULL) world_free(p->spread[side]);
    p->spread[side] = NULL;
  }
}

static void free_place(place *p)
{
  drop_spread(p);
  tensor_free(&p->t);
}

static xfer_view view_of(place *p, int side)
{
  const tensor *t = &p->t;
  const int64_t columns = t->shape != EACH_EACH ? 1 : side == FROM ? t->width * w.n : t->width;
  const int64_t strides[2] = {t->shape == EACH_EACH ? SPREAD * columns : SPREAD, SPREAD};

  if (p->spread[side] == NULL) return xfer_view_dense(t->bytes[side]);
  return xfer_view_strided(p->spread[side], strides, t->shape == EACH_EACH ? 2 : 1);
}

static void fill_place(place *p, uint64_t key)
{
  tensor_fill(&p->t, key, 0x5a);
  for (int side = FROM; side <= TO; side++)
    for (size_t i = 0; p->spread[side] != NULL && i < p->t.n_bytes[side]; i++)
      p->spread[side][SPREAD * i] = p->t.bytes[side][i];
}

static bool holds(place *p, uint64_t key)
{
  for (size_t i = 0; p->spread[TO] != NULL && i < p->t.n_bytes[TO]; i++)
    p->t.bytes[TO][i] = p->spread[TO][SPREAD * i];
  return tensor_holds(&p->t, key);
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* The source is the caller's as soon as the stream has passed the call. */
static void overwrite(place *p, cudaStream_t stream)
{
  const size_t n = p->t.n_bytes[FROM];
  const bool is_spread = p->spread[FROM] != NULL;
  void *const at = is_spread ? p->spread[FROM] : p->t.bytes[FROM];
  cudaError_t error;

  if (n == 0) return;
  do /* a mishap by which calls of CUDA fail may hit this one too, which is the test's own */
    error = cudaMemsetAsync(at, 0xee, is_spread ? SPREAD * n : n, stream);
  while (error == cudaErrorMemoryAllocation);
  NEED(error == cudaSuccess);
}

static void redistribute(int rank, call *c, cudaStream_t stream, bool overwrites)
{
  place *p = &places[rank][c->kind][c->place];
  const xfer_view src = view_of(p, FROM);
  const xfer_view dst = view_of(p, TO);

  fill_place(p, c->key);
  tensor_open(&p->t, c->key);
  const int64_t began = world_ms();
  c->st = xfer_redistribute(comms[now.kinds[c->kind].comm][rank], p->t.layouts[FROM], &src,
                            p->t.layouts[TO], &dst, stream);
  NEED(world_ms() - began < PROMPT_MS);
  if (c->st == XFER_OK && overwrites) overwrite(p, stream);
  if (rank == 0) (void)atomic_fetch_add(&n_calls, 1);
  if (rank == 0 && c->st != XFER_OK) (void)atomic_fetch_add(&n_failed, 1);
}

/* Whatever this rank likes, before the calls of a round. */
static void prepare(int rank, int round, uint64_t number)
{
  rng r = rng_of(world_seed(), number * ROUNDS + (uint64_t)round, 10 + (uint64_t)rank);

  for (int k = 0; k < now.n_kinds; k++)
    for (int i = 0; i < PLACES; i++) {
      place *p = &places[rank][k][i];

      if (p->is_registered) continue;
      if (rng_percent(&r, 15)) { /* mostly at the same address */
        free_place(p);
        make_place(p, rank, k);
      }
      if (rng_percent(&r, 20)) drop_spread(p);
      for (int side = FROM; side <= TO; side++)
        if (rng_percent(&r, 15)) make_spread(p, side);
    }
}

/* Of some places, on all ranks or but on some. */
static void register_some(int rank, rng *shared)
{
  const int kind = rng_int(shared, 0, now.n_kinds - 1);
  const int at = rng_int(shared, 0, PLACES - 1);
  const int absent = rng_percent(shared, 50) ? rng_int(shared, 0, now.n_ranks - 1) : -1;
  place *p = &places[rank][kind][at];
  bool all_free = true;

  for (int i = 0; i < now.n_ranks; i++)
    all_free = all_free && !places[i][kind][at].is_registered;
  ranks_barrier();
  if (!all_free) return;
  for (int side = FROM; side <= TO; side++) {
    void *memory = rank == absent || p->t.n_bytes[side] == 0 ? NULL : p->t.bytes[side];

    OK(xfer_comm_register(comms[now.kinds[kind].comm][rank], memory));
  }
  drop_spread(p);
  p->is_registered = true; /* on all: nobody moves it */
}

/* A call of no use, many of which leave no other plan with the comm. None is meant to be late. */
static void call_many(int rank, int comm)
{
  OK(xfer_comm_set_timeout(comms[comm][rank], CALM_MS));
  for (int i = 0; i < MANY; i++) {
    tensor t;
    tensor_make(&t, RING, rank, 8 + i);
    const xfer_view src = xfer_view_dense(t.bytes[FROM]);
    const xfer_view dst = xfer_view_dense(t.bytes[TO]);
    tensor_open(&t, 1);
    OK(xfer_redistribute(comms[comm][rank], t.layouts[FROM], &src, t.layouts[TO], &dst,
                         streams[rank][i % STREAMS]));
    NEED(cudaStreamSynchronize(streams[rank][i % STREAMS]) == cudaSuccess);
    ranks_barrier();
    tensor_close(&t);
    tensor_free(&t);
  }
  OK(xfer_comm_set_timeout(comms[comm][rank], (uint64_t)now.timeout_ms));
}

static bool all_ok(int i, bool *any)
{
  bool all = true;

  *any = false;
  for (int rank = 0; rank < now.n_ranks; rank++) {
    all = all && calls[rank][i].st == XFER_OK;
    *any = *any || calls[rank][i].st == XFER_OK;
  }
  return all;
}

static void settle(int rank)
{
  ranks_barrier();
  NEED(sim_settle(SETTLE_MS));
  ranks_barrier();
  for (int k = 0; k < now.n_kinds; k++)
    for (int i = 0; i < PLACES; i++)
      tensor_close(&places[rank][k][i].t);
  ranks_barrier();
  NEED_NO_VIOLATION();
}

/* ---- a round -------------------------------------------------------------------------------- */

static void begin_mishap(int rank, mishap what, rng *own, int comm)
{
  const sim_fault failing = {
      .rank = rank, .percent = rng_int(own, 1, 8), .code = cudaErrorMemoryAllocation};
  const sim_fault no_memory = {.name = "cudaMalloc",
                               .rank = rank,
                               .nth = (uint64_t)rng_int(own, 1, 6),
                               .code = cudaErrorMemoryAllocation};

  if (what == REFUSES) OK(xfer_comm_refuse(comms[comm][rank], "this rank refuses"));
  if (what == NO_MEMORY) sim_fault_add(&no_memory);
  if (what == FAILING) sim_fault_add(&failing);
  if (what == LATE) world_sleep_ms(rng_int(own, 0, set.calm ? 30 : 2 * now.timeout_ms));
}

typedef struct hold {
  int rank;
  int64_t ms;
} hold;

static void *let_go(void *argument)
{
  const hold *h = argument;

  world_sleep_ms(h->ms);
  sim_hold(h->rank, false);
  return NULL;
}

/* Calls without a wait between them. How many. */
static int burst(int rank, int round, uint64_t number, mishap what)
{
  rng r = rng_of(world_seed(), number * ROUNDS + (uint64_t)round, 3); /* the same on all ranks */
  const int n = rng_int(&r, 1, BURST);
  const int sufferer = rng_int(&r, 0, now.n_ranks - 1);
  const int when = rng_int(&r, 0, n - 1);
  rng own = rng_of(world_seed(), number * ROUNDS + (uint64_t)round, 20 + (uint64_t)rank);
  hold holding = {rank, rng_int(&own, 0, set.calm ? 30 : 2 * now.timeout_ms)};
  bool holds_it = false;
  pthread_t helper;
  int used[KINDS] = {0};
  int made = 0;

  for (int i = 0; i < n; i++) {
    const int kind = rng_int(&r, 0, now.n_kinds - 1);
    if (used[kind] == PLACES) continue;
    call *c = &calls[rank][made++];
    *c = (call){kind, used[kind]++, number * 1000 + (uint64_t)(round * 100 + i) + 1, XFER_OK};
    const bool suffers = rank == sufferer && i == when;
    if (suffers) begin_mishap(rank, what, &own, now.kinds[kind].comm);
    if (suffers && what == BUSY) {
      sim_hold(rank, true);
      if (pthread_create(&helper, NULL, let_go, &holding) != 0) abort();
      holds_it = true;
    }
    if (rng_percent(&own, 10)) world_sleep_ms(rng_int(&own, 0, 5));
    redistribute(rank, c, streams[rank][rng_int(&own, 0, STREAMS - 1)], rng_percent(&own, 70));
  }
  if (holds_it) (void)pthread_join(helper, NULL);
  if (rank == sufferer && rng_percent(&own, 50)) sim_fault_clear();
  return made;
}

/* One more call of each kind; false: not all have worked on all ranks. */
static bool call_each(int rank, uint64_t key)
{
  bool all = true;
  bool any;

  for (int k = 0; k < now.n_kinds; k++) {
    calls[rank][BURST + k] = (call){k, PLACES - 1, key + (uint64_t)k, XFER_OK};
    redistribute(rank, &calls[rank][BURST + k], streams[rank][k % STREAMS], false);
  }
  settle(rank);
  for (int k = 0; k < now.n_kinds; k++)
    all = all_ok(BURST + k, &any) && all;
  ranks_barrier();
  return all;
}

static void look_at(int rank, int from, int n)
{
  bool any;

  for (int i = from; i < from + n; i++) {
    const call *c = &calls[rank][i];
    if (all_ok(i, &any)) NEED(holds(&places[rank][c->kind][c->place], c->key));
  }
}

/* false: the comm is of no more use. */
static bool play(int rank, int round, uint64_t number)
{
  rng r = rng_of(world_seed(), number * ROUNDS + (uint64_t)round, 4);
  const bool troubles = rng_percent(&r, 60) && (set.calm || round > 0);
  const mishap what = !troubles  ? NOTHING
                      : set.calm ? (mishap)rng_int(&r, NOTHING, BUSY)
                                 : (mishap)rng_int(&r, NOTHING, MISHAPS - 1);
  const uint64_t key = number * 1000 + (uint64_t)round * 100 + 50;
  bool any;

  if (set.verbose && rank == 0) printf("  round %d: %s\n", round, names[what]);
  prepare(rank, round, number);
  ranks_barrier();
  if (rng_percent(&r, 20)) register_some(rank, &r);
  if (rng_percent(&r, 4)) call_many(rank, rng_int(&r, 0, now.n_comms - 1));
  ranks_barrier();
  const int n = burst(rank, round, number, what);
  settle(rank);
  if (rank == 0) sim_fault_clear();
  ranks_barrier();
  /* Deadlines are real: a host that is loaded may miss one without any mishap. */
  for (int i = 0; i < n && set.calm; i++) {
    NEED(all_ok(i, &any) || !any);
    NEED(all_ok(i, &any) || what == REFUSES || what == NO_MEMORY);
  }
  if (set.calm) look_at(rank, 0, n);
  bool works = call_each(rank, key);
  for (int i = 1; i < TRIES && !works; i++)
    works = call_each(rank, key + (uint64_t)(10 * i));
  if (works) look_at(rank, BURST, now.n_kinds);
  NEED(works || !set.calm);
  if (!works && rank == 0) (void)atomic_fetch_add(&n_broken, 1);
  ranks_barrier();
  return works;
}

static uint64_t number_now;

static void work(int rank)
{
  for (int c = 0; c < now.n_comms; c++)
    OK(xfer_comm_set_timeout(comms[c][rank], CALM_MS));
  for (int s = 0; s < STREAMS; s++)
    streams[rank][s] = s == 0 && now.n_ranks % 2 == 0 ? NULL : world_stream();
  for (int k = 0; k < now.n_kinds; k++)
    for (int i = 0; i < PLACES; i++)
      make_place(&places[rank][k][i], rank, k);
  ranks_barrier();
  for (int i = 0; i < now.n_rounds; i++) {
    for (int c = 0; c < now.n_comms && i > 0; c++)
      OK(xfer_comm_set_timeout(comms[c][rank], (uint64_t)now.timeout_ms));
    if (!play(rank, i, number_now)) break;
  }
  for (int c = 0; c < now.n_comms; c++)
    xfer_comm_destroy(comms[c][rank]);
  ranks_barrier();
  for (int k = 0; k < now.n_kinds; k++)
    for (int i = 0; i < PLACES; i++)
      free_place(&places[rank][k][i]);
  for (int s = 0; s < STREAMS; s++)
    if (streams[rank][s] != NULL) NEED(cudaStreamDestroy(streams[rank][s]) == cudaSuccess);
  ranks_barrier();
  NEED_NO_VIOLATION();
}

static void one_case(uint64_t number)
{
  draw(number);
  number_now = number;
  if (set.verbose) {
    printf("case %" PRIu64 ": ranks=%d comms=%d kinds=%d comm=%d timeout=%d\n", number, now.n_ranks,
           now.n_comms, now.n_kinds, (int)now.kind, now.timeout_ms);
    (void)fflush(stdout);
  }
  case_runner_world(number, now.n_ranks, now.kind, topology(number), comms, now.n_comms);
  world_go(work);
  NEED(sim_count().bytes == 0 || n_broken > 0);
}

static void report(void)
{
  printf("calls=%" PRIu64 " failed=%" PRIu64 " broken=%" PRIu64 "\n", n_calls, n_failed, n_broken);
}

int main(int argc, char **argv)
{
  static const case_program program = {"calls", CASES, 1, one_case, report, NULL, NULL};

  return case_runner_main(argc, argv, &program);
}
