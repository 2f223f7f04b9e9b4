/* Bytes for another rank: appended piece by piece here, taken apart there. What is taken was sent
 * by another process, so it is checked; a reader that ran out stays failed and gives zeros. */
#ifndef XFI_BYTES_H
#define XFI_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <xfer/xfer.h>

/* A growing sequence of bytes; all zero is an empty one. */
typedef struct xfi_bytes {
  unsigned char *at;
  size_t n;
  size_t capacity;
} xfi_bytes;

xfer_status xfi_bytes_put(xfi_bytes *bytes, const void *from, size_t n);
void xfi_bytes_free(xfi_bytes *bytes);

/* What is left of a received sequence. */
typedef struct xfi_reader {
  const unsigned char *at;
  size_t n_left;
  bool failed;
} xfi_reader;

/* Copies the next n bytes, or zeroes `to` and fails. */
void xfi_reader_take(xfi_reader *reader, void *to, size_t n);

#endif
