/* Messages and collectives, and the kernels that carry them out. */
#include "nccl_machine.h"

#include <stdlib.h>
#include <string.h>

enum { EAGER_BYTES = 64 * 1024 };

/* ---- meetings ----------------------------------------------------------------------------- */

/* Where a part stands in its meeting. */
static int seat(const part *p)
{
  if (p->task.kind == SEND) return 0;
  if (p->task.kind == RECV) return 1;
  return p->task.comm->rank;
}

static meeting *meeting_of(const part *p)
{
  const task *t = &p->task;
  job *j = t->comm->job;
  const bool message = is_message(t->kind);
  const int from = t->kind == RECV ? t->peer : message ? t->comm->rank : t->peer;
  const int to = t->kind == SEND ? t->peer : t->comm->rank;

  for (meeting *m = j->meetings; m != NULL; m = m->next) {
    if ((m->kind == SEND) != message || m->index != p->index) continue;
    if (!message || (m->from == from && m->to == to)) return m;
  }
  meeting *made = calloc(1, sizeof *made);
  if (made == NULL) abort();
  *made = (meeting){.next = j->meetings,
                    .kind = message ? SEND : t->kind,
                    .from = from,
                    .to = to,
                    .index = p->index,
                    .n_bytes = t->n_bytes};
  made->parts = calloc(message ? 2 : (size_t)j->size, sizeof(part *));
  if (made->parts == NULL) abort();
  j->meetings = made;
  return made;
}

void sim_nccl_meeting_free(job *j, meeting *m)
{
  meeting **at = &j->meetings;

  while (*at != m)
    at = &(*at)->next;
  *at = m->next;
  free(m->parts);
  free(m->eager);
  free(m);
}

/* A message's sender needs not wait for its receiver where a buffer takes the bytes. */
static void leave_early(part *p)
{
  meeting *m = p->meeting;

  if (p->task.kind != SEND || p->task.n_bytes > EAGER_BYTES || sim_draw(2) == 0) return;
  if (!sim_touch(p->op, p->task.in, p->task.n_bytes, false, 0)) return;
  m->eager = malloc(p->task.n_bytes);
  if (m->eager == NULL) abort();
  memcpy(m->eager, p->task.in, p->task.n_bytes);
}

static void come(part *p)
{
  meeting *m = meeting_of(p);
  const task *t = &p->task;

  if (m->n_bytes != t->n_bytes ||
      (!is_message(t->kind) && (m->kind != t->kind || m->from != t->peer)))
    sim_violation("NCCL: rank %d meets a peer with %zu bytes, it has %zu, or in another call",
                  t->comm->rank, m->n_bytes, t->n_bytes);
  if (t->n_bytes < m->n_bytes) m->n_bytes = t->n_bytes;
  p->meeting = m;
  m->parts[seat(p)] = p;
  m->n_come++;
  leave_early(p);
}

/* Bytes of a collective that this part receives: all of the root's, or each rank's. */
static size_t wanted(const part *p)
{
  const meeting *m = p->meeting;

  if (p->task.kind == SEND) return 0;
  return p->task.kind == ALL_GATHER ? m->n_bytes * (size_t)p->task.comm->job->size : m->n_bytes;
}

static bool has_all_come(const part *p)
{
  const meeting *m = p->meeting;

  if (p->task.kind == RECV && m->eager != NULL) return true;
  return m->n_come == (is_message(p->task.kind) ? 2 : p->task.comm->job->size);
}

/* Whose bytes come next, and which; NULL: they left. */
static const part *source(const part *p, size_t *at, size_t *n_bytes)
{
  const meeting *m = p->meeting;
  const size_t n = m->n_bytes;
  const size_t from = p->task.kind == RECV        ? 0
                      : p->task.kind == BROADCAST ? (size_t)m->from
                                                  : p->at / n;

  *at = p->task.kind == ALL_GATHER ? p->at % n : p->at;
  *n_bytes = n - *at;
  return m->parts[from];
}

/* Can it go on, or end? */
static bool can_go(const part *p)
{
  size_t at;
  size_t n_bytes;

  if (p->over) return false;
  if (p->task.kind == SEND) return p->meeting->eager != NULL || p->meeting->n_done > 0;
  if (!has_all_come(p)) return false;
  if (p->read) {
    const int readers = p->task.kind == RECV ? 1 : p->task.comm->job->size;
    const bool gives = p->task.kind == ALL_GATHER ||
                       (p->task.kind == BROADCAST && p->meeting->from == p->task.comm->rank);
    return !gives || p->meeting->n_done == readers;
  }
  if (p->at == wanted(p)) return true;
  if (p->task.kind == RECV && p->meeting->eager != NULL) return true;
  return source(p, &at, &n_bytes) != NULL;
}

static void leave_meeting(part *p)
{
  meeting *m = p->meeting;
  job *j = p->task.comm->job;
  const int all = is_message(p->task.kind) ? 2 : j->size;

  p->over = true;
  if (m == NULL) return;
  m->parts[seat(p)] = NULL;
  if (++m->n_left == all) sim_nccl_meeting_free(j, m);
  p->meeting = NULL;
}

/* Some bytes, or the end. */
static void go(part *p)
{
  size_t at = 0;
  size_t n = 0;

  if (p->task.kind == SEND || p->read) {
    leave_meeting(p);
    return;
  }
  if (p->at < wanted(p)) {
    const part *from = source(p, &at, &n);
    const char *bytes = p->meeting->eager != NULL ? p->meeting->eager + at : from->task.in + at;
    char *to = p->task.out + p->at;
    if (n > 1 && sim_draw(2) == 0) n = 1 + (size_t)sim_draw(n);
    const bool same = to == bytes;
    const xfi_copy copy = {.src = bytes, .dst = to, .run_bytes = (int64_t)n};
    if (!same && (p->meeting->eager != NULL || sim_touch(from->op, bytes, n, false, 0)) &&
        sim_touch(p->op, to, n, true, 0)) {
      sim_touched(p->op, &copy);
      memcpy(to, bytes, n);
    }
    p->at += n;
  }
  p->read = p->at == wanted(p);
  if (p->read) p->meeting->n_done++;
}

/* ---- kernels ------------------------------------------------------------------------------ */

static bool kernel_ready(sim_op *op)
{
  const kernel *k = (const kernel *)(const void *)op;
  bool left = false;

  if (k->comm->aborted) return true;
  if (!k->started) return k->comm->ended == k->turn;
  for (size_t i = 0; i < k->n; i++) {
    if (can_go(&k->parts[i])) return true;
    left = left || !k->parts[i].over;
  }
  return !left;
}

static bool kernel_step(sim_op *op)
{
  kernel *k = (kernel *)(void *)op;
  const size_t first = (size_t)sim_draw(k->n);
  bool left = false;

  if (k->comm->aborted) {
    for (size_t i = 0; i < k->n; i++)
      if (!k->parts[i].over) leave_meeting(&k->parts[i]);
    return true;
  }
  if (!k->started) {
    for (size_t i = 0; i < k->n; i++)
      come(&k->parts[i]);
    k->started = true;
    return false;
  }
  for (size_t i = 0; i < k->n; i++) {
    part *p = &k->parts[(first + i) % k->n];
    if (!can_go(p)) continue;
    go(p);
    break;
  }
  for (size_t i = 0; i < k->n; i++)
    left = left || !k->parts[i].over;
  if (!left) k->comm->ended++;
  return !left;
}

static void kernel_drop(sim_op *op)
{
  kernel *k = (kernel *)(void *)op;

  free(k->parts);
  sim_nccl_release(k->comm);
}

static const sim_op_class kernel_class = {
    .name = "kernel of NCCL", .ready = kernel_ready, .step = kernel_step, .drop = kernel_drop};

kernel *sim_nccl_kernel_make(struct ncclComm *comm, const task *tasks, int n, cudaStream_t stream)
{
  kernel *k = sim_op_make(&kernel_class, sizeof *k);

  k->comm = comm;
  comm->refs++;
  k->parts = calloc((size_t)n, sizeof *k->parts);
  if (k->parts == NULL) abort();
  for (int i = 0; i < n; i++) {
    const task *t = &tasks[i];
    if (t->comm != comm || t->stream != stream) continue;
    part *p = &k->parts[k->n++];
    *p = (part){.task = *t, .op = &k->op};
    p->index = t->kind == SEND   ? comm->sent[t->peer]++
               : t->kind == RECV ? comm->received[t->peer]++
                                 : comm->collectives++;
  }
  return k;
}
