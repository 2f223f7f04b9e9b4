/* Lists the local tensors of a rank: names and shapes follow from how entries are mapped, and the
 * layouts. */
#include "locals.h"

#include "alloc.h"
#include "checked.h"
#include "dtype.h"
#include "error.h"
#include "names.h"
#include "vec.h"

#include <stdlib.h>
#include <string.h>

/* One part of a local tensor while it is being measured. */
typedef struct measured {
  size_t entry;
  int64_t tensor;
  const xfi_param_mapping *mapping;
  const xfer_layout *layout;
  xfi_place place;
  int64_t shape[XFER_MAX_DIMS]; /* of the rank's part */
} measured;

enum { MAX_WEIGHTS = 8 };

/* A side whose local tensors are being listed: those of which something moves, or if `unused` the
 * others. */
typedef struct listing {
  xfer_locals *locals;
  const xfi_joined_side *joined;
  int side;
  bool unused;
} listing;

void xfi_locals_destroy(xfer_locals *locals)
{
  if (locals == NULL) return;
  for (size_t i = 0; i < locals->n; i++) {
    xfi_free(locals->at[i].name);
    xfi_free(locals->at[i].made);
    if (locals->at[i].owned != NULL) locals->at[i].free(locals->at[i].owned);
  }
  for (size_t i = 0; i < locals->n_problems; i++)
    xfi_free(locals->problems[i].text);
  for (int s = 0; s < 2; s++) {
    xfi_free(locals->by_name[s]);
    xfi_free(locals->local_of[s]);
    xfi_free(locals->pieces[s]);
  }
  xfi_free(locals->moved);
  xfi_free(locals->problems);
  xfi_free(locals->parts);
  xfi_free(locals->at);
  xfi_free(locals);
}

/* ---- parts ---- */

/* Returns the dim that identifies a part best: the one that is cut. */
static int telling_dim(const measured *m)
{
  if (m->mapping->flat) return 0;
  for (int d = m->layout->n_dims - 1; d >= 0; d--) {
    if (m->layout->dims[d].n_cuts > 0 && (d > 0 || m->mapping->row_dim == 0)) return d;
  }
  return m->layout->n_dims > m->mapping->row_dim ? m->mapping->row_dim : m->layout->n_dims - 1;
}

static int local_dim(const xfi_param_mapping *mapping, int tensor_dim)
{
  if (mapping->flat) return 0;
  for (int k = 0; k < XFER_MAX_DIMS; k++) {
    if (xfi_param_mapping_dim(mapping, k) == tensor_dim) return k;
  }
  return -1;
}

static xfer_status add_part(xfer_locals *locals, xfi_local_tensor *local,
                            const xfer_local_part *part)
{
  XFI_TRY(XFI_APPEND(locals->parts, locals->n_parts, locals->parts_capacity, *part));
  local->n_parts++;
  return XFER_OK;
}

/* Are the rows the rank's part of the tensor, unchanged? */
static bool is_plain(const xfi_param_mapping *mapping)
{
  if (mapping->n_weights > 1) return false;
  for (int i = 0; i < mapping->fused.n_slabs; i++) {
    const xfi_slab *slab = &mapping->fused.slabs[i];

    if (slab->order != XFI_AS_IT_IS || slab->stride != slab->size) return false;
  }
  return true;
}

/* Adds the parts of a weight that shares its local tensor or lies in it in another order. */
static xfer_status add_placed(xfer_locals *locals, xfi_local_tensor *local, const measured *m,
                              xfer_local_part part)
{
  const xfi_joined_side *joined = &locals->refit->sides[local->side];
  int64_t rows = m->shape[m->mapping->row_dim];
  int place, r;
  xfi_row_ranges all = {0};
  xfer_status st = XFER_OK;

  (void)xfi_side_stage_of(joined->side, locals->rank, &place);
  r = m->mapping->fused.n_fsdp > 0 ? place % xfi_fused_ranks(&m->mapping->fused)
                                   : xfi_grid_cut_of(m->mapping->grid, place);
  if (m->mapping->fused.alternate) {
    part.begin = m->mapping->index;
    part.step = m->mapping->n_weights;
    part.end = rows == 0 ? part.begin : part.begin + (rows - 1) * part.step + 1;
    return add_part(locals, local, &part);
  }
  XFI_TRY_DONE(xfi_fused_part(&m->mapping->fused, m->mapping->index, r, &all));
  for (size_t i = 0; i < all.n; i++) {
    part.begin = all.at[i].at;
    part.end = part.begin + all.at[i].length;
    XFI_TRY_DONE(add_part(locals, local, &part));
    part.first += all.at[i].length;
  }
done:
  xfi_free(all.at);
  return st;
}

static xfer_status add_parts(xfer_locals *locals, xfi_local_tensor *local, const measured *all,
                             int n)
{
  local->first_part = locals->n_parts;
  for (int i = 0; i < n; i++) {
    const measured *m = &all[i];
    /* A single number of the last expert lies behind those of the other experts. */
    const int64_t begin = m->mapping->flat && m->mapping->last_expert ? local->shape[0] - 1 : 0;
    int dim = is_plain(m->mapping) ? telling_dim(m) : m->mapping->row_dim;
    xfer_local_part part = {.tensor = (uint64_t)m->tensor,
                            .dim = dim < 0 ? -1 : local_dim(m->mapping, dim),
                            .tensor_dim = dim,
                            .begin = begin,
                            .end = begin + (dim < 0 ? 1 : m->shape[dim]),
                            .step = 1};

    if (m->tensor < 0) continue; /* ignored, but it keeps its place in the tensor */
    XFI_TRY(is_plain(m->mapping) ? add_part(locals, local, &part)
                                 : add_placed(locals, local, m, part));
  }
  return XFER_OK;
}

/* ---- local tensors ---- */

void xfi_local_make_dense(xfi_local_tensor *local)
{
  int64_t stride = (int64_t)xfi_dtype_size((int)local->dtype);

  for (int k = local->n_dims - 1; k >= 0; k--) {
    local->strides[k] = stride;
    stride *= local->shape[k] > 0 ? local->shape[k] : 1;
  }
}

/* Sets *length to the length in dim k of the tensor that the n weights make together. */
static xfer_status add_up(int64_t *length, const measured *all, int n, int k)
{
  const xfi_param_mapping *mapping = all[0].mapping;
  const int d = xfi_param_mapping_dim(mapping, k);

  *length = d < 0 ? 1 : all[0].shape[d];
  for (int i = 1; i < n && d >= 0; i++) {
    if (d == mapping->row_dim) *length += all[i].shape[d];
    XFI_CHECK(d == mapping->row_dim || all[i].shape[d] == *length, XFER_ERR_SHAPE,
              "\"%s\": its parts have sizes %lld and %lld in dim %d", mapping->local,
              (long long)*length, (long long)all[i].shape[d], d);
  }
  return XFER_OK;
}

static xfer_status shape_local(xfi_local_tensor *local, const measured *all, int n)
{
  const measured *m = &all[0];
  size_t n_bytes = xfi_dtype_size((int)local->dtype);
  int n_others = 0; /* weights before those of the last expert */

  while (n_others < n && !all[n_others].mapping->last_expert)
    n_others++;
  local->n_dims = m->layout->n_dims - m->mapping->each_expert - m->mapping->flat;
  for (int k = 0; k < local->n_dims; k++) {
    int64_t last = 0;

    local->dims[k] = xfi_param_mapping_dim(m->mapping, k);
    XFI_TRY(add_up(&local->shape[k], all, n_others, k));
    if (n_others < n) XFI_TRY(add_up(&last, all + n_others, n - n_others, k));
    if (k == 0) local->shape[k] += last;
    XFI_CHECK(k == 0 || n_others == n || last == local->shape[k], XFER_ERR_SHAPE,
              "\"%s\": its last expert has %lld in dim %d, the others have %lld", m->mapping->local,
              (long long)last, k, (long long)local->shape[k]);
    XFI_CHECK(xfi_mul_fits(n_bytes, (size_t)local->shape[k], &n_bytes), XFER_ERR_OVERFLOW,
              "\"%s\" has more bytes than memory", m->mapping->local);
  }
  xfi_local_make_dense(local);
  local->n_bytes = n_bytes;
  return XFER_OK;
}

static xfer_status add_local(const listing *l, const measured *all, int n, xfi_name_numbers numbers)
{
  xfer_locals *locals = l->locals;
  const xfi_joined_side *joined = l->joined;
  const xfi_param_mapping *mapping = all[0].mapping;
  const char *pattern = mapping->local;
  xfi_local_tensor local = {.expert = numbers.expert,
                            .side = l->side,
                            .dtype = all[0].layout->dtype,
                            .misc = joined->held[all[0].entry].misc,
                            .unused = true};
  xfer_status st = XFER_OK;

  for (int i = 0; i < n; i++)
    local.unused = local.unused && all[i].tensor < 0;
  if (mapping->last != NULL &&
      xfi_side_stage_of(joined->side, locals->rank, NULL) == joined->side->pp - 1) {
    pattern = mapping->last;
  }
  XFI_TRY_DONE(shape_local(&local, all, n));
  XFI_TRY_DONE(xfi_name_fill(&local.name, pattern, &numbers));
  if (mapping->made != NULL) XFI_TRY_DONE(xfi_name_fill(&local.made, mapping->made, &numbers));
  local.made_dtype = mapping->made_dtype;
  XFI_TRY_DONE(add_parts(locals, &local, all, n));
  XFI_TRY_DONE(xfi_vec_reserve(&locals->at, &locals->capacity, locals->n + 1, sizeof *locals->at));
  for (int i = 0; i < n && numbers.local <= 0; i++) {
    if (all[i].tensor >= 0) locals->local_of[l->side][all[i].tensor] = (int64_t)locals->n;
  }
  locals->at[locals->n++] = local;
  memset(&local, 0, sizeof local);
done:
  xfi_free(local.name);
  xfi_free(local.made);
  return st;
}

/* Adds one local tensor for each expert that the rank holds. */
static xfer_status add_each_expert(const listing *l, const measured *all, int n,
                                   xfi_name_numbers numbers)
{
  const xfi_entry *entry = &l->locals->refit->model->entries[all[0].entry];
  xfi_runs runs = {0};
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(xfi_dim_runs(&all[0].layout->dims[0], all[0].place.part[0], &runs));
  for (size_t i = 0; i < runs.n; i++) {
    for (int64_t e = 0; e < runs.at[i].length; e++) {
      numbers.expert = entry->first_expert + (int)(runs.at[i].global + e);
      numbers.local++;
      XFI_TRY_DONE(add_local(l, all, n, numbers));
    }
  }
done:
  xfi_free(runs.at);
  return st;
}

/* Measures the parts that this rank holds of a group's tensor in one layer, and returns their
 * number; 0 if it is none of those that are being listed. */
static int measure(measured *all, const listing *l, const xfi_entry_group *group, int layer)
{
  const xfer_locals *locals = l->locals;
  const xfi_joined_side *joined = l->joined;
  const xfer_model *model = locals->refit->model;
  bool wanted = false;
  int n = 0;

  for (size_t i = group->begin; i < group->end && n < MAX_WEIGHTS; i++) {
    size_t entry = joined->by_name[i];
    const xfi_entry *e = &model->entries[entry];
    const xfi_held_entry *held = &joined->held[entry];
    measured *m = &all[n];
    const int k = xfi_entry_place(e, layer);

    if (held->absent || k < 0) continue;
    *m = (measured){.entry = entry, .mapping = &held->mapping};
    m->tensor = locals->refit->tensor_of[entry][k];
    m->layout = held->layouts[k];
    if (!xfi_layout_place(m->layout, locals->rank, &m->place)) continue;
    for (int d = 0; d < m->layout->n_dims; d++) {
      m->shape[d] = xfi_dim_length(&m->layout->dims[d], m->place.part[d]);
    }
    wanted = wanted || m->tensor >= 0;
    n++;
  }
  return wanted != l->unused ? n : 0;
}

/* Returns the framework's number of a layer. Some frameworks count from 0 in each stage and count
 * extra layers separately; the others count all layers. */
static int layer_number(const xfi_joined_side *joined, const xfer_model *model, const measured *m,
                        int layer)
{
  const xfi_entry *entry = &model->entries[m->entry];
  const bool from_0 = joined->side->framework->stage_numbers;
  int at, hi, lo = 0; /* the first of its stage */

  if (layer < 0 || m->mapping->own_names || m->mapping->own_number) return layer;
  if (entry->stack == XFI_EXTRA)
    return layer + (entry->own_numbers - from_0) * model->n_config_layers;
  if (!from_0) return layer;
  at = hi = xfi_find_int(model->layers, model->n_layers, layer);
  XFI_BISECT(lo, hi, mid, joined->stages[mid] < joined->stages[at]); /* stages ascend */
  return at - lo;
}

/* Returns the chunk of a tensor. Those before the layers are in the first chunk; those after them
 * in the last one or in the last layer's. */
static int chunk_of(const xfi_joined_side *joined, const xfer_model *model, const measured *m,
                    int layer, int stage)
{
  const xfer_side *side = joined->side;
  int at = -1;

  if (model->entries[m->entry].stack == XFI_LAYERS)
    at = xfi_find_int(model->layers, model->n_layers, layer);
  else if (m->mapping->with_last_layer)
    at = model->n_layers - 1;
  if (at >= 0) return joined->stages[at] / side->pp;
  return stage == side->pp - 1 ? side->chunks - 1 : 0;
}

static xfer_status add_group_layer(const listing *l, const xfi_entry_group *group, int layer)
{
  measured all[MAX_WEIGHTS];
  const xfer_model *model = l->locals->refit->model;
  const int stage = xfi_side_stage_of(l->joined->side, l->locals->rank, NULL);
  const int n = measure(all, l, group, layer);
  xfi_name_numbers numbers = {-1, -1, -1, -1};

  if (n == 0) return XFER_OK;
  numbers.layer = layer_number(l->joined, model, &all[0], layer);
  numbers.chunk = chunk_of(l->joined, model, &all[0], layer, stage);
  if (all[0].mapping->each_expert) return add_each_expert(l, all, n, numbers);
  return add_local(l, all, n, numbers);
}

/* Adds a group's local tensors in each layer of the entries of its first weight. */
static xfer_status add_group(const listing *l, const xfi_entry_group *group)
{
  const xfi_joined_side *joined = l->joined;
  const int first = xfi_param_mapping_number(&joined->held[joined->by_name[group->begin]].mapping);

  for (size_t i = group->begin; i < group->end; i++) {
    const xfi_entry *e = &l->locals->refit->model->entries[joined->by_name[i]];

    if (xfi_param_mapping_number(&joined->held[joined->by_name[i]].mapping) != first) break;
    for (int k = 0; k < xfi_entry_places(e); k++)
      XFI_TRY(add_group_layer(l, group, xfi_entry_layer(e, k)));
  }
  return XFER_OK;
}

/* ---- by name ---- */

int xfi_compare_names(const void *a, const void *b)
{
  const xfi_name_ref *x = a, *y = b;

  return strcmp(x->name, y->name);
}

static xfer_status sort_names(xfer_locals *locals, int side)
{
  xfi_name_ref *refs = xfi_calloc(locals->n, sizeof *refs);
  size_t n = 0;

  locals->by_name[side] = refs;
  XFI_CHECK(refs != NULL, XFER_ERR_NOMEM, "%zu names", locals->n);
  for (size_t i = 0; i < locals->n; i++) {
    if (locals->at[i].side == side) refs[n++] = (xfi_name_ref){locals->at[i].name, i};
  }
  qsort(refs, n, sizeof *refs, xfi_compare_names);
  for (size_t i = 1; i < n; i++)
    XFI_CHECK(strcmp(refs[i].name, refs[i - 1].name) != 0, XFER_ERR_ARG,
              "\"%s\": two tensors are called \"%s\"", locals->refit->sides[side].side->spec,
              refs[i].name);
  locals->n_by_name[side] = n;
  return XFER_OK;
}

static bool is_there(const xfer_side *side, int rank)
{
  return side != NULL && xfi_mesh_find(side->mesh, rank) >= 0;
}

static xfer_status add_side(xfer_locals *locals, int side, bool unused)
{
  const listing l = {locals, &locals->refit->sides[side], side, unused};

  if (!is_there(l.joined->side, locals->rank)) return XFER_OK;
  for (size_t g = 0; g < l.joined->n_groups; g++)
    XFI_TRY(add_group(&l, &l.joined->groups[g]));
  return XFER_OK;
}

xfer_status xfi_locals_create(xfer_locals **locals, const xfer_refit *refit, int rank)
{
  xfer_locals *l = xfi_calloc(1, sizeof *l);
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(l != NULL, XFER_ERR_NOMEM, "the local tensors of rank %d", rank);
  l->refit = refit;
  l->rank = rank;
  l->moved = xfi_calloc(refit->n_tensors, sizeof *l->moved);
  XFI_CHECK_DONE(l->moved != NULL, XFER_ERR_NOMEM, "the local tensors of rank %d", rank);
  for (int s = 0; s < 2; s++) {
    l->local_of[s] = xfi_calloc(refit->n_tensors, sizeof *l->local_of[s]);
    XFI_CHECK_DONE(l->local_of[s] != NULL, XFER_ERR_NOMEM, "the local tensors of rank %d", rank);
    for (size_t t = 0; t < refit->n_tensors; t++)
      l->local_of[s][t] = -1;
    XFI_TRY_DONE(add_side(l, s, false));
  }
  l->n_listed = l->n;
  for (int s = 0; s < 2; s++) {
    if (refit->n_ignored > 0) XFI_TRY_DONE(add_side(l, s, true));
    if (is_there(refit->sides[s].side, rank)) XFI_TRY_DONE(sort_names(l, s));
  }
  *locals = l;
  l = NULL;
done:
  xfi_locals_destroy(l);
  return st;
}
