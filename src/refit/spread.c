/*
 * How the ranks of a stage hold an entry: a placement per axis of the dense or the experts' grid.
 *
 * Megatron and vLLM demand that sizes divide; FSDP and Hugging Face's own tensor parallelism split
 * as torch.chunk does. What a framework would refuse is refused here by the tensor's name, before
 * the layout is made: heads that do not divide, and cuts inside a block of fp8 scales.
 */
#include "side.h"

#include "alloc.h"
#include "error.h"

#include <string.h>

static bool is_even(const xfer_side *side)
{
  return (side->framework & (XFI_MEGATRON | XFI_VLLM)) != 0;
}

/* Appends an axis that replicates; its number. */
static int add_axis(xfi_spread *spread, int size)
{
  spread->shape[spread->n_axes] = size;
  spread->placements[spread->n_axes] = xfer_replicate();
  return spread->n_axes++;
}

/* ---- what a cut may not do ---- */

/* A dim of `length` that n ranks split: refused where it does not divide, or where a block is cut.
 */
static xfer_status check_cut(const xfer_side *side, const xfi_entry *entry, int dim, int64_t length,
                             int n)
{
  int in_block = dim - (entry->n_dims - 2);
  int64_t block = in_block >= 0 && in_block < 2 ? entry->block[in_block] : 0;
  int64_t part = xfi_ceil_div(length, n);
  xfer_status st = XFER_OK;

  if (n == 1) return XFER_OK;
  XFI_CHECK(!is_even(side) || length % n == 0, XFER_ERR_SHAPE,
            "\"%s\": %lld does not divide by the %d ranks of \"%s\" that split dim %d",
            entry->pattern, (long long)length, n, side->spec, dim);
  XFI_CHECK(block == 0 || part % block == 0 || part >= length, XFER_ERR_UNSUPPORTED,
            "\"%s\": %lld per shard of dim %d in \"%s\" is not a multiple of the block of %lld",
            entry->pattern, (long long)part, dim, side->spec, (long long)block);
done:
  return st;
}

static xfer_status cut_dim(xfi_spread *spread, const xfer_side *side, const xfi_entry *entry,
                           int axis, int dim)
{
  int n = spread->shape[axis];
  xfer_status st = XFER_OK;

  XFI_TRY(check_cut(side, entry, dim, entry->shape[dim], n));
  spread->placements[axis] = xfer_shard_rule(dim, is_even(side) ? XFER_EVEN : XFER_CHUNK);
done:
  return st;
}

/* ---- the cuts of tensor parallelism ---- */

static xfer_status cut_vocab(xfi_spread *spread, const xfer_side *side, const xfi_entry *entry,
                             int axis)
{
  int64_t unit = side->framework == XFI_VLLM ? 64 : (int64_t)side->vdiv * side->tp;
  int64_t padded = xfi_ceil_div(entry->shape[0], unit) * unit;
  xfer_status st = XFER_OK;

  if (!is_even(side)) return cut_dim(spread, side, entry, axis, 0);
  XFI_CHECK(padded % side->tp == 0, XFER_ERR_SHAPE,
            "\"%s\": the vocabulary of %lld, padded to %lld, does not divide by tp %d",
            entry->pattern, (long long)entry->shape[0], (long long)padded, side->tp);
  memcpy(spread->padded_shape, entry->shape, sizeof spread->padded_shape);
  spread->padded_shape[0] = padded;
  spread->padded = true;
  spread->placements[axis] = xfer_shard_rule(0, XFER_EVEN);
done:
  return st;
}

/* vLLM gives a key/value head to several ranks where there are fewer heads than ranks. */
static xfer_status cut_vllm_heads(xfi_spread *spread, const xfer_side *side,
                                  const xfer_model *model, const xfi_entry *entry, int axis)
{
  const xfi_config *c = &model->config;
  int64_t heads = entry->row->cut == XFI_CUT_Q ? c->heads : c->kv_heads;
  int n = side->tp;
  xfer_status st = XFER_OK;

  if (entry->row->cut == XFI_CUT_KV && n > heads) {
    XFI_CHECK(n % heads == 0, XFER_ERR_SHAPE,
              "\"%s\": tp %d is no multiple of %lld key/value heads", entry->pattern, n,
              (long long)heads);
    spread->shape[axis] = (int)heads;
    add_axis(spread, n / (int)heads);
    n = (int)heads;
  }
  XFI_CHECK(heads % n == 0, XFER_ERR_SHAPE, "\"%s\": %lld heads do not divide by tp %d",
            entry->pattern, (long long)heads, n);
  XFI_TRY(cut_dim(spread, side, entry, axis, 0));
done:
  return st;
}

/* Megatron cuts the rows of linear_qkv, in which q, k and v of a group lie together. */
static xfer_status cut_megatron_heads(xfi_spread *spread, const xfer_side *side,
                                      const xfer_model *model, const xfi_entry *entry, int axis)
{
  xfi_qkv qkv;
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_qkv_make(&qkv, model, entry, side->tp));
  if (qkv.groups % side->tp == 0) {
    XFI_TRY(cut_dim(spread, side, entry, axis, 0));
  } else {
    XFI_CHECK(entry->block[0] == 0 || qkv.local % entry->block[0] == 0, XFER_ERR_UNSUPPORTED,
              "\"%s\": %lld rows of linear_qkv per shard in \"%s\" are not a multiple of the block "
              "of %lld",
              entry->pattern, (long long)qkv.local, side->spec, (long long)entry->block[0]);
    XFI_TRY(xfi_table_qkv(spread, axis, side->tp, model, entry));
  }
done:
  return st;
}

static xfer_status cut_tp(xfi_spread *spread, const xfer_side *side, const xfer_model *model,
                          const xfi_entry *entry, int axis)
{
  xfi_cut_kind cut = entry->row->cut;
  int rows = entry->experts ? 1 : 0;
  bool bias = strcmp(entry->suffix, "bias") == 0;
  xfer_status st = XFER_OK;

  if (side->mla_down == XFI_MLA_SHARDED && strstr(entry->row->megatron, "_down_proj") != NULL) {
    cut = XFI_CUT_COL;
  }
  switch (cut) {
  case XFI_CUT_WHOLE:
    break;
  case XFI_CUT_VOCAB:
    XFI_TRY(cut_vocab(spread, side, entry, axis));
    break;
  case XFI_CUT_COL:
    XFI_TRY(cut_dim(spread, side, entry, axis, rows));
    break;
  case XFI_CUT_ROW:
    if (!bias) {
      XFI_TRY(cut_dim(spread, side, entry, axis, entry->n_dims - 1));
    } else if (side->framework == XFI_VLLM && entry->experts && spread->shape[axis] > 1) {
      /* Partial sums are added up over the ranks, so only one of them adds the bias. */
      XFI_TRY(xfi_table_first_only(spread, axis, spread->shape[axis], entry, 1));
    }
    break;
  case XFI_CUT_Q:
  case XFI_CUT_KV:
    if (side->framework == XFI_VLLM) XFI_TRY(cut_vllm_heads(spread, side, model, entry, axis));
    if (side->framework == XFI_MEGATRON)
      XFI_TRY(cut_megatron_heads(spread, side, model, entry, axis));
    if (!is_even(side)) XFI_TRY(cut_dim(spread, side, entry, axis, 0));
    break;
  case XFI_CUT_MAMBA_IN:
  case XFI_CUT_MAMBA_CONV:
    if (spread->shape[axis] > 1)
      XFI_TRY(xfi_table_mamba(spread, axis, side->tp, side, model, entry));
    break;
  }
done:
  return st;
}

/* ---- the two grids ---- */

static xfer_status cut_experts(xfi_spread *spread, const xfer_side *side, const xfi_entry *entry,
                               int axis)
{
  int64_t n = entry->shape[0];
  xfer_status st = XFER_OK;

  if (side->ep == 1) return XFER_OK;
  if (side->map_first != NULL || side->round_robin != 0) {
    XFI_TRY(xfi_table_map(spread, axis, side, entry));
  } else if (side->framework == XFI_VLLM) { /* the first ranks take one more */
    spread->placements[axis] = xfer_shard_rule(0, XFER_BALANCED);
  } else if (side->framework == XFI_MEGATRON) {
    XFI_CHECK(n % side->ep == 0, XFER_ERR_SHAPE, "\"%s\": %lld experts do not divide by ep %d",
              entry->pattern, (long long)n, side->ep);
    spread->placements[axis] = xfer_shard_rule(0, XFER_EVEN);
  } else {
    spread->placements[axis] = xfer_shard(0);
  }
done:
  return st;
}

/* FSDP cuts what tensor and expert parallelism left, along the first dim of the framework's own
 * tensor. */
static xfer_status cut_fsdp(xfi_spread *spread, const xfer_side *side, const xfi_entry *entry,
                            int axis)
{
  int dim = entry->experts && !entry->fused ? 1 : 0;
  const xfer_placement *tp = &spread->placements[spread->n_axes - 1];
  int n = spread->shape[axis];
  int64_t length = dim < entry->n_dims ? entry->shape[dim] : 1;
  xfer_status st = XFER_OK;

  if (entry->n_dims <= dim) return XFER_OK;
  if (tp->kind == XFER_SHARD && tp->dim == dim) {
    int64_t part = xfi_ceil_div(length, side->tp), last = length - part * ((length - 1) / part);

    XFI_TRY(check_cut(side, entry, dim, last, n)); /* all other ranks have `part` rows */
    length = part;
  }
  XFI_TRY(check_cut(side, entry, dim, length, n));
  spread->placements[axis] = xfer_shard(dim);
  spread->n_order = spread->n_axes;
  for (int a = 0; a < spread->n_axes; a++)
    spread->order[a] = a;
  spread->order[axis] = spread->n_axes - 1; /* last of all */
  for (int a = axis + 1; a < spread->n_axes; a++)
    spread->order[a - 1] = a;
  spread->order[spread->n_axes - 1] = axis;
done:
  return st;
}

static xfer_status spread_dense(xfi_spread *spread, const xfer_side *side, const xfer_model *model,
                                const xfi_entry *entry)
{
  bool fsdp = side->framework == XFI_FSDP;
  int dp;
  xfer_status st = XFER_OK;

  if (fsdp) add_axis(spread, side->replicate);
  dp = add_axis(spread, fsdp ? side->dp : xfi_side_stage_size(side) / side->tp);
  XFI_TRY(cut_tp(spread, side, model, entry, add_axis(spread, side->tp)));
  if (fsdp) XFI_TRY(cut_fsdp(spread, side, entry, dp));
done:
  return st;
}

static xfer_status spread_experts(xfi_spread *spread, const xfer_side *side,
                                  const xfer_model *model, const xfi_entry *entry)
{
  bool fsdp = side->framework == XFI_FSDP;
  int tp = side->framework == XFI_MEGATRON ? side->etp
           : side->framework == XFI_VLLM   ? (side->ep > 1 ? 1 : side->dp * side->tp)
                                           : side->tp;
  int replicas = xfi_side_stage_size(side) / (tp * side->ep);
  int edp;
  xfer_status st = XFER_OK;

  if (fsdp) add_axis(spread, side->replicate);
  edp = add_axis(spread, fsdp ? side->dp / side->ep : replicas);
  XFI_TRY(cut_experts(spread, side, entry, add_axis(spread, side->ep)));
  XFI_TRY(cut_tp(spread, side, model, entry, add_axis(spread, tp)));
  if (fsdp) XFI_TRY(cut_fsdp(spread, side, entry, edp));
done:
  return st;
}

xfer_status xfi_spread_make(xfi_spread *spread, const xfer_side *side, const xfer_model *model,
                            const xfi_entry *entry)
{
  memset(spread, 0, sizeof *spread);
  return entry->experts ? spread_experts(spread, side, model, entry)
                        : spread_dense(spread, side, model, entry);
}

xfer_status xfi_spread_place(xfi_spread *spread, const xfer_side *side, const xfi_entry *entry,
                             int dim)
{
  int axis;
  xfer_status st = XFER_OK;

  memset(spread, 0, sizeof *spread);
  XFI_CHECK(dim < entry->n_dims, XFER_ERR_ARG, "\"%s\" has %d dims, none of them dim %d",
            entry->pattern, entry->n_dims, dim);
  add_axis(spread, xfi_side_stage_size(side) / side->tp);
  axis = add_axis(spread, side->tp);
  if (dim >= 0) XFI_TRY(cut_dim(spread, side, entry, axis, dim));
done:
  return st;
}
