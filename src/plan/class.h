/* Classes: what one rank's part has in common with each part of the other side. */
#ifndef XFI_CLASS_H
#define XFI_CLASS_H

#include "flows_fill.h"

/* Fill sends and recvs of a class for the plan's rank, and prove that recvs tile its part. */
xfer_status xfi_class_fill(xfi_class *cls, const xfi_moves *moves, xfi_scratch *scratch);
/* Is the rank in the destination's mesh? Sets in_dst and dst_place. */
bool xfi_class_find_dst(xfi_class *cls, int rank);
/* Fill only the recvs of a class that has the plan's rank in its destination's mesh. They lie in
 * the scratch until another class is filled. */
xfer_status xfi_class_fill_receives(xfi_class *cls, const xfi_moves *moves, xfi_scratch *scratch);

#endif
