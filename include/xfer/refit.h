/**
 * @file refit.h
 * Whole models: move the weights of a training job into the engines that serve them.
 *
 * A refit joins two descriptions of one model. The *model* is a table of tensors, by their names in
 * a Hugging Face checkpoint. A *side* is described by a short SPEC such as "megatron:tp2,pp2" or
 * "vllm:tp4": it says how a framework distributes each tensor over its ranks, and in which of its
 * own tensors the parts lie. The join gives the list for xfer_plan_create() and, for any rank, the
 * names and shapes of the framework's local tensors that the caller must hand in. If tensors do not
 * join, the call fails with an error that lists them; the library guesses nothing and skips nothing
 * silently. docs/refit.md describes the SPECs and the rules.
 *
 * Conventions are those of xfer.h. Models, sides and refits do not change once a refit was made of
 * them; any number of threads may then read them.
 */
#ifndef XFER_REFIT_H
#define XFER_REFIT_H

#include <xfer/xfer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- rules -------------------------------------------------------------------------------- */

/** What the library knows about model families and about the frameworks that hold them. */
typedef struct xfer_rules xfer_rules;

/**
 * Read rules: the library's own, and those of a folder, which replace the library's of the same
 * name.
 *
 * @param rules   Receives the rules; the caller owns them. They may be destroyed once models and
 *                sides were made with them.
 * @param folder  The call reads its *.json files; docs/rules.md describes their form.
 * @retval XFER_ERR_IO  Unreadable or malformed; the text names file and line.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_rules_load(xfer_rules **rules, const char *folder);
/** Destroy rules; NULL is fine. */
XFER_API void xfer_rules_destroy(xfer_rules *rules);

/* ---- the model ---------------------------------------------------------------------------- */

/** The tensors of a model: name, shape and element type of each. */
typedef struct xfer_model xfer_model;

/** Which tensors of the table to keep. Start from XFER_MODEL_OPTIONS_INIT. */
typedef struct xfer_model_options {
  size_t struct_size;    /**< Set by XFER_MODEL_OPTIONS_INIT. */
  int32_t layers_begin;  /**< First layer to keep; above 0 only with an end. */
  int32_t layers_end;    /**< One past the last layer to keep; 0: all layers. */
  int32_t experts_begin; /**< First routed expert to keep; above 0 only with an end. */
  int32_t experts_end;   /**< One past the last expert to keep; 0: all experts. */
  int32_t ends;          /**< 1: with a range of layers, keep the tensors outside the layers too. */
  uint32_t reserved;     /**< Must be 0; else XFER_ERR_UNSUPPORTED. */
  const char *extra; /**< Name of a list under "extra_params" to add, such as "mtp"; NULL: none. */
  const char *const *renames; /**< [2 n_renames] Pairs (from, to): the rules know names that match
                                 `from` as `to`, as in xfer_side_rename(), such as "thinker.*", "*".
                                 The tensors keep their names. */
  int64_t n_renames;          /**< Number of pairs; 0: none. Each must match something. */
  const xfer_rules *rules;    /**< Rules; NULL: the library's own. */
} xfer_model_options;
#define XFER_MODEL_OPTIONS_INIT                                                                    \
  {                                                                                                \
    sizeof(xfer_model_options), 0, 0, 0, 0, 0, 0, NULL, NULL, 0, NULL                              \
  }

/**
 * Read a model table.
 *
 * @param model    Receives the model; the caller owns it.
 * @param path     The file of a table ("format": "xfer-model-v1"), or the folder of a Hugging Face
 * checkpoint. Of a folder the call reads config.json and the headers of the *.safetensors files
 * that its index names, else of model.safetensors, else of all such files. It reads no weights.
 * Short names such as "qwen3-4b" are for the programs and Python; the installed tables are
 * PREFIX/share/xfer/models/NAME.json.
 * @param options  NULL: everything.
 * @retval XFER_ERR_IO   Unreadable or malformed; the text gives the place.
 * @retval XFER_ERR_ARG  An option is wrong, or keeps nothing.
 * @retval XFER_ERR_UNSUPPORTED  This library does not support it: a name with more numbers in it
 *                               than a layer and an expert, or a range of experts that the
 *                               checkpoint has in one tensor.
 * @retval XFER_ERR_OVERFLOW  A tensor's bytes do not fit in 62 bits.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_model_load(xfer_model **model, const char *path,
                                                     const xfer_model_options *options);
/** Destroy a model; NULL is fine. */
XFER_API void xfer_model_destroy(xfer_model *model);

/**
 * Add a tensor that the table lacks, such as a buffer or a KV scale. Call it before the first
 * refit.
 *
 * @param model   The model.
 * @param name    The tensor's name; the sides' rules apply to it as to all other names.
 * @param dtype   The type of its elements.
 * @param shape   [n_dims] Sizes; NULL with n_dims 0: a scalar.
 * @param n_dims  0 to XFER_MAX_DIMS.
 * @retval XFER_ERR_ARG    The table already has that name, the name is empty or a pattern, the
 *                         dtype is unknown, or a size is negative. This and any other error leave
 *                         the model unchanged.
 * @retval XFER_ERR_UNSUPPORTED  A name with more numbers than this library supports.
 * @retval XFER_ERR_OVERFLOW  Its bytes do not fit in 62 bits.
 * @retval XFER_ERR_STATE  A refit was made of the model.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_model_add(xfer_model *model, const char *name,
                                                    xfer_dtype dtype, const int64_t *shape,
                                                    int n_dims);

/* ---- the two sides ------------------------------------------------------------------------ */

/** How one framework holds a model. */
typedef struct xfer_side xfer_side;

/** Options of a side. Start from XFER_SIDE_OPTIONS_INIT. */
typedef struct xfer_side_options {
  size_t struct_size; /**< Set by XFER_SIDE_OPTIONS_INIT. */
  int32_t first_rank; /**< The side's ranks are first_rank, first_rank + 1, ... */
  int32_t partial; /**< 1: of weights that lie in one tensor, some may be ignored; a run leaves the
                      elements of the ignored ones unchanged. */
  int32_t strict;  /**< 1: a pattern of xfer_side_ignore() must match a tensor of the model. */
  uint32_t reserved;          /**< Must be 0; else XFER_ERR_UNSUPPORTED. */
  const int32_t *map_experts; /**< [map_first[n_map]] Expert map: the experts that each
                                 expert-parallel rank holds, in local order; an expert may occur
                                 again (redundant experts). NULL: the SPEC's rule, else linear. */
  const int32_t *map_first;   /**< [n_map + 1] Where each rank's list begins in map_experts. */
  int64_t n_map;              /**< Number of lists, the SPEC's ep; 0: no map. */
  const int32_t *ranks; /**< [n_ranks] The side's ranks, in its own order, instead of first_rank.
                             NULL: first_rank and on. */
  int64_t n_ranks;      /**< Number of ranks, as many as the side has; 0: see `ranks`. */
  const char *const *item_names; /**< [n_items] Items in addition to those of the SPEC: "tp", a flag
                                    such as "loaded", or a choice such as "experts=stacked". A name
                                    that contains its number, such as "tp2", is an error. */
  const int32_t *item_values;    /**< [n_items] The items' numbers; a flag has 1, a choice none. */
  int64_t n_items;               /**< Number of items. */
  const xfer_rules *rules;       /**< Rules; NULL: the library's own. */
} xfer_side_options;
#define XFER_SIDE_OPTIONS_INIT                                                                     \
  {                                                                                                \
    sizeof(xfer_side_options), 0, 0, 0, 0, NULL, NULL, 0, NULL, 0, NULL, NULL, 0, NULL             \
  }

/**
 * Describe a side.
 *
 * @param side     Receives the side; the caller owns it.
 * @param spec     "megatron:", "fsdp:", "full", "torchtitan:", "vllm:", "sglang:" or "hf:" with its
 * items; docs/refit.md.
 * @param options  NULL: all defaults.
 * @retval XFER_ERR_ARG  The SPEC has an unknown, repeated or impossible item; a vLLM side does not
 *                       say how its kernels changed the weights; or an option contradicts the SPEC
 *                       or another option.
 * @retval XFER_ERR_IO        A file of map= is unreadable or malformed.
 * @retval XFER_ERR_OVERFLOW  More than 2^24 ranks.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_side_create(xfer_side **side, const char *spec,
                                                      const xfer_side_options *options);
/** Destroy a side; NULL is fine. */
XFER_API void xfer_side_destroy(xfer_side *side);
/** How many ranks the side has. */
XFER_API int xfer_side_size(const xfer_side *side);

/**
 * A rank's coordinate on an axis of the side: of all its ranks, or of those of a pipeline stage,
 * which have axes of their own for experts.
 *
 * @param side        The side.
 * @param axis        Its name, such as "tp", "pp" or "ep". Which axes there are depends on the
 *                    framework; an error lists them.
 * @param rank        A rank of the side.
 * @param coordinate  Receives the coordinate.
 * @retval XFER_ERR_ARG  The side has no such axis, or no such rank.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_side_coordinate(const xfer_side *side, const char *axis,
                                                          int rank, int *coordinate);

/**
 * Rename the framework's tensors: the rules know names that match `from` as `to`. Each `*` stands
 * for any text, and the n-th `*` of `to` stands for the text that the n-th of `from` matched.
 * Renames apply in the order in which they were given, each to the result of the previous one; two
 * names that become the same are an error. For example "base_model.model.*" -> "*", then
 * "*.base_layer.*" -> "*.*".
 *
 * This and the functions below return XFER_ERR_ARG for an invalid pattern, and XFER_ERR_STATE once
 * a refit was made of the side. Strings are copied.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_side_rename(xfer_side *side, const char *from,
                                                      const char *to);

/** Ignore names that are not weights: the library counts them and does nothing else with them. "*"
 * stands for any text. The pattern applies both to the table's names and to those that are handed
 * in; a needed tensor that it leaves out is missing. The library always ignores names that contain
 * `_extra_state`, and tensors without elements. Scales of weights that are quantised on the way can
 * only be ignored together with their weights. */
XFER_API XFER_MUST_CHECK xfer_status xfer_side_ignore(xfer_side *side, const char *pattern);

/**
 * Say how the side holds the tensors whose table names match `pattern`, instead of its rules: for
 * parts of a model that the rules do not cover, such as a vision tower.
 *
 * @param side     The side.
 * @param pattern  "*" stands for any text.
 * @param dim      The dim that tensor parallelism splits evenly; negative: every rank of the
 * model's replica has it whole. The local tensor has the table's name.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_side_place(xfer_side *side, const char *pattern, int dim);

/**
 * Say that one rank of a training side hands in the tensors that match `pattern` whole, under the
 * table's names. It is the source of misc tensors, whose layout no rule describes. A refit refuses
 * a generation side with such a rank.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_side_give_whole(xfer_side *side, const char *pattern,
                                                          int rank);

/** Say that the side holds the tensors that match `pattern` in another element type than the table,
 * as vLLM holds the router of GLM-4.5 in f32. If the sides then differ, xfer_refit_tensors() has a
 * conversion; if none exists for the two types, the refit fails and names the tensor. If the
 * model's weights are f8e4m3 with block scales, and the type of the training side is bf16 or f32
 * ("*" is enough), the plan quantises them on the way: it computes their scales, and the training
 * side has none. For a side whose SPEC has quant= this says which weights are not quantised. A rank
 * that knows only one side cannot know of this, so all ranks must know both.
 *
 * `dtype` (xfer_dtype)0: elements as in the table, or quantised as quant= of the side's SPEC says,
 * whatever the side's rules say about their type and values. */
XFER_API XFER_MUST_CHECK xfer_status xfer_side_dtype(xfer_side *side, const char *pattern,
                                                     xfer_dtype dtype);

/* ---- the join ----------------------------------------------------------------------------- */

/** Two sides of one model, joined. */
typedef struct xfer_refit xfer_refit;

/**
 * Join two sides.
 *
 * @param refit  Receives the refit; the caller owns it. The model and the sides may be destroyed.
 * @param model  The model.
 * @param train  Where the weights come from; NULL: this rank does not know it.
 * @param gen    Where the weights go; NULL: this rank does not know it. The list of tensors must
 *               then not depend on it: if one side has tensors that the other lacks, such as the
 *               layers of a draft model or the head of a tied one, all ranks must know both sides,
 *               or ignore these tensors.
 * @retval XFER_ERR_ARG          Both are NULL, a pattern given to a side matches nothing or does
 *                               not apply, or nothing is left to refit; the text quotes the
 *                               pattern.
 * @retval XFER_ERR_UNSUPPORTED  Tensors that no rule covers and no call declares; the text gives
 *                               the first and their number. Or a cut that the framework would
 *                               refuse.
 * @retval XFER_ERR_MISMATCH     The sides hold a tensor in different element types or blocks.
 * @retval XFER_ERR_SHAPE        A shape does not fit the model's configuration or the SPEC.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_refit_create(xfer_refit **refit, xfer_model *model,
                                                       const xfer_side *train,
                                                       const xfer_side *gen);
/** Destroy a refit; NULL is fine. Plans made of its tensors stay valid. */
XFER_API void xfer_refit_destroy(xfer_refit *refit);

/** The tensors for xfer_plan_create() and xfer_plan_simulate(): [n_tensors], owned by the refit;
 * none for NULL. */
XFER_API const xfer_tensor *xfer_refit_tensors(const xfer_refit *refit, size_t *n_tensors);
/** How many ranks a comm must have: one more than the highest rank of either side. */
XFER_API int xfer_refit_ranks(const xfer_refit *refit);

/** The place of a tensor of the join in the table. */
typedef struct xfer_refit_tensor {
  const char *hf;    /**< The table's name; for experts that the table lists one by one with
                          "{expert}" in place of the number. */
  int32_t n_experts; /**< Experts listed one by one: they are dim 0 here. 0: the table's tensor has
                          all dims. */
  int32_t first_expert; /**< The number of the expert at index 0. */
  int64_t offset;       /**< Where this tensor's element 0 lies in the table's (row-major). */
  int64_t strides[XFER_MAX_DIMS]; /**< Strides in elements of the table's tensor; 0 for experts. */
  int32_t n_dims;                 /**< Number of dims of this tensor. */
  int32_t half_dim; /**< The table's tensor holds several weights, and this is one of them: index x
                         of this dim is half_first + half_step * x there. -1: it is the whole. */
  int64_t half_first; /**< See half_dim. */
  int64_t half_step;  /**< See half_dim. */
  int32_t layer;      /**< Number of the layer; -1: outside the layers. */
  int32_t misc;       /**< 1: the engine has no such tensor; a named buffer or the callback takes
                           it. */
  int32_t hook;       /**< 1: the engine computes other values from it after loading. */
} xfer_refit_tensor;

/** The i-th tensor of xfer_refit_tensors(). @retval XFER_ERR_ARG No such tensor. */
XFER_API XFER_MUST_CHECK xfer_status xfer_refit_tensor_get(const xfer_refit *refit, size_t i,
                                                           xfer_refit_tensor *tensor);

/** Figures of a join. Start from XFER_REFIT_REPORT_INIT. */
typedef struct xfer_refit_report_data {
  size_t struct_size;     /**< Set by XFER_REFIT_REPORT_INIT. */
  uint64_t hf_tensors;    /**< Tensors of the table, as a checkpoint counts them. */
  uint64_t tensors;       /**< Tensors of the plan. */
  uint64_t payload_bytes; /**< Bytes of all tensors of the table, each counted once. */
  uint64_t ruled_bytes;   /**< Those of payload_bytes that a rule of the generation side places. */
  uint64_t misc_bytes; /**< Those of payload_bytes for a named buffer or a callback: whole, or the
                            rank's share if the engine computes other values from it. */
  uint64_t delivered_bytes; /**< Bytes of all ranks' generation-local tensors, padding included. */
  uint64_t hooks;           /**< Tensors from which the engine's values must be computed. */
  uint64_t ignored;       /**< Tensors of the table that a declared pattern ignores, or that a side
                               is known not to hold (extra layers in a serving engine). */
  uint64_t duplicates;    /**< Tensors held under a second name, as tied embeddings are. */
  uint64_t largest_bytes; /**< Bytes of the largest tensor of the plan. */
} xfer_refit_report_data;
#define XFER_REFIT_REPORT_INIT                                                                     \
  {                                                                                                \
    sizeof(xfer_refit_report_data), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                   \
  }

/** Fill the fields of `report` that its struct_size covers. */
XFER_API XFER_MUST_CHECK xfer_status xfer_refit_report(const xfer_refit *refit,
                                                       xfer_refit_report_data *report);

/* ---- the local tensors of a rank ------------------------------------------------------------ */

/** The framework's tensors of one rank, and the address of each once it was handed in. */
typedef struct xfer_locals xfer_locals;

/** The side that a local tensor belongs to. */
typedef enum xfer_refit_side { XFER_REFIT_TRAIN = 0, XFER_REFIT_GEN = 1 } xfer_refit_side;

/** One tensor as the framework has it. */
typedef struct xfer_local {
  const char *name;             /**< The tensor's name in the framework. */
  int32_t side;                 /**< xfer_refit_side */
  int32_t dtype;                /**< xfer_dtype */
  int32_t n_dims;               /**< Number of dims of the tensor. */
  int32_t n_parts;              /**< Tensors of the join that lie in it. */
  int64_t shape[XFER_MAX_DIMS]; /**< [n_dims] Sizes of the tensor. */
  int32_t dims[XFER_MAX_DIMS];  /**< [n_dims] For each dim, the corresponding dim of its tensors. */
  int32_t expert;               /**< The table's number of the one expert in it; -1: it is not of
                                     one expert. */
  int32_t misc;                 /**< 1: not a tensor of the framework; if it is not handed in, the
                                     callback takes it. */
  const char *made;             /**< For misc: the tensor that the framework computes from it; NULL:
                                     none. */
  int32_t made_dtype;           /**< Element type of `made`, whose shape is the same. */
  uint32_t reserved;            /**< 0. */
} xfer_local;

/** A tensor's part inside a local tensor: rows [begin, end) of `dim` there. If a tensor has fewer
 * dims than the local tensor, it is one more expert, at the last index of the local tensor's dim 0;
 * its own dims are the local tensor's dims 1, 2, ...
 */
typedef struct xfer_local_part {
  uint64_t tensor;    /**< Index in xfer_refit_tensors(). */
  int32_t dim;        /**< Dim of the local tensor. */
  int32_t tensor_dim; /**< The same dim in the tensor of the join. */
  int64_t begin;      /**< First row of the range. */
  int64_t end;        /**< End of the range; with `step` 2 its rows are begin, begin + 2, ... */
  int64_t step;       /**< Distance of the rows; 1: every row between. */
  int64_t first;      /**< The row of the tensor's local part that lies at `begin`. */
} xfer_local_part;

/**
 * List the tensors that a rank must hand in, for the sides that this process knows.
 *
 * @param locals  Receives the list; the caller owns it.
 * @param refit   Outlives the list.
 * @param rank    A rank of the comm. A rank in neither side has no local tensors.
 * @retval XFER_ERR_ARG       A negative rank.
 * @retval XFER_ERR_SHAPE     A part does not fit the framework's tensors as the rules describe
 *                            them.
 * @retval XFER_ERR_OVERFLOW  A local tensor's bytes do not fit in memory's addresses.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_locals_create(xfer_locals **locals,
                                                        const xfer_refit *refit, int rank);
/** Destroy a list; NULL is fine. Plans keep what was bound. */
XFER_API void xfer_locals_destroy(xfer_locals *locals);
/** How many local tensors the list has. */
XFER_API size_t xfer_locals_count(const xfer_locals *locals);
/** The i-th local tensor. @retval XFER_ERR_ARG No such tensor. */
XFER_API XFER_MUST_CHECK xfer_status xfer_locals_get(const xfer_locals *locals, size_t i,
                                                     xfer_local *local);
/** The k-th part of the i-th local tensor; a part that is cut into several row ranges is listed as
 * several. */
XFER_API XFER_MUST_CHECK xfer_status xfer_locals_part_get(const xfer_locals *locals, size_t i,
                                                          size_t k, xfer_local_part *part);

/**
 * Hand in one local tensor under the framework's name.
 *
 * The call records a wrong tensor and does not fail: xfer_locals_bind() fails until the same tensor
 * is handed in correctly, by this call or by xfer_locals_update(). A name that is not in the list
 * stays wrong.
 *
 * @param locals   The list.
 * @param side     The side that the tensor is of.
 * @param name     Renames of the side apply. Ignored names are counted.
 * @param dtype    The type of its elements.
 * @param base     Address of the first element.
 * @param shape    [n_dims] Sizes.
 * @param strides  [n_dims] In bytes, ignored for a dim of one element; NULL: row-major without
 *                 gaps.
 * @param n_dims   Number of dims.
 * @retval XFER_ERR_ARG    There is no such side, or this refit does not know it, or a wrong n_dims.
 * @retval XFER_ERR_NOMEM  Out of memory.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_locals_give(xfer_locals *locals, xfer_refit_side side,
                                                      const char *name, xfer_dtype dtype,
                                                      void *base, const int64_t *shape,
                                                      const int64_t *strides, int n_dims);

/**
 * Hand in a local tensor again because its address or its strides have changed; it replaces the
 * tensor that was handed in under its name. Parameters as for xfer_locals_give(). The next
 * xfer_locals_bind() binds only the tensors that have changed.
 *
 * @retval XFER_ERR_MISMATCH  It is not a tensor of this rank, or has another shape or type; the
 *                            list is unchanged.
 * @retval XFER_ERR_ARG       As xfer_locals_give().
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_locals_update(xfer_locals *locals, xfer_refit_side side,
                                                        const char *name, xfer_dtype dtype,
                                                        void *base, const int64_t *shape,
                                                        const int64_t *strides, int n_dims);

/**
 * Bind all tensors that were handed in to a plan of the refit's tensors; if the last call bound to
 * the same plan, bind only those that were handed in since. Local.
 *
 * @retval XFER_ERR_MISMATCH  Tensors are missing, unknown, of the wrong shape or type, or not
 *                            merged (lora); the text gives the first and their number, and
 *                            xfer_locals_problem() lists all. Hand them in correctly, or set the
 *                            callback, then call again.
 * @retval XFER_ERR_ARG       The plan does not begin with the refit's tensors, or it is the plan of
 *                            another rank than the list.
 * @retval XFER_ERR_STATE     A run of the plan is in flight, or it is a simulation.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_locals_bind(xfer_locals *locals, xfer_plan *plan);
/** The i-th problem, as a sentence; NULL: there are no more. The missing tensors are those of the
 * last xfer_locals_bind(). */
XFER_API const char *xfer_locals_problem(const xfer_locals *locals, size_t i);
/** How many names were handed in and ignored. */
XFER_API size_t xfer_locals_ignored(const xfer_locals *locals);

/** The views that xfer_locals_view() fills: OR of these. */
typedef enum xfer_locals_views {
  XFER_LOCALS_SRC = 1, /**< The rank has a part of the tensor's source. */
  XFER_LOCALS_DST = 2  /**< The rank has a part of its destination. */
} xfer_locals_views;

/**
 * Where a tensor of the join lies on this rank. Arrays of the views belong to the list, and are
 * valid until the next call for another tensor.
 *
 * @param locals  The list.
 * @param tensor  Index in xfer_refit_tensors().
 * @param src     Receives the source part, if the rank has one.
 * @param dst     Receives the destination part, if the rank has one.
 * @param filled  Receives which of the two were filled, an OR of XFER_LOCALS_*; 0: neither.
 * @retval XFER_ERR_ARG    There is no such tensor.
 * @retval XFER_ERR_STATE  The tensor that contains it was not handed in.
 * @retval XFER_ERR_SHAPE  Experts of one tensor have different strides.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_locals_view(xfer_locals *locals, size_t tensor,
                                                      xfer_view *src, xfer_view *dst,
                                                      uint32_t *filled);

/** Called for each misc tensor that was not handed in by name, with its name in the list and this
 * rank's part, row-major: the whole tensor if no rule covers it, this rank's share if the engine
 * computes other values from it (Mamba's A from A_log). The memory belongs to the library and is
 * valid during the call. */
typedef void (*xfer_misc_fn)(void *context, const char *name, xfer_dtype dtype,
                             const int64_t *shape, int n_dims, const void *data);

/** Receive misc tensors by callback. At bind the library allocates memory for those that were not
 * handed in: host memory that the plan's device can access. It belongs to the list, which must then
 * outlive the runs of the plan. `fn` NULL: no callback; a tensor that has no memory yet is missing
 * unless it is handed in. */
XFER_API XFER_MUST_CHECK xfer_status xfer_locals_take_misc(xfer_locals *locals, xfer_misc_fn fn,
                                                           void *context);
/** Wait like xfer_plan_wait(), with the same parameters and errors, then call the callbacks on the
 * calling thread. Collective. */
XFER_API XFER_MUST_CHECK xfer_status xfer_locals_wait(xfer_locals *locals, xfer_plan *plan,
                                                      uint64_t timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
