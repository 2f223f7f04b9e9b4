/*
 * Rules, as data: JSON files that define what the names of a model family mean and how the ranks of
 * a framework's side hold each tensor. docs/rules.md has their form. The library's own are
 * compiled in; a caller's folder adds to them.
 *
 * A family gives each of its tensors a *role*, such as "attn.q", and describes its rows. A side
 * defines by roles what its local tensors hold and how they are cut. So families and sides are
 * independent of each other; exceptions for one framework are in the family's file under "sides".
 */
#ifndef XFI_RULES_H
#define XFI_RULES_H

#include <stdatomic.h>

#include "doc.h"
#include "expr.h"
#include "xfer/refit.h"

enum {
  XFI_MAX_PARTS = 8,       /* of a local tensor */
  XFI_MAX_SEGMENTS = 8,    /* of the rows of a tensor */
  XFI_MAX_SUBS = 6,        /* of what repeats in a segment */
  XFI_MAX_QUANTS = 4,      /* of a side */
  XFI_MAX_LAYER_WORDS = 4, /* that layers have in the names of a model */
  XFI_ITEM_BYTES = 64      /* of the name of an item of a SPEC */
};

/* Rows that repeat: `count` times `unit` rows, which may have parts of their own. Each of these is
 * an expression. */
typedef struct xfi_segment_rule {
  const struct json_t *at; /* where it is in its file */
  const char *name;
  const char *count;
  const char *unit; /* NULL: the sum of the subs */
  int n_subs;
  const char *sub_names[XFI_MAX_SUBS];
  const char *sub_rows[XFI_MAX_SUBS];
} xfi_segment_rule;

/* A tensor name of a family, and what it means. */
typedef struct xfi_tensor_rule {
  const struct json_t *at; /* where it is in its file */
  const char *name;        /* after the family's prefix, without ".weight" and the like */
  size_t n_layer;          /* the length of its "layers.{layer}." or the like; 0: none */
  const char *alias;       /* the name after the layer that sides use; NULL: its own */
  const char *suffix;      /* NULL: any */
  const char *when;        /* an expression; NULL: always */
  const char *role;        /* NULL: it holds several weights, whose roles are in its segments */
  int n_segments;
  xfi_segment_rule segments[XFI_MAX_SEGMENTS];
  bool alternate;       /* rows alternate between segments; else segments follow each other */
  int n_dims;           /* 0: experts if any, rows, columns */
  char dims[4];         /* 'e', 'r', 'c': experts, rows, columns, as the checkpoint has them */
  const char *shape[4]; /* expressions that must hold; NULL: any size */
} xfi_tensor_rule;

typedef enum xfi_cut_kind {
  XFI_CUT_NONE = 0,
  XFI_CUT_ROWS,
  XFI_CUT_COLS,
  XFI_CUT_VOCAB
} xfi_cut_kind;

/* The pipeline stage of a tensor that is outside the layers. */
typedef enum xfi_stage {
  XFI_STAGE_FIRST = 0,
  XFI_STAGE_LAST,
  XFI_STAGE_LAST_LAYER /* that of the last layer, as the last stage may have none */
} xfi_stage;

/* The order of rotary pairs among the rows of a unit: as in the checkpoint; pairs become halves
 * (first every other row, then those between); or halves become pairs. */
typedef enum xfi_order { XFI_AS_IT_IS = 0, XFI_PAIRS_APART, XFI_PAIRS_TOGETHER } xfi_order;

/* What to do if there are fewer units than ranks: refuse; let the ranks share a single unit, and
 * refuse several; let several ranks have the same unit; or cut units. */
typedef enum xfi_few_units {
  XFI_FEW_REFUSE = 0,
  XFI_FEW_ONE,
  XFI_FEW_REPLICATE,
  XFI_FEW_CUT
} xfi_few_units;

typedef struct xfi_part_rule {
  const char *role;
  const char *take;        /* a segment, or a sub of one; NULL: all rows */
  const struct json_t *at; /* where the part is in its file */
  xfi_few_units few;
  xfi_order order;  /* of the rows of each unit */
  bool last_expert; /* it is one more expert, behind the rank's own experts */
} xfi_part_rule;

/* A property of an entry, which a rule gives as an expression. Without one it is 0. */
typedef enum xfi_property {
  XFI_GROUPS = 0, /* number of groups over which the parts are distributed before they are cut as
                     one (fused_rows.h) */
  XFI_WHOLE,      /* 1: not cut, although the rule has a cut */
  XFI_WIDE,       /* 1: cut over the grid `wide` instead of `dense` */
  XFI_REVERSE,
  XFI_ALTERNATE,
  XFI_TRANSPOSE,
  XFI_ABSENT,          /* the side does not have it */
  XFI_NEEDS_NO_LAYERS, /* the side has it even if it has none of the model's own layers */
  XFI_EVERYWHERE,      /* a tensor outside the layers is on each stage */
  XFI_BOTH_ENDS,       /* a tensor outside the layers is on the first stage and the last */
  XFI_BIAS_FIRST,      /* the bias is on the first of the ranks that cut, and zero on the others */
  XFI_SUBTRACT,        /* the side's values are the checkpoint's minus this */
  XFI_UNITS,           /* number of units of the cut dim, none of which is cut; 0: see `even` */
  XFI_UNITS_ROOM,      /* each rank's part is padded to a multiple of this many units */
  XFI_ACROSS,          /* number of units of the dim that is not cut */
  XFI_ACROSS_ROOM,     /* that dim is padded to a multiple of this many units */
  XFI_MULTIPLE, /* all rows of a rank together are padded to a multiple of this; 0: no padding */
  XFI_N_PROPERTIES
} xfi_property;

/* A local tensor of a side. */
typedef struct xfi_local_rule {
  const char *local; /* its name; see param_mapping.c */
  int n_parts;
  xfi_part_rule parts[XFI_MAX_PARTS];
  const struct json_t *with, *without; /* roles that the layer must have, or not; NULL: none */
  const struct json_t
      *when; /* an expression, or a list of those that must all hold; NULL: always */
  const char *properties[XFI_N_PROPERTIES];
  xfi_cut_kind cut;
  xfi_stage stage;
  const char *last_name; /* on the last stage of several */
  bool hook;
  const char *made; /* the name of the tensor that the framework computes from the rank's share */
  int made_dtype;
  int dtype;           /* element type; 0: the checkpoint's */
  bool unscaled;       /* not quantised and without scales, even if the model has it in fp8 */
  const char *refusal; /* why the side has no such tensor */
} xfi_local_rule;

/* A way to quantise weights: to f8e4m3 by blocks, with a tensor of scales beside each. */
typedef struct xfi_quant_rule {
  const char *name;
  const char *block[2]; /* expressions: rows and columns */
  const char *scales;   /* their suffix, where the weight has "weight" */
  int dtype;            /* of scales: f32, or f8e8m0 as in MXFP8 */
} xfi_quant_rule;

/* A family's rules for one side. */
typedef struct xfi_family_side {
  const char *side;
  const char *layer_prefix, *extra_layer_prefix; /* NULL: the side's */
  const struct json_t *set;                      /* names and expressions; NULL: none */
  const struct json_t *require;                  /* [[expression, sentence], ..] */
  const struct json_t *unquantised; /* roles that quant= leaves unquantised; NULL: none */
  xfi_local_rule *locals;
  size_t n_locals;
} xfi_family_side;

typedef struct xfi_family {
  const xfi_doc *doc;
  const char *name;
  const struct json_t *include, *model_types, *recognise, *config, *prefixes, *scaled;
  const struct json_t *counts; /* words, each the number of layers for which an expression holds */
  const struct json_t *where;  /* roles that are only in the layers for which an expression holds */
  const struct json_t *needs;  /* roles that those layers, or models, cannot lack */
  const struct json_t *sizes;  /* the rows and columns of roles */
  xfi_tensor_rule *tensors;
  size_t n_tensors;
  const char
      *layer_words[XFI_MAX_LAYER_WORDS]; /* what layers are called at the beginning of names */
  int n_layer_words;
  xfi_family_side *sides;
  size_t n_sides;
} xfi_family;

typedef enum xfi_axis_use { XFI_AXIS_CUT, XFI_AXIS_EXPERTS, XFI_AXIS_FSDP } xfi_axis_use;

enum { XFI_MAX_AXES = 6 };

/* A grid over the ranks of a stage. The axis that varies fastest comes first, and there is at most
 * one for each use. If there are more ranks than the product of the sizes, they are replicas. */
typedef struct xfi_grid_rule {
  int n_axes;
  const char *names[XFI_MAX_AXES], *sizes[XFI_MAX_AXES];
  xfi_axis_use uses[XFI_MAX_AXES];
} xfi_grid_rule;

/* Where the remainder goes if the stages do not divide the layers: it is refused; to the last
 * stages; to those before the last; or to the first, with embedding and output layer counted as a
 * layer of their stage. */
typedef enum xfi_spare {
  XFI_SPARE_NONE = 0,
  XFI_SPARE_LAST,
  XFI_SPARE_INNER,
  XFI_SPARE_FIRST
} xfi_spare;

typedef struct xfi_side_rules {
  const xfi_doc *doc;
  const char *name;
  const struct json_t *numbers, *choices, *flags; /* items of a SPEC */
  const struct json_t *require;
  xfi_grid_rule ranks;      /* over all ranks; it gives their number */
  const char *stage;        /* the name of the axis of pipeline stages; NULL: none */
  const char *chunks;       /* how many parts of the model a stage has; NULL: one */
  const char *chunk_prefix; /* before a chunk's number in the names of several */
  xfi_grid_rule dense, wide, experts;
  bool even;                    /* ranks must divide sizes; else dims are cut as by torch.chunk */
  xfi_spare spare_layers;       /* where remaining layers go */
  bool takes_layers, takes_map; /* items layers= and map= */
  bool stage_numbers;           /* layers count from 0 in each stage */
  xfer_split_rule expert_cut;
  const char *expert_fsdp_dim; /* of a local tensor with experts, FSDP cuts this dim; NULL: 0 */
  const char *round_robin;     /* an expression; NULL: never */
  const char *vocab;           /* the vocabulary is padded to a multiple of this; NULL: it is not */
  /* what {layer_prefix} stands for in the names of tensors in the model's own layers and in its
   * extra ones; NULL: nothing */
  const char *layer_prefix, *extra_layer_prefix;
  /* expressions: does the side lack the model's own layers, or its extra ones? NULL: no */
  const char *absent_layers, *absent_extra_layers;
  const char *holds_unknown; /* tensors without a rule are held whole */
  const struct json_t *spellings, *tied_names;
  int row_scales; /* the element type of scales of rows and of whole weights; 0: there are none */
  int n_quants;
  xfi_quant_rule quants[XFI_MAX_QUANTS];
  xfi_local_rule *first; /* [n_first] these take precedence over the rules of families */
  xfi_local_rule *locals;
  size_t n_first, n_locals;
} xfi_side_rules;

struct xfer_rules {
  atomic_int n_refs;
  xfi_doc **docs;
  size_t n_docs, docs_cap;
  xfi_family *families;
  size_t n_families, families_cap;
  xfi_side_rules *sides;
  size_t n_sides, sides_cap;
};

/* The library's own rules of all sides. */
xfer_status xfi_rules_sides(xfer_rules **rules);
/* The library's rules of the families that models of the two types may belong to, and of the
 * families that those include. If both types are empty, of all families. */
xfer_status xfi_rules_families(xfer_rules **rules, const char *type, const char *other);
/* All of the library's rules, and those of a folder. */
xfer_status xfi_rules_load(xfer_rules **rules, const char *folder);
xfer_rules *xfi_rules_share(const xfer_rules *rules);
void xfi_rules_destroy(xfer_rules *rules);

/* rules_read.c: reads one file, whose families and sides replace earlier ones of the same names. */
xfer_status xfi_rules_add(xfer_rules *rules, const xfi_doc *doc);

/* rules_check.c: does all that the rules name exist? */
xfer_status xfi_rules_check(const xfer_rules *rules);

const xfi_family *xfi_rules_family(const xfer_rules *rules, const char *name);
/* What a family says of a side; NULL: nothing. */
const xfi_family_side *xfi_family_side_find(const xfi_family *family, const char *side);
const xfi_side_rules *xfi_rules_side(const xfer_rules *rules, const char *name, size_t n_chars);

/* xfi_expr_eval() of an expression in the rules; the text of an error begins with its file and
 * line. */
xfer_status xfi_rules_eval(int64_t *value, const xfer_rules *rules, const char *expr,
                           const xfi_scope *scope);
/* Puts the file and the line of an expression before the last error, and returns whether it is in
 * these rules. */
bool xfi_rules_locate_error(const xfer_rules *rules, const char *expr);

/* Fails with the first sentence of a "require" whose expression is false, after the formatted text.
 */
__attribute__((format(printf, 5, 6))) xfer_status
xfi_rules_require(const xfer_rules *rules, const struct json_t *list, const xfi_scope *scope,
                  xfer_status refusal, const char *who, ...);

/* The family itself and all that it includes. */
enum { XFI_MAX_INCLUDES = 16 };
int xfi_family_with_included(const xfer_rules *rules, const xfi_family *family,
                             const xfi_family *all[XFI_MAX_INCLUDES]);

/* rules_data.c, made at build time: each file, ended by NULL. */
typedef struct xfi_rules_file {
  const char *name;
  const char *family; /* the family that it defines; NULL: it defines a side */
  const char *text;
} xfi_rules_file;
extern const xfi_rules_file XFI_RULES_FILES[];

#endif
