/*
 * Scales of blocks: the tables that a plan has for them, the launches that fill them, made at
 * commit, and their place in a run, before the lanes. All of it is local to a rank; what ranks
 * exchange of amaxes goes by plan->amax_plan. quant.h explains the steps.
 */
#include "quant.h"

#include <string.h>

#include "alloc.h"
#include "error.h"

/* ---- created with the plan ---- */

/* List the pairs, with what this rank holds of each, without their tables. */
static xfer_status list_pairs(xfi_quant *q, const xfer_plan *plan, const xfer_tensor *tensors)
{
  const xfi_moves *m = plan->moves;

  for (size_t t = 0; t < m->n_tensors; t++) {
    const size_t of = tensors[t].conversion.tensor;
    xfi_quant_pair *pair = &q->pairs[q->n_pairs];

    if (tensors[t].conversion.kind != XFER_CONVERSION_SCALES) continue;
    q->n_pairs++;
    pair->weights = (uint32_t)of;
    pair->scales = (uint32_t)t;
    q->pair_of[of] = q->pair_of[t] = pair;
    if (xfi_mesh_find(m->tensors[of].src->mesh, m->rank) < 0) continue;
    XFI_TRY(xfi_blocks_make(&pair->blocks, m->tensors[of].src, m->rank, &tensors[of].conversion));
    pair->n_scales = xfi_blocks_n_scales(&pair->blocks);
    q->n_table_bytes += xfi_slot_aligned(pair->n_scales * sizeof(float));
  }
  return XFER_OK;
}

static xfer_status place_tables(xfi_quant *q)
{
  char *at;

  if (q->n_table_bytes == 0) return XFER_OK;
  XFI_TRY(q->device->ops->alloc(q->device, &q->tables, q->n_table_bytes));
  at = q->tables;
  for (size_t i = 0; i < q->n_pairs; i++) {
    q->pairs[i].table = (float *)(void *)at;
    xfi_blocks_place(&q->pairs[i].blocks, q->pairs[i].table);
    at += xfi_slot_aligned(q->pairs[i].n_scales * sizeof(float));
  }
  return XFER_OK;
}

static xfer_status place_received(xfi_quant *q)
{
  void *memory = NULL;

  if (q->n_received_bytes == 0) return XFER_OK;
  XFI_TRY(q->device->ops->alloc(q->device, &memory, q->n_received_bytes));
  q->received = memory;
  for (size_t i = 0; i < q->from_received.n; i++)
    q->from_received.at[i].src = q->received + (uintptr_t)q->from_received.at[i].src;
  return XFER_OK;
}

xfer_status xfi_quant_create(xfi_quant **quant, const xfer_plan *plan, const xfer_tensor *tensors)
{
  const size_t n = plan->moves->n_tensors;
  xfer_status st = XFER_OK;
  size_t n_pairs = 0;
  xfi_quant *q = NULL;

  for (size_t t = 0; t < n; t++)
    n_pairs += tensors[t].conversion.kind == XFER_CONVERSION_SCALES;
  if (n_pairs == 0) return XFER_OK;
  q = xfi_calloc(1, sizeof *q);
  XFI_CHECK_DONE(q != NULL, XFER_ERR_NOMEM, "scales");
  q->device = plan->device;
  q->pairs = xfi_calloc(n_pairs, sizeof *q->pairs);
  q->pair_of = xfi_calloc(n, sizeof(const xfi_quant_pair *));
  XFI_CHECK_DONE(q->pairs != NULL && q->pair_of != NULL, XFER_ERR_NOMEM, "scales of %zu tensors",
                 n_pairs);
  XFI_TRY_DONE(list_pairs(q, plan, tensors));
  XFI_TRY_DONE(place_tables(q));
  XFI_TRY_DONE(xfi_quant_find_cuts(q, plan));
  XFI_TRY_DONE(place_received(q));
  *quant = q;
  q = NULL;
done:
  xfi_quant_destroy(q);
  return st;
}

void xfi_quant_drop(xfi_quant *q)
{
  xfi_batch_drop(q->device, &q->clear);
  xfi_batch_drop(q->device, &q->combine);
  for (int k = 0; k < XFI_QUANT_PARTS; k++) {
    xfi_batch_drop(q->device, &q->amax[k]);
    xfi_batch_drop(q->device, &q->finish[k]);
    xfi_event_destroy(q->device, q->ready[k]);
    q->ready[k] = NULL;
  }
}

void xfi_quant_destroy(xfi_quant *q)
{
  if (q == NULL) return;
  xfi_quant_drop(q);
  for (size_t i = 0; q->pairs != NULL && i < q->n_pairs; i++)
    xfi_blocks_free(&q->pairs[i].blocks);
  xfi_quant_free_cuts(q);
  xfi_copies_free(&q->from_received);
  if (q->tables != NULL) q->device->ops->free(q->device, q->tables);
  if (q->received != NULL) q->device->ops->free(q->device, q->received);
  xfi_free(q->pairs);
  xfi_free(q->pair_of);
  xfi_free(q);
}

bool xfi_quant_source(const xfi_quant *q, size_t tensor, xfer_view *view)
{
  const xfi_quant_pair *pair = q == NULL ? NULL : q->pair_of[tensor];

  if (pair == NULL || pair->scales != tensor) return false;
  *view = (xfer_view){.kind = XFER_VIEW_DENSE, .base = pair->table};
  return true;
}

const xfi_blocks *xfi_quant_blocks(const xfi_quant *q, size_t tensor)
{
  const xfi_quant_pair *pair = q == NULL ? NULL : q->pair_of[tensor];

  return pair == NULL || pair->weights != tensor ? NULL : &pair->blocks;
}

/* ---- made at commit ---- */

/* Parts have at least this many elements: with fewer the launches cost more than what overlaps. */
#define PART_ELEMS (UINT64_C(8) << 20)
/* The share of the device for the later parts: at the same time, the lanes copy the part before. */
enum { ASIDE_PERCENT = 33 };

/* About as many elements as this rank holds. */
static uint64_t elems_of(const xfi_quant_pair *pair, const xfer_plan *plan)
{
  const xfer_conversion *c = &xfi_moves_class(plan->moves, pair->weights)->conversion;

  return (uint64_t)pair->n_scales * (uint64_t)c->rows * (uint64_t)c->columns;
}

/* Assign pairs to parts. Those whose scales need amaxes of other ranks go to the first part. */
static xfer_status make_parts(xfi_quant *q, const xfer_plan *plan)
{
  uint64_t n_elems = 0;
  uint64_t seen = 0;

  for (size_t i = 0; i < q->n_pairs; i++) {
    n_elems += elems_of(&q->pairs[i], plan);
    if (q->pairs[i].is_cut) seen += elems_of(&q->pairs[i], plan);
  }
  q->n_parts = n_elems < PART_ELEMS                     ? 1
               : n_elems < XFI_QUANT_PARTS * PART_ELEMS ? (int)(n_elems / PART_ELEMS)
                                                        : XFI_QUANT_PARTS;
  for (size_t i = 0; i < q->n_pairs; i++) {
    q->pairs[i].part = 0;
    if (q->pairs[i].is_cut || seen == n_elems) continue;
    q->pairs[i].part = (int)(seen * (uint64_t)q->n_parts / n_elems);
    seen += elems_of(&q->pairs[i], plan);
  }
  for (int k = 1; k < q->n_parts; k++)
    XFI_TRY(xfi_event_create(q->device, &q->ready[k]));
  return XFER_OK;
}

int xfi_quant_part(const xfi_quant *q, size_t tensor)
{
  return q == NULL || q->pair_of[tensor] == NULL ? 0 : q->pair_of[tensor]->part;
}

/* The amaxes of all that this rank holds of a part. */
static xfer_status prepare_amax(xfi_quant *q, const xfer_plan *plan, int part)
{
  xfer_status st = XFER_OK;
  xfi_copies copies = {NULL, 0, 0};

  for (size_t i = 0; i < q->n_pairs; i++) {
    const xfi_quant_pair *pair = &q->pairs[i];

    for (size_t k = 0; pair->part == part && k < pair->blocks.n; k++) {
      const xfi_block_box *box = &pair->blocks.boxes[k];
      xfi_end end = {xfi_plan_src(plan, pair->weights), {0}};

      memcpy(end.start, box->at.local, sizeof end.start);
      XFI_TRY_DONE(xfi_copies_add(&copies, &end, &end, box->length, pair->blocks.n_dims,
                                  (xfi_elem){1, &pair->blocks.amax}));
    }
  }
  XFI_TRY_DONE(xfi_batch_make(q->device, &q->amax[part], copies.at, copies.n,
                              part == 0 ? 100 : ASIDE_PERCENT));
done:
  xfi_copies_free(&copies);
  return st;
}

/* Turn amaxes into scales, in place. Neighbouring pairs with the same kind of scale are one copy.
 */
static xfer_status prepare_finish(xfi_quant *q, const xfer_plan *plan, int part)
{
  static const xfi_convert by[] = {
#define BY(how) {XFER_F32, XFER_F32, 4, 4, XFI_CONVERT_TO_SCALE, 0, how}
      BY(XFER_SCALE_F32), BY(XFER_SCALE_POW2), BY(XFER_SCALE_UE8M0), BY(XFER_SCALE_MX)};
  xfer_status st = XFER_OK;
  xfi_copies copies = {NULL, 0, 0};

  for (size_t i = 0; i < q->n_pairs; i++) {
    const xfi_quant_pair *pair = &q->pairs[i];
    const xfi_class *cls = xfi_moves_class(plan->moves, pair->weights);
    const xfi_convert *how = &by[cls->conversion.scale];
    xfi_copy *last = copies.n > 0 ? &copies.at[copies.n - 1] : NULL;
    const xfi_copy copy = {.src = (char *)pair->table,
                           .dst = (char *)pair->table,
                           .run_bytes = (int64_t)xfi_slot_aligned(pair->n_scales * sizeof(float)),
                           .convert = how};

    if (pair->n_scales == 0 || pair->part != part) continue;
    if (last != NULL && last->convert == how && last->dst + last->run_bytes == copy.dst)
      last->run_bytes += copy.run_bytes;
    else
      XFI_TRY_DONE(xfi_copies_push(&copies, &copy));
  }
  XFI_TRY_DONE(xfi_batch_make(q->device, &q->finish[part], copies.at, copies.n, 100));
done:
  xfi_copies_free(&copies);
  return st;
}

xfer_status xfi_quant_prepare(xfer_plan *plan)
{
  xfi_quant *q = plan->quant;

  if (q == NULL) return XFER_OK;
  xfi_copy zero = {.dst = q->tables, .run_bytes = (int64_t)q->n_table_bytes};
  xfi_quant_drop(q);
  XFI_TRY(make_parts(q, plan));
  XFI_TRY(xfi_batch_make(q->device, &q->clear, &zero, q->n_table_bytes > 0, 100));
  XFI_TRY(xfi_batch_make(q->device, &q->combine, q->from_received.at, q->from_received.n, 100));
  for (int k = 0; k < q->n_parts; k++) {
    XFI_TRY(prepare_amax(q, plan, k));
    XFI_TRY(prepare_finish(q, plan, k));
  }
  return XFER_OK;
}

/* ---- enqueued by a run ---- */

xfer_status xfi_quant_start(const xfer_plan *plan, xfer_stream stream)
{
  const xfi_quant *q = plan->quant;

  if (q == NULL) return XFER_OK;
  XFI_TRY(xfi_batch_launch(q->device, q->clear, stream));
  return xfi_batch_launch(q->device, q->amax[0], stream);
}

xfer_status xfi_quant_continue(const xfer_plan *plan, xfer_stream stream)
{
  const xfi_quant *q = plan->quant;

  if (q == NULL) return xfi_event_record(plan->device, plan->run.started, stream);
  XFI_TRY(xfi_batch_launch(q->device, q->combine, stream));
  XFI_TRY(xfi_batch_launch(q->device, q->finish[0], stream));
  XFI_TRY(xfi_event_record(plan->device, plan->run.started, stream));
  for (int k = 1; k < q->n_parts; k++) {
    XFI_TRY(xfi_batch_launch(q->device, q->amax[k], stream));
    XFI_TRY(xfi_batch_launch(q->device, q->finish[k], stream));
    XFI_TRY(xfi_event_record(plan->device, q->ready[k], stream));
  }
  return XFER_OK;
}

xfer_status xfi_quant_await(const xfer_plan *plan, int part, xfer_stream stream)
{
  const xfi_quant *q = plan->quant;

  if (q != NULL && part >= q->n_parts) part = q->n_parts - 1;
  if (q == NULL || part == 0) return XFER_OK;
  return xfi_stream_wait(q->device, stream, q->ready[part]);
}
