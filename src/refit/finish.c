/* The last step of reading a model: one canonical form, whatever form the checkpoint has. */
#include "model.h"

#include "alloc.h"
#include "error.h"
#include "text.h"
#include "vec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_layer(const xfi_entry *entry, int layer)
{
  int lo = 0, hi = entry->n_layers;

  while (lo < hi) {
    int mid = lo + (hi - lo) / 2;

    if (entry->layers[mid] < layer) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return lo < entry->n_layers && entry->layers[lo] == layer;
}

/* The entry that holds `stem` with `suffix` in the layer (-1: outside the layers) of the same
 * stack. */
xfi_entry *xfi_model_find(const xfer_model *model, const char *stem, const char *suffix,
                          const xfi_entry *like, int layer)
{
  size_t prefix = like->n_layers > 0 ? (size_t)(strstr(like->known, "{layer}") - like->known) : 0;

  for (size_t i = 0; i < model->n_entries; i++) {
    xfi_entry *e = &model->entries[i];

    if (strcmp(e->stem, stem) != 0 || (suffix != NULL && strcmp(e->suffix, suffix) != 0)) continue;
    if (strncmp(e->known, like->known, prefix) != 0) continue;
    if (layer < 0 ? e->n_layers == 0 : has_layer(e, layer)) return e;
  }
  return NULL;
}

bool xfi_model_has(const xfer_model *model, const char *stem, const xfi_entry *like)
{
  if (like->n_layers == 0) return xfi_model_find(model, stem, NULL, like, -1) != NULL;
  for (int i = 0; i < like->n_layers; i++) {
    if (xfi_model_find(model, stem, NULL, like, like->layers[i]) == NULL) return false;
  }
  return true;
}

/* ---- quantisation ---- */

static bool is_quantised(const xfi_entry *entry)
{
  static const char *const PROJS[] = {"q", "k", "v", "o", "gate", "up", "down"};
  const char *last = strrchr(entry->stem, '.');
  char name[16];

  if (last == NULL || strcmp(entry->suffix, "weight") != 0 || entry->fused) return false;
  if (entry->n_dims != (entry->experts ? 3 : 2)) return false;
  for (size_t i = 0; i < sizeof PROJS / sizeof *PROJS; i++) {
    snprintf(name, sizeof name, ".%s_proj", PROJS[i]);
    if (strcmp(last, name) == 0) return true;
  }
  return false;
}

static xfer_status quantise(xfer_model *model, const xfer_model_options *options)
{
  xfer_model_options renames = XFER_MODEL_OPTIONS_INIT; /* the entries were selected before */
  size_t n = model->n_entries;
  char pattern[XFI_NAME_BYTES + 16];
  xfer_status st = XFER_OK;

  renames.renames = options->renames;
  renames.n_renames = options->n_renames;

  for (size_t i = 0; i < n; i++) {
    const xfi_entry *e = &model->entries[i];
    int64_t shape[2];
    xfi_raw raw = {.pattern = pattern,
                   .layers = e->layers,
                   .n_layers = e->n_layers,
                   .first_expert = e->first_expert,
                   .n_experts = e->n_experts,
                   .shape = shape,
                   .n_dims = 2,
                   .dtype = XFER_F32};

    if (!is_quantised(e)) continue;
    XFI_CHECK(e->dtype != XFER_F8E4M3, XFER_ERR_ARG, "\"%s\" is f8e4m3 already", e->pattern);
    snprintf(pattern, sizeof pattern, "%s_scale_inv", e->pattern);
    shape[0] = xfi_ceil_div(e->shape[e->n_dims - 2], 128);
    shape[1] = xfi_ceil_div(e->shape[e->n_dims - 1], 128);
    model->entries[i].dtype = XFER_F8E4M3;
    XFI_TRY(xfi_model_append(model, &raw, &renames));
  }
  model->config.block[0] = model->config.block[1] = 128;
done:
  return st;
}

/* ---- checks ---- */

static xfer_status pair_scale(xfer_model *model, size_t at)
{
  xfi_entry *scale = &model->entries[at];
  xfi_entry *weight = xfi_model_find(model, scale->stem, "weight", scale,
                                     scale->n_layers > 0 ? scale->layers[0] : -1);
  const int64_t *block = model->config.block;
  xfer_status st = XFER_OK;

  XFI_CHECK(weight != NULL && weight->n_dims == scale->n_dims, XFER_ERR_IO,
            "\"%s\" has no weight beside it", scale->pattern);
  XFI_CHECK(block[0] > 0 && block[1] > 0, XFER_ERR_IO,
            "\"%s\" is there, but the configuration has no weight_block_size", scale->pattern);
  for (int d = 0; d < 2; d++) {
    int k = scale->n_dims - 2 + d;
    int64_t want = xfi_ceil_div(weight->shape[k], block[d]);

    XFI_CHECK(scale->shape[k] == want, XFER_ERR_MISMATCH,
              "\"%s\" has %lld blocks in dim %d, its weight has %lld of %lld", scale->pattern,
              (long long)scale->shape[k], k, (long long)want, (long long)block[d]);
    weight->block[d] = block[d];
  }
  scale->scale_of = (int)(weight - model->entries);
done:
  return st;
}

static xfer_status check_rows(const xfer_model *model, const xfi_entry *entry)
{
  const xfi_config *c = &model->config;
  bool q = entry->row->cut == XFI_CUT_Q;
  int64_t heads = q ? c->heads : c->kv_heads;
  xfer_status st = XFER_OK;

  if (entry->row->cut != XFI_CUT_Q && entry->row->cut != XFI_CUT_KV) return XFER_OK;
  XFI_CHECK(c->heads > 0 && c->kv_heads > 0 && c->head_dim > 0 && c->heads % c->kv_heads == 0,
            XFER_ERR_SHAPE,
            "\"%s\": %lld heads and %lld key/value heads of %lld in the configuration",
            entry->pattern, (long long)c->heads, (long long)c->kv_heads, (long long)c->head_dim);
  XFI_CHECK(entry->scale_of >= 0 || entry->shape[0] == heads * c->head_dim, XFER_ERR_SHAPE,
            "\"%s\" has %lld rows; %lld heads of %lld make %lld", entry->pattern,
            (long long)entry->shape[0], (long long)heads, (long long)c->head_dim,
            (long long)(heads * c->head_dim));
done:
  return st;
}

/* Gate and up of one fused tensor share a name that is known, but not the stem. */
static int compare_names(const xfi_entry *x, const xfi_entry *y)
{
  int c = strcmp(x->known, y->known);

  return c != 0 ? c : strcmp(x->stem, y->stem);
}

static int compare_patterns(const void *a, const void *b)
{
  const xfi_entry *x = *(const xfi_entry *const *)a, *y = *(const xfi_entry *const *)b;
  int c = compare_names(x, y);

  if (c != 0) return c;
  if (x->n_layers == 0 || y->n_layers == 0) return 0;
  return (x->layers[0] > y->layers[0]) - (x->layers[0] < y->layers[0]);
}

static bool layers_meet(const xfi_entry *x, const xfi_entry *y)
{
  if (x->n_layers == 0) return true;
  for (int i = 0; i < x->n_layers; i++) {
    if (has_layer(y, x->layers[i])) return true;
  }
  return false;
}

static xfer_status check_unique(const xfer_model *model)
{
  const xfi_entry **sorted = xfi_calloc(model->n_entries, sizeof(const xfi_entry *));
  xfer_status st = XFER_OK;

  XFI_CHECK(sorted != NULL, XFER_ERR_NOMEM, "%zu names to compare", model->n_entries);
  for (size_t i = 0; i < model->n_entries; i++)
    sorted[i] = &model->entries[i];
  qsort(sorted, model->n_entries, sizeof(const xfi_entry *), compare_patterns);
  for (size_t i = 0; i < model->n_entries; i++) {
    for (size_t k = i + 1; k < model->n_entries; k++) {
      if (compare_names(sorted[i], sorted[k]) != 0) break;
      XFI_CHECK(!layers_meet(sorted[i], sorted[k]), XFER_ERR_ARG,
                "\"%s\" and \"%s\" are one name, \"%s\"", sorted[i]->pattern, sorted[k]->pattern,
                sorted[i]->known);
    }
  }
done:
  xfi_free(sorted);
  return st;
}

static int compare_ints(const void *a, const void *b)
{
  int x = *(const int *)a, y = *(const int *)b;

  return (x > y) - (x < y);
}

/* The model's own layers: what pipeline stages share out. Layers past the last (MTP) are none of
 * them. */
static xfer_status collect_layers(xfer_model *model)
{
  size_t n = 0, kept = 0;
  int *all = NULL;
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < model->n_entries; i++)
    n += (size_t)model->entries[i].n_layers;
  all = xfi_calloc(n, sizeof *all);
  XFI_CHECK(all != NULL, XFER_ERR_NOMEM, "%zu layer numbers", n);
  n = 0;
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    for (int k = 0; k < e->n_layers && e->main_layers; k++) {
      if (model->config.n_layers == 0 || e->layers[k] < model->config.n_layers)
        all[n++] = e->layers[k];
    }
  }
  qsort(all, n, sizeof *all, compare_ints);
  for (size_t i = 0; i < n; i++) {
    if (kept == 0 || all[kept - 1] != all[i]) all[kept++] = all[i];
  }
  xfi_free(model->layers);
  model->layers = all;
  model->n_layers = (int)kept;
  all = NULL;
done:
  xfi_free(all);
  return st;
}

static void fill_config(xfi_config *c)
{
  if (c->kv_heads == 0) c->kv_heads = c->heads;
  if (c->head_dim == 0 && c->heads > 0) c->head_dim = c->hidden / c->heads;
}

/* What pairing and the families are to say anew. */
static void forget_pairs(xfer_model *model)
{
  model->has_sinks = false;
  for (size_t i = 0; i < model->n_entries; i++) {
    model->entries[i].scale_of = -1;
    memset(model->entries[i].block, 0, sizeof model->entries[i].block);
  }
}

xfer_status xfi_model_finish(xfer_model *model, const xfer_model_options *options)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(model->n_entries > 0, XFER_ERR_ARG, "no tensor is left to refit");
  fill_config(&model->config);
  XFI_CHECK(model->config.n_layers == 0 || options->layers_end <= model->config.n_layers,
            XFER_ERR_ARG, "layers %d to %d are wanted; the model has %d", options->layers_begin,
            options->layers_end - 1, (int)model->config.n_layers);
  if (!model->scanned) XFI_TRY(xfi_model_split_fused(model, options));
  if (!model->scanned && options->quant == XFER_QUANT_FP8_BLOCK128)
    XFI_TRY(quantise(model, options));
  model->scanned = true;
  forget_pairs(model);
  for (size_t i = 0; i < model->n_entries; i++) {
    if (strcmp(model->entries[i].suffix, "weight_scale_inv") == 0) XFI_TRY(pair_scale(model, i));
  }
  for (size_t i = 0; i < model->n_entries; i++) {
    xfi_entry *e = &model->entries[i];

    xfi_families_find(model, e);
    if (e->row != NULL) XFI_TRY(check_rows(model, e));
    if (strstr(e->stem, ".sinks") != NULL) model->has_sinks = true;
  }
  XFI_TRY(check_unique(model));
  XFI_TRY(collect_layers(model));
done:
  return st;
}
