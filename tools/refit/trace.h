/* --trace: the file of spans that the library writes where XFER_TRACE names one. */
#ifndef TOOLS_REFIT_TRACE_H
#define TOOLS_REFIT_TRACE_H

#include <stdbool.h>

/* Ask the library for it, before the first comm: of FILE, with %h and %p as in XFER_TRACE, and of a
 * process of several, `rank`, not -1, FILE.RANK. */
void trace_ask(const char *name, int rank);
/* Could it be opened, and was all written so far that the library has to write? False: *path and
 * errno say what could not be. */
bool trace_is_written(const char **path);

#endif
