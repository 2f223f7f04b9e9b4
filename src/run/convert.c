/*
 * Where elements change: on the way from memory to memory at once; in a slot they are as they
 * travel, which is the smaller of the two types. So sources narrow and destinations widen.
 */
#include "alloc.h"
#include "bound_plan.h"
#include "error.h"

static xfi_convert convert_of(const xfi_class *cls)
{
  const xfer_conversion_kind kind = xfi_conversion_kind(cls->conversion);
  const float value = xfi_conversion_value(cls->conversion);
  xfi_convert convert = {.from = (uint8_t)cls->src->dtype,
                         .to = (uint8_t)cls->dst->dtype,
                         .src_bytes = (uint8_t)cls->src->elem_bytes,
                         .dst_bytes = (uint8_t)cls->dst->elem_bytes};

  if (kind == XFER_CONVERSION_SCALE) {
    convert.op = XFI_CONVERT_TIMES;
    convert.value = 1 / value;
  } else if (kind == XFER_CONVERSION_ADD) {
    convert.op = XFI_CONVERT_PLUS;
    convert.value = value;
  } else if (kind == XFER_CONVERSION_BLOCKS) {
    convert.op = XFI_CONVERT_BLOCKS; /* copies have their own: blocks.c */
  }
  return convert;
}

xfer_status xfi_run_fill_converts(xfer_plan *plan)
{
  const xfi_plan *m = plan->moves;

  plan->converts = xfi_calloc(m->n_classes, sizeof *plan->converts);
  XFI_CHECK(plan->converts != NULL, XFER_ERR_NOMEM, "%zu classes", m->n_classes);
  for (size_t c = 0; c < m->n_classes; c++)
    plan->converts[c] = convert_of(&m->classes[c]);
  return XFER_OK;
}

xfi_elem xfi_run_elem(const xfer_plan *plan, const xfi_class *cls, xfi_leg leg)
{
  const bool narrows = xfi_class_narrows(cls);
  xfi_elem elem = {leg == XFI_TO_WIRE ? cls->wire_bytes : cls->dst->elem_bytes, NULL};

  if (cls->conversion == 0) return elem;
  if (leg == XFI_WHOLE_WAY || narrows == (leg == XFI_TO_WIRE))
    elem.convert = &plan->converts[cls - plan->moves->classes];
  return elem;
}
