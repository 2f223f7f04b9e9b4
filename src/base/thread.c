/* A new thread has the signal mask of the one that starts it. */
#include "thread.h"

#include <signal.h>

bool xfi_thread_start(pthread_t *thread, void *(*run)(void *context), void *context)
{
  sigset_t all;
  sigset_t before;

  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool started = pthread_create(thread, NULL, run, context) == 0;
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}
