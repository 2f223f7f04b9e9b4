/* All host memory of the library, so that a test can make any one allocation fail. */
#ifndef XFI_ALLOC_H
#define XFI_ALLOC_H

#include "door.h"
#include "xfer/status.h"

#include <stddef.h>

/* n zeroed elements of `size` bytes; NULL when the product does not fit or memory is out. Sets no
 * error text: the caller knows what it wanted the memory for. n == 0 gives a valid pointer, to be
 * freed like any other. */
XFI_DOOR void *xfi_calloc(size_t n, size_t size);

/* NULL is fine. */
XFI_DOOR void xfi_free(void *p);

/* Leave memory, of any device, for ever to somebody who may still touch it. It stays reachable, so
 * that leak checkers know it from what was forgotten. */
void xfi_abandon(void *p);

/* Who gives zeroed memory that hosts read, and takes it back, long after the giver is gone too. */
typedef struct xfi_host_memory {
  xfer_status (*alloc)(void **memory, size_t n_bytes);
  void (*free)(void *memory); /* NULL is fine */
} xfi_host_memory;

/* A copy of `text`, or NULL. */
char *xfi_strdup(const char *text);

/* For tests: of this thread's allocations the n-th from now fails, once (0: the next). -1: none. */
void xfi_alloc_fail_after(long n);

#endif
