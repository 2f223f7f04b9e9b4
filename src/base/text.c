/* A string that is built piece by piece. */
#include "text.h"

#include "alloc.h"
#include "error.h"
#include "vec.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void xfi_text_fixed(xfi_text *text, char *buffer, size_t size)
{
  if (size > 0) buffer[0] = '\0';
  *text = (xfi_text){.chars = buffer, .cap = size, .fixed = true};
}

/* Makes room for n_more characters and the final zero, where it grows. False: there is no memory.
 */
static bool grow(xfi_text *text, size_t n_more)
{
  if (!text->fixed && text->st == XFER_OK)
    text->st = xfi_vec_reserve(&text->chars, &text->cap, text->n_chars + n_more + 1, 1);
  return text->st == XFER_OK;
}

void xfi_text_add(xfi_text *text, const char *chars, size_t n_chars)
{
  const size_t at = text->n_chars;
  size_t n = n_chars;

  if (!grow(text, n_chars)) return;
  text->n_chars += n_chars;
  if (at >= text->cap) return;
  if (n > text->cap - 1 - at) n = text->cap - 1 - at;
  memcpy(text->chars + at, chars, n);
  text->chars[at + n] = '\0';
}

void xfi_text_printf(xfi_text *text, const char *fmt, ...)
{
  size_t n_chars = 0;
  bool fits = false;

  while (!fits) { /* nearly every piece does at once; a longer one is printed twice */
    va_list args;

    if (!grow(text, n_chars)) return;
    const size_t at = text->n_chars < text->cap ? text->n_chars : text->cap;
    va_start(args, fmt);
    const int n = vsnprintf(at < text->cap ? text->chars + at : NULL, text->cap - at, fmt, args);
    va_end(args);
    if (n < 0) return;
    n_chars = (size_t)n;
    fits = text->fixed || n_chars < text->cap - at;
  }
  text->n_chars += n_chars;
}

size_t xfi_text_character(const char *c)
{
  const unsigned char *u = (const unsigned char *)c;
  const size_t n = u[0] < 0x80 ? 1 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;

  if ((u[0] >= 0x80 && u[0] < 0xc2) || u[0] > 0xf4) return 0;
  for (size_t i = 1; i < n; i++)
    if ((u[i] & 0xc0) != 0x80) return 0;
  if ((u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xf0 && u[1] < 0x90)) return 0; /* too long */
  if ((u[0] == 0xed && u[1] > 0x9f) || (u[0] == 0xf4 && u[1] > 0x8f)) return 0; /* no character */
  return n;
}

void xfi_text_json(xfi_text *text, const char *chars)
{
  size_t n = 0;

  xfi_text_add(text, "\"", 1);
  for (const char *c = chars; *c != '\0'; c += n > 0 ? n : 1) {
    n = xfi_text_character(c);
    if (*c == '"' || *c == '\\') {
      xfi_text_printf(text, "\\%c", *c);
    } else if ((unsigned char)*c < 0x20) {
      xfi_text_printf(text, "\\u%04x", (unsigned)*c);
    } else if (n == 0) {
      xfi_text_printf(text, "\\ufffd");
    } else {
      xfi_text_add(text, c, n);
    }
  }
  xfi_text_add(text, "\"", 1);
}

xfer_status xfi_text_end(xfi_text *text, char **string)
{
  xfer_status st;

  assert(!text->fixed);
  xfi_text_add(text, "", 0); /* even an empty string is one */
  st = text->st;
  *string = st == XFER_OK ? text->chars : NULL;
  if (st != XFER_OK) xfi_free(text->chars);
  *text = (xfi_text){.chars = NULL};
  return st;
}
