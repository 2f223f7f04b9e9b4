/*
 * A comm over MPI: nonblocking calls that are polled until their deadline. This file makes and
 * destroys such comms; mpi_calls.c has the calls, and mpi_wait.c their waits and failures. The comm
 * has no thread of its own: the thread that makes the comm's calls makes all calls of MPI.
 *
 * MPI cannot end a wait that the other side will never end. So every call starts nonblocking
 * operations and tests them. Besides, each rank keeps a receive posted for *notices*, and tests
 * that too. A rank that gives up breaks the comm, sends a notice to all others, and cancels its own
 * receives. What MPI cannot cancel (sends and collective operations) is leaked with its memory: a
 * gathering uses the library's own, rounds and broadcasts use the run's slots
 * (xfi_comm.holds_memory).
 *
 * Ranks of one host share memory (shared.c): what goes between them needs no message, and if all
 * ranks are of one host, neither do gatherings. Notices are also published there, where they arrive
 * at once.
 *
 * A rank that refuses a run tells the others by notices too. These are synchronous sends, which end
 * once the other rank has received the notice.
 *
 * A communicator is freed only if all ranks have destroyed the comm unbroken. Otherwise MPI could
 * give its context to the next communicator, where a message that is still in flight would be
 * received; that is why notices carry a token, too. And Open MPI 4.1 hangs when it makes the second
 * communicator after a notice to a rank that had freed its own.
 */
#include "xfer/mpi.h"

#include "alloc.h"
#include "device.h"
#include "error.h"
#include "mpi_comm.h"
#include "plugin.h"

#include <stdio.h>
#include <unistd.h>

enum {
  GATHER_BYTES = 1 << 20
}; /* all ranks' bytes in one operation; more if ranks are very many */

/* A rank that sleeps until another one of its host wakes it also polls for notices. */
static const xfi_shared_ops shared_ops = {
    .nap_ns = 1000000,
    .naps = 16,
    .spin_ns = 2000000,
    .yields = 1000, /* a wake-up costs more than a time slice of all others */
};

/* ---- the comm ----------------------------------------------------------------------------- */

static void mpi_abort(xfi_comm *comm, const char *why)
{
  xfi_mpi_comm *t = (xfi_mpi_comm *)comm;

  (void)xfi_broken_set(&t->shared.broken, "%s", why);
  xfi_mpi_notify_all(t);
}

static void transport_free(xfi_mpi_comm *t)
{
  if (t == NULL) return;
  xfi_shared_end(&t->shared);
  xfi_free(t->out);
  xfi_free(t->in);
  xfi_free(t->requests);
  xfi_free(t->is_waiting);
  xfi_free(t);
}

static void free_communicator(MPI_Comm *comm)
{
  if (*comm != MPI_COMM_NULL) (void)MPI_Comm_free(comm);
}

static void mpi_destroy(xfi_comm *comm)
{
  xfi_mpi_comm *t = (xfi_mpi_comm *)comm;
  int finalized = 0;

  (void)MPI_Finalized(&finalized);
  xfi_shared_leave(&t->shared);
  if (finalized == 0 &&
      !xfi_shared_leaves_inherited(&t->shared)) { /* a forked child may not call MPI */
    const bool is_heard = xfi_mpi_all_end(t->refusal_sends, XFI_REFUSALS * comm->size);
    const bool all_leave = is_heard && !atomic_load(&t->shared.broken.is) &&
                           (!t->is_connected || xfi_mpi_leave_barrier(t));

    if (!is_heard) t->leaks_own = true;
    if (atomic_load(&t->shared.broken.is)) xfi_mpi_notify_all(t);
    if (t->notice_recv != MPI_REQUEST_NULL) (void)MPI_Cancel(&t->notice_recv);
    if (!xfi_mpi_all_end(&t->notice_recv, 1)) t->leaks_own = true;
    if (!xfi_mpi_all_end(t->notice_sends, comm->size)) t->leaks_own = true;
    if (all_leave) {
      free_communicator(&t->broadcasts);
      free_communicator(&t->comm);
    }
  }
  if (t->leaks_own)
    xfi_shared_end(&t->shared); /* this is no memory that MPI uses */
  else
    transport_free(t);
}

static const xfi_comm_ops mpi_ops = {
    .recv_direct = false,
    .destroy = mpi_destroy,
    .all_gather = xfi_mpi_all_gather,
    .round = xfi_mpi_round,
    .broadcast = xfi_mpi_broadcast,
    .shares = xfi_shared_shares,
    .carry_channels = xfi_shared_carry_channels,
    .carry_begin = xfi_shared_carry_begin,
    .carry_undo = xfi_shared_carry_undo,
    .check = xfi_mpi_check_broken,
    .abort = mpi_abort,
    .abort_data = mpi_abort,
    .refuse = xfi_mpi_refuse,
    .check_refused = xfi_mpi_check_refused,
};

/* How many tags there are for rounds. The highest tag is the same on all ranks and mostly 2^31 - 1,
 * so that no tag is used twice while a comm lives. */
static xfer_status count_round_tags(uint64_t *n_tags)
{
  const int *highest = NULL;
  int is_set = 0;

  XFI_TRY(XFI_MPI(MPI_Comm_get_attr, (MPI_COMM_WORLD, MPI_TAG_UB, &highest, &is_set)));
  XFI_CHECK(is_set != 0, XFER_ERR_COMM, "MPI does not say how many tags it has");
  *n_tags = (uint64_t)(*highest - XFI_MPI_TAG_ROUND) + 1;
  return XFER_OK;
}

/* What the ranks make together as a comm is made. */
typedef struct communicators {
  MPI_Comm comm;       /* a duplicate of the caller's */
  MPI_Comm broadcasts; /* another one, see xfi_mpi_comm */
  MPI_Comm host;       /* of this host's ranks */
  uint64_t token;      /* a number that no other comm of these ranks has */
} communicators;

/* What needs no other rank. Takes own->comm and own->broadcasts on success. */
static xfer_status transport_create(xfi_mpi_comm **out, const communicators *own)
{
  xfer_status st = XFER_OK;
  xfi_mpi_comm *t = NULL;
  int size = 0;
  int n_requests;
  int n_host_ranks = 0;
  int host_rank = 0;

  XFI_TRY_DONE(XFI_MPI(MPI_Comm_size, (own->comm, &size)));
  t = xfi_calloc(1, sizeof *t);
  XFI_CHECK_DONE(t != NULL, XFER_ERR_NOMEM, "a comm of %d ranks", size);
  t->shared.base = (xfi_comm){.ops = &mpi_ops, .size = size};
  XFI_TRY_DONE(XFI_MPI(MPI_Comm_rank, (own->comm, &t->shared.base.rank)));
  t->comm = own->comm;
  t->broadcasts = own->broadcasts;
  t->token = own->token;
  XFI_TRY_DONE(count_round_tags(&t->n_round_tags));
  t->awaited = -1;
  t->notice_recv = MPI_REQUEST_NULL;
  t->collective = MPI_REQUEST_NULL;
  t->chunk_bytes = GATHER_BYTES / (size_t)size;
  if (t->chunk_bytes < XFI_GATHER_ROW_BYTES) t->chunk_bytes = XFI_GATHER_ROW_BYTES;
  t->out = xfi_calloc(1, t->chunk_bytes);
  t->in = xfi_calloc((size_t)size, t->chunk_bytes);
  /* sizeof the type, since clang-tidy reports sizeof an expression that is a pointer. */
  n_requests = (2 + 1 + XFI_REFUSALS) * size;
  t->requests = xfi_calloc((size_t)n_requests, sizeof(MPI_Request));
  t->is_waiting = xfi_calloc((size_t)size, sizeof *t->is_waiting);
  XFI_CHECK_DONE(t->out != NULL && t->in != NULL && t->requests != NULL && t->is_waiting != NULL,
                 XFER_ERR_NOMEM, "a comm of %d ranks", size);
  for (int i = 0; i < n_requests; i++)
    t->requests[i] = MPI_REQUEST_NULL;
  t->notice_sends = t->requests + 2 * (size_t)size;
  t->refusal_sends = t->notice_sends + size;
  XFI_TRY_DONE(XFI_MPI(MPI_Comm_size, (own->host, &n_host_ranks)));
  XFI_TRY_DONE(XFI_MPI(MPI_Comm_rank, (own->host, &host_rank)));
  XFI_TRY_DONE(xfi_shared_init(&t->shared, &shared_ops, n_host_ranks, host_rank, true));
  *out = t;
  t = NULL;
done:
  transport_free(t);
  return st;
}

/* ---- making a comm ------------------------------------------------------------------------ */

/* Checks that involve no other rank. */
static xfer_status check_caller(MPI_Comm mpi_comm)
{
  int initialized = 0;
  int finalized = 0;
  int is_inter = 0;

  (void)MPI_Initialized(&initialized);
  (void)MPI_Finalized(&finalized);
  XFI_CHECK(initialized != 0, XFER_ERR_STATE, "MPI is not initialized: call MPI_Init() first");
  XFI_CHECK(finalized == 0, XFER_ERR_STATE, "MPI is finalized");
  XFI_CHECK(mpi_comm != MPI_COMM_NULL, XFER_ERR_ARG, "the communicator is MPI_COMM_NULL");
  XFI_TRY(XFI_MPI(MPI_Comm_test_inter, (mpi_comm, &is_inter)));
  XFI_CHECK(is_inter == 0, XFER_ERR_ARG, "the communicator is an inter-communicator");
  return XFER_OK;
}

/* May this thread call MPI? It will, whenever it calls the library. */
static xfer_status check_threads(void)
{
  int level = MPI_THREAD_SINGLE;
  int is_main = 0;

  XFI_TRY(XFI_MPI(MPI_Query_thread, (&level)));
  XFI_TRY(XFI_MPI(MPI_Is_thread_main, (&is_main)));
  XFI_CHECK(level > MPI_THREAD_FUNNELED || is_main != 0, XFER_ERR_UNSUPPORTED,
            "below MPI_THREAD_SERIALIZED the main thread must make the comm; ask MPI_Init_thread() "
            "for MPI_THREAD_SERIALIZED or more");
  return XFER_OK;
}

/* Collective. The caller owns what was made, also after a failure. */
static xfer_status make_communicators(communicators *made, MPI_Comm mpi_comm)
{
  made->token = (uint64_t)xfi_now_ns() ^ (uint64_t)getpid() << 48;
  XFI_TRY(XFI_MPI(MPI_Comm_dup, (mpi_comm, &made->comm)));
  XFI_TRY(XFI_MPI(MPI_Comm_set_errhandler, (made->comm, MPI_ERRORS_RETURN)));
  XFI_TRY(XFI_MPI(MPI_Comm_dup, (made->comm, &made->broadcasts)));
  XFI_TRY(XFI_MPI(MPI_Bcast, (&made->token, 1, MPI_UINT64_T, 0, made->comm)));
  return XFI_MPI(MPI_Comm_split_type,
                 (made->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &made->host));
}

/* Make the transport, the device, and the public comm around both. Needs no other rank. */
static xfer_status assemble(xfer_comm **comm, xfi_mpi_comm **transport, const communicators *own)
{
  xfer_status st = XFER_OK;
  xfi_mpi_comm *t = NULL;
  xfi_device *device = NULL;

  XFI_TRY_DONE(check_threads());
  XFI_TRY_DONE(transport_create(&t, own));
  XFI_TRY_DONE(xfi_device_create_host(&device));
  XFI_TRY_DONE(xfi_comm_wrap(comm, &t->shared.base, device));
  xfi_mpi_post_notice(t);
  *transport = t;
  t = NULL; /* the comm's now */
done:
  transport_free(t);
  return st;
}

static int gather_on_host(void *host, void *all, const void *mine, size_t n_bytes)
{
  return MPI_Allgather(mine, (int)n_bytes, MPI_BYTE, all, (int)n_bytes, MPI_BYTE,
                       *(MPI_Comm *)host);
}

/* OK only if `mine` is OK on every rank; else a failed rank's text. Collective. */
static xfer_status agree(MPI_Comm comm, xfer_status mine)
{
  xfer_status st = XFER_OK;
  struct {
    int status;
    int rank;
  } worst = {(int)mine, 0};
  char text[XFI_BROKEN_BYTES] = "";

  XFI_TRY_DONE(XFI_MPI(MPI_Comm_rank, (comm, &worst.rank)));
  if (mine != XFER_OK)
    (void)snprintf(text, sizeof text, "%.*s", XFI_BROKEN_BYTES - 1, xfer_last_error());
  XFI_TRY_DONE(XFI_MPI(MPI_Allreduce, (MPI_IN_PLACE, &worst, 1, MPI_2INT, MPI_MINLOC, comm)));
  if (worst.status == XFER_OK) return XFER_OK;
  XFI_TRY_DONE(XFI_MPI(MPI_Bcast, (text, XFI_BROKEN_BYTES, MPI_CHAR, worst.rank, comm)));
  XFI_CHECK_DONE(mine != XFER_OK, XFER_ERR_PEER, "rank %d: %s", worst.rank, text);
done:
  return mine != XFER_OK ? mine : st;
}

xfer_status xfer_comm_create_mpi(xfer_comm **comm, MPI_Comm mpi_comm)
{
  xfer_status st = XFER_OK;
  xfer_comm *made = NULL;
  xfi_mpi_comm *transport = NULL; /* owned by `made` */
  communicators own = {MPI_COMM_NULL, MPI_COMM_NULL, MPI_COMM_NULL, 0};

  XFI_NEED(comm);
  XFI_TRY_DONE(check_caller(mpi_comm));
  XFI_TRY_DONE(make_communicators(&own, mpi_comm));
  st = assemble(&made, &transport, &own);
  st = agree(own.comm, st);
  if (st == XFER_OK && transport != NULL) {
    xfi_shared *s = &transport->shared;

    transport->is_connected = true;
    /* If some ranks of a host cannot share memory, none of them does: they send each other
     * messages. */
    s->base.shares_all = s->n_host_ranks > 1 &&
                         xfi_host_bootstrap(s, XFER_OK, gather_on_host, &own.host) == XFER_OK &&
                         s->n_host_ranks == s->base.size;
  }
  if (made != NULL) own.comm = own.broadcasts = MPI_COMM_NULL; /* owned by `made` now */
  XFI_TRY_DONE(st);
  *comm = made;
  made = NULL;
done:
  xfer_comm_destroy(made); /* before the communicators, which all ranks free in this order */
  free_communicator(&own.broadcasts);
  free_communicator(&own.comm);
  free_communicator(&own.host);
  return st;
}
