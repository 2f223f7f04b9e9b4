/* Which process this is. */
#ifndef XFI_PROCESS_H
#define XFI_PROCESS_H

#include "plugin_api.h"

#include <stdint.h>

/* A random number of this process; a forked child has another one. */
XFI_PLUGIN_API uint64_t xfi_process_number(void);

#endif
