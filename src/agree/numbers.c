#include "numbers.h"

#include <string.h>

#include "alloc.h"
#include "error.h"

static void *room(xfi_comm *comm, size_t n, size_t size)
{
  return comm == NULL ? xfi_calloc(n, size) : xfi_comm_calloc(comm, n, size);
}

xfer_status xfi_numbers_create(xfi_numbers *of, xfi_comm *comm, size_t n)
{
  of->mask = 15;
  while (of->mask < 2 * n)
    of->mask = 2 * of->mask + 1;
  of->slots = room(comm, of->mask + 1, sizeof *of->slots);
  of->digests = room(comm, n, sizeof *of->digests);
  XFI_CHECK(of->slots != NULL && of->digests != NULL, XFER_ERR_NOMEM, "%zu digests", n);
  return XFER_OK;
}

void xfi_numbers_free(xfi_numbers *of)
{
  xfi_free(of->slots);
  xfi_free(of->digests);
}

uint32_t xfi_number_of(xfi_numbers *of, const uint64_t digest[2])
{
  size_t slot = (size_t)digest[0] & of->mask;

  for (; of->slots[slot] != 0; slot = (slot + 1) & of->mask)
    if (memcmp(of->digests[of->slots[slot] - 1], digest, sizeof *of->digests) == 0)
      return of->slots[slot] - 1;
  memcpy(of->digests[of->n], digest, sizeof *of->digests);
  of->slots[slot] = (uint32_t)++of->n;
  return (uint32_t)of->n - 1;
}
