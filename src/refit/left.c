/*
 * Weights that the configuration of a quantised model leaves as they are: `modules_to_not_convert`
 * or `ignored_layers` of its quantization_config, which engines go by where they quantise by blocks
 * too. Engines compare names of modules whole, and leave all experts of a layer for one of them.
 * What such a list may mean otherwise, as transformers takes parts of names, is refused. Of some
 * weights a family's rules say that a side leaves them.
 */
#include "quantise.h"

#include "alloc.h"
#include "error.h"
#include "model.h"
#include "names.h"
#include "placing.h"
#include "roles.h"

#include <jansson.h>
#include <string.h>

/* The module of an entry in one layer; of experts the one that has all of them. */
static xfer_status module_of(char **module, const xfi_entry *entry, int k)
{
  char *dot;

  *module = NULL;
  if (entry->n_layers > 0)
    XFI_TRY(xfi_name_layer(module, entry->pattern, entry->layers[k]));
  else
    XFI_TRY(xfi_name_copy(module, entry->pattern));
  if (entry->experts && strstr(*module, "{expert}") != NULL)
    dot = strstr(*module, ".{expert}");
  else
    dot = strrchr(*module, '.');
  if (dot != NULL && (entry->experts || strcmp(dot, ".weight") == 0)) *dot = '\0';
  return XFER_OK;
}

/* Is `part` in `name`, with dots or ends around it? */
static bool has_part(const char *name, const char *part)
{
  const size_t n = strlen(part);

  for (const char *at = strstr(name, part); n > 0 && at != NULL; at = strstr(at + 1, part))
    if ((at == name || at[-1] == '.') && (at[n] == '.' || at[n] == '\0')) return true;
  return false;
}

/* As has_part(), at the end. */
static bool ends_in(const char *name, const char *end)
{
  const size_t n = strlen(name), n_end = strlen(end);

  return n >= n_end && strcmp(name + n - n_end, end) == 0 &&
         (n == n_end || name[n - n_end - 1] == '.');
}

/* A list has it by the name of the module; of experts, by that of any in it. */
static bool is_named(const char *item, const char *module, bool experts)
{
  const size_t n = strlen(module);

  return strncmp(item, module, n) == 0 && (item[n] == '\0' || (experts && item[n] == '.'));
}

/* Might it be meant all the same: by a part of its name, by where it is in its layer, or as what an
 * engine makes of it and others? */
static bool may_be_meant(const char *item, const char *module, const xfer_model *model)
{
  const char *layer = strstr(module, "layers."), *dot = strrchr(item, '.');
  const size_t n = dot == NULL ? 0 : (size_t)(dot - item);

  if (has_part(module, item) || (layer != NULL && ends_in(item, layer))) return true;
  if (n == 0 || strncmp(item, module, n) != 0 || module[n] != '.') return false;
  if (strchr(module + n + 1, '.') != NULL) return false;
  for (size_t i = 0; i < model->n_entries; i++)
    if (has_part(model->entries[i].pattern, dot + 1)) return false; /* it is what it says */
  return true;
}

/* What is looked for: the lists, and who quantises. */
typedef struct lists {
  const xfer_model *model;
  const xfer_side *by;
  const json_t *of[4];
  int n;
} lists;

static xfer_status refuse_unclear(const lists *l, const xfi_entry *entry, const char *module,
                                  const char *item)
{
  bool said = false;

  for (size_t i = 0; i < l->by->n_said && !said; i++)
    if (l->by->said[i].what == XFI_SAID_DTYPE)
      XFI_TRY(xfi_entry_touches(&said, entry, l->by->said[i].pattern));
  XFI_CHECK(said, XFER_ERR_UNSUPPORTED,
            "\"%s\" quantises \"%s\", which the configuration may or may not mean by \"%s\" among "
            "what is left as it is: name modules whole there, or say the side's element type of it",
            l->by->spec, module, item);
  return XFER_OK;
}

static xfer_status is_left_at(bool *left, const xfi_entry *entry, int k, const void *context)
{
  const lists *l = context;
  const char *unclear = NULL;
  char *module = NULL;
  xfer_status st = XFER_OK;

  *left = false;
  XFI_TRY_DONE(module_of(&module, entry, k));
  for (int i = 0; i < l->n && !*left; i++) {
    for (size_t n = 0; n < json_array_size(l->of[i]) && !*left; n++) {
      const char *item = json_string_value(json_array_get(l->of[i], n));

      if (item == NULL) continue;
      *left = is_named(item, module, entry->experts);
      if (!*left && may_be_meant(item, module, l->model)) unclear = item;
    }
  }
  if (!*left && unclear != NULL) XFI_TRY_DONE(refuse_unclear(l, entry, module, unclear));
done:
  xfi_free(module);
  return st;
}

static void add_lists(lists *l, const json_t *object)
{
  static const char *const KEYS[] = {"ignored_layers", "modules_to_not_convert"};
  const json_t *quant = json_object_get(object, "quantization_config");

  for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
    const json_t *list = json_object_get(quant, KEYS[i]);

    if (json_array_size(list) > 0 && l->n < (int)(sizeof l->of / sizeof *l->of))
      l->of[l->n++] = list;
    if (json_array_size(list) > 0) break; /* engines read the second without the first alone */
  }
}

/* Does the side leave weights of this role, whatever the configuration says? */
static bool is_left_by_rule(const xfer_model *model, const xfer_side *by, const xfi_entry *entry)
{
  for (int f = 0; f < model->n_all; f++) {
    for (size_t i = 0; i < model->all[f]->n_sides; i++) {
      const xfi_family_side *s = &model->all[f]->sides[i];

      if (strcmp(s->side, by->rules->name) != 0) continue;
      for (size_t k = 0; k < json_array_size(s->left); k++)
        if (xfi_role_matches(xfi_doc_text(s->left, k), entry->role)) return true;
    }
  }
  return false;
}

xfer_status xfi_left_find(xfer_model *model, const xfer_side *by)
{
  lists l = {.model = model, .by = by};

  add_lists(&l, model->top);
  if (l.n == 0) add_lists(&l, xfi_config_text(model->top));
  for (size_t i = 0; i < model->n_entries; i++) {
    if (!xfi_is_quantised(model, &model->entries[i])) continue;
    model->entries[i].left = is_left_by_rule(model, by, &model->entries[i]);
    if (model->entries[i].left || l.n == 0) continue;
    XFI_TRY(xfi_model_part(model, i, is_left_at, &l));
    XFI_TRY(is_left_at(&model->entries[i].left, &model->entries[i], 0, &l));
  }
  return XFER_OK;
}
