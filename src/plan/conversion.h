/* What happens to the elements of a tensor on their way. */
#ifndef XFI_CONVERSION_H
#define XFI_CONVERSION_H

#include "layout.h"

xfer_conversion xfi_conversion_make(xfer_conversion_kind kind, float value);
xfer_conversion xfi_conversion_of_blocks(uint32_t rows, uint32_t columns, uint32_t scale);
xfer_conversion xfi_conversion_of_scales(size_t tensor);
xfer_conversion_kind xfi_conversion_kind(xfer_conversion c);
float xfi_conversion_value(xfer_conversion c);
/* The rows and columns of a block and the xfer_block_scale, of a conversion of blocks. */
uint32_t xfi_conversion_rows(xfer_conversion c);
uint32_t xfi_conversion_columns(xfer_conversion c);
uint32_t xfi_conversion_scale(xfer_conversion c);
/* The tensor whose scales these are, of a conversion of scales. */
size_t xfi_conversion_tensor(xfer_conversion c);
/* Make equal what is alike: a cast that changes nothing, or scales that are moved as they are,
 * become no conversion; other scales no longer say which tensor they belong to. */
xfer_conversion xfi_conversion_settle(xfer_conversion given, const xfer_layout *src,
                                      const xfer_layout *dst);
/* Is the conversion's kind known, and is nothing set that the kind does not have? */
bool xfi_conversion_is_known(xfer_conversion c);
/* xfi_conversion_is_known() as a status, which also checks the value. */
xfer_status xfi_conversion_check(xfer_conversion c, const char *name);
/* Does the conversion go from one layout's dtype to the other's? */
xfer_status xfi_conversion_fits(xfer_conversion c, const xfer_layout *src, const xfer_layout *dst,
                                const char *name);
/* The conversion in words, such as "cast" or "scale 0.5"; empty if there is none. */
void xfi_conversion_format(char *text, size_t n, xfer_conversion c);

#endif
