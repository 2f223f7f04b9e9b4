/* What each entry is. */
#ifndef XFI_ROLES_H
#define XFI_ROLES_H

#include "entries.h"

void xfi_roles_split_name(const xfer_model *model, xfi_entry *entry);
xfer_status xfi_roles_find(xfer_model *model);
xfer_status xfi_roles_collect(xfer_model *model);
bool xfi_role_matches(const char *pattern, const char *role);
/* Of an entry's rows: what they are in blocks of so many. */
xfer_status xfi_roles_scale(xfi_row_segment *segment, int64_t block, bool alone,
                            const xfi_entry *entry);

#endif
