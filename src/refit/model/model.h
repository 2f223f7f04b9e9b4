/* A model: its readers, and how entries are made of what they read. */
#ifndef XFI_MODEL_H
#define XFI_MODEL_H

#include "entries.h"

/* ---- the two readers: each reads `model->config` and appends, without xfi_model_finish() ---- */

xfer_status xfi_table_read(xfer_model *model, const char *path, const xfer_model_options *options);
xfer_status xfi_checkpoint_read(xfer_model *model, const char *path,
                                const xfer_model_options *options);
/* "dtype" and "shape" of one tensor, in a table or in the header of a safetensors file `where`. */
xfer_status xfi_listed_tensor_read(xfi_listed_tensor *listed, const struct json_t *object,
                                   const char *where, const char *name);

/* config.c: reads from model->configuration the family, by its model_type, and the block of fp8
 * scales. */
xfer_status xfi_config_read(xfer_model *model);
/* Find the family of a model without model_type, by its tensors' names. */
void xfi_config_recognise(xfer_model *model);
/* Set model->scope. */
xfer_status xfi_config_vars(xfer_model *model);
/* An expression of a family, and where it is; expr NULL: there is none. */
typedef struct xfi_family_expr {
  const xfi_family *family;
  const struct json_t *expr;
} xfi_family_expr;

/* The value of a key in the first of the model's families that has it in the JSON object at this
 * offset in xfi_family: a family's entry takes the place of those of the families that it includes.
 */
xfi_family_expr xfi_config_rule(const xfer_model *model, size_t object, const char *key);

/* Whether an expression holds. Unknown: there is none, or a name in it has no value. */
typedef enum xfi_truth { XFI_UNKNOWN = 0, XFI_FALSE, XFI_TRUE } xfi_truth;

/* The value of an expression of one layer; *has becomes false if it has none. Its names are looked
 * up in `first`, unless it is NULL, before the words. */
xfer_status xfi_config_number(bool *has, int64_t *value, const xfer_model *model,
                              xfi_family_expr rule, int layer, const xfi_scope *first);
/* Is such an expression true? */
xfer_status xfi_config_eval(xfi_truth *truth, const xfer_model *model, xfi_family_expr rule,
                            int layer, const xfi_scope *first);
/* Is the expression of a family's word true of one layer? */
xfer_status xfi_config_flag(xfi_truth *truth, const xfer_model *model, const char *word, int layer);

/* ---- model.c ---- */

xfer_status xfi_model_create(xfer_model **model, const xfer_rules *rules);
xfer_model *xfi_model_share(xfer_model *model);
void xfi_model_destroy(xfer_model *model);
/* Appends after the first xfi_model_finish(); on an error the model is as before. */
xfer_status xfi_model_add(xfer_model *model, const xfi_listed_tensor *listed);
/* After the last append: ranges, roles, scales, kinds of layers, checks. */
xfer_status xfi_model_finish(xfer_model *model, const xfer_model_options *options);
/* counts.c: check that the model has the layers, experts and weights that its family and its
 * configuration say. Layers that were not kept are not checked. */
xfer_status xfi_model_check_counts(const xfer_model *model);
/* Experts that are `listed` one by one begin with the first, and their number is the
 * configuration's. So is that of experts in one tensor, which are known once they have roles. */
xfer_status xfi_model_check_expert_counts(const xfer_model *model, bool listed);
/* needs.c: check that no weight is missing that all models of its family and configuration have. */
xfer_status xfi_model_check_needs(const xfer_model *model);
/* sizes.c: check that its weights are as large as the configuration says. */
xfer_status xfi_model_check_sizes(const xfer_model *model);
/* Set everything that follows from names and roles. */
xfer_status xfi_model_resolve(xfer_model *model);
/* A copy for one refit, to be changed and then resolved. */
xfer_status xfi_model_copy(xfer_model **copy, xfer_model *model);

#endif
