/* The makers of conversions. */
#include "plan.h"

xfer_conversion xfer_convert_cast(void)
{
  return xfi_conversion_make(XFI_KIND_CAST, 0);
}

xfer_conversion xfer_convert_scale(float scale)
{
  return xfi_conversion_make(XFI_KIND_SCALE, scale);
}

xfer_conversion xfer_convert_add(float value)
{
  return xfi_conversion_make(XFI_KIND_ADD, value);
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
