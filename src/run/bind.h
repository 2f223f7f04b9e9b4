/*
 * What a commit checks of the bindings: is everything bound, and can the lanes stay?
 */
#ifndef XFI_BIND_H
#define XFI_BIND_H

#include "bound_plan.h"

void xfi_binding_destroy(xfi_binding *binding);
/* The bytes of this rank's part of a tensor on one side; and bind its dense mirror at `memory`. */
uint64_t xfi_bind_bytes(const xfer_plan *plan, size_t tensor, xfi_side side);
xfer_status xfi_bind_mirror(const xfer_plan *plan, size_t tensor, xfi_side side, void *memory);
/* Checks that every part that is not empty is bound. */
xfer_status xfi_bindings_check(const xfer_plan *plan);
/* Checks that no destinations overlap. */
xfer_status xfi_bindings_check_disjoint(const xfer_plan *plan);

/* ---- rebind.c ---- */

/* May peers have mapped what is bound, or will they? */
bool xfi_rebind_is_mapped(const xfer_plan *plan);
/* Do the lanes need only other addresses, if lanes.may_stay is set? If peers have mapped bound
 * memory, all views must lie in allocations of the commit; the allocations in which no view
 * lies any more, which may be freed, are then removed from the plan's list. */
bool xfi_rebind_keeps(xfer_plan *plan);
/* Give the lanes the new addresses, as far as that involves this rank only. */
xfer_status xfi_rebind_local(xfer_plan *plan);
/* Give the direct lane the new addresses, which its peers need too. Collective. *rebound is false,
 * on all ranks, where some rank has to map memory first. */
xfer_status xfi_rebind_direct(xfer_plan *plan, bool *rebound, xfi_deadline deadline);

#endif
