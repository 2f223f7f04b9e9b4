/* Threads of the library's own, which take none of the program's signals. */
#ifndef XFI_THREAD_H
#define XFI_THREAD_H

#include "door.h"

#include <pthread.h>
#include <stdbool.h>

/* Starts `run(context)`. False: there is no thread to be had. */
XFI_DOOR bool xfi_thread_start(pthread_t *thread, void *(*run)(void *context), void *context);

#endif
