/* Which rules a side has for a model, and which of them applies to an entry. */
#include "rule_set.h"

#include "alloc.h"
#include "error.h"
#include "layout.h"
#include "names.h"
#include "vec.h"

#include <jansson.h>
#include <string.h>

/* ---- the rules of a side for a model ---- */

static xfer_status add_rules(xfi_rule_set *p, const xfi_local_rule *rules, size_t n)
{
  XFI_TRY(
      xfi_vec_reserve(&p->rules, &p->rules_cap, p->n_rules + n, sizeof(const xfi_local_rule *)));
  for (size_t i = 0; i < n; i++)
    p->rules[p->n_rules++] = &rules[i];
  return XFER_OK;
}

static xfer_status add_vars(xfi_rule_set *p, const json_t *words)
{
  const xfi_scope scope = xfi_side_scope(p->side, &p->model->scope);
  const char *name;
  const json_t *expr;

  json_object_foreach((json_t *)(uintptr_t)words, name, expr)
  {
    int64_t value;

    XFI_TRY(xfi_rules_eval(&value, p->model->rules, json_string_value(expr), &scope));
    XFI_TRY(XFI_APPEND(p->vars, p->n_vars, p->vars_cap, (xfi_var){name, value}));
  }
  return XFER_OK;
}

/* Stages without experts, of a model that has some and all of whose layers are there. */
static int count_bare_stages(const xfi_rule_set *p)
{
  const xfer_model *m = p->model;
  int n_bare = 0, n_with = 0;

  for (int stage = 0; stage < p->side->pp; stage++) {
    bool has = false;

    for (size_t i = 0; i < m->n_entries && !has; i++) {
      const xfi_entry *e = &m->entries[i];

      for (int k = 0; k < e->n_layers && e->experts && e->stack == XFI_LAYERS && !has; k++)
        has = p->stages[xfi_find_int(m->layers, m->n_layers, e->layers[k])] % p->side->pp == stage;
    }
    n_with += has;
    n_bare += !has;
  }
  return n_with > 0 && m->n_layers == m->n_config_layers ? n_bare : 0;
}

/* Stages that have another number of layers than the first, of a model all of whose layers are
 * there. */
static int count_uneven_stages(const xfi_rule_set *p)
{
  const xfer_model *m = p->model;
  int n_uneven = 0, n_first = 0;

  for (int stage = 0; stage < p->side->pp; stage++) {
    int n_here = 0;

    for (int i = 0; i < m->n_layers; i++)
      n_here += p->stages[i] % p->side->pp == stage;
    if (stage == 0) n_first = n_here;
    n_uneven += n_here != n_first;
  }
  return m->n_layers == m->n_config_layers ? n_uneven : 0;
}

xfer_status xfi_rule_set_open(xfi_rule_set *p, const xfer_side *side, const xfer_model *model,
                              const int *stages)
{
  const xfi_family_side *families[XFI_MAX_INCLUDES];
  int n = 0;

  *p = (xfi_rule_set){.side = side, .model = model, .stages = stages};
  XFI_TRY(add_rules(p, side->framework->first, side->framework->n_first));
  for (int f = 0; f < model->n_families; f++) {
    const xfi_family_side *s = xfi_family_side_find(model->families[f], side->framework->name);

    if (s == NULL) continue;
    if (p->layer_prefix == NULL) p->layer_prefix = s->layer_prefix;
    if (p->extra_layer_prefix == NULL) p->extra_layer_prefix = s->extra_layer_prefix;
    families[n++] = s;
    XFI_TRY(add_rules(p, s->locals, s->n_locals));
    XFI_TRY(add_vars(p, s->set));
  }
  if (p->layer_prefix == NULL) p->layer_prefix = side->framework->layer_prefix;
  if (p->extra_layer_prefix == NULL) p->extra_layer_prefix = side->framework->extra_layer_prefix;
  XFI_TRY(add_rules(p, side->framework->locals, side->framework->n_locals));
  XFI_TRY(xfi_vec_reserve(&p->vars, &p->vars_cap, p->n_vars + 3, sizeof *p->vars));
  p->vars[p->n_vars++] = (xfi_var){"extra_layers", model->n_extra};
  p->vars[p->n_vars++] = (xfi_var){"bare_stages", count_bare_stages(p)};
  p->vars[p->n_vars++] = (xfi_var){"uneven_stages", count_uneven_stages(p)};
  p->scopes[1] = xfi_side_scope(side, &model->scope);
  p->scopes[0] = (xfi_scope){.vars = p->vars, .n_vars = p->n_vars, .next = &p->scopes[1]};
  for (int i = 0; i < n; i++)
    XFI_TRY(xfi_rules_require(model->rules, families[i]->require, &p->scopes[0],
                              XFER_ERR_UNSUPPORTED, "\"%s\" and family \"%s\"", side->spec,
                              model->family->name));
  return XFER_OK;
}

void xfi_rule_set_close(xfi_rule_set *p)
{
  for (size_t i = 0; i < p->n_meshes; i++)
    xfi_mesh_destroy(p->meshes[i]);
  xfi_free(p->meshes);
  xfi_free(p->rules);
  xfi_free(p->vars);
}

/* ---- expressions of a rule ---- */

/* Does the model have a bias for the entry? */
static bool has_bias(const xfi_rule_set *set, const xfi_entry *entry)
{
  return entry->role != NULL &&
         xfi_model_find_beside(set->model, entry, entry->role, "bias") != NULL;
}

/* How many heads of keys the entry's layer has; 0 if it has none. */
static int64_t k_heads(const xfi_rule_set *set, const xfi_entry *entry)
{
  const xfi_entry *k = entry->role == NULL
                           ? NULL
                           : xfi_model_find_beside(set->model, entry, "attn.k", entry->suffix);

  return k == NULL || k->n_segments == 0 ? 0 : k->segments[0].count;
}

xfer_status xfi_rule_set_eval(int64_t *value, const xfi_rule_set *set, const xfi_entry *entry,
                              const char *expr)
{
  const xfi_var own[] = {{"alternating", entry->packed.alternate},
                         {"is_extra", entry->stack == XFI_EXTRA},
                         {"is_bias", xfi_entry_is_bias(entry)},
                         {"has_bias", has_bias(set, entry)},
                         {"is_fp8", entry->dtype == XFER_F8E4M3 || entry->scales != XFI_NO_SCALES},
                         {"row_scale", entry->scales == XFI_SCALES_OF_ROWS},
                         {"one_scale", entry->scales == XFI_SCALES_OF_WEIGHTS},
                         {"block_scale", entry->scales == XFI_SCALES_OF_BLOCKS},
                         {"k_heads", k_heads(set, entry)},
                         {"rows", xfi_entry_rows(entry)}};
  const xfi_scope scope = {
      .vars = own, .n_vars = sizeof own / sizeof *own, .next = &set->scopes[0]};

  xfer_status st = XFER_OK;

  *value = 0;
  if (expr != NULL) st = xfi_expr_eval(value, expr, &scope);
  /* A rule is the side's or a family's. */
  if (st != XFER_OK && !xfi_rules_locate_error(set->side->rules, expr))
    (void)xfi_rules_locate_error(set->model->rules, expr);
  return st;
}

/* ---- finding the rule ---- */

/* Does the weight have rows of that name? */
static bool has_rows(const xfi_entry *entry, const char *take)
{
  for (int s = 0; s < entry->n_segments; s++) {
    if (strcmp(entry->segments[s].name, take) == 0) return true;
    for (int k = 0; k < entry->segments[s].n_subs; k++) {
      if (strcmp(entry->segments[s].sub_names[k], take) == 0) return true;
    }
  }
  return false;
}

const xfi_entry *xfi_part_find(const xfi_rule_set *set, const xfi_entry *entry,
                               const xfi_part_rule *part, const char *suffix)
{
  if (xfi_role_matches(part->role, entry->role)) return entry;
  return xfi_model_find_beside(set->model, entry, part->role, suffix);
}

/* Is the entry one of the parts, and do all parts exist, with the rows that are taken of them? A
 * part without the suffix is detected in add_parts(). */
static bool has_parts(const xfi_rule_set *set, const xfi_entry *entry, const xfi_local_rule *rule)
{
  bool mine = false;

  for (int i = 0; i < rule->n_parts; i++) {
    const xfi_part_rule *p = &rule->parts[i];
    const xfi_entry *e = xfi_part_find(set, entry, p, p->take != NULL ? entry->suffix : NULL);

    if (e == NULL || (p->take != NULL && !has_rows(e, p->take))) return false;
    mine = mine || e == entry;
  }
  return mine;
}

/* Does the layer have all required roles, and no layer a forbidden one? A role that some layers
 * have is missing in the others, rather than absent from the model. */
static bool has_roles(const xfi_rule_set *set, const xfi_entry *entry, const xfi_local_rule *rule)
{
  const xfer_model *model = set->model;

  for (size_t i = 0; i < json_array_size(rule->with); i++) {
    if (xfi_model_find_beside(model, entry, xfi_doc_text(rule->with, i), NULL) == NULL)
      return false;
  }
  for (size_t i = 0; i < json_array_size(rule->without); i++) {
    if (xfi_model_has_role(model, entry->stack, xfi_doc_text(rule->without, i))) return false;
  }
  return true;
}

/* Does a rule's "when" hold, an expression or a list? After the first of a list that does not hold,
 * the others are not evaluated. */
static xfer_status all_hold(bool *hold, const xfi_rule_set *set, const xfi_entry *entry,
                            const json_t *when)
{
  const char *one = json_string_value(when);
  int64_t value = 1;

  if (one != NULL) XFI_TRY(xfi_rule_set_eval(&value, set, entry, one));
  for (size_t i = 0; i < json_array_size(when) && value != 0; i++)
    XFI_TRY(xfi_rule_set_eval(&value, set, entry, xfi_doc_text(when, i)));
  *hold = value != 0;
  return XFER_OK;
}

xfer_status xfi_rule_find(xfi_applied_rule *applied, const xfi_rule_set *set,
                          const xfi_entry *entry)
{
  memset(applied, 0, sizeof *applied);
  for (size_t i = 0; i < set->n_rules && entry->role != NULL; i++) {
    const xfi_local_rule *r = set->rules[i];
    bool hold;

    if (!has_parts(set, entry, r) || !has_roles(set, entry, r)) continue;
    XFI_TRY(all_hold(&hold, set, entry, r->when));
    if (!hold) continue;
    applied->rule = r;
    for (int t = 0; t < XFI_N_PROPERTIES; t++)
      XFI_TRY(xfi_rule_set_eval(&applied->value[t], set, entry, r->properties[t]));
    break;
  }
  return XFER_OK;
}

xfer_status xfi_rule_missing(const xfi_rule_set *set, const xfi_entry *entry)
{
  for (size_t i = 0; i < set->n_rules && entry->role != NULL; i++) {
    const xfi_local_rule *r = set->rules[i];
    const char *missing = NULL;
    bool mine = false;

    for (int k = 0; k < r->n_parts; k++) {
      const char *role = r->parts[k].role;

      mine = mine || xfi_role_matches(role, entry->role);
      if (strchr(role, '*') == NULL && xfi_part_find(set, entry, &r->parts[k], NULL) == NULL)
        missing = role;
    }
    XFI_CHECK(!mine || missing == NULL, XFER_ERR_SHAPE,
              "\"%s\" lies in one tensor of \"%s\" with a part that is missing in layer %d: %s",
              entry->pattern, set->side->spec, xfi_entry_layer(entry, 0), missing);
  }
  return XFER_OK;
}
