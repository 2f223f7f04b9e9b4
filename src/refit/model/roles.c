/*
 * What each entry is: its name split, its role looked up in the family's rules, and tensors that
 * hold several weights taken apart. Then the kinds of layers: an entry is split until all its
 * layers have the same roles, so that what is true of its first layer is true of all.
 */
#include "roles.h"

#include "alloc.h"
#include "checked.h"
#include "error.h"
#include "names.h"
#include "text.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* ---- names ---- */

enum { SCALE_INV, SCALE, SCALE_OF_INPUT, N_SUFFIXES = 5 };
static const char *const SUFFIXES[N_SUFFIXES] = {"weight_scale_inv", "weight_scale", "input_scale",
                                                 "weight", "bias"};

/* Returns what follows the family's first prefix that the name begins with. */
static const char *skip_prefix(const xfer_model *model, const char *known)
{
  for (int f = 0; f < model->n_families; f++) {
    const json_t *prefixes = model->families[f]->prefixes;

    for (size_t i = 0; i < json_array_size(prefixes); i++) {
      const char *prefix = xfi_doc_text(prefixes, i);
      size_t n = strlen(prefix);

      if (strncmp(known, prefix, n) == 0) return known + n;
    }
    if (prefixes != NULL) break; /* they replace those of included families */
  }
  return known;
}

static xfer_status is_own(bool *own, const xfi_entry *e, int k, const void *model)
{
  *own = e->layers[k] < ((const xfer_model *)model)->n_config_layers;
  return XFER_OK;
}

/* Makes layers past the configuration's number an entry of extra layers. */
static xfer_status split_extra(xfer_model *model, size_t at)
{
  const xfi_entry *e = &model->entries[at];

  if (e->stack != XFI_LAYERS || model->n_config_layers == 0) return XFER_OK;
  XFI_TRY(xfi_model_split(model, at, is_own, model));
  e = &model->entries[at];
  if (e->layers[0] >= model->n_config_layers) model->entries[at].stack = XFI_EXTRA;
  return XFER_OK;
}

/* Returns what follows the number of the layer in the name; NULL: the name has none, because a
 * rename removed it. */
static const char *skip_layer(const xfer_model *model, const xfi_entry *entry, const char *name)
{
  static const char NUMBER[] = "{layer}.";

  for (int i = 0; i < model->n_layer_words && entry->n_layers > 0; i++) {
    const size_t n = strcspn(model->layer_words[i], ".") + 1;

    if (strncmp(name, model->layer_words[i], n) == 0 &&
        strncmp(name + n, NUMBER, sizeof NUMBER - 1) == 0)
      return name + n + sizeof NUMBER - 1;
  }
  return NULL;
}

/* Returns the fp8 weight to which an entry with this suffix belongs; NULL: there is none. */
static const xfi_entry *find_fp8(const xfer_model *model, const xfi_entry *e, const char *suffix)
{
  static const char WEIGHT[] = "weight";
  const size_t n = strlen(e->known), k = strlen(suffix);

  if (n <= k || strcmp(e->known + n - k, suffix) != 0) return NULL;
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *w = &model->entries[i];

    if (w->dtype == XFER_F8E4M3 && strncmp(w->known, e->known, n - k) == 0 &&
        strcmp(w->known + n - k, WEIGHT) == 0 && xfi_entry_place(w, xfi_entry_layer(e, 0)) >= 0)
      return w;
  }
  return NULL;
}

/* Are these scales one for each block of the weight? */
static bool are_of_blocks(const xfer_model *model, const xfi_entry *e, const xfi_entry *weight)
{
  const int64_t *block = model->block;
  const int n = e->n_dims;

  return block[0] > 0 && n == weight->n_dims && n >= 2 &&
         e->shape[n - 2] == xfi_ceil_div(weight->shape[n - 2], block[0]) &&
         e->shape[n - 1] == xfi_ceil_div(weight->shape[n - 1], block[1]);
}

/* Which scales an entry under compressed-tensors' names is, of an fp8 weight [.., rows, columns]
 * beside it:
 *
 *   weight_scale               [.., rows, 1]  one for each row
 *   weight_scale, input_scale  [.., 1] or []  one for the whole weight, or for its input
 *   either                     the shape of the configuration's blocks
 *
 * where `..` is the dim of experts that the name counts, if it does. Anything else is no scales. */
static xfi_scales scales_of(const xfer_model *model, const xfi_entry *e)
{
  const int lead = e->n_experts > 0, last = e->n_dims - 1;
  const xfi_entry *of_weight = find_fp8(model, e, SUFFIXES[SCALE]);
  const xfi_entry *weight =
      of_weight != NULL ? of_weight : find_fp8(model, e, SUFFIXES[SCALE_OF_INPUT]);
  const bool ends_in_one = last < lead || e->shape[last] == 1;

  if (weight == NULL || (e->dtype != XFER_F32 && e->dtype != XFER_BF16)) return XFI_NO_SCALES;
  if (ends_in_one && weight->n_dims == lead + 2 && e->n_dims <= lead + 1)
    return XFI_SCALES_OF_WEIGHTS;
  if (ends_in_one && of_weight != NULL && last >= 0 && e->n_dims == weight->n_dims &&
      memcmp(e->shape, weight->shape, (size_t)last * sizeof *e->shape) == 0)
    return XFI_SCALES_OF_ROWS;
  return are_of_blocks(model, e, weight) ? XFI_SCALES_OF_BLOCKS : XFI_NO_SCALES;
}

/* A scale of a whole weight that has no dim of its own gets one. */
static void set_scales(xfi_entry *e, xfi_scales which)
{
  const int n_own = e->n_dims - (e->n_experts > 0);

  e->scales = which;
  if (which != XFI_SCALES_OF_WEIGHTS || n_own > 0) return;
  e->in_checkpoint.order[e->n_dims] = e->n_dims;
  e->shape[e->n_dims] = e->in_checkpoint.strides[e->n_dims] = 1;
  e->n_dims++;
}

/* Where a tensor is, by what its name begins with after the family's prefix:
 *
 *   layers.{layer}.STEM      a layer of the model's own; or an extra one that split_extra() found
 *   mtp.layers.{layer}.STEM  an extra layer, which has a number of its own
 *   mtp.{layer}.STEM and mtp_layers.{layer}.STEM  likewise, if the family calls its layers so
 *   STEM                     outside the layers
 */
static void split_stem(const xfer_model *model, xfi_entry *e)
{
  static const char INSIDE[] = "mtp.", BESIDE[] = "mtp_";
  const char *rest = skip_prefix(model, e->known), *stem = NULL;
  const bool inside = strncmp(rest, INSIDE, sizeof INSIDE - 1) == 0;
  const bool extra = inside || strncmp(rest, BESIDE, sizeof BESIDE - 1) == 0;

  if (inside) stem = skip_layer(model, e, rest + sizeof INSIDE - 1);
  if (stem == NULL) stem = skip_layer(model, e, rest);
  e->own_numbers = stem != NULL && extra;
  if (e->stack != XFI_EXTRA) e->stack = stem == NULL ? XFI_OUTSIDE : extra ? XFI_EXTRA : XFI_LAYERS;
  e->stem = stem != NULL ? stem : rest;
  e->n_stem = strlen(e->stem);
}

/* "weight_scale" and "input_scale" are suffixes of scales alone: elsewhere they are part of a name
 * that no rule knows. "weight_scale_inv" is scales whatever its shape. */
static void split_suffix(xfi_entry *e)
{
  const char *end = e->stem + e->n_stem;

  e->suffix = "";
  for (int i = 0; i < N_SUFFIXES; i++) {
    const size_t k = strlen(SUFFIXES[i]);

    if ((i == SCALE || i == SCALE_OF_INPUT) && e->scales == XFI_NO_SCALES) continue;
    if (e->n_stem <= k + 1 || end[-(ptrdiff_t)k - 1] != '.' || strcmp(end - k, SUFFIXES[i]) != 0)
      continue;
    e->suffix = SUFFIXES[i];
    if (i == SCALE_INV) e->scales = XFI_SCALES_OF_BLOCKS;
    if (i > SCALE_OF_INPUT) e->scales = XFI_NO_SCALES;
    e->n_stem -= k + 1;
    return;
  }
}

void xfi_roles_split_name(const xfer_model *model, xfi_entry *entry)
{
  split_stem(model, entry);
  set_scales(entry, scales_of(model, entry));
  split_suffix(entry);
}

/* ---- rules ---- */

static bool is_named(const xfi_tensor_rule *rule, const xfi_entry *e)
{
  const size_t n = rule->n_layer; /* the layer's part of an entry's name is before its stem */
  const bool in_layer = e->own_numbers || ((size_t)(e->stem - e->known) >= n &&
                                           strncmp(rule->name, e->stem - n, n) == 0);

  return (n > 0) == (e->stack != XFI_OUTSIDE) && in_layer &&
         strncmp(rule->name + n, e->stem, e->n_stem) == 0 && rule->name[n + e->n_stem] == '\0';
}

/* Do the rule's `when` and shape hold? Scales are compared in blocks, and a bias without the
 * weight's columns. */
static xfer_status rule_fits(bool *fits, const xfer_model *model, const xfi_tensor_rule *rule,
                             const xfi_entry *e)
{
  int first = e->n_experts > 0; /* dim 0 is the join's, not the checkpoint's */
  int n = e->n_dims - first, n_given = 0;
  int64_t value;

  *fits = false;
  if (rule->when != NULL) XFI_TRY(xfi_rules_eval(&value, model->rules, rule->when, &model->scope));
  if (rule->when != NULL && value == 0) return XFER_OK;
  *fits = e->scales == XFI_SCALES_OF_WEIGHTS;
  if (*fits || (rule->n_dims > 0 && rule->n_dims != n)) return XFER_OK;
  while (n_given < 4 && rule->shape[n_given] != NULL)
    n_given++;
  if (n_given == n + 1 && n > 0 && xfi_entry_is_bias(e)) n_given = n;
  if (n_given > 0 && n_given != n) return XFER_OK;
  for (int d = 0; d < n_given; d++) {
    const bool blocks = e->scales == XFI_SCALES_OF_BLOCKS && d >= n_given - 2;
    const int64_t block = blocks ? model->block[d - n_given + 2] : 1;

    if (blocks && block == 0) break; /* pairing it with its weight will refuse it */
    XFI_TRY(xfi_rules_eval(&value, model->rules, rule->shape[d], &model->scope));
    if (e->scales == XFI_SCALES_OF_ROWS && d == n_given - 1) value = 1;
    if (xfi_ceil_div(value, block) != e->shape[first + d]) return XFER_OK;
  }
  *fits = true;
  return XFER_OK;
}

static xfer_status find_rule(const xfi_tensor_rule **rule, const xfer_model *model,
                             const xfi_entry *e, int *n_named)
{
  *rule = NULL;
  *n_named = 0;
  for (int f = 0; f < model->n_families; f++) {
    for (size_t i = 0; i < model->families[f]->n_tensors; i++) {
      const xfi_tensor_rule *r = &model->families[f]->tensors[i];
      bool fits;

      if (!is_named(r, e) ||
          (r->suffix != NULL && strcmp(r->suffix, e->suffix) != 0 && e->suffix[0] != '\0'))
        continue;
      (*n_named)++;
      XFI_TRY(rule_fits(&fits, model, r, e));
      if (!fits) continue;
      *rule = r;
      return XFER_OK;
    }
  }
  return XFER_OK;
}

/* ---- rows ---- */

/* Scales have a row for each block of rows. They have the weight's units if a unit is a whole
 * number of blocks. */
xfer_status xfi_segment_to_blocks(xfi_row_segment *s, int64_t block, bool alone, const xfi_entry *e)
{
  if (s->unit % block == 0) {
    s->unit /= block;
  } else {
    int64_t rows = s->count * s->unit;

    XFI_CHECK(alone || rows % block == 0, XFER_ERR_UNSUPPORTED,
              "\"%s\": the %lld rows of \"%s\" are no whole number of blocks of %lld", e->pattern,
              (long long)rows, s->name, (long long)block);
    s->count = xfi_ceil_div(rows, block);
    s->unit = 1;
  }
  for (int i = 0; i < s->n_subs; i++) {
    XFI_CHECK(s->sub_rows[i] % block == 0, XFER_ERR_UNSUPPORTED,
              "\"%s\": the %lld rows of \"%s\" are no whole number of blocks of %lld", e->pattern,
              (long long)s->sub_rows[i], s->sub_names[i], (long long)block);
    s->sub_rows[i] /= block;
  }
  return XFER_OK;
}

/* Makes a segment of an entry from its rule. `alone`: it is the entry's only segment. */
static xfer_status make_segment(xfi_row_segment *s, const xfi_segment_rule *rule,
                                const xfer_model *model, const xfi_entry *e, bool alone)
{
  const int64_t block =
      e->scales == XFI_SCALES_OF_BLOCKS && model->block[0] > 0 ? model->block[0] : 1;
  xfi_var rows = {"rows", xfi_entry_rows(e)};
  const xfi_scope scope = {.vars = &rows, .n_vars = 1, .next = &model->scope};

  XFI_CHECK(xfi_imul_fits(rows.value, block, &rows.value), XFER_ERR_OVERFLOW,
            "\"%s\" is scales of more rows than 63 bits count", e->pattern);
  *s = (xfi_row_segment){.name = rule->name, .n_subs = rule->n_subs};
  XFI_TRY(xfi_rules_eval(&s->count, model->rules, rule->count, &scope));
  if (rule->unit != NULL) XFI_TRY(xfi_rules_eval(&s->unit, model->rules, rule->unit, &scope));
  for (int i = 0; i < rule->n_subs; i++) {
    s->sub_names[i] = rule->sub_names[i];
    XFI_TRY(xfi_rules_eval(&s->sub_rows[i], model->rules, rule->sub_rows[i], &scope));
    XFI_CHECK(s->sub_rows[i] >= 0 && s->sub_rows[i] < 1 << 30, XFER_ERR_SHAPE,
              "\"%s\" of \"%s\" is no number of rows", rule->sub_rows[i], rule->sub_names[i]);
    s->unit += s->sub_rows[i];
  }
  XFI_CHECK(s->count >= 0 && s->unit >= 0 && s->count < 1 << 30 && s->unit < 1 << 30,
            XFER_ERR_SHAPE, "\"%s\" times \"%s\" is no number of rows", rule->count, rule->name);
  if (block > 1) XFI_TRY(xfi_segment_to_blocks(s, block, alone, e));
  return XFER_OK;
}

static xfer_status set_rows(const xfer_model *model, xfi_entry *e, const xfi_segment_rule *rules,
                            int n)
{
  int64_t rows = xfi_entry_rows(e), total = 0;

  e->n_segments = n;
  for (int i = 0; i < n; i++) {
    XFI_TRY(make_segment(&e->segments[i], &rules[i], model, e, n == 1));
    total += e->segments[i].count * e->segments[i].unit;
  }
  XFI_CHECK(n == 0 || total == rows, XFER_ERR_SHAPE,
            "\"%s\" has %lld rows; %lld %s of %lld%s make %lld", e->pattern, (long long)rows,
            (long long)e->segments[0].count, n > 1 ? "times" : "heads or parts",
            (long long)e->segments[0].unit, n > 1 ? " and the others" : "", (long long)total);
  return XFER_OK;
}

/* ---- tensors that hold several ---- */

static xfer_status name_packed(xfi_entry *e, const char *role)
{
  const char *dot = strrchr(role, '.');
  xfi_text text = {0};

  xfi_text_printf(&text, "%s[%s]", e->pattern, dot == NULL ? role : dot + 1);
  xfi_free(e->name);
  return xfi_text_end(&text, &e->name);
}

/* Merges neighbouring dims that are one dim in the join: blocks and their elements are columns, and
 * dims of one element go with a neighbour. `ours` says what each dim is. */
static void merge_dims(xfi_entry *e, char *ours)
{
  int n = 1;

  for (int d = 1; d < e->n_dims; d++) {
    if (ours[d] == ours[n - 1]) {
      e->shape[n - 1] *= e->shape[d];
    } else {
      ours[n] = ours[d];
      e->shape[n++] = e->shape[d];
    }
    e->in_checkpoint.strides[n - 1] = e->in_checkpoint.strides[d];
  }
  e->n_dims = n;
}

/* Reorders the checkpoint's dims to those of the join: experts, rows, columns. */
static void reorder_dims(xfi_entry *e, const xfi_tensor_rule *rule)
{
  static const char OURS[] = "erc";
  char ours[XFER_MAX_DIMS] = "e"; /* experts that the name counts are the first dim already */
  int64_t shape[3], strides[3], lead = e->shape[0];
  int n = 0;

  if (rule->n_dims == 0) return;
  memcpy(ours + (e->n_experts > 0), rule->dims, (size_t)rule->n_dims);
  merge_dims(e, ours);
  if (e->shape[0] != lead) e->in_checkpoint.lead = lead;
  memcpy(shape, e->shape, sizeof shape);
  memcpy(strides, e->in_checkpoint.strides, sizeof strides);
  for (const char *k = OURS; *k != '\0'; k++) {
    for (int d = 0; d < e->n_dims; d++) {
      if (ours[d] != *k) continue;
      e->shape[n] = shape[d];
      e->in_checkpoint.strides[n] = strides[d];
      e->in_checkpoint.order[d] = n++;
    }
  }
  e->experts = memchr(ours, 'e', (size_t)e->n_dims) != NULL;
}

/* Makes one entry of each weight that the tensor holds. */
static xfer_status take_apart(xfer_model *model, size_t at, const xfi_tensor_rule *rule)
{
  const int n = rule->n_segments;
  int64_t first = 0, rows, total;
  int dim;

  dim = xfi_entry_row_dim(&model->entries[at]);
  total = model->entries[at].shape[dim];
  for (int i = n - 1; i > 0; i--)
    XFI_TRY(xfi_model_duplicate(model, at));
  for (int i = 0; i < n; i++) {
    xfi_entry *e = &model->entries[at + (size_t)i];
    xfi_row_segment s;

    XFI_TRY(make_segment(&s, &rule->segments[i], model, e, false));
    rows = s.count * s.unit;
    XFI_CHECK(rows <= total - first && (!rule->alternate || rows * n == total), XFER_ERR_SHAPE,
              "\"%s\" has %lld rows, too few for what it holds", e->pattern, (long long)total);
    e->matched = true;
    e->role = rule->segments[i].name;
    e->packed = (xfi_packed){n, i, rule->alternate, rule->alternate ? i : first};
    e->in_checkpoint.offset = e->packed.first_row * e->in_checkpoint.strides[dim];
    if (rule->alternate) e->in_checkpoint.strides[dim] *= n;
    e->shape[dim] = rows;
    first += rows;
    XFI_TRY(name_packed(e, e->role));
    e->n_segments = s.unit > 1;
    e->segments[0] = s;
  }
  XFI_CHECK(first == total, XFER_ERR_SHAPE, "\"%s\" has %lld rows; what it holds makes %lld",
            model->entries[at].pattern, (long long)total, (long long)first);
  return XFER_OK;
}

/* Refuses a tensor that rules name in other shapes, and lists those shapes in the error. */
static xfer_status refuse_form(const xfer_model *model, const xfi_entry *e)
{
  xfi_text text = {0};
  char forms[256];

  xfi_text_fixed(&text, forms, sizeof forms);
  for (int f = 0; f < model->n_families; f++) {
    for (size_t i = 0; i < model->families[f]->n_tensors; i++) {
      const xfi_tensor_rule *r = &model->families[f]->tensors[i];

      if (!is_named(r, e)) continue;
      xfi_text_printf(&text, "%s[", text.n_chars > 0 ? " or " : "");
      for (int d = 0; d < 4 && r->shape[d] != NULL; d++)
        xfi_text_printf(&text, "%s%s", d > 0 ? ", " : "", r->shape[d]);
      xfi_text_printf(&text, "]%s", r->alternate ? " alternating" : "");
    }
  }
  xfi_set_error("\"%s\" has a shape that family \"%s\" does not know: want %s", e->pattern,
                model->family->name, forms);
  return XFER_ERR_UNSUPPORTED;
}

/* Returns the length of a stem without its last part; 0: it has but one. */
static size_t n_parent(const xfi_entry *e)
{
  size_t n = e->n_stem;

  while (n > 0 && e->stem[n - 1] != '.')
    n--;
  return n > 0 ? n - 1 : 0;
}

/* Returns the rule that names the weight to which an entry belongs, as "q_proj.weight_scale"
 * belongs to "q_proj"; NULL: there is none. */
static const xfi_tensor_rule *rule_of_weight(const xfer_model *model, xfi_entry e)
{
  e.n_stem = n_parent(&e);
  for (int f = 0; f < model->n_families && e.n_stem > 0; f++) {
    for (size_t i = 0; i < model->families[f]->n_tensors; i++)
      if (is_named(&model->families[f]->tensors[i], &e)) return &model->families[f]->tensors[i];
  }
  return NULL;
}

/* Sets the suffix of names that have none of the usual ones: "experts.gate_up_proj" is a weight,
 * "experts.gate_up_proj_bias" a bias, and for others the rule decides. */
static void set_suffix(const xfer_model *model, xfi_entry *e, const xfi_tensor_rule *rule)
{
  if (e->suffix[0] != '\0' || (rule->suffix == NULL && rule->n_dims == 0)) return;
  e->suffix = rule->suffix != NULL ? rule->suffix : "weight";
  e->scales = strcmp(e->suffix, SUFFIXES[SCALE_INV]) == 0 ? XFI_SCALES_OF_BLOCKS : XFI_NO_SCALES;
  if (rule->suffix != NULL && rule_of_weight(model, *e) != NULL) e->n_stem = n_parent(e);
}

static xfer_status apply_rule(xfer_model *model, size_t *at)
{
  xfi_entry *e = &model->entries[*at];
  const xfi_tensor_rule *rule;
  int n_named;

  XFI_TRY(find_rule(&rule, model, e, &n_named));
  e->matched = true;
  if (rule == NULL) {
    if (n_named > 0 && e->n_experts == 0 && e->n_dims > 1) return refuse_form(model, e);
    e->companion_of = rule_of_weight(model, *e);
    return XFER_OK;
  }
  set_suffix(model, e, rule);
  e->alias = rule->alias;
  XFI_CHECK(
      strcmp(e->suffix, "weight_scale_inv") != 0 || e->n_dims > 1 + (e->n_experts > 0),
      XFER_ERR_UNSUPPORTED,
      "\"%s\" is one scale of a whole weight by the name of those of blocks, and no rule says "
      "what engines make of it: refit an unquantised checkpoint, or one with weight_scale",
      e->pattern);
  if (e->scales != XFI_SCALES_OF_WEIGHTS) reorder_dims(e, rule);
  XFI_CHECK(e->scales != XFI_SCALES_OF_WEIGHTS || (rule->role != NULL && rule->n_segments < 2),
            XFER_ERR_UNSUPPORTED,
            "\"%s\" is one scale of several weights, and no rule says what engines make of it",
            e->pattern);
  if (rule->role == NULL) {
    XFI_TRY(take_apart(model, *at, rule));
    *at += (size_t)rule->n_segments - 1;
  } else {
    e->role = rule->role;
    XFI_TRY(set_rows(model, e, rule->segments,
                     e->scales == XFI_SCALES_OF_WEIGHTS ? 0 : rule->n_segments));
  }
  return XFER_OK;
}

/* Refuses experts in one tensor of the checkpoint without a rule: their form differs by family. */
static xfer_status check_stacked(const xfer_model *model, const xfi_entry *e)
{
  XFI_CHECK(e->role != NULL || e->stack == XFI_OUTSIDE || e->n_experts > 0 || e->n_dims != 3 ||
                strstr(e->stem, "experts.") == NULL,
            XFER_ERR_UNSUPPORTED,
            "\"%s\" holds experts in one tensor, and no rule of model_type \"%s\" says in which "
            "form: gate and up as halves or alternating, of rows or of columns",
            e->pattern, model->model_type);
  return XFER_OK;
}

xfer_status xfi_roles_find(xfer_model *model)
{
  for (size_t i = 0; i < model->n_entries; i++)
    XFI_TRY(split_extra(model, i));
  for (size_t i = 0; i < model->n_entries; i++) {
    if (!model->entries[i].matched && model->family != NULL) XFI_TRY(apply_rule(model, &i));
  }
  return XFER_OK;
}

/* ---- kinds of layers ---- */

/* Returns the next layer entry from *at on that has a role, and moves *at behind it; NULL: there is
 * none. */
static const xfi_layer_entry *next_ruled(const xfi_layer_entry *layer_entries, size_t n, size_t *at)
{
  while (*at < n && !layer_entries[*at].has_role)
    ++*at;
  return *at < n ? &layer_entries[(*at)++] : NULL;
}

/* Does the entry's k-th layer have the same roles as its first? Layers that differ become an entry
 * of their own. The layer entries are from before any split, which gives the same answer: layers
 * that are alike stay together in each entry. */
static xfer_status is_alike(bool *alike, const xfi_entry *entry, int k, const void *context)
{
  size_t n[2], at[2] = {0, 0};
  const xfi_layer_entry *first =
      xfi_model_layer_entries(context, entry->stack, xfi_entry_layer(entry, 0), &n[0]);
  const xfi_layer_entry *layer =
      xfi_model_layer_entries(context, entry->stack, xfi_entry_layer(entry, k), &n[1]);
  const xfi_layer_entry *x, *y;

  do {
    x = next_ruled(first, n[0], &at[0]);
    y = next_ruled(layer, n[1], &at[1]);
  } while (x != NULL && y != NULL && x->entry == y->entry);
  *alike = x == NULL && y == NULL;
  return XFER_OK;
}

xfer_status xfi_roles_split_layers(xfer_model *model)
{
  XFI_TRY(xfi_model_index_layers(model));
  for (size_t i = 0; i < model->n_entries; i++) {
    if (model->entries[i].role != NULL) XFI_TRY(xfi_model_split(model, i, is_alike, model));
    XFI_TRY(check_stacked(model, &model->entries[i]));
  }
  return XFER_OK;
}
