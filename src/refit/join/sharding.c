/* The axes of a sharding. What a framework would refuse is refused here by the tensor's name,
 * before the layout is made. */
#include "sharding.h"

#include "alloc.h"
#include "checked.h"
#include "cuts.h"
#include "error.h"

#include <string.h>

/* Appends an axis that replicates, and returns its index. */
static int add_axis(xfi_sharding *sharding, int size)
{
  sharding->shape[sharding->n_axes] = size;
  sharding->placements[sharding->n_axes] = xfer_replicate();
  return sharding->n_axes++;
}

/* Cuts a dim. Refused if the ranks do not divide the dim, or if a block would be cut. */
static xfer_status cut_dim(xfi_sharding *sharding, const xfi_sharding_input *in, int axis, int dim)
{
  const xfer_side *side = in->set->side;
  const xfi_entry *entry = in->entry;
  const int n = sharding->shape[axis], in_block = dim - (entry->n_dims - 2);
  const int64_t block = in_block >= 0 && in_block < 2 ? entry->block[in_block] : 0;
  const int64_t length = entry->shape[dim], part = xfi_ceil_div(length, n);
  const bool even = side->framework->even;

  if (n == 1) return XFER_OK;
  XFI_CHECK(!even || length % n == 0, XFER_ERR_SHAPE,
            "\"%s\": %lld does not divide by the %d ranks of \"%s\" that split dim %d",
            entry->pattern, (long long)length, n, side->spec, dim);
  XFI_CHECK(block == 0 || part % block == 0 || part >= length, XFER_ERR_UNSUPPORTED,
            "\"%s\": %lld per shard of dim %d in \"%s\" is not a multiple of the block of %lld",
            entry->pattern, (long long)part, dim, side->spec, (long long)block);
  sharding->placements[axis] = xfer_shard_rule(dim, even ? XFER_EVEN : XFER_CHUNK);
  return XFER_OK;
}

/* Finds the multiple to which the vocabulary is padded, which may depend on its rows and on the
 * number of ranks that share them. */
static xfer_status find_vocab_unit(int64_t *unit, const xfi_sharding_input *in, int n)
{
  const xfi_rule_set *set = in->set;
  const xfi_entry *entry = in->entry;
  const xfi_var own[] = {{"rows", entry->shape[0]}, {"ranks", n}};
  const xfi_scope scope = {
      .vars = own, .n_vars = sizeof own / sizeof *own, .next = &set->scopes[0]};

  XFI_TRY(xfi_rules_eval(unit, set->side->rules, set->side->framework->vocab, &scope));
  XFI_CHECK(*unit > 0 && entry->n_dims > 0, XFER_ERR_SHAPE, "\"%s\": a vocabulary in units of %lld",
            entry->pattern, (long long)*unit);
  return XFER_OK;
}

/* Cuts the vocabulary, or only pads it if each rank has it whole. */
static xfer_status cut_vocab(xfi_sharding *sharding, const xfi_sharding_input *in, int axis)
{
  const xfer_side *side = in->set->side;
  const xfi_entry *entry = in->entry;
  const bool whole = in->mapping->whole;
  int64_t unit, padded;
  int n = sharding->shape[axis];

  if (side->framework->vocab == NULL) return whole ? XFER_OK : cut_dim(sharding, in, axis, 0);
  XFI_TRY(find_vocab_unit(&unit, in, whole ? 1 : n));
  XFI_CHECK(xfi_imul_fits(xfi_ceil_div(entry->shape[0], unit), unit, &padded), XFER_ERR_SHAPE,
            "\"%s\": a vocabulary of %lld has no room for padding", entry->pattern,
            (long long)entry->shape[0]);
  XFI_CHECK(whole || padded % n == 0, XFER_ERR_SHAPE,
            "\"%s\": the vocabulary of %lld, padded to %lld, does not divide by tp %d of \"%s\"",
            entry->pattern, (long long)entry->shape[0], (long long)padded, n, side->spec);
  memcpy(sharding->padded_shape, entry->shape, sizeof sharding->padded_shape);
  sharding->padded_shape[0] = padded;
  sharding->padded = true;
  if (!whole) sharding->placements[axis] = xfer_shard_rule(0, XFER_EVEN);
  return XFER_OK;
}

/* ---- tensor parallelism ---- */

/* How much of a dim a rank has, without and with padding. */
typedef struct share {
  int64_t each, padded;
} share;

/* Finds the share of each of n ranks in a dim that the rule divides into units, `count` of them in
 * all, and pads to a multiple of `multiple` units. */
static xfer_status share_units(share *of, const xfi_entry *entry, const int64_t rule[2], int dim,
                               int n)
{
  const int64_t count = rule[0], multiple = rule[1], length = entry->shape[dim];

  XFI_CHECK(count > 0 && count < 1 << 30 && length % count == 0 && multiple > 0 &&
                multiple < 1 << 20,
            XFER_ERR_SHAPE, "\"%s\": %lld does not divide into %lld units, by multiples of %lld",
            entry->pattern, (long long)length, (long long)count, (long long)multiple);
  of->each = xfi_ceil_div(count, n) * (length / count);
  of->padded = xfi_ceil_div(xfi_ceil_div(count, n), multiple) * multiple * (length / count);
  return XFER_OK;
}

/* Cuts a dim by whole units; this is an even cut if each rank has the same number of them and no
 * padding. */
static xfer_status cut_units(xfi_sharding *sharding, const xfi_sharding_input *in, int axis,
                             int dim)
{
  const int n = sharding->shape[axis];
  share of;

  XFI_TRY(share_units(&of, in->entry, &in->applied->value[XFI_UNITS], dim, n));
  if (of.each * n == in->entry->shape[dim] && of.each == of.padded)
    return cut_dim(sharding, in, axis, dim);
  return xfi_cut_padded(sharding, in, axis, dim, of.each, of.padded);
}

/* Pads the other dim, which is not cut. */
static xfer_status pad_across(xfi_sharding *sharding, const xfi_sharding_input *in, int dim)
{
  share of;

  XFI_TRY(share_units(&of, in->entry, &in->applied->value[XFI_ACROSS], dim, 1));
  memcpy(sharding->padded_shape, in->entry->shape, sizeof sharding->padded_shape);
  sharding->padded_shape[dim] = of.padded;
  sharding->padded = true;
  return XFER_OK;
}

/* Cuts the last of the weights in a local tensor. It gets the padding that makes the rows of all of
 * them a multiple. */
static xfer_status cut_last(xfi_sharding *sharding, const xfi_sharding_input *in, int axis, int dim)
{
  const int64_t length = in->entry->shape[dim], n = sharding->shape[axis];
  const int64_t multiple = in->applied->value[XFI_MULTIPLE];
  int64_t rows = 0;
  xfi_row_ranges all = {0};
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(multiple < 1 << 20 && length % n == 0, XFER_ERR_SHAPE,
                 "\"%s\": %lld rows of %lld ranks, with room for a multiple of %lld",
                 in->entry->pattern, (long long)length, (long long)n, (long long)multiple);
  for (int part = 0; part < in->mapping->n_weights; part++) {
    XFI_TRY_DONE(xfi_fused_part(&in->mapping->fused, part, 0, &all));
    for (size_t i = 0; i < all.n; i++)
      rows += all.at[i].length;
  }
  XFI_TRY_DONE(xfi_cut_padded(sharding, in, axis, dim, length / n,
                              length / n + xfi_ceil_div(rows, multiple) * multiple - rows));
done:
  xfi_free(all.at);
  return st;
}

static xfer_status cut_tp(xfi_sharding *sharding, const xfi_sharding_input *in, int axis)
{
  const xfi_local_rule *rule = in->applied->rule;
  const xfi_entry *entry = in->entry;
  const xfi_param_mapping *mapping = in->mapping;
  const bool bias = xfi_entry_is_bias(entry);
  const bool rows_alone = bias || xfi_scales_have_rows(entry->scales);
  const int rows = xfi_entry_row_dim(entry), last = entry->n_dims - 1;
  const int across = rule->cut == XFI_CUT_COLS ? rows : last > rows ? last : -1;

  if (rule->cut == XFI_CUT_NONE || entry->n_dims <= rows ||
      (entry->scales == XFI_SCALES_OF_WEIGHTS && mapping->whole))
    return XFER_OK;
  if (rule->properties[XFI_ACROSS] != NULL && across >= 0)
    XFI_TRY(pad_across(sharding, in, across));
  if (rule->properties[XFI_UNITS] != NULL && !mapping->whole &&
      (rule->cut == XFI_CUT_ROWS || !rows_alone))
    return cut_units(sharding, in, axis, rule->cut == XFI_CUT_ROWS ? rows : last);
  if (in->applied->value[XFI_MULTIPLE] > 0 && mapping->index + 1 == mapping->n_weights)
    return cut_last(sharding, in, axis, rows);
  if (rule->cut == XFI_CUT_ROWS) return xfi_cut_rows(sharding, in, axis);
  if (rule->cut == XFI_CUT_VOCAB) return cut_vocab(sharding, in, axis);
  if (mapping->whole) return XFER_OK;
  if (!rows_alone) return cut_dim(sharding, in, axis, last);
  /* Partial sums are added over the ranks, so only one of them may add the bias. */
  if (bias && in->applied->value[XFI_BIAS_FIRST] != 0 && sharding->shape[axis] > 1)
    XFI_TRY(xfi_cut_padded(sharding, in, axis, rows, entry->shape[rows],
                           sharding->padded ? sharding->padded_shape[rows] : entry->shape[rows]));
  return XFER_OK;
}

/* ---- experts ---- */

static xfer_status cut_experts(xfi_sharding *sharding, const xfi_sharding_input *in, int axis)
{
  const xfer_side *side = in->set->side;
  const xfi_entry *entry = in->entry;
  const xfi_side_rules *framework = side->framework;
  const xfi_expert_map *map = xfi_expert_map_find(side, in->layer);
  int n = sharding->shape[axis];
  int64_t round_robin;

  XFI_CHECK(map != NULL || side->n_maps == 0, XFER_ERR_ARG,
            "\"%s\": the expert map has no layer %d, which has experts", side->spec, in->layer);
  if (n == 1 && map == NULL) return XFER_OK;
  XFI_TRY(xfi_rule_set_eval(&round_robin, in->set, entry, framework->round_robin));
  if (map != NULL || round_robin != 0) return xfi_cut_map(sharding, in, axis, map);
  XFI_CHECK(framework->expert_cut != XFER_EVEN || entry->shape[0] % n == 0, XFER_ERR_SHAPE,
            "\"%s\": %lld experts do not divide by ep %d", entry->pattern,
            (long long)entry->shape[0], n);
  sharding->placements[axis] = xfer_shard_rule(0, framework->expert_cut);
  return XFER_OK;
}

/* ---- FSDP, which cuts what the other axes left, along a dim of the local tensor ---- */

/* Finds that dim: the first, but for experts where the side's rules say another. */
static xfer_status find_fsdp_dim(int *dim, const xfi_sharding_input *in)
{
  const xfi_entry *entry = in->entry;
  const int lead = in->mapping->each_expert;
  int64_t k = 0;

  if (entry->experts)
    XFI_TRY(xfi_rule_set_eval(&k, in->set, entry, in->set->side->framework->expert_fsdp_dim));
  XFI_CHECK(k == 0 || (k > 0 && k < entry->n_dims - lead && entry->in_checkpoint.lead == 0),
            XFER_ERR_UNSUPPORTED, "\"%s\": FSDP of \"%s\" cannot cut dim %lld of it",
            entry->pattern, in->set->side->spec, (long long)k);
  *dim = in->mapping->order[lead + k];
  return XFER_OK;
}

/* A dim that is not the local tensor's first must be the same on each of FSDP's n ranks. */
static xfer_status check_fsdp_parts(const xfi_sharding *sharding, const xfi_sharding_input *in,
                                    int dim, int n)
{
  const xfi_entry *entry = in->entry;
  const int64_t length = entry->shape[dim];
  int64_t part;
  int parts = 1;

  if (dim == in->mapping->order[in->mapping->each_expert]) return XFER_OK;
  for (int a = 0; a < sharding->n_axes; a++) {
    const xfer_placement *p = &sharding->placements[a];

    if (p->kind != XFER_REPLICATE && p->dim == dim) parts *= sharding->shape[a];
  }
  part = xfi_ceil_div(length, parts);
  XFI_CHECK(part > 0 && part % n == 0 && length % part % n == 0, XFER_ERR_SHAPE,
            "\"%s\": FSDP of \"%s\" cuts dim %d evenly or not at all, and %lld over %d ranks do "
            "not divide by %d",
            entry->pattern, in->set->side->spec, dim, (long long)length, parts, n);
  return XFER_OK;
}

static xfer_status cut_fsdp(xfi_sharding *sharding, const xfi_sharding_input *in, int axis)
{
  const xfer_side *side = in->set->side;
  const xfi_entry *entry = in->entry;
  const xfi_param_mapping *mapping = in->mapping;
  const int n = sharding->shape[axis];
  int dim;

  XFI_TRY(find_fsdp_dim(&dim, in));
  if (entry->n_dims <= dim || n == 1 || mapping->whole) return XFER_OK;
  XFI_TRY(check_fsdp_parts(sharding, in, dim, n));
  XFI_CHECK(mapping->n_weights == 1 || mapping->row_dim != dim, XFER_ERR_UNSUPPORTED,
            "\"%s\" holds several weights, and \"%s\" cuts through them", entry->pattern,
            side->spec);
  for (int a = 0; a < sharding->n_axes && entry->in_checkpoint.lead > 0; a++)
    XFI_CHECK(sharding->placements[a].kind == XFER_REPLICATE, XFER_ERR_UNSUPPORTED,
              "\"%s\" has other dims than the checkpoint's, and \"%s\" cuts it twice",
              entry->pattern, side->spec);
  if (entry->in_checkpoint.lead > 0)
    return xfi_cut_padded(sharding, in, axis, dim,
                          xfi_ceil_div(entry->in_checkpoint.lead, n) *
                              (entry->shape[dim] / entry->in_checkpoint.lead),
                          -1);
  sharding->placements[axis] = xfer_shard(dim);
  sharding->n_order = sharding->n_axes;
  for (int a = 0, k = 0; a < sharding->n_axes; a++) {
    if (a != axis) sharding->order[k++] = a;
  }
  sharding->order[sharding->n_axes - 1] = axis; /* FSDP cuts last */
  return XFER_OK;
}

xfer_status xfi_sharding_make(xfi_sharding *sharding, const xfi_sharding_input *in)
{
  const xfi_grid *grid = in->mapping->grid;
  int at[XFI_MAX_AXES];

  memset(sharding, 0, sizeof *sharding);
  add_axis(sharding, grid->replicas);
  if (in->mapping->fused.n_fsdp > 0)
    return xfi_cut_rows(sharding, in, add_axis(sharding, xfi_fused_ranks(&in->mapping->fused)));
  for (int a = grid->rule->n_axes - 1; a >= 0; a--)
    at[a] = add_axis(sharding, grid->sizes[a]);
  for (int a = grid->rule->n_axes - 1; a >= 0; a--) {
    /* A tensor without a dim of experts is on each rank. */
    if (grid->rule->uses[a] == XFI_AXIS_EXPERTS && in->entry->experts)
      XFI_TRY(cut_experts(sharding, in, at[a]));
    /* The axis of tensor parallelism may become two. */
    if (grid->rule->uses[a] == XFI_AXIS_CUT) XFI_TRY(cut_tp(sharding, in, at[a]));
  }
  for (int a = 0; a < grid->rule->n_axes; a++) {
    if (grid->rule->uses[a] == XFI_AXIS_FSDP) XFI_TRY(cut_fsdp(sharding, in, at[a]));
  }
  return XFER_OK;
}

xfer_status xfi_sharding_place(xfi_sharding *sharding, const xfi_rule_set *set,
                               const xfi_entry *entry, int dim)
{
  const xfi_grid *grid = &set->side->dense;
  const xfi_sharding_input in = {.set = set, .entry = entry};
  int n = grid->cut < 0 ? 1 : grid->sizes[grid->cut];
  int axis;

  memset(sharding, 0, sizeof *sharding);
  XFI_CHECK(dim < entry->n_dims, XFER_ERR_ARG, "\"%s\" has %d dims, none of them dim %d",
            entry->pattern, entry->n_dims, dim);
  XFI_CHECK(grid->cut <= 0, XFER_ERR_UNSUPPORTED, "\"%s\": tp is not the axis that counts fastest",
            set->side->spec);
  add_axis(sharding, xfi_side_stage_size(set->side) / n);
  axis = add_axis(sharding, n);
  if (dim >= 0) XFI_TRY(cut_dim(sharding, &in, axis, dim));
  return XFER_OK;
}

void xfi_sharding_free(xfi_sharding *sharding)
{
  for (int i = 0; i < sharding->n_tables; i++) {
    xfi_free(sharding->tables[i].runs);
    xfi_free(sharding->tables[i].first);
    xfi_free(sharding->tables[i].lengths);
  }
  memset(sharding, 0, sizeof *sharding);
}
