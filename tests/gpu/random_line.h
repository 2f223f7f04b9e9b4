/* Random redistributions in the problem language, the same wherever they are drawn from the same
 * state. */
#ifndef XFER_TEST_RANDOM_LINE_H
#define XFER_TEST_RANDOM_LINE_H

#include <stddef.h>
#include <stdint.h>

/* From a to b, both included; `random` is not 0. */
int64_t random_draw(uint64_t *random, int64_t a, int64_t b);

/* One tensor of 1 to 4 dims between two meshes of some of the ranks. */
void random_line(uint64_t *random, int n_ranks, char *line, size_t size);

#endif
