/* The text of a thread's last failed call: one fixed buffer per thread. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[XFI_ERROR_BYTES];

const char *xfi_last_error(void)
{
  return last_error;
}

void xfi_set_error(const char *fmt, ...)
{
  char text[XFI_ERROR_BYTES]; /* apart, since an argument may point into last_error */
  va_list args;

  va_start(args, fmt);
  int n = vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  if (n < 0) text[0] = '\0'; /* a wide character that the locale cannot print */
  memcpy(last_error, text, sizeof last_error);
}
