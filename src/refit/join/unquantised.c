/*
 * Weights that a quantised model does not quantise: those of `modules_to_not_convert` or
 * `ignored_layers` in its quantization_config, which engines also apply when they quantise by
 * blocks themselves. Engines compare whole names of modules, and leave out all experts of a layer
 * if one is listed. A name that may mean something else, such as a part of a name as in
 * transformers, is refused. A family's rules may also list roles that a side does not quantise.
 */
#include "quantise.h"

#include "alloc.h"
#include "config_values.h"
#include "error.h"
#include "names.h"
#include "side.h"

#include <jansson.h>
#include <string.h>

/* The module of an entry in one layer; for experts the module that has all of them. */
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

/* Does the name end in `end`, which begins there behind a dot or at the name's beginning? */
static bool ends_in(const char *name, const char *end)
{
  const size_t n = strlen(name), n_end = strlen(end);

  return n >= n_end && strcmp(name + n - n_end, end) == 0 &&
         (n == n_end || name[n - n_end - 1] == '.');
}

/* Does an item of a list name the module? For experts, also one that names any of them. */
static bool is_named(const char *item, const char *module, bool experts)
{
  const size_t n = strlen(module);

  return strncmp(item, module, n) == 0 && (item[n] == '\0' || (experts && item[n] == '.'));
}

/* May an item mean the module in another way: by a part of its name, by its place in the layer, or
 * by the name of a tensor that an engine fuses it into? */
static bool may_match(const char *item, const char *module, const xfer_model *model)
{
  const char *layer = strstr(module, "layers."), *dot = strrchr(item, '.');
  const size_t n = dot == NULL ? 0 : (size_t)(dot - item);

  if (xfi_name_has_part(module, item) || (layer != NULL && ends_in(item, layer))) return true;
  if (n == 0 || strncmp(item, module, n) != 0 || module[n] != '.') return false;
  if (strchr(module + n + 1, '.') != NULL) return false;
  for (size_t i = 0; i < model->n_entries; i++)
    if (xfi_name_has_part(model->entries[i].pattern, dot + 1))
      return false; /* the item names an existing tensor */
  return true;
}

/* The configuration's lists of modules, and the side that quantises. */
typedef struct lists {
  const xfer_model *model;
  const xfer_side *by;
  const json_t *of[4];
  int n;
} lists;

static xfer_status refuse_unclear(const lists *l, const xfi_entry *entry, const char *module,
                                  const char *item)
{
  bool overridden = false;

  for (size_t i = 0; i < l->by->n_overrides && !overridden; i++)
    if (l->by->overrides[i].kind == XFI_OVERRIDE_DTYPE)
      XFI_TRY(xfi_entry_touches(&overridden, entry, l->by->overrides[i].pattern));
  XFI_CHECK(overridden, XFER_ERR_UNSUPPORTED,
            "\"%s\" quantises \"%s\", which the configuration may or may not mean by \"%s\" among "
            "what is left as it is: name modules whole there, or say the side's element type of it",
            l->by->spec, module, item);
  return XFER_OK;
}

static xfer_status is_unquantised_at(bool *unquantised, const xfi_entry *entry, int k,
                                     const void *context)
{
  const lists *l = context;
  const char *unclear = NULL;
  char *module = NULL;
  xfer_status st = XFER_OK;

  *unquantised = false;
  XFI_TRY_DONE(module_of(&module, entry, k));
  for (int i = 0; i < l->n && !*unquantised; i++) {
    for (size_t n = 0; n < json_array_size(l->of[i]) && !*unquantised; n++) {
      const char *item = json_string_value(json_array_get(l->of[i], n));

      if (item == NULL) continue;
      *unquantised = is_named(item, module, entry->experts);
      if (!*unquantised && may_match(item, module, l->model)) unclear = item;
    }
  }
  if (!*unquantised && unclear != NULL) XFI_TRY_DONE(refuse_unclear(l, entry, module, unclear));
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
    if (json_array_size(list) > 0) break; /* engines read the second only without the first */
  }
}

/* Does a rule leave weights of this role unquantised on the side? */
static bool is_unquantised_by_rule(const xfer_model *model, const xfer_side *by,
                                   const xfi_entry *entry)
{
  for (int f = 0; f < model->n_families; f++) {
    const xfi_family_side *s = xfi_family_side_find(model->families[f], by->framework->name);

    for (size_t k = 0; s != NULL && k < json_array_size(s->unquantised); k++)
      if (xfi_role_matches(xfi_doc_text(s->unquantised, k), entry->role)) return true;
  }
  return false;
}

xfer_status xfi_unquantised_find(xfer_model *model, const xfer_side *by)
{
  lists l = {.model = model, .by = by};

  add_lists(&l, model->configuration);
  if (l.n == 0) add_lists(&l, xfi_config_text(model->configuration));
  for (size_t i = 0; i < model->n_entries; i++) {
    if (!xfi_is_quantised(model, &model->entries[i])) continue;
    model->entries[i].unquantised = is_unquantised_by_rule(model, by, &model->entries[i]);
    if (model->entries[i].unquantised || l.n == 0) continue;
    XFI_TRY(xfi_model_split(model, i, is_unquantised_at, &l));
    XFI_TRY(is_unquantised_at(&model->entries[i].unquantised, &model->entries[i], 0, &l));
  }
  return XFER_OK;
}
