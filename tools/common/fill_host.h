/* Boxes in host memory, filled and checked. */
#ifndef TOOLS_FILL_HOST_H
#define TOOLS_FILL_HOST_H

#include "fill_box.h"

typedef struct fill_sum {
  uint64_t wrong; /* bytes that are not what they should be */
  uint64_t bytes; /* checked */
  uint64_t total; /* of the elements and their global indices, modulo 2^64 */
} fill_sum;

void fill_host_write(const fill_box *box);
/* Adds to `sum`; `zero`: padding, all of it zero. */
void fill_host_check(const fill_box *box, bool zero, fill_sum *sum);

#endif
