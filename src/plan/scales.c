/*
 * Tensors of scales: their source layouts, which callers do not give, follow from the layouts of
 * the weights and the sizes of blocks.
 */
#include "scales.h"

#include <string.h>

#include "alloc.h"
#include "boxes.h"
#include "error.h"
#include "held.h"

/* A copy by blocks has two dims more than its tensor, and XFI_COPY_DIMS at most. */
enum { MOST_DIMS = XFER_MAX_DIMS - 2 };

void xfi_conversion_block(int64_t *block, const xfer_conversion *c, int n_dims)
{
  for (int d = 0; d < n_dims; d++)
    block[d] = 1;
  if (n_dims > 1) block[n_dims - 2] = c->rows;
  if (n_dims > 0) block[n_dims - 1] = c->columns;
}

void xfi_block_cells(int64_t *cells, const int64_t *bounds, const int64_t *block, int n_dims)
{
  for (int d = 0; d < n_dims; d++) {
    cells[d] = bounds[d] / block[d];
    cells[n_dims + d] = (bounds[n_dims + d] - 1) / block[d] + 1;
  }
}

xfer_status xfi_layout_of_cells(xfer_layout **made, const xfer_layout *of, const int64_t *block,
                                xfer_dtype dtype)
{
  const xfer_mesh *mesh = of->mesh;
  const int n_dims = of->n_dims;
  xfer_status st = XFER_OK;
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfi_held_list held = {NULL, 0, 0};
  xfi_bounds list = {NULL, 0, 0};
  int64_t cells[2 * XFER_MAX_DIMS];
  int64_t shape[XFER_MAX_DIMS];
  int64_t *first = xfi_calloc((size_t)mesh->size + 1, sizeof *first);

  XFI_CHECK_DONE(first != NULL, XFER_ERR_NOMEM, "%d ranks", mesh->size);
  for (int p = 0; p < mesh->size; p++) {
    held.n = 0;
    XFI_TRY_DONE(xfi_layout_held(&held, of, mesh->ranks[p], false));
    for (size_t i = 0; i < held.n; i++) {
      xfi_block_cells(cells, held.at[i].bounds, block, n_dims);
      XFI_TRY_DONE(xfi_bounds_add(&list, n_dims, cells));
    }
    first[p + 1] = (int64_t)list.n;
  }
  for (int d = 0; d < n_dims; d++)
    shape[d] = (of->dims[d].size + block[d] - 1) / block[d];
  desc.mesh = of->is_own ? NULL : mesh;
  desc.dtype = (int32_t)dtype;
  desc.n_dims = n_dims;
  desc.shape = shape;
  desc.first = first;
  desc.bounds = list.at;
  XFI_TRY_DONE(xfi_layout_create_boxes(made, &desc));
done:
  xfi_free(held.at);
  xfi_free(list.at);
  xfi_free(first);
  return st;
}

/* ---- the source of a tensor of scales ------------------------------------------------------- */

/* The weights and the conversion that a source layout of scales was made for. */
typedef struct source {
  const xfer_layout *weights;
  xfer_conversion conversion;
} source;

/* Finds the source layout of the scales of `weights`: one that was made before for the same layout
 * and conversion, or a new one. */
static xfer_status find_source(const xfer_layout **found, xfi_scale_tensors *tensors,
                               source *sources, const xfer_tensor *weights)
{
  int64_t block[XFER_MAX_DIMS];

  for (size_t i = tensors->n_made; i-- > 0;) { /* a model's tensors repeat the last few */
    const uint64_t *digest = sources[i].weights->digest;

    if (memcmp(digest, weights->src->digest, sizeof weights->src->digest) != 0 ||
        !xfi_conversion_equal(&sources[i].conversion, &weights->conversion))
      continue;
    *found = tensors->made[i];
    return XFER_OK;
  }
  xfi_conversion_block(block, &weights->conversion, weights->src->n_dims);
  XFI_TRY(xfi_layout_of_cells(&tensors->made[tensors->n_made], weights->src, block, XFER_F32));
  sources[tensors->n_made] = (source){weights->src, weights->conversion};
  *found = tensors->made[tensors->n_made++];
  return XFER_OK;
}

/* Checks tensor t, which is scales, and the weights that it belongs to. */
static xfer_status check_scales(const xfer_tensor *given, size_t n, size_t t, bool *has_scales)
{
  const uint64_t of = given[t].conversion.tensor;

  XFI_CHECK(of < n && given[of].conversion.kind == XFER_CONVERSION_BLOCKS, XFER_ERR_ARG,
            "tensor \"%.100s\": scales of tensor %llu, which is not quantised by blocks",
            given[t].name, (unsigned long long)of);
  XFI_CHECK(!has_scales[of], XFER_ERR_ARG,
            "tensor \"%.100s\": tensor \"%.100s\" has scales already", given[t].name,
            given[of].name);
  XFI_CHECK(given[t].src == NULL, XFER_ERR_ARG,
            "tensor \"%.100s\": scales are made, and have no source layout", given[t].name);
  XFI_CHECK(given[t].dst == NULL || given[t].dst->dtype != XFER_F8E8M0 ||
                given[of].conversion.scale != XFER_SCALE_F32,
            XFER_ERR_SHAPE, "tensor \"%.100s\": scales that are no powers of two as f8e8m0",
            given[t].name);
  XFI_CHECK(given[of].src == NULL || given[of].src->n_dims <= MOST_DIMS, XFER_ERR_UNSUPPORTED,
            "tensor \"%.100s\": blocks of a tensor of %d dims; at most %d are possible",
            given[of].name, given[of].src->n_dims, MOST_DIMS);
  has_scales[of] = true;
  return XFER_OK;
}

xfer_status xfi_scale_tensors_make(xfi_scale_tensors *tensors, const xfer_tensor *given, size_t n)
{
  xfer_status st = XFER_OK;
  size_t n_blocks = 0;
  source *sources = NULL;
  bool *has_scales = NULL;

  for (size_t t = 0; t < n; t++) {
    const int32_t kind = given[t].conversion.kind;

    n_blocks += kind == XFER_CONVERSION_BLOCKS || kind == XFER_CONVERSION_SCALES;
  }
  if (n_blocks == 0) return XFER_OK;
  tensors->at = xfi_calloc(n, sizeof *tensors->at);
  tensors->made = xfi_calloc(n_blocks, sizeof(xfer_layout *));
  sources = xfi_calloc(n_blocks, sizeof *sources);
  has_scales = xfi_calloc(n, sizeof *has_scales);
  XFI_CHECK_DONE(tensors->at != NULL && tensors->made != NULL && sources != NULL &&
                     has_scales != NULL,
                 XFER_ERR_NOMEM, "%zu tensors", n);
  memcpy(tensors->at, given, n * sizeof *given);
  for (size_t t = 0; t < n; t++) {
    const uint64_t of = given[t].conversion.tensor;

    if (given[t].conversion.kind != XFER_CONVERSION_SCALES) continue;
    XFI_TRY_DONE(check_scales(given, n, t, has_scales));
    if (given[of].src != NULL)
      XFI_TRY_DONE(find_source(&tensors->at[t].src, tensors, sources, &given[of]));
  }
  for (size_t t = 0; t < n; t++)
    XFI_CHECK_DONE(
        given[t].conversion.kind != XFER_CONVERSION_BLOCKS || has_scales[t], XFER_ERR_ARG,
        "tensor \"%.100s\" is quantised by blocks, and no tensor has its scales", given[t].name);
done:
  xfi_free(sources);
  xfi_free(has_scales);
  if (st != XFER_OK) xfi_scale_tensors_free(tensors);
  return st;
}

void xfi_scale_tensors_free(xfi_scale_tensors *tensors)
{
  for (size_t i = 0; i < tensors->n_made; i++)
    xfi_layout_destroy(tensors->made[i]);
  xfi_free(tensors->made);
  xfi_free(tensors->at);
  *tensors = (xfi_scale_tensors){NULL, NULL, 0};
}
