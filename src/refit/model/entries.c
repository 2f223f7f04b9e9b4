/*
 * The list of a model's entries: how they are appended, merged, split and found.
 */
#include "entries.h"

#include "alloc.h"
#include "checked.h"
#include "dtype.h"
#include "error.h"
#include "names.h"
#include "vec.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

void xfi_entry_clear(xfi_entry *entry)
{
  xfi_free(entry->pattern);
  xfi_free(entry->known);
  xfi_free(entry->name);
  xfi_free(entry->layers);
  memset(entry, 0, sizeof *entry);
}

/* ---- appending ---- */

/* No size is negative, which the readers have checked. */
static xfer_status check_listed(const xfi_listed_tensor *listed)
{
  int n_dims = listed->n_dims + (listed->n_experts > 0);
  int64_t bytes =
      (int64_t)xfi_dtype_size((int)listed->dtype) * (listed->n_experts > 0 ? listed->n_experts : 1);
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(listed->pattern[0] != '\0', XFER_ERR_IO, "a tensor without a name");
  XFI_CHECK_DONE(n_dims <= XFER_MAX_DIMS, XFER_ERR_IO, "\"%s\" has %d dims, more than %d",
                 listed->pattern, n_dims, XFER_MAX_DIMS);
  XFI_CHECK_DONE((listed->n_layers > 0) == (strstr(listed->pattern, "{layer}") != NULL),
                 XFER_ERR_IO, "\"%s\": {layer} and a list of layers go together", listed->pattern);
  XFI_CHECK_DONE((listed->n_experts > 0) == (strstr(listed->pattern, "{expert}") != NULL),
                 XFER_ERR_IO, "\"%s\": {expert} and a range of experts go together",
                 listed->pattern);
  for (int i = 0; i < listed->n_layers; i++) {
    XFI_CHECK_DONE(listed->layers[i] >= 0 && (i == 0 || listed->layers[i] > listed->layers[i - 1]),
                   XFER_ERR_IO, "\"%s\": layers must ascend from 0", listed->pattern);
  }
  for (int d = 0; d < listed->n_dims;
       d++) { /* sizes of 0 count as 1, since strides have the product of the others */
    XFI_CHECK_DONE(xfi_imul_fits(bytes, listed->shape[d] > 0 ? listed->shape[d] : 1, &bytes),
                   XFER_ERR_OVERFLOW, "\"%s\" has more bytes than 63 bits count", listed->pattern);
  }
done:
  if (st != XFER_OK && listed->path != NULL)
    xfi_set_error("%s: %s", listed->path, xfer_last_error());
  return st;
}

static void set_shape(xfi_entry *entry, const xfi_listed_tensor *listed)
{
  int experts = entry->n_experts > 0;
  int64_t stride = 1;

  entry->n_dims = listed->n_dims + experts;
  for (int d = listed->n_dims - 1; d >= 0; d--) {
    entry->shape[d + experts] = listed->shape[d];
    entry->in_checkpoint.strides[d + experts] = stride;
    stride *= listed->shape[d];
  }
  if (experts) entry->shape[0] = entry->n_experts;
  entry->experts = experts;
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    entry->in_checkpoint.order[d] = d;
}

/* Applies the caller's renames, in order. */
static xfer_status rename_entry(xfi_entry *entry, const xfer_model_options *options, bool **renamed)
{
  if (options->n_renames > 0 && *renamed == NULL) {
    *renamed = xfi_calloc((size_t)options->n_renames, sizeof **renamed);
    XFI_CHECK(*renamed != NULL, XFER_ERR_NOMEM, "%lld renames", (long long)options->n_renames);
  }

  for (int64_t i = 0; i < options->n_renames; i++) {
    char *next = NULL;

    XFI_TRY(
        xfi_glob_rename(&next, options->renames[2 * i], options->renames[2 * i + 1], entry->known));
    if (next == NULL) continue;
    (*renamed)[i] = true;
    xfi_free(entry->known);
    entry->known = next;
  }
  return XFER_OK;
}

/* Allocate what an entry owns. */
static xfer_status own_lists(xfi_entry *entry, const char *pattern, const char *known,
                             const char *name, const int *layers)
{
  entry->pattern = entry->known = entry->name = NULL;
  entry->layers = xfi_calloc((size_t)entry->n_layers, sizeof *entry->layers);
  XFI_CHECK(entry->layers != NULL, XFER_ERR_NOMEM, "the layers of \"%s\"", pattern);
  if (entry->n_layers > 0) memcpy(entry->layers, layers, (size_t)entry->n_layers * sizeof *layers);
  XFI_TRY(xfi_name_copy(&entry->pattern, pattern));
  XFI_TRY(xfi_name_copy(&entry->known, known));
  return xfi_name_copy(&entry->name, name);
}

static xfer_status append_entry(xfer_model *model, const xfi_listed_tensor *listed,
                                const xfer_model_options *options)
{
  xfi_entry entry = {.n_layers = listed->n_layers,
                     .first_expert = listed->first_expert,
                     .n_experts = listed->n_experts,
                     .dtype = listed->dtype,
                     .table_dtype = listed->dtype,
                     .packed = {.n = 1},
                     .suffix = "",
                     .stem = "",
                     .scale_of = -1};
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(check_listed(listed));
  XFI_TRY_DONE(
      own_lists(&entry, listed->pattern, listed->pattern, listed->pattern, listed->layers));
  XFI_TRY_DONE(rename_entry(&entry, options, &model->renamed));
  set_shape(&entry, listed);
  XFI_TRY_DONE(XFI_APPEND(model->entries, model->n_entries, model->entries_cap, entry));
  memset(&entry, 0, sizeof entry);
done:
  xfi_entry_clear(&entry);
  return st;
}

xfer_status xfi_model_append(xfer_model *model, const xfi_listed_tensor *listed,
                             const xfer_model_options *options)
{
  char pattern[XFI_NAME_BYTES];
  xfi_listed_tensor taken = *listed;
  int layer, expert;

  XFI_TRY(xfi_name_split(pattern, &layer, &expert, listed->pattern, model->layer_words,
                         model->n_layer_words));
  taken.pattern = pattern;
  if (layer >= 0) {
    taken.layers = &layer;
    taken.n_layers = 1;
  }
  if (expert >= 0) {
    taken.first_expert = expert;
    taken.n_experts = 1;
  }
  return append_entry(model, &taken, options);
}

/* ---- merging ---- */

/* Compare everything but layers and experts. */
static int compare_kinds(const xfi_entry *x, const xfi_entry *y)
{
  int c = strcmp(x->pattern, y->pattern);

  if (c == 0) c = (x->dtype > y->dtype) - (x->dtype < y->dtype);
  if (c == 0) c = (x->n_dims > y->n_dims) - (x->n_dims < y->n_dims);
  for (int d = x->n_experts > 0; d < x->n_dims && c == 0; d++)
    c = (x->shape[d] > y->shape[d]) - (x->shape[d] < y->shape[d]);
  return c;
}

static int compare_experts(const xfi_entry *x, const xfi_entry *y)
{
  if (x->first_expert != y->first_expert) return x->first_expert < y->first_expert ? -1 : 1;
  return (x->n_experts > y->n_experts) - (x->n_experts < y->n_experts);
}

static int compare_layers(const xfi_entry *x, const xfi_entry *y)
{
  int c = (x->n_layers > y->n_layers) - (x->n_layers < y->n_layers);

  for (int i = 0; i < x->n_layers && c == 0; i++)
    c = (x->layers[i] > y->layers[i]) - (x->layers[i] < y->layers[i]);
  return c;
}

static int compare_entries(const void *a, const void *b)
{
  int c = compare_kinds(a, b);

  if (c == 0) c = compare_layers(a, b);
  return c != 0 ? c : compare_experts(a, b);
}

static int by_experts(const void *a, const void *b)
{
  return compare_entries(*(xfi_entry *const *)a, *(xfi_entry *const *)b);
}

/* Does `y` have the experts after those of `x`? */
static bool has_next_experts(const xfi_entry *x, const xfi_entry *y)
{
  return x->n_experts > 0 && compare_kinds(x, y) == 0 && compare_layers(x, y) == 0 &&
         x->first_expert + x->n_experts == y->first_expert;
}

/* The first of n entries gets the experts of the others. */
static xfer_status merge_experts(xfi_entry *const *entries, size_t n)
{
  for (size_t i = 1; i < n; i++) {
    entries[0]->n_experts += entries[i]->n_experts;
    entries[0]->shape[0] += entries[i]->shape[0];
  }
  return XFER_OK;
}

static int by_layers(const void *a, const void *b)
{
  const xfi_entry *x = *(xfi_entry *const *)a, *y = *(xfi_entry *const *)b;
  int c = compare_kinds(x, y);

  if (c == 0) c = compare_experts(x, y);
  if (c != 0 || x->n_layers == 0 || y->n_layers == 0) return c != 0 ? c : x->n_layers - y->n_layers;
  return (x->layers[0] > y->layers[0]) - (x->layers[0] < y->layers[0]);
}

static bool has_next_layers(const xfi_entry *x, const xfi_entry *y)
{
  return x->n_layers > 0 && compare_kinds(x, y) == 0 && compare_experts(x, y) == 0 &&
         x->layers[x->n_layers - 1] < y->layers[0];
}

/* The first of n entries gets the layers of the others. */
static xfer_status merge_layers(xfi_entry *const *entries, size_t n)
{
  xfi_entry *first = entries[0];
  size_t n_layers = 0;
  int *layers;

  for (size_t i = 0; i < n; i++)
    n_layers += (size_t)entries[i]->n_layers;
  layers = xfi_calloc(n_layers, sizeof *layers);
  XFI_CHECK(layers != NULL && n_layers <= INT_MAX, XFER_ERR_NOMEM, "the %zu layers of \"%s\"",
            n_layers, first->pattern);
  n_layers = 0;
  for (size_t i = 0; i < n; i++) {
    memcpy(layers + n_layers, entries[i]->layers, (size_t)entries[i]->n_layers * sizeof *layers);
    n_layers += (size_t)entries[i]->n_layers;
  }
  xfi_free(first->layers);
  first->layers = layers;
  first->n_layers = (int)n_layers;
  return XFER_OK;
}

/* Merge adjacent entries in sorted order. Duplicates stay, and are detected later. */
static xfer_status merge(xfer_model *model, int (*compare)(const void *, const void *),
                         bool (*has_next)(const xfi_entry *, const xfi_entry *),
                         xfer_status (*take)(xfi_entry *const *, size_t))
{
  xfi_entry **sorted = xfi_calloc(model->n_entries, sizeof(xfi_entry *));
  size_t n = 0, end;
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(sorted != NULL, XFER_ERR_NOMEM, "%zu names to put together", model->n_entries);
  for (size_t i = 0; i < model->n_entries; i++)
    sorted[i] = &model->entries[i];
  qsort(sorted, model->n_entries, sizeof(xfi_entry *), compare);
  for (size_t at = 0; at < model->n_entries; at = end) {
    for (end = at + 1; end < model->n_entries && has_next(sorted[end - 1], sorted[end]);)
      end++;
    if (end > at + 1) XFI_TRY_DONE(take(&sorted[at], end - at));
    for (size_t i = at + 1; i < end; i++)
      xfi_entry_clear(sorted[i]);
  }
  for (size_t i = 0; i < model->n_entries; i++) {
    if (model->entries[i].pattern != NULL) model->entries[n++] = model->entries[i];
  }
  model->n_entries = n;
done:
  xfi_free(sorted);
  return st;
}

xfer_status xfi_model_gather_experts(xfer_model *model)
{
  return merge(model, by_experts, has_next_experts, merge_experts);
}

xfer_status xfi_model_gather(xfer_model *model)
{
  XFI_TRY(xfi_model_gather_experts(model));
  return merge(model, by_layers, has_next_layers, merge_layers);
}

void xfi_model_sort(xfer_model *model)
{
  xfi_sort(model->entries, model->n_entries, sizeof *model->entries, compare_entries);
}

/* ---- splitting ---- */

xfer_status xfi_entry_copy(xfi_entry *copy, const xfi_entry *e)
{
  *copy = *e;
  XFI_TRY(own_lists(copy, e->pattern, e->known, e->name, e->layers));
  copy->stem = copy->known + (e->stem - e->known);
  return XFER_OK;
}

xfer_status xfi_model_duplicate(xfer_model *model, size_t at)
{
  xfi_entry copy;
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(xfi_entry_copy(&copy, &model->entries[at]));
  XFI_TRY_DONE(xfi_vec_reserve(&model->entries, &model->entries_cap, model->n_entries + 1,
                               sizeof *model->entries));
  memmove(model->entries + at + 2, model->entries + at + 1,
          (model->n_entries++ - at - 1) * sizeof *model->entries);
  model->entries[at + 1] = copy;
  memset(&copy, 0, sizeof copy);
done:
  xfi_entry_clear(&copy);
  return st;
}

xfer_status xfi_model_split(xfer_model *model, size_t at, xfi_keep_layer_fn keep,
                            const void *context)
{
  xfi_entry *e = &model->entries[at], *rest;
  const int n = e->n_layers;
  int n_staying = 0;
  bool *staying = xfi_calloc((size_t)n, sizeof *staying);
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(staying != NULL, XFER_ERR_NOMEM, "the layers of \"%s\"", e->pattern);
  for (int k = 0; k < n; k++) {
    XFI_TRY_DONE(keep(&staying[k], e, k, context));
    n_staying += staying[k];
  }
  if (n_staying == 0 || n_staying == n) goto done;
  XFI_TRY_DONE(xfi_model_duplicate(model, at));
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

/* ---- finding ---- */

int xfi_find_int(const int *list, int n, int value)
{
  int lo = 0, hi = n;

  XFI_BISECT(lo, hi, mid, list[mid] < value);
  return lo < n && list[lo] == value ? lo : -1;
}

int xfi_entry_place(const xfi_entry *entry, int layer)
{
  return layer < 0 ? -(entry->n_layers > 0) : xfi_find_int(entry->layers, entry->n_layers, layer);
}

bool xfi_model_has_role(const xfer_model *model, xfi_stack stack, const char *role)
{
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    if (e->role != NULL && e->stack == stack && strcmp(e->role, role) == 0) return true;
  }
  return false;
}

static int by_layer(const void *a, const void *b)
{
  const xfi_layer_entry *x = a, *y = b;

  if (x->stack != y->stack) return x->stack < y->stack ? -1 : 1;
  if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
  return (x->entry > y->entry) - (x->entry < y->entry);
}

xfer_status xfi_model_index_layers(xfer_model *model)
{
  size_t n = 0;

  for (size_t i = 0; i < model->n_entries; i++)
    n += (size_t)xfi_entry_places(&model->entries[i]);
  xfi_free(model->layer_entries);
  model->n_layer_entries = 0;
  model->layer_entries = xfi_calloc(n, sizeof *model->layer_entries);
  XFI_CHECK(model->layer_entries != NULL, XFER_ERR_NOMEM, "%zu tensors of a model by layer", n);
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    for (int k = 0; k < xfi_entry_places(e); k++)
      model->layer_entries[model->n_layer_entries++] =
          (xfi_layer_entry){e->stack, xfi_entry_layer(e, k), i, e->role != NULL};
  }
  qsort(model->layer_entries, n, sizeof *model->layer_entries, by_layer);
  return XFER_OK;
}

/* The index of the first one that is not before `key`. */
static size_t first_layer_entry(const xfer_model *model, xfi_layer_entry key)
{
  size_t lo = 0, hi = model->n_layer_entries;

  XFI_BISECT(lo, hi, mid, by_layer(&model->layer_entries[mid], &key) < 0);
  return lo;
}

const xfi_layer_entry *xfi_model_layer_entries(const xfer_model *model, xfi_stack stack, int layer,
                                               size_t *n)
{
  const size_t first = first_layer_entry(model, (xfi_layer_entry){.stack = stack, .layer = layer});

  *n = first_layer_entry(model,
                         (xfi_layer_entry){.stack = stack, .layer = layer, .entry = SIZE_MAX}) -
       first;
  return model->layer_entries + first;
}

xfi_entry *xfi_model_find(const xfer_model *model, xfi_stack stack, int layer, const char *role,
                          const char *suffix)
{
  size_t n;
  const xfi_layer_entry *layer_entries = xfi_model_layer_entries(model, stack, layer, &n);

  for (size_t i = 0; i < n; i++) {
    xfi_entry *e = &model->entries[layer_entries[i].entry];

    if (e->role == NULL || strcmp(e->role, role) != 0) continue;
    if (suffix == NULL || strcmp(e->suffix, suffix) == 0) return e;
  }
  return NULL;
}

xfi_entry *xfi_model_find_beside(const xfer_model *model, const xfi_entry *like, const char *role,
                                 const char *suffix)
{
  return xfi_model_find(model, like->stack, xfi_entry_layer(like, 0), role, suffix);
}

xfer_status xfi_entry_matches(bool *matches, const xfi_entry *entry, int k, const void *pattern)
{
  char *name = NULL;
  xfer_status st = XFER_OK;

  *matches = xfi_glob_match(pattern, entry->pattern) || xfi_glob_match(pattern, entry->name);
  if (*matches || entry->n_layers == 0) return XFER_OK;
  XFI_TRY_DONE(xfi_name_layer(&name, entry->name, entry->layers[k]));
  *matches = xfi_glob_match(pattern, name);
done:
  xfi_free(name);
  return st;
}

xfer_status xfi_entry_touches(bool *touches, const xfi_entry *entry, const char *pattern)
{
  *touches = false;
  for (int k = 0; k < xfi_entry_places(entry) && !*touches; k++)
    XFI_TRY(xfi_entry_matches(touches, entry, k, pattern));
  return XFER_OK;
}
