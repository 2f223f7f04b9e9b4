/*
 * Whether a model has the layers, the experts and the kinds of layers that its configuration says.
 */
#include "model.h"

#include "error.h"

#include <jansson.h>
#include <string.h>

/* ---- experts ---- */

/* Is it a checkpoint, whose configuration names a family? Then an engine makes the model by that.
 */
static bool has_configuration(const xfer_model *model)
{
  return model->from_checkpoint && model->family != NULL && model->model_type[0] != '\0';
}

/* Does an entry of the same name have the expert, in the first layer of `like`? */
static bool has_expert(const xfer_model *model, const xfi_entry *like, int expert)
{
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    if (strcmp(e->pattern, like->pattern) == 0 && e->first_expert <= expert &&
        e->first_expert + e->n_experts > expert &&
        (like->n_layers == 0 || xfi_entry_place(e, like->layers[0]) >= 0))
      return true;
  }
  return false;
}

/* The configuration of a checkpoint says how many experts there are, if the family knows them. */
static xfer_status check_experts_said(const xfer_model *model)
{
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    XFI_CHECK(!e->experts || e->role == NULL || !has_configuration(model), XFER_ERR_IO,
              "\"%s\" has experts, and the configuration does not say how many there are",
              e->pattern);
  }
  return XFER_OK;
}

xfer_status xfi_model_check_expert_counts(const xfer_model *model, bool listed)
{
  int64_t configured;

  for (size_t i = 0; i < model->n_entries && listed; i++) {
    const xfi_entry *e = &model->entries[i];

    XFI_CHECK(e->first_expert == 0, XFER_ERR_IO, "\"%s\" has expert %d in layer %d, and %s",
              e->pattern, e->first_expert, e->n_layers > 0 ? e->layers[0] : 0,
              has_expert(model, e, e->first_expert - 1)
                  ? "the one before it is of another kind, as no rule knows them"
                  : "not the one before it");
  }
  if (!xfi_scope_find(&model->scope, "experts", 7, &configured))
    return listed ? XFER_OK : check_experts_said(model);
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];
    const int64_t n = e->n_experts > 0 ? e->first_expert + e->n_experts : e->shape[0];

    XFI_CHECK(!e->experts || (e->n_experts > 0) != listed || n == configured, XFER_ERR_IO,
              "\"%s\" has %lld experts; the configuration says %lld", e->pattern, (long long)n,
              (long long)configured);
  }
  return XFER_OK;
}

/* ---- layers ---- */

static bool has_experts(const xfer_model *model, int layer)
{
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    if (e->experts && e->stack == XFI_LAYERS && xfi_entry_place(e, layer) >= 0) return true;
  }
  return false;
}

/* What only layers past the model's own have is in none of its own. */
static xfer_status check_own_layers(const xfer_model *model)
{
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    XFI_CHECK(e->stack != XFI_LAYERS || e->role == NULL || strncmp(e->role, "extra.", 6) != 0,
              XFER_ERR_IO,
              "\"%s\" is of a layer past the model's last, and the configuration counts layer %d "
              "among its %d layers",
              e->pattern, e->layers[0], model->n_config_layers);
  }
  return XFER_OK;
}

/* Layers past the model's own, unless numbered from 0, are no more than the configuration has. */
static xfer_status check_further_layers(const xfer_model *model)
{
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];
    const int last = e->n_layers > 0 ? e->layers[e->n_layers - 1] : -1;

    XFI_CHECK(e->stack != XFI_EXTRA || e->own_numbers ||
                  last < model->n_config_layers + model->n_further_layers,
              XFER_ERR_IO,
              "\"%s\" is in layer %d; the configuration says %d layers, and %d further ones (%s)",
              e->pattern, last, model->n_config_layers, model->n_further_layers,
              model->further_key);
  }
  return XFER_OK;
}

/* All layers of the configuration are there, unless only some were kept; in some families one may
 * have no weight. */
static xfer_status check_layers(const xfer_model *model)
{
  const int last = model->n_layers > 0 ? model->layers[model->n_layers - 1] : -1;
  xfi_truth empty;

  if (last < 0 || model->selected) return XFER_OK;
  XFI_CHECK(model->n_config_layers > 0 || !has_configuration(model), XFER_ERR_IO,
            "the configuration does not say how many layers the model has (num_hidden_layers), "
            "and the checkpoint has %d",
            last + 1);
  XFI_CHECK(last + 1 >= model->n_config_layers, XFER_ERR_IO,
            "the last layer is %d; the configuration says %d layers", last, model->n_config_layers);
  for (int i = 0, layer = 0; layer < model->n_config_layers; layer++) {
    if (model->layers[i] == layer) {
      i++;
      continue;
    }
    XFI_TRY(xfi_config_flag(&empty, model, "empty", layer));
    XFI_CHECK(empty == XFI_TRUE, XFER_ERR_IO,
              "layer %d has no tensor; the configuration says %d layers", layer,
              model->n_config_layers);
  }
  XFI_TRY(check_own_layers(model));
  return check_further_layers(model);
}

/* With several kinds of layers, each has the kind of the configuration. A model without a layer of
 * some kind may list only some tensors. */
static xfer_status check_kinds(const xfer_model *model, const xfi_family *family)
{
  const char *role;
  const json_t *expr;
  xfi_truth expected;

  json_object_foreach((json_t *)(uintptr_t)family->where, role, expr)
  {
    for (int i = 0; i < model->n_layers && xfi_model_has_role(model, XFI_LAYERS, role); i++) {
      const int layer = model->layers[i];
      const bool has = xfi_model_find(model, XFI_LAYERS, layer, role, NULL) != NULL;

      XFI_TRY(xfi_config_eval(&expected, model, (xfi_family_expr){family, expr}, layer, NULL));
      XFI_CHECK(expected != XFI_TRUE || has, XFER_ERR_IO,
                "layer %d has no \"%s\"; by the configuration it has one", layer, role);
      XFI_CHECK(expected != XFI_FALSE || !has, XFER_ERR_IO,
                "layer %d has a \"%s\"; by the configuration it has none", layer, role);
    }
  }
  return XFER_OK;
}

/* Checks that the layers with experts are those of the configuration. A model of a single expert is
 * exempt, since some families call it an MLP. */
static xfer_status check_sparse(const xfer_model *model)
{
  int64_t n_experts;
  xfi_truth expected;

  if (!xfi_scope_find(&model->scope, "experts", 7, &n_experts) || n_experts < 2) return XFER_OK;
  for (int i = 0; i < model->n_layers; i++) {
    const int layer = model->layers[i];

    XFI_TRY(xfi_config_flag(&expected, model, "sparse", layer));
    XFI_CHECK(expected != XFI_TRUE || has_experts(model, layer), XFER_ERR_IO,
              "layer %d has no experts; the configuration says that it has some", layer);
    XFI_CHECK(expected != XFI_FALSE || !has_experts(model, layer), XFER_ERR_IO,
              "layer %d has experts; the configuration says that it has none", layer);
  }
  return XFER_OK;
}

xfer_status xfi_model_check_counts(const xfer_model *model)
{
  XFI_TRY(xfi_model_check_expert_counts(model, false));
  XFI_TRY(check_layers(model));
  for (int i = 0; i < model->n_families; i++)
    XFI_TRY(check_kinds(model, model->families[i]));
  XFI_TRY(check_sparse(model));
  XFI_TRY(xfi_model_check_sizes(model));
  return xfi_model_check_needs(model);
}
