/*
 * All host memory of the library is allocated and freed here. Any thread may do so. Tests make the
 * n-th allocation of a thread fail, and memory that is lost on purpose stays reachable, so that
 * leak checkers do not report it.
 */
#include "alloc.h"

#include "checked.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Allocations left before the one that fails; negative: none fails. */
static _Thread_local long fail_countdown = -1;

void xfi_alloc_fail_after(long n)
{
  fail_countdown = n;
}

/* Large blocks are fresh pages, and touching one for the first time takes up to 2 us for 4 KiB on
 * virtual machines; in pages of 2 MiB a third of that. */
static void prefer_huge_pages(char *p, size_t n_bytes)
{
  enum { HUGE_BYTES = 2 << 20 };
  const size_t before = -(uintptr_t)p % HUGE_BYTES;

  if (n_bytes < before + HUGE_BYTES) return;
  (void)madvise(p + before, (n_bytes - before) / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE);
}

void *xfi_calloc(size_t n, size_t size)
{
  size_t n_bytes = 0;
  void *p = NULL;

  if (fail_countdown >= 0 && fail_countdown-- == 0) return NULL;
  /* calloc checks too, but a sanitizer's calloc stops the program instead of returning NULL */
  if (!xfi_mul_fits(n, size, &n_bytes)) return NULL;
  p = calloc(n_bytes != 0 ? n_bytes : 1, 1);
  if (p != NULL) prefer_huge_pages(p, n_bytes);
  return p;
}

void xfi_free(void *p)
{
  free(p);
}

typedef struct abandoned {
  void *p;
  struct abandoned *next;
} abandoned;

void xfi_abandon(void *p)
{
  static _Atomic(abandoned *) all;
  abandoned *node = calloc(1, sizeof *node);

  if (node == NULL) return; /* p is lost all the same, only not reachable */
  node->p = p;
  node->next = atomic_load(&all);
  while (!atomic_compare_exchange_weak(&all, &node->next, node))
    continue;
}

char *xfi_strdup(const char *text)
{
  size_t n_bytes = strlen(text) + 1;
  char *copy = xfi_calloc(n_bytes, 1);

  if (copy != NULL) memcpy(copy, text, n_bytes);
  return copy;
}
