/*
 * Blocks that several parts hold. Each box of the weights' source that some rank has, with all its
 * replicas, is a unit. Where the cells of two units overlap, each knows the amax of only a part of
 * a block, so each receives the other's: units are the first dim of a tensor of amaxes, of which a
 * rank's source is its own units' and its destination what others have in common with them. An
 * ordinary plan carries it.
 */
#include "quant.h"

#include <string.h>

#include "alloc.h"
#include "boxes.h"
#include "error.h"
#include "vec.h"

/* While the cuts of a tensor are found: its source's boxes, their cells in the same order, and both
 * layouts as they are made, a row of 2 (n_dims + 1) words for each box. */
typedef struct finding {
  xfer_layout *units;
  const xfer_layout *cells;
  const int64_t *block;
  uint32_t *seen;        /* [n_units] 1 + the last listed box that overlapped it */
  xfi_units overlapping; /* the other units that overlap a listed box */
  xfi_bounds src;
  xfi_bounds dst;
  int64_t *src_first; /* [mesh size + 1] */
  int64_t *dst_first;
} finding;

static void end_finding(finding *f)
{
  xfi_layout_destroy(f->units);
  xfi_free(f->seen);
  xfi_free(f->overlapping.at);
  xfi_free(f->src.at);
  xfi_free(f->dst.at);
  xfi_free(f->src_first);
  xfi_free(f->dst_first);
}

/* Other units that share a block with a listed box. */
static xfer_status find_overlapping(finding *f, size_t listed)
{
  const uint32_t mark = (uint32_t)listed + 1;
  const xfi_boxes *b = f->cells->boxes;
  xfer_status st = XFER_OK;
  xfi_units cells = {NULL, 0, 0};

  f->overlapping.n = 0;
  f->seen[f->units->boxes->listed[listed].unit] = mark;
  XFI_TRY_DONE(xfi_boxes_meet(&cells, f->cells, xfi_listed_bounds(f->cells, listed)));
  for (size_t i = 0; i < cells.n; i++)
    for (uint32_t h = b->first_holder[cells.at[i]]; h < b->first_holder[cells.at[i] + 1]; h++) {
      const uint32_t unit = f->units->boxes->listed[b->holders[h]].unit;

      if (f->seen[unit] == mark) continue;
      f->seen[unit] = mark;
      XFI_TRY_DONE(XFI_APPEND(f->overlapping.at, f->overlapping.n, f->overlapping.capacity, unit));
    }
done:
  xfi_free(cells.at);
  return st;
}

/* Add a row: `unit`, then what its cells have in common with those of a listed box. */
static xfer_status add_cells(xfi_bounds *list, const finding *f, uint32_t unit, size_t listed)
{
  const int n_dims = f->units->n_dims;
  const int64_t *b = xfi_listed_bounds(f->cells, listed);
  int64_t a[2 * XFER_MAX_DIMS];
  int64_t row[2 * XFER_MAX_DIMS];

  xfi_block_cells(a, xfi_unit_bounds(f->units, unit), f->block, n_dims);
  row[0] = unit;
  row[n_dims + 1] = (int64_t)unit + 1;
  for (int d = 0; d < n_dims; d++) {
    row[1 + d] = a[d] > b[d] ? a[d] : b[d];
    row[n_dims + 2 + d] = a[n_dims + d] < b[n_dims + d] ? a[n_dims + d] : b[n_dims + d];
  }
  return xfi_bounds_add(list, n_dims + 1, row);
}

/* Append the amaxes of a part of a box to those that are received. */
static xfer_status add_received(xfi_quant *q, const xfi_block_box *box, const int64_t *row,
                                int n_dims)
{
  static const xfi_convert combine = {.from = XFER_F32,
                                      .to = XFER_F8E4M3,
                                      .src_bytes = sizeof(float),
                                      .dst_bytes = 1,
                                      .op = XFI_CONVERT_AMAX};
  int64_t stride = (int64_t)sizeof(float);
  xfi_copy copy = {.src = (const char *)(uintptr_t)q->n_received_bytes,
                   .run_bytes = 1,
                   .convert = &combine,
                   .scales = box->scales,
                   .n_dims = n_dims};

  for (int d = n_dims - 1; d >= 0; d--) {
    copy.extent[d] = row[n_dims + 2 + d] - row[1 + d];
    copy.src_stride[d] = stride;
    copy.scale_stride[d] = box->cell_stride[d];
    copy.scales += (row[1 + d] - box->cells[d]) * box->cell_stride[d];
    stride *= copy.extent[d];
  }
  q->n_received_bytes += (size_t)stride;
  return xfi_copies_push(&q->from_received, &copy);
}

/* Add one rank's boxes; `mine` are this rank's, else NULL. */
static xfer_status list_rank(finding *f, xfi_quant *q, xfi_quant_cut *cut, int position,
                             const xfi_blocks *mine)
{
  const xfi_boxes *b = f->units->boxes;
  const int n_dims = f->units->n_dims;

  for (int64_t i = b->first[position]; i < b->first[position + 1]; i++) {
    const xfi_block_box *box = mine == NULL ? NULL : &mine->boxes[i - b->first[position]];

    XFI_TRY(find_overlapping(f, (size_t)i));
    if (f->overlapping.n == 0) continue;
    XFI_TRY(add_cells(&f->src, f, b->listed[i].unit, (size_t)i));
    if (box != NULL) cut->sent[cut->n_sent++] = box->scales;
    for (size_t k = 0; k < f->overlapping.n; k++) {
      XFI_TRY(add_cells(&f->dst, f, f->overlapping.at[k], (size_t)i));
      if (box != NULL)
        XFI_TRY(
            add_received(q, box, f->dst.at + (f->dst.n - 1) * 2 * (size_t)(n_dims + 1), n_dims));
    }
  }
  return XFER_OK;
}

static xfer_status make_layout(xfer_layout **layout, const finding *f, const xfi_bounds *list,
                               const int64_t *first)
{
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  int64_t shape[XFER_MAX_DIMS];

  shape[0] = f->units->boxes->n_units;
  for (int d = 0; d < f->cells->n_dims; d++)
    shape[1 + d] = f->cells->dims[d].size;
  desc.mesh = f->cells->mesh;
  desc.dtype = XFER_F32;
  desc.n_dims = f->cells->n_dims + 1;
  desc.shape = shape;
  desc.first = first;
  desc.bounds = list->at;
  return xfi_layout_create_boxes(layout, &desc);
}

/* Add the boxes of all ranks, of which this one is `rank`. */
static xfer_status list_ranks(finding *f, xfi_quant *q, xfi_quant_cut *cut, const xfi_blocks *mine,
                              int rank)
{
  const xfer_mesh *mesh = f->units->mesh;

  f->seen = xfi_calloc(f->units->boxes->n_units, sizeof *f->seen);
  f->src_first = xfi_calloc((size_t)mesh->size + 1, sizeof *f->src_first);
  f->dst_first = xfi_calloc((size_t)mesh->size + 1, sizeof *f->dst_first);
  cut->sent = xfi_calloc(mine->n, sizeof(void *));
  XFI_CHECK(f->seen != NULL && f->src_first != NULL && f->dst_first != NULL && cut->sent != NULL,
            XFER_ERR_NOMEM, "%d ranks", mesh->size);
  for (int i = 0; i < mesh->size; i++) {
    XFI_TRY(list_rank(f, q, cut, i, mesh->ranks[i] == rank ? mine : NULL));
    f->src_first[i + 1] = (int64_t)f->src.n;
    f->dst_first[i + 1] = (int64_t)f->dst.n;
  }
  return XFER_OK;
}

/* Add a pair's shared blocks to quant->cuts, unless no two units share a block. */
static xfer_status find_cut(xfi_quant *q, size_t p, const xfi_moves *m)
{
  const xfi_quant_pair *pair = &q->pairs[p];
  xfi_quant_cut *cut = &q->cuts[q->n_cuts];
  const xfi_tensor *weights = &m->tensors[pair->weights];
  xfer_status st = XFER_OK;
  int64_t block[XFER_MAX_DIMS];
  int64_t one[XFER_MAX_DIMS]; /* units are of blocks of one element */
  finding f = {.cells = m->tensors[pair->scales].src, .block = block};

  xfi_conversion_block(block, &weights->conversion, weights->src->n_dims);
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    one[d] = 1;
  XFI_TRY_DONE(xfi_layout_of_cells(&f.units, weights->src, one, weights->src->dtype));
  if (!f.cells->boxes->overlap && f.cells->boxes->n_units == f.units->boxes->n_units) goto done;
  cut->pair = p;
  cut->received = q->n_received_bytes = xfi_slot_aligned(q->n_received_bytes);
  XFI_TRY_DONE(list_ranks(&f, q, cut, &pair->blocks, m->rank));
  XFI_TRY_DONE(make_layout(&cut->src, &f, &f.src, f.src_first));
  XFI_TRY_DONE(make_layout(&cut->dst, &f, &f.dst, f.dst_first));
  q->n_cuts++;
  q->pairs[p].is_cut = true;
done:
  end_finding(&f);
  return st;
}

/* Tensors of one class have the same cuts: the one before this had none. */
static bool is_whole(const xfi_quant *q, size_t p, const xfi_moves *m)
{
  const xfi_tensor *weights = &m->tensors[q->pairs[p].weights];
  const xfi_tensor *before = p == 0 ? weights : &m->tensors[q->pairs[p - 1].weights];
  const bool was_cut = q->n_cuts > 0 && q->cuts[q->n_cuts - 1].pair + 1 == p;

  return p > 0 && !was_cut && xfi_conversion_equal(&before->conversion, &weights->conversion) &&
         memcmp(before->src->digest, weights->src->digest, sizeof weights->src->digest) == 0;
}

xfer_status xfi_quant_find_cuts(xfi_quant *q, const xfer_plan *plan)
{
  q->cuts = xfi_calloc(q->n_pairs, sizeof *q->cuts);
  XFI_CHECK(q->cuts != NULL, XFER_ERR_NOMEM, "%zu tensors", q->n_pairs);
  for (size_t p = 0; p < q->n_pairs; p++)
    if (!is_whole(q, p, plan->moves)) XFI_TRY(find_cut(q, p, plan->moves));
  return XFER_OK;
}

void xfi_quant_free_cuts(xfi_quant *q)
{
  for (size_t i = 0; q->cuts != NULL && i < q->n_pairs; i++) {
    xfi_layout_destroy(q->cuts[i].src);
    xfi_layout_destroy(q->cuts[i].dst);
    xfi_free(q->cuts[i].sent);
  }
  xfi_free(q->cuts);
}
