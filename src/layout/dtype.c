/*
 * Element types: a name and a size.
 */
#include <string.h>

#include "dtype.h"
#include "error.h"

typedef struct dtype_row {
  xfer_dtype dtype;
  int n_bytes;
  const char *name;
} dtype_row;

static const dtype_row rows[] = {
    {XFER_U8, 1, "u8"},         {XFER_I8, 1, "i8"},         {XFER_BOOL, 1, "bool"},
    {XFER_F8E4M3, 1, "f8e4m3"}, {XFER_F8E5M2, 1, "f8e5m2"}, {XFER_F8E8M0, 1, "f8e8m0"},
    {XFER_U16, 2, "u16"},       {XFER_I16, 2, "i16"},       {XFER_F16, 2, "f16"},
    {XFER_BF16, 2, "bf16"},     {XFER_U32, 4, "u32"},       {XFER_I32, 4, "i32"},
    {XFER_F32, 4, "f32"},       {XFER_U64, 8, "u64"},       {XFER_I64, 8, "i64"},
    {XFER_F64, 8, "f64"},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

/* Row i is that of value i + 1. */
static const dtype_row *find(int dtype)
{
  return dtype >= 1 && dtype <= N_ROWS ? &rows[dtype - 1] : NULL;
}

size_t xfi_dtype_size(int dtype)
{
  const dtype_row *row = find(dtype);

  return row == NULL ? 0 : (size_t)row->n_bytes;
}

const char *xfi_dtype_name(int dtype)
{
  const dtype_row *row = find(dtype);

  return row == NULL ? "?" : row->name;
}

xfer_status xfi_dtype_parse(xfer_dtype *dtype, const char *name)
{
  for (int i = 0; i < N_ROWS; i++) {
    if (strcmp(rows[i].name, name) != 0) continue;
    *dtype = rows[i].dtype;
    return XFER_OK;
  }
  xfi_set_error("no dtype is called \"%s\"; want one such as bf16, f32, f8e4m3 or u8", name);
  return XFER_ERR_ARG;
}
