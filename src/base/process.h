/* This process: which one it is, and threads of the library's own in it. */
#ifndef XFI_PROCESS_H
#define XFI_PROCESS_H

#include "plugin_api.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A random number of this process; a forked child has another one. */
XFI_PLUGIN_API uint64_t xfi_process_number(void);

/* Starts `run(context)` in a thread that takes none of the program's signals. False: there is no
 * thread to be had. */
XFI_PLUGIN_API bool xfi_thread_start(pthread_t *thread, void *(*run)(void *context), void *context);

#endif
