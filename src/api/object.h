/* The public comm: a transport, a device, and the plans that xfer_redistribute() keeps. */
#ifndef XFI_OBJECT_H
#define XFI_OBJECT_H

#include "plugin.h"
#include "registry.h"

struct xfer_comm {
  xfi_comm *transport;
  xfi_device *device;
  xfi_plans plans;
  xfi_plan_cache cache;
  xfi_registry registry;
  size_t n_plans;     /* plans that the caller has made and not destroyed */
  bool is_given_back; /* it was destroyed while it had plans; it ends with the last one */
};

/* Count a plan that the caller has made, or one that it has destroyed. `plans` is NULL if the plan
 * has no comm. */
void xfi_comm_count_plan(xfi_plans *plans);
void xfi_comm_lost_plan(xfi_plans *plans);

/* A collective call begins, of the plan, or of the comm if `plan` is NULL: for error texts, and so
 * that no rank waits for this one in a run that it has refused. */
void xfi_comm_enter(xfi_plans *plans, const xfer_plan *plan, xfi_inside call);

/* Check the arguments that all calls which make a plan have. *options becomes the library's own
 * copy of `given`, and has a timeout also if the check fails. */
xfer_status xfi_plan_given(xfer_plan_options *options, const char *who, xfer_plan **plan,
                           const xfer_comm *comm, const xfer_plan_options *given);

/* The reason of a refusal, whose text is never empty. */
static inline const char *xfi_reason(const char *why)
{
  return why[0] == '\0' ? "refused by the caller, who gave no reason" : why;
}

/* The deadline of a wait of the comm's own that begins now. */
static inline xfi_deadline xfi_comm_deadline(const xfer_comm *comm)
{
  return xfi_deadline_after((int64_t)comm->plans.timeout_ms);
}

#endif
