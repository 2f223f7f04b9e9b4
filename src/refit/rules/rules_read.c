/* Reads a file of rules. All fields of an object are listed in one place, and an unknown key is an
 * error with its line. */
#include "rules.h"

#include "alloc.h"
#include "error.h"
#include "names.h"
#include "rules_fields.h"
#include "vec.h"

#include <string.h>

/* ---- tensors of a family ---- */

/* Reads [name, count, unit], where unit is an expression or [[name, rows], ..]. */
static xfer_status read_segment(const xfi_doc *doc, const json_t *list, xfi_segment_rule *segment)
{
  const json_t *unit = json_array_get(list, 2);

  if (json_array_size(list) != 3 || !xfi_rules_is_text(json_array_get(list, 0)) ||
      !xfi_rules_is_text(json_array_get(list, 1)))
    return xfi_doc_error(doc, list, "rows are [name, how many times, rows]");
  segment->at = list;
  segment->name = xfi_doc_text(list, 0);
  segment->count = xfi_doc_text(list, 1);
  XFI_TRY(xfi_rules_check_expr(doc, json_array_get(list, 1)));
  if (xfi_rules_is_text(unit)) {
    segment->unit = json_string_value(unit);
    return xfi_rules_check_expr(doc, unit);
  }
  if (!xfi_rules_is(unit, PAIRS) || json_array_size(unit) == 0 ||
      json_array_size(unit) > XFI_MAX_SUBS)
    return xfi_doc_error(doc, list, "what repeats is rows, or up to %d of [name, rows]",
                         XFI_MAX_SUBS);
  segment->n_subs = (int)json_array_size(unit);
  for (int i = 0; i < segment->n_subs; i++) {
    const json_t *sub = json_array_get(unit, (size_t)i);

    segment->sub_names[i] = xfi_doc_text(sub, 0);
    segment->sub_rows[i] = xfi_doc_text(sub, 1);
    XFI_TRY(xfi_rules_check_expr(doc, json_array_get(sub, 1)));
  }
  return XFER_OK;
}

static xfer_status read_segments(const xfi_doc *doc, const json_t *list, xfi_tensor_rule *t)
{
  if (json_array_size(list) > XFI_MAX_SEGMENTS)
    return xfi_doc_error(doc, list, "more than %d parts", XFI_MAX_SEGMENTS);
  t->n_segments = (int)json_array_size(list);
  for (int i = 0; i < t->n_segments; i++)
    XFI_TRY(read_segment(doc, json_array_get(list, (size_t)i), &t->segments[i]));
  return XFER_OK;
}

static xfer_status read_dims(const xfi_doc *doc, const json_t *dims, const json_t *shape,
                             xfi_tensor_rule *t)
{
  static const char *const WORDS[] = {"experts", "rows", "columns", NULL};
  bool seen[3] = {strstr(t->name, "{expert}") != NULL};

  if (json_array_size(dims) > sizeof t->dims)
    return xfi_doc_error(doc, dims, "more than four dims");
  for (size_t i = 0; i < json_array_size(dims); i++) {
    const int k = xfi_rules_choice(WORDS, xfi_doc_text(dims, i));

    if (k < 0 || (seen[k] && (i == 0 || t->dims[i - 1] != *WORDS[k])))
      return xfi_doc_error(
          doc, dims,
          "dims are \"experts\", \"rows\" and \"columns\", each once, but that neighbours "
          "may be one");
    seen[k] = true;
    t->dims[t->n_dims++] = *WORDS[k];
  }
  if (t->n_dims > 0 && !seen[1]) return xfi_doc_error(doc, dims, "dims without \"rows\"");
  if (shape == NULL) return XFER_OK;
  if (json_array_size(shape) > 4 || (t->n_dims > 0 && json_array_size(shape) != (size_t)t->n_dims))
    return xfi_doc_error(doc, shape, "a shape of %zu dims", json_array_size(shape));
  for (size_t i = 0; i < json_array_size(shape); i++)
    t->shape[i] = xfi_doc_text(shape, i);
  return XFER_OK;
}

static xfer_status read_tensor(const xfi_doc *doc, const json_t *object, xfi_tensor_rule *t)
{
  const json_t *rows = NULL, *holds = NULL, *dims = NULL, *shape = NULL;
  const xfi_field fields[] = {
      NEEDED("name", TEXT, &t->name),  FIELD("suffix", TEXT, &t->suffix),
      FIELD("alias", TEXT, &t->alias), FIELD("when", EXPR, &t->when),
      FIELD("role", TEXT, &t->role),   FIELD("rows", LIST, &rows),
      FIELD("holds", LIST, &holds),    FIELD("dims", TEXTS, &dims),
      FIELD("shape", LISTED, &shape),  FIELD("alternate", FLAG, &t->alternate)};

  t->at = object;
  XFI_TRY(XFI_RULES_READ(doc, object, "a tensor", fields));
  if ((t->role == NULL) == (holds == NULL))
    return xfi_doc_error(doc, object, "\"%.80s\" needs either \"role\" or \"holds\"", t->name);
  if (holds != NULL && (rows != NULL || shape == NULL || json_array_size(holds) == 0))
    return xfi_doc_error(
        doc, object, "\"%.80s\" holds several: it needs a shape, and its rows are theirs", t->name);
  XFI_TRY(read_segments(doc, holds != NULL ? holds : rows, t));
  if (t->alternate && (holds == NULL || t->n_segments < 2))
    return xfi_doc_error(doc, object, "\"%.80s\": what alternates?", t->name);
  return read_dims(doc, dims, shape, t);
}

/* ---- local tensors of a side ---- */

/* Reads "attn.q" or {"role": "attn.q", "take": "gate", "few_units": "replicate"}. */
static xfer_status read_part(const xfi_doc *doc, const json_t *value, xfi_part_rule *part)
{
  static const char *const ORDERS[] = {"as_it_is", "pairs_apart", "pairs_together", NULL};
  static const char *const FEWS[] = {"refuse", "one", "replicate", "cut", NULL};
  const xfi_field fields[] = {NEEDED("role", TEXT, &part->role),
                              FIELD("take", TEXT, &part->take),
                              {"few_units", CHOICE, &part->few, false, FEWS},
                              {"order", CHOICE, &part->order, false, ORDERS},
                              FIELD("last_expert", FLAG, &part->last_expert)};

  *part = (xfi_part_rule){.at = value};
  if (xfi_rules_is_text(value)) {
    part->role = json_string_value(value);
    return XFER_OK;
  }
  return XFI_RULES_READ(doc, value, "a part", fields);
}

/* Checks the placeholders of a name: one that is misspelt would be part of the name. */
static xfer_status check_placeholders(const xfi_doc *doc, const json_t *at, const char *name,
                                      const char *const *known)
{
  for (const char *open = name; open != NULL && *open != '\0'; open++) {
    const size_t n = strcspn(open, "}") + 1;
    int k = 0;

    if (*open != '{') continue;
    while (known[k] != NULL && !xfi_name_is(open, n, known[k]))
      k++;
    if (known[k] == NULL)
      return xfi_doc_error(doc, at, "\"%.100s\" has no placeholder at \"%.40s\"", name, open);
  }
  return XFER_OK;
}

/* Those in the names of local tensors, which join/param_mapping.c explains, and in what is before
 * them.
 */
static const char *const IN_NAMES[] = {
    "{layer_prefix}", "{name}", "{local}", "{n_layers}", "{layer}", "{checkpoint_layer}", NULL};
static const char *const IN_PREFIXES[] = {"{layer}", "{checkpoint_layer}", NULL};

static xfer_status read_local(const xfi_doc *doc, const json_t *object, xfi_local_rule *r)
{
  static const char *const CUTS[] = {"none", "rows", "columns", "vocabulary", NULL};
  static const char *const STAGES[] = {"first", "last", "last_layer", NULL};
  const json_t *parts = NULL, *each = NULL;
  const char **is = r->properties;
  const xfi_field fields[] = {FIELD("local", TEXT, &r->local),
                              FIELD("parts", LIST, &parts),
                              FIELD("each", LIST, &each),
                              FIELD("with", TEXTS, &r->with),
                              FIELD("without", TEXTS, &r->without),
                              FIELD("when", ALL, &r->when),
                              {"cut", CHOICE, &r->cut, false, CUTS},
                              FIELD("groups", EXPR, &is[XFI_GROUPS]),
                              FIELD("whole", EXPR, &is[XFI_WHOLE]),
                              FIELD("wide", EXPR, &is[XFI_WIDE]),
                              FIELD("reverse", EXPR, &is[XFI_REVERSE]),
                              FIELD("alternate", EXPR, &is[XFI_ALTERNATE]),
                              FIELD("transpose", EXPR, &is[XFI_TRANSPOSE]),
                              FIELD("absent", EXPR, &is[XFI_ABSENT]),
                              FIELD("needs_no_layers", EXPR, &is[XFI_NEEDS_NO_LAYERS]),
                              FIELD("everywhere", EXPR, &is[XFI_EVERYWHERE]),
                              FIELD("both_ends", EXPR, &is[XFI_BOTH_ENDS]),
                              {"stage", CHOICE, &r->stage, false, STAGES},
                              FIELD("last_name", TEXT, &r->last_name),
                              FIELD("bias_first", EXPR, &is[XFI_BIAS_FIRST]),
                              FIELD("units", TWO, &is[XFI_UNITS]),
                              FIELD("across", TWO, &is[XFI_ACROSS]),
                              FIELD("multiple", EXPR, &is[XFI_MULTIPLE]),
                              FIELD("hook", FLAG, &r->hook),
                              FIELD("made", TEXT, &r->made),
                              FIELD("made_dtype", DTYPE, &r->made_dtype),
                              FIELD("dtype", DTYPE, &r->dtype),
                              FIELD("unscaled", FLAG, &r->unscaled),
                              FIELD("subtract", EXPR, &is[XFI_SUBTRACT]),
                              FIELD("refusal", TEXT, &r->refusal)};

  XFI_TRY(XFI_RULES_READ(doc, object, "a local tensor", fields));
  if ((parts == NULL) == (each == NULL))
    return xfi_doc_error(doc, object, "a local tensor needs either \"parts\" or \"each\"");
  if ((is[XFI_UNITS] != NULL || is[XFI_ACROSS] != NULL) && r->cut != XFI_CUT_ROWS &&
      r->cut != XFI_CUT_COLS)
    return xfi_doc_error(doc, object,
                         "\"units\" and \"across\" are of what is cut by rows or columns");
  if (is[XFI_MULTIPLE] != NULL && r->cut != XFI_CUT_ROWS)
    return xfi_doc_error(doc, object, "\"multiple\" is of what is cut by rows");
  if ((r->made == NULL) != (r->made_dtype == 0))
    return xfi_doc_error(doc, object, "\"made\" and \"made_dtype\" go together");
  r->n_parts = each != NULL ? 1 : (int)json_array_size(parts);
  if (json_array_size(each) + json_array_size(parts) == 0 || r->n_parts > XFI_MAX_PARTS)
    return xfi_doc_error(doc, each != NULL ? each : parts, "a local tensor of %zu parts",
                         json_array_size(parts));
  for (int i = 0; i < r->n_parts && each == NULL; i++)
    XFI_TRY(read_part(doc, json_array_get(parts, (size_t)i), &r->parts[i]));
  if (r->local == NULL && is[XFI_ABSENT] == NULL && r->refusal == NULL)
    return xfi_doc_error(doc, object, "a local tensor needs \"local\", its name");
  XFI_TRY(check_placeholders(doc, object, r->local, IN_NAMES));
  XFI_TRY(check_placeholders(doc, object, r->last_name, IN_NAMES));
  return check_placeholders(doc, object, r->made, IN_NAMES);
}

/* An "each" stands for one rule for each of its items. */
static xfer_status read_locals(const xfi_doc *doc, const json_t *list, xfi_local_rule **rules,
                               size_t *n)
{
  size_t i, k, capacity = 0;
  const json_t *object, *each, *part;

  json_array_foreach(list, i, object)
  {
    xfi_local_rule rule = {0};

    XFI_TRY(read_local(doc, object, &rule));
    each = json_object_get(object, "each");
    XFI_TRY(xfi_vec_reserve(rules, &capacity, *n + json_array_size(each) + 1, sizeof **rules));
    if (each == NULL) (*rules)[(*n)++] = rule;
    json_array_foreach(each, k, part)
    {
      XFI_TRY(read_part(doc, part, &rule.parts[0]));
      (*rules)[(*n)++] = rule;
    }
  }
  return XFER_OK;
}

/* ---- a family ---- */

static xfer_status read_family_sides(const xfi_doc *doc, const json_t *sides, xfi_family *f)
{
  const char *name;
  const json_t *object;

  f->sides = xfi_calloc(json_object_size(sides) + 1, sizeof *f->sides);
  XFI_CHECK(f->sides != NULL, XFER_ERR_NOMEM, "the sides of %s", doc->where);
  json_object_foreach((json_t *)(uintptr_t)sides, name, object)
  {
    xfi_family_side *s = &f->sides[f->n_sides++];
    const json_t *locals = NULL;
    const xfi_field fields[] = {FIELD("layer_prefix", TEXT, &s->layer_prefix),
                                FIELD("extra_layer_prefix", TEXT, &s->extra_layer_prefix),
                                FIELD("set", EXPRS, &s->set),
                                FIELD("require", REQUIRES, &s->require),
                                FIELD("unquantised", TEXTS, &s->unquantised),
                                FIELD("locals", LIST, &locals)};

    s->side = name;
    XFI_TRY(XFI_RULES_READ(doc, object, "a side of a family", fields));
    XFI_TRY(check_placeholders(doc, object, s->layer_prefix, IN_PREFIXES));
    XFI_TRY(check_placeholders(doc, object, s->extra_layer_prefix, IN_PREFIXES));
    XFI_TRY(read_locals(doc, locals, &s->locals, &s->n_locals));
  }
  return XFER_OK;
}

/* Adds to the family's words what precedes the number of a layer in a tensor's name, such as
 * "layers" or "h". */
static xfer_status find_word(const xfi_doc *doc, const json_t *object, xfi_tensor_rule *t,
                             xfi_family *f)
{
  static const char NUMBER[] = ".{layer}.";
  const size_t n = strcspn(t->name, ".");
  int k = 0;

  if (n == 0 || strncmp(t->name + n, NUMBER, sizeof NUMBER - 1) != 0) return XFER_OK;
  t->n_layer = n + sizeof NUMBER - 1;
  while (k < f->n_layer_words && strncmp(f->layer_words[k], t->name, n + 1) != 0)
    k++;
  if (k == XFI_MAX_LAYER_WORDS)
    return xfi_doc_error(doc, object, "layers of more than %d names", XFI_MAX_LAYER_WORDS);
  if (k == f->n_layer_words) f->layer_words[f->n_layer_words++] = t->name;
  return XFER_OK;
}

static xfer_status read_family(xfer_rules *rules, const xfi_doc *doc)
{
  const json_t *tensors = NULL, *sides = NULL, *object;
  xfi_family *f;
  size_t i;

  XFI_TRY(xfi_vec_reserve(&rules->families, &rules->families_cap, rules->n_families + 1,
                          sizeof *rules->families));
  f = &rules->families[rules->n_families++];
  f->doc = doc;
  const xfi_field fields[] = {NEEDED("format", TEXT, NULL),
                              NEEDED("family", TEXT, &f->name),
                              FIELD("about", TEXT, NULL),
                              FIELD("include", TEXTS, &f->include),
                              FIELD("model_type", TEXTS, &f->model_types),
                              FIELD("recognise", TEXTS, &f->recognise),
                              FIELD("config", EXPRS, &f->config),
                              FIELD("counts", EXPRS, &f->counts),
                              FIELD("where", EXPRS, &f->where),
                              FIELD("needs", EXPRS, &f->needs),
                              FIELD("sizes", TWOS, &f->sizes),
                              FIELD("prefixes", TEXTS, &f->prefixes),
                              FIELD("scaled", TEXTS, &f->scaled),
                              FIELD("tensors", LIST, &tensors),
                              FIELD("sides", OBJECT, &sides)};
  f->name = ""; /* a family whose reading fails is not found by its name, but it is freed */
  XFI_TRY(XFI_RULES_READ(doc, doc->root, "a family", fields));
  f->tensors = xfi_calloc(json_array_size(tensors) + 1, sizeof *f->tensors);
  XFI_CHECK(f->tensors != NULL, XFER_ERR_NOMEM, "the tensors of %s", doc->where);
  json_array_foreach(tensors, i, object)
  {
    xfi_tensor_rule *t = &f->tensors[f->n_tensors++];

    XFI_TRY(read_tensor(doc, object, t));
    XFI_TRY(find_word(doc, object, t, f));
  }
  if (sides != NULL) XFI_TRY(read_family_sides(doc, sides, f));
  return XFER_OK;
}

/* ---- a side ---- */

/* Reads [[name, size, use], ..], with each use at most once; without `used`, [[name, size], ..]. */
static xfer_status read_axes(const xfi_doc *doc, const json_t *list, xfi_grid_rule *grid, bool used)
{
  static const char *const USES[] = {"cut", "experts", "fsdp", NULL};
  const json_t *axis;
  size_t i;

  if (json_array_size(list) > XFI_MAX_AXES)
    return xfi_doc_error(doc, list, "more than %d axes", XFI_MAX_AXES);
  json_array_foreach(list, i, axis)
  {
    const char *use = used ? xfi_doc_text(axis, 2) : "cut";

    if (!xfi_rules_is(axis, TEXTS) || json_array_size(axis) != (used ? 3 : 2))
      return xfi_doc_error(doc, axis, "an axis is [name, size%s]", used ? ", use" : "");
    grid->names[i] = xfi_doc_text(axis, 0);
    grid->sizes[i] = xfi_doc_text(axis, 1);
    XFI_TRY(xfi_rules_check_expr(doc, json_array_get(axis, 1)));
    if (xfi_rules_choice(USES, use) < 0)
      return xfi_doc_error(doc, axis, "the use of an axis is \"cut\", \"experts\" or \"fsdp\"");
    grid->uses[i] = (xfi_axis_use)xfi_rules_choice(USES, use);
    for (size_t k = 0; k < i && used; k++)
      if (grid->uses[k] == grid->uses[i])
        return xfi_doc_error(doc, axis, "a second axis for \"%s\"", use);
  }
  grid->n_axes = (int)json_array_size(list);
  return XFER_OK;
}

static xfer_status check_name(const xfi_doc *doc, const json_t *at, const char *name)
{
  if (strlen(name) < XFI_ITEM_BYTES) return XFER_OK;
  return xfi_doc_error(doc, at, "the item \"%.60s..\" has a name of more than %d characters", name,
                       XFI_ITEM_BYTES - 1);
}

static xfer_status check_items(const xfi_doc *doc, const xfi_side_rules *s)
{
  const char *name;
  const json_t *value;
  size_t i;

  json_object_foreach((json_t *)(uintptr_t)s->numbers, name, value)
  {
    XFI_TRY(check_name(doc, value, name));
    if (!json_is_integer(value) || json_integer_value(value) < 0)
      return xfi_doc_error(doc, value, "the number \"%.60s\" is not from 0", name);
  }
  json_object_foreach((json_t *)(uintptr_t)s->choices, name, value)
  {
    XFI_TRY(check_name(doc, value, name));
    if (!xfi_rules_is(value, TEXTS) || json_array_size(value) == 0)
      return xfi_doc_error(doc, value, "the choices of \"%.60s\" are no list of texts", name);
  }
  json_array_foreach(s->flags, i, value)
  {
    XFI_TRY(check_name(doc, value, json_string_value(value)));
  }
  return XFER_OK;
}

static xfer_status check_prefix(const xfi_doc *doc, const char *field, const char *prefix)
{
  return check_placeholders(doc, json_object_get(doc->root, field), prefix, IN_PREFIXES);
}

static xfer_status check_stage(const xfi_doc *doc, const xfi_side_rules *s)
{
  for (int a = 0; a < s->ranks.n_axes && s->stage != NULL; a++)
    if (strcmp(s->ranks.names[a], s->stage) == 0) return XFER_OK;
  if (s->stage == NULL) return XFER_OK;
  return xfi_doc_error(doc, json_object_get(doc->root, "stage"),
                       "no axis of the ranks is called \"%.60s\"", s->stage);
}

static xfer_status check_spellings(const xfi_doc *doc, const json_t *list)
{
  const json_t *pair;
  size_t i;

  json_array_foreach(list, i, pair)
  {
    if (xfi_glob_check(xfi_doc_text(pair, 0), xfi_doc_text(pair, 1)) != XFER_OK)
      return xfi_doc_error(doc, pair, "%s", xfer_last_error());
  }
  return XFER_OK;
}

static xfer_status read_quant(const xfi_doc *doc, const json_t *object, xfi_quant_rule *q)
{
  static const char WEIGHT[] = "weight_";
  const xfi_field fields[] = {NEEDED("name", TEXT, &q->name), NEEDED("block", TWO, q->block),
                              NEEDED("scales", TEXT, &q->scales),
                              NEEDED("dtype", DTYPE, &q->dtype)};

  XFI_TRY(XFI_RULES_READ(doc, object, "a way to quantise", fields));
  if (strncmp(q->scales, WEIGHT, sizeof WEIGHT - 1) != 0)
    return xfi_doc_error(doc, object, "scales are called \"%s..\", not \"%.60s\"", WEIGHT,
                         q->scales);
  if (q->dtype != XFER_F32 && q->dtype != XFER_F8E8M0)
    return xfi_doc_error(doc, object, "scales are f32 or f8e8m0");
  return XFER_OK;
}

static xfer_status read_quants(const xfi_doc *doc, const json_t *list, xfi_side_rules *s)
{
  size_t i;
  const json_t *object;

  if (json_array_size(list) > XFI_MAX_QUANTS)
    return xfi_doc_error(doc, list, "more than %d ways to quantise", XFI_MAX_QUANTS);
  json_array_foreach(list, i, object)
  {
    XFI_TRY(read_quant(doc, object, &s->quants[s->n_quants++]));
  }
  return XFER_OK;
}

static xfer_status read_side(xfer_rules *rules, const xfi_doc *doc)
{
  static const char *const CUTS[] = {"chunk", "balanced", "even", NULL}; /* by xfer_split_rule */
  static const char *const SPARES[] = {"none", "last", "inner", "first", NULL};
  const json_t *ranks = NULL, *dense = NULL, *wide = NULL, *experts = NULL, *first = NULL,
               *locals = NULL, *quants = NULL;
  xfi_side_rules *s;

  XFI_TRY(
      xfi_vec_reserve(&rules->sides, &rules->sides_cap, rules->n_sides + 1, sizeof *rules->sides));
  s = &rules->sides[rules->n_sides++];
  s->doc = doc;
  const xfi_field fields[] = {NEEDED("format", TEXT, NULL),
                              NEEDED("side", TEXT, &s->name),
                              FIELD("about", TEXT, NULL),
                              FIELD("numbers", OBJECT, &s->numbers),
                              FIELD("choices", OBJECT, &s->choices),
                              FIELD("flags", TEXTS, &s->flags),
                              FIELD("require", REQUIRES, &s->require),
                              NEEDED("ranks", LIST, &ranks),
                              FIELD("stage", TEXT, &s->stage),
                              FIELD("chunks", EXPR, &s->chunks),
                              FIELD("chunk_prefix", TEXT, &s->chunk_prefix),
                              NEEDED("dense", LIST, &dense),
                              FIELD("wide", LIST, &wide),
                              NEEDED("experts", LIST, &experts),
                              FIELD("even", FLAG, &s->even),
                              {"spare_layers", CHOICE, &s->spare_layers, false, SPARES},
                              FIELD("takes_layers", FLAG, &s->takes_layers),
                              FIELD("takes_map", FLAG, &s->takes_map),
                              FIELD("stage_numbers", FLAG, &s->stage_numbers),
                              {"expert_cut", CHOICE, &s->expert_cut, true, CUTS},
                              FIELD("expert_fsdp_dim", EXPR, &s->expert_fsdp_dim),
                              FIELD("round_robin", EXPR, &s->round_robin),
                              FIELD("vocabulary", EXPR, &s->vocab),
                              FIELD("layer_prefix", TEXT, &s->layer_prefix),
                              FIELD("extra_layer_prefix", TEXT, &s->extra_layer_prefix),
                              FIELD("absent_layers", EXPR, &s->absent_layers),
                              FIELD("absent_extra_layers", EXPR, &s->absent_extra_layers),
                              FIELD("holds_unknown", EXPR, &s->holds_unknown),
                              FIELD("spellings", PAIRS, &s->spellings),
                              FIELD("tied_names", TEXTS, &s->tied_names),
                              FIELD("row_scales", DTYPE, &s->row_scales),
                              FIELD("quants", LIST, &quants),
                              FIELD("first", LIST, &first),
                              NEEDED("locals", LIST, &locals)};
  s->name = s->chunk_prefix = "";
  XFI_TRY(XFI_RULES_READ(doc, doc->root, "a side", fields));
  XFI_TRY(check_prefix(doc, "layer_prefix", s->layer_prefix));
  XFI_TRY(check_prefix(doc, "extra_layer_prefix", s->extra_layer_prefix));
  XFI_TRY(check_items(doc, s));
  XFI_TRY(check_spellings(doc, s->spellings));
  XFI_TRY(read_quants(doc, quants, s));
  XFI_TRY(read_axes(doc, ranks, &s->ranks, false));
  XFI_TRY(check_stage(doc, s));
  XFI_TRY(read_axes(doc, dense, &s->dense, true));
  XFI_TRY(read_axes(doc, wide, &s->wide, true));
  XFI_TRY(read_axes(doc, experts, &s->experts, true));
  XFI_TRY(read_locals(doc, first, &s->first, &s->n_first));
  return read_locals(doc, locals, &s->locals, &s->n_locals);
}

xfer_status xfi_rules_add(xfer_rules *rules, const xfi_doc *doc)
{
  const json_t *format = json_object_get(doc->root, "format");
  const char *text = json_string_value(format);

  if (text != NULL && strcmp(text, "xfer-family-v1") == 0) return read_family(rules, doc);
  if (text != NULL && strcmp(text, "xfer-side-v1") == 0) return read_side(rules, doc);
  return xfi_doc_error(doc, format != NULL ? format : doc->root,
                       "its format is neither xfer-family-v1 nor xfer-side-v1");
}
