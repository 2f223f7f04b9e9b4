/* Expert maps: which experts each expert-parallel rank holds, for all layers or by layer. */
#include "side.h"

#include "alloc.h"
#include "error.h"
#include "vec.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void xfi_expert_maps_free(xfer_side *side)
{
  for (size_t i = 0; i < side->n_maps; i++) {
    xfi_free(side->maps[i].experts);
    xfi_free(side->maps[i].first);
  }
  xfi_free(side->maps);
}

const xfi_expert_map *xfi_expert_map_find(const xfer_side *side, int layer)
{
  const xfi_expert_map *common = NULL;

  for (size_t i = 0; i < side->n_maps; i++) {
    if (side->maps[i].layer == layer) return &side->maps[i];
    if (side->maps[i].layer < 0) common = &side->maps[i];
  }
  return common;
}

/* Adds a map with space for n_ranks lists and n experts. */
static xfer_status open_map(xfer_side *side, xfi_expert_map **map, int layer, size_t n_ranks,
                            size_t n)
{
  xfi_expert_map *m;

  XFI_TRY(xfi_vec_reserve(&side->maps, &side->maps_cap, side->n_maps + 1, sizeof *side->maps));
  m = *map = &side->maps[side->n_maps++];
  m->layer = layer;
  m->n_ranks = (int)n_ranks;
  m->first = xfi_calloc(n_ranks + 1, sizeof *m->first);
  m->experts = xfi_calloc(n, sizeof *m->experts);
  XFI_CHECK(m->first != NULL && m->experts != NULL, XFER_ERR_NOMEM, "an expert map");
  return XFER_OK;
}

static size_t count_map(const json_t *root)
{
  size_t n = 0;

  for (size_t i = 0; i < json_array_size(root); i++)
    n += json_array_size(json_array_get(root, i));
  return n;
}

static xfer_status read_lists(xfer_side *side, const xfi_doc *doc, const json_t *lists, int layer)
{
  size_t n_ranks = json_array_size(lists), n = 0;
  xfi_expert_map *map;

  if (n_ranks == 0 || n_ranks >= 1 << 20 || count_map(lists) >= 1 << 24)
    return xfi_doc_error(doc, lists, "want a list of a list of experts for each rank");
  XFI_TRY(open_map(side, &map, layer, n_ranks, count_map(lists)));
  for (size_t r = 0; r < n_ranks; r++) {
    const json_t *list = json_array_get(lists, r);

    for (size_t i = 0; i < json_array_size(list); i++) {
      const json_t *expert = json_array_get(list, i);

      if (!json_is_integer(expert) || json_integer_value(expert) < 0 ||
          json_integer_value(expert) >= 1 << 20)
        return xfi_doc_error(doc, expert, "rank %zu: entry %zu is no expert", r, i);
      map->experts[n++] = (int)json_integer_value(expert);
    }
    map->first[r + 1] = (int)n;
  }
  return XFER_OK;
}

/* Reads a map: a list of lists is for all layers; {"3": [..], ..} has a list of lists for each
 * layer that has experts. */
xfer_status xfi_expert_map_read(xfer_side *side, const char *path)
{
  xfi_doc doc = {0};
  const char *name;
  const json_t *lists;
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(*path != '\0', XFER_ERR_ARG, "map= wants a file");
  XFI_TRY_DONE(xfi_doc_read(&doc, path, NULL));
  if (json_is_array(doc.root)) {
    XFI_TRY_DONE(read_lists(side, &doc, doc.root, -1));
    goto done;
  }
  json_object_foreach(doc.root, name, lists)
  {
    XFI_CHECK_DONE(isdigit((unsigned char)name[0]) && strlen(name) < 7 &&
                       strspn(name, "0123456789") == strlen(name) &&
                       (name[0] != '0' || name[1] == '\0'), /* one name for each layer */
                   XFER_ERR_IO, "%s: %s: \"%.40s\" is no layer", path,
                   xfi_doc_find(&doc, lists).text, name);
    XFI_TRY_DONE(read_lists(side, &doc, lists, (int)strtol(name, NULL, 10)));
  }
  XFI_CHECK_DONE(side->n_maps > 0, XFER_ERR_IO, "%s: line 1: an empty expert map", path);
done:
  xfi_doc_free(&doc);
  return st;
}

/* Checks that a map has a list for each rank of an expert-parallel group. */
static xfer_status check_ranks(const xfer_side *side, int64_t n_ranks)
{
  const int ep = side->experts.experts < 0 ? 1 : side->experts.sizes[side->experts.experts];

  XFI_CHECK(n_ranks == ep, XFER_ERR_ARG, "\"%s\": an expert map of %lld ranks, ep is %d",
            side->spec, (long long)n_ranks, ep);
  return XFER_OK;
}

xfer_status xfi_expert_map_copy(xfer_side *side, const xfer_side_options *o)
{
  xfi_expert_map *map;
  size_t n;

  XFI_CHECK(o->n_map > 0 && o->map_experts != NULL && o->map_first != NULL && o->map_first[0] == 0,
            XFER_ERR_ARG, "an expert map of %lld ranks without its lists", (long long)o->n_map);
  XFI_CHECK(side->framework->takes_map && side->n_maps == 0, XFER_ERR_ARG,
            "\"%s\" takes no expert map, or has one", side->spec);
  XFI_TRY(check_ranks(side, o->n_map)); /* before more of map_first is read */
  for (int64_t r = 0; r < o->n_map; r++) {
    XFI_CHECK(o->map_first[r] <= o->map_first[r + 1], XFER_ERR_ARG, "map_first[%lld] descends",
              (long long)r + 1);
  }
  n = (size_t)o->map_first[o->n_map];
  XFI_TRY(open_map(side, &map, -1, (size_t)o->n_map, n));
  memcpy(map->first, o->map_first, ((size_t)o->n_map + 1) * sizeof *map->first);
  if (n > 0) memcpy(map->experts, o->map_experts, n * sizeof *map->experts);
  return XFER_OK;
}

/* A map of a layer without experts would be without effect. Of layers that were not kept, nobody
 * knows whether they have some; a table without any experts is of a part of the model. */
xfer_status xfi_expert_map_check_layers(const xfer_side *side, const xfer_model *model)
{
  for (size_t i = 0; i < side->n_maps; i++) {
    const int layer = side->maps[i].layer;
    bool has_experts = false, has_any = false;

    if (layer < 0) continue;
    for (size_t k = 0; k < model->n_entries && !has_experts; k++) {
      const xfi_entry *e = &model->entries[k];

      has_any |= e->experts;
      has_experts = e->experts && xfi_entry_place(e, layer) >= 0;
    }
    XFI_CHECK(has_experts || !has_any ||
                  (model->selected && xfi_find_int(model->layers, model->n_layers, layer) < 0),
              XFER_ERR_ARG,
              "\"%s\": the expert map has layer %d, which has no experts in the model", side->spec,
              layer);
  }
  return XFER_OK;
}

xfer_status xfi_expert_map_check(const xfer_side *side)
{
  for (size_t i = 0; i < side->n_maps; i++)
    XFI_TRY(check_ranks(side, side->maps[i].n_ranks));
  return XFER_OK;
}
