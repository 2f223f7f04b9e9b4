/*
 * Streams and steps.
 *
 * Which stream goes on is drawn as in probabilistic concurrency testing (Burckhardt and others,
 * 2010): streams have random weights, the heaviest that can go on does, and now and then a weight
 * is drawn anew. So some runs have a stream far behind all others, which equal chances never give.
 */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WATCHDOG_S = 90 };

typedef enum order { LEGACY, BLOCKING, FREE } order;

struct CUstream_st {
  int device;
  order order;
  sim_op *head;
  sim_op *tail;
  size_t n;
  uint64_t weight;
  size_t index; /* in `active`, while n > 0 */
  int queue;    /* of the hardware's */
  bool destroyed;
  bool busy; /* a function of the host runs */
  sim_capture *capture;
};
struct sim_stream {
  struct CUstream_st s;
};

static sim_stream *active[4096]; /* [n_active] with operations */
static size_t n_active;
static sim_stream *legacy[SIM_DEVICES];
static uint64_t n_made; /* streams, for the hardware's queues */

/* ---- streams ------------------------------------------------------------------------------ */

static sim_stream *stream_make(int device, order kind)
{
  sim_stream *stream = calloc(1, sizeof *stream);

  if (stream == NULL) abort();
  stream->s =
      (struct CUstream_st){.device = device, .order = kind, .weight = sim_draw(UINT64_C(1) << 32)};
  stream->s.queue =
      sim.config.connections > 0 ? (int)(n_made++ % (uint64_t)sim.config.connections) : -1;
  return stream;
}

sim_stream *sim_stream_of(cudaStream_t handle)
{
  sim_thread *self = sim_self();
  sim_stream **at;

  if (handle != NULL && handle != cudaStreamLegacy && handle != cudaStreamPerThread)
    return (sim_stream *)(void *)handle;
  at = handle == cudaStreamPerThread ? &self->streams[self->device] : &legacy[self->device];
  if (*at == NULL)
    *at = stream_make(self->device, handle == cudaStreamPerThread ? BLOCKING : LEGACY);
  return *at;
}

int sim_stream_device(const sim_stream *stream)
{
  return stream->s.device;
}

sim_capture **sim_stream_capture(sim_stream *stream)
{
  return &stream->s.capture;
}

bool sim_stream_is_legacy(const sim_stream *stream)
{
  return stream->s.order == LEGACY;
}

bool sim_stream_is_blocking(const sim_stream *stream)
{
  return stream->s.order == BLOCKING;
}

static void stream_free_if_done(sim_stream *stream)
{
  if (!stream->s.destroyed || stream->s.n > 0) return;
  sim.counts.streams--;
  free(stream);
}

/* ---- operations --------------------------------------------------------------------------- */

void *sim_op_make(const sim_op_class *cls, size_t n_bytes)
{
  sim_op *op = calloc(1, n_bytes);

  if (op == NULL) abort();
  op->cls = cls;
  op->rank = sim_self()->rank;
  op->run = sim_self()->run;
  return op;
}

void sim_op_drop(sim_op *op)
{
  if (op->cls->drop != NULL) op->cls->drop(op);
  free(op);
}

static bool has_room(void *context)
{
  return ((sim_stream *)context)->s.n < SIM_QUEUE_LIMIT;
}

cudaError_t sim_enqueue(void *operation, sim_stream *stream)
{
  sim_op *op = operation;

  op->stream = stream;
  if (stream->s.capture != NULL) return sim_capture_take(stream->s.capture, op);
  if (stream->s.order == LEGACY && sim_capture_forbids_legacy(stream->s.device, false)) {
    sim_op_drop(op);
    return cudaErrorStreamCaptureImplicit;
  }
  if (!has_room(stream)) {
    sim.counts.full++;
    sim_wait_until(has_room, stream, "room in a full queue");
  }
  op->seq = ++sim.last_seq;
  op->next = NULL;
  if (stream->s.head == NULL) {
    if (n_active == sizeof active / sizeof active[0]) abort();
    stream->s.head = op;
    stream->s.index = n_active;
    active[n_active++] = stream;
    if (n_active == 1) (void)pthread_cond_signal(&sim.work);
  } else {
    stream->s.tail->next = op;
  }
  stream->s.tail = op;
  if (++stream->s.n > sim.counts.queued_max) sim.counts.queued_max = stream->s.n;
  return cudaSuccess;
}

static void pop(sim_stream *stream)
{
  sim_op *op = stream->s.head;

  stream->s.head = op->next;
  stream->s.n--;
  if (stream->s.head == NULL) {
    sim_stream *last = active[--n_active];
    active[stream->s.index] = last;
    last->s.index = stream->s.index;
  }
  sim_op_drop(op);
  stream_free_if_done(stream);
}

/* ---- steps -------------------------------------------------------------------------------- */

/* Does an operation of another stream go first? */
static bool is_behind(const sim_stream *stream)
{
  const uint64_t seq = stream->s.head->seq;

  if (stream->s.order == FREE && stream->s.queue < 0) return false;
  for (size_t i = 0; i < n_active; i++) {
    const sim_stream *other = active[i];
    const bool ordered = stream->s.order != FREE && other->s.order != FREE &&
                         (stream->s.order == LEGACY || other->s.order == LEGACY);

    if (other->s.device != stream->s.device || other->s.head->seq >= seq) continue;
    if (ordered || (stream->s.queue >= 0 && other->s.queue == stream->s.queue)) return true;
  }
  return false;
}

static bool can_go(sim_stream *stream)
{
  sim_op *op = stream->s.head;

  if (stream->s.busy || sim.held[stream->s.device] || is_behind(stream)) return false;
  return op->cls->ready == NULL || op->cls->ready(op);
}

static sim_stream *pick(void)
{
  sim_stream *best = NULL;
  const size_t first = n_active > 0 ? (size_t)sim_draw(n_active) : 0;
  const bool any = sim_draw(4) == 0;

  for (size_t i = 0; i < n_active; i++) {
    sim_stream *stream = active[(first + i) % n_active];
    if (best != NULL && stream->s.weight <= best->s.weight) continue;
    if (!can_go(stream)) continue;
    best = stream;
    if (any) break;
  }
  return best;
}

bool sim_step(void)
{
  sim_stream *stream = pick();

  if (stream == NULL) return false;
  sim.counts.steps++;
  if (sim_draw(16) == 0) stream->s.weight = sim_draw(UINT64_C(1) << 32);
  stream->s.busy = true; /* a step may let the lock go */
  const bool done = stream->s.head->cls->step(stream->s.head);
  stream->s.busy = false;
  if (done) pop(stream);
  return true;
}

bool sim_is_idle(void)
{
  return n_active == 0;
}

void sim_streams_dump(void)
{
  fprintf(stderr, "sim: %zu streams have work\n", n_active);
  for (size_t i = 0; i < n_active; i++) {
    const sim_stream *stream = active[i];
    fprintf(stderr,
            "  device %d %s stream %p: %zu operations, the first: %s of rank %d in run %llu%s\n",
            stream->s.device,
            stream->s.order == LEGACY     ? "legacy"
            : stream->s.order == BLOCKING ? "blocking"
                                          : "free",
            (const void *)stream, stream->s.n, stream->s.head->cls->name, stream->s.head->rank,
            (unsigned long long)stream->s.head->run, is_behind(stream) ? ", behind another" : "");
  }
}

void sim_wait_until(bool (*done)(void *context), void *context, const char *what)
{
  const int64_t began = sim_now_ns();
  int idle = 0;

  while (!done(context)) {
    const bool moved = sim_step();
    (void)pthread_mutex_unlock(&sim.lock);
    idle = moved ? 0 : idle + 1;
    if (idle > 0) sim_sleep_us(idle < 20 ? 10 : 100);
    (void)pthread_mutex_lock(&sim.lock);
    if (sim_now_ns() - began < (int64_t)WATCHDOG_S * 1000000000) continue;
    fprintf(stderr, "sim: rank %d waits for %s since %d s\n", sim_self()->rank, what, WATCHDOG_S);
    sim_streams_dump();
    abort();
  }
}

/* A look at a stream or an event lets the machine go on by some steps, or none. One that is in vain
 * takes a while, since a rank that does nothing else holds up the others. */
void sim_poll_steps(void)
{
  bool moved = true;

  for (uint64_t n = sim_draw(4); n > 0 && moved; n--)
    moved = sim_step();
  if (moved) return;
  (void)pthread_mutex_unlock(&sim.lock);
  sim_sleep_us(5);
  (void)pthread_mutex_lock(&sim.lock);
}

static bool device_is_idle(void *context)
{
  const int device = *(const int *)context;

  for (size_t i = 0; i < n_active; i++)
    if (active[i]->s.device == device) return false;
  return true;
}

void sim_wait_device(int device)
{
  sim_wait_until(device_is_idle, &device, "a device");
}

/* ---- the API: streams --------------------------------------------------------------------- */

static cudaError_t create(cudaStream_t *out, unsigned flags)
{
  if ((flags & ~(unsigned)cudaStreamNonBlocking) != 0) return cudaErrorInvalidValue;
  sim_stream *stream =
      stream_make(sim_self()->device, (flags & cudaStreamNonBlocking) != 0 ? FREE : BLOCKING);
  sim.counts.streams++;
  *out = &stream->s;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t *stream)
{
  SIM_ENTER(SIM_SAFE);
  return sim_leave(create(stream, cudaStreamDefault));
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
  SIM_ENTER(SIM_SAFE);
  return sim_leave(create(stream, flags));
}

cudaError_t CUDARTAPI cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                                                   int priority)
{
  SIM_ENTER(SIM_SAFE);
  (void)priority;
  return sim_leave(create(stream, flags));
}

/* What is queued is still done. */
cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t handle)
{
  SIM_ENTER(SIM_SAFE);
  sim_stream *stream = sim_stream_of(handle);
  if (handle == NULL || stream->s.destroyed) return sim_leave(cudaErrorInvalidResourceHandle);
  stream->s.destroyed = true;
  stream_free_if_done(stream);
  return sim_leave(cudaSuccess);
}

/* Waiting for, or asking after, a capturing stream ends its capture. */
static cudaError_t refuse_capturing(sim_stream *stream)
{
  if (stream->s.capture == NULL) return cudaSuccess;
  sim_capture_invalidate(stream->s.capture);
  return cudaErrorStreamCaptureUnsupported;
}

/* All that the legacy stream waits for, or one stream's operations up to `seq`. */
typedef struct until {
  sim_stream *stream;
  uint64_t seq;
} until;

static bool has_passed(void *context)
{
  const until *u = context;

  for (size_t i = 0; i < n_active; i++) {
    const sim_stream *stream = active[i];
    const bool counts =
        stream == u->stream || (u->stream->s.order == LEGACY && stream->s.order == BLOCKING &&
                                stream->s.device == u->stream->s.device);
    if (counts && stream->s.head->seq <= u->seq) return false;
  }
  return true;
}

cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t handle)
{
  SIM_ENTER(SIM_UNSAFE);
  until u = {sim_stream_of(handle), sim.last_seq};
  const cudaError_t error = refuse_capturing(u.stream);
  if (error == cudaSuccess) sim_wait_until(has_passed, &u, "a stream");
  return sim_leave(error);
}

cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t handle)
{
  SIM_ENTER(SIM_UNSAFE);
  until u = {sim_stream_of(handle), sim.last_seq};
  const cudaError_t error = refuse_capturing(u.stream);
  if (error != cudaSuccess) return sim_leave(error);
  sim_poll_steps();
  return sim_leave(has_passed(&u) ? cudaSuccess : cudaErrorNotReady);
}

/* ---- functions of the host ---------------------------------------------------------------- */

typedef struct host_op {
  sim_op op;
  cudaHostFn_t function;
  void *context;
} host_op;

static bool host_step(sim_op *op)
{
  const host_op *o = (const host_op *)(void *)op;

  (void)pthread_mutex_unlock(&sim.lock);
  o->function(o->context);
  (void)pthread_mutex_lock(&sim.lock);
  return true;
}

static const sim_op_class host_class = {
    .name = "host function", .step = host_step, .in_graphs = true};

cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *context)
{
  SIM_ENTER(SIM_SAFE);
  host_op *op = sim_op_make(&host_class, sizeof *op);
  op->function = function;
  op->context = context;
  return sim_leave(sim_enqueue(op, sim_stream_of(stream)));
}
