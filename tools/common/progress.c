#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "text.h"

#define QUIET_SECONDS 1.0
#define STEP_SECONDS 0.2

double progress_now(void)
{
  struct timespec t;

  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int ascending(const void *a, const void *b)
{
  const double x = *(const double *)a;
  const double y = *(const double *)b;

  return (x > y) - (x < y);
}

double progress_median(double *values, size_t n)
{
  qsort(values, n, sizeof *values, ascending);
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

void progress_begin(progress *p, bool on, const char *what, const char *unit, double total)
{
  *p = (progress){.what = what, .unit = unit, .total = total, .began = progress_now()};
  p->on = on && isatty(STDERR_FILENO) != 0;
  if (p->on) fprintf(stderr, "\r\033[K%s", what);
}

static void show(progress *p, double now)
{
  const double speed = p->done / (now - p->began);

  fprintf(stderr, "\r\033[K%s", p->what);
  if (p->unit == NULL && p->total > 0)
    fprintf(stderr, " %s of %s, %s/s", text_bytes(p->done).at, text_bytes(p->total).at,
            text_bytes(speed).at);
  else if (p->unit != NULL)
    fprintf(stderr, " %.0f of %.0f %s", p->done, p->total, p->unit);
  if (p->total > 0 && speed > 0)
    fprintf(stderr, ", %s left", text_seconds((p->total - p->done) / speed).at);
  p->shown = now;
}

void progress_add(progress *p, double done)
{
  double now;

  p->done += done;
  if (!p->on) return;
  now = progress_now();
  if (now - p->began >= QUIET_SECONDS && now - p->shown >= STEP_SECONDS) show(p, now);
}

void progress_end(progress *p)
{
  if (p->on) fputs("\r\033[K", stderr);
}
