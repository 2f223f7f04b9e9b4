/*
 * The local lane: copies from a rank's source part to its own destination part, and zeroing of
 * destination elements that have no source. A commit makes one batch of all of them, which run.c
 * launches. If there are few, another lane takes them into its own launch instead
 * (xfi_local_join()).
 */
#include <string.h>

#include "alloc.h"
#include "boxes.h"
#include "error.h"
#include "local.h"
#include "vec.h"

/* Up to this many bytes, copies are better made in another lane's launch: a launch of their own
 * would take longer than they hold that lane up. */
enum { JOIN_BYTES = 1 << 20 };

/* Record where the copies begin that were added since the last call. src NULL: they zero; l NULL:
 * nothing is recorded. */
static xfer_status note_anchors(xfi_local *l, const xfi_copies *copies, const xfi_bound *dst,
                                const xfi_bound *src)
{
  if (l == NULL) return XFER_OK;
  l->in_pieces = l->in_pieces || dst->pieces != NULL || (src != NULL && src->pieces != NULL);
  XFI_TRY(xfi_vec_reserve(&l->anchors, &l->capacity, copies->n, sizeof *l->anchors));
  for (; l->n < copies->n; l->n++) {
    l->anchors[l->n][0] = xfi_anchor_at(src, copies->at[l->n].src);
    l->anchors[l->n][1] = xfi_anchor_at(dst, copies->at[l->n].dst);
  }
  return XFER_OK;
}

static xfer_status add_selfs(xfi_local *l, xfi_copies *copies, const xfer_plan *plan)
{
  const xfi_move_list *selfs = &plan->moves->selfs;

  for (size_t i = 0; i < selfs->n_moves; i++) {
    const xfi_move *move = &selfs->moves[i];
    const xfi_class *cls = xfi_moves_class(plan->moves, move->tensor);
    xfi_end src = {xfi_plan_src(plan, move->tensor), {0}};
    xfi_end dst = {xfi_plan_dst(plan, move->tensor), {0}};
    xfi_box box;

    xfi_move_box(&box, cls, &cls->recvs, move);
    memcpy(src.start, box.src_local, sizeof src.start);
    memcpy(dst.start, box.dst_local, sizeof dst.start);
    XFI_TRY(xfi_copies_add(copies, &dst, &src, box.length, cls->dst->n_dims,
                           xfi_plan_elem(plan, cls, XFI_END_TO_END)));
    XFI_TRY(note_anchors(l, copies, dst.bound, src.bound));
  }
  return XFER_OK;
}

/* Zeroing one tensor: a block of its part minus the product of runs in it, as disjoint boxes. */
typedef struct zeroing {
  xfi_copies *copies;
  xfi_elem elem;
  int n_dims;
  int64_t first[XFER_MAX_DIMS]; /* the block */
  int64_t shape[XFER_MAX_DIMS];
  xfi_runs runs[XFER_MAX_DIMS]; /* local to it */
  xfer_run one[XFER_MAX_DIMS];  /* the run, if there is only one */
  xfi_end at;
  int64_t length[XFER_MAX_DIMS];
} zeroing;

/* Dims before d are fixed to a run; zero what has no source in dims d and higher. */
static xfer_status zero_from(zeroing *z, int d)
{
  int64_t at = 0;

  if (d == z->n_dims) return XFER_OK;
  for (size_t i = 0; i <= z->runs[d].n; i++) {
    const bool last = i == z->runs[d].n;
    const int64_t gap_end = last ? z->shape[d] : z->runs[d].at[i].local;

    if (gap_end > at) {
      z->at.start[d] = z->first[d] + at;
      z->length[d] = gap_end - at;
      for (int k = d + 1; k < z->n_dims; k++) {
        z->at.start[k] = z->first[k];
        z->length[k] = z->shape[k];
      }
      XFI_TRY(xfi_copies_add(z->copies, &z->at, NULL, z->length, z->n_dims, z->elem));
    }
    if (last) break;
    z->at.start[d] = z->first[d] + z->runs[d].at[i].local;
    z->length[d] = z->runs[d].at[i].length;
    XFI_TRY(zero_from(z, d + 1));
    at = z->runs[d].at[i].local + z->runs[d].at[i].length;
  }
  return XFER_OK;
}

/* Zero the part of a listed box that lies outside the tensor's shape. */
static xfer_status zero_box(zeroing *z, const xfer_layout *layout, size_t listed)
{
  const int64_t *given = xfi_listed_bounds(layout, listed);

  for (int d = 0; d < z->n_dims; d++) {
    const int64_t left = layout->dims[d].size - given[d];

    z->first[d] = d == 0 ? layout->boxes->listed[listed].row : 0;
    z->shape[d] = given[z->n_dims + d] - given[d];
    z->one[d] = (xfer_run){given[d], left < z->shape[d] ? left : z->shape[d], 0};
    z->runs[d] = (xfi_runs){&z->one[d], z->one[d].length > 0, 0};
  }
  return zero_from(z, 0);
}

static xfer_status add_zeros(xfi_copies *copies, const xfer_plan *plan, size_t tensor)
{
  const xfi_class *cls = xfi_moves_class(plan->moves, tensor);
  const xfer_layout *l = cls->dst;
  const xfi_bound *bound = xfi_plan_dst(plan, tensor);
  xfer_status st = XFER_OK;
  zeroing z = {
      .copies = copies, .elem = {l->elem_bytes, NULL}, .n_dims = l->n_dims, .at = {bound, {0}}};

  if (l->boxes != NULL) {
    size_t first;
    const size_t n = xfi_boxes_of(&first, l, plan->moves->rank);

    for (size_t i = first; i < first + n && st == XFER_OK; i++)
      st = zero_box(&z, l, i);
    return st;
  }
  memcpy(z.shape, bound->shape, sizeof z.shape);
  for (int d = 0; d < l->n_dims; d++)
    XFI_TRY_DONE(xfi_dim_runs(&l->dims[d], cls->dst_place.part[d], &z.runs[d]));
  XFI_TRY_DONE(zero_from(&z, 0));
done:
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    xfi_free(z.runs[d].at);
  return st;
}

/* The share of the device's multiprocessors for these copies: half of what the copies of each peer
 * get, as long as they still end before those over the link do. A device copies at some 1 TB/s, and
 * a link carries 0.4. */
static int local_percent(const xfi_moves *moves)
{
  const uint64_t in = moves->in_bytes - moves->self_bytes - moves->zero_bytes;
  const uint64_t across = in > moves->out_bytes ? in : moves->out_bytes;
  const size_t n_peers =
      moves->sends.n_peers > moves->recvs.n_peers ? moves->sends.n_peers : moves->recvs.n_peers;

  return moves->self_bytes + moves->zero_bytes > 2 * across ? 100 : (int)(100 / (2 * n_peers + 1));
}

xfer_status xfi_local_add(xfi_local *l, xfi_copies *copies, const xfer_plan *plan)
{
  XFI_TRY(add_selfs(l, copies, plan));
  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    if (xfi_moves_class(plan->moves, t)->zero_bytes == 0) continue;
    XFI_TRY(add_zeros(copies, plan, t));
    XFI_TRY(note_anchors(l, copies, xfi_plan_dst(plan, t), NULL));
  }
  return XFER_OK;
}

bool xfi_local_may_join(const xfer_plan *plan)
{
  const xfi_moves *m = plan->moves;

  return plan->lanes.local != NULL && m->self_bytes + m->zero_bytes <= JOIN_BYTES;
}

void xfi_local_join(xfer_plan *plan)
{
  xfi_local_destroy(plan->lanes.local, plan->device);
  plan->lanes.local = NULL;
}

static xfer_status fill(xfi_local *l, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_copies copies = {NULL, 0, 0};

  l->n = 0;
  l->in_pieces = plan->quant != NULL; /* copies also have addresses of scales */
  XFI_TRY_DONE(xfi_local_add(l, &copies, plan));
  st = xfi_batch_make(plan->device, &l->batch, copies.at, copies.n, local_percent(plan->moves));
done:
  xfi_copies_free(&copies);
  return st;
}

xfer_status xfi_local_create(xfi_local **local, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_local *l = xfi_calloc(1, sizeof *l);

  XFI_CHECK_DONE(l != NULL, XFER_ERR_NOMEM, "the copies within rank %d", plan->moves->rank);
  XFI_TRY_DONE(fill(l, plan));
  if (l->n == 0) goto done;
  *local = l;
  l = NULL;
done:
  xfi_local_destroy(l, plan->device);
  return st;
}

void xfi_local_destroy(xfi_local *local, xfi_device *device)
{
  if (local == NULL) return;
  xfi_batch_drop(device, &local->batch);
  xfi_free(local->anchors);
  xfi_free(local);
}

xfer_status xfi_local_rebind(xfer_plan *plan)
{
  const xfi_device_ops *dev = plan->device->ops;
  xfi_local *l = plan->lanes.local;
  xfi_copy *copies;

  if (l == NULL) return XFER_OK; /* this rank copies nothing locally */
  if (l->in_pieces || dev->batch_copies == NULL) return fill(l, plan);
  copies = dev->batch_copies(l->batch);
  for (size_t i = 0; i < l->n; i++) {
    copies[i].src = xfi_anchor_address(&l->anchors[i][0]);
    copies[i].dst = xfi_anchor_address(&l->anchors[i][1]);
  }
  return XFER_OK;
}
