/* Names of statuses, and the text of a thread's last failed call: one fixed buffer per thread. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *xfer_status_name(xfer_status status)
{
  switch (status) {
  case XFER_OK:
    return "XFER_OK";
  case XFER_ERR_ARG:
    return "XFER_ERR_ARG";
  case XFER_ERR_SHAPE:
    return "XFER_ERR_SHAPE";
  case XFER_ERR_UNSUPPORTED:
    return "XFER_ERR_UNSUPPORTED";
  case XFER_ERR_STATE:
    return "XFER_ERR_STATE";
  case XFER_ERR_NOMEM:
    return "XFER_ERR_NOMEM";
  case XFER_ERR_OVERFLOW:
    return "XFER_ERR_OVERFLOW";
  case XFER_ERR_IO:
    return "XFER_ERR_IO";
  case XFER_ERR_MISMATCH:
    return "XFER_ERR_MISMATCH";
  case XFER_ERR_PEER:
    return "XFER_ERR_PEER";
  case XFER_ERR_TIMEOUT:
    return "XFER_ERR_TIMEOUT";
  case XFER_ERR_CUDA:
    return "XFER_ERR_CUDA";
  case XFER_ERR_COMM:
    return "XFER_ERR_COMM";
  case XFER_ERR_INTERNAL:
    return "XFER_ERR_INTERNAL";
  }
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
