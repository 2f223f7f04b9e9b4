/* An entry is held by the rule that applies to it, or as the caller says. */
#include "held_entry.h"

#include "alloc.h"
#include "error.h"
#include "names.h"
#include "sharding.h"
#include "text.h"
#include "vec.h"

#include <jansson.h>
#include <string.h>

void xfi_held_entry_free(xfi_held_entry *held, const xfi_entry *entry)
{
  int n = xfi_entry_places(entry);

  xfi_param_mapping_free(&held->mapping);
  for (int k = 0; held->layouts != NULL && k < n; k++)
    xfi_layout_destroy(held->layouts[k]);
  xfi_free(held->layouts);
  memset(held, 0, sizeof *held);
}

/* ---- overrides by the caller ---- */

/* The caller's first override of this kind for the entry, the same in all of its layers; NULL:
 * none. */
static xfer_status find_override(const xfi_override **chosen, const xfi_rule_set *p,
                                 xfi_override_kind kind, const xfi_entry *entry)
{
  *chosen = NULL;
  for (size_t i = 0; i < p->side->n_overrides && *chosen == NULL; i++) {
    const xfi_override *override = &p->side->overrides[i];
    bool matches = false;

    if (override->kind != kind) continue;
    XFI_TRY(xfi_entry_matches(&matches, entry, 0, override->pattern));
    if (matches) *chosen = override;
  }
  return XFER_OK;
}

/* Does the caller ignore the entry in all of its layers? */
static xfer_status is_ignored(bool *ignored, const xfi_rule_set *p, const xfi_entry *entry)
{
  *ignored = true;
  for (int k = 0; k < xfi_entry_places(entry) && *ignored; k++) {
    char *name = NULL;

    XFI_TRY(xfi_name_layer(&name, entry->name, xfi_entry_layer(entry, k)));
    *ignored = xfi_side_ignores(p->side, name);
    xfi_free(name);
  }
  return XFER_OK;
}

/* ---- meshes ---- */

/* The ranks that hold an entry: those of some stages, one rank, or all; and in which type. */
typedef struct holders {
  int first_stage, last_stage; /* these two alone if `ends`, else those between too */
  bool ends;
  bool all;
  int one_rank; /* -1: not one alone */
  xfer_dtype dtype;
} holders;

static int n_stages(const holders *by)
{
  return by->ends ? 2 : by->last_stage - by->first_stage + 1;
}

static bool is_mesh(const xfer_mesh *mesh, const int *shape, int n_axes, const int *ranks)
{
  return mesh->n_axes == n_axes &&
         memcmp(mesh->shape, shape, (size_t)n_axes * sizeof *shape) == 0 &&
         memcmp(mesh->ranks, ranks, (size_t)mesh->size * sizeof *ranks) == 0;
}

/* The mesh is owned by p or its side. */
static xfer_status find_mesh(xfer_mesh **mesh, xfi_rule_set *p, const xfi_sharding *sharding,
                             const holders *by)
{
  const xfer_side *side = p->side;
  const size_t n = (size_t)xfi_side_stage_size(side);
  const int *ranks = &by->one_rank;
  int shape[XFER_MAX_DIMS] = {1}, n_axes = 1, *ends = NULL;
  xfer_status st = XFER_OK;

  *mesh = side->mesh;
  if (by->one_rank < 0 && by->all) return XFER_OK;
  if (by->one_rank < 0) {
    n_axes = 0;
    if (n_stages(by) > 1) shape[n_axes++] = n_stages(by);
    for (int a = 0; a < sharding->n_axes; a++)
      shape[n_axes++] = sharding->shape[a];
    ranks = &side->ranks_by_stage[(size_t)by->first_stage * n];
    if (by->ends) {
      ends = xfi_calloc(2 * n, sizeof *ends);
      XFI_CHECK_DONE(ends != NULL, XFER_ERR_NOMEM, "%zu ranks", 2 * n);
      memcpy(ends, ranks, n * sizeof *ends);
      memcpy(&ends[n], &side->ranks_by_stage[(size_t)by->last_stage * n], n * sizeof *ends);
      ranks = ends;
    }
  }
  for (size_t i = p->n_meshes; i-- > 0;) {
    *mesh = p->meshes[i];
    if (is_mesh(*mesh, shape, n_axes, ranks)) goto done;
  }
  XFI_TRY_DONE(xfi_vec_reserve(&p->meshes, &p->meshes_cap, p->n_meshes + 1, sizeof(xfer_mesh *)));
  XFI_TRY_DONE(xfi_mesh_create(mesh, shape, n_axes, ranks));
  p->meshes[p->n_meshes++] = *mesh;
done:
  xfi_free(ends);
  return st;
}

static xfer_status make_layout(xfer_layout **layout, xfi_rule_set *p, const xfi_entry *entry,
                               const xfi_sharding *sharding, const holders *by)
{
  xfer_placement placements[XFER_MAX_DIMS + 1];
  int32_t order[XFER_MAX_DIMS + 1];
  bool whole = by->all || by->one_rank >= 0;
  int lead = !whole && n_stages(by) > 1;
  xfer_mesh *mesh = NULL;
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  xfer_status st;

  XFI_TRY(find_mesh(&mesh, p, sharding, by));
  placements[0] = xfer_replicate();
  order[0] = 0;
  for (int a = 0; a < sharding->n_axes && !whole; a++)
    placements[lead + a] = sharding->placements[a];
  for (int a = 0; a < sharding->n_order && !whole; a++)
    order[lead + a] = sharding->order[a] + lead;
  desc.mesh = mesh;
  desc.dtype = (int32_t)by->dtype;
  desc.n_dims = entry->n_dims;
  desc.shape = entry->shape;
  desc.padded_shape = sharding->padded && !whole ? sharding->padded_shape : NULL;
  desc.placements = placements;
  desc.n_placements = whole ? 1 : sharding->n_axes + lead;
  desc.n_order = sharding->n_order > 0 && !whole ? sharding->n_order + lead : 0;
  desc.order = desc.n_order > 0 ? order : NULL;
  st = xfi_layout_create(layout, &desc);
  if (st != XFER_OK && st != XFER_ERR_NOMEM)
    xfi_set_error("\"%s\" in \"%s\": %s", entry->pattern, p->side->spec, xfer_last_error());
  return st;
}

/* ---- which stages ---- */

/* The stage of an entry's k-th layer, for those in the layers. */
static int stage_of(const xfi_rule_set *p, const xfi_entry *entry, int k)
{
  int at = entry->stack == XFI_LAYERS
               ? xfi_find_int(p->model->layers, p->model->n_layers, entry->layers[k])
               : -1;

  return at < 0 ? p->side->pp - 1
                : p->stages[at] % p->side->pp; /* extra layers are on the last stage */
}

static void choose_stages(holders *by, const xfi_rule_set *p, const xfi_applied_rule *r)
{
  const bool everywhere = r->rule == NULL || r->value[XFI_EVERYWHERE] != 0;
  const int last = p->side->pp - 1, n = p->model->n_layers;
  const xfi_stage stage = r->rule != NULL ? r->rule->stage : XFI_STAGE_FIRST;

  by->first_stage = stage == XFI_STAGE_FIRST ? 0 : last;
  if (stage == XFI_STAGE_LAST_LAYER && n > 0) by->first_stage = p->stages[n - 1] % p->side->pp;
  by->last_stage = by->first_stage;
  if (everywhere || (r->value[XFI_BOTH_ENDS] != 0 && last > 0)) {
    by->first_stage = 0;
    by->last_stage = last;
    by->ends = !everywhere && last > 1;
  }
}

/* What the layouts of an entry are made from, in all of its layers. */
typedef struct layout_input {
  xfi_applied_rule applied;  /* its rule is NULL where the caller places the entry */
  const xfi_override *place; /* the caller's placement; NULL: none */
  holders by;                /* stages are chosen for each layer */
} layout_input;

/* Makes the layout of an entry in its k-th layer. */
static xfer_status layout_of(xfi_held_entry *held, xfi_rule_set *p, const xfi_entry *entry,
                             const layout_input *input, int k)
{
  const xfi_sharding_input in = {p, entry, &input->applied, &held->mapping,
                                 xfi_entry_layer(entry, k)};
  bool whole = input->by.all || input->by.one_rank >= 0;
  holders by = input->by;
  xfi_sharding sharding = {0};
  xfer_status st = XFER_OK;

  if (entry->stack == XFI_OUTSIDE)
    choose_stages(&by, p, &input->applied);
  else
    by.first_stage = by.last_stage = stage_of(p, entry, k);
  if (!whole && input->applied.rule != NULL)
    XFI_TRY_DONE(xfi_sharding_make(&sharding, &in));
  else if (!whole && input->place != NULL)
    XFI_TRY_DONE(xfi_sharding_place(&sharding, p, entry, input->place->value));
  XFI_TRY_DONE(make_layout(&held->layouts[k], p, entry, &sharding, &by));
done:
  xfi_sharding_free(&sharding);
  return st;
}

/* The first layer before the k-th whose layout is the same; -1: none. maps[i] is the expert map of
 * the i-th layer. */
static int like_before(const xfi_rule_set *p, const xfi_entry *entry, const layout_input *input,
                       const xfi_expert_map *const *maps, int k)
{
  for (int i = k - 1; i >= 0; i--) {
    if (maps[i] != maps[k]) continue;
    if (input->by.all || input->by.one_rank >= 0) return i;
    if (stage_of(p, entry, i) == stage_of(p, entry, k)) return i;
    if (p->side->n_maps < 2) return -1; /* layers of a stage are adjacent */
  }
  return -1;
}

static xfer_status make_layouts(xfi_held_entry *held, xfi_rule_set *p, const xfi_entry *entry,
                                const layout_input *input)
{
  const int n = xfi_entry_places(entry);
  const xfi_expert_map **maps = xfi_calloc((size_t)n, sizeof(const xfi_expert_map *));
  xfer_status st = XFER_OK;

  held->layouts = xfi_calloc((size_t)n, sizeof(xfer_layout *));
  XFI_CHECK_DONE(held->layouts != NULL && maps != NULL, XFER_ERR_NOMEM, "the layouts of \"%s\"",
                 entry->pattern);
  for (int k = 0; k < n && entry->experts; k++)
    maps[k] = xfi_expert_map_find(p->side, xfi_entry_layer(entry, k));
  for (int k = 0; k < n; k++) {
    const int same = like_before(p, entry, input, maps, k);

    if (same >= 0)
      held->layouts[k] = xfi_layout_share(held->layouts[same]);
    else
      XFI_TRY_DONE(layout_of(held, p, entry, input, k));
  }
done:
  xfi_free(maps);
  return st;
}

/* ---- one entry ---- */

static xfer_status is_absent(bool *absent, const xfi_rule_set *p, const xfi_entry *entry,
                             const xfi_applied_rule *applied)
{
  const xfi_side_rules *framework = p->side->framework;
  int64_t value;

  XFI_TRY(xfi_rule_set_eval(&value, p, entry,
                            entry->stack == XFI_EXTRA ? framework->absent_extra_layers
                                                      : framework->absent_layers));
  *absent =
      (value != 0 && applied->value[XFI_NEEDS_NO_LAYERS] == 0) || applied->value[XFI_ABSENT] != 0;
  return XFER_OK;
}

/* In the checkpoint's form, under the checkpoint's name. */
static const xfi_local_rule BY_NAME = {.local = "{name}"};
static const xfi_applied_rule WHOLE = {.rule = &BY_NAME, .value[XFI_WHOLE] = 1};
static const xfi_applied_rule EVERYWHERE = {.rule = &BY_NAME, .value[XFI_EVERYWHERE] = 1};

/* Usually the checkpoint is quantised in a form that no rule supports, which the configuration
 * names. */
static xfer_status refuse_companion(const xfi_rule_set *p, const xfi_entry *entry)
{
  static const char *const KEYS[] = {"quant_method", "quant_algo", "format"};
  const json_t *quantization = json_object_get(p->model->configuration, "quantization_config");
  xfi_text text = {0};
  char form[96] = "";

  xfi_text_fixed(&text, form, sizeof form);
  for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
    const char *value = json_string_value(json_object_get(quantization, KEYS[i]));

    if (value != NULL) xfi_text_printf(&text, "%s%.30s", text.n_chars > 0 ? " " : "", value);
  }
  xfi_set_error("\"%s\": no rule says what \"%s\" makes of this beside its weight, as a scale, "
                "packed values or an adapter; %s%s%splace it, or ignore it",
                entry->pattern, p->side->spec,
                text.n_chars > 0 ? "the checkpoint is quantised (" : "", form,
                text.n_chars > 0 ? "): refit the unquantised one into an engine that "
                                   "quantises it, "
                                 : "");
  return XFER_ERR_UNSUPPORTED;
}

/* Whole on every rank, under the checkpoint's name: for what the side holds so, and for what no
 * rule covers. */
static xfer_status hold_unruled(xfi_held_entry *held, xfi_rule_set *p, const xfi_entry *entry,
                                layout_input *input)
{
  int64_t known;

  XFI_TRY(xfi_rule_set_eval(&known, p, entry, p->side->framework->holds_unknown));
  if (known != 0 || (p->side->size == 1 && p->side->framework->layer_prefix == NULL)) {
    input->applied = EVERYWHERE;
  } else {
    const bool is_beside =
        entry->companion_of != NULL || (xfi_scales_have_rows(entry->scales) && !held->absent);

    if (is_beside && p->side->framework->layer_prefix != NULL) return refuse_companion(p, entry);
    held->misc = held->unknown = true;
    input->by.all = true;
  }
  XFI_TRY(xfi_param_mapping_make(&held->mapping, p, entry, held->unknown ? &WHOLE : &EVERYWHERE));
  return make_layouts(held, p, entry, input);
}

/* The element type of an entry on the side: the caller's, the rule's, or the model's. */
static xfer_dtype dtype_of(const xfi_rule_set *p, const xfi_entry *entry,
                           const xfi_local_rule *rule, const xfi_override *chosen)
{
  const bool quantised = p->side->quant != NULL && entry->block[0] > 0;
  const xfer_dtype own = quantised || !p->model->quantised ? entry->dtype : entry->table_dtype;
  const bool plain = own == XFER_F32 || own == XFER_BF16 || own == XFER_F16;

  if (chosen != NULL) return chosen->value == 0 ? own : (xfer_dtype)chosen->value;
  if (rule != NULL && rule->unscaled && own == XFER_F8E4M3)
    return p->side->dtype != 0 ? p->side->dtype : XFER_BF16;
  if (rule != NULL && entry->scales != XFI_NO_SCALES && plain &&
      p->side->framework->row_scales != 0)
    return (xfer_dtype)p->side->framework->row_scales;
  if (rule != NULL && rule->dtype != 0 && plain) return (xfer_dtype)rule->dtype;
  if (p->side->dtype != 0 && own != XFER_F32 && !quantised && entry->scale_of < 0)
    return p->side->dtype;
  return own;
}

/* Are these scales that the side does not have, since it has their weights in another type, by the
 * caller or, if the caller does not place them, by a rule? */
static xfer_status are_scales_dropped(bool *dropped, const xfi_rule_set *p, const xfi_entry *entry)
{
  const xfi_entry *weight = &p->model->entries[entry->scale_of < 0 ? 0 : entry->scale_of];
  const xfi_override *chosen, *place, *whole;
  xfi_applied_rule applied = {0};

  *dropped = false;
  if (entry->scale_of < 0) return XFER_OK;
  XFI_TRY(find_override(&chosen, p, XFI_OVERRIDE_DTYPE, weight));
  XFI_TRY(find_override(&place, p, XFI_OVERRIDE_PLACE, weight));
  XFI_TRY(find_override(&whole, p, XFI_OVERRIDE_WHOLE, weight));
  if (place == NULL && whole == NULL) XFI_TRY(xfi_rule_find(&applied, p, weight));
  if (applied.rule != NULL && !applied.rule->unscaled) applied.rule = NULL;
  *dropped = dtype_of(p, weight, applied.rule, chosen) != weight->dtype;
  return XFER_OK;
}

xfer_status xfi_held_entry_make(xfi_held_entry *held, xfi_rule_set *p, size_t at)
{
  xfi_entry own = p->model->entries[at];
  const xfi_entry *entry = &own;
  const xfi_override *place, *whole, *typed;
  const xfi_local_rule *rule;
  bool ignored = false;
  layout_input input = {.by = {.one_rank = -1}};

  XFI_TRY(find_override(&place, p, XFI_OVERRIDE_PLACE, entry));
  XFI_TRY(find_override(&whole, p, XFI_OVERRIDE_WHOLE, entry));
  XFI_TRY(find_override(&typed, p, XFI_OVERRIDE_DTYPE, entry));
  input.by.dtype = dtype_of(p, entry, NULL, typed);
  if (input.by.dtype != own.dtype)
    own.block[0] = own.block[1] = 0; /* there are no blocks that a layout could cut */
  input.place = place;
  XFI_TRY(are_scales_dropped(&held->scales_dropped, p, entry));
  if (held->scales_dropped || place != NULL || whole != NULL) {
    held->absent = input.by.all = held->scales_dropped;
    if (!held->scales_dropped && place == NULL)
      input.by.one_rank = p->side->mesh->ranks[whole->value];
    XFI_TRY(xfi_param_mapping_make(&held->mapping, p, entry, &WHOLE));
    return make_layouts(held, p, entry, &input);
  }
  XFI_TRY(xfi_rule_find(&input.applied, p, entry));
  XFI_TRY(is_absent(&held->absent, p, entry, &input.applied));
  rule = input.applied.rule;
  if (rule == NULL || rule->refusal != NULL) XFI_TRY(is_ignored(&ignored, p, entry));
  if (rule == NULL || held->absent || ignored) {
    if (rule == NULL && !held->absent && !ignored) XFI_TRY(xfi_rule_missing(p, entry));
    memset(&input.applied, 0, sizeof input.applied);
    return hold_unruled(held, p, entry, &input);
  }
  XFI_CHECK(rule->refusal == NULL, XFER_ERR_UNSUPPORTED,
            "\"%s\" in \"%s\": %s; ignore it or place it", entry->pattern, p->side->spec,
            rule->refusal);
  input.by.dtype = dtype_of(p, entry, rule, typed);
  if (input.by.dtype != own.dtype) own.block[0] = own.block[1] = 0;
  XFI_TRY(xfi_param_mapping_make(&held->mapping, p, entry, &input.applied));
  XFI_TRY(make_layouts(held, p, entry, &input));
  /* A caller who sets the type has the checkpoint's own values. */
  held->subtracted = typed == NULL || typed->value != 0 ? input.applied.value[XFI_SUBTRACT] : 0;
  held->hook = rule->hook;
  held->misc = rule->made != NULL;
  return XFER_OK;
}
