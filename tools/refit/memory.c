#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"

enum { ALIGNMENT = 256 };

static bool add_buffer(refit_memory *m, const char *name, bool is_dst, size_t size)
{
  refit_buffer *b = &m->buffers[m->n_buffers];
  void *base = NULL;

  if (m->device != NULL) {
    if (!m->device->alloc(&base, size)) base = NULL;
  } else {
    base = aligned_alloc(ALIGNMENT, (size + ALIGNMENT) / ALIGNMENT * ALIGNMENT);
  }
  if (base == NULL) m->lacks = size;
  if (base == NULL) return false;
  *b = (refit_buffer){name, is_dst, base, size};
  m->n_buffers++;
  return true;
}

static bool create_locals(refit_memory *m)
{
  size_t n;
  bool ok = xfer_locals_create(&m->locals, m->what->refit, m->rank) == XFER_OK;

  n = xfer_locals_count(m->locals);
  m->buffers = calloc(n + 1, sizeof *m->buffers);
  if (m->buffers == NULL) m->lacks = (n + 1) * sizeof *m->buffers;
  if (m->buffers == NULL) return false;
  for (size_t i = 0; i < n && ok; i++) {
    xfer_local local;

    ok = xfer_locals_get(m->locals, i, &local) == XFER_OK &&
         add_buffer(m, local.name, local.side == XFER_REFIT_GEN,
                    (size_t)bytes_of(local.shape, local.n_dims,
                                     xfer_dtype_size((xfer_dtype)local.dtype))) &&
         xfer_locals_give(m->locals, (xfer_refit_side)local.side, local.name,
                          (xfer_dtype)local.dtype, m->buffers[i].base, local.shape, NULL,
                          local.n_dims) == XFER_OK;
  }
  return ok;
}

/* ---- the parts of a problem line ---- */

/* A rank's part: one dense tensor, or boxes one behind the other. All zero: it has none. */
typedef struct part {
  bool is_there;
  uint64_t n_bytes;
  size_t n_boxes;    /* 0: one tensor */
  uint64_t *offsets; /* [n_boxes] */
} part;

/* Finds the boxes of a part that is no product of runs, and where each lies. Returns false without
 * memory. */
static bool find_boxes(part *p, const xfer_layout *layout, int rank)
{
  const int n_dims = xfer_layout_shape(layout, NULL);
  const size_t elem_bytes = xfer_dtype_size(xfer_layout_dtype(layout));

  if (xfer_layout_boxes(layout, rank, NULL, 0, &p->n_boxes) != XFER_OK) return false;
  int64_t *bounds = calloc(p->n_boxes + 1, 2 * ((size_t)n_dims + 1) * sizeof *bounds);
  p->offsets = calloc(p->n_boxes + 1, sizeof *p->offsets);
  const bool ok = bounds != NULL && p->offsets != NULL &&
                  xfer_layout_boxes(layout, rank, bounds, p->n_boxes, &p->n_boxes) == XFER_OK;
  for (size_t i = 0; i < p->n_boxes && ok; i++) {
    int64_t *box = bounds + 2 * (size_t)n_dims * i;

    for (int d = 0; d < n_dims; d++)
      box[d] = box[n_dims + d] - box[d];
    p->offsets[i] = p->n_bytes;
    p->n_bytes += bytes_of(box, n_dims, elem_bytes);
  }
  free(bounds);
  return ok;
}

/* False: no memory. The caller frees the offsets. */
static bool find_part(part *p, const xfer_layout *layout, int rank)
{
  const int n_dims = xfer_layout_shape(layout, NULL);
  int64_t shape[XFER_MAX_DIMS];
  size_t n;
  xfer_status st = xfer_layout_local_shape(layout, rank, shape);

  *p = (part){0};
  if (st == XFER_OK && n_dims > 0) st = xfer_layout_runs(layout, rank, 0, NULL, 0, &n);
  p->is_there = st != XFER_ERR_ARG; /* of that side */
  if (st == XFER_ERR_UNSUPPORTED) return find_boxes(p, layout, rank);
  if (st == XFER_OK)
    p->n_bytes = bytes_of(shape, n_dims, xfer_dtype_size(xfer_layout_dtype(layout)));
  return true;
}

static bool create_parts(refit_memory *m)
{
  const xfer_tensor *t = &m->what->tensors[0];
  bool ok = true;

  m->buffers = calloc(2, sizeof *m->buffers);
  if (m->buffers == NULL) m->lacks = 2 * sizeof *m->buffers;
  if (m->buffers == NULL) return false;
  for (int side = 0; side < 2 && ok; side++) {
    part p;

    ok = find_part(&p, side == 0 ? t->src : t->dst, m->rank) &&
         (!p.is_there || add_buffer(m, "problem", side == 1, p.n_bytes));
    if (ok && p.n_boxes > 0) {
      m->boxes[side] = calloc(p.n_boxes, sizeof *m->boxes[side]);
      m->n_boxes[side] = p.n_boxes;
      ok = m->boxes[side] != NULL;
      for (size_t i = 0; i < p.n_boxes && ok; i++)
        m->boxes[side][i] = m->buffers[m->n_buffers - 1].base + p.offsets[i];
    }
    free(p.offsets);
  }
  return ok;
}

bool refit_memory_create(refit_memory *memory, const refit_case *what, const refit_device *device,
                         int rank)
{
  *memory = (refit_memory){.what = what, .device = device, .rank = rank};
  return what->refit != NULL ? create_locals(memory) : create_parts(memory);
}

bool refit_memory_need(const refit_case *what, int rank, uint64_t *n_bytes)
{
  xfer_locals *locals = NULL;
  xfer_local local;
  bool ok = true;

  *n_bytes = 0;
  for (int side = 0; side < 2 && what->refit == NULL && ok; side++) {
    part p;

    ok = find_part(&p, side == 0 ? what->tensors[0].src : what->tensors[0].dst, rank);
    free(p.offsets);
    *n_bytes += p.n_bytes;
  }
  if (what->refit != NULL) ok = xfer_locals_create(&locals, what->refit, rank) == XFER_OK;
  for (size_t i = 0; locals != NULL && ok && i < xfer_locals_count(locals); i++) {
    ok = xfer_locals_get(locals, i, &local) == XFER_OK;
    *n_bytes += bytes_of(local.shape, local.n_dims, xfer_dtype_size((xfer_dtype)local.dtype));
  }
  xfer_locals_destroy(locals);
  return ok;
}

uint64_t refit_memory_available(void)
{
  static const char key[] = "MemAvailable:";
  FILE *file = fopen("/proc/meminfo", "r");
  char line[256];
  uint64_t kib = 0;

  while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL)
    if (strncmp(line, key, sizeof key - 1) == 0) kib = strtoull(line + sizeof key - 1, NULL, 10);
  if (file != NULL) fclose(file);
  return kib * 1024;
}

uint64_t refit_memory_bytes(const refit_memory *memory, bool is_dst)
{
  uint64_t n = 0;

  for (size_t i = 0; i < memory->n_buffers; i++)
    n += memory->buffers[i].is_dst == is_dst ? memory->buffers[i].n_bytes : 0;
  return n;
}

void refit_memory_free(refit_memory *memory)
{
  for (size_t i = 0; i < memory->n_buffers; i++) {
    if (memory->device != NULL)
      memory->device->free(memory->buffers[i].base);
    else
      free(memory->buffers[i].base);
  }
  free(memory->buffers);
  free(memory->boxes[0]);
  free(memory->boxes[1]);
  xfer_locals_destroy(memory->locals);
  memset(memory, 0, sizeof *memory);
}

bool refit_memory_set(const refit_memory *memory, void *at, int byte, size_t n_bytes)
{
  if (memory->device != NULL) return memory->device->set(at, byte, n_bytes);
  memset(at, byte, n_bytes);
  return true;
}

bool refit_memory_set_all(const refit_memory *memory, int byte)
{
  bool ok = true;

  for (size_t i = 0; i < memory->n_buffers && ok; i++) {
    const refit_buffer *b = &memory->buffers[i];

    ok = !b->is_dst || refit_memory_set(memory, b->base, byte, b->n_bytes);
  }
  return ok;
}

bool refit_memory_read(const refit_memory *memory, void *to, const refit_buffer *b, size_t first,
                       size_t n_bytes)
{
  if (memory->device != NULL) return memory->device->copy(to, b->base + first, n_bytes);
  memcpy(to, b->base + first, n_bytes);
  return true;
}

bool refit_memory_write(const refit_memory *memory, const refit_buffer *b, size_t first,
                        const void *from, size_t n_bytes)
{
  if (memory->device != NULL) return memory->device->copy(b->base + first, from, n_bytes);
  memcpy(b->base + first, from, n_bytes);
  return true;
}

/* The parts of a problem line. */
static uint32_t part_views(const refit_memory *memory, xfer_view *src, xfer_view *dst)
{
  const int n_dims = xfer_layout_shape(memory->what->tensors[0].src, NULL);
  uint32_t has = 0;

  for (size_t i = 0; i < memory->n_buffers; i++) {
    const refit_buffer *b = &memory->buffers[i];
    void *const *boxes = memory->boxes[b->is_dst];
    const int64_t n_boxes = (int64_t)memory->n_boxes[b->is_dst];

    if (b->n_bytes == 0) continue;
    *(b->is_dst ? dst : src) =
        boxes != NULL ? xfer_view_boxes(boxes, n_boxes, NULL, n_dims) : xfer_view_dense(b->base);
    has |= b->is_dst ? XFER_LOCALS_DST : XFER_LOCALS_SRC;
  }
  return has;
}

bool refit_memory_view(refit_memory *memory, size_t tensor, xfer_view *src, xfer_view *dst,
                       uint32_t *has)
{
  if (memory->locals != NULL)
    return xfer_locals_view(memory->locals, tensor, src, dst, has) == XFER_OK;
  *has = part_views(memory, src, dst);
  return true;
}

bool refit_memory_bind(refit_memory *memory, xfer_plan *plan)
{
  xfer_view src, dst;
  uint32_t has;

  if (memory->locals != NULL) return xfer_locals_bind(memory->locals, plan) == XFER_OK;
  has = part_views(memory, &src, &dst);
  return xfer_plan_bind(plan, 0, (has & XFER_LOCALS_SRC) != 0 ? &src : NULL,
                        (has & XFER_LOCALS_DST) != 0 ? &dst : NULL) == XFER_OK;
}
