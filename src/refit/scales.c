/* Scales of fp8 weights: made of a table's weights, and paired with those that they are of. */
#include "model.h"

#include "error.h"
#include "names.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* ---- making them ---- */

static bool is_quantised(const xfer_model *model, const xfi_entry *entry)
{
  if (entry->role == NULL || entry->n_held > 1 || strcmp(entry->suffix, "weight") != 0)
    return false;
  if (entry->n_dims != (entry->experts ? 3 : 2)) return false;
  for (int f = 0; f < model->n_all; f++) {
    for (size_t i = 0; i < json_array_size(model->all[f]->scaled); i++) {
      const char *pattern = json_string_value(json_array_get(model->all[f]->scaled, i));

      if (xfi_role_matches(pattern, entry->role)) return true;
    }
  }
  return false;
}

xfer_status xfi_scales_make(xfer_model *model, const xfer_model_options *options)
{
  size_t n = model->n_entries;
  char pattern[XFI_NAME_BYTES + 16];
  xfer_status st = XFER_OK;

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

    if (!is_quantised(model, e)) continue;
    XFI_CHECK(e->dtype != XFER_F8E4M3, XFER_ERR_ARG, "\"%s\" is f8e4m3 already", e->pattern);
    snprintf(pattern, sizeof pattern, "%s_scale_inv", e->pattern);
    shape[0] = xfi_ceil_div(e->shape[e->n_dims - 2], 128);
    shape[1] = xfi_ceil_div(e->shape[e->n_dims - 1], 128);
    model->entries[i].dtype = XFER_F8E4M3;
    XFI_TRY(xfi_model_append(model, &raw, options));
  }
  model->block[0] = model->block[1] = 128;
done:
  return st;
}

/* ---- pairing them ---- */

static xfi_entry *weight_of(const xfer_model *model, const xfi_entry *scale)
{
  for (size_t i = 0; i < model->n_entries; i++) {
    xfi_entry *e = &model->entries[i];

    if (e->n_stem != scale->n_stem ||
        strncmp(e->known, scale->known, (size_t)(scale->stem - scale->known) + scale->n_stem) != 0)
      continue;
    if (strcmp(e->suffix, "weight") != 0 || e->stack != scale->stack) continue;
    if (xfi_entry_has_layer(e, scale->n_layers > 0 ? scale->layers[0] : -1)) return e;
  }
  return NULL;
}

static xfer_status pair_scale(xfer_model *model, size_t at)
{
  xfi_entry *scale = &model->entries[at];
  xfi_entry *weight = weight_of(model, scale);
  const int64_t *block = model->block;
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

xfer_status xfi_scales_pair(xfer_model *model)
{
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < model->n_entries; i++) {
    model->entries[i].scale_of = -1;
    memset(model->entries[i].block, 0, sizeof model->entries[i].block);
  }
  for (size_t i = 0; i < model->n_entries; i++) {
    if (strcmp(model->entries[i].suffix, "weight_scale_inv") == 0) XFI_TRY(pair_scale(model, i));
  }
done:
  return st;
}
