/* Names of tensors: patterns in which `*` stands for any text, renames that carry over what the
 * stars matched, and places such as {layer} that stand for a number. */
#ifndef XFI_NAMES_H
#define XFI_NAMES_H

#include <stdbool.h>

#include "xfer/xfer.h"

enum { XFI_GLOB_STARS = 8, XFI_NAME_BYTES = 512 };

bool xfi_glob_match(const char *pattern, const char *name);

/* XFER_ERR_ARG: more than XFI_GLOB_STARS stars, or `to` has more than `from`. `to` may be NULL: no
 * rename. */
xfer_status xfi_glob_check(const char *from, const char *to);

/* The name with `from` rewritten to `to`; NULL in *renamed: it does not match. Checked patterns
 * only. */
xfer_status xfi_glob_rename(char **renamed, const char *from, const char *to, const char *name);

xfer_status xfi_name_copy(char **copy, const char *name);

/* "a.layers.3.experts.7.w" -> "a.layers.{layer}.experts.{expert}.w": a pattern of XFI_NAME_BYTES, 3
 * and 7; -1: no such number. Layers are called what one of `words` has up to its first dot. */
xfer_status xfi_name_split(char *pattern, int *layer, int *expert, const char *name,
                           const char *const *words, int n_words);

/* What is filled in for {layer}, {expert}, {local} and {chunk}; -1: the place stays as it is. */
typedef struct xfi_name_numbers {
  int layer, expert, local, chunk;
} xfi_name_numbers;

xfer_status xfi_name_fill(char **name, const char *pattern, const xfi_name_numbers *numbers);
/* {layer} alone. */
xfer_status xfi_name_layer(char **name, const char *pattern, int layer);

#endif
