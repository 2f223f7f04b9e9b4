/*
 * What the library does, for people who look for a fault or for lost time: lines of XFER_DEBUG, in
 * the manner of NCCL's, and spans of XFER_TRACE, a file for Chrome's tracing and Perfetto. Without
 * these variables nothing is written, and a span costs one load.
 *
 *   XFER_DEBUG         WARN (what fails), INFO (comms, plans, commits), TRACE (runs, their steps)
 *   XFER_DEBUG_FILE    in place of stderr; %h is the host, %p the process
 *   XFER_TRACE         the file of spans, with %h and %p as in XFER_DEBUG_FILE
 */
#ifndef XFI_TRACE_H
#define XFI_TRACE_H

#include <stdint.h>

#include "error.h"
#include "plugin_api.h"

typedef enum xfi_subsys { XFI_SYS_COMM, XFI_SYS_PLAN, XFI_SYS_RUN } xfi_subsys;

/* The track on which a span is drawn: a rank's calls, or one of the ways of a run's data. */
typedef enum xfi_track {
  XFI_TRACK_CALLS = 0,
  XFI_TRACK_LOCAL = 1,
  XFI_TRACK_SHARED = 2,
  XFI_TRACK_GATHER = 3,
  XFI_TRACK_MESSAGES = 4,
  XFI_TRACK_SCATTER = 5,
  XFI_TRACK_DIRECT = 6 /* the first group of peers; each further group has the next track */
} xfi_track;

typedef struct xfi_span {
  const char *name; /* a string that outlives the span */
  xfi_subsys subsys;
  int rank;
  int track;     /* xfi_track */
  int64_t began; /* 0: the span is not recorded */
} xfi_span;

/* The beginning of a call or of a step of a run. */
xfi_span xfi_span_begin(xfi_subsys subsys, int rank, int track, const char *name);
/* The end of a span; the text may say more. A failed call is a line of WARN with the last error. */
__attribute__((format(printf, 3, 4))) void xfi_span_end(const xfi_span *span, xfer_status st,
                                                        const char *fmt, ...);

/* A profiler's ranges: once a vendor's library has set these, calls are ranges too. */
typedef struct xfi_ranges {
  void (*push)(const char *name);
  void (*pop)(void);
} xfi_ranges;
XFI_PLUGIN_API void xfi_trace_ranges(const xfi_ranges *ranges);

#endif
