/* A model: its entries, what its configuration says, and how both are read. */
#ifndef XFI_MODEL_H
#define XFI_MODEL_H

#include <stdatomic.h>

#include "entries.h"

struct xfer_model {
  atomic_int n_refs;
  atomic_bool frozen; /* a refit uses it */
  xfer_rules *rules;
  xfer_model *base;         /* the model that this is a copy of; NULL: none */
  bool quantised;           /* a side quantises it: `dtype` of entries is no longer table_dtype */
  xfi_doc config;           /* config.json, or the table */
  const struct json_t *top; /* the configuration in it */
  const xfi_family *family; /* NULL: no rules for this model_type */
  const xfi_family *all[XFI_MAX_INCLUDES];
  int n_all;
  const char *layer_words[XFI_MAX_INCLUDES *
                          XFI_MAX_LAYER_WORDS]; /* what layers are called in their names */
  int n_layer_words;
  const char *model_type; /* "" where the configuration has none */
  xfi_var *vars;          /* the size of blocks, then the family's words */
  size_t n_vars, vars_cap;
  const char **absent; /* the words that have no value */
  size_t n_absent, absent_cap;
  xfi_scope scope, figures; /* names in rules: the words, then the configuration */
  int64_t block[2];         /* of fp8 scales */
  xfi_entry *entries;
  size_t n_entries, entries_cap;
  xfi_layer_entry *layer_entries; /* [n_layer_entries] of all entries, by stack, layer and entry */
  size_t n_layer_entries;
  int *layers; /* [n_layers] the model's own layers that are kept, ascending */
  int n_layers;
  int n_config_layers;     /* the number of layers in the configuration; 0: absent */
  int n_further_layers;    /* the number of layers after those, in the configuration */
  const char *further_key; /* the configuration's key for n_further_layers */
  int n_extra;             /* extra layers that are kept */
  bool *renamed;     /* [n_renames] which of the options' renames matched; NULL: there are none */
  bool scanned;      /* the model is complete: layers were selected, weights quantised */
  bool whole;        /* it was read from a checkpoint, which has all of a model */
  bool selected;     /* only some of its layers were kept */
  bool without_ends; /* so were no tensors outside the layers */
};

/* ---- the two readers: each reads `model->config` and appends, without xfi_model_finish() ---- */

xfer_status xfi_table_read(xfer_model *model, const char *path, const xfer_model_options *options);
xfer_status xfi_checkpoint_read(xfer_model *model, const char *path,
                                const xfer_model_options *options);
/* "dtype" and "shape" of one tensor, in a table or in the header of a safetensors file `where`. */
xfer_status xfi_raw_read(xfi_raw *raw, const struct json_t *object, const char *where,
                         const char *name);

/* config.c: reads from model->top the family, by its model_type, and the block of fp8 scales. */
xfer_status xfi_config_read(xfer_model *model);
/* Find the family of a model without model_type, by its tensors' names. */
void xfi_config_recognise(xfer_model *model);
/* Set model->scope. */
xfer_status xfi_config_vars(xfer_model *model);
/* An expression of a family, and where it is; expr NULL: there is none. */
typedef struct xfi_ruled {
  const xfi_family *family;
  const struct json_t *expr;
} xfi_ruled;

/* Whether an expression holds. Unknown: there is none, or a name in it has no value. */
typedef enum xfi_truth { XFI_UNKNOWN = 0, XFI_FALSE, XFI_TRUE } xfi_truth;

/* The value of an expression of one layer; *has becomes false if it has none. Its names are looked
 * up in `first`, unless it is NULL, before the words. */
xfer_status xfi_config_number(bool *has, int64_t *value, const xfer_model *model, xfi_ruled rule,
                              int layer, const xfi_scope *first);
/* Is such an expression true? */
xfer_status xfi_config_eval(xfi_truth *truth, const xfer_model *model, xfi_ruled rule, int layer,
                            const xfi_scope *first);
/* Is the expression of a family's word true of one layer? */
xfer_status xfi_config_flag(xfi_truth *truth, const xfer_model *model, const char *word, int layer);

/* ---- model.c ---- */

xfer_status xfi_model_create(xfer_model **model, const xfer_rules *rules);
xfer_model *xfi_model_share(xfer_model *model);
void xfi_model_destroy(xfer_model *model);
/* Appends after the first xfi_model_finish(); on an error the model is as before. */
xfer_status xfi_model_add(xfer_model *model, const xfi_raw *raw);
/* After the last append: ranges, roles, scales, kinds of layers, checks. */
xfer_status xfi_model_finish(xfer_model *model, const xfer_model_options *options);
/* Check that the model has the layers, experts and weights that its family and its configuration
 * say. Layers that were not kept are not checked. */
xfer_status xfi_model_check_counts(const xfer_model *model);
/* needs.c: check that no weight is missing that all models of its family and configuration have. */
xfer_status xfi_model_check_needs(const xfer_model *model);
/* sizes.c: check that its weights are as large as the configuration says. */
xfer_status xfi_model_check_sizes(const xfer_model *model);
/* Set everything that follows from names and roles. */
xfer_status xfi_model_resolve(xfer_model *model);
/* A copy for one refit, to be changed and then resolved. */
xfer_status xfi_model_copy(xfer_model **copy, xfer_model *model);

#endif
