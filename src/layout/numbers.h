/* Numbers for what is hashed: equal bytes have the same, new ones the next. */
#ifndef XFI_NUMBERS_H
#define XFI_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

#include "xfer/xfer.h"

/* Open addressing. All zero is none, and may be freed. */
typedef struct xfi_numbers {
  uint32_t *slots; /* number + 1, 0 is free */
  size_t mask;
  uint64_t (*digests)[2]; /* [n] */
  size_t n;
} xfi_numbers;

/* Room for n. */
xfer_status xfi_numbers_create(xfi_numbers *of, size_t n);
void xfi_numbers_free(xfi_numbers *of);
uint32_t xfi_number_of(xfi_numbers *of, const uint64_t digest[2]);
/* Of the digest of bytes. */
uint32_t xfi_number_of_bytes(xfi_numbers *of, const void *bytes, size_t n_bytes);

#endif
