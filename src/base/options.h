/* Option structs that grow: an old caller works with a new library, and a new caller with an old
 * one. */
#ifndef XFI_OPTIONS_H
#define XFI_OPTIONS_H

#include <stddef.h>
#include <xfer/xfer.h>

/* Fills the library's own copy `dst` of a struct that begins with `size_t struct_size`.
 *
 * Fields that the caller's struct lacks become zero, which means default; src == NULL is all
 * defaults. A longer caller may leave the bytes we do not know zero: a set one is refused, since
 * silence would lose a request. On success dst->struct_size is dst_size. `first_size` is the size
 * of the struct in the first version that had it: no caller has a shorter one. `name` is the
 * struct's, for the error text.
 *
 * XFER_ERR_ARG: struct_size is no size of such a struct. XFER_ERR_UNSUPPORTED: an unknown byte is
 * set. On failure dst is untouched.
 */
xfer_status xfi_options_copy(void *dst, size_t dst_size, size_t first_size, const void *src,
                             const char *name);

/* The other way, for reports: fills the caller's struct, whose struct_size is set and kept, from
 * the library's. An older caller gets the fields that it knows, a newer one zero in the others.
 *
 * XFER_ERR_ARG: struct_size is no size of such a struct; nothing was written.
 */
xfer_status xfi_report_copy(void *report, const void *own, size_t own_size, size_t first_size,
                            const char *name);

/* These two functions, given the type and its last field in the first version that had it, so that
 * a struct that grows still takes what older callers give. */
#define XFI_OPTIONS_COPY(dst, src, type, last)                                                     \
  xfi_options_copy(dst, sizeof(type), XFI_END_OF(type, last), src, #type)
#define XFI_REPORT_COPY(report, own, type, last)                                                   \
  xfi_report_copy(report, own, sizeof(type), XFI_END_OF(type, last), #type)
#define XFI_END_OF(type, field) (offsetof(type, field) + sizeof(((type *)NULL)->field))

#endif
