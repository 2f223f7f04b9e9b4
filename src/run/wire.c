/*
 * Where elements are converted on their way. Elements cross as the smaller of their two types: the
 * sender's half of a conversion narrows them, or the receiver's half widens them, and a direct copy
 * does all of it at once. The lanes ask for the conversion of their leg as they are built.
 */
#include "wire.h"

#include "alloc.h"
#include "error.h"
#include "float_mode.h"
#include "slice.h"

static xfi_convert convert_of(const xfi_class *cls)
{
  const int32_t kind = cls->conversion.kind;
  const float value = cls->conversion.value;
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
    convert.op = XFI_CONVERT_BLOCKS; /* copies have converts of their own (blocks.c) */
  }
  return convert;
}

xfer_status xfi_plan_fill_converts(xfer_plan *plan)
{
  const xfi_moves *m = plan->moves;
  fenv_t callers;

  plan->converts = xfi_calloc(m->n_classes, sizeof *plan->converts);
  XFI_CHECK(plan->converts != NULL, XFER_ERR_NOMEM, "%zu classes", m->n_classes);
  xfi_float_mode_enter(&callers);
  for (size_t c = 0; c < m->n_classes; c++)
    plan->converts[c] = convert_of(&m->classes[c]);
  xfi_float_mode_leave(&callers);
  return XFER_OK;
}

xfi_elem xfi_plan_elem(const xfer_plan *plan, const xfi_class *cls, xfi_leg leg)
{
  const bool narrows = cls->wire_bytes == cls->dst->elem_bytes; /* else the destination widens */
  xfi_elem elem = {leg == XFI_TO_WIRE ? cls->wire_bytes : cls->dst->elem_bytes, NULL};

  if (cls->conversion.kind == XFER_CONVERSION_NONE) return elem;
  if (leg == XFI_END_TO_END || narrows == (leg == XFI_TO_WIRE))
    elem.convert = &plan->converts[cls - plan->moves->classes];
  return elem;
}

xfer_status xfi_slot_copies(xfi_copies *copies, const xfer_plan *plan, const xfi_elem_range *range,
                            char *slot, bool send)
{
  const xfi_class *cls = xfi_moves_class(plan->moves, range->tensor);
  const xfi_elem elem = xfi_plan_elem(plan, cls, send ? XFI_TO_WIRE : XFI_FROM_WIRE);
  const int64_t *start = send ? range->box->src_local : range->box->dst_local;
  const int n_dims = cls->src->n_dims;
  const int wire = cls->wire_bytes;
  xfi_slice slices[XFI_MAX_SLICES];
  const int n = xfi_slice_box(slices, range->box->length, n_dims, range->first, range->end);

  for (int i = 0; i < n; i++) {
    const xfi_bound dense =
        xfi_bound_dense(slot + slices[i].offset * wire, slices[i].length, n_dims, wire);
    const xfi_end in_slot = {&dense, {0}};
    xfi_end user = {xfi_plan_bound(plan, send, range->tensor), {0}};

    for (int d = 0; d < n_dims; d++)
      user.start[d] = start[d] + slices[i].start[d];
    XFI_TRY(xfi_copies_add(copies, send ? &in_slot : &user, send ? &user : &in_slot,
                           slices[i].length, n_dims, elem));
  }
  return XFER_OK;
}
