/* No output of a program may take the place of what it reads, or have the name that programs of
 * others give to standard output. */
#ifndef TOOLS_INPUTS_H
#define TOOLS_INPUTS_H

#include "job.h"

/* Is the file `path` (NULL: none), which `option` has written, one that the job reads, or "-"? 0,
 * or ARGS_WRONG after a sentence. */
int inputs_check(const job_args *args, const char *option, const char *path);

#endif
