/*
 * What a model cannot lack. A family's "needs" give each role the layers that have it, or for a
 * role outside the layers the models, as an expression over the configuration and over the roles
 * that the layer has, or the layer past the last. A role's name with ".bias" is its bias. So a
 * weight that a checkpoint lost is an error, and not a part of a serving engine that keeps what it
 * had.
 *
 * A table may list some of a model's weights on purpose, so there a role that no layer has is not
 * missed.
 */
#include "model.h"

#include "alloc.h"
#include "error.h"
#include "names.h"
#include "text.h"

#include <jansson.h>
#include <stddef.h>
#include <string.h>

/* Is it the role of a tensor, or of one of several weights in it? */
static bool gives_role(const xfi_tensor_rule *rule, const char *role, size_t n_chars)
{
  for (int i = 0; rule->role == NULL && i < rule->n_segments; i++)
    if (xfi_name_is(role, n_chars, rule->segments[i].name)) return true;
  return rule->role != NULL && xfi_name_is(role, n_chars, rule->role);
}

/* The first rule of the model's families for a role; NULL: they do not know it. */
static const xfi_tensor_rule *find_rule(const xfer_model *model, const char *role, size_t n_chars)
{
  for (int f = 0; f < model->n_families; f++) {
    for (size_t i = 0; i < model->families[f]->n_tensors; i++)
      if (gives_role(&model->families[f]->tensors[i], role, n_chars))
        return &model->families[f]->tensors[i];
  }
  return NULL;
}

/* A layer of the model, or one past the last, or what is outside the layers. */
typedef struct of_roles {
  const xfer_model *model;
  xfi_stack stack;
  int layer; /* -1: outside the layers */
} of_roles;

/* Has an entry that belongs to a weight its values, in a form that no rule knows ("q_proj.qweight",
 * "q_proj.base_layer.weight")? Scales, zero points, orders, shapes and adapters are not the weight.
 */
static bool holds_values(const xfi_entry *e)
{
  static const char *const OTHERS[] = {"scale", "zero", "g_idx", "shape", "lora_"};
  const char *part = e->stem + e->n_stem;

  while (part > e->stem && part[-1] != '.')
    part--;
  for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
    if (strstr(part, OTHERS[i]) != NULL) return false;
  return true;
}

/* Is the entry scales? Scales of packed values are called weight_scale, and no rule of scales
 * applies to them. */
static bool are_scales(const xfi_entry *e)
{
  return e->scales != XFI_NO_SCALES || strcmp(e->suffix, "weight_scale") == 0;
}

static bool has_role(const xfi_entry *e, const char *role, size_t n_chars)
{
  return e->role != NULL && xfi_name_is(role, n_chars, e->role);
}

static bool is_bias(const xfi_entry *e, const char *role, size_t n_chars)
{
  return has_role(e, role, n_chars) && xfi_entry_is_bias(e);
}

/* Is the entry a weight of this role? A bias or scales alone are none. */
static bool is_weight(const xfi_entry *e, const char *role, size_t n_chars)
{
  if (e->companion_of != NULL && !xfi_entry_is_bias(e))
    return holds_values(e) && gives_role(e->companion_of, role, n_chars);
  return has_role(e, role, n_chars) && !are_scales(e) && !xfi_entry_is_bias(e);
}

static bool is_in_some_layer(const xfer_model *model, xfi_stack stack, const char *role,
                             size_t n_chars)
{
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    if (e->stack == stack && is_weight(e, role, n_chars)) return true;
  }
  return false;
}

/* "mlp.up" is 1 where the layer has a weight of this role, "mlp.up.any" where some layer has, and
 * "mlp.up.bias" where the layer has a bias of it. */
static xfi_found find_role(int64_t *value, const char *name, size_t n_chars, const void *context)
{
  static const char ANY[] = ".any", BIAS[] = ".bias";
  const of_roles *of = context;
  const xfer_model *model = of->model;
  const bool any = xfi_name_ends(name, n_chars, ANY);
  const bool bias = xfi_name_ends(name, n_chars, BIAS);
  size_t n;
  const xfi_layer_entry *entries = xfi_model_layer_entries(model, of->stack, of->layer, &n);

  if (xfi_name_is(name, n_chars, "is_extra")) return *value = of->stack == XFI_EXTRA, XFI_FOUND;
  if (xfi_name_is(name, n_chars, "extra_layers")) return *value = model->n_extra, XFI_FOUND;
  n_chars -= any ? sizeof ANY - 1 : bias ? sizeof BIAS - 1 : 0;
  if (find_rule(model, name, n_chars) == NULL) return XFI_NOT_FOUND;
  *value = any && is_in_some_layer(model, XFI_LAYERS, name, n_chars);
  for (size_t i = 0; i < n && !any; i++) {
    const xfi_entry *e = &model->entries[entries[i].entry];

    *value = *value || (bias ? is_bias(e, name, n_chars) : is_weight(e, name, n_chars));
  }
  return XFI_FOUND;
}

/* Refuses a model without the role, and names the tensor as a neighbour in the layer is called. */
static xfer_status refuse(const of_roles *of, const xfi_tensor_rule *rule, const char *role)
{
  const xfer_model *model = of->model;
  const int layer = of->layer;
  size_t n;
  const xfi_layer_entry *entries =
      xfi_model_layer_entries(model, layer < 0 ? XFI_LAYERS : of->stack, layer, &n);
  const xfi_entry *e = n > 0 ? &model->entries[entries[0].entry] : NULL;
  const int n_prefix = e != NULL ? (int)(e->stem - e->known) : 0;
  xfi_text text = {0};
  char *pattern = NULL, *name = NULL;
  xfer_status st = XFER_OK;

  xfi_text_printf(&text, "%.*s%s%s", n_prefix, e != NULL ? e->known : "",
                  rule->name + (n_prefix > 0 ? rule->n_layer : 0), role + xfi_role_chars(role));
  XFI_TRY_DONE(xfi_text_end(&text, &pattern));
  XFI_TRY_DONE(xfi_name_layer(&name, pattern, layer));
  XFI_CHECK_DONE(layer < 0, XFER_ERR_IO,
                 "\"%s\" is missing, the %s of layer %d: a model of family \"%s\" with this "
                 "configuration has one there",
                 name, role, layer, model->family->name);
  XFI_CHECK_DONE(false, XFER_ERR_IO, "\"%s\" is missing, the %s: a model of family \"%s\" has one",
                 name, role, model->family->name);
done:
  xfi_free(pattern);
  xfi_free(name);
  return st;
}

/* The number that the configuration gives a layer: those past the last may count from 0 in names.
 */
static int number_of(const of_roles *of)
{
  size_t n;
  const xfi_layer_entry *entries = xfi_model_layer_entries(of->model, of->stack, of->layer, &n);
  const bool own = of->stack == XFI_EXTRA && of->model->entries[entries->entry].own_numbers;

  return own ? of->model->n_config_layers + of->layer : of->layer;
}

static xfer_status check_layer(const of_roles *of, const xfi_tensor_rule *rule, const char *role,
                               xfi_family_expr needs)
{
  const xfer_model *model = of->model;
  const xfi_stack stack = of->stack == XFI_EXTRA ? XFI_EXTRA : XFI_LAYERS;
  const xfi_scope roles = {.find = find_role, .context = of};
  int64_t has;
  xfi_truth needed;

  XFI_TRY(xfi_config_eval(&needed, model, needs, number_of(of), &roles));
  if (needed != XFI_TRUE) return XFER_OK;
  if (!model->from_checkpoint && !is_in_some_layer(model, stack, role, strlen(role)))
    return XFER_OK;
  if (find_role(&has, role, strlen(role), of) == XFI_FOUND && has == 1) return XFER_OK;
  return refuse(of, rule, role);
}

/* Checks that no layer lacks the role, in the model's own layers and in extra ones. */
static xfer_status check_layers(const xfer_model *model, const xfi_tensor_rule *rule,
                                const char *role, xfi_family_expr needs)
{
  for (size_t i = 0; i < model->n_layer_entries; i++) {
    const xfi_layer_entry *e = &model->layer_entries[i];
    const of_roles of = {model, e->stack, e->layer};

    if (e->stack == XFI_OUTSIDE) continue;
    if (i > 0 && e[-1].stack == e->stack && e[-1].layer == e->layer) continue;
    XFI_TRY(check_layer(&of, rule, role, needs));
  }
  return XFER_OK;
}

/* The weight of a role in one layer; NULL: the layer has none. */
static const xfi_entry *find_weight(const xfer_model *model, const char *role, int layer)
{
  size_t n;
  const xfi_layer_entry *entries = xfi_model_layer_entries(model, XFI_LAYERS, layer, &n);

  for (size_t i = 0; i < n; i++) {
    const xfi_entry *e = &model->entries[entries[i].entry];

    if (e->role != NULL && is_weight(e, role, strlen(role))) return e;
  }
  return NULL;
}

static bool are_of_input(const xfi_entry *scales)
{
  return strcmp(scales->suffix, "input_scale") == 0;
}

/* Has the layer scales of the same role, of the weight or of its input as these are? */
static bool has_scales(const xfer_model *model, const xfi_entry *scales, int layer)
{
  size_t n;
  const xfi_layer_entry *entries = xfi_model_layer_entries(model, XFI_LAYERS, layer, &n);

  for (size_t i = 0; i < n; i++) {
    const xfi_entry *e = &model->entries[entries[i].entry];

    if (e->role != NULL && are_scales(e) && strcmp(e->role, scales->role) == 0 &&
        are_of_input(e) == are_of_input(scales))
      return true;
  }
  return false;
}

/* Weights in these types need none, whatever lies beside them. */
static bool is_unscaled(const xfi_entry *weight)
{
  const xfer_dtype dtype = weight->table_dtype;

  return dtype == XFER_BF16 || dtype == XFER_F16 || dtype == XFER_F32;
}

/* If one layer's weight has scales, so have the weights of that role and type in all layers. */
static xfer_status check_scales(const xfer_model *model, const xfi_entry *scales)
{
  const xfi_entry *scaled = find_weight(model, scales->role, scales->layers[0]);
  char *name = NULL;
  xfer_status st = XFER_OK;

  for (int i = 0; i < model->n_layers && scaled != NULL; i++) {
    const int layer = model->layers[i];
    const xfi_entry *weight = find_weight(model, scales->role, layer);

    if (weight == NULL || is_unscaled(weight) || weight->table_dtype != scaled->table_dtype ||
        has_scales(model, scales, layer))
      continue;
    XFI_TRY_DONE(xfi_name_layer(&name, scales->pattern, layer));
    XFI_CHECK_DONE(false, XFER_ERR_IO,
                   "\"%s\" is missing: layer %d has such scales, and the weight of layer %d is of "
                   "the same type",
                   name, scales->layers[0], layer);
  }
done:
  xfi_free(name);
  return st;
}

/* Is it a weight that says nothing without scales: fp8, or numbers that are packed? */
static bool needs_scales(const xfi_entry *e)
{
  if (e->role == NULL || !is_weight(e, e->role, strlen(e->role)) || !holds_values(e)) return false;
  return e->table_dtype == XFER_F8E4M3 || strncmp(e->role, "packed.", 7) == 0;
}

/* A checkpoint has scales of such a weight. Whether all layers have them check_scales() says. */
static xfer_status check_scaled(const xfer_model *model, const xfi_entry *weight)
{
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    if (e->role != NULL && strcmp(e->role, weight->role) == 0 && are_scales(e)) return XFER_OK;
  }
  XFI_CHECK(false, XFER_ERR_IO, "the scales of \"%s\" are missing: its elements are %s",
            weight->pattern, xfer_dtype_name(weight->table_dtype));
}

xfer_status xfi_model_check_needs(const xfer_model *model)
{
  const of_roles outside = {model, XFI_OUTSIDE, -1};

  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    if (e->stack == XFI_LAYERS && e->role != NULL && are_scales(e)) XFI_TRY(check_scales(model, e));
    if (model->from_checkpoint && needs_scales(e)) XFI_TRY(check_scaled(model, e));
  }
  /* A family without a model_type is but a guess; and without layers that the family knows, the
   * model is the extra layers alone, or its names are others, which the sides say. */
  if (model->model_type[0] == '\0' || model->n_layers == 0) return XFER_OK;
  for (int f = 0; f < model->n_families; f++) {
    const char *role;
    const json_t *expr;

    json_object_foreach((json_t *)(uintptr_t)model->families[f]->needs, role, expr)
    {
      const xfi_tensor_rule *rule = find_rule(model, role, xfi_role_chars(role));
      const xfi_family_expr needs = {model->families[f], expr};

      if (rule == NULL) continue;
      if (xfi_config_rule(model, offsetof(xfi_family, needs), role).expr != expr) continue;
      if (rule->n_layer > 0) XFI_TRY(check_layers(model, rule, role, needs));
      if (rule->n_layer == 0 && !model->without_ends)
        XFI_TRY(check_layer(&outside, rule, role, needs));
    }
  }
  return XFER_OK;
}
