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
  void *memory;  /* NULL: this rank had none */
  uint64_t id;   /* of its allocation; 0: the device has no ids */
  void **mapped; /* [n_mapped] bases */
  int n_mapped;
} xfi_registered;

/* A kept plan, by what its ranks agreed on; an exchange, by what this rank handed over. */
typedef struct xfi_kept {
  uint64_t src[2]; /* layout digests; of an exchange, that of its operations */
  uint64_t dst[2];
  bool mapped;     /* all ranks' memory was registered */
  uint64_t used;   /* the call that used it last */
  xfer_plan *plan; /* NULL: a free entry */
} xfi_kept;

struct xfer_comm {
  xfi_comm *transport;
  xfi_device *device;
  xfi_plans plans;
  uint64_t timeout_ms; /* of its own calls, and of plans that have none */
  xfi_kept kept[XFI_CACHE_PLANS];
  int n_kept; /* entries from here on were never used */
  uint64_t n_calls;
  xfi_registered *registered;
  size_t n_registered;
  size_t registered_capacity;
  void *heard; /* room for what ranks say to xfer_redistribute(); NULL: it was never called */
};

/* The library's own of what a caller gave; NULL: all defaults. */
xfer_status xfi_plan_options_copy(xfer_plan_options *out, const xfer_plan_options *given);

/* An entry for a plan that is to be made with these options: a free one, or the one that was not
 * used for longest, emptied. */
xfi_kept *xfi_kept_make(xfer_plan_options *options, xfer_comm *comm, const uint64_t src[2],
                        const uint64_t dst[2], bool mapped);
/* What this rank can say before anything is done: an earlier call that failed after it returned,
 * and a stream on which nothing may be put. */
xfer_status xfi_kept_check(const xfer_comm *comm, xfer_stream stream);
/* Run it, committed, and order `stream` after it. Collective. */
xfer_status xfi_kept_run(xfer_comm *comm, xfi_kept *kept, xfer_stream stream);

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
