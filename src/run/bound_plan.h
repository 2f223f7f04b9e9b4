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
#include "moves.h"
#include "state.h"
#include "vec.h"

/* The memory of a tensor's parts on this rank. */
typedef struct xfi_binding {
  xfi_bound src;
  xfi_bound dst;
  xfi_bound staged;   /* where the lanes write in place of dst (staged.c); not set: in dst */
  xfi_bound snapshot; /* what peers read in place of src (snapshot.c); not set: src */
  xfi_error *bad;     /* why the last bind failed; NULL: it succeeded */
} xfi_binding;

/* The two sides of what a rank binds, as bits of a set: the memory that it sends from, and the
 * memory that it receives into. */
typedef enum xfi_side { XFI_SIDE_SRC = 1, XFI_SIDE_DST = 2 } xfi_side;

/* What a rank reports to the others about a run when it waits for it. */
typedef struct xfi_run_result {
  uint64_t version;
  int32_t status;
  int16_t has_begun;    /* 1: the run was not refused here */
  int16_t has_messages; /* 1: the plan sends or receives some here */
  uint64_t plan;        /* xfer_plan.number of the run's plan */
  uint64_t sequence;    /* the run's number, see xfi_run_take_sequence() */
  xfi_sum sum;          /* this rank's total in a verified run (verify.c) */
} xfi_run_result;

typedef struct xfi_direct xfi_direct;
typedef struct xfi_local xfi_local;
typedef struct xfi_pipeline xfi_pipeline;
typedef struct xfi_plans xfi_plans;
typedef struct xfi_quant xfi_quant;
typedef struct xfi_mirror xfi_mirror;

/* The caller's memory: bind.c binds it, allocations.c finds what it lies in. */
typedef struct xfi_plan_memory {
  xfi_binding **bindings;      /* [n_tensors] NULL: nothing is bound, or the plan is a relay */
  uint32_t (*operations)[2];   /* [n_tensors] see xfi_op_tensors; NULL: the plan is no exchange */
  xfi_allocation *allocations; /* [n_allocations] where bound memory lay at commit, by address */
  size_t n_allocations;
  uint64_t mark; /* allocation_mark() at the last check of the allocations; 0: unknown */
} xfi_plan_memory;

/* What commit.c makes: the lanes, and memory of the plan's own. */
typedef struct xfi_plan_lanes {
  xfi_local *local;   /* NULL: nothing is copied within this rank */
  xfi_direct *direct; /* NULL: not committed */
  xfi_pipeline *pipeline;
  xfi_digest *verify;       /* the sums that a run computes; NULL: runs are not verified */
  xfi_mirror *staged;       /* NULL: the lanes write into the destinations */
  xfi_mirror *snapshot;     /* this rank's copies of its sources; NULL: it has none */
  bool uses_snapshots;      /* peers read copies of the sources; agreed */
  bool any_sends;           /* some ranks send messages; agreed */
  bool shares_gpu;          /* another process of the comm uses this rank's GPU */
  bool may_stay;            /* binds since the commit changed only addresses */
  uint64_t number;          /* how many lanes the comm's plans had had with these; agreed */
  unsigned char domain[64]; /* the device's domain() when the lanes were made */
} xfi_plan_lanes;

/* The run that began last, and what came before it: run.c, sequence.c. */
typedef struct xfi_plan_run {
  uint64_t epoch;   /* how many runs began since the lanes were made */
  uint64_t version; /* the version given to the run */
  xfi_run_id id;    /* the next run's, once it was tried */
  uint64_t n_begun; /* runs begun in all; while fewer are complete, destinations are torn */
  uint64_t n_complete;
  xfi_error error;       /* of enqueuing the run, or why it was refused */
  bool refuses_commit;   /* error.text is for ranks that come to a commit once this plan is gone */
  xfi_deadline deadline; /* when all waits for the run end */
  bool is_half_written;  /* a staged plan's destinations may be torn */
  bool is_unsettled;     /* this rank refused the run and does not know whether others sent in it */
  bool in_failed;        /* the plan is in the list plans->failed */
  xfer_plan *next_failed;  /* the next plan of that list; NULL: none */
  bool is_announced;       /* peers have been told before the wait that the run failed here */
  bool is_open;            /* xfi_run_assume_complete() counted the run, which may yet fail */
  bool is_sent;            /* all messages of the run have been handed to the comm */
  uint64_t n_data_aborts;  /* the comm's n_data_aborts when the run began */
  xfi_run_result *results; /* [size of the comm] memory for a wait, which allocates nothing */
  xfi_event *started;      /* the point on the caller's stream where the run began */
  xfi_event *finished;     /* the point where the run ended on this rank */
  xfi_event *before;       /* where the run before it ended, for which nobody may have waited */
} xfi_plan_run;

/* What is "agreed" is the same on every rank. */
struct xfer_plan {
  xfi_moves *moves;
  xfer_plan_options options; /* the options, with defaults filled in */
  xfi_plans *plans;          /* all plans of the comm; NULL: a simulation */
  xfi_comm *comm;            /* not owned */
  xfi_device *device;        /* not owned */
  uint64_t number;           /* the plan's number among those of the comm; agreed */
  uint64_t serial;           /* counts from 1; no other plan of this process ever has the same */
  xfer_plan *next;           /* the next plan that uses the comm's block of slots (staging.h) */
  bool has_slots;            /* it is in the list of plans that use that block */
  bool is_cached;    /* the comm keeps it for calls like xfer_redistribute(), which do not wait */
  bool is_transient; /* bound memory may be freed after a run: no peer keeps it mapped; agreed */
  xfi_convert *converts; /* [n_classes] conversions of elements, see xfi_plan_elem() */
  xfi_quant *quant;      /* NULL: no tensor is quantised by blocks, on any rank */
  uint64_t window_bytes; /* most bytes of a peer in a packed round, and of a broadcast; agreed */
  int32_t round_windows; /* most windows that a rank sends and receives in a round; agreed */
  xfi_plan_memory memory;
  xfi_plan_lanes lanes;
  xfi_state state;
  xfi_plan_run run;
  uint64_t version; /* the version that the last wait committed */

  /* Plans inside the plan, each with lanes, flags and slots of its own. A run of the plan takes
   * them one after the other on the same stream: they are its *phases*, see xfi_run_phase().
   * `amax_plan` comes before the plan's own lanes: ranks exchange the amaxes of blocks that several
   * of them hold (quant_cuts.c). `relay` comes after them: ranks of a domain pass on to each other
   * what crossed to the domain once (plan/relay.c has its moves). READY in it therefore means that
   * all data from elsewhere has arrived on the rank. NULL: there is nothing to do. */
  xfer_plan *relay;
  xfer_plan *amax_plan;
  xfer_plan *main; /* in a relay: the plan whose destinations it reads and writes; else NULL */
};

/* For a walk over the phases of the plan's runs, in the order in which a run takes them:
 *
 *   for (const xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p))
 *
 * gives the amax_plan and its relay, the plan itself, and its relay, as far as there are any. */
xfer_plan *xfi_run_phase(const xfer_plan *plan, const xfer_plan *before);

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

/* Count the ranks whose `flag` is true, and agree on the status: if one has failed, all fail.
 * Collective. */
xfer_status xfi_plan_count_ranks(int *n_ranks, const xfer_plan *plan, xfer_status mine, bool flag,
                                 xfi_deadline deadline);

/* Messages start at multiples of this in a slot, and tables of scales in their block, for wide
 * loads; windows are multiples of it. */
#define XFI_SLOT_ALIGN 16

static inline size_t xfi_slot_aligned(uint64_t n_bytes)
{
  return (size_t)((n_bytes + XFI_SLOT_ALIGN - 1) / XFI_SLOT_ALIGN * XFI_SLOT_ALIGN);
}

/* Wait for an event in spite of transient errors of the device. An error that stays means that the
 * device has stopped. */
xfer_status xfi_run_await_event(xfi_device *device, xfi_event *event, xfi_deadline deadline);

/* Record an event, with retries after errors: one that was never recorded would seem to have
 * passed.
 */
xfer_status xfi_run_record(xfi_device *device, xfi_event *event, xfer_stream stream);

/* The plan whose bindings, allocations and mirrors this one uses: a relay uses its main plan's. */
static inline const xfer_plan *xfi_plan_owner(const xfer_plan *plan)
{
  return plan->main != NULL ? plan->main : plan;
}

/* Where the lanes write a tensor's destination. Commit has checked that it is bound if it is
 * needed. */
static inline const xfi_bound *xfi_plan_dst(const xfer_plan *plan, size_t tensor)
{
  const xfi_binding *b = xfi_plan_owner(plan)->memory.bindings[tensor];

  return b->staged.is_set ? &b->staged : &b->dst;
}

/* Where the lanes read a tensor's source. */
static inline const xfi_bound *xfi_plan_src(const xfer_plan *plan, size_t tensor)
{
  return plan->main != NULL ? xfi_plan_dst(plan, tensor) : &plan->memory.bindings[tensor]->src;
}

/* Where the lanes read what a tensor sends, or write what it receives. */
static inline const xfi_bound *xfi_plan_bound(const xfer_plan *plan, bool send, size_t tensor)
{
  return send ? xfi_plan_src(plan, tensor) : xfi_plan_dst(plan, tensor);
}

/* Where peers that map this rank's memory read a tensor's source. */
static inline const xfi_bound *xfi_plan_exported_src(const xfer_plan *plan, size_t tensor)
{
  const xfi_binding *b = xfi_plan_owner(plan)->memory.bindings[tensor];

  return plan->lanes.uses_snapshots && b->snapshot.is_set ? &b->snapshot
                                                          : xfi_plan_src(plan, tensor);
}

static inline bool xfi_plan_is_staged(const xfer_plan *plan)
{
  return (plan->options.flags & XFER_PLAN_STAGED) != 0;
}

/* Is every source bound for one run alone (XFER_PLAN_FRESH_SOURCES)? False for a relay, whose
 * sources are destinations of its main plan. */
static inline bool xfi_plan_is_fresh(const xfer_plan *plan)
{
  return plan->main == NULL && (plan->options.flags & XFER_PLAN_FRESH_SOURCES) != 0;
}

#endif
