/* What each entry of a model is: its name taken apart, and its role in the family. */
#ifndef XFI_ROLES_H
#define XFI_ROLES_H

#include "entries.h"

/* Set where the tensor is (layer, stem, suffix) and which scales it holds, by its name and shape.
 */
void xfi_roles_split_name(const xfer_model *model, xfi_entry *entry);
/* Find the roles of all entries that have none yet. A tensor of several weights becomes an entry
 * for each of them. */
xfer_status xfi_roles_find(xfer_model *model);
/* Split entries until the layers of each have the same roles. */
xfer_status xfi_roles_split_layers(xfer_model *model);
/* Turn a segment of a weight's rows into the segment of its scales, one for each block of `block`
 * rows. `alone`: the entry has no other segment, so that its last block may be shorter. */
xfer_status xfi_segment_to_blocks(xfi_row_segment *segment, int64_t block, bool alone,
                                  const xfi_entry *entry);

#endif
