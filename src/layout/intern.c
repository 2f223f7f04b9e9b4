#include "intern.h"

#include <string.h>

#include <xxhash.h>

#include "alloc.h"
#include "error.h"

xfer_status xfi_interned_create(xfi_interned *of, size_t n)
{
  of->mask = 15;
  while (of->mask < 2 * n)
    of->mask = 2 * of->mask + 1;
  of->slots = xfi_calloc(of->mask + 1, sizeof *of->slots);
  of->digests = xfi_calloc(n, sizeof *of->digests);
  XFI_CHECK(of->slots != NULL && of->digests != NULL, XFER_ERR_NOMEM, "%zu digests", n);
  return XFER_OK;
}

void xfi_interned_free(xfi_interned *of)
{
  xfi_free(of->slots);
  xfi_free(of->digests);
}

uint32_t xfi_intern(xfi_interned *of, const uint64_t digest[2])
{
  size_t slot = (size_t)digest[0] & of->mask;

  for (; of->slots[slot] != 0; slot = (slot + 1) & of->mask)
    if (memcmp(of->digests[of->slots[slot] - 1], digest, sizeof *of->digests) == 0)
      return of->slots[slot] - 1;
  memcpy(of->digests[of->n], digest, sizeof *of->digests);
  of->slots[slot] = (uint32_t)++of->n;
  return (uint32_t)of->n - 1;
}

uint32_t xfi_intern_bytes(xfi_interned *of, const void *bytes, size_t n_bytes)
{
  const XXH128_hash_t hash = XXH3_128bits(bytes, n_bytes);

  return xfi_intern(of, (uint64_t[2]){hash.low64, hash.high64});
}
