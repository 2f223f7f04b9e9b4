/* Reading layouts: each word is checked here, then the whole as what any caller gives. */
#include "serial.h"

#include <string.h>

#include "alloc.h"
#include "boxes.h"
#include "cut.h"
#include "error.h"

typedef struct reader {
  xfi_reader of;
  bool no_memory; /* why it failed */
} reader;

/* Copies the next n words, or zeroes and fails. */
static void take(reader *r, int64_t *words, size_t n)
{
  xfi_reader_take(&r->of, words, n * sizeof *words);
}

static size_t words_left(const reader *r)
{
  return r->of.n_left / sizeof(int64_t);
}

static int64_t take1(reader *r)
{
  int64_t word;

  take(r, &word, 1);
  return word;
}

/* A word in [lo, hi]; else fails and gives lo. */
static int64_t take_between(reader *r, int64_t lo, int64_t hi)
{
  const int64_t word = take1(r);

  if (word >= lo && word <= hi && !r->of.failed) return word;
  r->of.failed = true;
  return lo;
}

/* As many words as are left bound every count, so that a false one cannot ask for much memory. */
static int64_t *take_array(reader *r, size_t n)
{
  int64_t *words;

  if (n > words_left(r)) r->of.failed = true;
  words = xfi_calloc(r->of.failed ? 1 : n + 1, sizeof *words);
  if (words == NULL) r->of.failed = r->no_memory = true;
  if (!r->of.failed) take(r, words, n);
  return words;
}

static xfer_status read_mesh(reader *r, xfer_mesh **mesh, int n_axes)
{
  xfer_status st = XFER_OK;
  int shape[XFER_MAX_DIMS] = {0};
  const size_t n_left = words_left(r);
  size_t size = 1;
  int *ranks = NULL;

  for (int a = 0; a < n_axes; a++) {
    shape[a] = (int)take_between(r, 1, INT32_MAX);
    size = size > n_left ? size : size * (size_t)shape[a];
  }
  XFI_CHECK_DONE(!r->of.failed && size <= words_left(r), XFER_ERR_MISMATCH,
                 "a received layout is malformed: mesh");
  ranks = xfi_calloc(size, sizeof *ranks);
  XFI_CHECK_DONE(ranks != NULL, XFER_ERR_NOMEM, "mesh of %zu ranks", size);
  for (size_t i = 0; i < size; i++)
    ranks[i] = (int)take_between(r, 0, INT32_MAX);
  XFI_CHECK_DONE(!r->of.failed, XFER_ERR_MISMATCH, "a received layout is malformed: mesh");
  XFI_TRY_DONE(xfi_mesh_create(mesh, shape, n_axes, ranks));
done:
  xfi_free(ranks);
  return st;
}

/* A table as it was given, with its arrays. */
typedef struct table_parts {
  xfer_run_table given;
  int64_t *first;
  int64_t *local_lengths;
  int64_t *run_words;
} table_parts;

static void free_parts(table_parts *parts)
{
  xfi_free(parts->first);
  xfi_free(parts->local_lengths);
  xfi_free(parts->run_words);
}

_Static_assert(sizeof(xfer_run) == 3 * sizeof(int64_t), "a run is three words");

static void read_table(reader *r, table_parts *parts, int64_t n_coords)
{
  const int64_t allow_zero = take1(r);
  const int64_t n_runs = take_between(r, 0, INT32_MAX);

  parts->first = take_array(r, (size_t)n_coords + 1);
  parts->local_lengths = take_array(r, (size_t)n_coords);
  parts->run_words = take_array(r, 3 * (size_t)n_runs);
  if (!r->of.failed && parts->first[n_coords] != n_runs) r->of.failed = true;
  parts->given = (xfer_run_table){(const xfer_run *)(const void *)parts->run_words, parts->first,
                                  parts->local_lengths, n_coords, allow_zero};
}

static void read_cut(reader *r, const xfer_mesh *mesh, int n_dims, xfer_placement *placements,
                     table_parts *parts, int32_t *axis)
{
  xfer_placement *p;

  *axis = (int32_t)take_between(r, 0, mesh->n_axes - 1);
  p = &placements[*axis];
  if (p->kind != XFER_REPLICATE) r->of.failed = true; /* listed twice */
  p->dim = (int32_t)take_between(r, 0, n_dims - 1);
  p->kind = (int32_t)take_between(r, XFER_SHARD, XFER_RUNS);
  p->rule = (int32_t)take_between(r, XFER_CHUNK, XFER_EVEN);
  p->split_factor = take_between(r, 0, INT64_MAX);
  if (r->of.failed || p->kind != XFER_RUNS) return;
  read_table(r, parts, mesh->shape[*axis]);
  p->table = &parts->given;
}

static xfer_status read_boxes(reader *r, xfer_layout **layout)
{
  xfer_status st = XFER_OK;
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  int64_t sizes[XFER_MAX_DIMS];
  int64_t is_own, n_ranks, n;
  int64_t *first = NULL;
  int64_t *bounds = NULL;
  xfer_mesh *mesh = NULL;

  desc.dtype = (int32_t)take_between(r, 0, INT32_MAX);
  desc.n_dims = (int32_t)take_between(r, 0, XFER_MAX_DIMS);
  take(r, sizes, (size_t)desc.n_dims);
  is_own = take_between(r, 0, 1);
  XFI_TRY_DONE(read_mesh(r, &mesh, 1));
  n_ranks = mesh->size;
  n = take_between(r, 0, INT32_MAX);
  first = take_array(r, (size_t)n_ranks + 1);
  bounds = take_array(r, (size_t)n * 2 * (size_t)desc.n_dims);
  XFI_CHECK_DONE(!r->no_memory, XFER_ERR_NOMEM, "a received layout of %lld boxes", (long long)n);
  XFI_CHECK_DONE(!r->of.failed && r->of.n_left == 0 && first[n_ranks] == n, XFER_ERR_MISMATCH,
                 "a received layout is malformed: boxes");
  for (int64_t i = 0; i < n_ranks; i++) /* of own boxes only the first rank's are looked at below */
    XFI_CHECK_DONE(first[i] <= first[i + 1], XFER_ERR_MISMATCH,
                   "a received layout is malformed: first");
  desc.mesh = is_own != 0 ? NULL : mesh;
  desc.shape = sizes;
  desc.first = first;
  desc.bounds = bounds;
  XFI_TRY_DONE(xfi_layout_create_boxes(layout, &desc));
done:
  xfi_free(first);
  xfi_free(bounds);
  xfi_mesh_destroy(mesh);
  return st;
}

static xfer_status read_placements(reader *r, xfer_layout **layout)
{
  xfer_status st = XFER_OK;
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  int64_t sizes[XFER_MAX_DIMS];
  int64_t padded[XFER_MAX_DIMS];
  xfer_placement placements[XFER_MAX_DIMS] = {{0}};
  table_parts parts[XFER_MAX_DIMS];
  int32_t order[XFER_MAX_DIMS];
  xfer_mesh *mesh = NULL;
  int n_cuts;

  memset(parts, 0, sizeof parts);
  desc.dtype = (int32_t)take_between(r, 0, INT32_MAX);
  desc.n_dims = (int32_t)take_between(r, 0, XFER_MAX_DIMS);
  take(r, sizes, (size_t)desc.n_dims);
  take(r, padded, (size_t)desc.n_dims);
  XFI_TRY_DONE(read_mesh(r, &mesh, (int)take_between(r, 1, XFER_MAX_DIMS)));
  n_cuts = (int)take_between(r, 0, mesh->n_axes);
  for (int i = 0; i < n_cuts && !r->of.failed; i++)
    read_cut(r, mesh, desc.n_dims, placements, &parts[i], &order[i]);
  XFI_CHECK_DONE(!r->no_memory, XFER_ERR_NOMEM, "a received layout of %d cuts", n_cuts);
  XFI_CHECK_DONE(!r->of.failed && r->of.n_left == 0, XFER_ERR_MISMATCH,
                 "a received layout is malformed");
  for (int a = 0; a < mesh->n_axes; a++)
    if (placements[a].kind == XFER_REPLICATE) order[n_cuts++] = a;
  desc.mesh = mesh;
  desc.shape = sizes;
  desc.padded_shape = padded;
  desc.placements = placements;
  desc.n_placements = mesh->n_axes;
  desc.order = order;
  desc.n_order = mesh->n_axes;
  XFI_TRY_DONE(xfi_layout_create(layout, &desc));
done:
  for (int i = 0; i < XFER_MAX_DIMS; i++)
    free_parts(&parts[i]);
  xfi_mesh_destroy(mesh);
  return st;
}

xfer_status xfi_layout_read(xfer_layout **layout, const unsigned char *bytes, size_t n_bytes)
{
  reader r = {{bytes, n_bytes, n_bytes % sizeof(int64_t) != 0}, false};
  const int64_t magic = take1(&r);

  XFI_CHECK(!r.of.failed && (magic == XFI_SERIAL_PLACED || magic == XFI_SERIAL_BOXES),
            XFER_ERR_MISMATCH, "a received layout is malformed");
  return magic == XFI_SERIAL_PLACED ? read_placements(&r, layout) : read_boxes(&r, layout);
}

xfer_status xfi_layout_take(xfer_layout **layout, xfi_reader *r)
{
  uint64_t n_bytes;

  xfi_reader_take(r, &n_bytes, sizeof n_bytes);
  XFI_CHECK(!r->failed && n_bytes <= r->n_left, XFER_ERR_MISMATCH,
            "a received list of layouts is malformed");
  XFI_TRY(xfi_layout_read(layout, r->at, n_bytes));
  r->at += n_bytes;
  r->n_left -= n_bytes;
  return XFER_OK;
}
