/* The side as an object: SPEC, options, and the caller's overrides. */
#include "side.h"

#include "alloc.h"
#include "error.h"
#include "layout.h"
#include "names.h"
#include "options.h"
#include "vec.h"

#include <stdio.h>
#include <string.h>

xfer_side *xfi_side_share(const xfer_side *side)
{
  xfer_side *shared = (xfer_side *)(uintptr_t)side; /* only the count changes */

  atomic_fetch_add(&shared->n_refs, 1);
  return shared;
}

void xfi_side_destroy(xfer_side *side)
{
  if (side == NULL || atomic_fetch_sub(&side->n_refs, 1) != 1) return;
  for (size_t i = 0; i < side->n_overrides; i++) {
    xfi_free(side->overrides[i].pattern);
    xfi_free(side->overrides[i].to);
  }
  xfi_free(side->overrides);
  xfi_expert_maps_free(side);
  for (int i = 0; i < side->n_vars; i++)
    xfi_free(side->var_names[i]);
  xfi_free(side->stage_layers);
  xfi_mesh_destroy(side->mesh);
  xfi_free(side->ranks_by_stage);
  xfi_rules_destroy(side->rules);
  xfi_free(side);
}

bool xfi_side_ignores(const xfer_side *side, const char *name)
{
  for (size_t i = 0; i < side->n_overrides; i++) {
    const xfi_override *override = &side->overrides[i];

    if (override->kind == XFI_OVERRIDE_IGNORE && xfi_glob_match(override->pattern, name))
      return true;
  }
  return strstr(name, "_extra_state") != NULL;
}

xfer_status xfi_side_add_override(xfer_side *side, xfi_override_kind kind, const char *pattern,
                                  const char *to, int value)
{
  xfi_override override = {.kind = kind, .value = value};
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(xfi_glob_check(pattern, to));
  XFI_TRY_DONE(xfi_vec_reserve(&side->overrides, &side->overrides_cap, side->n_overrides + 1,
                               sizeof *side->overrides));
  XFI_TRY_DONE(xfi_name_copy(&override.pattern, pattern));
  if (to != NULL) XFI_TRY_DONE(xfi_name_copy(&override.to, to));
  side->overrides[side->n_overrides++] = override;
  memset(&override, 0, sizeof override);
done:
  xfi_free(override.pattern);
  xfi_free(override.to);
  return st;
}

xfer_status xfi_side_create(xfer_side **side, const char *spec, const xfer_side_options *options)
{
  xfer_side_options o = XFER_SIDE_OPTIONS_INIT;
  xfer_side *s = NULL;
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(XFI_OPTIONS_COPY(&o, options, xfer_side_options, rules));
  XFI_CHECK_DONE(o.reserved == 0, XFER_ERR_UNSUPPORTED, "side option reserved is %#x: want 0",
                 o.reserved);
  s = xfi_calloc(1, sizeof *s);
  XFI_CHECK_DONE(s != NULL, XFER_ERR_NOMEM, "the side \"%.80s\"", spec);
  atomic_store(&s->n_refs, 1);
  snprintf(s->spec, sizeof s->spec, "%s", spec);
  if (o.rules != NULL)
    s->rules = xfi_rules_share(o.rules);
  else
    XFI_TRY_DONE(xfi_rules_sides(&s->rules));
  s->partial = o.partial != 0;
  s->strict = o.strict != 0;
  XFI_TRY_DONE(xfi_spec_parse(s, spec, &o));
  XFI_TRY_DONE(xfi_grid_make(s, &o));
  XFI_TRY_DONE(xfi_expert_map_check(s));
  if (o.n_map != 0) XFI_TRY_DONE(xfi_expert_map_copy(s, &o));
  *side = s;
  s = NULL;
done:
  xfi_side_destroy(s);
  return st;
}
