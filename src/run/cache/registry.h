/*
 * Memory that the caller has registered, which stays mapped from call to call.
 */
#ifndef XFI_REGISTRY_H
#define XFI_REGISTRY_H

#include "plan_cache.h"

/* Memory of one call of xfer_comm_register(): this rank's, and what it mapped of its peers'. */
typedef struct xfi_registered {
  void *memory;         /* NULL: this rank had none */
  uint64_t id;          /* id of the memory's allocation; 0: the device has no ids */
  xfi_mapping **mapped; /* [n_mapped] mappings of peers' memory */
  int n_mapped;
} xfi_registered;

typedef struct xfi_registry {
  xfi_plans *plans;      /* of the comm */
  xfi_plan_cache *cache; /* whose plans may map what is registered */
  xfi_registered *at;    /* [n] in the order of the calls, which is the same on all ranks */
  size_t n;
  size_t capacity;
} xfi_registry;

/* Register this rank's memory, NULL for none, or undo the first such call. Collective. */
xfer_status xfi_registry_add(xfi_registry *registry, void *memory, xfi_deadline deadline);
xfer_status xfi_registry_remove(xfi_registry *registry, void *memory, xfi_deadline deadline);
/* Does every address of a view lie in registered memory, or is there no need? */
bool xfi_registry_covers(const xfi_registry *registry, const xfer_view *view);
/* Close all mappings. */
void xfi_registry_free(xfi_registry *registry);

#endif
