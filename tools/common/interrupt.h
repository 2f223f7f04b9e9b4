/* Ctrl-C: the first asks the work to stop at its next step, the second ends the process at once. */
#ifndef TOOLS_INTERRUPT_H
#define TOOLS_INTERRUPT_H

#include <stdbool.h>

/* SIGINT, SIGTERM and SIGHUP. From here on what is printed has no hole, whatever comes. */
void interrupt_catch(void);
/* Has one come? */
bool interrupt_came(void);
/* Has stdout an end too early, since nobody read it for seconds after one came? */
bool interrupt_has_cut(void);

#endif
