/*
 * Host bytes over NCCL: small messages of planning and agreement, staged through a pinned buffer
 * and one of the same size on the device. That is slow, and rare. If all ranks are processes of one
 * host, they use it only until they have connected through shared memory (host.c).
 */
#include "nccl_comm.h"

#include "alloc.h"
#include "error.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

xfer_status xfi_nccl_control_wait(xfi_nccl_comm *comm, xfi_nccl *nccl, const char *what,
                                  xfi_deadline deadline)
{
  XFI_CUDA_TRY(cudaEventRecord, (comm->control_done, comm->control_stream));
  return xfi_nccl_await(nccl, comm->control_done, what, deadline);
}

/* ---- all-gather --------------------------------------------------------------------------- */

/* Gather in place, in the buffer on the device. */
static xfer_status gather(xfi_comm *base, const char **rows, const void *mine, size_t n_bytes,
                          xfi_deadline deadline)
{
  xfi_nccl_comm *comm = xfi_nccl_of(base);
  const size_t at = (size_t)base->rank * n_bytes;

  XFI_TRY(xfi_nccl_usable(&comm->control)); /* else the last call may still write host_bytes */
  memcpy(comm->host_bytes + at, mine, n_bytes);
  XFI_CUDA_TRY(cudaMemcpyAsync, (comm->device_bytes + at, comm->host_bytes + at, n_bytes,
                                 cudaMemcpyHostToDevice, comm->control_stream));
  ncclResult_t result = ncclAllGather(comm->device_bytes + at, comm->device_bytes, n_bytes,
                                      ncclInt8, comm->control.handle, comm->control_stream);
  XFI_TRY(xfi_nccl_launched(&comm->control, result, "ncclAllGather of control bytes", deadline));
  XFI_CUDA_TRY(cudaMemcpyAsync, (comm->host_bytes, comm->device_bytes, (size_t)base->size * n_bytes,
                                 cudaMemcpyDeviceToHost, comm->control_stream));
  *rows = comm->host_bytes;
  return xfi_nccl_control_wait(comm, &comm->control, "control bytes", deadline);
}

/* The reason in a text, which may say that another rank has broken the comm. */
static const char *reason(const char *text)
{
  const size_t n = sizeof XFI_BROKEN - 1;

  return strncmp(text, XFI_BROKEN, n) == 0 ? text + n : text;
}

xfer_status xfi_nccl_all_gather(xfi_comm *base, void *all, const void *mine, size_t n_bytes,
                                xfi_deadline deadline)
{
  const xfi_nccl_comm *comm = xfi_nccl_of(base);
  xfi_comm *host = comm->host;
  xfer_status st;

  if (host != NULL) {
    host->inside = base->inside;
    host->plan = base->plan;
    return host->ops->all_gather(host, all, mine, n_bytes, deadline);
  }
  st = xfi_comm_gather(base, all, mine, n_bytes, gather, comm->n_control_bytes / (size_t)base->size,
                       deadline);
  if (st != XFER_OK) base->ops->abort(base, reason(xfer_last_error()));
  return st;
}

/* NCCL's abort is local: ranks that wait in the next gathering, or are on their way to it, learn of
 * the failure only if this one takes part in it and says so. */
void xfi_nccl_decline(xfi_comm *base, const char *why, xfi_deadline deadline)
{
  xfi_nccl_comm *comm = xfi_nccl_of(base);

  if (comm->host != NULL || comm->control.handle == NULL) return;
  if (xfi_comm_gather_no(base, why, gather, deadline) != XFER_OK)
    xfi_nccl_break(&comm->control, why);
  (void)snprintf(comm->control.why, sizeof comm->control.why, "%s", why);
}

/* ---- on one host -------------------------------------------------------------------------- */

/* Tells ranks whether they are processes of one host. */
typedef struct address {
  unsigned char domain[64];
  int64_t pid;
} address;

typedef struct bootstrap {
  xfi_comm *comm;
  xfi_deadline deadline;
} bootstrap;

static int gather_to_bootstrap(void *context, void *all, const void *mine, size_t n_bytes)
{
  const bootstrap *b = context;

  return (int)b->comm->ops->all_gather(b->comm, all, mine, n_bytes, b->deadline);
}

/* Only such ranks can use shared memory here. Threads of one process use NCCL, as processes of
 * several hosts do. */
static bool are_processes_of_one_host(const address *all, int n)
{
  for (int r = 0; r < n; r++) {
    if (memcmp(all[r].domain, all[0].domain, sizeof all[0].domain) != 0) return false;
    for (int k = 0; k < r; k++)
      if (all[k].pid == all[r].pid) return false;
  }
  return n > 1;
}

xfer_status xfi_nccl_bootstrap_host(xfi_nccl_comm *comm, xfer_status mine,
                                    const unsigned char domain[64], xfi_deadline deadline)
{
  xfer_status st = mine;
  address own = {.pid = getpid()};
  address *all = NULL;
  bootstrap b = {&comm->base, deadline};
  xfi_comm *host = NULL;

  memcpy(own.domain, domain, sizeof own.domain);
  all = xfi_comm_agree_gather(&comm->base, &st, &own, sizeof own, deadline);
  XFI_TRY_DONE(st);
  if (!are_processes_of_one_host(all, comm->base.size)) goto done;
  if (xfi_comm_create_host(&host, gather_to_bootstrap, &b, comm->base.rank, comm->base.size,
                           true) == XFER_OK) {
    comm->host = host;
    comm->base.waits = host->waits;
    xfi_nccl_end(
        comm); /* only `control` exists so far; its buffers on the device take some 10 MiB */
  } else {
    st = xfi_nccl_usable(&comm->control); /* it failed on all ranks, so they keep using NCCL */
  }
done:
  xfi_free(all);
  return st;
}

/* ---- exchange ----------------------------------------------------------------------------- */

/*
 * A message is cut in slots. Group (c, g) carries slot c of the messages of the pairs (a, a + s)
 * with s in the g-th block of shifts: both ends of a pair compute the same group, and every rank
 * passes its groups in the same order, so that no two can wait for each other.
 */

/* One side of a group: what this rank sends to, or receives from, the peers of a block of shifts.
 */
typedef struct group_side {
  xfi_message in_slot[XFI_NCCL_SLOTS]; /* [n] on the device */
  char *at[XFI_NCCL_SLOTS]; /* [n] in the caller's memory; NULL: the bytes do not matter */
  int n;
} group_side;

static size_t slot_offset(int index, bool send)
{
  return (size_t)(send ? index : XFI_NCCL_SLOTS + index) * XFI_NCCL_SLOT_BYTES;
}

/* Fill one side of group (c, g). */
static void group_fill(const xfi_nccl_comm *comm, group_side *side, const xfi_message *messages,
                       int n_messages, size_t c, int g, bool send)
{
  const int size = comm->base.size;
  const size_t first = c * XFI_NCCL_SLOT_BYTES;

  side->n = 0;
  for (int i = 0; i < n_messages; i++) {
    const xfi_message *m = &messages[i];
    const int ahead = send ? m->peer - comm->base.rank : comm->base.rank - m->peer;
    const size_t at = slot_offset(side->n, send);

    if ((ahead + size) % size / XFI_NCCL_SLOTS != g || first >= m->n_bytes) continue;
    const size_t left = m->n_bytes - first;
    const size_t n = left < XFI_NCCL_SLOT_BYTES ? left : XFI_NCCL_SLOT_BYTES;
    char *bytes = m->data == NULL ? NULL : (char *)m->data + first;
    if (send && bytes != NULL) memcpy(comm->host_bytes + at, bytes, n);
    side->at[side->n] = bytes;
    side->in_slot[side->n++] = (xfi_message){comm->device_bytes + at, n, m->peer};
  }
}

/* Carry a group: from the host to the device, over NCCL, and back to the host. */
static xfer_status group_carry(xfi_nccl_comm *comm, xfi_nccl *nccl, const group_side *send,
                               const group_side *recv, xfi_deadline deadline)
{
  size_t send_bytes = (size_t)send->n * XFI_NCCL_SLOT_BYTES;
  size_t recv_bytes = (size_t)recv->n * XFI_NCCL_SLOT_BYTES;
  size_t recv_at = slot_offset(0, false);

  if (send->n > 0) {
    XFI_CUDA_TRY(cudaMemcpyAsync, (comm->device_bytes, comm->host_bytes, send_bytes,
                                   cudaMemcpyHostToDevice, comm->control_stream));
  }
  XFI_TRY(xfi_nccl_group(nccl, nccl->handle,
                         &(xfi_messages){send->in_slot, send->n, recv->in_slot, recv->n}, -1,
                         comm->control_stream, deadline));
  if (recv->n > 0) {
    XFI_CUDA_TRY(cudaMemcpyAsync, (comm->host_bytes + recv_at, comm->device_bytes + recv_at,
                                   recv_bytes, cudaMemcpyDeviceToHost, comm->control_stream));
  }
  XFI_TRY(xfi_nccl_control_wait(comm, nccl, "control messages", deadline));
  for (int i = 0; i < recv->n; i++)
    if (recv->at[i] != NULL)
      memcpy(recv->at[i], comm->host_bytes + slot_offset(i, false), recv->in_slot[i].n_bytes);
  return XFER_OK;
}

xfer_status xfi_nccl_carry(xfi_nccl_comm *comm, xfi_nccl *nccl, const xfi_messages *messages,
                           xfi_deadline deadline)
{
  group_side send;
  group_side recv;
  bool more = messages->n_sends + messages->n_recvs > 0;

  XFI_TRY(xfi_nccl_usable(nccl)); /* as in gather() */
  for (size_t c = 0; more; c++) {
    more = false;
    for (int g = 0; g * XFI_NCCL_SLOTS < comm->base.size; g++) {
      group_fill(comm, &send, messages->sends, messages->n_sends, c, g, true);
      group_fill(comm, &recv, messages->recvs, messages->n_recvs, c, g, false);
      if (send.n + recv.n == 0) continue;
      more = true;
      XFI_TRY(group_carry(comm, nccl, &send, &recv, deadline));
    }
  }
  return XFER_OK;
}

xfer_status xfi_nccl_exchange(xfi_comm *base, const xfi_messages *messages, xfi_deadline deadline)
{
  xfi_nccl_comm *comm = xfi_nccl_of(base);
  xfi_comm *host = comm->host;
  xfer_status st;

  if (host != NULL) return host->ops->exchange(host, messages, deadline);
  st = xfi_nccl_carry(comm, &comm->control, messages, deadline);
  if (st != XFER_OK)
    base->ops->abort(base, xfer_last_error()); /* others wait for what is missing */
  return st;
}
