/*
 * The table of a model, in the form that the join works on.
 *
 * An *entry* stands for many tensors of a checkpoint: one name pattern over a list of layers and a
 * range of experts, all of one shape and of one kind of layer. Experts that a checkpoint lists one
 * by one become one tensor whose dim 0 counts them. A checkpoint tensor that holds several weights
 * becomes as many entries, each with its *home*: where its elements lie in the checkpoint's tensor.
 * So below this point there is one form of a model: rows, then columns, after the experts if any,
 * and each weight is a tensor.
 */
#ifndef XFI_ENTRIES_H
#define XFI_ENTRIES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

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

/* Layers of the model itself, its extra ones (multi-token prediction), or neither. */
typedef enum xfi_stack { XFI_OUTSIDE = 0, XFI_LAYERS, XFI_EXTRA } xfi_stack;

typedef struct xfi_entry {
  char *pattern; /* the checkpoint's name, with {layer} and {expert} */
  char *known;   /* the same after the caller's renames, which the rules look at */
  char *name; /* of its tensors in the join: the pattern, and [gate] or the like if the checkpoint's
                 tensor holds several weights */
  int *layers; /* [n_layers] ascending; NULL: the name has no {layer} */
  int n_layers;
  int n_experts; /* 0: the name has no {expert} */
  int first_expert;
  int n_dims;
  int64_t shape[XFER_MAX_DIMS]; /* as the join has it */
  xfer_dtype dtype;
  xfer_dtype table_dtype; /* the checkpoint's; `dtype` differs if a side quantises the weight */
  int64_t offset;         /* of its home, in elements of the checkpoint's tensor */
  int64_t strides[XFER_MAX_DIMS]; /* of its home, in elements */
  int order[XFER_MAX_DIMS]; /* the checkpoint's dim k is dim order[k] here, where neighbours that
                               are one dim here count as one there */
  int64_t lead; /* size of the checkpoint's first dim, if it and the next are one dim here;
                   0: they are not */
  bool experts; /* dim 0 counts experts */
  xfi_stack stack;
  bool own_numbers;   /* it is in extra layers that the checkpoint numbers from 0 */
  const char *stem;   /* in `known`, behind prefix and layer */
  size_t n_stem;      /* its characters, without the suffix */
  const char *as;     /* the stem that sides use; NULL: the same */
  const char *suffix; /* "weight", "bias", "" or what scales are called */
  const char *role;   /* NULL: no rule knows it */
  bool matched;       /* the rules were asked */
  bool beside;    /* it has no role, but belongs to a weight that has one: a scale, packed values */
  int n_segments; /* 0: nothing is said of its rows */
  xfi_row_segment segments[XFI_MAX_SEGMENTS];
  /* How many weights the checkpoint's tensor holds, and which of them this is (1 and 0: it is
   * alone); whether their rows alternate; and the row at which the first begins. */
  int n_held, held;
  bool alternate;
  int64_t held_first;
  bool is_scale;
  bool per_row;     /* scales: one for each row of their weight, or one for the whole weight */
  bool per_tensor;  /* scales: one for the whole weight */
  bool left;        /* a weight that the configuration leaves unquantised */
  int scale_of;     /* index of the weight whose scales these are; -1: they are no scales */
  int64_t block[2]; /* a weight with scales: the size of a block; 0: none */
} xfi_entry;

/* An entry is in this layer; -1: it is outside the layers. */
typedef struct xfi_spot {
  xfi_stack stack;
  int layer;
  size_t entry;
  bool has_role;
} xfi_spot;

struct xfer_model {
  atomic_int n_refs;
  atomic_bool frozen; /* a refit was made of it */
  xfer_rules *rules;
  xfer_model *base;         /* that this one is a copy of; NULL: none */
  bool quantised;           /* a side quantises it: `dtype` of entries is no longer table_dtype */
  xfi_doc config;           /* config.json, or the table */
  const struct json_t *top; /* the configuration in it */
  const xfi_family *family; /* NULL: no rules of this model_type */
  const xfi_family *all[XFI_MAX_INCLUDES];
  int n_all;
  const char *words[XFI_MAX_INCLUDES * XFI_MAX_WORDS]; /* what these call layers in names */
  int n_words;
  const char *model_type; /* "" where the configuration has none */
  xfi_var *vars;          /* the size of blocks, then the family's words */
  size_t n_vars, vars_cap;
  xfi_scope scope, figures; /* what rules may ask: the words, then what the configuration has */
  int64_t block[2];         /* of fp8 scales */
  xfi_entry *entries;
  size_t n_entries, entries_cap;
  xfi_spot *spots; /* [n_spots] of all entries, by stack, layer and entry */
  size_t n_spots;
  int *layers; /* [n_layers] the model's own layers that are kept, ascending */
  int n_layers;
  int n_config_layers;     /* how many layers the configuration says; 0: it does not */
  int n_further_layers;    /* how many it says there are after those, under the key */
  const char *further_key; /* that the rules name */
  int n_extra;             /* extra layers that are kept */
  bool *renamed; /* [n_renames] which of the options' renames matched; NULL: there are none */
  bool scanned;  /* the model is complete: layers were selected, weights quantised */
  bool selected; /* only some of its layers were kept */
};

/* What readers of tables and checkpoints hand over: one name pattern, as it stands there. */
typedef struct xfi_raw {
  const char *pattern; /* {layer}, {expert} allowed */
  const int *layers;
  int n_layers;
  int first_expert;
  int n_experts;
  int64_t shape[XFER_MAX_DIMS];
  int n_dims;
  xfer_dtype dtype;
  const char *path; /* the file, for errors; NULL: none */
} xfi_raw;

/* ---- the list of them ---- */

/* Appends one, whose pattern may be a plain name: numbers of a layer and an expert are taken out of
 * it. */
xfer_status xfi_model_append(xfer_model *model, const xfi_raw *raw,
                             const xfer_model_options *options);
/* Merge entries that differ in the expert alone, or also in the layer, as a list of names has them.
 */
xfer_status xfi_model_gather_experts(xfer_model *model);
xfer_status xfi_model_gather(xfer_model *model);
/* Sort entries by name, then by what else they are. */
void xfi_model_sort(xfer_model *model);
/* Does the k-th layer of an entry stay in it? */
typedef xfer_status (*xfi_stays)(bool *stays, const xfi_entry *entry, int k, const void *context);
/* Split entry `at`: its layers that do not stay become an entry behind it, if others do stay. */
xfer_status xfi_model_part(xfer_model *model, size_t at, xfi_stays stays, const void *context);
/* Insert a copy of entry `at` behind it. */
xfer_status xfi_model_double(xfer_model *model, size_t at);
xfer_status xfi_entry_copy(xfi_entry *copy, const xfi_entry *entry);
void xfi_entry_clear(xfi_entry *entry);
/* Make model->spots from the present entries. */
xfer_status xfi_model_find_spots(xfer_model *model);
/* The spots of one layer. */
const xfi_spot *xfi_model_spots(const xfer_model *model, xfi_stack stack, int layer, size_t *n);
/* Does any layer of the entry's stack have the role? */
bool xfi_model_has_anywhere(const xfer_model *model, const xfi_entry *entry, const char *role);
/* In a complete model, the entry of this role and suffix (NULL: any) in the layers of `like`; NULL:
 * none. */
xfi_entry *xfi_model_find(const xfer_model *model, const char *role, const char *suffix,
                          const xfi_entry *like);

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

/* The index of `value` in an ascending list; -1: it is not there. */
int xfi_find_int(const int *list, int n, int value);

#endif
