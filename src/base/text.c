/* A string that is built piece by piece. */
#include "text.h"

#include "alloc.h"
#include "checked.h"
#include "error.h"
#include "vec.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void xfi_text_fixed(xfi_text *text, char *buffer, size_t size)
{
  assert(size >= 1);
  buffer[0] = '\0';
  *text = (xfi_text){.chars = buffer, .cap = size, .fixed = true};
}

/* Makes room for n_more characters and the final zero; returns how many of them fit. */
static size_t text_room(xfi_text *text, size_t n_more)
{
  size_t need = 0;

  if (text->st != XFER_OK) return 0;
  if (!text->fixed) {
    bool fits = xfi_add_fits(text->n_chars, n_more, &need) && xfi_add_fits(need, 1, &need);
    if (!fits) need = SIZE_MAX; /* which no allocation grants */
    text->st = xfi_vec_reserve(&text->chars, &text->cap, need, 1);
    return text->st == XFER_OK ? n_more : 0;
  }
  size_t room = text->cap - 1 - text->n_chars;
  if (n_more <= room) return n_more;
  xfi_set_error("a text of more than %zu characters", text->cap - 1);
  text->st = XFER_ERR_OVERFLOW;
  return room;
}

void xfi_text_add(xfi_text *text, const char *chars, size_t n_chars)
{
  size_t n = text_room(text, n_chars);

  if (n == 0) return;
  memcpy(text->chars + text->n_chars, chars, n);
  text->n_chars += n;
  text->chars[text->n_chars] = '\0';
}

void xfi_text_printf(xfi_text *text, const char *fmt, ...)
{
  char piece[256]; /* nearly every piece fits; a longer one is printed twice */
  va_list args;

  if (text->st != XFER_OK) return;
  va_start(args, fmt);
  int n = vsnprintf(piece, sizeof piece, fmt, args);
  va_end(args);
  if (n <= 0) return;
  if ((size_t)n < sizeof piece) {
    xfi_text_add(text, piece, (size_t)n);
    return;
  }

  size_t fit = text_room(text, (size_t)n);
  if (fit == 0) return;
  va_start(args, fmt);
  (void)vsnprintf(text->chars + text->n_chars, fit + 1, fmt, args);
  va_end(args);
  text->n_chars += fit;
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
  (void)text_room(text, 0); /* even an empty string is one */
  st = text->st;
  *string = st == XFER_OK ? text->chars : NULL;
  if (st == XFER_OK) text->chars = NULL;
  xfi_text_free(text);
  return st;
}

void xfi_text_free(xfi_text *text)
{
  if (!text->fixed) xfi_free(text->chars);
  *text = (xfi_text){.chars = NULL};
}
