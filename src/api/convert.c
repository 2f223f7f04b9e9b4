/* Conversions made and taken apart. */
#include "error.h"
#include "plan.h"

xfer_conversion xfer_convert_cast(void)
{
  return xfi_conversion_make(XFER_CONVERSION_CAST, 0);
}

xfer_conversion xfer_convert_scale(float scale)
{
  return xfi_conversion_make(XFER_CONVERSION_SCALE, scale);
}

xfer_conversion xfer_convert_add(float value)
{
  return xfi_conversion_make(XFER_CONVERSION_ADD, value);
}

xfer_conversion xfer_convert_blocks(int rows, int columns, int scale)
{
  if (rows < 1 || columns < 1 || rows > UINT16_MAX || columns > UINT16_MAX || scale < 0 ||
      scale > UINT8_MAX)
    return UINT64_MAX; /* no conversion: the plan will say so */
  return xfi_conversion_of_blocks((uint32_t)rows, (uint32_t)columns, (uint32_t)scale);
}

xfer_conversion xfer_convert_scales_of(size_t tensor)
{
  return xfi_conversion_of_scales(tensor);
}

xfer_status xfer_conversion_get(xfer_conversion conversion, xfer_conversion_data *data)
{
  const xfer_conversion_kind kind = xfi_conversion_kind(conversion);
  xfer_conversion_data d = {.kind = (int32_t)kind};

  XFI_NEED(data);
  XFI_CHECK(xfi_conversion_is_known(conversion), XFER_ERR_ARG, "conversion %#llx is not known",
            (unsigned long long)conversion);
  if (kind == XFER_CONVERSION_SCALE || kind == XFER_CONVERSION_ADD)
    d.value = xfi_conversion_value(conversion);
  if (kind == XFER_CONVERSION_SCALES) d.tensor = xfi_conversion_tensor(conversion);
  if (kind == XFER_CONVERSION_BLOCKS) {
    d.rows = (int32_t)xfi_conversion_rows(conversion);
    d.columns = (int32_t)xfi_conversion_columns(conversion);
    d.scale = (int32_t)xfi_conversion_scale(conversion);
  }
  *data = d;
  return XFER_OK;
}
