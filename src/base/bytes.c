/* A growable buffer of bytes that go to another rank, and a reader of what another rank has sent.
 */
#include "bytes.h"

#include <string.h>

#include "alloc.h"
#include "error.h"
#include "vec.h"

xfer_status xfi_bytes_put(xfi_bytes *bytes, const void *from, size_t n)
{
  if (n == 0) return XFER_OK;
  XFI_TRY(xfi_vec_reserve(&bytes->at, &bytes->capacity, bytes->n + n, 1));
  memcpy(bytes->at + bytes->n, from, n);
  bytes->n += n;
  return XFER_OK;
}

void xfi_bytes_free(xfi_bytes *bytes)
{
  xfi_free(bytes->at);
  *bytes = (xfi_bytes){NULL, 0, 0};
}

void xfi_reader_take(xfi_reader *reader, void *to, size_t n)
{
  if (n == 0) return;
  if (reader->failed || n > reader->n_left) {
    reader->failed = true;
    memset(to, 0, n);
    return;
  }
  memcpy(to, reader->at, n);
  reader->at += n;
  reader->n_left -= n;
}
