/*
 * What must not happen: operations on memory that is gone or out of reach, on memory whose owner
 * has not opened it, and reads of bytes that nobody has written.
 */
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARDS_MAX = 1024, TEXT_BYTES = 400 };

typedef struct guard {
  const char *base; /* NULL: free */
  size_t n_bytes;
  int rank;
  bool open;
  uint64_t run;
  uint64_t closed_run;    /* the last that its owner was in */
  uint64_t closed_at;     /* operations up to this one came before it was closed */
  unsigned char *written; /* [n_bytes], where reads of what was not written are watched */
} guard;

static guard guards[GUARDS_MAX]; /* [n_guards] */
static int n_guards;
static size_t n_violations;
static char first_violation[TEXT_BYTES];

void sim_violation(const char *format, ...)
{
  va_list args;

  if (n_violations++ > 0) return;
  va_start(args, format);
  (void)vsnprintf(first_violation, sizeof first_violation, format, args);
  va_end(args);
}

size_t sim_violations(void)
{
  (void)pthread_mutex_lock(&sim.lock);
  const size_t n = n_violations;
  (void)pthread_mutex_unlock(&sim.lock);
  return n;
}

void sim_violations_take(char *text, size_t n_bytes)
{
  (void)pthread_mutex_lock(&sim.lock);
  (void)snprintf(text, n_bytes, "%s", first_violation);
  first_violation[0] = '\0';
  n_violations = 0;
  (void)pthread_mutex_unlock(&sim.lock);
}

/* ---- guards ------------------------------------------------------------------------------- */

int sim_guard(int rank, const void *memory, size_t n_bytes)
{
  int at = 0;

  (void)pthread_mutex_lock(&sim.lock);
  while (at < n_guards && guards[at].base != NULL)
    at++;
  if (at == GUARDS_MAX) abort();
  if (at == n_guards) n_guards++;
  guards[at] = (guard){.base = memory, .n_bytes = n_bytes, .rank = rank, .closed_at = sim.last_seq};
  (void)pthread_mutex_unlock(&sim.lock);
  return at;
}

void sim_guard_open(int at, uint64_t run)
{
  (void)pthread_mutex_lock(&sim.lock);
  guards[at].open = true;
  guards[at].run = run;
  (void)pthread_mutex_unlock(&sim.lock);
}

void sim_guard_close(int at)
{
  (void)pthread_mutex_lock(&sim.lock);
  guards[at].open = false;
  guards[at].closed_run = sim_self()->run;
  guards[at].closed_at = sim.last_seq;
  (void)pthread_mutex_unlock(&sim.lock);
}

void sim_guard_drop(int at)
{
  (void)pthread_mutex_lock(&sim.lock);
  free(guards[at].written);
  guards[at] = (guard){.base = NULL};
  (void)pthread_mutex_unlock(&sim.lock);
}

void sim_guard_unwritten(int at)
{
  guard *g = &guards[at];

  (void)pthread_mutex_lock(&sim.lock);
  free(g->written);
  g->written = calloc(1, g->n_bytes + 1);
  if (g->written == NULL) abort();
  (void)pthread_mutex_unlock(&sim.lock);
}

static bool allows(const guard *g, const sim_op *op, bool writes)
{
  if (op->rank == g->rank) return op->seq > g->closed_at;
  if (!writes && !g->open) return op->run > g->closed_run;
  return g->open && op->run == g->run;
}

static void check_guards(const sim_op *op, const char *bytes, size_t n_bytes, bool writes)
{
  for (int i = 0; i < n_guards; i++) {
    const guard *g = &guards[i];
    if (g->base == NULL || bytes >= g->base + g->n_bytes || bytes + n_bytes <= g->base) continue;
    if (allows(g, op, writes)) continue;
    sim_violation(
        "a %s of rank %d in run %llu %s %zu bytes at %td of rank %d's memory, which is %s",
        op->cls->name, op->rank, (unsigned long long)op->run, writes ? "writes" : "reads", n_bytes,
        bytes - g->base, g->rank, g->open ? "in another run" : "not open to it");
  }
}

/* ---- every access ------------------------------------------------------------------------- */

/* The file of a staged copy, or pageable memory, is not the machine's: such bytes are let be. */
bool sim_touch(const sim_op *op, const void *bytes, size_t n_bytes, bool writes, uint64_t id)
{
  const char *verb = writes ? "writes" : "reads";
  const sim_memory *memory = sim_memory_at(bytes);

  if (memory == NULL && id == 0 && !sim_memory_is_ours(bytes) && !op->cls->needs_access)
    return true;
  if (memory == NULL || !sim_memory_holds(bytes, n_bytes)) {
    sim_violation(
        "a %s of rank %d %s %zu bytes at %p, which are not, or no longer, in one allocation",
        op->cls->name, op->rank, verb, n_bytes, bytes);
    return false;
  }
  if (id != 0 && memory->id != id && memory->kind != SIM_CHUNK) {
    sim_violation("a %s of rank %d %s %zu bytes at %p, which were freed after it was enqueued",
                  op->cls->name, op->rank, verb, n_bytes, bytes);
    return false;
  }
  if (op->stream != NULL && op->cls->needs_access &&
      !sim_memory_reaches(sim_stream_device(op->stream), memory)) {
    sim_violation("a %s of rank %d on device %d %s memory of device %d, which it may not access",
                  op->cls->name, op->rank, sim_stream_device(op->stream), verb, memory->device);
    return false;
  }
  check_guards(op, bytes, n_bytes, writes);
  return true;
}

static void mark(const sim_op *op, const char *bytes, size_t n_bytes, bool writes)
{
  for (int i = 0; i < n_guards; i++) {
    const guard *g = &guards[i];
    if (g->base == NULL || g->written == NULL) continue;
    const char *from = bytes > g->base ? bytes : g->base;
    const char *end =
        bytes + n_bytes < g->base + g->n_bytes ? bytes + n_bytes : g->base + g->n_bytes;
    if (from >= end) continue;
    unsigned char *at = g->written + (from - g->base);
    if (writes) memset(at, 1, (size_t)(end - from));
    if (!writes && memchr(at, 0, (size_t)(end - from)) != NULL)
      sim_violation("a %s of rank %d reads bytes that have not arrived, at %td of rank %d's memory",
                    op->cls->name, op->rank, from - g->base, g->rank);
  }
}

static bool any_watched(void)
{
  for (int i = 0; i < n_guards; i++)
    if (guards[i].base != NULL && guards[i].written != NULL) return true;
  return false;
}

void sim_touched(const sim_op *op, const xfi_copy *copy)
{
  int64_t x[XFI_COPY_DIMS] = {0};
  int64_t d = 0;

  if (!any_watched()) return;
  while (d >= 0) {
    const char *src = copy->src;
    const char *dst = copy->dst;
    for (int64_t k = 0; k < copy->n_dims; k++) {
      if (src != NULL) src += x[k] * copy->src_stride[k];
      dst += x[k] * copy->dst_stride[k];
    }
    if (src != NULL) mark(op, src, (size_t)xfi_copy_src_run(copy), false);
    mark(op, dst, (size_t)copy->run_bytes, true);
    for (d = copy->n_dims - 1; d >= 0 && ++x[d] == copy->extent[d]; d--)
      x[d] = 0;
  }
}
