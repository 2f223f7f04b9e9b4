/*
 * From the entries of a checkpoint to a model: selection, roles, quantisation, scales paired with
 * their weights, and the check that names are unique.
 */
#include "model.h"

#include "alloc.h"
#include "error.h"
#include "names.h"
#include "quantise.h"
#include "roles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

xfer_status xfi_model_create(xfer_model **model, const xfer_rules *rules)
{
  xfer_model *m = xfi_calloc(1, sizeof *m);

  XFI_CHECK(m != NULL, XFER_ERR_NOMEM, "a model table");
  atomic_store(&m->n_refs, 1);
  m->model_type = "";
  m->layer_words[m->n_layer_words++] = "layers.";
  if (rules != NULL) m->rules = xfi_rules_share(rules);
  *model = m;
  return XFER_OK;
}

xfer_model *xfi_model_share(xfer_model *model)
{
  atomic_fetch_add(&model->n_refs, 1);
  return model;
}

static void free_entries(xfi_entry *entries, size_t n)
{
  for (size_t i = 0; i < n; i++)
    xfi_entry_clear(&entries[i]);
  xfi_free(entries);
}

static xfer_status copy_entries(xfi_entry **to, const xfer_model *model)
{
  xfi_entry *copies = xfi_calloc(model->n_entries, sizeof *copies);
  size_t n = 0;
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(copies != NULL, XFER_ERR_NOMEM, "%zu tensors of a model", model->n_entries);
  while (n < model->n_entries) {
    n++;
    XFI_TRY_DONE(xfi_entry_copy(&copies[n - 1], &model->entries[n - 1]));
  }
  *to = copies;
  copies = NULL;
done:
  if (copies != NULL) free_entries(copies, n);
  return st;
}

void xfi_model_destroy(xfer_model *model) /* NOLINT(misc-no-recursion): a base has none */
{
  if (model == NULL || atomic_fetch_sub(&model->n_refs, 1) != 1) return;
  free_entries(model->entries, model->n_entries);
  xfi_free(model->layer_entries);
  xfi_free(model->renamed);
  xfi_free(model->layers);
  xfi_free(model->vars);
  xfi_free(model->absent);
  xfi_doc_free(&model->config);
  xfi_rules_destroy(model->rules);
  xfi_model_destroy(model->base);
  xfi_free(model);
}

xfer_status xfi_model_add(xfer_model *model, const xfi_listed_tensor *listed)
{
  const xfer_model_options all = XFER_MODEL_OPTIONS_INIT;
  const size_t n = model->n_entries;
  xfi_entry *before = NULL; /* roles may split and fuse any entries */
  char why[XFI_ERROR_BYTES];
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(copy_entries(&before, model));
  XFI_TRY_DONE(xfi_model_append(model, listed, &all));
  st = xfi_model_finish(model, &all);
  if (st == XFER_OK) goto done;
  snprintf(why, sizeof why, "%s", xfer_last_error());
  free_entries(model->entries, model->n_entries);
  model->entries = before;
  model->n_entries = model->entries_cap = n;
  before = NULL;
  (void)xfi_model_finish(model, &all);
  xfi_set_error("%s", why);
done:
  if (before != NULL) free_entries(before, n);
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

/* A range of experts must exist in the model. */
static xfer_status check_experts(const xfer_model *model, const xfer_model_options *o)
{
  int end = 0;
  bool stacked = false;

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
  return XFER_OK;
}

static xfer_status select_ranges(xfer_model *model, const xfer_model_options *options)
{
  size_t n = 0;

  XFI_TRY(xfi_model_check_expert_counts(model, true));
  XFI_TRY(check_experts(model, options));
  for (size_t i = 0; i < model->n_entries; i++) {
    if (keep_ranges(options, &model->entries[i]))
      model->entries[n++] = model->entries[i];
    else
      xfi_entry_clear(&model->entries[i]);
  }
  model->n_entries = n;
  return XFER_OK;
}

/* ---- checks ---- */

static int compare_names(const xfi_entry *x, const xfi_entry *y)
{
  int c = strcmp(x->known, y->known);

  return c != 0 ? c : x->packed.index - y->packed.index;
}

static int compare_patterns(const void *a, const void *b)
{
  const xfi_entry *x = *(const xfi_entry *const *)a, *y = *(const xfi_entry *const *)b;
  int c = compare_names(x, y);

  if (c != 0) return c;
  if (x->n_layers == 0 || y->n_layers == 0) return 0;
  return (x->layers[0] > y->layers[0]) - (x->layers[0] < y->layers[0]);
}

static bool layers_overlap(const xfi_entry *x, const xfi_entry *y)
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

  XFI_CHECK_DONE(sorted != NULL, XFER_ERR_NOMEM, "%zu names to compare", model->n_entries);
  for (size_t i = 0; i < model->n_entries; i++)
    sorted[i] = &model->entries[i];
  qsort(sorted, model->n_entries, sizeof(const xfi_entry *), compare_patterns);
  for (size_t i = 0; i < model->n_entries; i++) {
    for (size_t k = i + 1; k < model->n_entries; k++) {
      if (compare_names(sorted[i], sorted[k]) != 0) break;
      if (!layers_overlap(sorted[i], sorted[k])) continue;
      XFI_CHECK_DONE(strcmp(sorted[i]->pattern, sorted[k]->pattern) != 0,
                     model->complete ? XFER_ERR_ARG : XFER_ERR_IO, "\"%s\" is in the model twice",
                     sorted[i]->pattern);
      XFI_CHECK_DONE(false, XFER_ERR_ARG, "\"%s\" and \"%s\" are one name, \"%s\"",
                     sorted[i]->pattern, sorted[k]->pattern, sorted[i]->known);
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

/* List the model's own layers, which pipeline stages divide. Extra layers are not among them. */
static xfer_status collect_layers(xfer_model *model)
{
  size_t n = 0, kept = 0;
  int *all = NULL;
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < model->n_entries; i++)
    n += (size_t)model->entries[i].n_layers;
  all = xfi_calloc(n, sizeof *all);
  XFI_CHECK_DONE(all != NULL, XFER_ERR_NOMEM, "%zu layer numbers", n);
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

xfer_status xfi_model_resolve(xfer_model *model)
{
  XFI_TRY(check_unique(model));
  XFI_TRY(collect_layers(model));
  XFI_TRY(xfi_roles_split_layers(model));
  XFI_TRY(xfi_scales_pair(model));
  return xfi_model_index_layers(model);
}

xfer_status xfi_model_finish(xfer_model *model, const xfer_model_options *options)
{
  XFI_CHECK(model->n_config_layers == 0 || options->layers_end <= model->n_config_layers,
            XFER_ERR_ARG, "layers %d to %d are wanted; the model has %d, which count from 0",
            options->layers_begin, options->layers_end - 1, model->n_config_layers);
  for (int64_t i = 0; i < options->n_renames; i++) {
    XFI_CHECK(model->renamed != NULL && model->renamed[i], XFER_ERR_ARG,
              "rename \"%s\": no tensor of the model matches", options->renames[2 * i]);
  }
  if (!model->complete) {
    xfi_config_recognise(model);
    XFI_TRY(xfi_model_gather(model));
  }
  XFI_TRY(xfi_config_vars(model));
  split_names(model);
  if (!model->complete) XFI_TRY(select_ranges(model, options));
  XFI_CHECK(model->n_entries > 0, XFER_ERR_ARG, "no tensor is left to refit");
  XFI_TRY(xfi_roles_find(model));
  model->selected = model->selected || options->layers_end > 0;
  model->without_ends = model->without_ends || (options->layers_end > 0 && options->ends == 0);
  XFI_TRY(xfi_model_resolve(model));
  model->complete = true;
  return XFER_OK;
}

xfer_status xfi_model_copy(xfer_model **copy, xfer_model *model)
{
  xfer_model *m = NULL;
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(xfi_model_create(&m, model->rules));
  m->base = xfi_model_share(model);
  m->configuration = model->configuration;
  m->family = model->family;
  memcpy(m->families, model->families, sizeof m->families);
  m->n_families = model->n_families;
  m->model_type = model->model_type;
  m->scope = model->scope;
  m->config_scope = model->config_scope;
  m->n_config_layers = model->n_config_layers;
  m->n_further_layers = model->n_further_layers;
  m->further_key = model->further_key;
  memcpy(m->block, model->block, sizeof m->block);
  m->complete = true;
  XFI_TRY_DONE(copy_entries(&m->entries, model));
  m->n_entries = m->entries_cap = model->n_entries;
  *copy = m;
  m = NULL;
done:
  xfi_model_destroy(m);
  return st;
}
