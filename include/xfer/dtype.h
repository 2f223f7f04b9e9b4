/**
 * @file dtype.h Element types.
 */
#ifndef XFER_DTYPE_H
#define XFER_DTYPE_H

#include <xfer/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Element types. Without a conversion the library moves data unchanged: only the name and the size
 * matter.
 */
typedef enum xfer_dtype {
  XFER_U8 = 1,
  XFER_I8 = 2,
  XFER_BOOL = 3,
  XFER_F8E4M3 = 4,
  XFER_F8E5M2 = 5,
  XFER_F8E8M0 = 6,
  XFER_U16 = 7,
  XFER_I16 = 8,
  XFER_F16 = 9,
  XFER_BF16 = 10,
  XFER_U32 = 11,
  XFER_I32 = 12,
  XFER_F32 = 13,
  XFER_U64 = 14,
  XFER_I64 = 15,
  XFER_F64 = 16
} xfer_dtype;

/** Bytes of one element: 1, 2, 4 or 8; 0 for a value that is no dtype. */
XFER_API size_t xfer_dtype_size(xfer_dtype dtype);
/** The name of a dtype in the problem language, for example "bf16"; "?" for a value that is no
 * dtype. */
XFER_API const char *xfer_dtype_name(xfer_dtype dtype);
/** The dtype that has a name. @retval XFER_ERR_ARG No dtype is called `name`. */
XFER_API XFER_MUST_CHECK xfer_status xfer_dtype_parse(xfer_dtype *dtype, const char *name);

#ifdef __cplusplus
}
#endif
#endif
