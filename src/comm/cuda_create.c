/*
 * A comm of GPUs without NCCL: data goes straight into peers' memory, and control through memory of
 * the host that ranks share (host.c); only there can a peer's memory be reached. Ranks may share a
 * device, which NCCL refuses.
 */
#include "comm.h"

#include "device.h"
#include "error.h"
#include "plugin.h"
#include "xfer/nccl.h"

enum { CREATE_TIMEOUT_MS = 10 * 60 * 1000 };

xfer_status xfer_comm_create_cuda(xfer_comm **comm, xfer_all_gather_fn all_gather, void *context,
                                  int rank, int size)
{
  xfer_status st = XFER_OK;
  xfi_comm *transport = NULL;
  xfi_device *device = NULL;
  xfer_comm *made = NULL;

  XFI_NEED(comm);
  XFI_NEED(all_gather);
  XFI_CHECK_DONE(size >= 1 && rank >= 0 && rank < size, XFER_ERR_ARG, "rank %d of %d", rank, size);
  XFI_TRY_DONE(xfi_comm_create_host(&transport, all_gather, context, rank, size));
  xfi_host_control_only(transport);
  st = xfi_device_create_cuda(&device);
  if (st == XFER_OK) st = xfi_comm_wrap(&made, transport, device);
  XFI_TRY_DONE(xfi_comm_agree(transport, st, xfi_deadline_after(CREATE_TIMEOUT_MS)));
  *comm = made;
  return XFER_OK;
done:
  if (made == NULL && transport != NULL) transport->ops->destroy(transport);
  xfer_comm_destroy(made);
  return st;
}
