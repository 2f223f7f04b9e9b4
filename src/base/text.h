/* A string that is built piece by piece: JSON, reports, and the spelling of things in error texts.
 *
 * Errors stick: append without checking, and look at what xfi_text_end() says, or at `st`.
 */
#ifndef XFI_TEXT_H
#define XFI_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <xfer/xfer.h>

/* All zero is an empty text that grows. */
typedef struct xfi_text {
  char *chars;
  size_t n_chars;
  size_t cap;
  bool fixed;     /* chars is the caller's buffer of cap bytes */
  xfer_status st; /* the status of a growing text: OK, or NOMEM, with its text set */
} xfi_text;

/* A text in the caller's buffer: never allocates. Characters that do not fit are cut, and
 * counted in n_chars all the same, as by snprintf(). */
void xfi_text_fixed(xfi_text *text, char *buffer, size_t size);

__attribute__((format(printf, 2, 3))) void xfi_text_printf(xfi_text *text, const char *fmt, ...);

/* Appends `n_chars` characters. */
void xfi_text_add(xfi_text *text, const char *chars, size_t n_chars);

/* How many bytes the UTF-8 character at `c` has; 0: there is none. */
size_t xfi_text_character(const char *c);

/* Appends `chars` as a JSON string, quotes included; bytes that are not UTF-8 become U+FFFD. */
void xfi_text_json(xfi_text *text, const char *chars);

/* Hands the string over, to be freed by xfi_free, or says what went wrong, which makes it NULL:
 * `text` is empty again. Not for a fixed text. */
xfer_status xfi_text_end(xfi_text *text, char **string);

#endif
