/*
 * A comm of GPUs without NCCL: data goes straight into peers' memory, and control through memory of
 * the host that ranks share (host.c); only there can a peer's memory be reached. Ranks may share a
 * device, which NCCL refuses.
 */
#include "error.h"
#include "plugin.h"
#include "xfer/nccl.h"

xfer_status xfer_comm_create_cuda(xfer_comm **comm, xfer_all_gather_fn all_gather, void *context,
                                  int rank, int size)
{
  XFI_NEED(comm);
  XFI_NEED(all_gather);
  return xfi_comm_bootstrap(comm, all_gather, context, rank, size, xfi_device_create_cuda, true);
}
