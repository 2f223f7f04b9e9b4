/* How many ranks a line of the problem language has, from its text alone. */
#ifndef TOOLS_PROBLEM_RANKS_H
#define TOOLS_PROBLEM_RANKS_H

#include <stdbool.h>
#include <stdint.h>

/* One more than the highest rank of a problem line: of each side's "(2,4)@0-7:" or
 * "{0=[..];1=[..]}". Of a line that does not parse it is any number. */
int64_t problem_ranks(const char *line);
/* Are these more than a program works through? To be asked before the line is parsed, which takes
 * as much memory as there are ranks. */
bool problem_is_too_large(int64_t n_ranks);

#endif
