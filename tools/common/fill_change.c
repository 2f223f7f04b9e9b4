#include "fill_change.h"

static int32_t format_of(const xfer_layout *layout)
{
  switch ((int)xfer_layout_dtype(layout)) {
  case XFER_F32:
    return FILL_F32;
  case XFER_BF16:
    return FILL_BF16;
  case XFER_F16:
    return FILL_F16;
  case XFER_F8E4M3:
    return FILL_F8E4M3;
  case XFER_F8E5M2:
    return FILL_F8E5M2;
  case XFER_F8E8M0:
    return FILL_F8E8M0;
  default:
    return FILL_BYTES;
  }
}

bool fill_change_of(const xfer_tensor *tensors, size_t t, bool is_source, fill_change *change,
                    size_t *of)
{
  xfer_conversion c = tensors[t].conversion;

  *of = t;
  *change = (fill_change){0};
  if (c.kind == XFER_CONVERSION_NONE) return true;
  if (c.kind == XFER_CONVERSION_SCALES) {
    change->is_scales = true;
    *of = (size_t)c.tensor;
    c = tensors[*of].conversion;
  }
  if (c.kind == XFER_CONVERSION_BLOCKS && c.scale != XFER_SCALE_F32 && c.scale != XFER_SCALE_MX)
    return false;
  change->from = format_of(tensors[*of].src);
  change->to = is_source ? change->from : format_of(tensors[t].dst);
  if (is_source) return true;
  if (c.kind == XFER_CONVERSION_SCALE) change->factor = 1.0F / c.value;
  if (c.kind == XFER_CONVERSION_ADD) change->summand = c.value;
  change->powers = c.kind == XFER_CONVERSION_BLOCKS && c.scale == XFER_SCALE_MX;
  change->block[0] = c.rows;
  change->block[1] = c.columns;
  return true;
}

int64_t fill_change_step(const fill_change *change, int n_dims, int d)
{
  return change->is_scales && d >= n_dims - 2 ? change->block[d - n_dims + 2] : 1;
}

void fill_change_extent(const xfer_layout *layout, int64_t extent[2])
{
  int64_t shape[XFER_MAX_DIMS] = {0};
  const int n_dims = xfer_layout_shape(layout, shape);

  for (int d = 0; d < 2; d++)
    extent[d] = n_dims - 2 + d >= 0 ? shape[n_dims - 2 + d] : 1;
}
