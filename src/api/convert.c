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
