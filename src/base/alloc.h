/* All host memory of the library comes from here, so that a test can make any one allocation fail.
 */
#ifndef XFI_ALLOC_H
#define XFI_ALLOC_H

#include "plugin_api.h"
#include "xfer/status.h"

#include <stddef.h>

/* n zeroed elements of `size` bytes; NULL if the product does not fit or there is no memory. Sets
 * no error text, since the caller knows what the memory is for. n == 0 gives a pointer to be freed.
 */
XFI_PLUGIN_API void *xfi_calloc(size_t n, size_t size);

/* Free what xfi_calloc() gave; NULL is fine. */
XFI_PLUGIN_API void xfi_free(void *p);

/* Leak memory of any device on purpose, since something may still touch it. It stays reachable, so
 * that leak checkers do not report it. */
void xfi_abandon(void *p);

/* An allocator of zeroed memory that hosts read. It outlives its device. */
typedef struct xfi_host_memory {
  xfer_status (*alloc)(void **memory, size_t n_bytes);
  void (*free)(void *memory); /* `memory` may be NULL */
} xfi_host_memory;

/* A copy of `text`, or NULL. */
char *xfi_strdup(const char *text);

/* For tests: of this thread's allocations the n-th from now fails, once (0: the next). -1: none
 * fails. */
void xfi_alloc_fail_after(long n);

#endif
