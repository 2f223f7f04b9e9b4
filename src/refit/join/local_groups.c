/* Entries that share local tensors: found by name, and checked to be complete. */
#include "join.h"

#include "alloc.h"
#include "dtype.h"
#include "error.h"

#include <stdlib.h>
#include <string.h>

typedef struct name_key {
  bool absent; /* not held by the side, so it shares no tensor */
  const char *name;
  int index;
  size_t entry;
} name_key;

static int compare_keys(const void *a, const void *b)
{
  const name_key *x = a, *y = b;
  int c = strcmp(x->name, y->name);

  if (x->absent != y->absent) return x->absent ? 1 : -1;
  if (c != 0) return c;
  if (x->index != y->index) return x->index < y->index ? -1 : 1;
  return (x->entry > y->entry) - (x->entry < y->entry);
}

xfer_status xfi_joined_side_group(xfi_joined_side *joined, const xfer_model *model)
{
  size_t n = model->n_entries;
  name_key *keys = xfi_calloc(n, sizeof *keys);
  xfer_status st = XFER_OK;

  joined->by_name = xfi_calloc(n, sizeof *joined->by_name);
  joined->groups = xfi_calloc(n, sizeof *joined->groups);
  XFI_CHECK_DONE(keys != NULL && joined->by_name != NULL && joined->groups != NULL, XFER_ERR_NOMEM,
                 "the local tensors of %zu entries", n);
  for (size_t i = 0; i < n; i++) {
    const xfi_held_entry *held = &joined->held[i];

    keys[i] =
        (name_key){held->absent, held->mapping.local, xfi_param_mapping_number(&held->mapping), i};
  }
  qsort(keys, n, sizeof *keys, compare_keys);
  for (size_t i = 0; i < n; i++) {
    joined->by_name[i] = keys[i].entry;
    if (i > 0 && keys[i].absent == keys[i - 1].absent &&
        strcmp(keys[i].name, keys[i - 1].name) == 0) {
      joined->groups[joined->n_groups - 1].end = i + 1;
    } else {
      joined->groups[joined->n_groups++] = (xfi_entry_group){i, i + 1};
    }
  }
done:
  xfi_free(keys);
  return st;
}

/* ---- checks ---- */

static bool is_ignored(const xfer_refit *refit, const xfi_joined_side *joined,
                       const xfi_entry_group *group, int layer)
{
  for (size_t i = group->begin; i < group->end; i++) {
    const size_t at = joined->by_name[i];
    const int k = xfi_entry_place(&refit->model->entries[at], layer);

    if (k >= 0 && refit->tensor_of[at][k] >= 0) return false;
  }
  return true;
}

/* Checks one layer of a group: each of its weights occurs once, all have one element type, and
 * either all are ignored or none. Other layers may have other weights. */
static xfer_status check_layer(const xfer_refit *refit, const xfi_joined_side *joined,
                               const xfi_entry_group *group, int layer)
{
  const xfi_param_mapping *mapping = &joined->held[joined->by_name[group->begin]].mapping;
  const bool partial = joined->side->partial || refit->n_ignored == refit->n_absent;
  const xfi_entry *held = NULL, *ignored = NULL, *kept = NULL;
  xfer_dtype dtype = 0;
  int n = 0, n_weights = 0;

  if (is_ignored(refit, joined, group, layer)) return XFER_OK; /* it may lack what no rule knows */
  for (size_t i = group->begin; i < group->end; i++) {
    const size_t at = joined->by_name[i];
    const xfi_entry *e = &refit->model->entries[at];
    const xfi_param_mapping *s = &joined->held[at].mapping;
    const int k = xfi_entry_place(e, layer);
    xfer_dtype mine;

    if (k < 0) continue;
    if (n == 0) mapping = s;
    n_weights = mapping->n_weights + mapping->n_other_weights;
    mine = joined->held[at].layouts[k]->dtype;
    XFI_CHECK(s->n_weights + s->n_other_weights == n_weights && xfi_param_mapping_number(s) == n,
              XFER_ERR_SHAPE,
              "\"%s\" of layer %d in \"%s\": part %d of %d is missing or there twice (at \"%s\")",
              s->local, layer, joined->side->spec, n + 1, n_weights, e->pattern);
    XFI_CHECK(n == 0 || dtype == mine, XFER_ERR_MISMATCH,
              "\"%s\" is %s and \"%s\" is %s, but they lie in one tensor, \"%s\"", held->pattern,
              xfi_dtype_name((int)dtype), e->pattern, xfi_dtype_name((int)mine), s->local);
    held = e;
    dtype = mine;
    n++;
    if (refit->tensor_of[at][k] < 0)
      ignored = e;
    else
      kept = e;
  }
  XFI_CHECK(n == n_weights, XFER_ERR_SHAPE,
            "\"%s\" of layer %d in \"%s\" has %d parts, %d are there (\"%s\")", mapping->local,
            layer, joined->side->spec, n_weights, n,
            refit->model->entries[joined->by_name[group->begin]].pattern);
  XFI_CHECK(
      ignored == NULL || kept == NULL || partial, XFER_ERR_ARG,
      "\"%s\" is ignored, \"%s\" is not, but they lie in one tensor of \"%s\"; partial allows "
      "it",
      ignored->name, kept->name, joined->side->spec);
  return XFER_OK;
}

xfer_status xfi_joined_side_check(const xfer_refit *refit, const xfi_joined_side *joined)
{
  for (size_t g = 0; g < joined->n_groups; g++) {
    const xfi_entry_group *group = &joined->groups[g];
    const xfi_param_mapping *first = &joined->held[joined->by_name[group->begin]].mapping;
    const bool alone =
        group->end - group->begin == 1 && first->n_weights + first->n_other_weights == 1;

    for (size_t i = group->begin; i < group->end && !alone; i++) {
      const xfi_entry *e = &refit->model->entries[joined->by_name[i]];

      for (int k = 0; k < xfi_entry_places(e); k++)
        XFI_TRY(check_layer(refit, joined, group, xfi_entry_layer(e, k)));
    }
  }
  return XFER_OK;
}
