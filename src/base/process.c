/* The number of this process, which a forked child changes, and threads that take no signals. */
#include "process.h"

#include "clock.h"

#include <signal.h>
#include <sys/random.h>
#include <sys/types.h>
#include <unistd.h>

static uint64_t process_number;
static pthread_once_t process_number_once = PTHREAD_ONCE_INIT;

static void process_number_choose(void)
{
  if (getrandom(&process_number, sizeof process_number, GRND_NONBLOCK) !=
      (ssize_t)sizeof process_number) /* it may be forbidden */
    process_number = (uint64_t)getpid() << 32 ^ (uint64_t)xfi_now_ns();
}

static void process_number_begin(void)
{
  process_number_choose();
  (void)pthread_atfork(NULL, NULL, process_number_choose);
}

uint64_t xfi_process_number(void)
{
  (void)pthread_once(&process_number_once, process_number_begin);
  return process_number;
}

/* A new thread has the signal mask of the one that starts it. */
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
