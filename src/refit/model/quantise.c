#include "quantise.h"

#include "alloc.h"
#include "checked.h"
#include "error.h"
#include "names.h"
#include "roles.h"
#include "text.h"

#include <jansson.h>
#include <string.h>

/* ---- making them ---- */

xfer_status xfi_quant_scheme_find(xfi_quant_scheme *quant, const xfer_rules *rules,
                                  const xfi_quant_rule *rule, const xfer_model *model)
{
  *quant = (xfi_quant_scheme){.scales = rule->scales, .dtype = (xfer_dtype)rule->dtype};
  for (int d = 0; d < 2; d++) {
    XFI_TRY(xfi_rules_eval(&quant->block[d], rules, rule->block[d], &model->scope));
    XFI_CHECK(quant->block[d] > 0 && quant->block[d] < 1 << 16, XFER_ERR_UNSUPPORTED,
              "quant=%s by blocks of %lld", rule->name, (long long)quant->block[d]);
  }
  return XFER_OK;
}

bool xfi_role_is_scaled(const xfer_model *model, const xfi_entry *entry)
{
  for (int f = 0; f < model->n_families; f++) {
    for (size_t i = 0; i < json_array_size(model->families[f]->scaled); i++) {
      const char *pattern = xfi_doc_text(model->families[f]->scaled, i);

      if (xfi_role_matches(pattern, entry->role)) return true;
    }
  }
  return false;
}

bool xfi_is_quantised(const xfer_model *model, const xfi_entry *entry)
{
  if (entry->role == NULL || strcmp(entry->suffix, "weight") != 0) return false;
  if (entry->n_dims != (entry->experts ? 3 : 2)) return false;
  return xfi_role_is_scaled(model, entry);
}

/* Inserts into the name, after its first n characters, what the suffix has after "weight". */
static xfer_status extend_name(char **name, size_t n, const char *suffix)
{
  xfi_text text = {0};
  char *longer = NULL;

  xfi_text_printf(&text, "%.*s%s%s", (int)n, *name, suffix + strlen("weight"), *name + n);
  XFI_TRY(xfi_text_end(&text, &longer));
  xfi_free(*name);
  *name = longer;
  return XFER_OK;
}

/* Turns the copy of a weight into its scales. */
static xfer_status become_scales(xfi_entry *e, const xfi_quant_scheme *quant)
{
  const size_t n_pattern = strlen(e->pattern), stem = (size_t)(e->stem - e->known);
  const int rows = e->n_dims - 2;
  int64_t stride = 1;

  XFI_CHECK(!e->packed.alternate, XFER_ERR_UNSUPPORTED,
            "\"%s\": rows of several weights that alternate have no blocks", e->pattern);
  XFI_TRY(extend_name(&e->pattern, n_pattern, quant->scales));
  XFI_TRY(extend_name(&e->name, n_pattern, quant->scales));
  XFI_TRY(extend_name(&e->known, strlen(e->known), quant->scales));
  e->stem = e->known + stem;
  e->suffix = quant->scales;
  e->scales = XFI_SCALES_OF_BLOCKS;
  e->dtype = e->table_dtype = quant->dtype;
  for (int i = 0; i < e->n_segments; i++)
    XFI_TRY(xfi_segment_to_blocks(&e->segments[i], quant->block[0], e->n_segments == 1, e));
  for (int d = 0; d < 2; d++)
    e->shape[rows + d] = xfi_ceil_div(e->shape[rows + d], quant->block[d]);
  for (int d = e->n_dims - 1; d >= 0; d--) {
    e->in_checkpoint.strides[d] = stride;
    stride *= e->shape[d];
  }
  e->packed.first_row /= quant->block[0];
  e->in_checkpoint.offset = e->packed.first_row * e->in_checkpoint.strides[rows];
  return XFER_OK;
}

xfer_status xfi_scales_make(xfer_model *model, const xfi_quant_scheme *quant)
{
  for (size_t i = model->n_entries; i-- > 0;) {
    xfi_entry *e = &model->entries[i];

    if (e->unquantised || !xfi_is_quantised(model, e)) continue;
    XFI_CHECK(e->dtype != XFER_F8E4M3, XFER_ERR_ARG, "\"%s\" is f8e4m3 already", e->pattern);
    XFI_TRY(xfi_model_duplicate(model, i));
    model->entries[i].dtype = XFER_F8E4M3;
    XFI_TRY(become_scales(&model->entries[i + 1], quant));
  }
  memcpy(model->block, quant->block, sizeof model->block);
  return XFER_OK;
}

/* ---- pairing them ---- */

static xfi_entry *weight_of(const xfer_model *model, const xfi_entry *scale)
{
  for (size_t i = 0; i < model->n_entries; i++) {
    xfi_entry *e = &model->entries[i];

    if (e->n_stem != scale->n_stem ||
        strncmp(e->known, scale->known, (size_t)(scale->stem - scale->known) + scale->n_stem) != 0)
      continue;
    if (strcmp(e->suffix, "weight") != 0 || e->stack != scale->stack ||
        e->packed.index != scale->packed.index)
      continue;
    if (xfi_entry_place(e, xfi_entry_layer(scale, 0)) >= 0) return e;
  }
  return NULL;
}

static xfer_status pair_scale(xfer_model *model, size_t at)
{
  xfi_entry *scale = &model->entries[at];
  xfi_entry *weight = weight_of(model, scale);
  const int64_t *block = model->block;

  XFI_CHECK(weight != NULL &&
                (scale->scales == XFI_SCALES_OF_WEIGHTS || weight->n_dims == scale->n_dims),
            XFER_ERR_IO, "\"%s\" has no weight beside it", scale->pattern);
  scale->scale_of = (int)(weight - model->entries);
  if (xfi_scales_have_rows(scale->scales)) return XFER_OK; /* no block of rows can be cut */
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
  return XFER_OK;
}

/* Is the weight of the scales' k-th layer in the same entry as that of their first layer? Layers
 * for which it is not become an entry of their own. */
static xfer_status is_beside(bool *beside, const xfi_entry *scale, int k, const void *model)
{
  const xfi_entry *weight = weight_of(model, scale);

  *beside = weight == NULL || xfi_entry_place(weight, scale->layers[k]) >= 0;
  return XFER_OK; /* scales without a weight are refused when they are paired */
}

xfer_status xfi_scales_pair(xfer_model *model)
{
  for (size_t i = 0; i < model->n_entries; i++) {
    if (model->entries[i].scales != XFI_NO_SCALES)
      XFI_TRY(xfi_model_split(model, i, is_beside, model));
  }
  for (size_t i = 0; i < model->n_entries; i++) {
    model->entries[i].scale_of = -1;
    memset(model->entries[i].block, 0, sizeof model->entries[i].block);
  }
  for (size_t i = 0; i < model->n_entries; i++) {
    if (model->entries[i].scales != XFI_NO_SCALES) XFI_TRY(pair_scale(model, i));
  }
  return XFER_OK;
}
