/*
 * A plan that is being carried out: its moves, where its tensors lie, its lanes and its state; and
 * the questions that all parts of run/ ask of it.
 */
#ifndef XFI_BOUND_PLAN_H
#define XFI_BOUND_PLAN_H

#include "bound.h"
#include "comm.h"
#include "device.h"
#include "error.h"
#include "plan.h"
#include "state.h"
#include "vec.h"

/* Why a bind failed. */
typedef struct xfi_misbound {
  xfer_status st;
  char why[XFI_ERROR_BYTES];
} xfi_misbound;

/* Where a tensor's parts lie on this rank. */
typedef struct xfi_binding {
  xfi_bound src;
  xfi_bound dst;
  xfi_bound shadow;  /* what lanes write instead of dst; not set: dst */
  xfi_bound offer;   /* what peers read instead of src; not set: src */
  xfi_misbound *bad; /* the last bind failed; NULL: it did not */
} xfi_binding;

/* The halves of what a rank has bound, as bits: memory that it sends from, memory that it receives
 * into. */
enum { XFI_OF_SRC = 1, XFI_OF_DST = 2 };

/* Has a side that was bound lost its memory? */
static inline bool xfi_binding_is_lost(const xfi_binding *b)
{
  return (!b->src.is_set && b->src.n_pieces > 0) || (!b->dst.is_set && b->dst.n_pieces > 0);
}

/* What a rank tells the others of a run when it waits for it. */
typedef struct xfi_run_word {
  uint64_t version;
  int64_t status;
  uint64_t plan; /* its number */
  uint64_t turn; /* see xfi_run_take_turn() */
  xfi_sum sum;   /* of a verified run (verify.c) */
} xfi_run_word;

typedef struct xfi_direct xfi_direct;
typedef struct xfi_local xfi_local;
typedef struct xfi_pipeline xfi_pipeline;
typedef struct xfi_plans xfi_plans;
typedef struct xfi_quant xfi_quant;
typedef struct xfi_twins xfi_twins;

struct xfer_plan {
  xfi_plan *moves;
  xfer_plan_options options; /* defaults filled in */
  xfi_plans *of;             /* those of its comm; NULL: a simulation */
  xfi_comm *comm;            /* theirs; not owned */
  xfi_device *device;        /* likewise */
  uint64_t number;           /* among them, the same on every rank */
  uint64_t serial;           /* from 1; no other plan of this process ever has the same */
  xfer_plan *next;           /* with slots in their block; see staging.h */
  bool has_slots;            /* it is in that list */

  xfi_binding **bindings; /* [n_tensors]; NULL where nothing is bound, and of a relay */
  uint32_t (*ends)[2];    /* of an exchange: see xfi_op_tensors; NULL: not an exchange */
  xfi_convert *converts;  /* [n_classes]; see xfi_run_elem() */
  xfi_quant *quant;       /* NULL: no tensor is quantised by blocks, on any rank */
  uint64_t window_bytes;  /* per peer and round, and of a broadcast; agreed */
  int32_t round_windows;  /* the most that a rank sends and receives in a round; agreed */
  bool is_kept;           /* by the comm for calls, so that nobody waits for its runs */
  bool is_transient;      /* nobody may keep what is bound mapped; agreed */
  bool shares_gpu;        /* with another process of the comm */

  xfi_state state;
  uint64_t epoch;       /* runs since the lanes were made */
  uint64_t version;     /* committed */
  uint64_t run_version; /* of the last run that began */
  uint64_t turn;        /* of the last run that began or was refused, among those of the comm */
  uint64_t n_begun;     /* runs; as long as fewer are complete, destinations are torn */
  uint64_t n_complete;
  xfer_status run_status;        /* the result of enqueuing it */
  char run_why[XFI_ERROR_BYTES]; /* and why it failed */
  xfi_deadline run_ends;         /* its deadline */
  bool is_half_written;          /* of a staged plan: destinations may be torn */
  bool is_open;                  /* xfi_run_conclude() took it as complete, and it may yet fail */
  bool any_sends;                /* messages go between some ranks; agreed */
  bool is_sent;                  /* all of its messages are in the comm's hands, */
  uint64_t n_data_ends;          /* which by then had ended messages so often */
  xfi_run_word *words;           /* [size of the comm] for wait, which allocates nothing */

  xfi_local *local;
  xfi_direct *direct;
  xfi_pipeline *pipeline;
  xfi_digest *verify; /* what a run counts; NULL: runs are not verified */
  xfi_twins *shadow;  /* NULL: lanes write into the destinations */
  bool offers;        /* peers read offers; agreed */
  xfi_twins *offer;   /* NULL: this rank has none */

  /* Plans inside the plan, with lanes, flags and slots of their own, which run on the same stream.
   * What ranks of a domain pass on to each other, so that it crosses to the domain once
   * (plan/relay.c has its moves), runs after the lanes: a rank that says READY in it has all that
   * came to it from elsewhere. NULL: nothing. */
  xfer_plan *relay;
  xfer_plan *main; /* of a relay: whose destinations it reads and writes; NULL: it is none */
  /* What ranks tell each other of blocks that several hold (quant_cuts.c), before the lanes; NULL:
   * nothing. */
  xfer_plan *asks;

  xfi_event *started;          /* on the caller's stream */
  xfi_event *finished;         /* the last run that began has ended here, */
  xfi_event *before;           /* and the one before that, which nobody may have waited for */
  unsigned char domain[64];    /* of its device, once the lanes were made */
  bool keeps_lanes;            /* what was bound since the commit differs in addresses alone */
  xfi_allocation *allocations; /* [n_allocations] what bound memory lay in at commit, ascending */
  size_t n_allocations;
  uint64_t mark; /* allocation_mark() when they were looked at, or made lanes of; 0: not known */
};

/* The deadline, by the plan's options, of a wait that starts now. */
xfi_deadline xfi_run_deadline(const xfer_plan *plan);

/* Count the ranks whose `said` is true, and agree on the status: if one has failed, all fail.
 * Collective. */
xfer_status xfi_run_hear(int *n_said, const xfer_plan *plan, xfer_status mine, bool said,
                         xfi_deadline deadline);

/* How much of max_staging_bytes packed rounds may use, and likewise broadcasts: half of it if a
 * plan has both, since a rank's slots hold the larger step of either each way. */
uint64_t xfi_run_staging_share(const xfer_plan *plan);

/* Messages start at multiples of this in a slot, and tables of scales in their block, for wide
 * loads; windows are multiples of it. */
#define XFI_SLOT_ALIGN 16

static inline size_t xfi_slot_aligned(uint64_t n_bytes)
{
  return (size_t)((n_bytes + XFI_SLOT_ALIGN - 1) / XFI_SLOT_ALIGN * XFI_SLOT_ALIGN);
}

/* Note the allocations that bound memory lies in, each once, for the steps of a commit that follow.
 * Also finds memory that copies cannot use. */
xfer_status xfi_run_note_allocations(xfer_plan *plan);

/* Is all that is bound of some halves (XFI_OF_*) in noted allocations? */
bool xfi_run_knows(const xfer_plan *plan, int halves);

/* Forget noted allocations that nothing bound lies in. False, and all stay: some of it lies in none
 * that is noted, or there is no memory. */
bool xfi_run_keep_bound(xfer_plan *plan);

/* The first allocation of the commit that no longer exists; NULL: all do. */
const xfi_allocation *xfi_run_find_changed(const xfer_plan *plan);

/* The allocation of the commit that holds the bytes; NULL: none. */
const xfi_allocation *xfi_run_allocation(const xfer_plan *plan, const void *pointer,
                                         size_t n_bytes);

/* Wait until the last run, for which perhaps nobody waited, has ended on this rank. */
xfer_status xfi_run_await_last(const xfer_plan *plan);

/* Wait for an event, whatever transient errors the device reports: if it keeps answering something
 * other than "not yet", it has stopped. */
xfer_status xfi_run_await_event(xfi_device *device, xfi_event *event, xfi_deadline deadline);

/* Record whatever the device says meanwhile: an event that is not recorded seems to have passed. */
xfer_status xfi_run_record(xfi_device *device, xfi_event *event, xfer_stream stream);

/* The plan whose bindings, allocations and shadows this one uses: a relay uses its main plan's. */
static inline const xfer_plan *xfi_run_owner(const xfer_plan *plan)
{
  return plan->main != NULL ? plan->main : plan;
}

/* Where the lanes write a tensor's destination; commit has checked that it is bound where it is
 * needed. */
static inline const xfi_bound *xfi_run_dst(const xfer_plan *plan, size_t tensor)
{
  const xfi_binding *b = xfi_run_owner(plan)->bindings[tensor];

  return b->shadow.is_set ? &b->shadow : &b->dst;
}

/* And where they read its source. */
static inline const xfi_bound *xfi_run_src(const xfer_plan *plan, size_t tensor)
{
  return plan->main != NULL ? xfi_run_dst(plan, tensor) : &plan->bindings[tensor]->src;
}

/* Where peers that can map it read the source. */
static inline const xfi_bound *xfi_run_offer(const xfer_plan *plan, size_t tensor)
{
  const xfi_binding *b = xfi_run_owner(plan)->bindings[tensor];

  return plan->offers && b->offer.is_set ? &b->offer : xfi_run_src(plan, tensor);
}

static inline bool xfi_run_is_staged(const xfer_plan *plan)
{
  return (plan->options.flags & XFER_PLAN_STAGED) != 0;
}

/* Are sources bound for one run only? Those of a relay never are: they are destinations. */
static inline bool xfi_run_is_fresh(const xfer_plan *plan)
{
  return plan->main == NULL && (plan->options.flags & XFER_PLAN_FRESH_SOURCES) != 0;
}

/* Where a rank stands among the peers of a list, which ascend; n_peers: it is none. */
static inline size_t xfi_run_find_peer(const xfi_move_list *list, int rank)
{
  size_t first = 0;
  size_t end = list->n_peers;

  XFI_BISECT(first, end, mid, list->peers[mid].rank < rank);
  return first < list->n_peers && list->peers[first].rank == rank ? first : list->n_peers;
}

/* The i-th of a list of peers by its distance from `rank`, or of receives to it. */
static inline size_t xfi_run_by_distance(const xfi_move_list *list, int rank, bool send, size_t i)
{
  size_t first = 0;
  size_t end = list->n_peers;

  XFI_BISECT(first, end, mid, list->peers[mid].rank < rank);
  return (send ? first + i : first + list->n_peers - 1 - i) % list->n_peers;
}

/* Of the tensors that are cheaper to broadcast, how many the broadcast lane carries here. None
 * where the comm has no broadcast, or all ranks have channels, which no broadcast beats: what
 * several get alike is packed once. */
static inline size_t xfi_run_n_broadcast(const xfer_plan *plan)
{
  const xfi_comm *comm = plan->comm;

  if (comm != NULL && (comm->ops->broadcast == NULL ||
                       (comm->shares_all && plan->device->ops->is_synchronous &&
                        plan->quant == NULL && plan->options.lane == XFER_LANE_AUTO)))
    return 0;
  return plan->moves->n_broadcast;
}

/* Does the broadcast lane carry a class? */
static inline bool xfi_run_broadcasts(const xfer_plan *plan, const xfi_class *cls)
{
  return cls->broadcast && xfi_run_n_broadcast(plan) > 0;
}

/* Is there something between this rank and a peer of its sends or receives that is not broadcast?
 */
static inline bool xfi_run_has_flow(const xfer_plan *plan, const xfi_peer *peer)
{
  return xfi_run_n_broadcast(plan) == 0 ? peer->n > 0 : peer->n_bytes > 0;
}

/* How many bytes that is. */
uint64_t xfi_run_flow_bytes(const xfer_plan *plan, bool send, const xfi_peer *peer);

/* Does this rank share memory with a peer, so that what neither the direct lane nor a broadcast
 * carries goes through a channel? The same on both ends. */
bool xfi_run_shares(const xfer_plan *plan, int peer);

/* ---- convert.c ---- */

/* Fill in what kernels do to the elements of each class. */
xfer_status xfi_run_fill_converts(xfer_plan *plan);

/* The ways of elements: from a source to a destination's memory, or one half of that, the first
 * into a slot and the second out of it. */
typedef enum xfi_leg { XFI_WHOLE_WAY, XFI_TO_WIRE, XFI_FROM_WIRE } xfi_leg;
xfi_elem xfi_run_elem(const xfer_plan *plan, const xfi_class *cls, xfi_leg leg);

/* Append the copies between a slot at `slot` and elements [first, end) of a box of the class, in
 * row-major order; the box starts at `start` of `bound`. */
xfer_status xfi_slot_copies(xfi_copies *copies, const xfer_plan *plan, const xfi_class *cls,
                            char *slot, bool to_slot, const xfi_bound *bound, const int64_t *start,
                            const int64_t *length, int64_t first, int64_t end);

#endif
