/*
 * From what a checkpoint lists to entries: selection, fused weights taken apart, quantisation,
 * scales paired with their weights, and the check that names are unique and shapes are what the
 * configuration says.
 */
#include "model.h"

#include "alloc.h"
#include "checked.h"
#include "dtype.h"
#include "error.h"
#include "glob.h"
#include "text.h"
#include "vec.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

xfer_status xfi_model_create(xfer_model **model)
{
  xfer_status st = XFER_OK;

  *model = xfi_calloc(1, sizeof **model);
  XFI_CHECK(*model != NULL, XFER_ERR_NOMEM, "a model table");
  atomic_store(&(*model)->n_refs, 1);
done:
  return st;
}

xfer_model *xfi_model_share(xfer_model *model)
{
  atomic_fetch_add(&model->n_refs, 1);
  return model;
}

static void entry_clear(xfi_entry *entry)
{
  xfi_free(entry->pattern);
  xfi_free(entry->known);
  xfi_free(entry->name);
  xfi_free(entry->layers);
  xfi_free(entry->stem);
  memset(entry, 0, sizeof *entry);
}

void xfi_model_destroy(xfer_model *model)
{
  if (model == NULL || atomic_fetch_sub(&model->n_refs, 1) != 1) return;
  for (size_t i = 0; i < model->n_entries; i++)
    entry_clear(&model->entries[i]);
  xfi_free(model->entries);
  xfi_free(model->layers);
  xfi_free(model);
}

/* ---- names ---- */

static void fill_number(xfi_text *text, const char **at, const char *place, int number, bool *done)
{
  size_t n = strlen(place);

  *done = number >= 0 && strncmp(*at, place, n) == 0;
  if (!*done) return;
  xfi_text_printf(text, "%d", number);
  *at += n;
}

xfer_status xfi_name_fill(char **name, const char *pattern, int layer, int expert, int local)
{
  xfi_text text = {0};
  xfer_status st = XFER_OK;

  for (const char *at = pattern; *at != '\0';) {
    bool done = false;

    fill_number(&text, &at, "{layer}", layer, &done);
    if (!done) fill_number(&text, &at, "{expert}", expert, &done);
    if (!done) fill_number(&text, &at, "{local}", local, &done);
    if (!done) xfi_text_add(&text, at++, 1);
  }
  XFI_TRY(xfi_text_status(&text));
  *name = xfi_text_take(&text);
  XFI_CHECK(*name != NULL, XFER_ERR_NOMEM, "the name \"%s\"", pattern);
done:
  xfi_text_free(&text);
  return st;
}

/* ---- appending ---- */

static xfer_status check_raw(const xfi_raw *raw, size_t dtype_size)
{
  int n_dims = raw->n_dims + (raw->n_experts > 0);
  int64_t bytes = (int64_t)dtype_size;
  xfer_status st = XFER_OK;

  XFI_CHECK(raw->pattern[0] != '\0', XFER_ERR_IO, "a tensor without a name");
  XFI_CHECK(dtype_size > 0, XFER_ERR_IO, "\"%s\" has no known element type", raw->pattern);
  XFI_CHECK(n_dims <= XFER_MAX_DIMS, XFER_ERR_IO, "\"%s\" has %d dims, more than %d", raw->pattern,
            n_dims, XFER_MAX_DIMS);
  XFI_CHECK((raw->n_layers > 0) == (strstr(raw->pattern, "{layer}") != NULL), XFER_ERR_IO,
            "\"%s\": {layer} and a list of layers go together", raw->pattern);
  XFI_CHECK((raw->n_experts > 0) == (strstr(raw->pattern, "{expert}") != NULL), XFER_ERR_IO,
            "\"%s\": {expert} and a range of experts go together", raw->pattern);
  for (int i = 0; i < raw->n_layers; i++) {
    XFI_CHECK(raw->layers[i] >= 0 && (i == 0 || raw->layers[i] > raw->layers[i - 1]), XFER_ERR_IO,
              "\"%s\": layers must ascend from 0", raw->pattern);
  }
  for (int d = 0; d < raw->n_dims; d++) {
    XFI_CHECK(raw->shape[d] >= 0, XFER_ERR_IO, "\"%s\": size %lld of dim %d", raw->pattern,
              (long long)raw->shape[d], d);
    XFI_CHECK(xfi_imul_fits(bytes, raw->shape[d], &bytes), XFER_ERR_OVERFLOW,
              "\"%s\" has more bytes than 63 bits count", raw->pattern);
  }
  XFI_CHECK(raw->n_experts == 0 || xfi_imul_fits(bytes, raw->n_experts, &bytes), XFER_ERR_OVERFLOW,
            "\"%s\" has more bytes than 63 bits count", raw->pattern);
done:
  return st;
}

static bool selected(const xfer_model_options *o, const xfi_entry *entry)
{
  return o->layers_end == 0 || o->ends != 0 || (entry->n_layers > 0 && entry->main_layers);
}

/* Keeps the layers and experts in the options' ranges; false: nothing is left. */
static bool select_ranges(const xfer_model_options *o, xfi_entry *entry)
{
  int kept = 0;

  if (!selected(o, entry)) return false;
  if (o->layers_end > 0 && entry->main_layers) {
    for (int i = 0; i < entry->n_layers; i++) {
      int layer = entry->layers[i];

      if (layer >= o->layers_begin && layer < o->layers_end) entry->layers[kept++] = layer;
    }
    if (kept == 0) return false;
    entry->n_layers = kept;
  }
  if (o->experts_end > 0 && entry->n_experts > 0) {
    int begin = entry->first_expert > o->experts_begin ? entry->first_expert : o->experts_begin;
    int end = entry->first_expert + entry->n_experts;

    if (end > o->experts_end) end = o->experts_end;
    if (end <= begin) return false;
    entry->first_expert = begin;
    entry->n_experts = end - begin;
  }
  return true;
}

static void set_shape(xfi_entry *entry, const xfi_raw *raw)
{
  int experts = entry->n_experts > 0;
  int64_t stride = 1;

  entry->n_dims = raw->n_dims + experts;
  for (int d = raw->n_dims - 1; d >= 0; d--) {
    entry->shape[d + experts] = raw->shape[d];
    entry->strides[d + experts] = stride;
    stride *= raw->shape[d];
  }
  if (experts) entry->shape[0] = entry->n_experts;
  entry->experts = experts;
}

/* Applies the caller's renames, in order. */
static xfer_status rename_entry(xfi_entry *entry, const xfer_model_options *options)
{
  xfer_status st = XFER_OK;

  for (int64_t i = 0; i < options->n_renames; i++) {
    char *next = NULL;

    XFI_TRY(
        xfi_glob_rename(&next, options->renames[2 * i], options->renames[2 * i + 1], entry->known));
    if (next == NULL) continue;
    xfi_free(entry->known);
    entry->known = next;
  }
done:
  return st;
}

static xfer_status entry_init(xfi_entry *entry, const xfi_raw *raw,
                              const xfer_model_options *options)
{
  xfer_status st = XFER_OK;

  *entry = (xfi_entry){.n_layers = raw->n_layers,
                       .first_expert = raw->first_expert,
                       .n_experts = raw->n_experts,
                       .dtype = raw->dtype,
                       .counted = true,
                       .scale_of = -1};
  entry->pattern = xfi_strdup(raw->pattern);
  entry->known = xfi_strdup(raw->pattern);
  entry->name = xfi_strdup(raw->pattern);
  entry->layers = xfi_calloc((size_t)raw->n_layers, sizeof *entry->layers);
  XFI_CHECK(entry->pattern != NULL && entry->known != NULL && entry->name != NULL &&
                entry->layers != NULL,
            XFER_ERR_NOMEM, "the entry of \"%s\"", raw->pattern);
  if (raw->n_layers > 0) memcpy(entry->layers, raw->layers, (size_t)raw->n_layers * sizeof(int));
  XFI_TRY(rename_entry(entry, options));
  XFI_TRY(xfi_families_split(entry));
done:
  return st;
}

xfer_status xfi_model_append(xfer_model *model, const xfi_raw *raw,
                             const xfer_model_options *options)
{
  xfi_entry entry = {0};
  xfer_status st = XFER_OK;

  XFI_TRY(check_raw(raw, xfi_dtype_size((int)raw->dtype)));
  XFI_TRY(entry_init(&entry, raw, options));
  if (!select_ranges(options, &entry)) goto done;
  set_shape(&entry, raw);
  XFI_TRY(xfi_vec_reserve(&model->entries, &model->entries_cap, model->n_entries + 1,
                          sizeof *model->entries));
  model->entries[model->n_entries++] = entry;
  memset(&entry, 0, sizeof entry);
done:
  entry_clear(&entry);
  return st;
}

/* Replaces the number after `word` by `place`; -1: there is none. */
static int take_number(char *name, size_t capacity, const char *word, const char *place)
{
  char *at = strstr(name, word);
  char rest[XFI_NAME_BYTES];
  int number = 0;
  char *end;

  if (at == NULL || (at != name && at[-1] != '.')) return -1;
  at += strlen(word);
  for (end = at; isdigit((unsigned char)*end) && end - at < 9; end++)
    number = 10 * number + (*end - '0');
  if (end == at || (*end != '.' && *end != '\0')) return -1;
  snprintf(rest, sizeof rest, "%s", end);
  snprintf(at, capacity - (size_t)(at - name), "%s%s", place, rest);
  return number;
}

xfer_status xfi_name_split(char *pattern, int *layer, int *expert, const char *name)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(strlen(name) + 16 < XFI_NAME_BYTES, XFER_ERR_IO, "a tensor name of %zu characters",
            strlen(name));
  snprintf(pattern, XFI_NAME_BYTES, "%s", name);
  *layer = take_number(pattern, XFI_NAME_BYTES, "layers.", "{layer}");
  *expert = take_number(pattern, XFI_NAME_BYTES, "experts.", "{expert}");
done:
  return st;
}

xfer_status xfi_model_append_name(xfer_model *model, const xfi_raw *raw,
                                  const xfer_model_options *options)
{
  char pattern[XFI_NAME_BYTES];
  xfi_raw taken = *raw;
  int layer, expert;
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_name_split(pattern, &layer, &expert, raw->pattern));
  taken.pattern = pattern;
  if (layer >= 0) {
    taken.layers = &layer;
    taken.n_layers = 1;
  }
  if (expert >= 0) {
    taken.first_expert = expert;
    taken.n_experts = 1;
  }
  XFI_TRY(xfi_model_append(model, &taken, options));
done:
  return st;
}

xfer_status xfi_model_add(xfer_model *model, const xfi_raw *raw)
{
  const xfer_model_options all = XFER_MODEL_OPTIONS_INIT;
  const size_t n = model->n_entries;
  char why[XFI_ERROR_BYTES];
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_model_append_name(model, raw, &all));
  st = xfi_model_finish(model, &all);
  if (st == XFER_OK) return XFER_OK;
  snprintf(why, sizeof why, "%s", xfi_last_error());
  while (model->n_entries > n)
    entry_clear(&model->entries[--model->n_entries]);
  (void)xfi_model_finish(model, &all); /* as it was before */
  xfi_set_error("%s", why);
done:
  return st;
}
