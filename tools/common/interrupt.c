#define _GNU_SOURCE /* fopencookie */

#include "interrupt.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
  PIECE_BYTES = 4096, /* a pipe that poll() finds writable takes them at once: PIPE_BUF */
  LOOK_MS = 100,
  PATIENCE_MS = 3000 /* that a reader may rest, once the work is interrupted */
};

static _Atomic sig_atomic_t came; /* other threads look at it */
static bool is_cut;

static void note(int number)
{
  (void)number;
  came = 1;
}

/* False: whoever reads stdout rests for too long. Other threads may get the signal, so this looks
 * every now and then. */
static bool wait_for_reader(void)
{
  struct pollfd out = {STDOUT_FILENO, POLLOUT, 0};

  for (int waited = 0; waited < PATIENCE_MS;) {
    const int n = poll(&out, 1, LOOK_MS);

    if (n > 0 || (n < 0 && errno != EINTR)) return true;
    if (came != 0) waited += LOOK_MS;
  }
  return false;
}

/* What stdout's buffer is written by. The C library drops a buffer whose write a signal interrupts
 * and goes on with the next, which leaves a hole: this writes all, or nothing from some byte on. */
static ssize_t write_piece(void *context, const char *bytes, size_t n)
{
  size_t done = 0;

  (void)context;
  while (done < n && !is_cut) {
    const size_t rest = n - done;

    is_cut = !wait_for_reader();
    const ssize_t k =
        is_cut ? -1 : write(STDOUT_FILENO, bytes + done, rest < PIECE_BYTES ? rest : PIECE_BYTES);
    if (k > 0)
      done += (size_t)k;
    else if (!is_cut && (k == 0 || (errno != EINTR && errno != EAGAIN)))
      break;
  }
  return (ssize_t)done; /* less is an error */
}

/* Where there is no memory stdout stays as it is. */
static void keep_whole(void)
{
  const cookie_io_functions_t calls = {.write = write_piece};
  FILE *file = fopencookie(NULL, "w", calls);

  if (file == NULL) return;
  (void)fflush(stdout);
  if (isatty(STDOUT_FILENO) != 0) (void)setvbuf(file, NULL, _IOLBF, BUFSIZ);
  stdout = file;
}

void interrupt_catch(void)
{
  struct sigaction action;

  keep_whole();
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

bool interrupt_has_cut(void)
{
  return is_cut;
}
