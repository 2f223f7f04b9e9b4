/*
 * Carrying a plan out. A public plan is moves (plan/), bindings (bind.c), and the lanes that
 * commit.c makes of both:
 *
 * - quant.c, quant_cuts.c: scales of what is quantised by blocks, before all else;
 * - local.c: copies within this rank, and zeroing;
 * - direct.c, direct_run.c, link*.c: copies to and from mapped memory of peers, with flags for
 * ready and done;
 * - pipeline.c: streams to and from ranks that share memory (channels.c); steps of gather, message,
 *   scatter through staging slots, made of packed rounds (packed.c) and of broadcasts
 *   (broadcast_list.c, broadcast.c);
 * - relay.c: what ranks of a domain pass on to each other, after all these;
 * - count.c, verify.c: digests of what sources and destinations hold;
 * - shadow.c: what the lanes of a staged plan write in place of destinations.
 *
 * run.c starts them and waits; what may be called when is in state.c. All of it is written over the
 * tables of device.h and comm.h.
 */
#ifndef XFI_RUN_H
#define XFI_RUN_H

#include "bound.h"
#include "comm.h"
#include "device.h"
#include "operations.h"
#include "plan.h"
#include "staging.h"
#include "state.h"
#include "traffic.h"

/* Where a tensor's parts lie on this rank. */
typedef struct xfi_binding {
  xfi_bound src;
  xfi_bound dst;
  xfi_bound shadow; /* what lanes write in place of dst; not set: dst */
} xfi_binding;

/* What a rank says of a run when it waits for it. */
typedef struct xfi_run_word {
  uint64_t version;
  int64_t status;
  uint64_t plan; /* its number */
  xfi_sum sum;   /* of a verified run (verify.c) */
} xfi_run_word;

typedef struct xfi_direct xfi_direct;
typedef struct xfi_quant xfi_quant;
typedef struct xfi_shadow xfi_shadow;
typedef struct xfi_verify xfi_verify;

struct xfer_plan {
  xfi_plan *moves;
  xfer_plan_options options; /* defaults filled in */
  xfi_plans *of;             /* those of its comm; NULL: a simulation */
  xfi_comm *comm;            /* theirs; not owned */
  xfi_device *device;        /* likewise */
  uint64_t number;           /* among them, the same on every rank */
  xfer_plan *next;           /* with slots in their block; see staging.h */
  bool has_slots;            /* it is in that list */

  xfi_binding **bindings; /* [n_tensors]; NULL where nothing is bound */
  uint32_t (*ends)[2];    /* of an exchange: see xfi_op_tensors; NULL: it is none */
  xfi_convert *converts;  /* [n_classes]; see xfi_run_elem() */
  xfi_quant *quant;       /* NULL: no tensor is quantised by blocks, on any rank */
  uint64_t window_bytes;  /* per peer and round, and of a broadcast; agreed */

  xfi_state state;
  uint64_t epoch;       /* runs since the lanes were made */
  uint64_t version;     /* committed */
  uint64_t run_version; /* of the last run that began */
  uint64_t n_begun;     /* runs; as long as fewer are complete, destinations are torn */
  uint64_t n_complete;
  xfer_status run_status; /* what enqueuing it came to */
  xfi_deadline run_ends;  /* its deadline */
  bool is_half_written;   /* of a staged plan: destinations may be torn */
  bool is_sent;           /* all of its messages are in the comm's hands */
  xfi_run_word *words;    /* [size of the comm] for wait, which allocates nothing */

  xfi_batch *local;
  xfi_direct *direct;
  xfi_pipeline *pipeline;
  xfi_verify *verify; /* NULL: runs are not verified */
  xfi_shadow *shadow; /* NULL: lanes write into the destinations */
  xfer_plan *relay;   /* see relay.c; NULL: ranks pass nothing on */
  xfer_plan *main;    /* of a relay: whose destinations it reads and writes; NULL: it is none */
  xfi_event *started; /* on the caller's stream */
  xfi_event *finished;
  bool keeps_lanes; /* they serve what was bound since the commit too, at other addresses */
  xfi_allocation *allocations; /* [n_allocations] what bound memory lay in at commit, ascending */
  size_t n_allocations;
};

/* tensors and options may be wrong: `checked` says what the caller's checks came to. Collective. */
xfer_status xfi_run_create(xfer_plan **plan, xfi_plans *of, xfer_status checked,
                           const xfer_tensor *tensors, size_t n_tensors,
                           const xfer_plan_options *options);
xfer_status xfi_run_simulate(xfer_plan **plan, int n_ranks, int rank, const xfer_tensor *tensors,
                             size_t n_tensors, const xfer_plan_options *options);
/* Of an exchange; both lists may be wrong likewise. */
xfer_status xfi_run_create_exchange(xfer_plan **plan, xfi_plans *of, xfer_status checked,
                                    xfi_operations *ops, const xfer_plan_options *options);
/* What every rank gets from whom. */
xfer_status xfi_run_traffic(int n_ranks, const xfer_tensor *tensors, size_t n_tensors,
                            const xfer_plan_options *given, xfi_traffic_fn fn, void *context);
void xfi_run_destroy(xfer_plan *plan);
xfer_status xfi_run_bind(xfer_plan *plan, size_t tensor, const xfer_view *src_view,
                         const xfer_view *dst_view);
/* The views of all operations of an exchange. */
xfer_status xfi_run_bind_exchange(xfer_plan *plan, const xfer_view *sends, const xfer_view *recvs);
xfer_status xfi_run_commit(xfer_plan *plan);
/* Likewise, where this rank may have failed already: all ranks fail. */
xfer_status xfi_run_commit_with(xfer_plan *plan, xfer_status mine);

/* The same in two, around an all-gather of the caller's. What ranks tell each other: */
typedef struct xfi_commit_word {
  int32_t status;
  uint16_t work;            /* what has to be done with the lanes */
  uint16_t tells;           /* peers have to know of addresses */
  uint64_t plan;            /* its number */
  uint64_t place;           /* see xfi_device */
  unsigned char domain[64]; /* ranks with equal ones may reach each other's memory */
} xfi_commit_word;
/* Local. If the others turn out to mean another plan, this one wants a commit before its next run.
 */
xfi_commit_word xfi_commit_begin(xfer_plan *plan, xfer_status mine);
/* words[size of the comm], this rank's from xfi_commit_begin(). Collective. */
xfer_status xfi_commit_end(xfer_plan *plan, const xfi_commit_word *words, xfi_deadline deadline);

xfer_status xfi_run_start(xfer_plan *plan, uint64_t version, xfer_stream stream);
xfer_status xfi_run_wait(xfer_plan *plan, uint64_t timeout_ms);
/* Would wait not wait for this rank's part any more, whatever came of it? */
xfer_status xfi_run_test(const xfer_plan *plan, bool *over);
/* For runs that nobody waits for: order `stream` after the last one, if there is one. Says so if
 * that one is known to have failed. */
xfer_status xfi_run_follow(xfer_plan *plan, xfer_stream stream);
/* Of a plan that is given back while it has lanes: others may be in a run, or begin one. */
void xfi_run_abandon(xfer_plan *plan);
/* Can a run begin on the stream? All that run itself checks. */
xfer_status xfi_run_check(const xfer_plan *plan, uint64_t version, xfer_stream stream);
xfer_status xfi_run_release(xfer_plan *plan);
/* Each tensor's digest on one side. digests[n_tensors] of the plan; `checked` is what the caller's
 * checks came to. Collective. */
xfer_status xfi_run_digest(const xfer_plan *plan, xfer_digest *digests, bool source,
                           xfer_status checked, xfer_stream stream);
/* Are replicas of sources equal? Collective. */
xfer_status xfi_run_check_replicas(const xfer_plan *plan, xfer_stream stream);
/* Without staging_bytes of a plan that is not committed, which cost more: */
void xfi_run_report(const xfer_plan *plan, xfer_plan_report_data *report);
xfer_status xfi_run_full_report(const xfer_plan *plan, xfer_plan_report_data *report);

/* The plan's deadline for a wait that starts now. */
xfi_deadline xfi_run_deadline(const xfer_plan *plan);

/* What packed rounds, and likewise broadcasts, may use of max_staging_bytes: half of it where a
 * plan has both, since a rank's slots hold the larger step of either each way. */
uint64_t xfi_run_staging_share(const xfer_plan *plan);

/* What bound memory lay in at commit, and is not there any more; NULL: all is. */
const xfi_allocation *xfi_run_find_changed(const xfer_plan *plan);

/* Which of the allocations of the commit holds the bytes; NULL: none that it knows. */
const xfi_allocation *xfi_run_allocation(const xfer_plan *plan, const void *pointer,
                                         size_t n_bytes);

/* How long a rank waits, once a run has failed, for what is on its way to end. What a wait may take
 * beyond the deadline is twice that: waits on streams are let go at the deadline and end, and then
 * what is left of the run is left. */
#define XFI_LEAVE_MS 1000

/* Of a device that may say something else than "not yet" for a while. */
enum { XFI_RETRIES = 100, XFI_RETRY_NS = 1000 * 1000 };
/* Record whatever the device says meanwhile: an event that is not recorded seems to have passed. */
xfer_status xfi_run_record(xfi_device *device, xfi_event *event, xfer_stream stream);

/* Where the lanes write a tensor's destination; commit has checked that it is bound where it is
 * needed. */
static inline const xfi_bound *xfi_run_dst(const xfer_plan *plan, size_t tensor)
{
  const xfi_binding *b = (plan->main != NULL ? plan->main : plan)->bindings[tensor];

  return b->shadow.is_set ? &b->shadow : &b->dst;
}

/* And where they read its source. */
static inline const xfi_bound *xfi_run_src(const xfer_plan *plan, size_t tensor)
{
  return plan->main != NULL ? xfi_run_dst(plan, tensor) : &plan->bindings[tensor]->src;
}

static inline bool xfi_run_is_staged(const xfer_plan *plan)
{
  return (plan->options.flags & XFER_PLAN_STAGED) != 0;
}

/* ---- convert.c ---- */

/* What kernels do to the elements of each class. */
xfer_status xfi_run_fill_converts(xfer_plan *plan);

/* The ways of elements: from a source to a destination's memory, or one half of that, the first
 * into a slot and the second out of it. */
typedef enum xfi_leg { XFI_WHOLE_WAY, XFI_TO_WIRE, XFI_FROM_WIRE } xfi_leg;
xfi_elem xfi_run_elem(const xfer_plan *plan, const xfi_class *cls, xfi_leg leg);

/* ---- quant.c ---- */

/* tensors: the plan's, with the conversions as given. NULL where none has blocks. */
xfer_status xfi_quant_create(xfi_quant **quant, const xfer_plan *plan, const xfer_tensor *tensors);
void xfi_quant_destroy(xfi_quant *quant);
/* The part that ranks do together. Collective. */
xfer_status xfi_quant_connect(xfer_plan *plan);
/* What ranks tell each other before the lanes begin, to be committed and released with them; NULL:
 * nothing. */
xfer_plan *xfi_quant_asks(const xfer_plan *plan);
/* Device memory that it has as long as the plan. */
size_t xfi_quant_bytes(const xfi_quant *quant);
/* The source of a tensor of scales; false: it is none. */
bool xfi_quant_source(const xfi_quant *quant, size_t tensor, xfer_view *view);
/* Of the source of a tensor that is quantised; else NULL. */
const xfi_blocks *xfi_quant_blocks(const xfi_quant *quant, size_t tensor);
/* Make ready, again after a bind, and give back what runs before the lanes. */
xfer_status xfi_quant_prepare(xfer_plan *plan);
void xfi_quant_drop(xfi_quant *quant);
/* Large sources are looked at in parts, so that the first of them travel meanwhile. */
enum { XFI_QUANT_PARTS = 4 };
/* Of a tensor, and of its scales. */
int xfi_quant_part(const xfi_quant *quant, size_t tensor);
/* Enqueue it: up to what the first part needs; the rest; and on another stream the wait for a part,
 * if there are so many; else for the last. */
xfer_status xfi_quant_start(const xfer_plan *plan, xfer_stream stream);
xfer_status xfi_quant_start_rest(const xfer_plan *plan, xfer_stream stream);
xfer_status xfi_quant_await(const xfer_plan *plan, int part, xfer_stream stream);

/* ---- relay.c ---- */

/* The relay of a plan whose moves have one, on any rank. */
xfer_status xfi_run_relay_create(xfer_plan *plan);
/* Its lanes, once the plan has its own. Collective. */
xfer_status xfi_run_relay_commit(xfer_plan *plan);
/* Add what it does to the figures of its plan. */
void xfi_run_relay_report(const xfer_plan *plan, xfer_plan_report_data *report);

/* ---- bind.c ---- */

void xfi_binding_destroy(xfi_binding *binding);
/* A dense shadow of a tensor's destination. */
xfer_status xfi_bind_shadow(const xfer_plan *plan, size_t tensor, void *memory);
/* Every part that is not empty is bound, and no destinations overlap. */
xfer_status xfi_bindings_check(const xfer_plan *plan);
/* The latter alone, of a plan that was committed before. */
xfer_status xfi_bindings_check_disjoint(const xfer_plan *plan);

/* ---- commit.c ---- */

/* Give back all that commit made. */
void xfi_run_drop_lanes(xfer_plan *plan);

/* ---- shadow.c ---- */

/* Shadows of all destinations, where the plan is staged; what it made is the plan's, whatever it
 * returns. */
xfer_status xfi_shadow_create(xfer_plan *plan);
void xfi_shadow_destroy(xfer_plan *plan);
uint64_t xfi_shadow_bytes(const xfer_plan *plan);
/* Something of a run that failed may still write there: leave them to it. */
void xfi_shadow_lose(xfer_plan *plan);
/* Of a run that is complete on all ranks: write the destinations. Collective. */
xfer_status xfi_shadow_write(xfer_plan *plan, xfi_deadline deadline);

/* ---- rebind.c ---- */

/* Do the lanes need nothing but other addresses, now that a tensor is bound as before but
 * elsewhere?
 */
bool xfi_rebind_keeps(const xfer_plan *plan, size_t tensor);
/* Give them the new addresses, as far as this rank alone is concerned. */
xfer_status xfi_rebind_local(xfer_plan *plan);
/* The direct lane's. Collective. *moved is false, on all ranks alike, where some rank has to map
 * something. */
xfer_status xfi_rebind_direct(xfer_plan *plan, bool *moved, xfi_deadline deadline);

/* ---- local.c ---- */

/* Self-copies and ZERO elements as one batch. */
xfer_status xfi_local_create(xfi_batch **batch, const xfer_plan *plan);

/* ---- direct.c ---- */

/* All ranks take part, also one that has failed: *mine is what it came to so far, and becomes what
 * this rank's part came to. Maps what can be mapped; the rest is left to the packed lane. same[r]:
 * rank r may be in reach; here[r]: it shares our process and device. */
xfer_status xfi_direct_create(xfi_direct **direct, xfer_plan *plan, const bool *same,
                              const bool *here, xfer_status *mine, xfi_deadline deadline);
/* Nothing of a run may be on its way. */
void xfi_direct_destroy(xfi_direct *direct);
/* The same lane at other addresses. *moved: what peers' views lie in now is mapped already; else
 * the lane is of no more use. All ranks likewise. */
xfer_status xfi_direct_move(xfi_direct *direct, xfer_plan *plan, xfer_status *mine, bool *moved,
                            xfi_deadline deadline);
/* Does a peer have to know where this rank's memory is? */
bool xfi_direct_has_flows(const xfi_direct *direct);
/* Which flows are carried directly: by index in plan->moves->sends.peers and recvs.peers. */
bool xfi_direct_sends(const xfi_direct *direct, size_t peer);
bool xfi_direct_receives(const xfi_direct *direct, size_t peer);
uint64_t xfi_direct_bytes(const xfi_direct *direct); /* that this rank copies */
/* How a flow travels, in words, by index in plan->moves->sends.peers or recvs.peers; NULL: not
 * committed; `relay`: of the plan's relay. An xfi_way_fn of a plan. */
const char *xfi_direct_way(const void *plan, bool relay, bool send, size_t peer);
/* ---- direct_run.c ---- */

/* Enqueue: tell peers that this rank's memory is ready, copy, and tell them that it is done. */
xfer_status xfi_direct_start(xfi_direct *direct, xfer_plan *plan, xfer_stream stream);
/* Enqueue on `stream`: wait until peers have done theirs. */
xfer_status xfi_direct_finish(xfi_direct *direct, xfer_plan *plan, xfer_stream stream);
/* XFER_ERR_PEER with its name if a peer takes no part in run `epoch`. */
xfer_status xfi_direct_check(const xfi_direct *direct, uint64_t epoch);
/* Of a run whose work on this rank has ended: did all signals come? Names who was late. */
xfer_status xfi_direct_outcome(const xfi_direct *direct, const xfer_plan *plan);
/* This rank's streams wait for none of its peers any more. */
void xfi_direct_give_up(xfi_direct *direct, const xfer_plan *plan);
/* A run failed: tell peers, let this rank's streams go, and return once nobody touches its memory
 * any more. XFER_ERR_TIMEOUT names a peer that may still do. */
xfer_status xfi_direct_leave(xfi_direct *direct, const xfer_plan *plan, xfi_deadline deadline);

/* ---- pipeline.c ---- */

/* One step: copies into a slot, one comm call, copies out of a slot. */
typedef struct xfi_step {
  xfi_copies gather;
  xfi_copies scatter;
  xfi_batch *gather_batch; /* NULL: nothing to do */
  xfi_batch *scatter_batch;
  xfi_message *messages; /* [n_sends + n_recvs], sends first */
  int n_sends;
  int n_recvs;
  int root; /* >= 0: n_sends broadcasts of this root's */
} xfi_step;

typedef struct xfi_channels xfi_channels;
typedef struct xfi_casts xfi_casts;

struct xfi_pipeline {
  xfi_channels *channels;
  xfi_casts *casts; /* NULL: nothing is broadcast */
  xfi_step *steps;
  size_t n_steps;
  size_t capacity;
  size_t n_rounds;
  uint64_t sent_bytes;
  size_t send_slot_bytes; /* most that a step needs */
  size_t recv_slot_bytes;
  char *slots; /* two send slots, two receive slots, in the block of the comm's plans */
  uint64_t staging_bytes;
  xfer_stream streams[3]; /* gather, comm, scatter */
  xfi_event *gathered[2];
  xfi_event *moved[2]; /* the comm call is done */
  xfi_event *scattered[2];
  xfi_event *ended[3];
};

/* Rounds and broadcasts for all that the direct lane does not carry. Collective; its last agreement
 * is the caller's to make. */
xfer_status xfi_pipeline_create(xfi_pipeline **pipeline, xfer_plan *plan);
/* The same steps at other addresses, of what is bound or of the slots. */
xfer_status xfi_pipeline_move(xfi_pipeline *pipeline, const xfer_plan *plan);
void xfi_pipeline_destroy(xfi_pipeline *pipeline, xfer_plan *plan);
/* Staging memory of a plan that is not committed, where nothing goes directly nor in place. */
xfer_status xfi_pipeline_foresee(uint64_t *staging_bytes, const xfer_plan *plan);
xfer_status xfi_pipeline_start(xfi_pipeline *pipeline, xfer_plan *plan, xfer_stream stream,
                               xfi_deadline deadline);
/* Does no peer wait for what it carries? */
bool xfi_pipeline_is_empty(const xfi_pipeline *pipeline);
/* Append an empty step. It uses the slots of its number: */
xfer_status xfi_pipeline_add(xfi_step **step, xfi_pipeline *pipeline, int n_messages);
char *xfi_pipeline_slot(const xfi_pipeline *pipeline, size_t step, bool send);

/* Messages start at multiples of this in a slot, for wide loads; windows are multiples of it. */
#define XFI_SLOT_ALIGN 16

/* One run of at least this is sent from, or received into, the caller's memory. */
#define XFI_MIN_UNPACKED_BYTES ((size_t)1 << 20)

/* ---- packed.c: who sends what when, then what slots that needs, then its steps. broadcast.h has
 * as much ---- */

/* Does the broadcast lane carry a class here? Not where the comm has no broadcast. */
static inline bool xfi_run_broadcasts(const xfer_plan *plan, const xfi_class *cls)
{
  return cls->broadcast && (plan->comm == NULL || plan->comm->ops->broadcast != NULL);
}

typedef struct xfi_schedule xfi_schedule;

xfer_status xfi_schedule_create(xfi_schedule **schedule, const xfer_plan *plan);
void xfi_schedule_destroy(xfi_schedule *schedule);
void xfi_packed_measure(xfi_pipeline *pipeline, const xfi_schedule *schedule);
xfer_status xfi_packed_add(xfi_pipeline *pipeline, xfi_schedule *schedule, const xfer_plan *plan);

/* Append the copies between a slot at `slot` and elements [first, end) of a box of the class, in
 * row-major order; the box starts at `start` of `bound`. */
xfer_status xfi_slot_copies(xfi_copies *copies, const xfer_plan *plan, const xfi_class *cls,
                            char *slot, bool to_slot, const xfi_bound *bound, const int64_t *start,
                            const int64_t *length, int64_t first, int64_t end);

/* The dense box of `length` at `base`, as a bound. */
xfi_bound xfi_dense_bound(char *base, const int64_t *length, int n_dims, int elem_bytes);

/* At least as many messages as one packed round can have on this rank, sends and receives apart. */
void xfi_packed_most(int *sends, int *recvs, const xfi_plan *moves);

#endif
