/* Inside of the comm over MPI. mpi.c has the idea and makes it; mpi_wait.c has waiting and failing,
 * mpi_calls.c the calls.
 */
#ifndef XFI_MPI_COMM_H
#define XFI_MPI_COMM_H

#include "shared.h"

#include <mpi.h>

/* A round's tag is XFI_MPI_TAG_ROUND plus the run's sequence number modulo the number of further
 * tags that MPI has, so that what a failed run left behind is not received by the next ones. */
enum { XFI_MPI_TAG_NOTICE = 1, XFI_MPI_TAG_LEAVE = 2, XFI_MPI_TAG_ROUND = 3 };

/* Tells other ranks that the sender's comm is broken, and whether it waits in a gathering; or that
 * the sender has refused a run, or destroyed a plan. */
typedef struct xfi_mpi_notice {
  uint64_t token;      /* the token of the sender's comm; 0: no notice has arrived */
  uint64_t refused;    /* number of the refused run's lanes, or XFI_DESTROYED | number of the
                          plan; 0: the comm is broken */
  uint64_t gathering;  /* the gathering in which the sender waits; 0: it waits in none */
  uint64_t n_gathered; /* gatherings by messages that the sender had completed */
  int32_t from;
  char why[XFI_BROKEN_BYTES];
} xfi_mpi_notice;

typedef struct xfi_mpi_comm {
  xfi_shared shared; /* memory shared with the ranks of this host */
  MPI_Comm comm;
  MPI_Comm broadcasts;   /* a communicator of their own: a rank that leaves one out and goes on to a
                            gathering meets the others' gathering, not their broadcast */
  uint64_t token;        /* identifies this comm, on every rank alike */
  uint64_t n_round_tags; /* number of tags for rounds, the same on every rank */

  uint64_t gathering;     /* the gathering by messages in which this rank waits; 0: none */
  uint64_t n_gathered;    /* gatherings by messages that are complete */
  size_t chunk_bytes;     /* bytes of each rank in one operation of a gathering */
  char *out;              /* [chunk_bytes] */
  char *in;               /* [size * chunk_bytes] */
  MPI_Request *requests;  /* [2 * size] messages of the call in progress; then the two below */
  MPI_Request collective; /* the collective operation in progress */
  xfi_envelope label;     /* of all broadcasts of a call */

  xfi_mpi_notice notice_out; /* the notice that we send */
  xfi_mpi_notice notice_in;  /* the notice that we receive */
  xfi_mpi_notice
      deferred_notice; /* the first notice that does not concern the gathering in progress */
  MPI_Request notice_recv;
  MPI_Request *notice_sends; /* [size] in `requests` */
  /* Refusals of runs: the last ones sent to all other ranks and the last received, in turn. */
  xfi_mpi_notice refusals_out[XFI_REFUSALS];
  MPI_Request *refusal_sends; /* [XFI_REFUSALS][size] likewise */
  size_t n_refusals_out;      /* number of refusals sent in all */
  /* Those received, of each XFI_KIND_OF(); each one's n_gathered is the least of its senders'. */
  xfi_mpi_notice refused[XFI_KINDS][XFI_REFUSALS];
  size_t n_refused[XFI_KINDS]; /* number of refusals received in all */
  bool *is_waiting;            /* [size] which ranks wait in the gathering that this rank gave up */
  int awaited;                 /* the peer that the round in progress waits for; -1: none */
  bool is_broadcasting;        /* a broadcast is in progress */
  int late;          /* the late rank of a wait that ended at its deadline; -1: none was found */
  bool is_connected; /* all ranks have made the comm and may send notices */
  bool has_notified;
  bool leaks_own; /* an operation that does not end uses our memory */
} xfi_mpi_comm;

/* MPI's error as ours: OK, or XFER_ERR_COMM with MPI's text. */
xfer_status xfi_mpi_check(int code, const char *call);
/* Makes a call and checks it: XFI_MPI(MPI_Comm_rank, (comm, &rank)). */
#define XFI_MPI(function, arguments) xfi_mpi_check(function arguments, #function)
/* Did all requests end within 200 ms? Errors count as an end: this is for clearing up. */
bool xfi_mpi_all_end(MPI_Request *requests, int n);
/* Wait until the operation has ended: OK, with MPI's result in *code. XFER_ERR_COMM if the comm
 * breaks meanwhile; XFER_ERR_TIMEOUT, whose text names t->late, and which the caller replaces if
 * that is -1; XFER_ERR_MISMATCH if the ranks wait for each other in different calls. */
xfer_status xfi_mpi_await(xfi_mpi_comm *t, MPI_Request *request, MPI_Status *status, int *code,
                          xfi_deadline deadline);

/* Break a broken comm on all other ranks too, once. Only the owner's thread may call this
 * and the functions below. */
void xfi_mpi_notify_all(xfi_mpi_comm *t);
/* Tell all other ranks that this one refuses a run. Breaks the comm if many refusals before it have
 * not arrived yet. */
void xfi_mpi_refuse(xfi_comm *comm, uint64_t what, const char *why);
/* check_refused of xfi_comm_ops, by the notices that have arrived. */
xfer_status xfi_mpi_check_refused(xfi_comm *comm, uint64_t what);
/* XFER_ERR_COMM with its text if this rank or another has broken the comm. */
xfer_status xfi_mpi_check_broken(xfi_comm *comm);
/* End the gathering in progress, and handle a notice that was deferred to this point. */
void xfi_mpi_end_gathering(xfi_mpi_comm *t);
/* A barrier of ranks that destroy the comm. True: all of them have destroyed it unbroken, so no
 * notice arrives any more. */
bool xfi_mpi_leave_barrier(xfi_mpi_comm *t);
/* Post the receive for the next notice. */
void xfi_mpi_post_notice(xfi_mpi_comm *t);
/* The rank that did not wait with us in a gathering that we gave up; -1: there is none, the
 * gathering was about to end. */
int xfi_mpi_find_late(xfi_mpi_comm *t);

xfi_all_gather_fn xfi_mpi_all_gather;
xfi_round_fn xfi_mpi_round;
xfi_broadcast_fn xfi_mpi_broadcast;

#endif
