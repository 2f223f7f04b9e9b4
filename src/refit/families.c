/*
 * The families: what the names in a checkpoint mean, and what each framework calls the same tensor.
 *
 * One line per name. Adding a family is adding lines here and a test (docs/adding-a-model.md).
 * Lines are tried in order, and the first whose name and sibling fit counts, so that "q_proj" of a
 * model with latent attention comes before the common one. `@` stands for one of the block names
 * below.
 *
 * Sources: the loaders of vLLM (model_executor/models), Megatron-Core's module names,
 * Megatron-Bridge's mappings of Hugging Face names.
 */
#include "model.h"

#include "alloc.h"
#include "error.h"

#include <stdio.h>
#include <string.h>

/* Where a model's own layers may live, longest first. */
static const char *const PREFIXES[] = {
    "model.language_model.", "language_model.model.", "backbone.", "transformer.", "model.",
};

static const char *const BLOCKS[] = {
    "self_attn", "attn", "mixer", "mlp", "feed_forward", "block_sparse_moe",
};

static const char *const SUFFIXES[] = {"weight_scale_inv", "weight", "bias"};

/* Columns: name in the checkpoint, needed sibling, cut, Megatron's name, vLLM's name, flags, what
 * vLLM makes of it and in which type. */
static const xfi_stem IN_LAYERS[] = {
    /* attention */
    {"@.q_proj", "@.kv_a_proj_with_mqa", XFI_CUT_COL, "self_attention.linear_q_proj", NULL, 0, NULL,
     0},
    {"@.q_proj", NULL, XFI_CUT_Q, "self_attention.linear_qkv:0/3", "@.qkv_proj:0/3", 0, NULL, 0},
    {"@.k_proj", NULL, XFI_CUT_KV, "self_attention.linear_qkv:1/3", "@.qkv_proj:1/3", 0, NULL, 0},
    {"@.v_proj", NULL, XFI_CUT_KV, "self_attention.linear_qkv:2/3", "@.qkv_proj:2/3", 0, NULL, 0},
    {"@.o_proj", NULL, XFI_CUT_ROW, "self_attention.linear_proj", NULL, 0, NULL, 0},
    {"@.q_norm", NULL, XFI_CUT_WHOLE, "self_attention.q_layernorm", NULL, 0, NULL, 0},
    {"@.k_norm", NULL, XFI_CUT_WHOLE, "self_attention.k_layernorm", NULL, 0, NULL, 0},
    {"@.sinks", NULL, XFI_CUT_COL, "self_attention.core_attention.softmax_offset", NULL, 0, NULL,
     0},

    /* latent attention */
    {"@.q_a_proj", NULL, XFI_CUT_WHOLE, "self_attention.linear_q_down_proj",
     "@.fused_qkv_a_proj:0/2", 0, NULL, 0},
    {"@.kv_a_proj_with_mqa", "@.q_a_proj", XFI_CUT_WHOLE, "self_attention.linear_kv_down_proj",
     "@.fused_qkv_a_proj:1/2", 0, NULL, 0},
    {"@.kv_a_proj_with_mqa", NULL, XFI_CUT_WHOLE, "self_attention.linear_kv_down_proj", NULL, 0,
     NULL, 0},
    {"@.q_a_layernorm", NULL, XFI_CUT_WHOLE, "self_attention.linear_q_up_proj.layer_norm_%", NULL,
     0, NULL, 0},
    {"@.kv_a_layernorm", NULL, XFI_CUT_WHOLE, "self_attention.linear_kv_up_proj.layer_norm_%", NULL,
     0, NULL, 0},
    {"@.q_b_proj", NULL, XFI_CUT_COL, "self_attention.linear_q_up_proj", NULL, 0, NULL, 0},
    {"@.kv_b_proj", NULL, XFI_CUT_COL, "self_attention.linear_kv_up_proj", NULL, XFI_STEM_HOOK,
     NULL, 0},

    /* dense MLP, gated and not */
    {"@.gate_proj", "@.up_proj", XFI_CUT_COL, "mlp.linear_fc1:0/2", "@.gate_up_proj:0/2", 0, NULL,
     0},
    {"@.up_proj", "@.gate_proj", XFI_CUT_COL, "mlp.linear_fc1:1/2", "@.gate_up_proj:1/2", 0, NULL,
     0},
    {"@.up_proj", NULL, XFI_CUT_COL, "mlp.linear_fc1", NULL, 0, NULL, 0},
    {"@.down_proj", NULL, XFI_CUT_ROW, "mlp.linear_fc2", NULL, 0, NULL, 0},

    /* shared experts */
    {"@.shared_experts.gate_proj", "@.shared_experts.up_proj", XFI_CUT_COL,
     "mlp.shared_experts.linear_fc1:0/2", "@.shared_experts.gate_up_proj:0/2", 0, NULL, 0},
    {"@.shared_experts.up_proj", "@.shared_experts.gate_proj", XFI_CUT_COL,
     "mlp.shared_experts.linear_fc1:1/2", "@.shared_experts.gate_up_proj:1/2", 0, NULL, 0},
    {"@.shared_experts.up_proj", NULL, XFI_CUT_COL, "mlp.shared_experts.linear_fc1", NULL, 0, NULL,
     0},
    {"@.shared_experts.down_proj", NULL, XFI_CUT_ROW, "mlp.shared_experts.linear_fc2", NULL, 0,
     NULL, 0},

    /* routed experts: [E, rows, cols] here, however the checkpoint lists them */
    {"@.experts.{expert}.gate_proj", "@.experts.{expert}.up_proj", XFI_CUT_COL,
     "mlp.experts.linear_fc1.%{local}:0/2", "@.experts.routed_experts.w13_%:0/2", 0, NULL, 0},
    {"@.experts.{expert}.up_proj", "@.experts.{expert}.gate_proj", XFI_CUT_COL,
     "mlp.experts.linear_fc1.%{local}:1/2", "@.experts.routed_experts.w13_%:1/2", 0, NULL, 0},
    {"@.experts.{expert}.up_proj", NULL, XFI_CUT_COL, "mlp.experts.linear_fc1.%{local}",
     "@.experts.routed_experts.w13_%", 0, NULL, 0},
    {"@.experts.{expert}.down_proj", NULL, XFI_CUT_ROW, "mlp.experts.linear_fc2.%{local}",
     "@.experts.routed_experts.w2_%", 0, NULL, 0},
    {"@.gate", NULL, XFI_CUT_WHOLE, "mlp.router", NULL, 0, NULL, 0},
    {"@.router", NULL, XFI_CUT_WHOLE, "mlp.router", NULL, 0, NULL, 0},
    {"@.gate.e_score_correction_bias", NULL, XFI_CUT_WHOLE, "mlp.router.expert_bias", NULL, 0, NULL,
     0},
    {"@.fc1_latent_proj", NULL, XFI_CUT_WHOLE, "mlp.fc1_latent_proj", NULL, 0, NULL, 0},
    {"@.fc2_latent_proj", NULL, XFI_CUT_WHOLE, "mlp.fc2_latent_proj", NULL, 0, NULL, 0},

    /* Mamba */
    {"mixer.in_proj", NULL, XFI_CUT_MAMBA_IN, "mixer.in_proj", NULL, 0, NULL, 0},
    {"mixer.conv1d", NULL, XFI_CUT_MAMBA_CONV, "mixer.conv1d", NULL, 0, NULL, 0},
    {"mixer.A_log", NULL, XFI_CUT_COL, "mixer.A_log", NULL, XFI_STEM_HOOK | XFI_STEM_VALUE,
     "mixer.A", XFER_F32},
    {"mixer.D", NULL, XFI_CUT_COL, "mixer.D", NULL, 0, NULL, 0},
    {"mixer.dt_bias", NULL, XFI_CUT_COL, "mixer.dt_bias", NULL, 0, NULL, 0},
    {"mixer.norm", NULL, XFI_CUT_COL, "mixer.norm", NULL, 0, NULL, 0},
    {"mixer.out_proj", NULL, XFI_CUT_ROW, "mixer.out_proj", NULL, 0, NULL, 0},

    /* norms; Transformer Engine keeps most of them inside the projection that follows */
    {"input_layernorm", "@.kv_a_proj_with_mqa", XFI_CUT_WHOLE, "input_layernorm", NULL, 0, NULL, 0},
    {"input_layernorm", NULL, XFI_CUT_WHOLE, "self_attention.linear_qkv.layer_norm_%", NULL, 0,
     NULL, 0},
    {"post_attention_layernorm", "@.gate_proj", XFI_CUT_WHOLE, "mlp.linear_fc1.layer_norm_%", NULL,
     0, NULL, 0},
    {"post_attention_layernorm", NULL, XFI_CUT_WHOLE, "pre_mlp_layernorm", NULL, 0, NULL, 0},
    {"norm", NULL, XFI_CUT_WHOLE, "norm", NULL, 0, NULL, 0},

    /* multi-token prediction, in the layers past the last */
    {"enorm", NULL, XFI_CUT_WHOLE, "enorm", NULL, 0, NULL, 0},
    {"hnorm", NULL, XFI_CUT_WHOLE, "hnorm", NULL, 0, NULL, 0},
    {"eh_proj", NULL, XFI_CUT_WHOLE, "eh_proj", NULL, 0, NULL, 0},
    {"embed_tokens", NULL, XFI_CUT_VOCAB, "embed_tokens", NULL, 0, NULL, 0},
    {"shared_head.norm", NULL, XFI_CUT_WHOLE, "shared_head.norm", NULL, 0, NULL, 0},
    {"shared_head.head", NULL, XFI_CUT_VOCAB, "shared_head.head", NULL, 0, NULL, 0},
    {"final_layernorm", NULL, XFI_CUT_WHOLE, "final_layernorm", NULL, 0, NULL, 0},
};

static const xfi_stem OUTSIDE[] = {
    {"embed_tokens", NULL, XFI_CUT_VOCAB, "embedding.word_embeddings", "model.embed_tokens",
     XFI_STEM_TIED, NULL, 0},
    {"embeddings", NULL, XFI_CUT_VOCAB, "embedding.word_embeddings", "model.embed_tokens",
     XFI_STEM_TIED, NULL, 0},
    {"norm", NULL, XFI_CUT_WHOLE, "decoder.final_layernorm", "model.norm", 0, NULL, 0},
    {"norm_f", NULL, XFI_CUT_WHOLE, "decoder.final_norm", "model.norm_f", 0, NULL, 0},
    {"lm_head", NULL, XFI_CUT_VOCAB, "output_layer", "lm_head", 0, NULL, 0},
};

/* ---- splitting a name ---- */

static const char *skip_prefix(const char *pattern)
{
  for (size_t i = 0; i < sizeof PREFIXES / sizeof *PREFIXES; i++) {
    size_t n = strlen(PREFIXES[i]);

    if (strncmp(pattern, PREFIXES[i], n) == 0) return pattern + n;
  }
  return pattern;
}

xfer_status xfi_families_split(xfi_entry *entry)
{
  static const char LAYERS[] = "layers.{layer}.";
  const char *rest = skip_prefix(entry->known);
  bool layered = strncmp(rest, LAYERS, sizeof LAYERS - 1) == 0;
  bool mtp =
      strncmp(entry->known, "mtp.", 4) == 0 && strncmp(rest + 4, LAYERS, sizeof LAYERS - 1) == 0;
  size_t n;
  xfer_status st = XFER_OK;

  entry->main_layers = layered && rest != entry->known;
  if (entry->main_layers) rest += sizeof LAYERS - 1;
  if (mtp) rest += 4 + sizeof LAYERS - 1;
  n = strlen(rest);
  entry->suffix = "";
  for (size_t i = 0; i < sizeof SUFFIXES / sizeof *SUFFIXES; i++) {
    size_t k = strlen(SUFFIXES[i]);

    if (n <= k + 1 || rest[n - k - 1] != '.' || strcmp(rest + n - k, SUFFIXES[i]) != 0) continue;
    entry->suffix = SUFFIXES[i];
    n -= k + 1;
    break;
  }
  entry->stem = xfi_strdup(rest);
  XFI_CHECK(entry->stem != NULL, XFER_ERR_NOMEM, "the stem of \"%s\"", entry->pattern);
  entry->stem[n] = '\0';
done:
  return st;
}

/* ---- looking it up ---- */

/* Does `stem` fit the line's name? *block receives what `@` stands for, "" if there is none. */
static bool stem_fits(const char *name, const char *stem, const char **block)
{
  *block = "";
  if (name[0] != '@') return strcmp(name, stem) == 0;
  for (size_t i = 0; i < sizeof BLOCKS / sizeof *BLOCKS; i++) {
    size_t n = strlen(BLOCKS[i]);

    if (strncmp(stem, BLOCKS[i], n) != 0 || strcmp(stem + n, name + 1) != 0) continue;
    *block = BLOCKS[i];
    return true;
  }
  return false;
}

static bool has_sibling(const xfer_model *model, const char *sibling, const char *block,
                        const xfi_entry *entry)
{
  char name[128];

  for (size_t i = 0; i < sizeof BLOCKS / sizeof *BLOCKS; i++) {
    const char *b = block[0] != '\0' ? block : BLOCKS[i];

    snprintf(name, sizeof name, "%s%s", b, sibling + 1); /* in place of its `@` */
    if (xfi_model_has(model, name, entry)) return true;
    if (block[0] != '\0') return false;
  }
  return false;
}

void xfi_families_find(xfer_model *model, xfi_entry *entry)
{
  bool layered = entry->n_layers > 0;
  const xfi_stem *rows = layered ? IN_LAYERS : OUTSIDE;
  size_t n_rows = layered ? sizeof IN_LAYERS / sizeof *IN_LAYERS : sizeof OUTSIDE / sizeof *OUTSIDE;
  const char *block;

  entry->row = NULL;
  if (layered && !entry->main_layers && strncmp(entry->known, "mtp.", 4) != 0) return;
  if (!layered && strchr(entry->stem, '{') != NULL) return;
  for (size_t i = 0; i < n_rows; i++) {
    if (!stem_fits(rows[i].stem, entry->stem, &block)) continue;
    if (rows[i].sibling != NULL && !has_sibling(model, rows[i].sibling, block, entry)) continue;
    entry->row = &rows[i];
    return;
  }
}
