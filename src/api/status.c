/*
 * The last error, the version, the log.
 */
#include "error.h"
#include "trace.h"
#include "xfer/xfer.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *xfer_last_error(void)
{
  return xfi_last_error();
}

const char *xfer_version(void)
{
  return TEXT(XFER_VERSION_MAJOR) "." TEXT(XFER_VERSION_MINOR) "." TEXT(XFER_VERSION_PATCH);
}

void xfer_log_set(xfer_log_fn fn, void *context, int level)
{
  xfi_trace_tell(fn, context, level);
}
