/* plugin.h as the test has it: what a maker of comms hands over can be seen. For one file
 * of a program. */
#ifndef XFER_TEST_PLAYED_CORE_H
#define XFER_TEST_PLAYED_CORE_H

#include "alloc.h"
#include "device.h"
#include "plugin.h"

struct xfer_comm {
  xfi_comm *transport;
  xfi_device *device;
};

xfer_status xfi_comm_wrap(xfer_comm **comm, xfi_comm *transport, xfi_device *device)
{
  xfer_comm *made = xfi_calloc(1, sizeof *made);

  if (made == NULL) {
    device->ops->destroy(device);
    return XFER_ERR_NOMEM;
  }
  *made = (xfer_comm){transport, device};
  *comm = made;
  return XFER_OK;
}

void xfer_comm_destroy(xfer_comm *comm)
{
  if (comm == NULL) return;
  comm->transport->ops->destroy(comm->transport);
  comm->device->ops->destroy(comm->device);
  xfi_free(comm);
}

#endif
