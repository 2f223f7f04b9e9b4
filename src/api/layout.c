/*
 * Meshes, layouts, dtypes and problem lines: arguments checked, the layout layer called.
 */
#include "layout.h"

#include <string.h>

#include "dtype.h"
#include "error.h"
#include "problem.h"

xfer_status xfer_mesh_create(xfer_mesh **mesh, const int *shape, int n_axes, const int *ranks)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(mesh != NULL && shape != NULL, XFER_ERR_ARG, "mesh: an argument is NULL");
  XFI_TRY(xfi_mesh_create(mesh, shape, n_axes, ranks));
done:
  return st;
}

void xfer_mesh_destroy(xfer_mesh *mesh)
{
  xfi_mesh_destroy(mesh);
}

int xfer_mesh_size(const xfer_mesh *mesh)
{
  return mesh == NULL ? 0 : mesh->size;
}

size_t xfer_dtype_size(xfer_dtype dtype)
{
  return xfi_dtype_size((int)dtype);
}

const char *xfer_dtype_name(xfer_dtype dtype)
{
  return xfi_dtype_name((int)dtype);
}

xfer_status xfer_dtype_parse(xfer_dtype *dtype, const char *name)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(dtype != NULL && name != NULL, XFER_ERR_ARG, "dtype: an argument is NULL");
  XFI_TRY(xfi_dtype_parse(dtype, name));
done:
  return st;
}

xfer_status xfer_layout_create(xfer_layout **layout, const xfer_layout_desc *desc)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(layout != NULL && desc != NULL, XFER_ERR_ARG, "layout: an argument is NULL");
  XFI_TRY(xfi_layout_create(layout, desc));
done:
  return st;
}

void xfer_layout_destroy(xfer_layout *layout)
{
  xfi_layout_destroy(layout);
}

xfer_dtype xfer_layout_dtype(const xfer_layout *layout)
{
  return layout == NULL ? (xfer_dtype)0 : layout->dtype;
}

int xfer_layout_shape(const xfer_layout *layout, int64_t *shape)
{
  if (layout == NULL) return 0;
  for (int d = 0; shape != NULL && d < layout->n_dims; d++)
    shape[d] = layout->dims[d].size;
  return layout->n_dims;
}

static xfer_status find_place(const xfer_layout *layout, int rank, xfi_place *place)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(xfi_layout_place(layout, rank, place), XFER_ERR_ARG, "rank %d is not in the mesh",
            rank);
done:
  return st;
}

xfer_status xfer_layout_local_shape(const xfer_layout *layout, int rank, int64_t *shape)
{
  xfer_status st = XFER_OK;
  xfi_place place;

  XFI_CHECK(layout != NULL && (shape != NULL || layout->n_dims == 0), XFER_ERR_ARG,
            "local shape: an argument is NULL");
  XFI_TRY(find_place(layout, rank, &place));
  for (int d = 0; d < layout->n_dims; d++)
    shape[d] = xfi_dim_length(&layout->dims[d], place.part[d]);
done:
  return st;
}

xfer_status xfer_layout_runs(const xfer_layout *layout, int rank, int dim, xfer_run *runs,
                             size_t capacity, size_t *n_runs)
{
  xfer_status st = XFER_OK;
  xfi_place place;
  xfi_runs found = {NULL, 0, 0};

  XFI_CHECK(layout != NULL && n_runs != NULL && (runs != NULL || capacity == 0), XFER_ERR_ARG,
            "runs: an argument is NULL");
  XFI_CHECK(dim >= -layout->n_dims && dim < layout->n_dims, XFER_ERR_ARG,
            "dim %d of a tensor of %d dims", dim, layout->n_dims);
  XFI_TRY(find_place(layout, rank, &place));
  if (dim < 0) dim += layout->n_dims;
  XFI_TRY(xfi_dim_runs(&layout->dims[dim], place.part[dim], &found));
  if (found.n > 0 && capacity > 0)
    memcpy(runs, found.at, (found.n < capacity ? found.n : capacity) * sizeof *runs);
  *n_runs = found.n;
done:
  xfi_runs_free(&found);
  return st;
}

/* One hold per dim, and every replica of those parts. */
static void list_owners(const xfer_layout *layout, const xfi_holds *holds, xfer_owner *owners,
                        size_t capacity, size_t *n)
{
  size_t at[XFER_MAX_DIMS] = {0};
  int d;

  do {
    xfer_owner owner = {{0}, 0, 0};
    xfi_place place = {{0}, 0};

    for (d = 0; d < layout->n_dims; d++) {
      place.part[d] = holds[d].at[at[d]].part;
      owner.local[d] = holds[d].at[at[d]].local;
    }
    for (place.replica = 0; place.replica < layout->n_replicas; place.replica++, ++*n) {
      owner.rank = xfi_layout_rank(layout, &place);
      if (*n < capacity) owners[*n] = owner;
    }
    for (d = layout->n_dims - 1; d >= 0 && ++at[d] == holds[d].n; d--)
      at[d] = 0;
  } while (d >= 0);
}

xfer_status xfer_layout_owners(const xfer_layout *layout, const int64_t *index, xfer_owner *owners,
                               size_t capacity, size_t *n_owners)
{
  xfer_status st = XFER_OK;
  xfi_holds holds[XFER_MAX_DIMS];
  bool held = true;
  size_t n = 0;

  memset(holds, 0, sizeof holds);
  XFI_CHECK(layout != NULL && n_owners != NULL && (owners != NULL || capacity == 0) &&
                (index != NULL || layout->n_dims == 0),
            XFER_ERR_ARG, "owners: an argument is NULL");
  for (int d = 0; d < layout->n_dims; d++) {
    XFI_CHECK(index[d] >= 0 && index[d] < layout->dims[d].size, XFER_ERR_ARG,
              "dim %d: index %lld of %lld", d, (long long)index[d],
              (long long)layout->dims[d].size);
    XFI_TRY(xfi_dim_holders(&layout->dims[d], index[d], index[d] + 1, false, &holds[d]));
    held = held && holds[d].n > 0;
  }
  if (held) list_owners(layout, holds, owners, capacity, &n);
  *n_owners = n;
done:
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    xfi_holds_free(&holds[d]);
  return st;
}

xfer_status xfer_problem_parse(xfer_layout **src, xfer_layout **dst, const char *line)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(src != NULL && dst != NULL && line != NULL, XFER_ERR_ARG,
            "problem: an argument is NULL");
  XFI_TRY(xfi_problem_parse(src, dst, line));
done:
  return st;
}

size_t xfer_problem_format(char *text, size_t n_bytes, const xfer_layout *src,
                           const xfer_layout *dst)
{
  return xfi_problem_format(text, n_bytes, src, dst);
}
