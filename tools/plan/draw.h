/* One tensor's shards before and after, for a terminal and as SVG. */
#ifndef TOOLS_PLAN_DRAW_H
#define TOOLS_PLAN_DRAW_H

#include "plan.h"

/* Of the tensor that args->tensor names, or of the only one. Both return the status to end with. */
int plan_draw(const plan_whole *whole, const plan_args *args);
int plan_svg(const plan_whole *whole, const plan_args *args);

#endif
