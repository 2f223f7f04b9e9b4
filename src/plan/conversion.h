/* What happens to the elements of a tensor on their way. */
#ifndef XFI_CONVERSION_H
#define XFI_CONVERSION_H

#include "layout.h"

bool xfi_conversion_equal(const xfer_conversion *a, const xfer_conversion *b);
/* Make equal what is alike: a cast that changes nothing, or scales that are moved as they are,
 * become no conversion; other scales no longer say which tensor they belong to. */
xfer_conversion xfi_conversion_settle(const xfer_conversion *given, const xfer_layout *src,
                                      const xfer_layout *dst);
/* Check the fields of a conversion; the functions below need one that passed. */
xfer_status xfi_conversion_check(const xfer_conversion *c, const char *name);
/* Does the conversion go from one layout's dtype to the other's? */
xfer_status xfi_conversion_fits(const xfer_conversion *c, const xfer_layout *src,
                                const xfer_layout *dst, const char *name);
/* The conversion in words, such as "cast" or "scale 0.5"; empty if there is none. */
void xfi_conversion_format(char *text, size_t n, const xfer_conversion *c);

#endif
