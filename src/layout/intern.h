/* Interning: equal byte sequences get the same number, each new one the next number from 0 on. What
 * is kept of a sequence is its 128-bit digest. */
#ifndef XFI_INTERN_H
#define XFI_INTERN_H

#include <stddef.h>
#include <stdint.h>

#include "xfer/xfer.h"

/* A hash table with open addressing. All zero: there is no table, and freeing it is fine. */
typedef struct xfi_interned {
  uint32_t *slots; /* [mask + 1] number + 1; 0: free */
  size_t mask;
  uint64_t (*digests)[2]; /* [n] digests of the sequences, by number */
  size_t n;
} xfi_interned;

/* Make a table with room for n different digests. */
xfer_status xfi_interned_create(xfi_interned *of, size_t n);
void xfi_interned_free(xfi_interned *of);
/* The number of a digest; and the number of the digest of some bytes. */
uint32_t xfi_intern(xfi_interned *of, const uint64_t digest[2]);
uint32_t xfi_intern_bytes(xfi_interned *of, const void *bytes, size_t n_bytes);

#endif
