/* config.json: which family a model is of, and the numbers that rules may ask for. */
#include "model.h"

#include "error.h"
#include "vec.h"

#include <jansson.h>
#include <string.h>

/* A model that sees has its own text part; of one that also speaks, the part that thinks has it. */
static const json_t *text_part(const json_t *top)
{
  const json_t *thinker = json_object_get(top, "thinker_config"), *text;

  if (thinker != NULL) top = thinker;
  text = json_object_get(top, "text_config");
  if (text == NULL) text = json_object_get(top, "llm_config");
  return json_is_object(text) ? text : NULL;
}

static void set_family(xfer_model *model, const xfi_family *family)
{
  model->family = family;
  model->n_all = family == NULL ? 0 : xfi_family_all(model->rules, family, model->all);
}

static bool family_of_type(xfer_model *model, const json_t *object)
{
  const char *type = json_string_value(json_object_get(object, "model_type"));

  if (type == NULL) return false;
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

static xfer_status read_block(xfer_model *model, const json_t *object)
{
  const json_t *quant = json_object_get(object, "quantization_config");
  const json_t *block = json_object_get(object, "weight_block_size");
  xfer_status st = XFER_OK;

  if (block == NULL) block = json_object_get(quant, "weight_block_size");
  if (block == NULL || json_is_null(block)) return XFER_OK;
  for (size_t d = 0; d < 2; d++)
    model->block[d] = json_integer_value(json_array_get(block, d));
  XFI_CHECK(json_array_size(block) == 2 && model->block[0] > 0 && model->block[0] < 1 << 20 &&
                model->block[1] > 0 && model->block[1] < 1 << 20,
            XFER_ERR_IO, "%s: line %d: weight_block_size is not two numbers", model->config.where,
            xfi_doc_line(&model->config, block));
done:
  return st;
}

/* The text part's first, but for what concerns the whole model. */
static const json_t *lookup(const json_t *top, const char *key)
{
  const json_t *text = text_part(top);
  const json_t *value = json_object_get(top, key);

  if (strcmp(key, "tie_word_embeddings") == 0 && value != NULL) return value;
  if (text != NULL && json_object_get(text, key) != NULL) return json_object_get(text, key);
  return value;
}

/* What every configuration has must be numbers. */
static xfer_status check_sizes(const xfer_model *model)
{
  static const char *const KEYS[] = {"vocab_size",          "hidden_size",
                                     "num_hidden_layers",   "num_attention_heads",
                                     "num_key_value_heads", "head_dim"};
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
    const json_t *value = lookup(model->top, KEYS[i]);

    XFI_CHECK(value == NULL || json_is_null(value) ||
                  (json_is_integer(value) && json_integer_value(value) >= 0 &&
                   json_integer_value(value) < 1 << 30),
              XFER_ERR_IO, "%s: line %d: \"%s\" is no size", model->config.where,
              xfi_doc_line(&model->config, value), KEYS[i]);
  }
done:
  return st;
}

xfer_status xfi_config_read(xfer_model *model)
{
  const json_t *text = text_part(model->top);
  xfer_status st = XFER_OK;

  model->model_type = "";
  XFI_TRY(check_sizes(model));
  model->n_config_layers = (int)json_integer_value(lookup(model->top, "num_hidden_layers"));
  XFI_CHECK(model->n_config_layers < 1 << 20, XFER_ERR_IO, "%s: %d layers", model->config.where,
            model->n_config_layers);
  if (!family_of_type(model, model->top) && text != NULL) family_of_type(model, text);
  XFI_TRY(read_block(model, model->top));
  if (text != NULL) XFI_TRY(read_block(model, text));
done:
  return st;
}

/* ---- without a model_type ---- */

static bool has_name(const xfer_model *model, const char *name)
{
  size_t n = strlen(name);

  for (size_t i = 0; i < model->n_entries; i++) {
    const char *known = model->entries[i].known;
    const char *at = strstr(known, name);

    if (at != NULL && (at == known || at[-1] == '.') && (at[n] == '\0' || at[n] == '.'))
      return true;
  }
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
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_vec_reserve(&model->vars, &model->vars_cap, model->n_vars + 1, sizeof *model->vars));
  model->vars[model->n_vars++] = (xfi_var){name, value};
done:
  return st;
}

/* "router_dtype": "fp32" is the figure router_dtype_fp32. */
static xfer_status add_text(xfer_model *model, const char *key, const char *text)
{
  static const char WORDS[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
  json_t *name;
  xfer_status st = XFER_OK;

  if (strlen(text) > 31 || strspn(text, WORDS) != strlen(text)) return XFER_OK;
  name = json_sprintf("%s_%s", key, text);
  XFI_CHECK(json_array_append_new(model->texts, name) == 0, XFER_ERR_NOMEM, "the word \"%s\"",
            text);
  XFI_TRY(add_var(model, json_string_value(name), 1));
done:
  return st;
}

static xfer_status add_figures(xfer_model *model, const json_t *object)
{
  const char *key;
  const json_t *value;
  xfer_status st = XFER_OK;

  json_object_foreach((json_t *)(uintptr_t)object, key, value)
  {
    const json_t *chosen = lookup(model->top, key);

    if (json_is_boolean(chosen)) {
      XFI_TRY(add_var(model, key, json_is_true(chosen)));
    } else if (json_is_string(chosen)) {
      XFI_TRY(add_text(model, key, json_string_value(chosen)));
    } else if (json_is_integer(chosen)) {
      XFI_CHECK(json_integer_value(chosen) > -(INT64_C(1) << 40) &&
                    json_integer_value(chosen) < INT64_C(1) << 40,
                XFER_ERR_IO, "%s: line %d: \"%s\" is no size", model->config.where,
                xfi_doc_line(&model->config, chosen), key);
      XFI_TRY(add_var(model, key, json_integer_value(chosen)));
    }
  }
done:
  return st;
}

/* Words may use the figures, and words that are there already. */
static void set_scopes(xfer_model *model, size_t n_figures)
{
  model->figures = (xfi_scope){model->vars, n_figures, NULL};
  model->scope = (xfi_scope){model->vars + n_figures, model->n_vars - n_figures, &model->figures};
}

/* A family's words count before those of what it includes. One that has no value here is left out:
 * only what asks for it fails. */
xfer_status xfi_config_vars(xfer_model *model)
{
  const json_t *text = text_part(model->top);
  size_t n_figures;
  xfer_status st = XFER_OK;

  model->n_vars = 0;
  json_decref(model->texts);
  model->texts = json_array();
  XFI_CHECK(model->texts != NULL, XFER_ERR_NOMEM, "the words of a configuration");
  XFI_TRY(xfi_vec_reserve(&model->vars, &model->vars_cap, 1, sizeof *model->vars));
  if (text != NULL) XFI_TRY(add_figures(model, text));
  XFI_TRY(add_figures(model, model->top));
  if (model->block[0] > 0) {
    XFI_TRY(add_var(model, "block_rows", model->block[0]));
    XFI_TRY(add_var(model, "block_columns", model->block[1]));
  }
  n_figures = model->n_vars;
  set_scopes(model, n_figures);
  for (int i = 0; i < model->n_all; i++) {
    const char *name;
    const json_t *expr;

    json_object_foreach((json_t *)(uintptr_t)model->all[i]->config, name, expr)
    {
      const xfi_scope words = {model->scope.vars, model->scope.n_vars, NULL};
      int64_t value;

      if (xfi_expr_eval(&value, json_string_value(expr), &model->scope) != XFER_OK) continue;
      if (xfi_scope_find(&words, name, strlen(name), &(int64_t){0})) continue;
      XFI_TRY(add_var(model, name, value));
      set_scopes(model, n_figures);
    }
  }
done:
  return st;
}
