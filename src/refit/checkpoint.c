/* Reads a checkpoint folder: config.json, and names, shapes and types from the headers of its safetensors. */
#include "model.h"

#include "error.h"

xfer_status xfi_checkpoint_read(xfer_model *model, const char *path, const xfer_model_options *options)
{
  (void)model;
  (void)options;
  xfi_set_error("%s is a folder", path);
  return XFER_ERR_UNSUPPORTED;
}
