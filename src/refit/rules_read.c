/* Reads a file of rules. Each field is named in one place here; what no field is called is an
 * error, with its line. */
#include "rules.h"

#include "alloc.h"
#include "dtype.h"
#include "error.h"
#include "rules_fields.h"
#include "vec.h"

#include <string.h>

#define BAD(doc, value, ...) xfi_rules_bad((doc), (value), __VA_ARGS__)
#define READ(doc, object, what, fields)                                                            \
  xfi_rules_fields((doc), (object), (what), (fields), sizeof(fields) / sizeof *(fields))

/* [[expression, sentence], ..] */
static xfer_status check_require(const xfi_doc *doc, const json_t *list)
{
  const json_t *pair;
  size_t i;
  xfer_status st = XFER_OK;

  json_array_foreach((json_t *)(uintptr_t)list, i, pair)
  {
    XFI_TRY(xfi_rules_check_expr(doc, json_array_get(pair, 0)));
  }
done:
  return st;
}

/* ---- tensors of a family ---- */

/* [name, count, unit]; unit is an expression or [[name, rows], ..] */
static xfer_status read_segment(const xfi_doc *doc, const json_t *list, xfi_segment_rule *segment)
{
  const json_t *unit = json_array_get(list, 2);
  xfer_status st = XFER_OK;

  if (json_array_size(list) != 3 || !xfi_rules_is_text(json_array_get(list, 0)) ||
      !xfi_rules_is_text(json_array_get(list, 1)))
    return BAD(doc, list, "rows are [name, how many times, rows]");
  segment->name = json_string_value(json_array_get(list, 0));
  segment->count = json_string_value(json_array_get(list, 1));
  XFI_TRY(xfi_rules_check_expr(doc, json_array_get(list, 1)));
  if (xfi_rules_is_text(unit)) {
    segment->unit = json_string_value(unit);
    return xfi_rules_check_expr(doc, unit);
  }
  if (!xfi_rules_is(unit, PAIRS) || json_array_size(unit) == 0 ||
      json_array_size(unit) > XFI_MAX_SUBS)
    return BAD(doc, list, "what repeats is rows, or up to %d of [name, rows]", XFI_MAX_SUBS);
  segment->n_subs = (int)json_array_size(unit);
  for (int i = 0; i < segment->n_subs; i++) {
    const json_t *sub = json_array_get(unit, (size_t)i);

    segment->sub_names[i] = json_string_value(json_array_get(sub, 0));
    segment->sub_rows[i] = json_string_value(json_array_get(sub, 1));
    XFI_TRY(xfi_rules_check_expr(doc, json_array_get(sub, 1)));
  }
done:
  return st;
}

static xfer_status read_segments(const xfi_doc *doc, const json_t *list, int *n,
                                 xfi_segment_rule *segments)
{
  xfer_status st = XFER_OK;

  if (json_array_size(list) > XFI_MAX_SEGMENTS)
    return BAD(doc, list, "more than %d parts", XFI_MAX_SEGMENTS);
  for (*n = 0; (size_t)*n < json_array_size(list); (*n)++)
    XFI_TRY(read_segment(doc, json_array_get(list, (size_t)*n), &segments[*n]));
done:
  return st;
}

static xfer_status read_dims(const xfi_doc *doc, const json_t *dims, const json_t *shape,
                             xfi_tensor_rule *t)
{
  static const char *const WORDS[] = {"experts", "rows", "columns"};
  bool seen[3] = {false};
  xfer_status st = XFER_OK;

  if (json_array_size(dims) > sizeof t->dims) return BAD(doc, dims, "more than four dims");
  for (size_t i = 0; i < json_array_size(dims); i++) {
    const char *word = json_string_value(json_array_get(dims, i));
    int k = 0;

    while (k < 3 && strcmp(WORDS[k], word) != 0)
      k++;
    if (k == 3 || (seen[k] && (i + 1 < json_array_size(dims) || t->dims[i - 1] != *WORDS[k])))
      return BAD(doc, dims,
                 "dims are \"experts\", \"rows\" and \"columns\", each once, but that the last "
                 "two may be one");
    seen[k] = true;
    t->dims[t->n_dims++] = *WORDS[k];
  }
  if (t->n_dims > 0 && !seen[1]) return BAD(doc, dims, "dims without \"rows\"");
  if (shape == NULL) return XFER_OK;
  if (json_array_size(shape) > 4 || (t->n_dims > 0 && json_array_size(shape) != (size_t)t->n_dims))
    return BAD(doc, shape, "a shape of %zu dims", json_array_size(shape));
  for (size_t i = 0; i < json_array_size(shape); i++) {
    XFI_TRY(xfi_rules_check_expr(doc, json_array_get(shape, i)));
    t->shape[i] = json_string_value(json_array_get(shape, i));
  }
done:
  return st;
}

static xfer_status read_tensor(const xfi_doc *doc, const json_t *object, xfi_tensor_rule *t)
{
  const json_t *rows = NULL, *holds = NULL, *dims = NULL, *shape = NULL;
  const xfi_field fields[] = {{"name", TEXT, &t->name, true},
                              {"suffix", TEXT, &t->suffix, false},
                              {"when", EXPR, &t->when, false},
                              {"role", TEXT, &t->role, false},
                              {"rows", LIST, &rows, false},
                              {"holds", LIST, &holds, false},
                              {"dims", TEXTS, &dims, false},
                              {"shape", TEXTS, &shape, false},
                              {"alternate", FLAG, &t->alternate, false}};
  xfer_status st = XFER_OK;

  t->source = object;
  XFI_TRY(READ(doc, object, "a tensor", fields));
  if ((t->role == NULL) == (holds == NULL))
    return BAD(doc, object, "\"%.80s\" needs either \"role\" or \"holds\"", t->name);
  if (holds != NULL && (rows != NULL || shape == NULL))
    return BAD(doc, object, "\"%.80s\" holds several: it needs a shape, and its rows are theirs",
               t->name);
  XFI_TRY(read_segments(doc, rows, &t->n_segments, t->segments));
  XFI_TRY(read_segments(doc, holds, &t->n_holds, t->holds));
  for (int i = 0; i < t->n_holds; i++)
    t->held_roles[i] = t->holds[i].name;
  if (t->alternate && t->n_holds < 2)
    return BAD(doc, object, "\"%.80s\": what alternates?", t->name);
  XFI_TRY(read_dims(doc, dims, shape, t));
done:
  return st;
}

/* ---- local tensors of a side ---- */

static xfer_status read_choice(const xfi_doc *doc, const json_t *object, const char *name,
                               const char *value, const char *const *choices, int *which)
{
  *which = 0;
  if (value == NULL) return XFER_OK;
  for (; choices[*which] != NULL; (*which)++) {
    if (strcmp(choices[*which], value) == 0) return XFER_OK;
  }
  return BAD(doc, object, "\"%s\" cannot be \"%.60s\"", name, value);
}

/* "attn.q" or {"of": "attn.q", "take": "gate", "few": "replicate"} */
static xfer_status read_part(const xfi_doc *doc, const json_t *value, xfi_part_rule *part)
{
  static const char *const ORDERS[] = {"as_it_is", "pairs_apart", "pairs_together", NULL};
  static const char *const FEWS[] = {"refuse", "one", "replicate", NULL};
  const char *few = NULL, *order = NULL;
  int which;
  const xfi_field fields[] = {{"of", TEXT, &part->role, true},
                              {"take", TEXT, &part->take, false},
                              {"few", TEXT, &few, false},
                              {"order", TEXT, &order, false}};
  xfer_status st = XFER_OK;

  *part = (xfi_part_rule){0};
  if (xfi_rules_is_text(value)) {
    part->role = json_string_value(value);
    return XFER_OK;
  }
  XFI_TRY(READ(doc, value, "a part", fields));
  XFI_TRY(read_choice(doc, value, "order", order, ORDERS, &which));
  part->order = (xfi_order)which;
  XFI_TRY(read_choice(doc, value, "few", few, FEWS, &which));
  part->few = (xfi_few)which;
done:
  return st;
}

static xfer_status read_made(const xfi_doc *doc, const json_t *made, xfi_local_rule *r)
{
  xfer_dtype dtype = XFER_F32;

  if (made == NULL) return XFER_OK;
  if (json_array_size(made) != 2 ||
      xfi_dtype_parse(&dtype, json_string_value(json_array_get(made, 1))) != XFER_OK)
    return BAD(doc, made, "\"made\" is [name, element type]");
  r->made = json_string_value(json_array_get(made, 0));
  r->made_dtype = (int)dtype;
  return XFER_OK;
}

static xfer_status read_dtype(const xfi_doc *doc, const json_t *object, const char *name,
                              xfi_local_rule *r)
{
  xfer_dtype dtype = 0;

  if (name != NULL && xfi_dtype_parse(&dtype, name) != XFER_OK)
    return BAD(doc, json_object_get(object, "dtype"), "\"%.60s\" is no element type", name);
  r->dtype = (int)dtype;
  return XFER_OK;
}

/* [how many there are, the multiple of them for which there is room] */
static xfer_status read_units(const xfi_doc *doc, const json_t *list, const char *units[2])
{
  xfer_status st = XFER_OK;

  if (list != NULL && json_array_size(list) != 2)
    return BAD(doc, list, "units are [how many, a multiple of them]");
  for (size_t i = 0; i < json_array_size(list); i++) {
    XFI_TRY(xfi_rules_check_expr(doc, json_array_get(list, i)));
    units[i] = json_string_value(json_array_get(list, i));
  }
done:
  return st;
}

static xfer_status read_local(const xfi_doc *doc, const json_t *object, xfi_local_rule *r)
{
  static const char *const CUTS[] = {"none", "rows", "columns", "vocabulary", NULL};
  static const char *const STAGES[] = {"first", "last", NULL};
  const json_t *parts = NULL, *each = NULL, *made = NULL, *units = NULL, *across = NULL;
  const char *cut = NULL, *stage = NULL, *dtype = NULL;
  int which;
  const xfi_field fields[] = {{"local", TEXT, &r->local, false},
                              {"parts", LIST, &parts, false},
                              {"each", LIST, &each, false},
                              {"with", TEXTS, &r->with, false},
                              {"without", TEXTS, &r->without, false},
                              {"when", EXPR, &r->when, false},
                              {"cut", TEXT, &cut, false},
                              {"groups", EXPR, &r->groups, false},
                              {"whole", EXPR, &r->whole, false},
                              {"reverse", EXPR, &r->reverse, false},
                              {"alternate", EXPR, &r->alternate, false},
                              {"transpose", EXPR, &r->transpose, false},
                              {"absent", EXPR, &r->absent, false},
                              {"everywhere", EXPR, &r->everywhere, false},
                              {"both_ends", EXPR, &r->both_ends, false},
                              {"stage", TEXT, &stage, false},
                              {"last_name", TEXT, &r->last_name, false},
                              {"bias_first", EXPR, &r->bias_first, false},
                              {"units", TEXTS, &units, false},
                              {"across", TEXTS, &across, false},
                              {"hook", FLAG, &r->hook, false},
                              {"made", TEXTS, &made, false},
                              {"dtype", TEXT, &dtype, false},
                              {"less", EXPR, &r->less, false},
                              {"refuse", EXPR, &r->refuse, false},
                              {"says", TEXT, &r->says, false}};
  xfer_status st = XFER_OK;

  r->source = object;
  XFI_TRY(READ(doc, object, "a local tensor", fields));
  if ((parts == NULL) == (each == NULL))
    return BAD(doc, object, "a local tensor needs either \"parts\" or \"each\"");
  r->each = each != NULL;
  if (each != NULL) parts = each;
  r->n_parts = (int)json_array_size(parts);
  if (r->n_parts == 0 || (!r->each && r->n_parts > XFI_MAX_PARTS))
    return BAD(doc, parts, "a local tensor of %d parts", r->n_parts);
  for (int i = 0; i < r->n_parts && !r->each; i++)
    XFI_TRY(read_part(doc, json_array_get(parts, (size_t)i), &r->parts[i]));
  XFI_TRY(read_choice(doc, object, "cut", cut, CUTS, &which));
  r->cut = (xfi_cut_kind)which;
  XFI_TRY(read_choice(doc, object, "stage", stage, STAGES, &which));
  r->last_stage = which == 1;
  XFI_TRY(read_made(doc, made, r));
  XFI_TRY(read_dtype(doc, object, dtype, r));
  XFI_TRY(read_units(doc, units, r->units));
  XFI_TRY(read_units(doc, across, r->across));
  if (r->local == NULL && r->absent == NULL && r->says == NULL)
    return BAD(doc, object, "a local tensor needs \"local\", its name");
  if (r->says == NULL && r->refuse != NULL)
    return BAD(doc, object, "\"refuse\" needs \"says\", a sentence");
done:
  return st;
}

/* "each" stands for as many rules. */
static xfer_status add_local(const xfi_doc *doc, const json_t *object, xfi_local_rule **rules,
                             size_t *n, size_t *capacity)
{
  xfi_local_rule rule = {0};
  const json_t *each;
  size_t k;
  const json_t *part;
  xfer_status st = XFER_OK;

  XFI_TRY(read_local(doc, object, &rule));
  each = json_object_get(object, "each");
  if (each == NULL) {
    XFI_TRY(xfi_vec_reserve(rules, capacity, *n + 1, sizeof **rules));
    (*rules)[(*n)++] = rule;
    return XFER_OK;
  }
  rule.each = false;
  rule.n_parts = 1;
  XFI_TRY(xfi_vec_reserve(rules, capacity, *n + json_array_size(each), sizeof **rules));
  json_array_foreach((json_t *)(uintptr_t)each, k, part)
  {
    XFI_TRY(read_part(doc, part, &rule.parts[0]));
    (*rules)[(*n)++] = rule;
  }
done:
  return st;
}

static xfer_status read_locals(const xfi_doc *doc, const json_t *list, xfi_local_rule **rules,
                               size_t *n)
{
  size_t i, capacity = 0;
  const json_t *object;
  xfer_status st = XFER_OK;

  json_array_foreach((json_t *)(uintptr_t)list, i, object)
  {
    XFI_TRY(add_local(doc, object, rules, n, &capacity));
  }
done:
  return st;
}

/* ---- a family ---- */

static xfer_status read_family_sides(const xfi_doc *doc, const json_t *sides, xfi_family *f)
{
  const char *name;
  const json_t *object;
  xfer_status st = XFER_OK;

  f->sides = xfi_calloc(json_object_size(sides) + 1, sizeof *f->sides);
  XFI_CHECK(f->sides != NULL, XFER_ERR_NOMEM, "the sides of %s", doc->where);
  json_object_foreach((json_t *)(uintptr_t)sides, name, object)
  {
    xfi_family_side *s = &f->sides[f->n_sides++];
    const json_t *locals = NULL;
    const xfi_field fields[] = {{"set", EXPRS, &s->set, false},
                                {"require", PAIRS, &s->require, false},
                                {"locals", LIST, &locals, false}};

    s->side = name;
    XFI_TRY(READ(doc, object, "a side of a family", fields));
    XFI_TRY(check_require(doc, s->require));
    XFI_TRY(read_locals(doc, locals, &s->locals, &s->n_locals));
  }
done:
  return st;
}

static xfer_status read_family(xfer_rules *rules, const xfi_doc *doc)
{
  const json_t *tensors = NULL, *sides = NULL, *object;
  xfi_family *f;
  size_t i;
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_vec_reserve(&rules->families, &rules->families_cap, rules->n_families + 1,
                          sizeof *rules->families));
  f = &rules->families[rules->n_families++];
  f->doc = doc;
  const xfi_field fields[] = {{"format", TEXT, NULL, true},
                              {"family", TEXT, &f->name, true},
                              {"about", TEXT, NULL, false},
                              {"include", TEXTS, &f->include, false},
                              {"model_type", TEXTS, &f->model_types, false},
                              {"recognise", TEXTS, &f->recognise, false},
                              {"config", EXPRS, &f->config, false},
                              {"prefixes", TEXTS, &f->prefixes, false},
                              {"scaled", TEXTS, &f->scaled, false},
                              {"tensors", LIST, &tensors, false},
                              {"sides", OBJECT, &sides, false}};
  f->name = ""; /* what is half read is never looked for by name, but is freed */
  XFI_TRY(READ(doc, doc->root, "a family", fields));
  f->tensors = xfi_calloc(json_array_size(tensors) + 1, sizeof *f->tensors);
  XFI_CHECK(f->tensors != NULL, XFER_ERR_NOMEM, "the tensors of %s", doc->where);
  json_array_foreach((json_t *)(uintptr_t)tensors, i, object)
  {
    XFI_TRY(read_tensor(doc, object, &f->tensors[f->n_tensors]));
    f->n_tensors++;
  }
  if (sides != NULL) XFI_TRY(read_family_sides(doc, sides, f));
done:
  return st;
}

/* ---- a side ---- */

/* [[name, size], ..] or [[name, size, use], ..] */
static xfer_status read_axes(const xfi_doc *doc, const json_t *list, int *n, const char **names,
                             const char **sizes, xfi_axis_use *uses)
{
  static const char *const USES[] = {"cut", "experts", "fsdp", NULL};
  const json_t *axis;
  size_t i;
  int which;
  xfer_status st = XFER_OK;

  if (json_array_size(list) > XFI_MAX_AXES)
    return BAD(doc, list, "more than %d axes", XFI_MAX_AXES);
  json_array_foreach((json_t *)(uintptr_t)list, i, axis)
  {
    if (!xfi_rules_is(axis, TEXTS) || json_array_size(axis) != (uses == NULL ? 2 : 3))
      return BAD(doc, axis, "an axis is [name, size%s]", uses == NULL ? "" : ", use");
    names[i] = json_string_value(json_array_get(axis, 0));
    sizes[i] = json_string_value(json_array_get(axis, 1));
    XFI_TRY(xfi_rules_check_expr(doc, json_array_get(axis, 1)));
    if (uses != NULL) {
      XFI_TRY(
          read_choice(doc, axis, "use", json_string_value(json_array_get(axis, 2)), USES, &which));
      uses[i] = (xfi_axis_use)which;
    }
  }
  *n = (int)json_array_size(list);
done:
  return st;
}

static xfer_status check_items(const xfi_doc *doc, const xfi_side_rules *s)
{
  const char *name;
  const json_t *value;

  json_object_foreach((json_t *)(uintptr_t)s->numbers, name, value)
  {
    if (!json_is_integer(value) || json_integer_value(value) < 0)
      return BAD(doc, value, "the number \"%.60s\" is not from 0", name);
  }
  json_object_foreach((json_t *)(uintptr_t)s->choices, name, value)
  {
    if (!xfi_rules_is(value, TEXTS) || json_array_size(value) == 0)
      return BAD(doc, value, "the choices of \"%.60s\" are no list of texts", name);
  }
  return XFER_OK;
}

static xfer_status read_side(xfer_rules *rules, const xfi_doc *doc)
{
  static const char *const CUTS[] = {"chunk", "balanced", "even", NULL}; /* by xfer_split_rule */
  static const char *const SPARES[] = {"none", "last", "inner", "first", NULL};
  const json_t *ranks = NULL, *dense = NULL, *experts = NULL, *locals = NULL;
  const char *spare = NULL, *cut = NULL;
  int which;
  xfi_side_rules *s;
  xfer_status st = XFER_OK;

  XFI_TRY(
      xfi_vec_reserve(&rules->sides, &rules->sides_cap, rules->n_sides + 1, sizeof *rules->sides));
  s = &rules->sides[rules->n_sides++];
  s->doc = doc;
  const xfi_field fields[] = {{"format", TEXT, NULL, true},
                              {"side", TEXT, &s->name, true},
                              {"about", TEXT, NULL, false},
                              {"numbers", OBJECT, &s->numbers, false},
                              {"choices", OBJECT, &s->choices, false},
                              {"flags", TEXTS, &s->flags, false},
                              {"require", PAIRS, &s->require, false},
                              {"kernel_forms", EXPR, &s->kernel_forms, false},
                              {"ranks", LIST, &ranks, true},
                              {"stage", TEXT, &s->stage, false},
                              {"chunks", EXPR, &s->chunks, false},
                              {"chunk_prefix", TEXT, &s->chunk_prefix, false},
                              {"dense", LIST, &dense, true},
                              {"experts", LIST, &experts, true},
                              {"even", FLAG, &s->even, false},
                              {"spare_layers", TEXT, &spare, false},
                              {"takes_layers", FLAG, &s->takes_layers, false},
                              {"takes_map", FLAG, &s->takes_map, false},
                              {"stage_numbers", FLAG, &s->stage_numbers, false},
                              {"free_blocks", FLAG, &s->free_blocks, false},
                              {"expert_cut", TEXT, &cut, true},
                              {"round_robin", EXPR, &s->round_robin, false},
                              {"vocabulary", EXPR, &s->vocab, false},
                              {"layers", TEXT, &s->block_main, false},
                              {"extra_layers", TEXT, &s->block_mtp, false},
                              {"absent_layers", EXPR, &s->absent_main, false},
                              {"absent_extra_layers", EXPR, &s->absent_mtp, false},
                              {"holds_unknown", EXPR, &s->holds_unknown, false},
                              {"spellings", PAIRS, &s->spellings, false},
                              {"tied_names", TEXTS, &s->tied_names, false},
                              {"locals", LIST, &locals, true}};
  s->name = s->chunk_prefix = "";
  XFI_TRY(READ(doc, doc->root, "a side", fields));
  XFI_TRY(check_items(doc, s));
  XFI_TRY(check_require(doc, s->require));
  XFI_TRY(read_choice(doc, doc->root, "expert_cut", cut, CUTS, &which));
  s->expert_cut = (xfer_split_rule)which;
  XFI_TRY(read_choice(doc, doc->root, "spare_layers", spare, SPARES, &which));
  s->spare_layers = (xfi_spare)which;
  XFI_TRY(read_axes(doc, ranks, &s->n_ranks, s->rank_names, s->rank_sizes, NULL));
  XFI_TRY(read_axes(doc, dense, &s->dense.n_axes, s->dense.names, s->dense.sizes, s->dense.uses));
  XFI_TRY(read_axes(doc, experts, &s->experts.n_axes, s->experts.names, s->experts.sizes,
                    s->experts.uses));
  XFI_TRY(read_locals(doc, locals, &s->locals, &s->n_locals));
done:
  return st;
}

xfer_status xfi_rules_add(xfer_rules *rules, const xfi_doc *doc)
{
  const json_t *format = json_object_get(doc->root, "format");
  const char *text = json_string_value(format);

  if (text != NULL && strcmp(text, "xfer-family-v1") == 0) return read_family(rules, doc);
  if (text != NULL && strcmp(text, "xfer-side-v1") == 0) return read_side(rules, doc);
  return BAD(doc, format != NULL ? format : doc->root,
             "its format is neither xfer-family-v1 nor xfer-side-v1");
}
