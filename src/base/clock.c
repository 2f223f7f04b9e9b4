/* Time that never jumps, deadlines, and what ends waits before them. */
#include "clock.h"

#include "checked.h"
#include "error.h"

#include <xfer/status.h>

#include <stdio.h>

enum {
  NS_PER_MS = 1000000,
  NS_PER_S = 1000000000,
  MS_PER_S = 1000,
  ASK_NS = 20 * NS_PER_MS,  /* between two questions, and before the first */
  SLEEP_NS = 50 * NS_PER_MS /* at a time, where there is somebody to ask */
};

/* The function that a thread's waits ask whether to go on: xfer_interrupt_set(). */
typedef struct interrupt {
  xfer_interrupt_fn fn; /* NULL: nobody does */
  void *context;
  int64_t asked_ns;
  int64_t came_ns; /* when it last said no */
} interrupt;

static _Thread_local interrupt own;

/* What xfi_deadline_end() returned last. */
static _Thread_local char end_text[48];

int64_t xfi_now_ns(void)
{
  struct timespec now = {0};

  (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail: the clock exists on every Linux */
  return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* ---- interrupts ---------------------------------------------------------------------------- */

void xfer_interrupt_set(xfer_interrupt_fn fn, void *context)
{
  own.fn = fn;
  own.context = context;
}

/* Nobody is asked about what `fn` itself waits for. Keeps the text of the last error. */
static bool says_no(void)
{
  const xfer_interrupt_fn fn = own.fn;
  void *const context = own.context;
  char text[XFI_ERROR_BYTES];
  bool no;

  (void)snprintf(text, sizeof text, "%s", xfer_last_error());
  own.fn = NULL;
  no = fn(context) != 0;
  xfer_interrupt_set(fn, context);
  xfi_set_error("%s", text);
  own.asked_ns = xfi_now_ns();
  if (no) own.came_ns = own.asked_ns;
  return no;
}

static bool was_interrupted(xfi_deadline deadline)
{
  return deadline.made_ns != 0 && deadline.made_ns < own.came_ns;
}

static bool is_interrupted(xfi_deadline deadline, int64_t now_ns)
{
  if (was_interrupted(deadline)) return true;
  if (own.fn == NULL || deadline.made_ns == 0) return false;
  if (now_ns - deadline.made_ns < ASK_NS || now_ns - own.asked_ns < ASK_NS) return false;
  return says_no();
}

/* ---- deadlines ----------------------------------------------------------------------------- */

/* Made now, of a timeout that a text names. */
static xfi_deadline after(int64_t from_ns, int64_t ms, int64_t now_ns, int64_t named_ms)
{
  xfi_deadline deadline = {INT64_MAX, now_ns, named_ms};
  int64_t ns = 0;
  int64_t at = 0;

  if (xfi_imul_fits(ms, NS_PER_MS, &ns) && xfi_iadd_fits(from_ns, ns, &at)) deadline.at_ns = at;
  return deadline;
}

xfi_deadline xfi_deadline_after(int64_t timeout_ms)
{
  const int64_t now_ns = xfi_now_ns();

  if (timeout_ms < 0) return (xfi_deadline){INT64_MAX, now_ns, 0};
  return after(now_ns, timeout_ms, now_ns, timeout_ms);
}

bool xfi_deadline_was_cut(xfi_deadline deadline)
{
  return was_interrupted(deadline) && own.came_ns < deadline.at_ns;
}

xfi_deadline xfi_deadline_later(xfi_deadline deadline, int64_t ms)
{
  const bool cut = xfi_deadline_was_cut(deadline);

  return after(cut ? own.came_ns : deadline.at_ns, ms, xfi_now_ns(), deadline.ms);
}

bool xfi_deadline_expired(xfi_deadline deadline)
{
  const int64_t now_ns = xfi_now_ns();

  return now_ns >= deadline.at_ns || is_interrupted(deadline, now_ns);
}

const char *xfi_deadline_end(xfi_deadline deadline)
{
  const bool is_whole = deadline.ms % MS_PER_S == 0;

  if (was_interrupted(deadline)) return "this rank was interrupted";
  if (deadline.ms == 0) return "the deadline";
  (void)snprintf(end_text, sizeof end_text, "the deadline of %lld %s",
                 (long long)(is_whole ? deadline.ms / MS_PER_S : deadline.ms),
                 is_whole ? "s" : "ms");
  return end_text;
}

struct timespec xfi_deadline_timespec(xfi_deadline deadline)
{
  const int64_t soon_ns = own.fn == NULL ? INT64_MAX : xfi_now_ns() + SLEEP_NS;
  const int64_t at_ns = soon_ns < deadline.at_ns ? soon_ns : deadline.at_ns;

  return (struct timespec){.tv_sec = (time_t)(at_ns / NS_PER_S),
                           .tv_nsec = (long)(at_ns % NS_PER_S)};
}
