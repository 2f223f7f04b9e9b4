#ifndef TOOLS_PROBLEM_RANKS_H
#define TOOLS_PROBLEM_RANKS_H

#include <stdint.h>

/* One more than the highest rank of a problem line that has parsed: of each side's "(2,4)@0-7:". */
int64_t problem_ranks(const char *line);

#endif
