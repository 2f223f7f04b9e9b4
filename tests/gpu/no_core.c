/* The makers of comms hand them to the core; tests of the device and the kernels stand below it and
 * make none. */
#include "plugin.h"

#include "error.h"

xfer_status xfi_comm_wrap(xfer_comm **comm, xfi_comm *transport, xfi_device *device)
{
  (void)comm;
  (void)transport;
  device->ops->destroy(device);
  xfi_set_error("no core in this program");
  return XFER_ERR_INTERNAL;
}

xfer_status xfi_comm_bootstrap(xfer_comm **comm, xfer_all_gather_fn all_gather, void *context,
                               int rank, int size, xfer_status (*make)(xfi_device **device),
                               bool control_only)
{
  (void)comm, (void)all_gather, (void)context, (void)rank, (void)size, (void)make;
  (void)control_only;
  xfi_set_error("no core in this program");
  return XFER_ERR_INTERNAL;
}

void xfer_comm_destroy(xfer_comm *comm)
{
  (void)comm;
}
