/*
 * From what a checkpoint lists to entries: selection, quantisation, scales paired with their
 * weights, and the check that names are unique.
 */
#include "model.h"

#include "alloc.h"
#include "checked.h"
#include "dtype.h"
#include "error.h"
#include "names.h"
#include "vec.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

xfer_status xfi_model_create(xfer_model **model, const xfer_rules *rules)
{
  xfer_model *m = xfi_calloc(1, sizeof *m);
  xfer_status st = XFER_OK;

  XFI_CHECK(m != NULL, XFER_ERR_NOMEM, "a model table");
  atomic_store(&m->n_refs, 1);
  m->model_type = "";
  m->words[m->n_words++] = "layers.";
  if (rules != NULL)
    m->rules = xfi_rules_share(rules);
  else
    XFI_TRY(xfi_rules_builtin(&m->rules));
  *model = m;
  m = NULL;
done:
  xfi_model_destroy(m);
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
  memset(entry, 0, sizeof *entry);
}

void xfi_model_destroy(xfer_model *model) /* NOLINT(misc-no-recursion): a base has none */
{
  if (model == NULL || atomic_fetch_sub(&model->n_refs, 1) != 1) return;
  for (size_t i = 0; i < model->n_entries; i++)
    entry_clear(&model->entries[i]);
  xfi_free(model->entries);
  xfi_free(model->layers);
  xfi_free(model->vars);
  xfi_doc_free(&model->config);
  xfi_rules_destroy(model->rules);
  xfi_model_destroy(model->base);
  xfi_free(model);
}

int xfi_find_int(const int *list, int n, int value)
{
  int lo = 0, hi = n;

  while (lo < hi) {
    int mid = lo + (hi - lo) / 2;

    if (list[mid] < value)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo < n && list[lo] == value ? lo : -1;
}

int xfi_entry_place(const xfi_entry *entry, int layer)
{
  return layer < 0 ? -(entry->n_layers > 0) : xfi_find_int(entry->layers, entry->n_layers, layer);
}

/* ---- appending ---- */

/* No size is negative: who read it, or was given it, saw to it. */
static xfer_status check_raw(const xfi_raw *raw)
{
  int n_dims = raw->n_dims + (raw->n_experts > 0);
  int64_t bytes =
      (int64_t)xfi_dtype_size((int)raw->dtype) * (raw->n_experts > 0 ? raw->n_experts : 1);
  xfer_status st = XFER_OK;

  XFI_CHECK(raw->pattern[0] != '\0', XFER_ERR_IO, "a tensor without a name");
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
  for (int d = 0; d < raw->n_dims; d++)
    XFI_CHECK(xfi_imul_fits(bytes, raw->shape[d], &bytes), XFER_ERR_OVERFLOW,
              "\"%s\" has more bytes than 63 bits count", raw->pattern);
done:
  return st;
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
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    entry->order[d] = d;
}

/* Applies the caller's renames, in order. */
static xfer_status rename_entry(xfi_entry *entry, const xfer_model_options *options,
                                uint64_t *renamed)
{
  xfer_status st = XFER_OK;

  for (int64_t i = 0; i < options->n_renames; i++) {
    char *next = NULL;

    XFI_TRY(
        xfi_glob_rename(&next, options->renames[2 * i], options->renames[2 * i + 1], entry->known));
    if (next == NULL) continue;
    if (i < 64) *renamed |= UINT64_C(1) << i;
    xfi_free(entry->known);
    entry->known = next;
  }
done:
  return st;
}

/* What an entry has for itself. */
static xfer_status own_lists(xfi_entry *entry, const char *pattern, const char *known,
                             const char *name, const int *layers)
{
  xfer_status st = XFER_OK;

  entry->pattern = entry->known = entry->name = NULL;
  entry->layers = xfi_calloc((size_t)entry->n_layers, sizeof *entry->layers);
  XFI_CHECK(entry->layers != NULL, XFER_ERR_NOMEM, "the layers of \"%s\"", pattern);
  if (entry->n_layers > 0) memcpy(entry->layers, layers, (size_t)entry->n_layers * sizeof *layers);
  XFI_TRY(xfi_name_copy(&entry->pattern, pattern));
  XFI_TRY(xfi_name_copy(&entry->known, known));
  XFI_TRY(xfi_name_copy(&entry->name, name));
done:
  return st;
}

xfer_status xfi_model_append(xfer_model *model, const xfi_raw *raw,
                             const xfer_model_options *options)
{
  xfi_entry entry = {.n_layers = raw->n_layers,
                     .first_expert = raw->first_expert,
                     .n_experts = raw->n_experts,
                     .dtype = raw->dtype,
                     .table_dtype = raw->dtype,
                     .n_held = 1,
                     .suffix = "",
                     .stem = "",
                     .scale_of = -1};
  xfer_status st = XFER_OK;

  XFI_TRY(check_raw(raw));
  XFI_TRY(own_lists(&entry, raw->pattern, raw->pattern, raw->pattern, raw->layers));
  XFI_TRY(rename_entry(&entry, options, &model->renamed));
  set_shape(&entry, raw);
  XFI_TRY(xfi_vec_reserve(&model->entries, &model->entries_cap, model->n_entries + 1,
                          sizeof *model->entries));
  model->entries[model->n_entries++] = entry;
  memset(&entry, 0, sizeof entry);
done:
  entry_clear(&entry);
  return st;
}

xfer_status xfi_model_append_name(xfer_model *model, const xfi_raw *raw,
                                  const xfer_model_options *options)
{
  char pattern[XFI_NAME_BYTES];
  xfi_raw taken = *raw;
  int layer, expert;
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_name_split(pattern, &layer, &expert, raw->pattern, model->words, model->n_words));
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

static xfer_status copy_entry(xfi_entry *copy, const xfi_entry *e)
{
  xfer_status st = XFER_OK;

  *copy = *e;
  XFI_TRY(own_lists(copy, e->pattern, e->known, e->name, e->layers));
  copy->stem = copy->known + (e->stem - e->known);
done:
  return st;
}

xfer_status xfi_model_double(xfer_model *model, size_t at)
{
  xfi_entry copy;
  xfer_status st = XFER_OK;

  XFI_TRY(copy_entry(&copy, &model->entries[at]));
  XFI_TRY(xfi_vec_reserve(&model->entries, &model->entries_cap, model->n_entries + 1,
                          sizeof *model->entries));
  memmove(model->entries + at + 2, model->entries + at + 1,
          (model->n_entries++ - at - 1) * sizeof *model->entries);
  model->entries[at + 1] = copy;
  memset(&copy, 0, sizeof copy);
done:
  entry_clear(&copy);
  return st;
}

xfer_status xfi_model_part(xfer_model *model, size_t at, xfi_stays stays, const void *context)
{
  xfi_entry *e = &model->entries[at], *rest;
  const int n = e->n_layers;
  int n_staying = 0;
  bool *staying = xfi_calloc((size_t)n, sizeof *staying);
  xfer_status st = XFER_OK;

  XFI_CHECK(staying != NULL, XFER_ERR_NOMEM, "the layers of \"%s\"", e->pattern);
  for (int k = 0; k < n; k++) {
    XFI_TRY(stays(&staying[k], e, k, context));
    n_staying += staying[k];
  }
  if (n_staying == 0 || n_staying == n) goto done;
  XFI_TRY(xfi_model_double(model, at));
  e = &model->entries[at];
  rest = e + 1;
  e->n_layers = rest->n_layers = 0;
  for (int k = 0; k < n; k++) {
    if (staying[k])
      e->layers[e->n_layers++] = e->layers[k];
    else
      rest->layers[rest->n_layers++] = rest->layers[k];
  }
done:
  xfi_free(staying);
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

/* ---- ranges ---- */

/* Keeps the layers and experts in the options' ranges; false: nothing is left. */
static bool keep_ranges(const xfer_model_options *o, xfi_entry *entry)
{
  bool own = entry->stack == XFI_LAYERS;
  int kept = 0;

  if (o->layers_end > 0 && o->ends == 0 && !own) return false;
  if (o->layers_end > 0 && own) {
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
    entry->shape[0] = end - begin;
  }
  return true;
}

/* A range of experts must be there: what it names beyond the model's, nobody can mean. */
static xfer_status check_experts(const xfer_model *model, const xfer_model_options *o)
{
  int end = 0;
  bool stacked = false;
  xfer_status st = XFER_OK;

  if (o->experts_end == 0) return XFER_OK;
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    if (e->n_experts > 0 && e->first_expert + e->n_experts > end)
      end = e->first_expert + e->n_experts;
    stacked =
        stacked || (strstr(e->known, ".experts.") != NULL && e->n_experts == 0 && e->n_dims == 3);
  }
  XFI_CHECK(!stacked, XFER_ERR_UNSUPPORTED,
            "experts %d to %d are wanted, but the checkpoint holds all experts in one tensor, of "
            "which a range cannot be kept",
            o->experts_begin, o->experts_end - 1);
  XFI_CHECK(o->experts_end <= end, XFER_ERR_ARG, "experts %d to %d are wanted; the model has %d",
            o->experts_begin, o->experts_end - 1, end);
done:
  return st;
}

static xfer_status select_ranges(xfer_model *model, const xfer_model_options *options)
{
  size_t n = 0;
  xfer_status st = XFER_OK;

  XFI_TRY(check_experts(model, options));
  for (size_t i = 0; i < model->n_entries; i++) {
    if (keep_ranges(options, &model->entries[i]))
      model->entries[n++] = model->entries[i];
    else
      entry_clear(&model->entries[i]);
  }
  model->n_entries = n;
done:
  return st;
}

/* ---- checks ---- */

static int compare_names(const xfi_entry *x, const xfi_entry *y)
{
  int c = strcmp(x->known, y->known);

  return c != 0 ? c : x->held - y->held;
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
    if (xfi_entry_place(y, x->layers[i]) >= 0) return true;
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

/* The model's own layers: what pipeline stages share out. Extra layers are none of them. */
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
  model->n_extra = 0;
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    for (int k = 0; k < e->n_layers && e->stack == XFI_LAYERS; k++)
      all[n++] = e->layers[k];
    if (e->stack == XFI_EXTRA && e->n_layers > model->n_extra) model->n_extra = e->n_layers;
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

static void split_names(xfer_model *model)
{
  for (size_t i = 0; i < model->n_entries; i++) {
    if (!model->entries[i].matched) xfi_roles_split_name(model, &model->entries[i]);
  }
}

xfer_status xfi_model_settle(xfer_model *model)
{
  xfer_status st = XFER_OK;

  XFI_TRY(check_unique(model));
  XFI_TRY(collect_layers(model));
  XFI_TRY(xfi_roles_collect(model));
  XFI_TRY(xfi_scales_pair(model));
done:
  return st;
}

xfer_status xfi_model_finish(xfer_model *model, const xfer_model_options *options)
{
  static const xfi_quant BLOCK128 = {{128, 128}, "weight_scale_inv", XFER_F32};
  xfer_status st = XFER_OK;

  XFI_CHECK(model->n_config_layers == 0 || options->layers_end <= model->n_config_layers,
            XFER_ERR_ARG, "layers %d to %d are wanted; the model has %d", options->layers_begin,
            options->layers_end - 1, model->n_config_layers);
  for (int64_t i = 0; i < options->n_renames && i < 64; i++) {
    XFI_CHECK((model->renamed >> i & 1) != 0, XFER_ERR_ARG,
              "rename \"%s\": no tensor of the model matches", options->renames[2 * i]);
  }
  if (!model->scanned) xfi_config_recognise(model);
  XFI_TRY(xfi_config_vars(model));
  split_names(model);
  if (!model->scanned) XFI_TRY(select_ranges(model, options));
  XFI_CHECK(model->n_entries > 0, XFER_ERR_ARG, "no tensor is left to refit");
  XFI_TRY(xfi_roles_find(model));
  if (!model->scanned && options->quant == XFER_QUANT_FP8_BLOCK128)
    XFI_TRY(xfi_scales_make(model, &BLOCK128));
  model->scanned = true;
  XFI_TRY(xfi_model_settle(model));
done:
  return st;
}

xfer_status xfi_model_copy(xfer_model **made, xfer_model *model)
{
  xfer_model *m = NULL;
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_model_create(&m, model->rules));
  m->base = xfi_model_share(model);
  m->top = model->top;
  m->family = model->family;
  memcpy(m->all, model->all, sizeof m->all);
  m->n_all = model->n_all;
  m->model_type = model->model_type;
  m->scope = model->scope;
  m->figures = model->figures;
  m->n_config_layers = model->n_config_layers;
  memcpy(m->block, model->block, sizeof m->block);
  XFI_TRY(xfi_vec_reserve(&m->entries, &m->entries_cap, model->n_entries, sizeof *m->entries));
  for (size_t i = 0; i < model->n_entries; i++) {
    m->n_entries++;
    XFI_TRY(copy_entry(&m->entries[i], &model->entries[i]));
  }
  *made = m;
  m = NULL;
done:
  xfi_model_destroy(m);
  return st;
}
