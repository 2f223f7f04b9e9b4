/*
 * A layout as bytes: what ranks compare, and what a rank that does not know one side receives.
 *
 * A sequence of 64-bit words in the sender's byte order (all ranks of a comm share one; the first
 * word would not match otherwise): magic, dtype, n_dims, sizes, padded sizes, n_axes, mesh shape,
 * ranks, the axes that split something, in the order of their dims and cuts: n, (axis, dim, kind,
 * rule, factor, [table: allow_zero, n_runs, first.., local_lengths.., runs..]) ... Axes that are
 * not listed replicate.
 *
 * By boxes: another magic, dtype, n_dims, sizes, is_own, ranks: n,
 * rank.., boxes: n, first.., bounds..
 */
#ifndef XFI_SERIAL_H
#define XFI_SERIAL_H

#include "bytes.h"
#include "layout.h"

#define XFI_SERIAL_PLACED INT64_C(0x315f72656678) /* "xfer_1" */
#define XFI_SERIAL_BOXES INT64_C(0x625f72656678)  /* "xfer_b" */

/* Append the words of a layout. */
xfer_status xfi_layout_write(xfi_bytes *out, const xfer_layout *layout);
/* Checks everything: the bytes come from another process. */
xfer_status xfi_layout_read(xfer_layout **layout, const unsigned char *bytes, size_t n_bytes);
/* Write and read a layout with its number of bytes in front, for a message of several layouts. */
xfer_status xfi_layout_put(xfi_bytes *out, const xfer_layout *layout);
xfer_status xfi_layout_take(xfer_layout **layout, xfi_reader *reader);

/* Fill layout->digest, the digest of the words, with the mesh's digest in place of its words. */
xfer_status xfi_layout_digest(xfer_layout *layout);

#endif
