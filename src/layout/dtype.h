/* Element types: a name and a size. See the public functions of the same names. */
#ifndef XFI_DTYPE_H
#define XFI_DTYPE_H

#include <stddef.h>

#include "xfer/xfer.h"

size_t xfi_dtype_size(int dtype);
const char *xfi_dtype_name(int dtype);
xfer_status xfi_dtype_parse(xfer_dtype *dtype, const char *name);

#endif
