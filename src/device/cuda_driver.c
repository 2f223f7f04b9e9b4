/*
 * The functions of the CUDA driver that the runtime lacks. They are found at run time, so the
 * library does not link to libcuda. And the texts of their errors.
 */
#include "cuda_device.h"

#include "error.h"

#include <string.h>

xfer_status xfi_cuda_driver_failed(const xfi_cuda_device *device, CUresult error, const char *call)
{
  const char *name = NULL;

  if (device->driver.error_name(error, &name) != CUDA_SUCCESS || name == NULL)
    name = "unknown error";
  xfi_set_error("%s: %s", call, name);
  return error == CUDA_ERROR_OUT_OF_MEMORY ? XFER_ERR_NOMEM : XFER_ERR_CUDA;
}

void xfi_cuda_begin_thread(void *device)
{
  const xfi_cuda_device *d = device;

  (void)d->driver.context_push(d->context);
  (void)xfi_cuda_mode(cudaStreamCaptureModeRelaxed);
}

/* ---- the functions ------------------------------------------------------------------------ */

/* A function as of a version of CUDA; NULL if the driver lacks it and it is not `needed`. */
static xfer_status driver_function(void *function, const char *name, unsigned version, bool needed)
{
  void *found = NULL;
  enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;

#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
#else /* the toolkit's own version, 12.0 to 12.4, where our functions are the same */
  const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  if (error == cudaErrorInvalidValue) { /* the driver is older than that version */
    (void)cudaGetLastError();
    result = cudaDriverEntryPointSymbolNotFound;
  } else if (error != cudaSuccess) {
    return xfi_cuda_failed(error, "cudaGetDriverEntryPoint");
  }
  if (result != cudaDriverEntryPointSuccess) found = NULL;
  XFI_CHECK(found != NULL || !needed, XFER_ERR_UNSUPPORTED,
            "the CUDA driver has no %s of CUDA %u.%u", name, version / 1000, version % 1000 / 10);
  memcpy(function, &found, sizeof found); /* C has no cast between the two kinds of pointer */
  return XFER_OK;
}

#define FUNCTION(type, ours, name) {&driver->ours, name},
xfer_status xfi_cuda_driver_load(xfi_cuda_driver *driver)
{
  struct {
    void *function;
    const char *name;
  } requested[] = {XFI_CUDA_DRIVER(FUNCTION)};

  for (size_t i = 0; i < sizeof requested / sizeof requested[0]; i++) {
    XFI_TRY(driver_function(requested[i].function, requested[i].name, 12000, true));
  }
#if CUDA_VERSION >= 12080
  XFI_TRY(driver_function(&driver->memcpy_batch, "cuMemcpyBatchAsync", 12080, false));
#endif
  return XFER_OK;
}
