/* Joins the sides: every entry held on each, and the list of tensors made of them. */
#include "join.h"

#include "alloc.h"
#include "dtype.h"
#include "error.h"
#include "model.h"
#include "moves.h"
#include "names.h"
#include "quantise.h"

#include <string.h>

static void joined_free(xfi_joined_side *joined, const xfer_model *model)
{
  for (size_t i = 0; model != NULL && joined->held != NULL && i < model->n_entries; i++)
    xfi_held_entry_free(&joined->held[i], &model->entries[i]);
  xfi_rule_set_close(&joined->set);
  xfi_free(joined->held);
  xfi_free(joined->stages);
  xfi_free(joined->by_name);
  xfi_free(joined->groups);
  xfi_side_destroy(joined->side);
}

void xfi_refit_destroy(xfer_refit *refit)
{
  size_t n_entries;

  if (refit == NULL) return;
  n_entries = refit->model == NULL ? 0 : refit->model->n_entries;
  joined_free(&refit->sides[0], refit->model);
  joined_free(&refit->sides[1], refit->model);
  for (size_t i = 0; refit->tensors != NULL && i < refit->n_tensors; i++) {
    xfi_free((void *)(uintptr_t)refit->tensors[i].name);
  }
  for (size_t i = 0; refit->tensor_of != NULL && i < n_entries; i++)
    xfi_free(refit->tensor_of[i]);
  xfi_free(refit->tensor_of);
  for (size_t i = 0; refit->origins != NULL && i < refit->n_tensors; i++)
    xfi_free(refit->origins[i].hf_name);
  xfi_free(refit->origins);
  xfi_free(refit->tensors);
  xfi_model_destroy(refit->model);
  xfi_free(refit);
}

/* ---- the model ---- */

static xfer_status check_same(const xfi_quant_scheme *quant, const xfi_quant_scheme *other,
                              const xfer_side *side, const char *who)
{
  XFI_CHECK(memcmp(other->block, quant->block, sizeof quant->block) == 0 &&
                other->dtype == quant->dtype && strcmp(other->scales, quant->scales) == 0,
            XFER_ERR_UNSUPPORTED,
            "\"%s\" quantises by blocks of %lld x %lld with %s in %s, %s by %lld x %lld with %s in "
            "%s",
            side->spec, (long long)quant->block[0], (long long)quant->block[1], quant->scales,
            xfi_dtype_name((int)quant->dtype), who, (long long)other->block[0],
            (long long)other->block[1], other->scales, xfi_dtype_name((int)other->dtype));
  return XFER_OK;
}

/* Finds how a side quantises the model. *by becomes NULL if none does, or if the table is quantised
 * already. */
static xfer_status find_quant(xfi_quant_scheme *quant, const xfer_side **by,
                              const xfer_model *model, const xfer_side *train, const xfer_side *gen)
{
  const xfer_side *side = gen != NULL && gen->quant != NULL ? gen : train;
  xfi_quant_scheme other;

  *by = NULL;
  if (side == NULL || side->quant == NULL) return XFER_OK;
  XFI_TRY(xfi_quant_scheme_find(quant, side->rules, side->quant, model));
  if (train != NULL && train->quant != NULL) {
    XFI_TRY(xfi_quant_scheme_find(&other, train->rules, train->quant, model));
    XFI_TRY(check_same(quant, &other, side, train->spec));
  }
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    if (e->scales == XFI_NO_SCALES) continue;
    XFI_CHECK(!xfi_scales_have_rows(e->scales), XFER_ERR_UNSUPPORTED,
              "\"%s\" quantises by blocks, and the model has a scale for each row of its weights "
              "already: \"%s\"",
              side->spec, e->pattern);
    other = (xfi_quant_scheme){{model->block[0], model->block[1]}, e->suffix, e->dtype};
    if (e->dtype == XFER_BF16) other.dtype = XFER_F32; /* engines keep the scales as f32 */
    return check_same(quant, &other, side, "the model is");
  }
  *by = side;
  return XFER_OK;
}

/* Moves layers whose overrides differ from those of the other layers into entries of their own, in
 * a copy of the model. */
static xfer_status split_overridden(xfer_model **copy, xfer_model *model, const xfer_side *side)
{
  for (size_t s = 0; side != NULL && s < side->n_overrides; s++) {
    if (side->overrides[s].kind < XFI_OVERRIDE_PLACE) continue;
    if (*copy == NULL) XFI_TRY(xfi_model_copy(copy, model));
    for (size_t i = 0; i < (*copy)->n_entries; i++)
      XFI_TRY(xfi_model_split(*copy, i, xfi_entry_matches, side->overrides[s].pattern));
  }
  return XFER_OK;
}

/* Sets *used to the model that this refit uses: the caller's or a changed copy. */
static xfer_status share_model(xfer_model **used, xfer_model *model, const xfer_side *train,
                               const xfer_side *gen)
{
  const xfer_side *by;
  xfer_model *copy = NULL;
  xfi_quant_scheme quant;
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(find_quant(&quant, &by, model, train, gen));
  if (by != NULL) {
    XFI_TRY_DONE(xfi_model_copy(&copy, model));
    XFI_TRY_DONE(xfi_unquantised_find(copy, by));
    XFI_TRY_DONE(xfi_scales_make(copy, &quant));
    copy->quantised = true;
  }
  XFI_TRY_DONE(split_overridden(&copy, model, train));
  XFI_TRY_DONE(split_overridden(&copy, model, gen));
  if (copy != NULL) XFI_TRY_DONE(xfi_model_resolve(copy));
  *used = copy != NULL ? copy : xfi_model_share(model);
  copy = NULL;
done:
  xfi_model_destroy(copy);
  return st;
}

/* ---- one side ---- */

/* Does the pattern name only some experts of an entry? The join has one tensor for all of them, so
 * an override can only apply to all. */
static xfer_status names_some_experts(bool *does, const xfi_entry *entry, const char *pattern)
{
  const int n = entry->n_experts;

  *does = false;
  for (int64_t i = 0; i < (int64_t)xfi_entry_places(entry) * n && !*does; i++) {
    const xfi_name_numbers numbers = {xfi_entry_layer(entry, (int)(i / n)),
                                      entry->first_expert + (int)(i % n), -1, -1};
    char *name = NULL;

    XFI_TRY(xfi_name_fill(&name, entry->pattern, &numbers));
    *does = xfi_glob_match(pattern, name);
    xfi_free(name);
  }
  return XFER_OK;
}

/* Checks that each of the caller's patterns matches a name. */
static xfer_status check_used(const xfer_side *side, const xfer_model *model)
{
  static const char *const KINDS[] = {"rename", "ignore", "place", "whole", "dtype"};

  for (size_t i = 0; i < side->n_overrides; i++) {
    const xfi_override *override = &side->overrides[i];
    bool used = override->kind < XFI_OVERRIDE_PLACE &&
                (override->kind != XFI_OVERRIDE_IGNORE || !side->strict);
    bool some = false;

    for (size_t k = 0; k < model->n_entries && !used; k++)
      XFI_TRY(xfi_entry_touches(&used, &model->entries[k], override->pattern));
    for (size_t k = 0; k < model->n_entries && !used; k++) {
      XFI_TRY(names_some_experts(&some, &model->entries[k], override->pattern));
      XFI_CHECK(!some, XFER_ERR_ARG,
                "\"%s\": %s \"%s\" names single experts of \"%s\", which go together: name all of "
                "them, or load the model with the range of experts that is wanted",
                side->spec, KINDS[override->kind], override->pattern, model->entries[k].pattern);
    }
    XFI_CHECK(used, XFER_ERR_ARG, "\"%s\": no tensor of the model matches %s \"%s\"", side->spec,
              KINDS[override->kind], override->pattern);
  }
  return XFER_OK;
}

static xfer_status join_side(xfi_joined_side *joined, const xfer_model *model,
                             const xfer_side *side)
{
  if (side == NULL) return XFER_OK;
  joined->side = xfi_side_share(side);
  joined->held = xfi_calloc(model->n_entries, sizeof *joined->held);
  XFI_CHECK(joined->held != NULL, XFER_ERR_NOMEM, "%zu entries of a side", model->n_entries);
  XFI_TRY(check_used(side, model));
  XFI_TRY(xfi_expert_map_check_layers(side, model));
  XFI_TRY(xfi_side_stages(side, model, &joined->stages));
  XFI_TRY(xfi_rule_set_open(&joined->set, side, model, joined->stages));
  for (size_t i = 0; i < model->n_entries; i++)
    XFI_TRY(xfi_held_entry_make(&joined->held[i], &joined->set, i));
  return xfi_joined_side_group(joined, model);
}

/* ---- tensors ---- */

static const xfer_layout *layout_at(const xfi_joined_side *joined, size_t entry, int k)
{
  return joined->side == NULL ? NULL : joined->held[entry].layouts[k];
}

/* Is the entry absent from a side? Then nothing is moved, unless the library makes the values on
 * the way. */
static bool is_absent(const xfer_refit *refit, size_t entry)
{
  for (int s = 0; s < 2; s++) {
    if (refit->sides[s].side == NULL || !refit->sides[s].held[entry].absent) continue;
    if (s != XFER_REFIT_TRAIN || !refit->sides[s].held[entry].scales_dropped) return true;
  }
  return false;
}

static bool is_ignored(const xfer_refit *refit, const char *name)
{
  for (int s = 0; s < 2; s++) {
    const xfer_side *side = refit->sides[s].side;

    if (side != NULL && xfi_side_ignores(side, name)) return true;
  }
  return false;
}

/* Is this a tensor that the engine has under a name of its own and the trainer does not have? */
static bool has_no_source(const xfer_refit *refit, size_t entry)
{
  const xfi_joined_side *train = &refit->sides[XFER_REFIT_TRAIN],
                        *gen = &refit->sides[XFER_REFIT_GEN];
  const xfi_held_entry *held;

  if (train->side == NULL || gen->side == NULL) return false;
  if (!train->held[entry].absent || train->held[entry].scales_dropped) return false;
  held = &gen->held[entry];
  return !held->absent && !held->misc && held->mapping.local != NULL && !held->mapping.own_names;
}

static xfer_status add_tensor(xfer_refit *refit, size_t entry, int k)
{
  const xfi_entry *e = &refit->model->entries[entry];
  const int layer = xfi_entry_layer(e, k);
  int64_t *index = &refit->tensor_of[entry][k];
  xfer_tensor *tensor = &refit->tensors[refit->n_tensors];
  xfi_origin *origin = &refit->origins[refit->n_tensors];
  char *name = NULL;
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(xfi_name_layer(&name, e->name, layer));
  XFI_CHECK_DONE(
      !has_no_source(refit, entry) || is_ignored(refit, name), XFER_ERR_UNSUPPORTED,
      "\"%s\": \"%s\" has it and \"%s\" has not; name a rank that has it whole, or ignore it", name,
      refit->sides[XFER_REFIT_GEN].side->spec, refit->sides[XFER_REFIT_TRAIN].side->spec);
  if (is_absent(refit, entry) || is_ignored(refit, name)) {
    size_t n = (size_t)(e->n_experts > 0 ? e->n_experts : 1) * (e->packed.index == 0);

    refit->n_ignored += n;
    if (is_absent(refit, entry)) refit->n_absent += n;
    *index = -1;
    goto done;
  }
  tensor->name = name;
  tensor->src = layout_at(&refit->sides[0], entry, k);
  tensor->dst = layout_at(&refit->sides[1], entry, k);
  *origin = (xfi_origin){.entry = entry, .place = k};
  if (strcmp(e->name, e->pattern) != 0)
    XFI_TRY_DONE(xfi_name_layer(&origin->hf_name, e->pattern, layer));
  *index = (int64_t)refit->n_tensors++;
  name = NULL;
done:
  xfi_free(name);
  return st;
}

/* Do both entries lie in the same tensors of the checkpoint? */
static bool lie_together(const xfi_entry *a, const xfi_entry *b)
{
  return strcmp(a->pattern, b->pattern) == 0 && a->n_layers == b->n_layers &&
         (a->n_layers == 0 ||
          memcmp(a->layers, b->layers, (size_t)a->n_layers * sizeof *a->layers) == 0);
}

/* Makes the list of tensors. Weights of one checkpoint tensor are neighbours in it, so that rows
 * that alternate there can be copied as one. */
static xfer_status list_tensors(xfer_refit *refit)
{
  const xfer_model *model = refit->model;
  size_t n = 0;

  for (size_t i = 0; i < model->n_entries; i++)
    n += (size_t)xfi_entry_places(&model->entries[i]);
  refit->tensors = xfi_calloc(n, sizeof *refit->tensors);
  refit->origins = xfi_calloc(n, sizeof *refit->origins);
  refit->tensor_of = xfi_calloc(model->n_entries, sizeof *refit->tensor_of);
  XFI_CHECK(refit->tensors != NULL && refit->origins != NULL && refit->tensor_of != NULL,
            XFER_ERR_NOMEM, "a list of %zu tensors", n);
  for (size_t i = 0; i < model->n_entries; i++) {
    refit->tensor_of[i] =
        xfi_calloc((size_t)xfi_entry_places(&model->entries[i]), sizeof **refit->tensor_of);
    XFI_CHECK(refit->tensor_of[i] != NULL, XFER_ERR_NOMEM, "a list of %zu tensors", n);
  }
  for (size_t i = 0, end = 0; i < model->n_entries; i = end) {
    while (end < model->n_entries && lie_together(&model->entries[i], &model->entries[end]))
      end++;
    for (int k = 0; k < xfi_entry_places(&model->entries[i]); k++)
      for (size_t e = i; e < end; e++)
        XFI_TRY(add_tensor(refit, e, k));
  }
  return XFER_OK;
}

/* Checks that a rule or the caller says where each tensor is. A serving framework holds a model
 * without a family in its own form, so the names of the table say nothing about it. */
static xfer_status check_known(const xfer_refit *refit, const xfi_joined_side *joined)
{
  const xfer_model *model = refit->model;
  const char *first = NULL;
  size_t n = 0;

  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];

    if (!joined->held[i].unknown) continue;
    for (int k = 0; k < xfi_entry_places(e); k++) {
      if (refit->tensor_of[i][k] < 0) continue;
      if (first == NULL) first = e->pattern;
      n++;
    }
  }
  XFI_CHECK(
      n == 0, XFER_ERR_UNSUPPORTED,
      "\"%s\": no rule of %s \"%s\" says where %zu tensors are, the first \"%s\"; place them, "
      "name a rank that has them whole, or ignore them",
      joined->side->spec, model->family != NULL ? "family" : "model_type",
      model->family != NULL ? model->family->name : model->model_type, n, first);
  return XFER_OK;
}

/* Finds the scales of a weight that becomes fp8 on the way; -1: the model has none. The fp8 numbers
 * depend on the scales. */
static xfer_status find_scales(int64_t *scales, const xfer_refit *refit, size_t tensor)
{
  const xfer_model *model = refit->model;
  const size_t weights = refit->origins[tensor].entry;
  const xfi_entry *weight = &model->entries[weights];
  const int layer = xfi_entry_layer(weight, refit->origins[tensor].place);
  size_t n;
  const xfi_layer_entry *layer_entries = xfi_model_layer_entries(model, weight->stack, layer, &n);

  *scales = -1;
  for (size_t i = 0; i < n; i++) {
    const xfi_entry *e = &model->entries[layer_entries[i].entry];

    if (e->scale_of < 0 || (size_t)e->scale_of != weights ||
        xfi_scales_have_rows(e->scales) != (weight->block[0] == 0))
      continue;
    *scales = refit->tensor_of[layer_entries[i].entry][xfi_entry_place(e, layer)];
    XFI_CHECK(*scales >= 0, XFER_ERR_ARG,
              "\"%s\" is quantised on the way, and its scales \"%s\" are ignored: ignore both or "
              "neither",
              refit->tensors[tensor].name, e->name);
    return XFER_OK;
  }
  return XFER_OK;
}

/* Sets *more to the difference of the serving side's values to the training side's. A rank that
 * knows only one side cannot compute it, so there it is an error. */
static xfer_status find_difference(int64_t *more, const xfer_refit *refit, size_t i)
{
  int64_t subtracted[2] = {0, 0};

  for (int s = 0; s < 2; s++)
    if (refit->sides[s].side != NULL)
      subtracted[s] = refit->sides[s].held[refit->origins[i].entry].subtracted;
  *more = subtracted[XFER_REFIT_TRAIN] - subtracted[XFER_REFIT_GEN];
  XFI_CHECK(*more == 0 || (refit->tensors[i].src != NULL && refit->tensors[i].dst != NULL),
            XFER_ERR_UNSUPPORTED,
            "\"%s\" is held as the checkpoint's value less %lld, so all ranks must be told both "
            "sides",
            refit->tensors[i].name,
            (long long)(subtracted[0] != 0 ? subtracted[0] : subtracted[1]));
  return XFER_OK;
}

/* Sets the tensor's conversion: adding a number, quantising by blocks if the model's weights have
 * scales, else a cast. */
static xfer_status convert_tensor(const xfer_refit *refit, size_t i, int64_t more)
{
  xfer_tensor *t = &refit->tensors[i];
  const int64_t *block = refit->model->entries[refit->origins[i].entry].block;
  int64_t scales = -1;

  t->conversion = more != 0 ? xfer_convert_add((float)more) : xfer_convert_cast();
  if (t->dst->dtype == XFER_F8E4M3) XFI_TRY(find_scales(&scales, refit, i));
  if (scales >= 0 && block[0] > 0) {
    const bool bytes = refit->tensors[scales].dst->dtype == XFER_F8E8M0;

    t->conversion =
        xfer_convert_blocks((int)block[0], (int)block[1], bytes ? XFER_SCALE_MX : XFER_SCALE_F32);
    refit->tensors[scales].src = NULL;
    refit->tensors[scales].conversion = xfer_convert_scales_of(i);
  }
  XFI_CHECK(block[0] == 0 || t->src->dtype != XFER_F8E4M3, XFER_ERR_MISMATCH,
            "\"%s\" is f8e4m3 with scales in \"%s\" and %s without in \"%s\", and there is no "
            "conversion: have it unquantised on the training side (its dtype=), or ignore it",
            t->name, refit->sides[0].side->spec, xfi_dtype_name((int)t->dst->dtype),
            refit->sides[1].side->spec);
  XFI_CHECK(xfi_conversion_check(&t->conversion, t->name) == XFER_OK &&
                xfi_conversion_fits(&t->conversion, t->src, t->dst, t->name) == XFER_OK,
            XFER_ERR_MISMATCH,
            "\"%s\" is %s in \"%s\" and %s in \"%s\", and there is no conversion", t->name,
            xfi_dtype_name((int)t->src->dtype), refit->sides[0].side->spec,
            xfi_dtype_name((int)t->dst->dtype), refit->sides[1].side->spec);
  return XFER_OK;
}

/* Sets conversions where element types differ, because the caller set a type, or values differ,
 * because a rule says so. */
static xfer_status convert_elements(const xfer_refit *refit)
{
  for (size_t i = 0; i < refit->n_tensors; i++) {
    const xfer_tensor *t = &refit->tensors[i];
    int64_t more;

    XFI_TRY(find_difference(&more, refit, i));
    if (t->src == NULL || t->dst == NULL || (more == 0 && t->src->dtype == t->dst->dtype)) continue;
    XFI_TRY(convert_tensor(refit, i, more));
  }
  for (size_t i = 0; i < refit->n_tensors; i++) {
    const size_t entry = refit->origins[i].entry;
    const bool by_blocks = refit->tensors[i].conversion.kind != XFER_CONVERSION_NONE &&
                           !xfi_scales_have_rows(refit->model->entries[entry].scales);

    XFI_CHECK(refit->sides[0].side == NULL || by_blocks ||
                  !refit->sides[0].held[entry].scales_dropped,
              XFER_ERR_MISMATCH, "\"%s\" are scales of weights that are not quantised on the way",
              refit->tensors[i].name);
  }
  return XFER_OK;
}

/* Checks that the side can receive. */
static xfer_status check_receiver(const xfer_side *gen)
{
  for (size_t i = 0; i < gen->n_overrides; i++)
    XFI_CHECK(gen->overrides[i].kind != XFI_OVERRIDE_WHOLE, XFER_ERR_ARG,
              "\"%s\" is the generation side, of which no rank can give \"%s\" whole", gen->spec,
              gen->overrides[i].pattern);
  return XFER_OK;
}

/* Does the model have a family, and does the family know the names of its layers? */
static bool knows_layers(const xfer_model *model)
{
  bool layers = false;

  for (size_t i = 0; i < model->n_entries; i++) {
    if (model->entries[i].n_layers == 0) continue;
    if (model->entries[i].role != NULL) return true;
    layers = true;
  }
  return model->family != NULL && !layers;
}

xfer_status xfi_refit_create(xfer_refit **refit, xfer_model *model, const xfer_side *train,
                             const xfer_side *gen)
{
  xfer_refit *r = xfi_calloc(1, sizeof *r);
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(r != NULL, XFER_ERR_NOMEM, "a refit");
  if (gen != NULL) XFI_TRY_DONE(check_receiver(gen));
  XFI_TRY_DONE(xfi_model_check_counts(model));
  XFI_TRY_DONE(share_model(&r->model, model, train, gen));
  XFI_TRY_DONE(join_side(&r->sides[XFER_REFIT_TRAIN], r->model, train));
  XFI_TRY_DONE(join_side(&r->sides[XFER_REFIT_GEN], r->model, gen));
  XFI_TRY_DONE(list_tensors(r));
  for (int s = 0; s < 2; s++)
    XFI_TRY_DONE(xfi_joined_side_check(r, &r->sides[s]));
  XFI_CHECK_DONE(
      r->n_tensors > 0, XFER_ERR_ARG,
      "nothing is left to refit: every tensor of the model is ignored, or is one that a side "
      "does not hold");
  if (train != NULL) XFI_TRY_DONE(check_known(r, &r->sides[XFER_REFIT_TRAIN]));
  if (gen != NULL && !knows_layers(model) &&
      (gen->framework->layer_prefix != NULL || gen->size > 1))
    XFI_TRY_DONE(check_known(r, &r->sides[XFER_REFIT_GEN]));
  XFI_TRY_DONE(convert_elements(r));
  atomic_store(&model->frozen, true);
  *refit = r;
  r = NULL;
done:
  xfi_refit_destroy(r);
  return st;
}
