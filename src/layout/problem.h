/* The problem language: a redistribution as one line of text. docs/problem-language.md has the
 * grammar. */
#ifndef XFI_PROBLEM_H
#define XFI_PROBLEM_H

#include <stddef.h>

#include "xfer/xfer.h"

/* These do what the public functions of the same names do. */
xfer_status xfi_layout_parse(xfer_layout **layout, const char *line);
xfer_status xfi_problem_parse(xfer_layout **src, xfer_layout **dst, const char *line);
size_t xfi_problem_format(char *text, size_t n_bytes, const xfer_layout *src,
                          const xfer_layout *dst);

#endif
