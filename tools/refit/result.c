#include "result.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "args.h"
#include "interrupt.h"
#include "text.h"

int result_failed(const char *error)
{
  (void)args_failed("%s", error);
  return interrupt_came() ? ARGS_INTERRUPTED : EXIT_FAILURE;
}

static void print_json(const refit_case *what, const refit_result *r)
{
  printf("{\"ok\":%s,\"tensors\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"misc\":%" PRIu64
         ",\"moved\":%" PRIu64 ",\"wrong\":%" PRIu64 ",\"checked\":%" PRIu64
         ",\"sum\":\"%016" PRIx64 "\",\"ms\":%.3f,\"plan_ms\":%.3f,\"ranks\":%d}\n",
         r->wrong_bytes == 0 ? "true" : "false", what->names, what->payload_bytes, what->misc_bytes,
         r->moved_bytes, r->wrong_bytes, r->checked_bytes, r->sum, r->ms, r->plan_ms,
         what->n_ranks);
}

/* Prints the result with units that people read. */
static void print_summary(const refit_case *what, const refit_result *r)
{
  const double seconds = r->ms / 1e3;

  printf("%" PRIu64
         " tensor%s of %s on %d rank%s: planned in %s, moved %s in %s, %s/s; checked %s\n",
         what->names, what->names == 1 ? "" : "s", text_bytes((double)what->payload_bytes).at,
         what->n_ranks, what->n_ranks == 1 ? "" : "s", text_seconds(r->plan_ms / 1e3).at,
         text_bytes((double)r->moved_bytes).at, text_seconds(seconds).at,
         text_bytes(seconds > 0 ? (double)r->moved_bytes / seconds : 0).at,
         text_bytes((double)r->checked_bytes).at);
  if (what->misc_bytes > 0)
    printf("%s of it no rule places: whole to every rank that serves (misc)\n",
           text_bytes((double)what->misc_bytes).at);
}

int result_print(const refit_case *what, const refit_result *r, bool json)
{
  const bool ok = r->wrong_bytes == 0;

  if (json)
    print_json(what, r);
  else if (ok)
    print_summary(what, r);
  if (!json || !ok)
    fprintf(ok ? stdout : stderr,
            "refit %s: tensors=%" PRIu64 " bytes=%" PRIu64 " moved=%" PRIu64 " wrong=%" PRIu64
            " sum=%016" PRIx64 " ms=%.3f\n",
            ok ? "ok" : "FAILED", what->names, what->payload_bytes, r->moved_bytes, r->wrong_bytes,
            r->sum, r->ms);
  return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
