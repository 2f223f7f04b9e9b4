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

/* The memory of a tensor's parts on this rank. */
typedef struct xfi_binding {
  xfi_bound src;
  xfi_bound dst;
  xfi_bound staged;   /* where the lanes write in place of dst (staged.c); not set: in dst */
  xfi_bound snapshot; /* what peers read in place of src (snapshot.c); not set: src */
  xfi_misbound *bad;  /* why the last bind failed; NULL: it did not */
} xfi_binding;

/* The two sides of what a rank binds, as bits of a set: the memory that it sends from, and the
 * memory that it receives into. */
typedef enum xfi_side { XFI_SIDE_SRC = 1, XFI_SIDE_DST = 2 } xfi_side;

/* What a rank reports to the others about a run when it waits for it. */
typedef struct xfi_run_result {
  uint64_t version;
  int32_t status;
  int32_t has_begun; /* 1: the run was not refused here */
  uint64_t plan;     /* xfer_plan.number */
  uint64_t sequence; /* see xfi_run_take_sequence() */
  xfi_sum sum;       /* this rank's total in a verified run (verify.c) */
} xfi_run_result;

typedef struct xfi_direct xfi_direct;
typedef struct xfi_local xfi_local;
typedef struct xfi_pipeline xfi_pipeline;
typedef struct xfi_plans xfi_plans;
typedef struct xfi_quant xfi_quant;
typedef struct xfi_mirror xfi_mirror;

/* The caller's memory: bind.c binds it, allocations.c finds what it lies in. */
typedef struct xfi_plan_memory {
  xfi_binding **bindings;      /* [n_tensors] NULL where nothing is bound, and in a relay */
  uint32_t (*ends)[2];         /* [n_tensors] see xfi_op_tensors; NULL: the plan is no exchange */
  xfi_allocation *allocations; /* [n_allocations] that bound memory lay in at commit, by address */
  size_t n_allocations;
  uint64_t mark; /* allocation_mark() when they were last known to be unchanged; 0: unknown */
} xfi_plan_memory;

/* What commit.c makes: the lanes, and memory of the plan's own. */
typedef struct xfi_plan_lanes {
  xfi_local *local;   /* NULL: nothing is copied within this rank */
  xfi_direct *direct; /* NULL: not committed */
  xfi_pipeline *pipeline;
  xfi_digest *verify;       /* the sums that a run computes; NULL: runs are not verified */
  xfi_mirror *staged;       /* NULL: the lanes write into the destinations */
  xfi_mirror *snapshot;     /* this rank's copies; NULL: it has none */
  bool uses_snapshots;      /* peers read copies of the sources; agreed */
  bool any_sends;           /* some ranks send messages; agreed */
  bool shares_gpu;          /* another process of the comm uses this rank's GPU */
  bool may_stay;            /* binds since the commit changed only addresses */
  unsigned char domain[64]; /* the device's domain() when the lanes were made */
} xfi_plan_lanes;

/* The run that began last, and what came before it: run.c, sequence.c. */
typedef struct xfi_plan_run {
  uint64_t epoch;    /* how many runs began since the lanes were made */
  uint64_t version;  /* given to the last run */
  uint64_t sequence; /* see xfi_run_take_sequence() */
  uint64_t n_begun;  /* runs in all; while fewer are complete, destinations are torn */
  uint64_t n_complete;
  xfer_status status;        /* the status of enqueuing it */
  char why[XFI_ERROR_BYTES]; /* its text, if it failed */
  xfi_deadline ends;         /* its deadline */
  bool is_half_written;      /* a staged plan's destinations may be torn */
  bool is_unsettled;         /* this rank refused it, and has not heard whether others began it */
  bool is_open;         /* xfi_run_conclude() took the run for complete, though it may yet fail */
  bool is_sent;         /* all messages of the run have been handed to the comm */
  uint64_t n_data_ends; /* the comm's n_data_ends() when the run began */
  xfi_run_result *results; /* [size of the comm] memory for wait, which allocates nothing */
  xfi_event *started;      /* on the caller's stream, where the run began */
  xfi_event *finished;     /* where it ended on this rank */
  xfi_event *before;       /* where the run before it ended, which may not have been waited for */
} xfi_plan_run;

/* What is "agreed" is the same on every rank. */
struct xfer_plan {
  xfi_plan *moves;
  xfer_plan_options options; /* defaults filled in */
  xfi_plans *of;             /* all plans of the comm; NULL: a simulation */
  xfi_comm *comm;            /* not owned */
  xfi_device *device;        /* not owned */
  uint64_t number;           /* of this plan among those of the comm; agreed */
  uint64_t serial;           /* from 1; no other plan of this process ever has the same */
  xfer_plan *next;   /* in the list of plans that use the comm's block of slots (staging.h) */
  bool has_slots;    /* it is in that list */
  bool is_kept;      /* by the comm, for calls like xfer_redistribute(): runs are not waited for */
  bool is_transient; /* bound memory may be freed after a run: no peer keeps it mapped; agreed */
  xfi_convert *converts; /* [n_classes] see xfi_run_elem() */
  xfi_quant *quant;      /* NULL: no tensor is quantised by blocks, on any rank */
  uint64_t window_bytes; /* most bytes of a peer in a packed round, and of a broadcast; agreed */
  int32_t round_windows; /* most windows that a rank sends and receives in a round; agreed */
  xfi_plan_memory memory;
  xfi_plan_lanes lanes;
  xfi_state state;
  xfi_plan_run run;
  uint64_t version; /* committed by the last wait */

  /* Plans inside the plan, which have lanes, flags and slots of their own and run on the same
   * stream. `relay` runs after the plan's lanes: ranks of a domain pass on to each other what
   * crossed to the domain once (plan/relay.c has its moves). READY in it therefore means that all
   * data from elsewhere has arrived on the rank. `amax_plan` runs before the lanes: ranks exchange
   * the amaxes of blocks that several of them hold (quant_cuts.c). NULL: there is nothing to do. */
  xfer_plan *relay;
  xfer_plan *amax_plan;
  xfer_plan *main; /* of a relay: the plan whose destinations it reads and writes; else NULL */
};

static inline const char *xfi_side_name(xfi_side side)
{
  return side == XFI_SIDE_SRC ? "source" : "destination";
}

static inline const xfer_layout *xfi_side_layout(const xfi_class *cls, xfi_side side)
{
  return side == XFI_SIDE_SRC ? cls->src : cls->dst;
}

static inline const xfi_bound *xfi_side_bound(const xfi_binding *binding, xfi_side side)
{
  return side == XFI_SIDE_SRC ? &binding->src : &binding->dst;
}

/* A binding's mirror of one side. */
static inline xfi_bound *xfi_side_mirror(xfi_binding *binding, xfi_side side)
{
  return side == XFI_SIDE_SRC ? &binding->snapshot : &binding->staged;
}

/* The deadline, by the plan's options, of a wait that starts now. */
xfi_deadline xfi_run_deadline(const xfer_plan *plan);

/* Gather every rank's result into plan->run.results. `result` has this rank's status, whose text
 * stays the last error. XFER_ERR_MISMATCH, on every rank, if ranks mean different plans; `does` is
 * the verb of that text. *failed: some rank has failed. Collective. */
xfer_status xfi_run_gather_results(bool *failed, const xfer_plan *plan,
                                   const xfi_run_result *result, const char *does,
                                   xfi_deadline deadline);
/* Count the ranks whose `flag` is true, and agree on the status: if one has failed, all fail.
 * Collective. */
xfer_status xfi_run_count_ranks(int *n_ranks, const xfer_plan *plan, xfer_status mine, bool flag,
                                xfi_deadline deadline);

/* How much of max_staging_bytes each of packed rounds and broadcasts may use: half of it if a plan
 * has both, since a rank's slots hold the larger step of either, each way. */
uint64_t xfi_run_staging_share(const xfer_plan *plan);

/* Messages start at multiples of this in a slot, and tables of scales in their block, for wide
 * loads; windows are multiples of it. */
#define XFI_SLOT_ALIGN 16

static inline size_t xfi_slot_aligned(uint64_t n_bytes)
{
  return (size_t)((n_bytes + XFI_SLOT_ALIGN - 1) / XFI_SLOT_ALIGN * XFI_SLOT_ALIGN);
}

/* Fill plan->memory.allocations: what bound memory lies in, each allocation once. Fails if copies
 * cannot use some of that memory. */
xfer_status xfi_run_list_allocations(xfer_plan *plan);

/* Does all bound memory of these sides (XFI_SIDE_*) lie in plan->memory.allocations? */
bool xfi_run_covers(const xfer_plan *plan, int sides);

/* Remove the allocations in which no bound memory lies any more from plan->memory.allocations.
 * False, and the list stays as it is: some bound memory lies in none of them, or the search is out
 * of memory.
 */
bool xfi_run_prune_allocations(xfer_plan *plan);

/* The first of plan->memory.allocations that no longer exists; NULL: all do. */
const xfi_allocation *xfi_run_find_changed(const xfer_plan *plan);

/* Which of plan->memory.allocations holds the bytes; NULL: none. */
const xfi_allocation *xfi_run_allocation(const xfer_plan *plan, const void *pointer,
                                         size_t n_bytes);

/* Wait until the last run, which may not have been waited for, has ended on this rank. */
xfer_status xfi_run_await_last(const xfer_plan *plan);

/* Wait for an event in spite of transient errors of the device. An error that stays means that the
 * device has stopped. */
xfer_status xfi_run_await_event(xfi_device *device, xfi_event *event, xfi_deadline deadline);

/* Record an event, with retries after errors: one that was never recorded would seem to have
 * passed.
 */
xfer_status xfi_run_record(xfi_device *device, xfi_event *event, xfer_stream stream);

/* The plan whose bindings, allocations and mirrors this one uses: a relay uses its main plan's. */
static inline const xfer_plan *xfi_run_owner(const xfer_plan *plan)
{
  return plan->main != NULL ? plan->main : plan;
}

/* Where the lanes write a tensor's destination. Commit has checked that it is bound if it is
 * needed. */
static inline const xfi_bound *xfi_run_dst(const xfer_plan *plan, size_t tensor)
{
  const xfi_binding *b = xfi_run_owner(plan)->memory.bindings[tensor];

  return b->staged.is_set ? &b->staged : &b->dst;
}

/* Where the lanes read its source. */
static inline const xfi_bound *xfi_run_src(const xfer_plan *plan, size_t tensor)
{
  return plan->main != NULL ? xfi_run_dst(plan, tensor) : &plan->memory.bindings[tensor]->src;
}

/* Where the lanes read what a tensor sends, or write what it receives. */
static inline const xfi_bound *xfi_run_bound(const xfer_plan *plan, bool send, size_t tensor)
{
  return send ? xfi_run_src(plan, tensor) : xfi_run_dst(plan, tensor);
}

/* Where peers that map this rank's memory read the source. */
static inline const xfi_bound *xfi_run_exported_src(const xfer_plan *plan, size_t tensor)
{
  const xfi_binding *b = xfi_run_owner(plan)->memory.bindings[tensor];

  return plan->lanes.uses_snapshots && b->snapshot.is_set ? &b->snapshot
                                                          : xfi_run_src(plan, tensor);
}

/* The moves from this rank or to it, and the boxes of a class's moves. */
static inline const xfi_move_list *xfi_run_moves(const xfer_plan *plan, bool send)
{
  return send ? &plan->moves->sends : &plan->moves->recvs;
}

static inline const xfi_flows *xfi_class_flows(const xfi_class *cls, bool send)
{
  return send ? &cls->sends : &cls->recvs;
}

static inline bool xfi_run_is_staged(const xfer_plan *plan)
{
  return (plan->options.flags & XFER_PLAN_STAGED) != 0;
}

/* Is every source bound for one run alone (XFER_PLAN_FRESH_SOURCES)? Not those of a relay, which
 * are destinations of the plan. */
static inline bool xfi_run_is_fresh(const xfer_plan *plan)
{
  return plan->main == NULL && (plan->options.flags & XFER_PLAN_FRESH_SOURCES) != 0;
}

/* The index of a rank in the list's peers, which ascend; n_peers: it is not one of them. */
static inline size_t xfi_run_find_peer(const xfi_move_list *list, int rank)
{
  size_t first = 0;
  size_t end = list->n_peers;

  XFI_BISECT(first, end, mid, list->peers[mid].rank < rank);
  return first < list->n_peers && list->peers[first].rank == rank ? first : list->n_peers;
}

/* The index of the i-th peer by distance: of sends from `rank` to the peer, of receives from the
 * peer to `rank`, modulo the number of ranks. */
static inline size_t xfi_run_by_distance(const xfi_move_list *list, int rank, bool send, size_t i)
{
  size_t first = 0;
  size_t end = list->n_peers;

  XFI_BISECT(first, end, mid, list->peers[mid].rank < rank);
  return (send ? first + i : first + list->n_peers - 1 - i) % list->n_peers;
}

/* How many tensors the broadcast lane carries: those that the plan found cheaper to broadcast. None
 * if the comm has no broadcast, or if all ranks share memory: their channels pack data for several
 * ranks once, which is at least as fast. */
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

/* Does this rank send to or receive from the peer anything that is not broadcast? */
static inline bool xfi_run_has_flow(const xfer_plan *plan, const xfi_peer *peer)
{
  return xfi_run_n_broadcast(plan) == 0 ? peer->n > 0 : peer->n_bytes > 0;
}

/* How many bytes it is. */
uint64_t xfi_run_flow_bytes(const xfer_plan *plan, bool send, const xfi_peer *peer);

/* Does what this rank and the peer exchange go through a channel in shared memory, unless the
 * direct lane or a broadcast carries it? The same on both ends. */
bool xfi_run_shares(const xfer_plan *plan, int peer);

/* ---- convert.c ---- */

/* Fill plan->converts: what kernels do to the elements of each class. */
xfer_status xfi_run_fill_converts(xfer_plan *plan);

/* How far a copy takes elements: from the source's memory to the destination's, only into a slot,
 * where they have the type in which they travel, or only out of one. */
typedef enum xfi_leg { XFI_WHOLE_WAY, XFI_TO_WIRE, XFI_FROM_WIRE } xfi_leg;
xfi_elem xfi_run_elem(const xfer_plan *plan, const xfi_class *cls, xfi_leg leg);

/* Elements [first, end) of a box of a tensor, in row-major order. */
typedef struct xfi_elem_range {
  uint32_t tensor;
  const xfi_box *box;
  int64_t first;
  int64_t end;
} xfi_elem_range;

/* Append the copies of a range from the source into a slot or, without `send`, from the slot to the
 * destination. */
xfer_status xfi_slot_copies(xfi_copies *copies, const xfer_plan *plan, const xfi_elem_range *range,
                            char *slot, bool send);

#endif
