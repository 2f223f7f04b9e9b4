/*
 * Whether weights are as large as the configuration says. A family's "sizes" give a role's rows and
 * columns as expressions of a layer, in which `rows` and `columns` are those of the tensor. An
 * engine makes its tensors by the configuration, so another size is an error before any byte moves.
 */
#include "model.h"

#include "error.h"
#include "names.h"

#include <jansson.h>
#include <stddef.h>
#include <string.h>

static const char *const DIMS[] = {"rows", "columns"};

/* How many rows or columns a weight has; a kernel's last dims are its columns. */
static int64_t n_along(const xfi_entry *e, int d)
{
  int64_t n = e->shape[e->experts + d];

  for (int k = e->experts + 2; d > 0 && k < e->n_dims; k++)
    n *= e->shape[k];
  return n;
}

/* "rows" and "columns" of an entry. */
static xfi_found find_size(int64_t *value, const char *name, size_t n_chars, const void *context)
{
  const xfi_entry *e = context;

  for (int d = 0; d < 2; d++) {
    if (!xfi_name_is(name, n_chars, DIMS[d])) continue;
    *value = n_along(e, d);
    return XFI_FOUND;
  }
  return XFI_NOT_FOUND;
}

/* Is it a weight with rows and columns, not scales or a bias of one? */
static bool is_matrix(const xfi_entry *e)
{
  return e->scales == XFI_NO_SCALES && e->n_dims - e->experts >= 2 &&
         (*e->suffix == '\0' || strcmp(e->suffix, "weight") == 0);
}

static xfer_status check_dim(const xfer_model *model, const xfi_entry *e, xfi_family_expr size,
                             int d, int layer)
{
  const int64_t n = n_along(e, d);
  const xfi_scope own = {.find = find_size, .context = e};
  int64_t said;
  bool has;

  XFI_TRY(xfi_config_number(&has, &said, model, size, layer, &own));
  XFI_CHECK(!has || said == n, XFER_ERR_IO,
            "\"%s\" has %lld %s; the configuration says %lld (%s), by which engines make it",
            e->pattern, (long long)n, DIMS[d], (long long)said, json_string_value(size.expr));
  return XFER_OK;
}

xfer_status xfi_model_check_sizes(const xfer_model *model)
{
  for (size_t i = 0; i < model->n_entries; i++) {
    const xfi_entry *e = &model->entries[i];
    xfi_family_expr size;

    if (e->role == NULL || e->stack == XFI_EXTRA || !is_matrix(e)) continue;
    size = xfi_config_rule(model, offsetof(xfi_family, sizes), e->role);
    for (int d = 0; d < 2 && size.expr != NULL; d++) {
      const xfi_family_expr one = {size.family, json_array_get(size.expr, (size_t)d)};

      for (int k = 0; k < xfi_entry_places(e); k++)
        XFI_TRY(check_dim(model, e, one, d, xfi_entry_layer(e, k)));
    }
  }
  return XFER_OK;
}
