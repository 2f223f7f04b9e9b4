/*
 * The plans that a comm keeps for calls which plan, bind and run in one.
 */
#ifndef XFI_PLAN_CACHE_H
#define XFI_PLAN_CACHE_H

#include "plans.h"
#include "run.h"

/* Most entries of a cache, as many as a word has bits; the least recently used one is dropped
 * first. */
#define XFI_CACHE_SIZE 64

/* An entry. */
typedef struct xfi_cached {
  uint64_t key[4];  /* digest of what this rank was given */
  bool mapped;      /* all ranks' memory was registered */
  uint64_t used;    /* number of the call that used it last */
  xfer_plan *plan;  /* the plan of the next call; NULL: a free entry */
  xfer_plan *other; /* a second plan, which takes turns with `plan`; NULL: there is none */
  bool is_single;   /* a second plan could not be made */
  bool had_room;    /* second plans of other entries were dropped to make room for it */
} xfi_cached;

typedef struct xfi_plan_cache {
  xfi_plans *plans; /* of the comm */
  xfi_cached at[XFI_CACHE_SIZE];
  int n; /* entries from here on were never used: no call looks at them */
  uint64_t n_calls;
  void *votes; /* memory for what ranks tell each other in a call; NULL: there was none */
} xfi_plan_cache;

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
/* Make the call by a plan of the cache. `checked` is the status of the caller's own checks; if they
 * failed, `call` is not read. Collective. */
xfer_status xfi_cache_call(xfi_plan_cache *cache, xfer_status checked, const xfi_one_call *call,
                           xfer_stream stream);
/* The first failure of a cached plan's run that this rank has learned of since the last check; each
 * is reported once. */
xfer_status xfi_cache_check(const xfi_plan_cache *cache);
/* Set the timeout of the comm and of all cached plans. */
void xfi_cache_set_timeout(xfi_plan_cache *cache, uint64_t timeout_ms);
/* Destroy all cached plans. Returns the status of the last one whose call failed. */
xfer_status xfi_cache_clear(xfi_plan_cache *cache);
/* The same, and free the cache's own memory, when the comm ends. */
void xfi_cache_free(xfi_plan_cache *cache);

#endif
