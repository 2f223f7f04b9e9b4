/* All host memory of the library. */
#include "alloc.h"

#include "checked.h"

#include <stdlib.h>
#include <string.h>

/* Allocations left before the one that fails; negative: none fails. */
static _Thread_local long fail_countdown = -1;

void xfi_alloc_fail_after(long n)
{
  fail_countdown = n;
}

void *xfi_calloc(size_t n, size_t size)
{
  size_t n_bytes = 0;

  if (fail_countdown >= 0 && fail_countdown-- == 0) return NULL;
  /* calloc checks too, but a sanitizer's calloc stops the program instead of returning NULL */
  if (!xfi_mul_fits(n, size, &n_bytes)) return NULL;
  return calloc(n_bytes != 0 ? n_bytes : 1, 1);
}

void xfi_free(void *p)
{
  free(p);
}

char *xfi_strdup(const char *text)
{
  size_t n_bytes = strlen(text) + 1;
  char *copy = xfi_calloc(n_bytes, 1);

  if (copy != NULL) memcpy(copy, text, n_bytes);
  return copy;
}
