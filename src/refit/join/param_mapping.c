/*
 * The local tensor of an entry: its name, and the weights that lie in it.
 *
 * In a rule's name {layer_prefix} is what stands before the layer's own names, @ the checkpoint's
 * name after that, ~ the same up to its last dot, % the suffix (with the dot before it left out
 * where there is none), {name} all of the checkpoint's name, {n_layers} how many layers the model
 * has; {layer}, {checkpoint_layer} (the layer's number in the checkpoint) and {local} are filled in
 * later.
 */
#include "param_mapping.h"

#include "alloc.h"
#include "error.h"
#include "quantise.h"
#include "text.h"

#include <string.h>

void xfi_param_mapping_free(xfi_param_mapping *mapping)
{
  xfi_free(mapping->local);
  xfi_free(mapping->last);
  xfi_free(mapping->made);
  memset(mapping, 0, sizeof *mapping);
}

/* ---- names ---- */

static bool take_token(const char **at, const char *token)
{
  size_t n = strlen(token);

  if (strncmp(*at, token, n) != 0) return false;
  *at += n;
  return true;
}

/* The stem, or its parent, without the placeholder of the expert's number. */
static void add_stem(xfi_text *text, const xfi_entry *entry, bool parent)
{
  static const char EXPERT[] = ".{expert}";
  const char *stem = entry->alias != NULL ? entry->alias : entry->stem;
  size_t n = entry->alias != NULL ? strlen(stem) : entry->n_stem;

  while (parent && n > 0 && stem[n - 1] != '.')
    n--;
  if (parent && n > 0) n--;
  for (size_t i = 0; i < n;) {
    if (n - i >= sizeof EXPERT - 1 && strncmp(stem + i, EXPERT, sizeof EXPERT - 1) == 0)
      i += sizeof EXPERT - 1;
    else
      xfi_text_add(text, &stem[i++], 1);
  }
}

static xfer_status make_name(char **name, const xfi_rule_set *set, const xfi_entry *entry,
                             const char *template)
{
  const char *layer_prefix = entry->stack == XFI_LAYERS  ? set->layer_prefix
                             : entry->stack == XFI_EXTRA ? set->extra_layer_prefix
                                                         : NULL;
  xfi_text text = {0};

  /* The chunks of a model in one process have the same names, which their number precedes. */
  if (set->side->chunks > 1 && strstr(template, "{name}") == NULL)
    xfi_text_printf(&text, "%s{chunk}.", set->side->framework->chunk_prefix);
  for (const char *at = template; *at != '\0';) {
    if (take_token(&at, "{layer_prefix}"))
      xfi_text_printf(&text, "%s", layer_prefix == NULL ? "" : layer_prefix);
    else if (take_token(&at, "{name}"))
      xfi_text_printf(&text, "%s", entry->pattern);
    else if (take_token(&at, "{n_layers}"))
      xfi_text_printf(&text, "%d", set->model->n_config_layers);
    else if (take_token(&at, "@"))
      add_stem(&text, entry, false);
    else if (take_token(&at, "~"))
      add_stem(&text, entry, true);
    else if (take_token(&at, "%"))
      xfi_text_printf(&text, "%s", entry->suffix);
    else if (entry->suffix[0] == '\0' && at[0] == '.' && at[1] == '%')
      at += 2;
    else
      xfi_text_add(&text, at++, 1);
  }
  return xfi_text_end(&text, name);
}

/* ---- the weights in a local tensor ---- */

static xfer_status add_slab(xfi_fused_rows *f, xfi_slab slab, const xfi_entry *entry)
{
  XFI_CHECK(f->n_slabs < XFI_MAX_SLABS, XFER_ERR_UNSUPPORTED,
            "\"%s\" lies with others in more than %d slabs of rows", entry->pattern, XFI_MAX_SLABS);
  f->slabs[f->n_slabs++] = slab;
  return XFER_OK;
}

/* The order of an entry's rows. A scale whose block consists of whole units keeps its place,
 * whatever the order of rows within them; other blocks would be torn apart. */
static xfer_status order_of(xfi_order *order, const xfi_rule_set *set, const xfi_entry *entry,
                            const xfi_part_rule *part)
{
  const xfi_entry *weight;

  *order = part == NULL ? XFI_AS_IT_IS : part->order;
  if (*order == XFI_AS_IT_IS || entry->scale_of < 0 || xfi_scales_have_rows(entry->scales))
    return XFER_OK;
  weight = &set->model->entries[entry->scale_of];
  if (weight->block[0] == 1) return XFER_OK;
  for (int s = 0; s < weight->n_segments; s++)
    XFI_CHECK(weight->segments[s].unit > 0 && weight->block[0] % weight->segments[s].unit == 0,
              XFER_ERR_UNSUPPORTED,
              "\"%s\": \"%s\" turns the rows of each head of %lld, which are no part of a block "
              "of %lld",
              weight->pattern, set->side->spec, (long long)weight->segments[s].unit,
              (long long)weight->block[0]);
  *order = XFI_AS_IT_IS;
  return XFER_OK;
}

/* The rows of a weight that `part` takes; all, where it is NULL. */
static xfer_status add_slabs(xfi_fused_rows *f, int number, const xfi_rule_set *set,
                             const xfi_entry *entry, const xfi_part_rule *part)
{
  const xfi_row_segment all = {.name = "", .count = xfi_entry_rows(entry), .unit = 1};
  const char *take = part != NULL ? part->take : NULL;
  xfi_slab slab = {.part = number};
  int64_t offset = 0;

  if (part != NULL) slab.few = part->few;
  XFI_TRY(order_of(&slab.order, set, entry, part));
  for (int s = 0; s == 0 || s < entry->n_segments; s++) {
    const xfi_row_segment *seg = entry->n_segments > 0 ? &entry->segments[s] : &all;

    slab.offset = offset;
    slab.count = seg->count;
    slab.size = slab.stride = seg->unit;
    if (take == NULL || (seg->n_subs == 0 && strcmp(take, seg->name) == 0))
      XFI_TRY(add_slab(f, slab, entry));
    for (int k = 0; k < seg->n_subs && take != NULL; k++) {
      slab.size = seg->sub_rows[k];
      if (strcmp(take, seg->sub_names[k]) == 0) XFI_TRY(add_slab(f, slab, entry));
      slab.offset += slab.size;
    }
    offset += seg->count * seg->unit;
  }
  return XFER_OK;
}

/* Is the entry, by the rule, one more expert behind those of the other parts? */
static xfer_status find_last_expert(bool *is_last, const xfi_rule_set *set, const xfi_entry *entry,
                                    const xfi_local_rule *rule)
{
  int n_last = 0;

  *is_last = false;
  for (int i = 0; i < rule->n_parts; i++) {
    const xfi_part_rule *p = &rule->parts[i];

    n_last += p->last_expert;
    if (xfi_part_find(set, entry, p, entry->suffix) == entry) *is_last = p->last_expert;
  }
  XFI_CHECK(n_last == 0 || (*is_last != entry->experts && strstr(rule->local, "{local}") == NULL),
            XFER_ERR_UNSUPPORTED, "\"%s\": a last expert is of one weight, the others of experts",
            entry->pattern);
  return XFER_OK;
}

/* The weights of a rule, each once, in the order of their first slab. */
static xfer_status add_parts(xfi_param_mapping *mapping, const xfi_rule_set *set,
                             const xfi_entry *entry, const xfi_applied_rule *applied)
{
  const xfi_local_rule *rule = applied->rule;
  const bool reverse = applied->value[XFI_REVERSE] != 0;
  const xfi_entry *parts[2][XFI_MAX_PARTS]; /* [1]: of the last expert */
  int n[2] = {0, 0};

  XFI_TRY(find_last_expert(&mapping->last_expert, set, entry, rule));
  for (int i = 0; i < rule->n_parts; i++) {
    const xfi_part_rule *p = &rule->parts[reverse ? rule->n_parts - 1 - i : i];
    const xfi_entry *e = xfi_part_find(set, entry, p, entry->suffix);
    const int k = p->last_expert;
    int number = 0;

    XFI_CHECK(
        e != NULL, XFER_ERR_SHAPE,
        "\"%s\" lies with \"%s\" in one tensor of \"%s\", but layer %d has no %s of that role",
        entry->pattern, p->role, set->side->spec, xfi_entry_layer(entry, 0),
        entry->suffix[0] == '\0' ? "tensor" : entry->suffix);
    while (number < n[k] && parts[k][number] != e)
      number++;
    if (number == n[k]) parts[k][n[k]++] = e;
    if (e == entry && number == n[k] - 1) mapping->index = number;
    if (k == mapping->last_expert) XFI_TRY(add_slabs(&mapping->fused, number, set, e, p));
  }
  mapping->n_weights = n[mapping->last_expert];
  mapping->n_other_weights = n[!mapping->last_expert];
  return XFER_OK;
}

/* The weights that are packed in one tensor of the checkpoint, in its order. */
static xfer_status add_packed(xfi_param_mapping *mapping, const xfi_rule_set *set,
                              const xfi_entry *entry)
{
  const xfer_model *model = set->model;
  int found = 0;

  mapping->index = entry->packed.index;
  mapping->n_weights = entry->packed.n;
  for (size_t i = 0; i < model->n_entries; i++) { /* adjacent in the list */
    const xfi_entry *e = &model->entries[i];

    if (e->packed.index != found || e->packed.n != entry->packed.n ||
        strcmp(e->pattern, entry->pattern) != 0 ||
        xfi_entry_place(e, xfi_entry_layer(entry, 0)) < 0)
      continue;
    XFI_TRY(add_slabs(&mapping->fused, found++, set, e, NULL));
  }
  XFI_CHECK(found == entry->packed.n, XFER_ERR_INTERNAL, "\"%s\": a part is missing",
            entry->pattern);
  return XFER_OK;
}

/* The number of FSDP ranks that cut the part of tensor parallelism as it lies in memory, through
 * several weights or reordered rows; 0: a cut of rows in order, or none. */
static int fsdp_ranks(const xfi_param_mapping *mapping, const xfi_entry *entry,
                      const xfi_local_rule *rule)
{
  const xfi_grid *grid = mapping->grid;
  bool as_it_is = mapping->n_weights == 1;

  for (int k = 0; k < mapping->fused.n_slabs; k++)
    as_it_is = as_it_is && mapping->fused.slabs[k].order == XFI_AS_IT_IS;
  if (as_it_is || mapping->whole || rule->cut > XFI_CUT_ROWS || entry->experts ||
      mapping->order[0] != mapping->row_dim || mapping->fused.alternate || grid->cut != 0 ||
      grid->rule->n_axes < 2 || grid->rule->uses[1] != XFI_AXIS_FSDP || grid->sizes[1] == 1)
    return 0;
  return grid->sizes[1];
}

/* Which ranks share the rows, and how many. */
static xfer_status set_cut(xfi_param_mapping *mapping, const xfi_rule_set *set,
                           const xfi_entry *entry, const xfi_applied_rule *applied)
{
  const xfer_side *side = set->side;
  const bool wide = applied->value[XFI_WIDE] != 0, experts = entry->experts || mapping->last_expert;
  const xfi_grid *grid = experts ? &side->experts : wide ? &side->wide : &side->dense;

  XFI_CHECK(grid->rule->n_axes > 0 || !wide, XFER_ERR_ARG,
            "\"%s\" is wide, and \"%s\" has no such grid", entry->pattern, side->spec);
  mapping->grid = grid;
  mapping->fused.n_tp = grid->cut < 0 ? 1 : grid->sizes[grid->cut];
  mapping->fused.n_fsdp = fsdp_ranks(mapping, entry, applied->rule);
  mapping->fused.whole = mapping->whole || applied->rule->cut != XFI_CUT_ROWS;
  mapping->fused.even = side->framework->even;
  return XFER_OK;
}

/* A block of scales must not cover the rows of two weights. */
static xfer_status check_blocks(const xfi_param_mapping *mapping, const xfi_rule_set *set,
                                const xfi_entry *entry)
{
  const int64_t block = entry->block[0], rows = entry->shape[mapping->row_dim];

  XFI_CHECK(
      block == 0 || mapping->index + 1 == mapping->n_weights || rows % block == 0,
      XFER_ERR_UNSUPPORTED,
      "\"%s\": its %lld rows are no whole number of blocks of %lld, and others follow them in "
      "one tensor of \"%s\"",
      entry->name, (long long)rows, (long long)block, set->side->spec);
  return XFER_OK;
}

/* Dims and rows in the checkpoint's order. */
static xfer_status as_checkpoint(xfi_param_mapping *mapping, const xfi_rule_set *set,
                                 const xfi_entry *entry)
{
  mapping->own_names = true;
  mapping->each_expert = entry->n_experts > 0;
  memcpy(mapping->order, entry->in_checkpoint.order, sizeof mapping->order);
  XFI_TRY(add_packed(mapping, set, entry));
  XFI_TRY(check_blocks(mapping, set, entry));
  mapping->fused.alternate = entry->packed.alternate;
  return XFER_OK;
}

/* Sets how an engine's kernels or rules change rows and dims of the local tensor after loading. */
static xfer_status shape_mapping(xfi_param_mapping *mapping, const xfi_rule_set *set,
                                 const xfi_entry *entry, const xfi_applied_rule *applied)
{
  const bool alternate = applied->value[XFI_ALTERNATE] != 0;
  bool scaled = entry->scale_of >= 0 || entry->block[0] > 0;

  XFI_CHECK(!alternate || !scaled, XFER_ERR_UNSUPPORTED,
            "\"%s\": rows with block scales cannot be interleaved", entry->pattern);
  XFI_CHECK(!xfi_scales_have_rows(entry->scales) ||
                (set->side->framework->row_scales != 0 && xfi_role_is_scaled(set->model, entry) &&
                 !alternate && applied->value[XFI_REVERSE] == 0 &&
                 applied->value[XFI_TRANSPOSE] == 0),
            XFER_ERR_UNSUPPORTED, "\"%s\": no rule says what \"%s\" makes of a scale for %s",
            entry->pattern, set->side->spec,
            entry->scales == XFI_SCALES_OF_WEIGHTS ? "all of a weight" : "each of its rows");
  XFI_CHECK(entry->scales != XFI_SCALES_OF_WEIGHTS || !entry->experts ||
                strcmp(entry->suffix, "input_scale") != 0,
            XFER_ERR_UNSUPPORTED,
            "\"%s\": \"%s\" has one for gate and up together, and no rule says of which",
            entry->pattern, set->side->spec);
  mapping->flat = entry->scales == XFI_SCALES_OF_WEIGHTS &&
                  (entry->experts || mapping->last_expert) && applied->rule->cut == XFI_CUT_COLS &&
                  !mapping->each_expert;
  mapping->fused.alternate = alternate && mapping->n_weights > 1;
  XFI_TRY(check_blocks(mapping, set, entry));
  XFI_CHECK(applied->rule->properties[XFI_UNITS] == NULL || mapping->fused.alternate ||
                mapping->n_weights == 1,
            XFER_ERR_UNSUPPORTED, "\"%s\": units of several weights that lie one after the other",
            entry->pattern);
  if (applied->value[XFI_TRANSPOSE] != 0 && entry->n_dims + mapping->last_expert == 3) {
    mapping->order[entry->n_dims - 2] = entry->n_dims - 1;
    mapping->order[entry->n_dims - 1] = entry->n_dims - 2;
  }
  return XFER_OK;
}

xfer_status xfi_param_mapping_make(xfi_param_mapping *mapping, const xfi_rule_set *set,
                                   const xfi_entry *entry, const xfi_applied_rule *applied)
{
  const xfi_local_rule *rule = applied->rule;

  *mapping = (xfi_param_mapping){.whole = applied->value[XFI_WHOLE] != 0,
                                 .made_dtype = rule->made_dtype,
                                 .row_dim = xfi_entry_row_dim(entry),
                                 .with_last_layer = rule->stage == XFI_STAGE_LAST_LAYER,
                                 .n_weights = 1};
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    mapping->order[d] = d;
  XFI_TRY(make_name(&mapping->local, set, entry, rule->local));
  mapping->own_number = strstr(mapping->local, "{checkpoint_layer}") != NULL;
  if (rule->last_name != NULL && set->side->pp > 1)
    XFI_TRY(make_name(&mapping->last, set, entry, rule->last_name));
  if (rule->made != NULL) XFI_TRY(make_name(&mapping->made, set, entry, rule->made));
  mapping->fused.groups = applied->value[XFI_GROUPS];
  if (strstr(rule->local, "{name}") != NULL) {
    XFI_TRY(as_checkpoint(mapping, set, entry));
  } else {
    mapping->each_expert = entry->experts && strstr(rule->local, "{local}") != NULL;
    mapping->whole = mapping->whole || entry->scales == XFI_SCALES_OF_WEIGHTS;
    XFI_TRY(add_parts(mapping, set, entry, applied));
    XFI_TRY(shape_mapping(mapping, set, entry, applied));
  }
  return set_cut(mapping, set, entry, applied);
}
