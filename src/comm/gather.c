/*
 * A transport of one function: the caller's all-gather of host bytes. It cannot carry data; the
 * direct lane needs nothing else. Ranks may share a device, which NCCL refuses.
 *
 * exchange() is an all-gather too, so here every rank of the comm must call it, with no messages if
 * it has none.
 */
#include "comm.h"

#include "alloc.h"
#include "device.h"
#include "error.h"
#include "plugin.h"
#include "xfer/nccl.h"

#include <string.h>

typedef struct gather_comm {
  xfi_comm base;
  xfer_all_gather_fn all_gather;
  void *context;
  uint64_t *words; /* [size] what ranks say before an exchange: it needs no memory */
  xfi_broken broken;
} gather_comm;

/* Before each message of an exchange, in the bytes that a rank gives to all. */
typedef struct envelope {
  int64_t peer;
  uint64_t n_bytes;
} envelope;

static void gather_abort(xfi_comm *base, const char *why)
{
  (void)xfi_broken_set(&((gather_comm *)base)->broken, "%s", why);
}

/* The deadline is the caller's function's. Where it comes back late on one rank alone, that rank
 * must go on like the others, which would else wait in their next call for good. */
static xfer_status call(xfi_comm *base, void *all, const void *mine, size_t n_bytes,
                        xfi_deadline deadline)
{
  gather_comm *comm = (gather_comm *)base;

  (void)deadline;
  XFI_TRY(xfi_broken_check(&comm->broken));
  if (n_bytes == 0) return XFER_OK;
  int answer = comm->all_gather(comm->context, all, mine, n_bytes);
  if (answer != 0) gather_abort(base, "the caller's all-gather failed");
  XFI_CHECK(answer == 0, XFER_ERR_COMM, "the caller's all-gather of %zu bytes answered %d", n_bytes,
            answer);
  return XFER_OK;
}

static xfer_status gather_all_gather(xfi_comm *base, void *all, const void *mine, size_t n_bytes,
                                     xfi_deadline deadline)
{
  const xfer_status st = xfi_comm_gather(base, all, mine, n_bytes, call, deadline);

  if (st != XFER_OK) gather_abort(base, xfi_last_error());
  return st;
}

/* Reads the message for this rank from what rank `peer` gave to all. */
static xfer_status open_envelopes(const xfi_comm *base, const char *bytes, size_t n_bytes, int peer,
                                  const xfi_message *recvs, int n_recvs)
{
  const xfi_message *awaited = NULL;
  envelope head = {0, 0};

  for (int i = 0; i < n_recvs; i++)
    if (recvs[i].peer == peer) awaited = &recvs[i];
  for (size_t at = 0; n_bytes - at >= sizeof head; at += head.n_bytes) {
    memcpy(&head, bytes + at, sizeof head);
    at += sizeof head;
    XFI_CHECK(head.n_bytes <= n_bytes - at, XFER_ERR_INTERNAL, "a message of rank %d is cut", peer);
    if (head.peer != base->rank || head.n_bytes == 0) continue;
    XFI_CHECK(awaited != NULL && awaited->n_bytes == head.n_bytes, XFER_ERR_MISMATCH,
              "rank %d sent %llu bytes that rank %d did not expect", peer,
              (unsigned long long)head.n_bytes, base->rank);
    memcpy(awaited->data, bytes + at, head.n_bytes);
    awaited = NULL;
  }
  XFI_CHECK(awaited == NULL, XFER_ERR_MISMATCH, "rank %d sent less than rank %d expects", peer,
            base->rank);
  return XFER_OK;
}

static void fill_envelopes(char *bytes, const xfi_message *sends, int n_sends)
{
  size_t at = 0;

  for (int i = 0; i < n_sends; i++) {
    envelope head = {.peer = sends[i].peer, .n_bytes = sends[i].n_bytes};
    memcpy(bytes + at, &head, sizeof head);
    memcpy(bytes + at + sizeof head, sends[i].data, sends[i].n_bytes);
    at += sizeof head + sends[i].n_bytes;
  }
}

static xfer_status gather_exchange(xfi_comm *base, const xfi_message *sends, int n_sends,
                                   const xfi_message *recvs, int n_recvs, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  size_t size = (size_t)base->size;
  uint64_t mine_bytes = 0;
  uint64_t most = 0;
  uint64_t *all_bytes = ((gather_comm *)base)->words;
  char *mine = NULL;
  char *all = NULL;

  for (int i = 0; i < n_sends; i++)
    mine_bytes += sizeof(envelope) + sends[i].n_bytes;
  XFI_TRY_DONE(gather_all_gather(base, all_bytes, &mine_bytes, sizeof mine_bytes, deadline));
  for (size_t r = 0; r < size; r++) {
    if (all_bytes[r] > most) most = all_bytes[r];
  }
  XFI_CHECK_DONE(most > 0 || n_recvs == 0, XFER_ERR_MISMATCH,
                 "rank %d sent less than rank %d expects", recvs[0].peer, base->rank);
  if (most == 0) goto done;
  mine = xfi_calloc(1, most);
  all = xfi_calloc(size, most);
  if (mine == NULL || all == NULL) st = XFI_NO_MEMORY("an exchange among %d ranks", base->size);
  st = xfi_comm_agree(base, st, deadline);
  if (st != XFER_OK || mine == NULL || all == NULL) goto done;
  fill_envelopes(mine, sends, n_sends);
  XFI_TRY_DONE(gather_all_gather(base, all, mine, most, deadline));
  for (size_t r = 0; r < size; r++) {
    if ((int)r == base->rank) continue;
    XFI_TRY_DONE(open_envelopes(base, all + r * most, all_bytes[r], (int)r, recvs, n_recvs));
  }
done:
  if (st == XFER_ERR_MISMATCH || st == XFER_ERR_INTERNAL) /* which others may not have found */
    gather_abort(base, xfi_last_error());
  xfi_free(mine);
  xfi_free(all);
  return st;
}

static void gather_destroy(xfi_comm *base)
{
  gather_comm *comm = (gather_comm *)base;

  if (comm == NULL) return;
  (void)pthread_mutex_destroy(&comm->broken.lock);
  xfi_free(comm->words);
  xfi_free(comm);
}

static const xfi_comm_ops gather_ops = {
    .recv_direct = false,
    .destroy = gather_destroy,
    .all_gather = gather_all_gather,
    .exchange = gather_exchange,
    .abort = gather_abort,
};

/* Local: the transport, the device and the public comm around both. */
static xfer_status assemble(xfer_comm **comm, const gather_comm *like)
{
  xfer_status st = XFER_OK;
  gather_comm *made = xfi_calloc(1, sizeof *made);
  xfi_device *device = NULL;

  XFI_CHECK_DONE(made != NULL, XFER_ERR_NOMEM, "a CUDA comm");
  *made = *like;
  (void)pthread_mutex_init(&made->broken.lock, NULL);
  made->words = xfi_calloc((size_t)like->base.size, sizeof *made->words);
  XFI_CHECK_DONE(made->words != NULL, XFER_ERR_NOMEM, "a CUDA comm of %d ranks", like->base.size);
  XFI_TRY_DONE(xfi_device_create_cuda(&device));
  XFI_TRY_DONE(xfi_comm_wrap(comm, &made->base, device));
  made = NULL;
  device = NULL;
done:
  if (made != NULL) gather_destroy(&made->base);
  if (device != NULL) device->ops->destroy(device);
  return st;
}

xfer_status xfer_comm_create_cuda(xfer_comm **comm, xfer_all_gather_fn all_gather, void *context,
                                  int rank, int size)
{
  xfer_status st = XFER_OK;
  xfer_comm *made = NULL;
  gather_comm first = {.base = {.ops = &gather_ops, .rank = rank, .size = size},
                       .all_gather = all_gather,
                       .context = context};

  XFI_NEED(comm);
  XFI_NEED(all_gather);
  XFI_CHECK_DONE(size >= 1 && rank >= 0 && rank < size, XFER_ERR_ARG, "rank %d of %d", rank, size);
  st = assemble(&made, &first);
  /* A rank that has none would leave the others waiting in their first call. */
  (void)pthread_mutex_init(&first.broken.lock, NULL);
  st = xfi_comm_agree(&first.base, st, xfi_deadline_after(INT64_MAX));
  (void)pthread_mutex_destroy(&first.broken.lock);
  if (st != XFER_OK) xfer_comm_destroy(made);
  if (st == XFER_OK) *comm = made;
done:
  return st;
}
