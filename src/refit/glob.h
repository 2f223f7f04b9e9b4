/* Patterns of names: `*` stands for any text. A rename carries what the stars matched over. */
#ifndef XFI_GLOB_H
#define XFI_GLOB_H

#include <stdbool.h>

#include "xfer/xfer.h"

enum { XFI_GLOB_STARS = 8 };

bool xfi_glob_match(const char *pattern, const char *name);

/* XFER_ERR_ARG: more than XFI_GLOB_STARS stars, or `to` has more than `from`. `to` may be NULL: no
 * rename. */
xfer_status xfi_glob_check(const char *from, const char *to);

/* The name with `from` rewritten to `to`; NULL in *renamed: it does not match. Checked patterns
 * only. */
xfer_status xfi_glob_rename(char **renamed, const char *from, const char *to, const char *name);

/* `text` with each `what` replaced by `by`; NULL: out of memory. */
char *xfi_replace(const char *text, const char *what, const char *by);

#endif
