/*
 * Status names, the last error, the version.
 */
#include "error.h"
#include "xfer/xfer.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

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

const char *xfer_last_error(void)
{
  return xfi_last_error();
}

const char *xfer_version(void)
{
  return TEXT(XFER_VERSION_MAJOR) "." TEXT(XFER_VERSION_MINOR) "." TEXT(XFER_VERSION_PATCH);
}
