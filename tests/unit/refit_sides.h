/* Two sides of a refit, of a model table; and what an error is expected to say. */
#ifndef REFIT_SIDES_H
#define REFIT_SIDES_H

#include <xfer/refit.h>

#include "../../tools/common/as_loaded.h"
#include "refit_files.h"

/* Of tables: a configuration with f8e4m3 blocks, an up projection of `rows` rows with its scales,
 * and REFIT_DENSE's configuration with blocks of a size. */
#define REFIT_FP8 "\"weight_block_size\":[128,128],\"num_hidden_layers\":2,\"hidden_size\":256"
#define REFIT_FP8_MLP(rows)                                                                        \
  "{\"pattern\":\"model.layers.{layer}.mlp.up_proj.weight\",\"layer\":[0,1],\"shape\":[" #rows     \
  ",256],\"dtype\":\"f8e4m3\"},"                                                                   \
  "{\"pattern\":\"model.layers.{layer}.mlp.up_proj.weight_scale_inv\",\"layer\":[0,1],\"shape\":[" \
  "4,2],\"dtype\":\"f32\"}"
#define REFIT_BLOCKS(size) REFIT_DENSE_CONFIG ",\"weight_block_size\":" size

typedef struct refit_sides {
  xfer_model *model;
  xfer_side *train;
  xfer_side *gen;
  xfer_refit *refit;
} refit_sides;

static inline xfer_status refit_load(xfer_model **model, const char *table)
{
  return xfer_model_load(model, refit_write("table.json", table), NULL);
}

/* As loaded; options may be NULL. */
static inline xfer_status refit_side(xfer_side **side, const char *spec,
                                     const xfer_side_options *given)
{
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;

  if (given != NULL) options = *given;
  take_as_loaded(&options, spec);
  return xfer_side_create(side, spec, &options);
}

static inline refit_sides refit_sides_make(const char *table, const char *train, const char *gen)
{
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  refit_sides s = {NULL, NULL, NULL, NULL};

  assert_int_equal(refit_load(&s.model, table), XFER_OK);
  assert_int_equal(refit_side(&s.train, train, NULL), XFER_OK);
  options.first_rank = xfer_side_size(s.train);
  assert_int_equal(refit_side(&s.gen, gen, &options), XFER_OK);
  return s;
}

static inline xfer_status refit_sides_join(refit_sides *s)
{
  return xfer_refit_create(&s->refit, s->model, s->train, s->gen);
}

static inline void refit_sides_end(refit_sides *s)
{
  xfer_refit_destroy(s->refit);
  xfer_side_destroy(s->gen);
  xfer_side_destroy(s->train);
  xfer_model_destroy(s->model);
}

/* Plans on every rank; the proof that each destination element has a source is the plan's. */
static inline void refit_expect_plans(const refit_sides *s)
{
  size_t n = 0;
  const xfer_tensor *tensors = xfer_refit_tensors(s->refit, &n);

  for (int r = 0; r < xfer_refit_ranks(s->refit); r++) {
    xfer_plan *plan = NULL;

    assert_int_equal(xfer_plan_simulate(&plan, xfer_refit_ranks(s->refit), r, tensors, n, NULL),
                     XFER_OK);
    xfer_plan_destroy(plan);
  }
}

static inline void refit_expect_error(const char *word)
{
  print_message("  %s\n", xfer_last_error());
  assert_non_null(strstr(xfer_last_error(), word));
}

/* A refit of a full state dict of the table `text`, or an error whose text has `word`; NULL: none.
 */
static inline void refit_expect(const char *text, const char *word)
{
  xfer_model *model = NULL;
  xfer_side *full = NULL;
  xfer_refit *refit = NULL;

  assert_int_equal(refit_load(&model, text), XFER_OK);
  assert_int_equal(xfer_side_create(&full, "full", NULL), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, full, full),
                   word == NULL ? XFER_OK : XFER_ERR_IO);
  if (word != NULL) refit_expect_error(word);
  xfer_refit_destroy(refit);
  xfer_side_destroy(full);
  xfer_model_destroy(model);
}

/* Of a local tensor of rank 1 that has `n_dims`; 0: it is not there, -1: it has not. */
static inline int64_t refit_first_dim_of(const xfer_refit *refit, const char *name, int n_dims)
{
  xfer_locals *locals = NULL;
  int64_t n = 0;

  assert_int_equal(xfer_locals_create(&locals, refit, 1), XFER_OK);
  for (size_t i = 0; i < xfer_locals_count(locals); i++) {
    xfer_local local;

    assert_int_equal(xfer_locals_get(locals, i, &local), XFER_OK);
    if (strcmp(local.name, name) == 0) n = local.n_dims == n_dims ? local.shape[0] : -1;
  }
  xfer_locals_destroy(locals);
  return n;
}

#endif
