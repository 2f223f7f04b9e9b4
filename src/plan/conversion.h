/* What happens to the elements of a tensor on their way. */
#ifndef XFI_CONVERSION_H
#define XFI_CONVERSION_H

#include "layout.h"

xfer_conversion xfi_conversion_make(xfer_conversion_kind kind, float value);
xfer_conversion xfi_conversion_of_blocks(uint32_t rows, uint32_t columns, uint32_t scale);
xfer_conversion xfi_conversion_of_scales(size_t tensor);
xfer_conversion_kind xfi_conversion_kind(xfer_conversion c);
float xfi_conversion_value(xfer_conversion c);
/* Of blocks; `scale`: an xfer_block_scale. */
uint32_t xfi_conversion_rows(xfer_conversion c);
uint32_t xfi_conversion_columns(xfer_conversion c);
uint32_t xfi_conversion_scale(xfer_conversion c);
/* Of scales: whose. */
size_t xfi_conversion_tensor(xfer_conversion c);
/* A cast that changes nothing is none; so are scales as they are, and of others it is the same
 * whose they are. */
xfer_conversion xfi_conversion_settle(xfer_conversion given, const xfer_layout *src,
                                      const xfer_layout *dst);
/* Does it say a kind, and nothing that the kind does not have? */
bool xfi_conversion_is_known(xfer_conversion c);
/* The same as a status, and is its value one? */
xfer_status xfi_conversion_check(xfer_conversion c, const char *name);
/* Does it go from one layout's dtype to the other's? */
xfer_status xfi_conversion_fits(xfer_conversion c, const xfer_layout *src, const xfer_layout *dst,
                                const char *name);
/* In words: "cast", "scale 0.5"; empty: none. */
void xfi_conversion_format(char *text, size_t n, xfer_conversion c);

#endif
