/* What was checked is set back, and then all must be as it was before the run: no list is needed of
 * what lies between the parts. */
#include "untouched.h"

#include <stdlib.h>

enum { CHUNK_BYTES = 1 << 24 };

/* Dims that continue each other are one stretch of bytes; its length, and in *outer how many dims
 * are not of it. */
static int64_t stretch_of(const fill_box *box, int *outer)
{
  int64_t n_bytes = box->elem_bytes;

  *outer = box->n_dims;
  while (*outer > 0 && (box->length[*outer - 1] == 1 || box->stride[*outer - 1] == n_bytes))
    n_bytes *= box->length[--*outer];
  return n_bytes;
}

static bool erase(void *context, const fill_box *box, bool zero)
{
  const untouched *of = context;
  int64_t index[FILL_BOX_DIMS] = {0};
  int outer, d;
  const int64_t n_bytes = stretch_of(box, &outer);

  (void)zero;
  if (box->n_elems == 0) return true;
  do {
    char *at = box->base;

    for (d = 0; d < outer; d++)
      at += index[d] * box->stride[d];
    if (!refit_memory_set(of->memory, at, of->byte, (size_t)n_bytes)) return false;
    for (d = outer - 1; d >= 0; d--) {
      if (++index[d] < box->length[d]) break;
      index[d] = 0;
    }
  } while (d >= 0);
  return true;
}

fill_device untouched_eraser(const untouched *of)
{
  return (fill_device){NULL, erase, (void *)of};
}

bool untouched_count(const untouched *of, uint64_t *wrong)
{
  char *chunk = malloc(CHUNK_BYTES);
  bool ok = chunk != NULL;

  for (size_t i = 0; i < of->memory->n_buffers && ok; i++) {
    const refit_buffer *b = &of->memory->buffers[i];

    for (size_t at = 0, n; b->is_dst && at < b->n_bytes && ok; at += n) {
      n = b->n_bytes - at < CHUNK_BYTES ? b->n_bytes - at : CHUNK_BYTES;
      ok = refit_memory_read(of->memory, chunk, b, at, n);
      for (size_t k = 0; k < n && ok; k++)
        *wrong += chunk[k] != (char)of->byte;
    }
  }
  free(chunk);
  return ok;
}
