/* Growth by doubling: n appends cost O(n) copies. */
#include "vec.h"

#include "alloc.h"
#include "error.h"

#include <stdint.h>
#include <string.h>

enum { FIRST_CAPACITY = 8 };

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

  memcpy(&old, items,
         sizeof old); /* the owner's pointer has its own type: a void ** here would alias it */
  if (old != NULL) memcpy(grown, old, *cap * elem_size);
  memcpy(items, &grown, sizeof grown);
  *cap = new_cap;
  xfi_free(old);
  return XFER_OK;
}
