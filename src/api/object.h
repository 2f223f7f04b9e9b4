/* The public comm: a transport, a device, and the plans that xfer_redistribute() keeps. */
#ifndef XFI_OBJECT_H
#define XFI_OBJECT_H

#include "plugin.h"
#include "run.h"
#include "staging.h"

/* Most plans that a comm keeps, as many as a word has bits; the one that was not used for longest
 * goes first. */
#define XFI_CACHE_PLANS 64

/* Memory of one call of xfer_comm_register(): ours, and what we mapped of the others'. */
typedef struct xfi_registered {
  void *memory;         /* NULL: this rank had none */
  uint64_t id;          /* of its allocation; 0: the device has no ids */
  xfi_mapping **mapped; /* [n_mapped] */
  int n_mapped;
} xfi_registered;

/* A kept plan. */
typedef struct xfi_kept {
  uint64_t key[4];  /* of what this rank was given */
  bool mapped;      /* all ranks' memory was registered */
  uint64_t used;    /* the call that used it last */
  xfer_plan *plan;  /* for the next call; NULL: a free entry */
  xfer_plan *other; /* takes turns with it; NULL: none does */
  bool is_single;   /* a second plan could not be made */
  bool had_room;    /* second plans of others were forgotten for it */
} xfi_kept;

struct xfer_comm {
  xfi_comm *transport;
  xfi_device *device;
  xfi_plans plans;
  uint64_t timeout_ms; /* of its own calls, and of plans that have none */
  xfi_kept kept[XFI_CACHE_PLANS];
  int n_kept; /* entries from here on were never used: no call looks at them */
  uint64_t n_calls;
  xfi_registered *registered;
  size_t n_registered;
  size_t registered_capacity;
  void *votes;        /* room for what ranks say in xfi_kept_call(); NULL: it was never called */
  size_t n_plans;     /* of the caller's, who has not given them back */
  bool is_given_back; /* while it had plans; it ends with the last */
};

/* A plan of the caller's was made; one is gone. `of` NULL: of no comm. */
void xfi_comm_has_plan(xfi_plans *of);
void xfi_comm_lost_plan(xfi_plans *of);

/* What a call that makes a plan is given whatever it is of; *options is the library's own of what
 * the caller gave, and has a deadline also where the call fails. */
xfer_status xfi_plan_given(xfer_plan_options *options, const char *who, xfer_plan **plan,
                           const xfer_comm *comm, const xfer_plan_options *given);

/* A call that plans, binds and runs in one. */
typedef struct xfi_one_call {
  uint64_t key[4]; /* a digest of all that this rank is given but addresses; 0: nothing */
  bool mapped;     /* its memory can stay mapped */
  /* Collective; `checked` is what this rank has found before. */
  xfer_status (*create)(xfer_plan **plan, xfi_plans *of, xfer_status checked, void *given,
                        const xfer_plan_options *options);
  xfer_status (*bind)(xfer_plan *plan, void *given);
  void *given;
} xfi_one_call;
/* By a plan that the comm keeps. `checked` is what the caller's own checks came to; where they
 * failed the call is not looked at. Collective. */
xfer_status xfi_kept_call(xfer_comm *comm, xfer_status checked, const xfi_one_call *call,
                          xfer_stream stream);
/* What those came to that have come to their end here since the last look; each is told once. */
xfer_status xfi_kept_check(const xfer_comm *comm);
/* Give all kept plans back. What their last calls came to, of the first that failed. */
xfer_status xfi_kept_forget_all(xfer_comm *comm);

/* Of a refusal, whose text is never empty. */
static inline const char *xfi_reason(const char *why)
{
  return why[0] == '\0' ? "refused by the caller, who gave no reason" : why;
}

/* Of a wait of the comm's own that begins now. */
static inline xfi_deadline xfi_comm_deadline(const xfer_comm *comm)
{
  return xfi_deadline_after((int64_t)comm->timeout_ms);
}

/* Does every address of a view lie in registered memory, or is there no need? */
bool xfi_comm_is_registered(const xfer_comm *comm, const xfer_view *view);
/* Close all mappings. */
void xfi_comm_free_registered(xfer_comm *comm);

#endif
