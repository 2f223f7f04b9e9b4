/* Ctrl-C: the first asks the work to stop at its next step, the second ends the process at once. */
#ifndef TOOLS_INTERRUPT_H
#define TOOLS_INTERRUPT_H

#include <stdbool.h>

/* SIGINT, SIGTERM and SIGHUP. */
void interrupt_catch(void);
/* Has one come? */
bool interrupt_came(void);

#endif
