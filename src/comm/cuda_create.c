/*
 * A comm of GPUs without NCCL: data is copied straight into peers' memory, which must be on this
 * host, and control bytes go through host memory that the ranks share (host.c). Ranks may share a
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
