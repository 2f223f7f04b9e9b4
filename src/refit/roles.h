/* The roles of entries. */
#ifndef XFI_ROLES_H
#define XFI_ROLES_H

#include "model.h"

void xfi_roles_split_name(const xfer_model *model, xfi_entry *entry);
xfer_status xfi_roles_find(xfer_model *model);
xfer_status xfi_roles_collect(xfer_model *model);
/* The characters of a role's name without ".bias", which stands for its bias. */
size_t xfi_role_chars(const char *role);
bool xfi_role_matches(const char *pattern, const char *role);
/* Turn a segment of an entry's rows into a segment of blocks of `block` rows. */
xfer_status xfi_roles_scale(xfi_row_segment *segment, int64_t block, bool alone,
                            const xfi_entry *entry);

#endif
