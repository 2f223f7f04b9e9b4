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
