/* A plan as one page of HTML that needs nothing else. */
#ifndef TOOLS_PLAN_HTML_H
#define TOOLS_PLAN_HTML_H

#include "plan.h"

/* Returns the status to end with. */
int plan_html(const plan_whole *whole, const plan_args *args);

#endif
