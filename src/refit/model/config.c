/* config.json: the family of a model, and the numbers that rules use. */
#include "model.h"

#include "config_values.h"
#include "error.h"
#include "names.h"
#include "vec.h"

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static void set_family(xfer_model *model, const xfi_family *family)
{
  model->family = family;
  model->n_families =
      family == NULL ? 0 : xfi_family_with_included(model->rules, family, model->families);
  for (int i = 0, n = 0; i < model->n_families; i++) {
    for (int k = 0; k < model->families[i]->n_layer_words; k++)
      model->layer_words[n++] = model->families[i]->layer_words[k];
    if (n > 0) model->n_layer_words = n;
  }
}

/* "": absent. */
static const char *type_of(const json_t *object)
{
  const json_t *type = json_object_get(object, "model_type");

  return json_is_string(type) ? json_string_value(type) : "";
}

static bool family_of_type(xfer_model *model, const json_t *object)
{
  const char *type = type_of(object);

  if (*type == '\0') return false;
  if (model->model_type[0] == '\0') model->model_type = type;
  for (size_t i = model->rules->n_families; i-- > 0;) {
    const xfi_family *f = &model->rules->families[i];

    if (!xfi_doc_lists(f->model_types, type) || xfi_rules_family(model->rules, f->name) != f)
      continue;
    set_family(model, f);
    return true;
  }
  return false;
}

/* The form of compressed-tensors, which has a block for each group of layers: that of the first
 * group with one. */
static const json_t *block_of_groups(const json_t *quant)
{
  const json_t *groups = json_object_get(quant, "config_groups");
  const char *name;
  json_t *group;

  json_object_foreach((json_t *)(uintptr_t)groups, name, group)
  {
    const json_t *block = json_object_get(json_object_get(group, "weights"), "block_structure");

    if (json_is_array(block)) return block;
  }
  return NULL;
}

static xfer_status read_block(xfer_model *model, const json_t *object)
{
  const json_t *quant = json_object_get(object, "quantization_config");
  const json_t *block = json_object_get(object, "weight_block_size");

  if (quant != NULL && !json_is_null(quant) && !json_is_object(quant))
    return xfi_doc_error(&model->config, quant, "\"quantization_config\" is no object");
  if (block == NULL) block = json_object_get(quant, "weight_block_size");
  if (block == NULL) block = block_of_groups(quant);
  if (block == NULL || json_is_null(block)) return XFER_OK;
  for (size_t d = 0; d < 2; d++)
    model->block[d] = json_integer_value(json_array_get(block, d));
  if (json_array_size(block) == 2 && model->block[0] > 0 && model->block[0] < 1 << 20 &&
      model->block[1] > 0 && model->block[1] < 1 << 20)
    return XFER_OK;
  return xfi_doc_error(&model->config, block, "the size of blocks is not two numbers");
}

/* Is tying stated only in the text part? transformers, and engines like it, use the whole model's
 * key, whose default differs by class. */
static bool is_tied_by_text(const json_t *top)
{
  static const char KEY[] = "tie_word_embeddings";

  return json_object_get(top, KEY) == NULL &&
         json_is_true(json_object_get(xfi_config_text(top), KEY));
}

/* Numbers of experts are lists in some configurations. */
static xfer_status check_figures(const xfer_model *model)
{
  static const char *const COUNTS[] = {"num_experts", "n_routed_experts", "num_local_experts",
                                       "moe_num_experts"};
  const json_t *tied = xfi_config_key(model->configuration, "tie_word_embeddings");

  for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
    const json_t *value = xfi_config_key(model->configuration, COUNTS[i]);

    if (json_integer_value(value) < 0)
      return xfi_doc_error(&model->config, value, "\"%s\" is %lld", COUNTS[i],
                           (long long)json_integer_value(value));
  }
  if (!json_is_string(tied)) return XFER_OK;
  return xfi_doc_error(&model->config, tied, "\"tie_word_embeddings\" is neither true nor false");
}

/* The keys that every configuration has must be sizes. */
static xfer_status check_sizes(const xfer_model *model)
{
  static const char *const KEYS[] = {"vocab_size",          "hidden_size",
                                     "num_hidden_layers",   "num_attention_heads",
                                     "num_key_value_heads", "head_dim"};
  enum { MOST = (1 << 30) - 1 };

  for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
    const json_t *value = xfi_config_key(model->configuration, KEYS[i]);

    if (value != NULL && !json_is_null(value) &&
        (!json_is_integer(value) || json_integer_value(value) < 0 ||
         json_integer_value(value) > MOST))
      return xfi_doc_error(&model->config, value, "\"%s\" is no whole number from 0 to %d", KEYS[i],
                           MOST);
  }
  return XFER_OK;
}

/* A malformed one would count as absent, and the family would be guessed from the tensors' names.
 */
static xfer_status check_type(const xfer_model *model, const json_t *object)
{
  const json_t *type = json_object_get(object, "model_type");

  if (type == NULL || json_is_null(type) || json_is_string(type)) return XFER_OK;
  return xfi_doc_error(&model->config, type, "\"model_type\" is no text");
}

/* ---- without a model_type ---- */

static bool has_name(const xfer_model *model, const char *name)
{
  for (size_t i = 0; i < model->n_entries; i++)
    if (xfi_name_has_part(model->entries[i].known, name)) return true;
  return false;
}

void xfi_config_recognise(xfer_model *model)
{
  size_t best = 0;

  for (size_t i = 0; i < model->rules->n_families && model->model_type[0] == '\0'; i++) {
    const xfi_family *f = &model->rules->families[i];
    size_t n = json_array_size(f->recognise), k = 0;

    while (k < n && has_name(model, xfi_doc_text(f->recognise, k)))
      k++;
    if (f->recognise == NULL || k < n || (n <= best && model->family != NULL)) continue;
    best = n;
    set_family(model, f);
  }
}

/* ---- numbers ---- */

static xfer_status add_var(xfer_model *model, const char *name, int64_t value)
{
  return XFI_APPEND(model->vars, model->n_vars, model->vars_cap, (xfi_var){name, value});
}

xfi_family_expr xfi_config_rule(const xfer_model *model, size_t object, const char *key)
{
  for (int f = 0; f < model->n_families; f++) {
    const json_t *const *of = (const void *)((const char *)model->families[f] + object);
    const json_t *value = json_object_get(*of, key);

    if (value != NULL) return (xfi_family_expr){model->families[f], value};
  }
  return (xfi_family_expr){NULL, NULL};
}

/* The expression of a word, in the first family that has it; NULL: none has. */
static xfi_family_expr find_word(const xfer_model *model, const char *name, size_t n_chars)
{
  char key[XFI_NAME_BYTES];

  if (n_chars >= sizeof key) return (xfi_family_expr){NULL, NULL};
  memcpy(key, name, n_chars);
  key[n_chars] = '\0';
  return xfi_config_rule(model, offsetof(xfi_family, config), key);
}

static const char *meaning_of(const char **file, const char *name, size_t n_chars,
                              const void *context)
{
  const xfi_family_expr word = find_word(context, name, n_chars);

  if (word.expr != NULL) *file = word.family->doc->where;
  return json_string_value(word.expr);
}

/* An expression of a family failed: says where it is, and with which configuration. */
static xfer_status locate_error(const xfer_model *model, xfi_family_expr rule, xfer_status st)
{
  xfi_set_error("%s: %s: %s: %s", model->config.where, rule.family->doc->where,
                xfi_doc_find(rule.family->doc, rule.expr).text, xfer_last_error());
  return st;
}

/* Words may use the figures, and earlier words. */
static void set_scopes(xfer_model *model, size_t n_own_vars)
{
  model->config_scope = (xfi_scope){.vars = model->vars,
                                    .n_vars = n_own_vars,
                                    .find = xfi_config_value,
                                    .context = model->configuration};
  model->scope = (xfi_scope){.vars = model->vars + n_own_vars,
                             .n_vars = model->n_vars - n_own_vars,
                             .absent = model->absent,
                             .n_absent = model->n_absent,
                             .next = &model->config_scope,
                             .means = meaning_of,
                             .context = model};
}

/* ---- expressions about one layer ---- */

xfer_status xfi_config_number(bool *has, int64_t *value, const xfer_model *model,
                              xfi_family_expr rule, int layer, const xfi_scope *first)
{
  const xfi_config_layer of = {model->configuration, layer};
  const xfi_var own = {"layer", layer};
  const xfi_scope last = {.vars = model->config_scope.vars,
                          .n_vars = model->config_scope.n_vars,
                          .find = xfi_config_value_of_layer,
                          .context = &of};
  xfi_scope words = model->scope;
  xfi_scope roles = {.next = &words};
  const xfi_scope scope = {.vars = &own, .n_vars = 1, .next = &roles};
  xfer_status st;

  *has = false;
  if (rule.expr == NULL) return XFER_OK;
  words.next = &last;
  if (first != NULL) roles.find = first->find, roles.context = first->context;
  st = xfi_expr_find(has, value, json_string_value(rule.expr), &scope);
  return st == XFER_OK ? st : locate_error(model, rule, st);
}

xfer_status xfi_config_eval(xfi_truth *truth, const xfer_model *model, xfi_family_expr rule,
                            int layer, const xfi_scope *first)
{
  int64_t value = 0;
  bool has;

  XFI_TRY(xfi_config_number(&has, &value, model, rule, layer, first));
  *truth = !has ? XFI_UNKNOWN : value != 0 ? XFI_TRUE : XFI_FALSE;
  return XFER_OK;
}

xfer_status xfi_config_flag(xfi_truth *truth, const xfer_model *model, const char *word, int layer)
{
  return xfi_config_eval(truth, model, find_word(model, word, strlen(word)), layer, NULL);
}

/* Words that count layers. A layer for which the expression has no value does not count. */
static xfer_status add_counts(xfer_model *model, const xfi_family *family, size_t n_own_vars)
{
  const char *name;
  const json_t *expr;

  json_object_foreach((json_t *)(uintptr_t)family->counts, name, expr)
  {
    const xfi_family_expr rule = {family, expr};
    int64_t n = 0;
    xfi_truth holds;

    for (int layer = 0; layer < model->n_config_layers; layer++) {
      XFI_TRY(xfi_config_eval(&holds, model, rule, layer, NULL));
      n += holds == XFI_TRUE;
    }
    XFI_TRY(add_var(model, name, n));
    set_scopes(model, n_own_vars);
  }
  return XFER_OK;
}

/* A word of the families; of one that includes others it takes the place of theirs, also where it
 * has no value. Then only an expression that uses it fails, as for words about one layer, whose
 * number they lack here. */
static xfer_status add_word(xfer_model *model, const char *name, xfi_family_expr rule)
{
  xfer_status st;
  int64_t value;
  bool has;

  if (find_word(model, name, strlen(name)).expr != rule.expr) return XFER_OK;
  st = xfi_expr_find(&has, &value, json_string_value(rule.expr), &model->scope);
  if (st != XFER_OK) return locate_error(model, rule, st);
  if (has) return add_var(model, name, value);
  return XFI_APPEND(model->absent, model->n_absent, model->absent_cap, name);
}

xfer_status xfi_config_vars(xfer_model *model)
{
  size_t n_own_vars;
  int64_t n_layers;

  model->n_vars = model->n_absent = 0;
  XFI_TRY(xfi_vec_reserve(&model->vars, &model->vars_cap, 1, sizeof *model->vars));
  if (model->block[0] > 0) {
    XFI_TRY(add_var(model, "block_rows", model->block[0]));
    XFI_TRY(add_var(model, "block_columns", model->block[1]));
  }
  XFI_TRY(add_var(model, "tied_by_text", is_tied_by_text(model->configuration)));
  XFI_TRY(add_var(model, "text_part", xfi_config_text(model->configuration) != NULL));
  n_own_vars = model->n_vars;
  set_scopes(model, n_own_vars);
  for (int i = 0; i < model->n_families; i++) {
    const char *name;
    const json_t *expr;

    json_object_foreach((json_t *)(uintptr_t)model->families[i]->config, name, expr)
    {
      XFI_TRY(add_word(model, name, (xfi_family_expr){model->families[i], expr}));
      set_scopes(model, n_own_vars);
    }
  }
  for (int i = 0; i < model->n_families; i++)
    XFI_TRY(add_counts(model, model->families[i], n_own_vars));
  /* count_layers() comes before the words, so a missing layer would pass. */
  XFI_CHECK(model->n_config_layers > 0 || !xfi_scope_find(&model->scope, "layers", 6, &n_layers),
            XFER_ERR_IO, "family \"%s\": \"layers\" must not use another word of the family",
            model->family->name);
  return XFER_OK;
}

/* ---- reading ---- */

/* The family's own expression for what is usually the key of that name. */
static xfer_status find_count(bool *has, int64_t *n, const xfer_model *model, const char *word,
                              const char **key)
{
  const xfi_var part = {"text_part", xfi_config_text(model->configuration) != NULL};
  const xfi_scope figures = {
      .vars = &part, .n_vars = 1, .find = xfi_config_value, .context = model->configuration};
  const xfi_family_expr rule = find_word(model, word, strlen(word));
  xfer_status st;

  if (rule.expr != NULL) *key = json_string_value(rule.expr);
  st = xfi_expr_find(has, n, *key, &figures);
  if (st == XFER_OK) return XFER_OK;
  if (rule.expr != NULL) return locate_error(model, rule, st);
  xfi_set_error("%s: %s", model->config.where, xfer_last_error());
  return st;
}

/* The number of layers, and of further ones. */
static xfer_status count_layers(xfer_model *model)
{
  const char *key = "num_hidden_layers";
  int64_t n;
  bool has;

  XFI_TRY(find_count(&has, &n, model, "layers", &key));
  if (!has) return XFER_OK;
  XFI_CHECK(n > 0 && n < 1 << 20, XFER_ERR_IO, "%s: %lld layers", model->config.where,
            (long long)n);
  model->n_config_layers = (int)n;
  model->further_key = "num_nextn_predict_layers";
  XFI_TRY(find_count(&has, &n, model, "further_layers", &model->further_key));
  if (has && n > 0 && n < 1 << 20) model->n_further_layers = (int)n;
  return XFER_OK;
}

xfer_status xfi_config_read(xfer_model *model)
{
  const json_t *text = xfi_config_text(model->configuration);

  model->model_type = "";
  XFI_TRY(check_sizes(model));
  XFI_TRY(check_figures(model));
  XFI_TRY(check_type(model, model->configuration));
  XFI_TRY(check_type(model, text));
  if (model->rules == NULL)
    XFI_TRY(xfi_rules_families(&model->rules, type_of(model->configuration), type_of(text)));
  if (!family_of_type(model, model->configuration) && text != NULL) family_of_type(model, text);
  XFI_TRY(count_layers(model));
  XFI_TRY(read_block(model, model->configuration));
  if (text != NULL) XFI_TRY(read_block(model, text));
  return XFER_OK;
}
