/* What goes through memory that ranks share (segment.h): all-gathers ("gatherings") and channels,
 * for the comms that have such memory (threads.c, host.c, mpi.c).
 */
#ifndef XFI_SHARED_H
#define XFI_SHARED_H

#include "late.h"
#include "segment.h"

/* The cores that a rank may run on; n is 0 if they are not known. */
typedef struct xfi_cores {
  int32_t first;
  int32_t n;
} xfi_cores;

/* Set up *shared, without a segment yet. `processes`: ranks are processes, not threads. Whatever
 * this returns, the caller ends *shared by xfi_shared_end(). Local. */
XFI_PLUGIN_API xfer_status xfi_shared_init(xfi_shared *shared, const xfi_shared_ops *ops,
                                           int n_host_ranks, int host_rank, bool processes);
/* Is this process a forked child of the comm's? It is no rank, and what it writes, or requests of
 * MPI, would be taken for its parent's. */
XFI_PLUGIN_API bool xfi_shared_is_inherited(const xfi_shared *shared);
/* The same question when a comm is destroyed. Compares process ids too, since _Fork() and clone()
 * do not change xfi_process_number(). */
XFI_PLUGIN_API bool xfi_shared_leaves_inherited(const xfi_shared *shared);
/* XFER_ERR_STATE if this process is such a child. */
XFI_PLUGIN_API xfer_status xfi_shared_check_process(const xfi_shared *shared);
/* Publishes that this rank leaves the comm, which ends the others' waits for it. Does nothing in a
 * forked child. */
XFI_PLUGIN_API void xfi_shared_leave(xfi_shared *shared);
/* Unmaps the segments and closes the sockets. */
void xfi_shared_part(xfi_shared *shared);
/* Calls xfi_shared_part() and frees what xfi_shared_init() made. An all-zero struct is fine. */
XFI_PLUGIN_API void xfi_shared_end(xfi_shared *shared);
/* Make this rank's segment. Returns its file, which the caller closes once the others have it; -1,
 * with errno: the segment could not be made. */
int xfi_shared_make(xfi_shared *shared);
/* Map another rank's segment from its file; NULL: this is no file of a segment. */
xfi_segment *xfi_shared_map(const xfi_shared *shared, int file);
xfi_cores xfi_cores_own(void);
/* Can each of n ranks have a core of its own? The n structs are `pitch` bytes apart. */
bool xfi_cores_suffice(const xfi_cores *cores, size_t pitch, int n);
/* Has the rank's process ended? All that it wrote before is then visible, has_left included. */
bool xfi_shared_is_lost(const xfi_shared *shared, int rank);

/* ---- host_bootstrap.c ---- */

/* Memory for xfi_shared.endpoints of n processes; NULL: out of memory. */
void *xfi_host_endpoints(int n);
/* Collective over the ranks of a host: each maps the segments of all others, or it fails on each.
 * `mine`: this rank's status so far, of xfi_shared_init() and what came before it; the endpoints
 * have been made. */
XFI_PLUGIN_API xfer_status xfi_host_bootstrap(xfi_shared *shared, xfer_status mine,
                                              xfer_all_gather_fn all_gather, void *context);

/* Report to all ranks that share memory with this one why the comm is broken. Does nothing in a
 * forked child. Any thread; only the first call has an effect. */
XFI_PLUGIN_API void xfi_shared_alarm(xfi_shared *shared, const char *why);
/* If another rank has reported that the comm is broken, break it here. True: it was not broken
 * before. */
XFI_PLUGIN_API bool xfi_shared_poll_alarm(xfi_shared *shared);
/* check and abort of xfi_comm_ops, for comms in which all ranks share memory. */
xfer_status xfi_shared_check(xfi_comm *comm);
void xfi_shared_abort(xfi_comm *comm, const char *why);

/* Whether a wait, for messages of a run or in a gathering, is in vain because of a refusal. */
static inline xfer_status xfi_shared_check_run(xfi_comm *comm, bool is_of_run)
{
  if (is_of_run && comm->run.lanes != 0) XFI_TRY(comm->ops->check_refused(comm, comm->run.lanes));
  return xfi_comm_check_destroyed(comm);
}

/* xfi_envelope_check() of what a rank of this host has sent. Where it differs because one of the
 * two is in a run that has been refused, of which the other knew already, that is the error. */
xfer_status xfi_shared_check_envelope(xfi_comm *comm, xfi_envelope sent, int from,
                                      xfi_envelope expected);

/* Before a call: XFER_ERR_COMM with its text if the comm is broken. If all ranks share memory, this
 * only reads memory: MPI_Test() may yield the core, and with more ranks than cores all others then
 * run before this one does again. */
xfer_status xfi_shared_begin(xfi_shared *shared);

/* What a rank waits for. */
typedef bool xfi_rank_filter(const xfi_shared *shared, int rank);
typedef struct xfi_awaited {
  bool (*is_there)(const struct xfi_awaited *what);
  /* A rank that is still awaited, and for which `of` is true; -1: none. */
  int (*find_late)(const struct xfi_awaited *what, xfi_rank_filter *of);
  xfi_shared *shared;
  const void *of; /* context of the two functions */
  bool is_of_run; /* what is awaited is a run's message */
} xfi_awaited;
static inline bool xfi_any_rank(const xfi_shared *shared, int rank)
{
  (void)shared, (void)rank;
  return true;
}
/* Waits until is_there(). XFER_ERR_COMM: the comm is broken, or an awaited rank has left or its
 * process has ended. */
xfer_status xfi_shared_await(const xfi_awaited *what, xfi_deadline deadline);
/* After a write that a rank may wait for: wakes it if it sleeps. */
void xfi_shared_ring(xfi_shared *shared, int rank);

/* An all-gather that does not break the comm when it fails. */
XFI_PLUGIN_API xfer_status xfi_shared_gather(xfi_shared *shared, void *all, const void *mine,
                                             size_t n_bytes, xfi_deadline deadline);
/* Did the last step of a gathering take place? Then all ranks have all contributions; else it
 * failed on all of them, and ranks that are in no gathering do not know it yet. */
XFI_PLUGIN_API bool xfi_shared_has_gathered(const xfi_shared *shared);
/* The operations of xfi_comm_ops of these names. */
xfi_all_gather_fn xfi_shared_all_gather;
xfi_exchange_fn xfi_shared_exchange;
xfi_round_fn xfi_shared_round;
xfi_broadcast_fn xfi_shared_broadcast;
XFI_PLUGIN_API bool xfi_shared_shares(const xfi_comm *comm, int peer);
XFI_PLUGIN_API xfer_status xfi_shared_carry_channels(xfi_comm *comm, const xfi_channel_set *all,
                                                     xfi_deadline deadline);
XFI_PLUGIN_API void xfi_shared_carry_begin(xfi_comm *comm, const xfi_channel_set *all);
XFI_PLUGIN_API void xfi_shared_carry_undo(xfi_comm *comm, const xfi_channel_set *all);
/* Carries the channels of a call of any kind. */
xfer_status xfi_shared_carry(xfi_comm *comm, xfi_carry_call call, const xfi_channel_set *all,
                             xfi_deadline deadline);

#endif
