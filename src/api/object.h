/* The public comm: a transport, a device, and the plans that xfer_redistribute() keeps. */
#ifndef XFI_OBJECT_H
#define XFI_OBJECT_H

#include "plugin.h"
#include "run.h"
#include "staging.h"

/* Most plans that a comm keeps, as many as a word has bits; the least recently used plan is
 * dropped first. */
#define XFI_CACHE_PLANS 64

/* Memory of one call of xfer_comm_register(): this rank's, and what it mapped of its peers'. */
typedef struct xfi_registered {
  void *memory;         /* NULL: this rank had none */
  uint64_t id;          /* id of the memory's allocation; 0: the device has no ids */
  xfi_mapping **mapped; /* [n_mapped] mappings of peers' memory */
  int n_mapped;
} xfi_registered;

/* A kept plan. */
typedef struct xfi_kept {
  uint64_t key[4];  /* digest of what this rank was given */
  bool mapped;      /* all ranks' memory was registered */
  uint64_t used;    /* number of the call that used it last */
  xfer_plan *plan;  /* the plan of the next call; NULL: a free entry */
  xfer_plan *other; /* a second plan, which takes turns with `plan`; NULL: there is none */
  bool is_single;   /* a second plan could not be made */
  bool had_room;    /* second plans of other entries were dropped to make room for it */
} xfi_kept;

struct xfer_comm {
  xfi_comm *transport;
  xfi_device *device;
  xfi_plans plans;
  uint64_t timeout_ms; /* timeout of the comm's own calls, and of plans that set none */
  xfi_kept kept[XFI_CACHE_PLANS];
  int n_kept; /* entries from here on were never used: no call looks at them */
  uint64_t n_calls;
  xfi_registered *registered;
  size_t n_registered;
  size_t registered_capacity;
  void *votes;        /* room for what ranks say in xfi_kept_call(); NULL: it was never called */
  size_t n_plans;     /* plans that the caller has made and not destroyed */
  bool is_given_back; /* it was destroyed while it had plans; it ends with the last one */
};

/* Count a plan that the caller has made, or one that it has destroyed. `plans` is NULL if the plan
 * has no comm. */
void xfi_comm_count_plan(xfi_plans *plans);
void xfi_comm_lost_plan(xfi_plans *plans);

/* Check the arguments that all calls which make a plan have. *options becomes the library's own
 * copy of `given`, and has a timeout also if the check fails. */
xfer_status xfi_plan_given(xfer_plan_options *options, const char *who, xfer_plan **plan,
                           const xfer_comm *comm, const xfer_plan_options *given);

/* A call that plans, binds and runs in one. */
typedef struct xfi_one_call {
  uint64_t key[4]; /* a digest of all that this rank is given but addresses; 0: nothing */
  bool mapped;     /* this rank's memory can stay mapped */
  /* Collective; `checked` is what this rank has found before. */
  xfer_status (*create)(xfer_plan **plan, xfi_plans *plans, xfer_status checked, void *given,
                        const xfer_plan_options *options);
  xfer_status (*bind)(xfer_plan *plan, void *given);
  void *given;
} xfi_one_call;
/* Make the call by a plan that the comm keeps. `checked` is the status of the caller's own checks;
 * if they failed, `call` is not read. Collective. */
xfer_status xfi_kept_call(xfer_comm *comm, xfer_status checked, const xfi_one_call *call,
                          xfer_stream stream);
/* The first failure of a kept plan's run that this rank has learned of since the last check; each
 * is reported once. */
xfer_status xfi_kept_check(const xfer_comm *comm);
/* Destroy all kept plans. Returns the status of the first whose last call failed. */
xfer_status xfi_kept_forget_all(xfer_comm *comm);

/* The reason of a refusal, whose text is never empty. */
static inline const char *xfi_reason(const char *why)
{
  return why[0] == '\0' ? "refused by the caller, who gave no reason" : why;
}

/* The deadline of a wait of the comm's own that begins now. */
static inline xfi_deadline xfi_comm_deadline(const xfer_comm *comm)
{
  return xfi_deadline_after((int64_t)comm->timeout_ms);
}

/* Does every address of a view lie in registered memory, or is there no need? */
bool xfi_comm_is_registered(const xfer_comm *comm, const xfer_view *view);
/* Close all mappings. */
void xfi_comm_free_registered(xfer_comm *comm);

#endif
