/*
 * Where elements are converted. A copy from memory to memory converts at once. In a slot elements
 * have the type in which they travel, the smaller of the two, so sources narrow and destinations
 * widen. The copies between memory and slots are made here too.
 */
#ifndef XFI_WIRE_H
#define XFI_WIRE_H

#include "bound_plan.h"

/* Fill plan->converts: what kernels do to the elements of each class. */
xfer_status xfi_plan_fill_converts(xfer_plan *plan);

/* How far a copy takes elements: from the source's memory to the destination's, only into a slot,
 * where they have the type in which they travel, or only out of one. */
typedef enum xfi_leg { XFI_END_TO_END, XFI_TO_WIRE, XFI_FROM_WIRE } xfi_leg;
xfi_elem xfi_plan_elem(const xfer_plan *plan, const xfi_class *cls, xfi_leg leg);

/* The elements [first, end) of a box of a tensor, in row-major order. */
typedef struct xfi_elem_range {
  uint32_t tensor;
  const xfi_box *box;
  int64_t first;
  int64_t end;
} xfi_elem_range;

/* Append the copies of a range: with `send` from the source into a slot, else from the slot to the
 * destination. */
xfer_status xfi_slot_copies(xfi_copies *copies, const xfer_plan *plan, const xfi_elem_range *range,
                            char *slot, bool send);

#endif
