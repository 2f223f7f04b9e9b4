/*
 * Experts that a checkpoint keeps in one 3-D tensor, gate and up together: taken apart into the
 * tensors that they would be if the checkpoint listed them one by one.
 */
#include "model.h"

#include "alloc.h"
#include "error.h"
#include "text.h"
#include "vec.h"

#include <stdio.h>
#include <string.h>

/* The three forms of experts in one 3-D tensor. */
typedef enum fused_form {
  FORM_ROWS,        /* [E, 2I, H], gate rows then up rows; [E, H, I] */
  FORM_ALTERNATING, /* [E, H, 2I], columns alternate gate, up; [E, I, H] */
} fused_form;

static bool ends_with(const char *text, const char *end)
{
  size_t n = strlen(text), k = strlen(end);

  return n >= k && strcmp(text + n - k, end) == 0;
}

/* The form is read off the shapes: which dim is the hidden size. Where both are, nothing says. */
static xfer_status find_form(const xfer_model *model, const xfi_entry *entry, fused_form *form)
{
  const xfi_entry *fused = entry;
  int64_t hidden = model->config.hidden;
  char stem[256];
  xfer_status st = XFER_OK;

  if (!ends_with(entry->stem, ".gate_up_proj")) {
    size_t n = strlen(entry->stem);
    const char *last = strrchr(entry->stem, '.');

    XFI_CHECK(n < sizeof stem - 16, XFER_ERR_IO, "\"%s\" is too long", entry->pattern);
    snprintf(stem, sizeof stem, "%.*s.gate_up_proj", (int)(last - entry->stem), entry->stem);
    fused = xfi_model_find(model, stem, NULL, entry, entry->n_layers > 0 ? entry->layers[0] : -1);
  }
  XFI_CHECK(fused != NULL && fused->n_dims == 3, XFER_ERR_SHAPE,
            "\"%s\" has no gate_up_proj of 3 dims beside it", entry->pattern);
  XFI_CHECK((fused->shape[1] == hidden) != (fused->shape[2] == hidden), XFER_ERR_SHAPE,
            "\"%s\" [%lld, %lld, %lld] does not show which dim is the hidden size %lld",
            fused->pattern, (long long)fused->shape[0], (long long)fused->shape[1],
            (long long)fused->shape[2], (long long)hidden);
  *form = fused->shape[2] == hidden ? FORM_ROWS : FORM_ALTERNATING;
done:
  return st;
}

static xfer_status set_text(char **field, const char *base, const char *tail)
{
  xfi_text text = {0};
  xfer_status st = XFER_OK;

  xfi_text_printf(&text, "%s%s", base, tail);
  XFI_TRY(xfi_text_status(&text));
  xfi_free(*field);
  *field = xfi_text_take(&text);
done:
  xfi_text_free(&text);
  return st;
}

/* "mlp.experts.gate_up_proj_bias" -> "mlp.experts.{expert}." and the suffix "bias". */
static xfer_status rename_fused(xfi_entry *entry, const char *what)
{
  size_t n = (size_t)(strrchr(entry->stem, '.') - entry->stem) + 1;
  bool bias = ends_with(entry->stem, "_bias");
  char stem[256];
  xfer_status st = XFER_OK;

  XFI_CHECK(n + 32 < sizeof stem, XFER_ERR_IO, "\"%s\" is too long", entry->pattern);
  snprintf(stem, sizeof stem, "%.*s{expert}.", (int)n, entry->stem);
  XFI_TRY(set_text(&entry->stem, stem, what));
  entry->suffix = bias ? "bias" : "weight";
  entry->experts = true;
  entry->fused = true;
done:
  return st;
}

static xfer_status copy_entry(xfi_entry *copy, const xfi_entry *entry)
{
  xfer_status st = XFER_OK;

  *copy = *entry;
  copy->pattern = xfi_strdup(entry->pattern);
  copy->known = xfi_strdup(entry->known);
  copy->name = xfi_strdup(entry->name);
  copy->stem = xfi_strdup(entry->stem);
  copy->layers = xfi_calloc((size_t)entry->n_layers, sizeof *copy->layers);
  XFI_CHECK(copy->pattern != NULL && copy->known != NULL && copy->name != NULL &&
                copy->stem != NULL && copy->layers != NULL,
            XFER_ERR_NOMEM, "the entry of \"%s\"", entry->pattern);
  if (entry->n_layers > 0) {
    memcpy(copy->layers, entry->layers, (size_t)entry->n_layers * sizeof *copy->layers);
  }
done:
  return st;
}

/* One half of a fused gate_up: 0 is gate, 1 is up. */
static void take_half(xfi_entry *half, fused_form form, int which)
{
  int64_t rows, hidden;

  if (half->n_dims == 2) { /* bias [E, 2I] */
    rows = half->shape[1] / 2;
    half->shape[1] = rows;
    half->offset = form == FORM_ROWS ? which * rows : which;
    half->strides[1] = form == FORM_ROWS ? 1 : 2;
    return;
  }
  rows = half->shape[form == FORM_ROWS ? 1 : 2] / 2;
  hidden = half->shape[form == FORM_ROWS ? 2 : 1];
  half->shape[1] = rows;
  half->shape[2] = hidden;
  half->offset = form == FORM_ROWS ? which * rows * hidden : which;
  half->strides[1] = form == FORM_ROWS ? hidden : 2;
  half->strides[2] = form == FORM_ROWS ? 1 : 2 * rows;
}

static xfer_status split_gate_up(xfer_model *model, size_t at, fused_form form)
{
  xfi_entry up = {0};
  xfi_entry *gate;
  int64_t doubled;
  xfer_status st = XFER_OK;

  XFI_TRY(copy_entry(&up, &model->entries[at]));
  XFI_TRY(xfi_vec_reserve(&model->entries, &model->entries_cap, model->n_entries + 1,
                          sizeof *model->entries));
  gate = &model->entries[at];
  doubled = gate->shape[gate->n_dims == 2 || form == FORM_ROWS ? 1 : 2];
  XFI_CHECK(doubled % 2 == 0, XFER_ERR_SHAPE, "\"%s\": %lld rows of gate and up are an odd number",
            gate->pattern, (long long)doubled);
  XFI_TRY(rename_fused(&up, "up_proj"));
  XFI_TRY(rename_fused(gate, "gate_proj"));
  XFI_TRY(set_text(&up.name, up.pattern, "[up]"));
  XFI_TRY(set_text(&gate->name, gate->pattern, "[gate]"));
  take_half(gate, form, 0);
  take_half(&up, form, 1);
  up.counted = false;
  memmove(gate + 2, gate + 1, (model->n_entries - at - 1) * sizeof *gate);
  gate[1] = up;
  model->n_entries++;
  memset(&up, 0, sizeof up);
done:
  xfi_free(up.pattern);
  xfi_free(up.known);
  xfi_free(up.name);
  xfi_free(up.stem);
  xfi_free(up.layers);
  return st;
}

static xfer_status turn_down(xfi_entry *down, fused_form form)
{
  xfer_status st = XFER_OK;

  XFI_TRY(rename_fused(down, "down_proj"));
  if (form == FORM_ALTERNATING && down->n_dims == 3) {
    int64_t rows = down->shape[1], hidden = down->shape[2];

    down->shape[1] = hidden;
    down->shape[2] = rows;
    down->strides[1] = 1;
    down->strides[2] = hidden;
  }
done:
  return st;
}

xfer_status xfi_model_split_fused(xfer_model *model, const xfer_model_options *options)
{
  typedef struct found {
    fused_form form;
    int what; /* 0: not fused, 1: gate_up, 2: down */
  } found;
  found *all = xfi_calloc(model->n_entries, sizeof *all);
  size_t n = model->n_entries;
  size_t shift = 0;
  xfer_status st = XFER_OK;

  XFI_CHECK(all != NULL, XFER_ERR_NOMEM, "the forms of %zu entries", n);
  for (size_t i = 0; i < n; i++) { /* all forms first: splitting renames what they are read from */
    const xfi_entry *e = &model->entries[i];

    if (!e->main_layers || e->n_experts > 0 || strstr(e->stem, "experts.") == NULL) continue;
    if (strstr(e->stem, "shared_experts.") != NULL || e->suffix[0] != '\0') continue;
    if (ends_with(e->stem, ".gate_up_proj") || ends_with(e->stem, ".gate_up_proj_bias"))
      all[i].what = 1;
    if (ends_with(e->stem, ".down_proj") || ends_with(e->stem, ".down_proj_bias")) all[i].what = 2;
    if (all[i].what == 0) continue;
    XFI_CHECK(options->experts_end == 0, XFER_ERR_UNSUPPORTED,
              "\"%s\" holds all experts in one tensor, of which a range cannot be kept",
              e->pattern);
    XFI_TRY(find_form(model, e, &all[i].form));
  }
  for (size_t i = 0; i < n; i++) {
    if (all[i].what == 1) {
      XFI_TRY(split_gate_up(model, i + shift, all[i].form));
      shift++;
    } else if (all[i].what == 2) {
      XFI_TRY(turn_down(&model->entries[i + shift], all[i].form));
    }
  }
done:
  xfi_free(all);
  return st;
}
