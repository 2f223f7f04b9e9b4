/* What two dims of a layout show: rectangles, and the ranks that hold something there. */
#ifndef TOOLS_PLAN_AREAS_H
#define TOOLS_PLAN_AREAS_H

#include "shards.h"

/* A rectangle of the picture, in two dims: down, then across. */
typedef struct area {
  int64_t lo[2], hi[2];
  size_t number; /* by which areas ascend: that of the first box here */
  size_t part;   /* of which it is */
  shard who;     /* the ranks of all boxes here; it has no boxes itself */
} area;

typedef struct areas {
  area *at;
  size_t n;
  int64_t shape[2];
} areas;

/* Boxes that lie in the same place of the two dims are one area, in others they may differ; those
 * without elements are none. A dim of -1 is not there, and all lie in [0, 1) of it. False: no
 * memory. */
bool areas_find(areas *out, const shards *of, const int dims[2]);
void areas_free(areas *out);

#endif
