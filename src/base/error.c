/* Names of statuses, and the text of a thread's last failed call: one fixed buffer per thread. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Without `default`, so that the compiler finds one that is missing. */
const char *xfer_status_name(xfer_status status)
{
#define NAMED(value)                                                                               \
  case value:                                                                                      \
    return #value
  switch (status) {
    NAMED(XFER_OK);
    NAMED(XFER_ERR_ARG);
    NAMED(XFER_ERR_SHAPE);
    NAMED(XFER_ERR_UNSUPPORTED);
    NAMED(XFER_ERR_STATE);
    NAMED(XFER_ERR_NOMEM);
    NAMED(XFER_ERR_OVERFLOW);
    NAMED(XFER_ERR_IO);
    NAMED(XFER_ERR_MISMATCH);
    NAMED(XFER_ERR_PEER);
    NAMED(XFER_ERR_TIMEOUT);
    NAMED(XFER_ERR_CUDA);
    NAMED(XFER_ERR_COMM);
    NAMED(XFER_ERR_INTERNAL);
  }
#undef NAMED
  return "unknown status";
}

static _Thread_local char last_error[XFI_ERROR_BYTES];

const char *xfer_last_error(void)
{
  return last_error;
}

/* Where a text that was cut ends, so that no character of UTF-8 is cut in two. */
static size_t whole_characters(const char *text, size_t n)
{
  size_t begins = n;

  while (begins > 0 && n - begins < 3 && ((unsigned char)text[begins - 1] & 0xc0) == 0x80)
    begins--;
  if (begins == 0 || (unsigned char)text[begins - 1] < 0xc0) return n; /* ASCII, or not UTF-8 */
  const unsigned char first = (unsigned char)text[begins - 1];
  const size_t wants = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;

  return n - begins + 1 < wants ? begins - 1 : n;
}

void xfi_cut_text(char *to, size_t size, const char *text)
{
  (void)snprintf(to, size, "%s", text);
  if (strlen(text) >= size) to[whole_characters(to, size - 1)] = '\0';
}

void xfi_set_error(const char *fmt, ...)
{
  char text[XFI_ERROR_BYTES]; /* apart, since an argument may point into last_error */
  va_list args;

  va_start(args, fmt);
  int n = vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  if (n < 0) text[0] = '\0'; /* a wide character that the locale cannot print */
  if (n >= (int)sizeof text) text[whole_characters(text, sizeof text - 1)] = '\0';
  memcpy(last_error, text, sizeof last_error);
}
