/*
 * The table of a model, in the form that the join works on.
 *
 * An *entry* stands for many tensors of a checkpoint: one name pattern over a list of layers and a
 * range of experts, all of one shape. Experts that a checkpoint lists one by one become one tensor
 * whose dim 0 counts them. A checkpoint tensor that is two weights in one (a fused gate_up_proj)
 * becomes two entries, each with its *home*: where its elements lie in the checkpoint's tensor. So
 * below this point there is one form of a model: experts are [E, rows, cols], gate and up are two
 * tensors.
 */
#ifndef XFI_MODEL_H
#define XFI_MODEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "xfer/refit.h"

/* How tensor parallelism cuts a tensor: the nature of a weight, the same in every framework. */
typedef enum xfi_cut_kind {
  XFI_CUT_WHOLE = 0, /* not at all */
  XFI_CUT_VOCAB,     /* dim 0, on a padded size */
  XFI_CUT_COL,       /* rows: dim 0 (after the experts) */
  XFI_CUT_ROW,       /* columns: the last dim; a bias is whole */
  XFI_CUT_Q,         /* rows, by attention head */
  XFI_CUT_KV,        /* rows, by key/value head, which may be fewer than the ranks */
  XFI_CUT_MAMBA_IN,  /* rows z|x|B|C|dt, each cut by itself */
  XFI_CUT_MAMBA_CONV /* rows x|B|C, likewise */
} xfi_cut_kind;

/* What else a row of the family table says. */
enum {
  XFI_STEM_HOOK = 1, /* vLLM makes other values of it after loading */
  XFI_STEM_VALUE =
      2, /* and keeps those alone: the rank's share goes to a named buffer or a callback */
  XFI_STEM_TIED = 4 /* the embedding: with tied weights it is the output layer too */
};

/* One line of the family table (families.c): what a name means and what each side calls it. In the
 * local names `%` is where "weight", "bias" or "weight_scale_inv" goes (else it is appended),
 * {local} the local number of an expert, and ":1/2" says that the tensor is the second of two that
 * lie in one. */
typedef struct xfi_stem {
  const char *stem;    /* after "layers.{layer}.", without ".weight" */
  const char *sibling; /* the line holds only if the same layers have this too; NULL: always */
  xfi_cut_kind cut;
  const char *megatron;
  const char *vllm; /* NULL: as `stem` */
  int flags;
  const char *made; /* with XFI_STEM_VALUE: the tensor, of the same shape, that vLLM makes of it */
  int made_dtype;
} xfi_stem;

typedef struct xfi_entry {
  char *pattern; /* the checkpoint's name, with {layer} and {expert} */
  char *known;   /* what it is after the caller's renames: what the families look at */
  char *name;    /* of the tensors of the join: the pattern, plus [gate] or [up] where it is two */
  int *layers;   /* [n_layers] ascending; NULL: the name has no {layer} */
  int n_layers;
  int n_experts; /* 0: the name has no {expert} */
  int first_expert;
  int n_dims;
  int64_t shape[XFER_MAX_DIMS]; /* as the join has it */
  xfer_dtype dtype;
  int64_t offset; /* home, in elements of the checkpoint's tensor */
  int64_t strides[XFER_MAX_DIMS];
  bool fused;   /* the checkpoint's tensor holds another entry too, or has dims in another order */
  bool counted; /* the first entry of its checkpoint tensor */
  bool experts; /* dim 0 counts experts */
  bool main_layers;    /* {layer} counts the model's own layers */
  char *stem;          /* for families.c: after the prefix, without the suffix */
  const char *suffix;  /* in `pattern`, or a constant: "weight", "bias", "weight_scale_inv" or "" */
  const xfi_stem *row; /* what the families say; NULL: no rule knows it */
  int scale_of;        /* index of the weight whose scales these are; -1: they are no scales */
  int64_t block[2];    /* a weight with scales: the size of a block; 0: none */
} xfi_entry;

/* Figures of config.json; 0 where it says nothing. */
typedef struct xfi_config {
  int64_t vocab, hidden, n_layers, heads, kv_heads, head_dim;
  int64_t mamba_heads, mamba_head_dim, mamba_groups, mamba_state;
  int64_t block[2];
  bool tied;
} xfi_config;

struct xfer_model {
  atomic_int n_refs;
  atomic_bool frozen; /* a refit was made of it */
  xfi_config config;
  xfi_entry *entries;
  size_t n_entries;
  size_t entries_cap;
  int *layers; /* [n_layers] the model's own layers that are kept, ascending */
  int n_layers;
  bool has_sinks; /* gpt-oss: some local names differ */
  bool scanned;   /* layers, rows and scales are set */
};

/* What the readers hand over: one name pattern of the checkpoint as it stands there. */
typedef struct xfi_raw {
  const char *pattern; /* {layer}, {expert} allowed */
  const int *layers;
  int n_layers;
  int first_expert;
  int n_experts;
  const int64_t *shape;
  int n_dims;
  xfer_dtype dtype;
} xfi_raw;

xfer_status xfi_model_create(xfer_model **model);
xfer_model *xfi_model_share(xfer_model *model);
void xfi_model_destroy(xfer_model *model); /* one owner less */

/* Appends what `raw` stands for, cut to what `options` keep; fused weights become two entries. */
xfer_status xfi_model_append(xfer_model *model, const xfi_raw *raw,
                             const xfer_model_options *options);
/* Likewise, after numbers after "layers." and "experts." in the name were made {layer} and
 * {expert}. */
xfer_status xfi_model_append_name(xfer_model *model, const xfi_raw *raw,
                                  const xfer_model_options *options);
/* Likewise, to a finished model, which is finished again; unchanged where that fails. */
xfer_status xfi_model_add(xfer_model *model, const xfi_raw *raw);
/* "model.layers.3.mlp.experts.7.up_proj.weight": a pattern of XFI_NAME_BYTES, 3 and 7; -1: no such
 * number. */
enum { XFI_NAME_BYTES = 512 };
xfer_status xfi_name_split(char *pattern, int *layer, int *expert, const char *name);
/* After the last append: quantise, look names up in the families, pair scales with weights, check.
 */
xfer_status xfi_model_finish(xfer_model *model, const xfer_model_options *options);

/* The two readers. Each fills `model->config` and appends; neither finishes. */
xfer_status xfi_table_read(xfer_model *model, const char *path, const xfer_model_options *options);
xfer_status xfi_checkpoint_read(xfer_model *model, const char *path,
                                const xfer_model_options *options);
/* Sets the figures that the object has. `where` is for errors. */
struct json_t;
xfer_status xfi_config_read(xfi_config *config, const struct json_t *object, const char *where);
/* A dtype by its spelling in a table or in a safetensors header; false: unknown. */
bool xfi_dtype_find(xfer_dtype *dtype, const char *name);

/* "%s" with {layer}, {expert} and {local} filled in; a negative number leaves its place as it is.
 */
xfer_status xfi_name_fill(char **name, const char *pattern, int layer, int expert, int local);

/* families.c: sets row, stem and suffix of an entry. Siblings must be there already. */
void xfi_families_find(xfer_model *model, xfi_entry *entry);
/* Splits a pattern: main_layers, stem, suffix. */
xfer_status xfi_families_split(xfi_entry *entry);
/* The entry that holds `stem` (with `suffix`, unless it is NULL) in the layer, -1: outside the
 * layers, of the same stack of layers as `like`; NULL: none. */
xfi_entry *xfi_model_find(const xfer_model *model, const char *stem, const char *suffix,
                          const xfi_entry *like, int layer);
/* fused.c */
xfer_status xfi_model_split_fused(xfer_model *model, const xfer_model_options *options);
/* True: an entry of this stem has all layers of `like`. */
bool xfi_model_has(const xfer_model *model, const char *stem, const xfi_entry *like);

static inline int64_t xfi_ceil_div(int64_t a, int64_t b)
{
  return a / b + (a % b != 0);
}

#endif
