/*
 * Option structs that grow: a caller that was compiled with another version of the library may give
 * a shorter or a longer one, whose first member says how long it is.
 */
#include "options.h"

#include "error.h"

#include <assert.h>
#include <string.h>

/* No option struct comes near it; a larger struct_size was never set and must not be followed into
 * memory. */
enum { MAX_STRUCT_BYTES = 4096 };

/* Reads the struct_size at the beginning of a caller's struct. None ends inside a field: half a
 * pointer must not be followed either. */
static xfer_status read_size(size_t *size, size_t first_size, const void *from, const char *name)
{
  memcpy(size, from, sizeof *size);
  XFI_CHECK(*size >= first_size && *size <= MAX_STRUCT_BYTES && *size % sizeof *size == 0,
            XFER_ERR_ARG, "%s.struct_size is %zu; begin with its _INIT macro", name, *size);
  return XFER_OK;
}

xfer_status xfi_options_copy(void *dst, size_t dst_size, size_t first_size, const void *src,
                             const char *name)
{
  const unsigned char *bytes = src;
  size_t src_size = 0;

  assert(first_size >= sizeof dst_size && first_size <= dst_size && dst_size <= MAX_STRUCT_BYTES);
  if (src != NULL) XFI_TRY(read_size(&src_size, first_size, src, name));
  for (size_t i = dst_size; i < src_size; i++) {
    XFI_CHECK(bytes[i] == 0, XFER_ERR_UNSUPPORTED,
              "%s: byte %zu of %zu is set, and this library knows only %zu", name, i, src_size,
              dst_size);
  }

  memset(dst, 0, dst_size);
  if (src != NULL) memcpy(dst, src, src_size < dst_size ? src_size : dst_size);
  memcpy(dst, &dst_size, sizeof dst_size);
  return XFER_OK;
}

xfer_status xfi_report_copy(void *report, const void *own, size_t own_size, size_t first_size,
                            const char *name)
{
  size_t size = 0;

  XFI_TRY(read_size(&size, first_size, report, name));
  memset(report, 0, size);
  memcpy(report, own, size < own_size ? size : own_size);
  memcpy(report, &size, sizeof size);
  return XFER_OK;
}
