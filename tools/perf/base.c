/*
 * Broadcasts into two buckets of 1 GiB in turn, sliced on a second stream while the next one fills.
 * The root packs on that stream too.
 */
#include "base.h"

#include "slices.h"

#include <string.h>

static const size_t BUCKET = (size_t)1 << 30;
enum { RUNS = 3 };

typedef struct base {
  const perf_case *c;
  perf_slices s;
  bool packed;
  char *scratch;          /* [2][BUCKET] */
  cudaEvent_t arrived[2]; /* on the stream of broadcasts */
  cudaEvent_t emptied[2]; /* on the side */
  cudaEvent_t packed_up[2];
} base;

static void fill_buckets(perf_slices *s, bool packed)
{
  size_t at = 0;
  int bucket = 0;

  for (size_t i = 0; i < s->n_pieces; i++) {
    perf_piece *p = &s->pieces[i];
    bool other_root = packed && i > 0 && p->root != s->pieces[i - 1].root;
    if (at > 0 && (at + p->n_bytes > BUCKET || other_root)) {
      at = 0;
      bucket++;
    }
    p->bucket = bucket;
    p->at = at;
    at += (p->n_bytes + 255) / 256 * 256;
  }
}

static char *source(const base *b, const perf_piece *p)
{
  return b->c->buffers[p->local].base + p->offset;
}

static void send_each(perf_world *w, const base *b, size_t first, size_t end, char *slot)
{
  for (size_t i = first; i < end; i++) {
    const perf_piece *p = &b->s.pieces[i];
    char *at = w->rank == p->root ? source(b, p) : slot + p->at;
    NCCL(w, ncclBroadcast(at, at, p->n_bytes, ncclChar, p->root, w->nccl, w->stream));
  }
}

static void send_packed(perf_world *w, const base *b, size_t first, size_t end, int which)
{
  char *slot = b->scratch + (size_t)which * BUCKET;
  const perf_piece *last = &b->s.pieces[end - 1];

  if (w->rank == last->root) {
    CUDA(w, cudaStreamWaitEvent, (w->side, b->arrived[which], 0));
    for (size_t i = first; i < end; i++) {
      const perf_piece *p = &b->s.pieces[i];
      CUDA(w, cudaMemcpyAsync,
           (slot + p->at, source(b, p), p->n_bytes, cudaMemcpyDeviceToDevice, w->side));
    }
    CUDA(w, cudaEventRecord, (b->packed_up[which], w->side));
    CUDA(w, cudaStreamWaitEvent, (w->stream, b->packed_up[which], 0));
  }
  NCCL(w, ncclBroadcast(slot, slot, last->at + last->n_bytes, ncclChar, last->root, w->nccl,
                        w->stream));
}

static size_t slice_bucket(perf_world *w, const base *b, size_t slice, size_t end, const char *slot)
{
  for (; slice < b->s.n_slices && b->s.slices[slice].piece < end; slice++) {
    const perf_slice *s = &b->s.slices[slice];
    const char *from = slot + b->s.pieces[s->piece].at + s->offset;
    CUDA(w, cudaMemcpy2DAsync,
         (s->dst, s->dst_pitch, from, s->src_pitch, s->width, s->height, cudaMemcpyDeviceToDevice,
          w->side));
  }
  return slice;
}

static void run(perf_world *w, void *context)
{
  const base *b = context;
  size_t slice = 0;
  size_t end = 0;

  for (size_t first = 0; first < b->s.n_pieces; first = end) {
    int which = b->s.pieces[first].bucket % 2;
    char *slot = b->scratch + (size_t)which * BUCKET;
    for (end = first; end < b->s.n_pieces; end++)
      if (b->s.pieces[end].bucket != b->s.pieces[first].bucket) break;
    CUDA(w, cudaStreamWaitEvent, (w->stream, b->emptied[which], 0));
    if (b->packed)
      send_packed(w, b, first, end, which);
    else
      send_each(w, b, first, end, slot);
    CUDA(w, cudaEventRecord, (b->arrived[which], w->stream));
    CUDA(w, cudaStreamWaitEvent, (w->side, b->arrived[which], 0));
    slice = slice_bucket(w, b, slice, end, slot);
    CUDA(w, cudaEventRecord, (b->emptied[which], w->side));
  }
  for (int which = 0; which < 2; which++)
    CUDA(w, cudaStreamWaitEvent, (w->stream, b->emptied[which], 0));
}

/* The largest piece must fit. */
static bool fits(const perf_slices *s)
{
  for (size_t i = 0; i < s->n_pieces; i++)
    if (s->pieces[i].n_bytes > BUCKET) return false;
  return true;
}

static void measure(perf_world *w, base *b, perf_row *row)
{
  double seconds[RUNS];

  perf_case_poison(b->c, w);
  (void)perf_time(w, run, b);
  row->wrong = perf_case_check(b->c, w);
  for (int i = 0; i < RUNS; i++)
    seconds[i] = perf_time(w, run, b);
  row->ms = progress_median(seconds, RUNS) * 1e3;
  row->gbps = perf_max(w, (double)b->c->dst_bytes) / row->ms / 1e6;
}

void perf_base(perf_world *w, const perf_case *c, perf_base_way way, const char *name,
               double reference_ms, double bar)
{
  base b = {.c = c, .packed = way == BASE_PACKED};
  perf_row *row = perf_row_new(w, name);
  bool ok;

  if (row == NULL) return;
  ok = perf_slices_make(&b.s, w, c, way == BASE_PER_EXPERT) && fits(&b.s);
  if (perf_all(w, row, ok, "slices")) {
    fill_buckets(&b.s, b.packed);
    CUDA(w, cudaMalloc, ((void **)&b.scratch, 2 * BUCKET));
    for (int i = 0; i < 2; i++) {
      CUDA(w, cudaEventCreateWithFlags, (&b.arrived[i], cudaEventDisableTiming));
      CUDA(w, cudaEventCreateWithFlags, (&b.emptied[i], cudaEventDisableTiming));
      CUDA(w, cudaEventCreateWithFlags, (&b.packed_up[i], cudaEventDisableTiming));
    }
    measure(w, &b, row);
    for (int i = 0; i < 2; i++) {
      CUDA(w, cudaEventDestroy, (b.arrived[i]));
      CUDA(w, cudaEventDestroy, (b.emptied[i]));
      CUDA(w, cudaEventDestroy, (b.packed_up[i]));
    }
    CUDA(w, cudaFree, (b.scratch));
    row->bar = bar;
    if (reference_ms > 0) {
      row->ratio = row->ms / reference_ms;
      row->of = "x direct";
    }
  }
  perf_slices_free(&b.s);
  perf_row_done(w, row);
}
