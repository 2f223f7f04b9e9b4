/*
 * Where a rank's part lies in the framework's own tensors: the name, the order of dims, and the
 * neighbours it shares the tensor with. The names come from the family table; how a framework packs
 * them is here.
 */
#include "side.h"

#include "alloc.h"
#include "error.h"
#include "glob.h"
#include "text.h"

#include <stdio.h>
#include <string.h>

void xfi_slot_free(xfi_slot *slot)
{
  xfi_free(slot->local);
  xfi_free(slot->last);
  memset(slot, 0, sizeof *slot);
}

/* The block name that `@` in the line stands for: the first word of the stem. */
static size_t block_length(const char *stem)
{
  const char *dot = strchr(stem, '.');

  return dot == NULL ? strlen(stem) : (size_t)(dot - stem);
}

/* Writes the name that `column` of the family table says; ":1/2" goes into the slot. */
static xfer_status expand(char **name, xfi_slot *slot, const char *prefix, const char *column,
                          const char *block, const xfi_entry *entry)
{
  xfi_text text = {0};
  bool placed = false;
  xfer_status st = XFER_OK;

  slot->n_slots = 1;
  xfi_text_printf(&text, "%s", prefix);
  for (const char *at = column; *at != '\0'; at++) {
    if (*at == ':') {
      slot->slot = at[1] - '0';
      slot->n_slots = at[3] - '0';
      break;
    }
    if (*at == '@') {
      xfi_text_printf(&text, "%s", block);
    } else if (*at == '%') {
      xfi_text_printf(&text, "%s", entry->suffix);
      placed = true;
    } else {
      xfi_text_add(&text, at, 1);
    }
  }
  if (!placed && entry->suffix[0] != '\0') xfi_text_printf(&text, ".%s", entry->suffix);
  XFI_TRY(xfi_text_status(&text));
  *name = xfi_text_take(&text);
done:
  xfi_text_free(&text);
  return st;
}

static bool alternates(const xfi_entry *entry)
{
  return entry->fused && entry->strides[1] == 2;
}

static void swap_last_dims(xfi_slot *slot, int n_dims)
{
  int last = slot->order[n_dims - 1];

  slot->order[n_dims - 1] = slot->order[n_dims - 2];
  slot->order[n_dims - 2] = last;
}

/* ---- vLLM ---- */

/* What kernels have done to w13 and w2 after loading. */
static xfer_status shape_experts(xfi_slot *slot, const xfer_side *side, const xfi_entry *entry)
{
  bool w13 = slot->n_slots == 2;
  bool scale = entry->scale_of >= 0;
  bool interleaved = (side->weights & XFER_WEIGHTS_INTERLEAVED) != 0;
  xfer_status st = XFER_OK;

  XFI_CHECK(!interleaved || (!scale && entry->block[0] == 0), XFER_ERR_UNSUPPORTED,
            "\"%s\": rows with block scales cannot be interleaved", entry->pattern);
  if (w13 && (side->weights & XFER_WEIGHTS_UP_FIRST) != 0) slot->slot = 1 - slot->slot;
  if (w13 && (interleaved || alternates(entry))) slot->fuse = XFI_FUSE_MIX;
  if ((side->weights & XFER_WEIGHTS_TRANSPOSED) != 0 && entry->n_dims == 3) swap_last_dims(slot, 3);
done:
  return st;
}

static xfer_status slot_vllm(xfi_slot *slot, const xfer_side *side, const xfer_model *model,
                             const xfi_entry *entry)
{
  const char *column = entry->row->vllm == NULL ? entry->stem : entry->row->vllm;
  const char *prefix = entry->n_layers == 0 ? ""
                       : entry->main_layers ? "model.layers.{layer}."
                                            : "mtp.layers.{layer}.";
  char block[64];
  xfer_status st = XFER_OK;

  snprintf(block, sizeof block, "%.*s", (int)block_length(entry->stem), entry->stem);
  if (entry->row->vllm == NULL && model->has_sinks && strcmp(block, "self_attn") == 0) {
    column = entry->row->stem; /* the same, but with `@` in place of the block */
  }
  /* vLLM's gpt-oss calls attention otherwise than the checkpoint does. */
  if (model->has_sinks && strcmp(block, "self_attn") == 0) snprintf(block, sizeof block, "attn");
  XFI_TRY(expand(&slot->local, slot, prefix, column, block, entry));
  if (entry->experts) XFI_TRY(shape_experts(slot, side, entry));
done:
  return st;
}

/* ---- Megatron ---- */

static xfer_status slot_megatron(xfi_slot *slot, const xfer_side *side, const xfer_model *model,
                                 const xfi_entry *entry)
{
  const char *prefix = entry->n_layers > 0 ? "decoder.layers.{layer}." : "";
  const char *column = entry->row->megatron;
  char *stacked;
  xfer_status st = XFER_OK;

  if (entry->n_layers > 0 &&
      (!entry->main_layers ||
       (model->config.n_layers > 0 && entry->layers[0] >= model->config.n_layers))) {
    prefix = "mtp.layers.{layer}.";
  }
  if (side->mla_down == XFI_MLA_FUSED && strstr(column, "linear_q_down") != NULL) {
    column = "self_attention.linear_qkv_down_proj:0/2";
  } else if (side->mla_down == XFI_MLA_FUSED && strstr(column, "linear_kv_down") != NULL) {
    column = "self_attention.linear_qkv_down_proj:1/2";
  }
  XFI_TRY(expand(&slot->local, slot, prefix, column, "", entry));
  slot->each_expert = entry->experts && side->stacked == 0;
  if (entry->experts && side->stacked != 0) {
    stacked = xfi_replace(slot->local, "{local}", "");
    XFI_CHECK(stacked != NULL, XFER_ERR_NOMEM, "the name \"%s\"", slot->local);
    xfi_free(slot->local);
    slot->local = stacked;
  }
  if (entry->row->cut == XFI_CUT_Q || entry->row->cut == XFI_CUT_KV) slot->fuse = XFI_FUSE_QKV;
  if ((entry->row->flags & XFI_STEM_TIED) != 0 && model->config.tied && side->pp > 1) {
    slot->last = xfi_strdup("output_layer.weight");
    XFI_CHECK(slot->last != NULL, XFER_ERR_NOMEM, "a name");
  }
done:
  return st;
}

/* ---- the checkpoint's own form: Hugging Face, FSDP, a full state dict ---- */

static xfer_status slot_checkpoint(xfi_slot *slot, const xfi_entry *entry)
{
  xfer_status st = XFER_OK;

  slot->local = xfi_strdup(entry->pattern);
  XFI_CHECK(slot->local != NULL, XFER_ERR_NOMEM, "the name \"%s\"", entry->pattern);
  slot->each_expert = entry->n_experts > 0;
  slot->n_slots = 1;
  if (entry->fused) {
    bool half = strcmp(entry->name, entry->pattern) != 0;

    if (half) {
      slot->n_slots = 2;
      slot->slot = entry->counted ? 0 : 1;
      slot->fuse = alternates(entry) ? XFI_FUSE_MIX : XFI_FUSE_CAT;
    }
    if (entry->n_dims == 3 && entry->strides[1] < entry->strides[2]) swap_last_dims(slot, 3);
  }
done:
  return st;
}

xfer_status xfi_slot_plain(xfi_slot *slot, const xfi_entry *entry)
{
  memset(slot, 0, sizeof *slot);
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    slot->order[d] = d;
  slot->fuse_dim = entry->experts ? 1 : 0;
  return slot_checkpoint(slot, entry);
}

xfer_status xfi_slot_make(xfi_slot *slot, const xfer_side *side, const xfer_model *model,
                          const xfi_entry *entry)
{
  memset(slot, 0, sizeof *slot);
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    slot->order[d] = d;
  slot->fuse_dim = entry->experts ? 1 : 0;
  if (side->framework == XFI_VLLM) return slot_vllm(slot, side, model, entry);
  if (side->framework == XFI_MEGATRON) return slot_megatron(slot, side, model, entry);
  return slot_checkpoint(slot, entry);
}
