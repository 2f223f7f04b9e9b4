/* What the machine can do, whatever the library does. */
#ifndef PERF_CEILING_H
#define PERF_CEILING_H

#include "world.h"

/* Rows of the ceilings; those that are not asked for are measured all the same, unless `quick`. */
void perf_ceilings(perf_world *w);
/* GB/s, or microseconds, of a ceiling, and its short name. */
const char *perf_ceiling_name(perf_ceiling c);

#endif
