/*
 * Rules, as data: JSON files that define what the names of a model family mean and how the ranks of
 * a framework's side hold each tensor. docs/adding-a-model.md has their form. The library's own are
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
  XFI_MAX_PARTS = 8,    /* of a local tensor */
  XFI_MAX_SEGMENTS = 8, /* of the rows of a tensor */
  XFI_MAX_SUBS = 6,     /* of what repeats in a segment */
  XFI_MAX_QUANTS = 4,   /* of a side */
  XFI_MAX_WORDS = 4,    /* that layers have in the names of a model */
  XFI_ITEM_BYTES = 64   /* of the name of an item of a SPEC */
};

/* Rows that repeat: `count` times `unit` rows, which may have parts of their own. Each of these is
 * an expression. */
typedef struct xfi_segment_rule {
  const char *name;
  const char *count;
  const char *unit; /* NULL: the sum of the subs */
  int n_subs;
  const char *sub_names[XFI_MAX_SUBS];
  const char *sub_rows[XFI_MAX_SUBS];
} xfi_segment_rule;

/* A tensor name of a family, and what it means. */
typedef struct xfi_tensor_rule {
  const char *name;   /* after the family's prefix, without ".weight" and the like */
  size_t n_layer;     /* how many of its characters are "layers.{layer}." or the like; 0: none */
  const char *as;     /* the name behind that which sides use; NULL: its own */
  const char *suffix; /* NULL: any */
  const char *when;   /* an expression; NULL: always */
  const char *role;   /* NULL: it holds several weights, whose roles are in its segments */
  int n_segments;
  xfi_segment_rule segments[XFI_MAX_SEGMENTS];
  bool alternate;       /* a row of the first segment, one of the second, ...; else one by one */
  int n_dims;           /* 0: experts if any, rows, columns */
  char dims[4];         /* 'e', 'r', 'c': experts, rows, columns, as the checkpoint has them */
  const char *shape[4]; /* expressions that must hold; NULL where nothing is said */
} xfi_tensor_rule;

typedef enum xfi_cut_kind {
  XFI_CUT_NONE = 0,
  XFI_CUT_ROWS,
  XFI_CUT_COLS,
  XFI_CUT_VOCAB
} xfi_cut_kind;

/* Where a tensor outside the layers is. */
typedef enum xfi_stage {
  XFI_STAGE_FIRST = 0,
  XFI_STAGE_LAST,
  XFI_STAGE_LAST_LAYER /* that of the last layer, as the last stage may have none */
} xfi_stage;

/* The order of rotary pairs among the rows of a unit: as in the checkpoint; pairs that become
 * halves (first every other row, then those between); or halves that become pairs. */
typedef enum xfi_order { XFI_AS_IT_IS = 0, XFI_PAIRS_APART, XFI_PAIRS_TOGETHER } xfi_order;

/* If there are fewer units than ranks: an error; several ranks have the same unit, if there is only
 * one; always; or units are cut. */
typedef enum xfi_few { XFI_FEW_REFUSE = 0, XFI_FEW_ONE, XFI_FEW_REPLICATE, XFI_FEW_CUT } xfi_few;

typedef struct xfi_part_rule {
  const char *role;
  const char *take; /* a segment, or a sub of one; NULL: all rows */
  xfi_few few;
  xfi_order order;  /* of the rows of each unit */
  bool last_expert; /* in a tensor of experts it is one more expert, behind the rank's */
} xfi_part_rule;

/* A property of an entry that a rule gives as an expression; without one it is 0. */
typedef enum xfi_trait {
  XFI_GROUPS = 0, /* the parts are distributed over so many groups, and then cut as one (cuts.h) */
  XFI_WHOLE,      /* not cut, in spite of the rule's cut */
  XFI_WIDE,       /* cut over the grid `wide` in place of `dense` */
  XFI_REVERSE,
  XFI_ALTERNATE,
  XFI_TRANSPOSE,
  XFI_ABSENT,      /* the side does not have it */
  XFI_HELD,        /* the side has it even if it has none of the model's own layers */
  XFI_EVERYWHERE,  /* a tensor outside the layers is on each stage */
  XFI_BOTH_ENDS,   /* a tensor outside the layers is on the first stage and the last */
  XFI_BIAS_FIRST,  /* the bias is on the first of the ranks that cut, and zero on the others */
  XFI_LESS,        /* the side's values are the checkpoint's minus this */
  XFI_UNITS,       /* the dim that is cut has so many units, none of which is cut; 0: see `even` */
  XFI_UNITS_ROOM,  /* each rank has room for a multiple of so many units */
  XFI_ACROSS,      /* the dim that is not cut has so many units, */
  XFI_ACROSS_ROOM, /* and room for a multiple of so many */
  XFI_MULTIPLE, /* a rank's rows all together have room for a multiple of this; 0: no more room */
  XFI_N_TRAITS
} xfi_trait;

/* A local tensor of a side. */
typedef struct xfi_local_rule {
  const char *local; /* its name; see naming.c */
  int n_parts;
  xfi_part_rule parts[XFI_MAX_PARTS];
  const struct json_t *with, *without; /* roles that the layer must have, or not; NULL: none */
  const char *when;                    /* NULL: always */
  const char *traits[XFI_N_TRAITS];
  xfi_cut_kind cut;
  xfi_stage stage;
  const char *last_name; /* on the last stage of several */
  bool hook;
  const char *made; /* the name of what the framework makes of the rank's share */
  int made_dtype;
  int dtype;           /* of its elements; 0: the checkpoint's */
  bool unscaled;       /* not quantised, without scales, also if the model has it in fp8 */
  const char *refusal; /* "says": instead of a tensor, the reason why there is none */
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
  const char *layers,
      *extra; /* {block} in the model's own layers, and in extra ones; NULL: the side's */
  const struct json_t *set;     /* names and expressions; NULL: none */
  const struct json_t *require; /* [[expression, sentence], ..] */
  const struct json_t
      *unquantised; /* "left": roles that the side's quant= does not quantise; NULL: none */
  xfi_local_rule *locals;
  size_t n_locals;
} xfi_family_side;

typedef struct xfi_family {
  const xfi_doc *doc;
  const char *name;
  const struct json_t *include, *model_types, *recognise, *config, *prefixes, *scaled;
  const struct json_t *counts; /* words, each of how many layers an expression holds */
  const struct json_t *where;  /* roles, each of the layers for which an expression holds */
  xfi_tensor_rule *tensors;
  size_t n_tensors;
  const char *words[XFI_MAX_WORDS]; /* what layers are called: names that begin so */
  int n_words;
  xfi_family_side *sides;
  size_t n_sides;
} xfi_family;

typedef enum xfi_axis_use { XFI_AXIS_CUT, XFI_AXIS_EXPERTS, XFI_AXIS_FSDP } xfi_axis_use;

enum { XFI_MAX_AXES = 6 };

/* One of the grids over the ranks of a stage: its axes, the one that varies fastest first, at most
 * one for each use. Ranks beyond their product are replicas. */
typedef struct xfi_grid_rule {
  int n_axes;
  const char *names[XFI_MAX_AXES], *sizes[XFI_MAX_AXES];
  xfi_axis_use uses[XFI_MAX_AXES];
} xfi_grid_rule;

/* Where layers go that do not divide by the stages: an error; to the last stages; to those before
 * the last; or, once embedding and output layer count as a layer of their stage, to the first. */
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
  xfi_grid_rule ranks;      /* of all ranks, for their number */
  const char *stage;        /* which of its axes counts pipeline stages; NULL: none */
  const char *chunks;       /* how many parts of the model a stage has; NULL: one */
  const char *chunk_prefix; /* before a chunk's number in the names of several */
  xfi_grid_rule dense, wide, experts;
  bool even;                    /* sizes must divide; else dims are cut as by torch.chunk */
  xfi_spare spare_layers;       /* where layers go that do not divide by the stages */
  bool takes_layers, takes_map; /* items layers= and map= */
  bool stage_numbers;           /* layers count from 0 in each stage */
  xfer_split_rule expert_cut;
  const char *round_robin;            /* an expression; NULL: never */
  const char *vocab;                  /* the vocabulary is padded to a multiple; NULL: not */
  const char *block_main, *block_mtp; /* what {block} stands for */
  const char *absent_main,
      *absent_mtp;           /* the model's own layers, or its extra ones, are not held */
  const char *holds_unknown; /* tensors of no rule are held whole */
  const struct json_t *spellings, *tied_names;
  int row_scales; /* the element type of scales of rows and of whole weights; 0: there are none */
  int n_quants;
  xfi_quant_rule quants[XFI_MAX_QUANTS];
  xfi_local_rule *first; /* [n_first] these come before the rules of families */
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

/* The library's own: those of all sides. */
xfer_status xfi_rules_sides(xfer_rules **rules);
/* Those of the families that a model of one of the two types may be of, and of what they include;
 * of all families, where both types are empty. */
xfer_status xfi_rules_families(xfer_rules **rules, const char *type, const char *other);
/* All of them, and a folder's. */
xfer_status xfi_rules_load(xfer_rules **rules, const char *folder);
xfer_rules *xfi_rules_share(const xfer_rules *rules);
void xfi_rules_destroy(xfer_rules *rules);

/* rules_read.c: reads one file, whose families and sides replace earlier ones of the same names. */
xfer_status xfi_rules_add(xfer_rules *rules, const xfi_doc *doc);

const xfi_family *xfi_rules_family(const xfer_rules *rules, const char *name);
const xfi_side_rules *xfi_rules_side(const xfer_rules *rules, const char *name, size_t n_chars);

/* Fails with the first sentence of a "require" whose expression is false, after the formatted text.
 */
__attribute__((format(printf, 4, 5))) xfer_status xfi_rules_require(const struct json_t *list,
                                                                    const xfi_scope *scope,
                                                                    xfer_status refusal,
                                                                    const char *who, ...);

/* A family and all that it includes, itself first. */
enum { XFI_MAX_INCLUDES = 16 };
int xfi_family_all(const xfer_rules *rules, const xfi_family *family,
                   const xfi_family *all[XFI_MAX_INCLUDES]);

/* rules_data.c, made at build time: each file, ended by NULL. */
typedef struct xfi_rules_file {
  const char *name;
  const char *family; /* what it is of, and called after; NULL: a side's */
  const char *text;
} xfi_rules_file;
extern const xfi_rules_file XFI_RULES_FILES[];

#endif
