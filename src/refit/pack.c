/* Entries that share local tensors: found by name, and checked to be complete. */
#include "join.h"

#include "alloc.h"
#include "dtype.h"
#include "error.h"

#include <stdlib.h>
#include <string.h>

typedef struct name_key {
  const char *name;
  int slot;
  size_t entry;
} name_key;

static int compare_keys(const void *a, const void *b)
{
  const name_key *x = a, *y = b;
  int c = strcmp(x->name, y->name);

  if (c != 0) return c;
  if (x->slot != y->slot) return x->slot < y->slot ? -1 : 1;
  return (x->entry > y->entry) - (x->entry < y->entry);
}

static bool holds_layer(const xfi_entry *entry, int layer)
{
  for (int k = 0; k < entry->n_layers; k++) {
    if (entry->layers[k] == layer) return true;
  }
  return layer < 0 && entry->n_layers == 0;
}

/* In one layer, each of the slots must be there, once, in one element type. */
static xfer_status check_layer(const xfi_joined *joined, const xfer_model *model,
                               const xfi_family *family, int layer)
{
  const xfi_entry *first = &model->entries[joined->by_name[family->begin]];
  const xfi_slot *slot = &joined->held[joined->by_name[family->begin]].slot;
  const xfi_entry *held = NULL;
  int n = 0;
  xfer_status st = XFER_OK;

  for (size_t i = family->begin; i < family->end; i++) {
    const xfi_entry *e = &model->entries[joined->by_name[i]];
    const xfi_slot *s = &joined->held[joined->by_name[i]].slot;

    if (!holds_layer(e, layer)) continue;
    XFI_CHECK(s->n_slots == slot->n_slots && s->slot == n, XFER_ERR_SHAPE,
              "\"%s\" of layer %d in \"%s\": part %d of %d is missing or there twice (at \"%s\")",
              s->local, layer, joined->side->spec, n + 1, s->n_slots, e->pattern);
    XFI_CHECK(held == NULL || held->dtype == e->dtype, XFER_ERR_MISMATCH,
              "\"%s\" is %s and \"%s\" is %s, but they lie in one tensor, \"%s\"", held->pattern,
              xfi_dtype_name((int)held->dtype), e->pattern, xfi_dtype_name((int)e->dtype),
              s->local);
    held = e;
    n++;
  }
  XFI_CHECK(n == slot->n_slots, XFER_ERR_SHAPE,
            "\"%s\" of layer %d in \"%s\" has %d parts, %d are there (\"%s\")", slot->local, layer,
            joined->side->spec, slot->n_slots, n, first->pattern);
done:
  return st;
}

static xfer_status check_family(const xfi_joined *joined, const xfer_model *model,
                                const xfi_family *family)
{
  xfer_status st = XFER_OK;

  if (family->end - family->begin == 1 &&
      joined->held[joined->by_name[family->begin]].slot.n_slots == 1) {
    return XFER_OK;
  }
  for (size_t i = family->begin; i < family->end; i++) {
    const xfi_entry *e = &model->entries[joined->by_name[i]];

    if (e->n_layers == 0) XFI_TRY(check_layer(joined, model, family, -1));
    for (int k = 0; k < e->n_layers; k++)
      XFI_TRY(check_layer(joined, model, family, e->layers[k]));
  }
done:
  return st;
}

xfer_status xfi_joined_pack(xfi_joined *joined, const xfer_model *model)
{
  size_t n = model->n_entries;
  name_key *keys = xfi_calloc(n, sizeof *keys);
  xfer_status st = XFER_OK;

  joined->by_name = xfi_calloc(n, sizeof *joined->by_name);
  joined->families = xfi_calloc(n, sizeof *joined->families);
  XFI_CHECK(keys != NULL && joined->by_name != NULL && joined->families != NULL, XFER_ERR_NOMEM,
            "the local tensors of %zu entries", n);
  for (size_t i = 0; i < n; i++) {
    keys[i] = (name_key){joined->held[i].slot.local, joined->held[i].slot.slot, i};
  }
  qsort(keys, n, sizeof *keys, compare_keys);
  for (size_t i = 0; i < n; i++) {
    joined->by_name[i] = keys[i].entry;
    if (i > 0 && strcmp(keys[i].name, keys[i - 1].name) == 0) {
      joined->families[joined->n_families - 1].end = i + 1;
    } else {
      joined->families[joined->n_families++] = (xfi_family){i, i + 1};
    }
  }
  for (size_t f = 0; f < joined->n_families; f++)
    XFI_TRY(check_family(joined, model, &joined->families[f]));
done:
  xfi_free(keys);
  return st;
}
