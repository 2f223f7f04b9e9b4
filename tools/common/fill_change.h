/* What a tool expects of a tensor whose elements change on the way. */
#ifndef TOOLS_FILL_CHANGE_H
#define TOOLS_FILL_CHANGE_H

#include <xfer/plan.h>

#include "fill_box.h"

/* Of tensor `t` of an array: what its source holds, or what must be where it goes. `of` receives
 * the tensor whose numbers decide: of scales that of the weights. False: none can be said. */
bool fill_change_of(const xfer_tensor *tensors, size_t t, bool is_source, fill_change *change,
                    size_t *of);
/* Indices of the tensor that has the numbers, for one of dim `d` here. */
int64_t fill_change_step(const fill_change *change, int n_dims, int d);
/* The last two dims of a layout; 1 where there are none. */
void fill_change_extent(const xfer_layout *layout, int64_t extent[2]);

#endif
