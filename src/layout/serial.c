/* Writing and digesting layouts. */
#include "serial.h"

#include <string.h>

#include <xxhash.h>

#include "boxes.h"
#include "cut.h"
#include "error.h"

typedef struct writer {
  xfi_bytes *to;
  xfer_status st; /* sticks */
} writer;

static void put(writer *w, const int64_t *words, size_t n)
{
  if (w->st == XFER_OK) w->st = xfi_bytes_put(w->to, words, n * sizeof *words);
}

static void put1(writer *w, int64_t word)
{
  put(w, &word, 1);
}

static void put_table(writer *w, const xfi_table *t)
{
  const int64_t n = t->first[t->n_coords];

  put1(w, t->allow_zero);
  put1(w, n);
  put(w, t->first, (size_t)t->n_coords + 1);
  put(w, t->local_lengths, (size_t)t->n_coords);
  for (int64_t r = 0; r < n; r++) {
    put1(w, t->runs[r].global);
    put1(w, t->runs[r].length);
    put1(w, t->runs[r].local);
  }
}

static void put_cuts(writer *w, const xfer_layout *l)
{
  put1(w, l->mesh->n_axes - l->n_replica_axes);
  for (int d = 0; d < l->n_dims; d++) {
    for (int c = 0; c < l->dims[d].n_cuts; c++) {
      const xfi_cut *cut = &l->dims[d].cuts[c];

      put(w, (const int64_t[]){cut->axis, d, cut->kind, cut->rule, cut->split_factor}, 5);
      if (cut->kind == XFER_RUNS) put_table(w, cut->table);
    }
  }
}

static void put_boxes(writer *w, const xfer_layout *l)
{
  const size_t n_ranks = (size_t)l->mesh->size;
  const size_t n = (size_t)l->boxes->first[n_ranks];

  put1(w, (int64_t)n);
  put(w, l->boxes->first, n_ranks + 1);
  put(w, l->boxes->bounds, n * 2 * (size_t)l->n_dims);
}

/* Digested, the mesh, which many layouts share and which may be large, goes in by its own digest.
 */
static void put_layout(writer *w, const xfer_layout *l, bool digested)
{
  const xfer_mesh *mesh = l->mesh;
  const bool boxes = l->boxes != NULL;

  put(w, (const int64_t[]){boxes ? XFI_SERIAL_BOXES : XFI_SERIAL_PLACED, l->dtype, l->n_dims}, 3);
  for (int d = 0; d < l->n_dims; d++)
    put1(w, l->dims[d].size);
  for (int d = 0; d < l->n_dims && !boxes; d++)
    put1(w, l->dims[d].padded);
  if (boxes) put1(w, l->is_own);
  if (digested) {
    put(w, (const int64_t[]){(int64_t)mesh->digest[0], (int64_t)mesh->digest[1]}, 2);
  } else {
    if (!boxes) put1(w, mesh->n_axes);
    for (int a = 0; a < mesh->n_axes; a++)
      put1(w, mesh->shape[a]);
    for (int i = 0; i < mesh->size; i++)
      put1(w, mesh->ranks[i]);
  }
  if (boxes)
    put_boxes(w, l);
  else
    put_cuts(w, l);
}

xfer_status xfi_layout_write(xfi_bytes *out, const xfer_layout *layout)
{
  writer w = {out, XFER_OK};

  put_layout(&w, layout, false);
  return w.st;
}

xfer_status xfi_layout_put(xfi_bytes *out, const xfer_layout *layout)
{
  const size_t at = out->n;
  uint64_t n_bytes = 0;

  XFI_TRY(xfi_bytes_put(out, &n_bytes, sizeof n_bytes)); /* where the length goes */
  XFI_TRY(xfi_layout_write(out, layout));
  n_bytes = out->n - at - sizeof n_bytes;
  memcpy(out->at + at, &n_bytes, sizeof n_bytes);
  return XFER_OK;
}

xfer_status xfi_layout_digest(xfer_layout *layout)
{
  xfi_bytes made = {NULL, 0, 0};
  writer w = {&made, XFER_OK};

  put_layout(&w, layout, true);
  if (w.st == XFER_OK) {
    const XXH128_hash_t hash = XXH3_128bits(made.at, made.n);

    layout->digest[0] = hash.low64;
    layout->digest[1] = hash.high64;
  }
  xfi_bytes_free(&made);
  return w.st;
}
