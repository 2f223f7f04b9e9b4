/*
 * Meshes: an n-D array of ranks, and the way back from a rank to its position.
 */
#include <stdlib.h>

#include <xxhash.h>

#include "alloc.h"
#include "error.h"
#include "layout.h"
#include "vec.h"

static int compare_ints(const void *a, const void *b)
{
  const int x = *(const int *)a;
  const int y = *(const int *)b;

  return (x > y) - (x < y);
}

/* Position of the first rank >= `rank` in ascending order. */
static int lower_bound(const xfer_mesh *mesh, int rank)
{
  int lo = 0;
  int hi = mesh->size;

  XFI_BISECT(lo, hi, mid, mesh->ranks[mesh->order == NULL ? mid : mesh->order[mid]] < rank);
  return lo;
}

int xfi_mesh_find(const xfer_mesh *mesh, int rank)
{
  int i;
  int at;

  if (rank < mesh->min_rank || rank > mesh->max_rank) return -1;
  if (mesh->order == NULL && mesh->max_rank - mesh->min_rank == mesh->size - 1)
    return rank - mesh->min_rank;
  i = lower_bound(mesh, rank);
  at = mesh->order == NULL ? i : mesh->order[i];
  return mesh->ranks[at] == rank ? at : -1;
}

static xfer_status set_shape(xfer_mesh *mesh, const int *shape, int n_axes)
{
  int64_t size = 1;

  mesh->n_axes = n_axes;
  for (int a = 0; a < n_axes; a++) {
    XFI_CHECK(shape[a] >= 1, XFER_ERR_ARG, "mesh axis %d has size %d; want at least 1", a,
              shape[a]);
    mesh->shape[a] = shape[a];
    size *= shape[a];
    XFI_CHECK(size <= XFI_MOST_RANKS, XFER_ERR_OVERFLOW,
              "mesh of more than %d ranks, the most that one may have", XFI_MOST_RANKS);
  }
  mesh->size = (int)size;
  mesh->stride[n_axes - 1] = 1;
  for (int a = n_axes - 1; a > 0; a--)
    mesh->stride[a - 1] = mesh->stride[a] * shape[a];
  return XFER_OK;
}

/* Fill `order` where ranks do not ascend: pairs (rank, position), sorted. */
static xfer_status set_order(xfer_mesh *mesh)
{
  xfer_status st = XFER_OK;
  int(*pairs)[2] = NULL;
  bool ascending = true;

  for (int i = 1; i < mesh->size && ascending; i++)
    ascending = mesh->ranks[i - 1] < mesh->ranks[i];
  if (ascending) return XFER_OK;
  pairs = xfi_calloc((size_t)mesh->size, sizeof *pairs);
  mesh->order = xfi_calloc((size_t)mesh->size, sizeof *mesh->order);
  XFI_CHECK_DONE(pairs != NULL && mesh->order != NULL, XFER_ERR_NOMEM, "mesh of %d ranks",
                 mesh->size);
  for (int i = 0; i < mesh->size; i++) {
    pairs[i][0] = mesh->ranks[i];
    pairs[i][1] = i;
  }
  qsort(pairs, (size_t)mesh->size, sizeof *pairs, compare_ints);
  for (int i = 0; i < mesh->size; i++)
    mesh->order[i] = pairs[i][1];
  for (int i = 1; i < mesh->size; i++)
    XFI_CHECK_DONE(pairs[i - 1][0] != pairs[i][0], XFER_ERR_ARG, "rank %d is in the mesh twice",
                   pairs[i][0]);
done:
  xfi_free(pairs);
  return st;
}

static void set_digest(xfer_mesh *mesh)
{
  XXH3_state_t state;
  XXH128_hash_t hash;

  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, &mesh->n_axes, sizeof mesh->n_axes);
  XXH3_128bits_update(&state, mesh->shape, (size_t)mesh->n_axes * sizeof *mesh->shape);
  XXH3_128bits_update(&state, mesh->ranks, (size_t)mesh->size * sizeof *mesh->ranks);
  hash = XXH3_128bits_digest(&state);
  mesh->digest[0] = hash.low64;
  mesh->digest[1] = hash.high64;
}

xfer_status xfi_mesh_create(xfer_mesh **mesh, const int *shape, int n_axes, const int *ranks)
{
  xfer_status st = XFER_OK;
  xfer_mesh *m = NULL;

  XFI_CHECK_DONE(n_axes >= 1 && n_axes <= XFER_MAX_DIMS, XFER_ERR_ARG,
                 "a mesh of %d axes; 1 to %d are possible", n_axes, XFER_MAX_DIMS);
  m = xfi_calloc(1, sizeof *m);
  XFI_CHECK_DONE(m != NULL, XFER_ERR_NOMEM, "mesh");
  atomic_init(&m->n_refs, 1);
  XFI_TRY_DONE(set_shape(m, shape, n_axes));
  m->ranks = xfi_calloc((size_t)m->size, sizeof *m->ranks);
  XFI_CHECK_DONE(m->ranks != NULL, XFER_ERR_NOMEM, "mesh of %d ranks", m->size);
  for (int i = 0; i < m->size; i++) {
    m->ranks[i] = ranks == NULL ? i : ranks[i];
    XFI_CHECK_DONE(m->ranks[i] >= 0, XFER_ERR_ARG,
                   "rank %d at position %d of the mesh; ranks count from 0", m->ranks[i], i);
    XFI_CHECK_DONE(m->ranks[i] < XFI_MOST_RANKS, XFER_ERR_OVERFLOW,
                   "rank %d at position %d of the mesh is above %d", m->ranks[i], i,
                   XFI_MOST_RANKS - 1);
  }
  XFI_TRY_DONE(set_order(m));
  m->min_rank = m->ranks[m->order == NULL ? 0 : m->order[0]];
  m->max_rank = m->ranks[m->order == NULL ? m->size - 1 : m->order[m->size - 1]];
  set_digest(m);

  *mesh = m;
  m = NULL;
done:
  xfi_mesh_destroy(m);
  return st;
}

xfer_mesh *xfi_mesh_share(const xfer_mesh *mesh)
{
  xfer_mesh *m = (xfer_mesh *)mesh; /* only the count changes */

  atomic_fetch_add_explicit(&m->n_refs, 1, memory_order_relaxed);
  return m;
}

void xfi_mesh_destroy(xfer_mesh *mesh)
{
  if (mesh == NULL || atomic_fetch_sub_explicit(&mesh->n_refs, 1, memory_order_acq_rel) > 1) return;
  xfi_free(mesh->ranks);
  xfi_free(mesh->order);
  xfi_free(mesh);
}
