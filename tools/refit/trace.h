/* --trace: the file of spans that the library writes where XFER_TRACE names one. */
#ifndef TOOLS_REFIT_TRACE_H
#define TOOLS_REFIT_TRACE_H

#include <stdbool.h>

/* The library writes it under another name in the same folder, and with trace_end() it takes its
 * own, so that an earlier trace is there until then. A pipe, a device, and a name with %h or %p are
 * written as they are.
 *
 * Ask the library for it, before the first comm: of FILE, with %h and %p as in XFER_TRACE, and of a
 * process of several, `rank`, not -1, FILE.RANK. */
void trace_ask(const char *name, int rank);
/* Could it be opened, and was all written so far that the library has to write? False: *path and
 * errno say what could not be. */
bool trace_is_written(const char **path);
/* After the run, if trace_ask() was called. The library adds the end of the list as the process
 * ends. Not `keep`, or not all was written: the file is removed. */
void trace_end(bool keep);

#endif
