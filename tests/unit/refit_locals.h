/* Local tensors of one side, handed in by name. */
#ifndef REFIT_LOCALS_H
#define REFIT_LOCALS_H

#include <xfer/refit.h>

#include "../../tools/common/as_loaded.h"
#include "refit_files.h"

#define REFIT_MOE                                                                                  \
  REFIT_TABLE(                                                                                     \
      "\"num_hidden_layers\":2,\"hidden_size\":16",                                                \
      "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight\",\"layer\":[0,"  \
      "1],"                                                                                        \
      "\"expert\":[0,3],\"shape\":[8,16],\"dtype\":\"bf16\"},"                                     \
      "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight\",\"layer\":[0,1]," \
      "\"expert\":[0,3],\"shape\":[8,16],\"dtype\":\"bf16\"},"                                     \
      "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight\",\"layer\":[0,"  \
      "1],"                                                                                        \
      "\"expert\":[0,3],\"shape\":[16,8],\"dtype\":\"bf16\"}")

static char memory[1 << 20];
static char *const memory_of_head = memory + sizeof memory / 2; /* it is tied to nothing */

/* One side alone, and rank 0's list. */
typedef struct one {
  xfer_refit *refit;
  xfer_locals *locals;
  xfer_plan *plan;
} one;

static inline one make(const char *table, const char *spec, xfer_refit_side side,
                       const char *const *renames, size_t n_renames)
{
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  xfer_model *model = NULL;
  xfer_side *made = NULL;
  one o = {NULL, NULL, NULL};

  take_as_loaded(&options, spec);
  assert_int_equal(xfer_model_load(&model, refit_write("table.json", table), NULL), XFER_OK);
  assert_int_equal(xfer_side_create(&made, spec, &options), XFER_OK);
  for (size_t i = 0; i < n_renames; i++) {
    assert_int_equal(xfer_side_rename(made, renames[2 * i], renames[2 * i + 1]), XFER_OK);
  }
  assert_int_equal(xfer_refit_create(&o.refit, model, side == XFER_REFIT_TRAIN ? made : NULL,
                                     side == XFER_REFIT_GEN ? made : NULL),
                   XFER_OK);
  assert_int_equal(xfer_locals_create(&o.locals, o.refit, 0), XFER_OK);
  xfer_side_destroy(made);
  xfer_model_destroy(model);
  return o;
}

static inline void unmake(one *o)
{
  xfer_locals_destroy(o->locals);
  xfer_refit_destroy(o->refit);
}

static inline bool has_local(const one *o, const char *name, const int64_t *shape, int n_dims)
{
  xfer_local local;

  for (size_t i = 0; i < xfer_locals_count(o->locals); i++) {
    assert_int_equal(xfer_locals_get(o->locals, i, &local), XFER_OK);
    if (strcmp(local.name, name) != 0) continue;
    assert_int_equal(local.n_dims, n_dims);
    for (int d = 0; d < n_dims; d++)
      assert_int_equal(local.shape[d], shape[d]);
    return true;
  }
  return false;
}

/* What a test does to a tensor before it is given. */
typedef void (*change_fn)(xfer_local *local, char *name, bool *give);

static inline void give_all(one *o, xfer_refit_side side, change_fn change)
{
  xfer_local local;

  for (size_t i = 0; i < xfer_locals_count(o->locals); i++) {
    char name[256];
    bool give = true;

    assert_int_equal(xfer_locals_get(o->locals, i, &local), XFER_OK);
    snprintf(name, sizeof name, "%s", local.name);
    if (change != NULL) change(&local, name, &give);
    if (!give) continue;
    assert_int_equal(
        xfer_locals_give(o->locals, side, name, (xfer_dtype)local.dtype,
                         strcmp(local.name, "lm_head.weight") == 0 ? memory_of_head : memory,
                         local.shape, NULL, local.n_dims),
        XFER_OK);
  }
}

#endif
