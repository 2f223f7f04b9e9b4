/*
 * The allocations that bound memory lies in, as a commit finds them, and whether they still exist.
 */
#ifndef XFI_ALLOCATIONS_H
#define XFI_ALLOCATIONS_H

#include "bound_plan.h"

/* Fill plan->memory.allocations: what bound memory lies in, each allocation once. Fails if copies
 * cannot use some of that memory. */
xfer_status xfi_plan_list_allocations(xfer_plan *plan);

/* Does all bound memory of these sides (XFI_SIDE_*) lie in plan->memory.allocations? Marks those in
 * which some lies in used[n_allocations], unless that is NULL. */
bool xfi_plan_covers(bool *used, const xfer_plan *plan, int sides);

/* Remove the allocations in which no bound memory lies any more from plan->memory.allocations.
 * False, and the list stays as it is: some bound memory lies in none of them, or the search is out
 * of memory.
 */
bool xfi_plan_prune_allocations(xfer_plan *plan);

/* The first of plan->memory.allocations that no longer exists; NULL: all do. */
const xfi_allocation *xfi_plan_find_changed(const xfer_plan *plan);

/* Which of plan->memory.allocations holds the bytes; NULL: none. */
const xfi_allocation *xfi_plan_allocation(const xfer_plan *plan, const void *pointer,
                                          size_t n_bytes);

#endif
