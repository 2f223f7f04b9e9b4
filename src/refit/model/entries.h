/*
 * The table of a model, in the form that the join works on.
 *
 * An *entry* stands for many tensors of a checkpoint: one name pattern over a list of layers and a
 * range of experts, all of one shape and of one kind of layer. Experts that a checkpoint lists one
 * by one become one tensor whose dim 0 counts them. A checkpoint tensor that holds several weights
 * becomes as many entries, each with where its elements lie in the checkpoint's tensor.
 * So below this point there is one form of a model: rows, then columns, after the experts if any,
 * and each weight is a tensor.
 */
#ifndef XFI_ENTRIES_H
#define XFI_ENTRIES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "rules.h"
#include "xfer/refit.h"

/* Named rows of an entry that repeat: `count` units of `unit` rows each, which may consist of named
 * parts (subs). */
typedef struct xfi_row_segment {
  const char *name;
  int64_t count, unit;
  int n_subs;
  const char *sub_names[XFI_MAX_SUBS];
  int64_t sub_rows[XFI_MAX_SUBS];
} xfi_row_segment;

/* What each of an entry's scales is of; XFI_NO_SCALES: the entry is no scales. */
typedef enum xfi_scales {
  XFI_NO_SCALES = 0,
  XFI_SCALES_OF_BLOCKS,
  XFI_SCALES_OF_ROWS,
  XFI_SCALES_OF_WEIGHTS /* one for the whole weight, or for its input */
} xfi_scales;

/* Where an entry's elements are in the checkpoint's tensor. */
typedef struct xfi_in_checkpoint {
  int64_t offset;                 /* in elements */
  int64_t strides[XFER_MAX_DIMS]; /* of the entry's dims, in elements */
  int order[XFER_MAX_DIMS];       /* the checkpoint's dim k is dim order[k] of the entry, where
                                     neighbours that are one dim here count as one there */
  int64_t
      lead; /* size of the checkpoint's first dim, if that and the next are one dim here; else 0 */
} xfi_in_checkpoint;

/* Which of the weights that are packed in one tensor of the checkpoint an entry is. */
typedef struct xfi_packed {
  int n; /* 1: the entry is the only one */
  int index;
  bool alternate;    /* rows of the weights alternate */
  int64_t first_row; /* at which this one begins */
} xfi_packed;

/* Layers of the model itself, its extra ones (multi-token prediction), or neither. */
typedef enum xfi_stack { XFI_OUTSIDE = 0, XFI_LAYERS, XFI_EXTRA } xfi_stack;

typedef struct xfi_entry {
  char *pattern; /* the checkpoint's name, with {layer} and {expert} */
  char *known;   /* the same after the caller's renames; rules match this one */
  char *name;    /* the pattern, with a suffix such as [gate] if it is one of several weights */
  int *layers;   /* [n_layers] ascending; NULL: the name has no {layer} */
  int n_layers;
  int n_experts; /* 0: the name has no {expert} */
  int first_expert;
  int n_dims;
  int64_t shape[XFER_MAX_DIMS]; /* in the join */
  xfer_dtype dtype;
  xfer_dtype table_dtype; /* the checkpoint's; `dtype` differs if a side quantises the weight */
  xfi_in_checkpoint in_checkpoint;
  xfi_packed packed;
  bool experts; /* dim 0 counts experts */
  xfi_stack stack;
  bool own_numbers;   /* in extra layers that the checkpoint numbers from 0 */
  const char *stem;   /* in `known`, behind prefix and layer */
  size_t n_stem;      /* its characters, without the suffix */
  const char *alias;  /* the stem that sides use in its place; NULL: `stem` */
  const char *suffix; /* "weight", "bias", "", or the name of scales */
  const char *role;   /* NULL: no rule matches it */
  bool matched;       /* its name was looked up in the rules */
  /* It has no role, but belongs to the weight that this rule names: a scale, packed values. NULL:
   * it does not. */
  const xfi_tensor_rule *companion_of;
  int n_segments; /* 0: its rows are not described */
  xfi_row_segment segments[XFI_MAX_SEGMENTS];
  xfi_scales scales;
  bool unquantised; /* a weight that the configuration leaves unquantised */
  int scale_of;     /* index of the weight that the scales belong to; -1: these are no scales */
  int64_t block[2]; /* a weight with scales: the size of a block; 0: none */
} xfi_entry;

/* Scales of rows have a row for each of the weight; those of whole weights follow the same rules.
 */
static inline bool xfi_scales_have_rows(xfi_scales scales)
{
  return scales == XFI_SCALES_OF_ROWS || scales == XFI_SCALES_OF_WEIGHTS;
}

/* One layer of an entry; -1: it is outside the layers. */
typedef struct xfi_layer_entry {
  xfi_stack stack;
  int layer;
  size_t entry;
  bool has_role;
} xfi_layer_entry;

struct xfer_model {
  atomic_int n_refs;
  atomic_bool frozen; /* a refit uses it */
  xfer_rules *rules;
  xfer_model *base; /* the model that this is a copy of; NULL: none */
  bool quantised;   /* a side quantises it: `dtype` of entries is no longer table_dtype */
  xfi_doc config;   /* config.json, or the table */
  const struct json_t *configuration;           /* the configuration in it */
  const xfi_family *family;                     /* NULL: no rules for this model_type */
  const xfi_family *families[XFI_MAX_INCLUDES]; /* it, and those that it includes */
  int n_families;
  const char *layer_words[XFI_MAX_INCLUDES *
                          XFI_MAX_LAYER_WORDS]; /* what layers are called in their names */
  int n_layer_words;
  const char *model_type; /* "" where the configuration has none */
  xfi_var *vars;          /* the size of blocks, then the family's words */
  size_t n_vars, vars_cap;
  const char **absent; /* the words that have no value */
  size_t n_absent, absent_cap;
  xfi_scope scope, config_scope; /* names in rules: the words, then the configuration */
  int64_t block[2];              /* of fp8 scales */
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
  bool *renamed; /* [n_renames] which of the options' renames matched; NULL: there are none */
  bool complete; /* layers were selected, weights quantised */
  bool from_checkpoint; /* it was read from a checkpoint, which has all of a model */
  bool selected;        /* only some of its layers were kept */
  bool without_ends;    /* so were no tensors outside the layers */
};

/* A tensor as a table or a checkpoint lists it: one name pattern and its shape there. */
typedef struct xfi_listed_tensor {
  const char *pattern; /* {layer}, {expert} allowed */
  const int *layers;
  int n_layers;
  int first_expert;
  int n_experts;
  int64_t shape[XFER_MAX_DIMS];
  int n_dims;
  xfer_dtype dtype;
  const char *path; /* the file, for errors; NULL: none */
} xfi_listed_tensor;

/* ---- the list of them ---- */

/* Appends one, whose pattern may be a plain name: the numbers of a layer and an expert are replaced
 * by placeholders. */
xfer_status xfi_model_append(xfer_model *model, const xfi_listed_tensor *listed,
                             const xfer_model_options *options);
/* Merge entries that differ only in the expert, or also in the layer, as names of a checkpoint do.
 */
xfer_status xfi_model_gather_experts(xfer_model *model);
xfer_status xfi_model_gather(xfer_model *model);
/* Sort entries by name, then by their other properties. */
void xfi_model_sort(xfer_model *model);
/* *keep: does the k-th layer of an entry stay in it? */
typedef xfer_status (*xfi_keep_layer_fn)(bool *keep, const xfi_entry *entry, int k,
                                         const void *context);
/* Split entry `at`: the layers that are not kept become an entry behind it, if others are kept. */
xfer_status xfi_model_split(xfer_model *model, size_t at, xfi_keep_layer_fn keep,
                            const void *context);
/* Insert a copy of entry `at` behind it. */
xfer_status xfi_model_duplicate(xfer_model *model, size_t at);
xfer_status xfi_entry_copy(xfi_entry *copy, const xfi_entry *entry);
void xfi_entry_clear(xfi_entry *entry);
/* Make model->layer_entries from the present entries. */
xfer_status xfi_model_index_layers(xfer_model *model);
/* The entries of one layer. */
const xfi_layer_entry *xfi_model_layer_entries(const xfer_model *model, xfi_stack stack, int layer,
                                               size_t *n);
/* Does any layer of the stack have the role? */
bool xfi_model_has_role(const xfer_model *model, xfi_stack stack, const char *role);
/* In a complete model, the entry of this role and suffix (NULL: any) in a layer (-1: outside);
 * NULL: none. */
xfi_entry *xfi_model_find(const xfer_model *model, xfi_stack stack, int layer, const char *role,
                          const char *suffix);
/* The same in the first layer of `like`. */
xfi_entry *xfi_model_find_beside(const xfer_model *model, const xfi_entry *like, const char *role,
                                 const char *suffix);

/* The dim that counts rows, and its size. */
static inline int xfi_entry_row_dim(const xfi_entry *entry)
{
  return entry->experts ? 1 : 0;
}

static inline int64_t xfi_entry_rows(const xfi_entry *entry)
{
  return entry->shape[xfi_entry_row_dim(entry)];
}

static inline bool xfi_entry_is_bias(const xfi_entry *entry)
{
  return strcmp(entry->suffix, "bias") == 0;
}

/* ---- places: an entry has one in each of its layers, or a single one outside them ---- */

static inline int xfi_entry_places(const xfi_entry *entry)
{
  return entry->n_layers > 0 ? entry->n_layers : 1;
}

/* The layer at its k-th place; -1: it is in none. */
static inline int xfi_entry_layer(const xfi_entry *entry, int k)
{
  return entry->n_layers > 0 ? entry->layers[k] : -1;
}

/* The place of a layer (-1: outside); -1: it is not there. */
int xfi_entry_place(const xfi_entry *entry, int layer);

/* Does the pattern, a text, match the name in the entry's k-th layer? */
xfer_status xfi_entry_matches(bool *matches, const xfi_entry *entry, int k, const void *pattern);
/* Does it match any name that the entry stands for? */
xfer_status xfi_entry_touches(bool *touches, const xfi_entry *entry, const char *pattern);

/* The index of `value` in an ascending list; -1: it is not there. */
int xfi_find_int(const int *list, int n, int value);

#endif
