/* One entry on one side: what the rules or the caller say of it, turned into a slot and layouts. */
#include "join.h"

#include "alloc.h"
#include "error.h"
#include "glob.h"
#include "vec.h"

#include <string.h>

static const xfi_stem PLAIN = {"", NULL, XFI_CUT_WHOLE, NULL, NULL, 0, NULL, 0};

void xfi_held_free(xfi_held *held, int pp)
{
  xfi_slot_free(&held->slot);
  for (int s = 0; held->layouts != NULL && s < pp; s++)
    xfi_layout_destroy(held->layouts[s]);
  xfi_free(held->layouts);
  memset(held, 0, sizeof *held);
}

xfer_status xfi_entry_matches(bool *matches, const xfi_entry *entry, const char *pattern)
{
  int n = 0;
  char *name = NULL;
  xfer_status st = XFER_OK;

  *matches = xfi_glob_match(pattern, entry->pattern);
  if (*matches || entry->n_layers == 0) return XFER_OK;
  for (int k = 0; k < entry->n_layers; k++) {
    XFI_TRY(xfi_name_fill(&name, entry->pattern, entry->layers[k], -1, -1));
    n += xfi_glob_match(pattern, name);
    xfi_free(name);
    name = NULL;
  }
  XFI_CHECK(n == 0 || n == entry->n_layers, XFER_ERR_UNSUPPORTED,
            "\"%s\" matches \"%s\" in %d of its %d layers; it must match in all or none", pattern,
            entry->pattern, n, entry->n_layers);
  *matches = n > 0;
done:
  return st;
}

/* The first thing that the caller said of the entry; NULL: nothing. */
static xfer_status find_said(const xfi_said **said, const xfi_saids *saids, const xfi_entry *entry)
{
  xfer_status st = XFER_OK;

  *said = NULL;
  for (size_t i = 0; i < saids->n && *said == NULL; i++) {
    bool matches;

    XFI_TRY(xfi_entry_matches(&matches, entry, saids->at[i].pattern));
    if (matches) *said = &saids->at[i];
  }
done:
  return st;
}

/* ---- meshes ---- */

static xfer_status make_mesh(xfer_mesh **mesh, const xfer_side *side, const xfi_spread *spread,
                             const xfi_holders *holders)
{
  int per_stage = xfi_side_stage_size(side);
  int shape[XFER_MAX_DIMS];
  int n_axes = 0, n = 0;
  int *ranks = NULL;
  xfer_status st = XFER_OK;

  if (holders->one_rank >= 0) return xfi_mesh_create(mesh, &(int){1}, 1, &holders->one_rank);
  ranks = xfi_calloc((size_t)side->size, sizeof *ranks);
  XFI_CHECK(ranks != NULL, XFER_ERR_NOMEM, "%d ranks", side->size);
  if (holders->all) {
    for (; n < side->size; n++)
      ranks[n] = side->first_rank + n;
    st = xfi_mesh_create(mesh, &side->size, 1, ranks);
    goto done;
  }
  if (holders->n_stages > 1) shape[n_axes++] = holders->n_stages;
  for (int a = 0; a < spread->n_axes; a++)
    shape[n_axes++] = spread->shape[a];
  for (int s = 0; s < holders->n_stages; s++) {
    for (int i = 0; i < per_stage; i++)
      ranks[n++] = xfi_side_rank(side, holders->stage[s], i);
  }
  st = xfi_mesh_create(mesh, shape, n_axes, ranks);
done:
  xfi_free(ranks);
  return st;
}

static bool is_mesh(const xfi_known_mesh *known, const xfi_spread *spread,
                    const xfi_holders *holders)
{
  const xfi_holders *h = &known->holders;

  if (h->all != holders->all || h->one_rank != holders->one_rank) return false;
  if (h->all || h->one_rank >= 0) return true;
  if (h->n_stages != holders->n_stages || h->stage[0] != holders->stage[0]) return false;
  if (h->n_stages > 1 && h->stage[1] != holders->stage[1]) return false;
  return known->n_axes == spread->n_axes &&
         memcmp(known->shape, spread->shape, (size_t)spread->n_axes * sizeof *spread->shape) == 0;
}

/* The mesh stays the side's. */
static xfer_status find_mesh(xfer_mesh **mesh, xfi_joined *joined, const xfi_spread *spread,
                             const xfi_holders *holders)
{
  xfi_meshes *meshes = &joined->meshes;
  xfi_known_mesh *known;
  xfer_status st = XFER_OK;

  for (size_t i = meshes->n; i-- > 0;) {
    if (!is_mesh(&meshes->at[i], spread, holders)) continue;
    *mesh = meshes->at[i].mesh;
    return XFER_OK;
  }
  XFI_TRY(xfi_vec_reserve(&meshes->at, &meshes->capacity, meshes->n + 1, sizeof *meshes->at));
  known = &meshes->at[meshes->n];
  *known = (xfi_known_mesh){.holders = *holders, .n_axes = spread->n_axes};
  memcpy(known->shape, spread->shape, sizeof known->shape);
  XFI_TRY(make_mesh(&known->mesh, joined->side, spread, holders));
  meshes->n++;
  *mesh = known->mesh;
done:
  return st;
}

static xfer_status make_layout(xfer_layout **layout, xfi_joined *joined, const xfi_entry *entry,
                               xfer_dtype dtype, const xfi_spread *spread, const xfi_holders *set)
{
  xfer_placement placements[XFER_MAX_DIMS + 1];
  int32_t order[XFER_MAX_DIMS + 1];
  int lead = set->n_stages > 1;
  bool whole = set->all || set->one_rank >= 0;
  xfer_mesh *mesh = NULL;
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  xfer_status st = XFER_OK;

  XFI_TRY(find_mesh(&mesh, joined, spread, set));
  placements[0] = xfer_replicate();
  order[0] = 0;
  for (int a = 0; a < spread->n_axes && !whole; a++)
    placements[lead + a] = spread->placements[a];
  for (int a = 0; a < spread->n_order && !whole; a++)
    order[lead + a] = spread->order[a] + lead;
  desc.mesh = mesh;
  desc.dtype = (int32_t)dtype;
  desc.n_dims = entry->n_dims;
  desc.shape = entry->shape;
  desc.padded_shape = spread->padded && !whole ? spread->padded_shape : NULL;
  desc.placements = placements;
  desc.n_placements = whole ? 1 : spread->n_axes + lead;
  desc.n_order = spread->n_order > 0 && !whole ? spread->n_order + lead : 0;
  desc.order = desc.n_order > 0 ? order : NULL;
  XFI_TRY(xfi_layout_create(layout, &desc));
done:
  return st;
}

/* ---- which stages ---- */

int xfi_joined_stage(const xfi_joined *joined, const xfer_model *model, const xfi_entry *entry,
                     int k)
{
  int last = joined->side->pp - 1;
  int lo = 0, hi = model->n_layers;

  /* Embeddings, and what the rules do not know, are on the first stage; norm and output layer on
   * the last. */
  if (k < 0) return entry->row == NULL || (entry->row->flags & XFI_STEM_TIED) != 0 ? 0 : last;
  if (!entry->main_layers) return last;
  while (lo < hi) {
    int mid = lo + (hi - lo) / 2;

    if (model->layers[mid] < entry->layers[k]) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return lo < model->n_layers ? joined->stages[lo]
                              : last; /* layers past the last: the last stage */
}

static xfer_status make_layouts(xfi_held *held, xfi_joined *joined, const xfer_model *model,
                                const xfi_entry *entry, xfer_dtype dtype, const xfi_spread *spread,
                                xfi_holders set)
{
  int pp = joined->side->pp;
  bool together = set.all || set.one_rank >= 0;
  xfer_status st = XFER_OK;

  held->layouts = xfi_calloc((size_t)pp, sizeof(xfer_layout *));
  XFI_CHECK(held->layouts != NULL, XFER_ERR_NOMEM, "the layouts of \"%s\"", entry->pattern);
  if (!together && entry->n_layers == 0 && entry->row != NULL && model->config.tied && pp > 1 &&
      (entry->row->flags & XFI_STEM_TIED) != 0) {
    set.n_stages = 2;
    set.stage[0] = 0;
    set.stage[1] = pp - 1;
    XFI_TRY(make_layout(&held->layouts[0], joined, entry, dtype, spread, &set));
    held->layouts[pp - 1] = xfi_layout_share(held->layouts[0]);
    return XFER_OK;
  }
  if (together) {
    XFI_TRY(make_layout(&held->layouts[0], joined, entry, dtype, spread, &set));
    for (int s = 1; s < pp; s++)
      held->layouts[s] = xfi_layout_share(held->layouts[0]);
    return XFER_OK;
  }
  for (int k = entry->n_layers == 0 ? -1 : 0; k < entry->n_layers; k++) {
    int stage = xfi_joined_stage(joined, model, entry, k);

    if (held->layouts[stage] != NULL) continue;
    set.n_stages = 1;
    set.stage[0] = stage;
    XFI_TRY(make_layout(&held->layouts[stage], joined, entry, dtype, spread, &set));
  }
done:
  return st;
}

/* Layouts of entries that no rule knows but that this framework still holds in a known way. */
static bool holds_anything(const xfer_side *side)
{
  return side->framework == XFI_FULL ||
         (side->tp == 1 && (side->framework & (XFI_HF | XFI_FSDP)) != 0);
}

xfer_status xfi_held_make(xfi_held *held, xfi_joined *joined, const xfer_model *model, size_t at)
{
  const xfer_side *side = joined->side;
  xfi_entry entry = model->entries[at];
  const xfi_said *place, *whole, *dtype;
  xfi_holders set = {.one_rank = -1};
  xfi_spread spread = {0};
  xfer_status st = XFER_OK;

  XFI_TRY(find_said(&place, &side->places, &entry));
  XFI_TRY(find_said(&whole, &side->wholes, &entry));
  XFI_TRY(find_said(&dtype, &side->dtypes, &entry));
  if (entry.row == NULL && holds_anything(side)) entry.row = &PLAIN;
  if (place != NULL) {
    XFI_TRY(xfi_spread_place(&spread, side, &entry, place->value));
    XFI_TRY(xfi_slot_plain(&held->slot, &entry));
  } else if (whole != NULL) {
    set.one_rank = whole->value;
    XFI_TRY(xfi_slot_plain(&held->slot, &entry));
  } else if (entry.row == NULL) {
    held->misc = held->whole = true;
    set.all = true;
    XFI_TRY(xfi_slot_plain(&held->slot, &entry));
  } else {
    XFI_TRY(xfi_spread_make(&spread, side, model, &entry));
    XFI_TRY(xfi_slot_make(&held->slot, side, model, &entry));
    held->hook = side->framework == XFI_VLLM && (entry.row->flags & XFI_STEM_HOOK) != 0;
    held->misc = side->framework == XFI_VLLM && (entry.row->flags & XFI_STEM_VALUE) != 0;
  }
  XFI_TRY(make_layouts(held, joined, model, &entry,
                       dtype != NULL ? (xfer_dtype)dtype->value : entry.dtype, &spread, set));
done:
  xfi_spread_free(&spread);
  return st;
}
