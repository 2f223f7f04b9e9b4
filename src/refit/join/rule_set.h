/* The rules of a side for one model, in the order in which they are tried, and the rule that
 * applies to an entry. */
#ifndef XFI_RULE_SET_H
#define XFI_RULE_SET_H

#include "side.h"

/* A side's rules for one model. */
typedef struct xfi_rule_set {
  const xfer_side *side;
  const xfer_model *model;
  const xfi_local_rule **rules; /* the family's for this side, then the side's */
  size_t n_rules, rules_cap;
  xfi_var *vars; /* the words that families set for this side */
  size_t n_vars, vars_cap;
  xfi_scope scopes[2]; /* vars, then the SPEC's items; then the model's */
  /* what {layer_prefix} stands for in a name; NULL: nothing */
  const char *layer_prefix, *extra_layer_prefix;
  const int *stages;  /* [model->n_layers] virtual */
  xfer_mesh **meshes; /* that entries share: a handful for each stage */
  size_t n_meshes, meshes_cap;
} xfi_rule_set;

xfer_status xfi_rule_set_open(xfi_rule_set *set, const xfer_side *side, const xfer_model *model,
                              const int *stages);
void xfi_rule_set_close(xfi_rule_set *set);

/* An expression of a rule about an entry; NULL is 0. */
xfer_status xfi_rule_set_eval(int64_t *value, const xfi_rule_set *set, const xfi_entry *entry,
                              const char *expr);

/* The rule that applies to an entry, and the values of its expressions. */
typedef struct xfi_applied_rule {
  const xfi_local_rule *rule; /* NULL: none */
  int64_t value[XFI_N_PROPERTIES];
} xfi_applied_rule;

xfer_status xfi_rule_find(xfi_applied_rule *applied, const xfi_rule_set *set,
                          const xfi_entry *entry);
/* Fails, with what is missing, if a rule would apply to the entry if its layer were complete. */
xfer_status xfi_rule_missing(const xfi_rule_set *set, const xfi_entry *entry);
/* The weight that a part of a rule is of, in the entry's layer; NULL: none. */
const xfi_entry *xfi_part_find(const xfi_rule_set *set, const xfi_entry *entry,
                               const xfi_part_rule *part, const char *suffix);

#endif
