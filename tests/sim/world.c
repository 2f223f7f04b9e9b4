#include "world.h"

#include "rng.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

world w;

enum { MORE_TIME = 4, MOST_TIME = 16, BLOCK_BYTES = 4096 };

static uint64_t seed = 1;
static int slack = 1;
static _Atomic int64_t began_ms;
static bool has_case;
static uint64_t case_number;
static const char *test_name;
static _Thread_local int own_rank = -1;

/* ---- the runner --------------------------------------------------------------------------- */

static int64_t now_ms(void)
{
  struct timespec now;

  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t world_ms(void)
{
  return now_ms() - began_ms;
}

void world_sleep_ms(int64_t ms)
{
  const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

  (void)nanosleep(&pause, NULL);
}

int64_t world_time(int64_t ms)
{
  return ms * slack;
}

uint64_t world_seed(void)
{
  return seed;
}

void world_set_seed(uint64_t wanted)
{
  seed = wanted;
}

void world_case(uint64_t number)
{
  began_ms = now_ms();
  case_number = number;
  has_case = true;
}

static void say_where(const char *file, int line, const char *what)
{
  const char *short_name = strrchr(file, '/');

  fprintf(stderr, "%s:%d: rank %d after %lld ms: not so: %s; the library's last words: %s\n",
          short_name != NULL ? short_name + 1 : file, line, own_rank, (long long)world_ms(), what,
          xfer_last_error());
  fprintf(stderr, "%s: again with --seed %llu", test_name, (unsigned long long)seed);
  if (has_case) fprintf(stderr, " --only %llu", (unsigned long long)case_number);
  fprintf(stderr, "\n");
  (void)fflush(NULL);
}

void world_failed(const char *file, int line, const char *what)
{
  say_where(file, line, what);
  _exit(1);
}

void world_too_slow(const char *file, int line, const char *what)
{
  say_where(file, line, what);
  _exit(WORLD_TOO_SLOW);
}

void world_need_no_violation(const char *file, int line)
{
  char text[400];

  if (sim_violations() == 0) return;
  sim_violations_take(text, sizeof text);
  world_failed(file, line, text);
}

/* Ends a test that hangs, and says where the machine stands. */
static void *watchdog(void *unused)
{
  (void)unused;
  while (world_ms() < (int64_t)WORLD_PATIENCE_S * 1000)
    world_sleep_ms(500);
  fprintf(stderr, "%s hangs\n", test_name);
  sim_dump();
  world_failed(__FILE__, __LINE__, "an end");
  return NULL;
}

void world_run_one(const world_test *test)
{
  pthread_t thread;
  sigset_t all;
  sigset_t before;

  test_name = test->name;
  began_ms = now_ms();
  (void)sigfillset(&all); /* signals are the test's */
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  if (pthread_create(&thread, NULL, watchdog, NULL) != 0) abort();
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  test->run();
  printf("%s ok\n", test->name);
  (void)fflush(NULL);
  _exit(0); /* the watchdog sleeps on */
}

/* In a process of its own, until there was time enough. */
static bool passes(const world_test *test)
{
  for (slack = 1;; slack *= MORE_TIME) {
    int status = 0;
    (void)fflush(NULL);
    const pid_t child = fork(); /* before any thread */
    if (child == 0) world_run_one(test);
    if (child < 0 || waitpid(child, &status, 0) != child) abort();
    if (WIFSIGNALED(status)) printf("%s ends by signal %d\n", test->name, WTERMSIG(status));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != WORLD_TOO_SLOW || slack >= MOST_TIME)
      return status == 0;
    fprintf(stderr, "too slow for its deadlines: again with more time\n");
  }
}

static int run_all(const world_test *tests, size_t n)
{
  int n_failed = 0;

  for (size_t i = 0; i < n; i++) {
    if (passes(&tests[i])) continue;
    printf("%s FAILED\n", tests[i].name);
    n_failed++;
  }
  printf("%zu tests, %d failed\n", n, n_failed);
  return n_failed == 0 ? 0 : 1;
}

int world_main(int argc, char **argv, const world_test *tests, size_t n)
{
  const char *wanted = NULL;

  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
      seed = strtoull(argv[++i], NULL, 10);
    else
      wanted = argv[i];
  }
  if (wanted == NULL) return run_all(tests, n);
  for (size_t i = 0; i < n; i++)
    if (strcmp(tests[i].name, wanted) == 0) return passes(&tests[i]) ? 0 : 1;
  fprintf(stderr, "no test %s\n", wanted);
  return 2;
}

/* ---- ranks -------------------------------------------------------------------------------- */

void world_clear(int n, sim_config config)
{
  config.seed = seed;
  if (config.n_devices == 0) config.n_devices = n;
  sim_setup(&config);
  w = (world){.n = n, .n_devices = config.n_devices};
}

void world_make(int n, comm_kind kind, sim_config config)
{
  world_clear(n, config);
  OK(ranks_make_comms(w.comms, n, kind, w.n_devices));
}

static void work_of(void *context, int rank)
{
  void (*work)(int rank);

  memcpy(&work, context, sizeof work);
  own_rank = rank;
  work(rank);
}

void world_go(void (*work)(int rank))
{
  NEED(ranks_run(w.n, w.n_devices, work_of, &work, WORLD_PATIENCE_S));
}

void world_destroy(void)
{
  for (int r = 0; r < w.n; r++)
    xfer_comm_destroy(w.comms[r]);
}

/* Calls of a test's own are none of the library's: captures of other threads let them pass. */
static enum cudaStreamCaptureMode exchange(enum cudaStreamCaptureMode mode)
{
  NEED(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  return mode;
}

void *world_alloc(size_t n_bytes)
{
  const enum cudaStreamCaptureMode before = exchange(cudaStreamCaptureModeRelaxed);
  void *memory = NULL;

  NEED(cudaMalloc(&memory, n_bytes) == cudaSuccess);
  (void)exchange(before);
  return memory;
}

void world_free(void *memory)
{
  const enum cudaStreamCaptureMode before = exchange(cudaStreamCaptureModeRelaxed);

  NEED(cudaFree(memory) == cudaSuccess);
  (void)exchange(before);
}

cudaStream_t world_stream(void)
{
  cudaStream_t stream = NULL;

  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  return stream;
}

void world_hold_up(cudaStream_t stream, int spare)
{
  cudaStream_t other = NULL;
  cudaEvent_t event = NULL;
  int device = 0;

  NEED(cudaGetDevice(&device) == cudaSuccess && cudaSetDevice(spare) == cudaSuccess);
  NEED(cudaStreamCreate(&other) == cudaSuccess && cudaEventCreate(&event) == cudaSuccess);
  sim_hold(spare, true);
  NEED(cudaEventRecord(event, other) == cudaSuccess);
  NEED(cudaSetDevice(device) == cudaSuccess);
  NEED(cudaStreamWaitEvent(stream, event, 0) == cudaSuccess);
  NEED(cudaEventDestroy(event) == cudaSuccess && cudaStreamDestroy(other) == cudaSuccess);
}

void world_let_go_on(int rank, cudaStream_t stream)
{
  if (rank == 1) sim_hold(w.n, false);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
}

uint64_t world_launches(void)
{
  return sim_calls_of("copy kernel");
}

/* ---- tensors ------------------------------------------------------------------------------ */

static void line_of(char *line, size_t n_bytes, form shape, int64_t width)
{
  const long long wide = width;
  size_t at;

  if (shape == EACH_EACH) {
    (void)snprintf(line, n_bytes, "u8[%d,%lld] (%d)@0-%d:S0 -> (%d)@0-%d:S1", w.n, wide * w.n, w.n,
                   w.n - 1, w.n, w.n - 1);
    return;
  }
  if (shape == FROM_FIRST) {
    (void)snprintf(line, n_bytes, "u8[%lld] (1)@0:R -> (%d)@1-%d:R", wide, w.n - 1, w.n - 1);
    return;
  }
  if (shape == FROM_LAST) {
    (void)snprintf(line, n_bytes, "u8[%lld] (1)@%d:R -> (%d):R", wide, w.n - 1, w.n - 1);
    return;
  }
  at = (size_t)snprintf(line, n_bytes, "u8[%lld] (%d)@0-%d:S0 -> (%d)@", wide * w.n, w.n, w.n - 1,
                        w.n);
  for (int r = 0; r < w.n; r++)
    at += (size_t)snprintf(line + at, n_bytes - at, r == 0 ? "%d" : ",%d", (r + 1) % w.n);
  (void)snprintf(line + at, n_bytes - at, ":S0");
}

static size_t bytes_of(const tensor *t, int side)
{
  if (t->shape == RING) return (size_t)t->width;
  if (t->shape == EACH_EACH) return (size_t)t->width * (size_t)w.n;
  return (t->rank == (t->shape == FROM_FIRST ? 0 : w.n - 1)) == (side == FROM) ? (size_t)t->width
                                                                               : 0;
}

void tensor_make(tensor *t, form shape, int rank, int64_t width)
{
  char line[400];

  *t = (tensor){.shape = shape, .rank = rank, .width = width};
  line_of(line, sizeof line, shape, width);
  OK(xfer_problem_parse(&t->layouts[FROM], &t->layouts[TO], line));
  for (int side = FROM; side <= TO; side++) {
    t->n_bytes[side] = bytes_of(t, side);
    if (t->n_bytes[side] == 0) continue;
    t->bytes[side] = world_alloc(t->n_bytes[side] + TENSOR_ROOM);
    t->guards[side] = sim_guard(rank, t->bytes[side], t->n_bytes[side]);
  }
}

void tensor_free(tensor *t)
{
  for (int side = FROM; side <= TO; side++) {
    if (t->n_bytes[side] > 0) sim_guard_drop(t->guards[side]);
    if (t->n_bytes[side] > 0) world_free(t->bytes[side]);
    xfer_layout_destroy(t->layouts[side]);
  }
}

/* The index in the whole tensor of byte i of a part. */
static uint64_t global_of(const tensor *t, int side, uint64_t i)
{
  const uint64_t width = (uint64_t)t->width;
  const uint64_t n = (uint64_t)w.n;
  const uint64_t rank = (uint64_t)t->rank;

  if (t->shape == FROM_FIRST || t->shape == FROM_LAST) return i;
  if (side == FROM) return rank * bytes_of(t, side) + i;
  if (t->shape == RING) return (rank + n - 1) % n * width + i;
  return i / width * width * n + rank * width + i % width;
}

/* From byte i of a part on, how many follow each other in the whole tensor too; at most a block. */
static size_t run_of(const tensor *t, int side, size_t i)
{
  size_t n = t->n_bytes[side] - i;

  if (t->shape == EACH_EACH && side == TO) {
    const size_t row = (size_t)t->width - i % (size_t)t->width;

    if (row < n) n = row;
  }
  return n < BLOCK_BYTES ? n : BLOCK_BYTES;
}

/* The values of n bytes of the whole tensor. The thread sanitizer need not look at each of them: it
 * sees where the block is copied or compared. */
__attribute__((noinline, no_sanitize("thread"))) static void
values(unsigned char *block, uint64_t key, uint64_t first, size_t n)
{
  size_t i = 0;

  while (i < n) {
    const uint64_t at = first + i;
    uint64_t word = rng_mix(key * UINT64_C(0x9e3779b97f4a7c15) + at / 8) >> at % 8 * 8;

    for (uint64_t left = 8 - at % 8; left > 0 && i < n; left--) {
      block[i++] = (unsigned char)word;
      word >>= 8;
    }
  }
}

xfer_status tensor_redistribute(const tensor *t, cudaStream_t stream)
{
  const xfer_view src = xfer_view_dense(t->bytes[FROM]);
  const xfer_view dst = xfer_view_dense(t->bytes[TO]);

  return xfer_redistribute(w.comms[t->rank], t->layouts[FROM], &src, t->layouts[TO], &dst, stream);
}

void tensor_fill(const tensor *t, uint64_t key, int byte)
{
  unsigned char block[BLOCK_BYTES];

  for (size_t i = 0, n; i < t->n_bytes[FROM]; i += n) {
    n = run_of(t, FROM, i);
    values(block, key, global_of(t, FROM, i), n);
    memcpy(t->bytes[FROM] + i, block, n);
  }
  if (t->n_bytes[TO] > 0) memset(t->bytes[TO], byte, t->n_bytes[TO]);
}

bool tensor_holds(const tensor *t, uint64_t key)
{
  unsigned char block[BLOCK_BYTES];

  for (size_t i = 0, n; i < t->n_bytes[TO]; i += n) {
    n = run_of(t, TO, i);
    values(block, key, global_of(t, TO, i), n);
    if (memcmp(t->bytes[TO] + i, block, n) != 0) return false;
  }
  return true;
}

bool tensor_is_all(const tensor *t, int byte)
{
  for (size_t i = 0; i < t->n_bytes[TO]; i++)
    if (t->bytes[TO][i] != byte) return false;
  return true;
}

void tensor_open(const tensor *t, uint64_t run)
{
  sim_run(run);
  for (int side = FROM; side <= TO; side++)
    if (t->n_bytes[side] > 0) sim_guard_open(t->guards[side], run);
}

void tensor_close(const tensor *t)
{
  for (int side = FROM; side <= TO; side++)
    if (t->n_bytes[side] > 0) sim_guard_close(t->guards[side]);
}

/* ---- plans -------------------------------------------------------------------------------- */

uint32_t world_ranks_per_domain(form shape)
{
  return shape == FROM_LAST ? (uint32_t)w.n - 1 : 0;
}

xfer_plan *world_plan(int rank, const tensor *tensors, size_t n, xfer_lane lane,
                      uint64_t timeout_ms)
{
  xfer_plan *plan = NULL;
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor *list = calloc(n, sizeof *list);
  char(*names)[24] = calloc(n, sizeof *names);

  NEED(list != NULL && names != NULL);
  options.lane = (uint32_t)lane;
  options.window_bytes = w.window_bytes;
  options.timeout_ms = timeout_ms;
  options.ranks_per_domain = world_ranks_per_domain(tensors[0].shape);
  for (size_t i = 0; i < n; i++) {
    (void)snprintf(names[i], sizeof names[i], "t%zu", i);
    list[i] = (xfer_tensor){
        .name = names[i], .src = tensors[i].layouts[FROM], .dst = tensors[i].layouts[TO]};
  }
  if (xfer_plan_create(&plan, w.comms[rank], list, n, &options) != XFER_OK)
    world_too_slow(__FILE__, __LINE__, "a plan in good time");
  for (size_t i = 0; i < n; i++) {
    const xfer_view src = xfer_view_dense(tensors[i].bytes[FROM]);
    const xfer_view dst = xfer_view_dense(tensors[i].bytes[TO]);
    OK(xfer_plan_bind(plan, i, &src, &dst));
  }
  free(list);
  free(names);
  return plan;
}

void world_run(xfer_plan *plan, const tensor *tensors, size_t n, uint64_t version,
               cudaStream_t stream)
{
  for (size_t i = 0; i < n; i++) {
    tensor_fill(&tensors[i], version + i, 0x5a);
    tensor_open(&tensors[i], version);
  }
  OK(xfer_plan_run(plan, version, stream));
  OK(xfer_plan_wait(plan, 0));
  for (size_t i = 0; i < n; i++) {
    tensor_close(&tensors[i]);
    NEED(tensor_holds(&tensors[i], version + i));
  }
  NEED_NO_VIOLATION();
}

int world_gather_alone(void *context, void *all, const void *mine, size_t n_bytes)
{
  (void)context;
  memcpy(all, mine, n_bytes);
  return 0;
}

void world_of(int n, comm_kind kind, sim_config config, void (*work)(int rank))
{
  world_make(n, kind, config);
  world_go(work);
  NEED_NO_VIOLATION();
}
