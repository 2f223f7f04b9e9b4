/* Growth by doubling: n appends cost O(n) copies. */
#include "vec.h"

#include "alloc.h"
#include "error.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { FIRST_CAPACITY = 8 };

/* Large lists are fresh pages, and touching one for the first time takes up to 2 us for 4 KiB on
 * virtual machines; in pages of 2 MiB a third of that. */
static void prefer_huge_pages(char *p, size_t n_bytes)
{
  enum { HUGE_BYTES = 2 << 20 };
  const size_t before = -(uintptr_t)p % HUGE_BYTES;

  if (n_bytes < before + HUGE_BYTES) return;
  (void)madvise(p + before, (n_bytes - before) / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE);
}

xfer_status xfi_vec_reserve(void *items, size_t *cap, size_t need, size_t elem_size)
{
  void *old = NULL;
  void *grown = NULL;
  size_t new_cap = *cap > SIZE_MAX / 2 ? need : 2 * *cap;

  if (need <= *cap) return XFER_OK;
  if (new_cap < FIRST_CAPACITY) new_cap = FIRST_CAPACITY;
  if (new_cap < need) new_cap = need;
  grown = xfi_calloc(new_cap, elem_size);
  XFI_CHECK(grown != NULL, XFER_ERR_NOMEM, "an array of %zu elements of %zu bytes", new_cap,
            elem_size);
  prefer_huge_pages(grown, new_cap * elem_size);

  memcpy(&old, items,
         sizeof old); /* the owner's pointer has its own type: a void ** here would alias it */
  if (old != NULL) memcpy(grown, old, *cap * elem_size);
  memcpy(items, &grown, sizeof grown);
  *cap = new_cap;
  xfi_free(old);
  return XFER_OK;
}
