/* Names of tensors: patterns in which `*` matches any text, renames that carry over what the stars
 * matched, and placeholders such as {layer} that stand for a number. */
#ifndef XFI_NAMES_H
#define XFI_NAMES_H

#include <stdbool.h>
#include <string.h>

#include "xfer/xfer.h"

enum { XFI_GLOB_STARS = 8, XFI_NAME_BYTES = 512 };

/* Are the n characters of a name this word? */
static inline bool xfi_name_is(const char *name, size_t n, const char *word)
{
  return strncmp(word, name, n) == 0 && word[n] == '\0';
}

/* Do the n characters of a name end with `end`, behind at least one other? */
static inline bool xfi_name_ends(const char *name, size_t n, const char *end)
{
  const size_t n_end = strlen(end);

  return n > n_end && memcmp(name + n - n_end, end, n_end) == 0;
}

/* Is `part` in the name, with a dot or an end of the name on each side? */
bool xfi_name_has_part(const char *name, const char *part);

bool xfi_glob_match(const char *pattern, const char *name);

/* XFER_ERR_ARG: more than XFI_GLOB_STARS stars, or `to` has more than `from`. `to` may be NULL: no
 * rename. */
xfer_status xfi_glob_check(const char *from, const char *to);

/* The name with `from` rewritten to `to`; NULL in *renamed: it does not match. Checked patterns
 * only. */
xfer_status xfi_glob_rename(char **renamed, const char *from, const char *to, const char *name);

/* The characters of a role's name without ".bias", which stands for its bias. */
size_t xfi_role_chars(const char *role);
/* Is the role the pattern, or does it match its stars? NULL matches nothing. */
bool xfi_role_matches(const char *pattern, const char *role);

xfer_status xfi_name_copy(char **copy, const char *name);

/* "a.layers.3.experts.7.w" -> "a.layers.{layer}.experts.{expert}.w": a pattern of XFI_NAME_BYTES, 3
 * and 7; -1: no such number. A layer's number follows one of `words`, up to its first dot. */
xfer_status xfi_name_split(char *pattern, int *layer, int *expert, const char *name,
                           const char *const *words, int n_words);

/* The numbers for {layer}, {expert}, {local} and {chunk}; -1: the placeholder stays. */
typedef struct xfi_name_numbers {
  int layer, expert, local, chunk;
} xfi_name_numbers;

xfer_status xfi_name_fill(char **name, const char *pattern, const xfi_name_numbers *numbers);
/* Fills in {layer} only. */
xfer_status xfi_name_layer(char **name, const char *pattern, int layer);

#endif
