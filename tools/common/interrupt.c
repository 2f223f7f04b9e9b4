#include "interrupt.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t came;

static void note(int number)
{
  (void)number;
  came = 1;
}

void interrupt_catch(void)
{
  struct sigaction action;

  memset(&action, 0, sizeof action);
  action.sa_handler = note;
  action.sa_flags = (int)SA_RESETHAND; /* calls in progress end with EINTR */
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGHUP, &action, NULL);
  signal(SIGXFSZ, SIG_IGN); /* a write past the limit fails, and says so */
}

bool interrupt_came(void)
{
  return came != 0;
}
