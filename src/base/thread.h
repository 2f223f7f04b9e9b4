/* Threads of the library's own, which take none of the program's signals. */
#ifndef XFI_THREAD_H
#define XFI_THREAD_H

#include "plugin_api.h"

#include <pthread.h>
#include <stdbool.h>

/* Starts `run(context)`. False: there is no thread to be had. */
XFI_PLUGIN_API bool xfi_thread_start(pthread_t *thread, void *(*run)(void *context), void *context);

#endif
