/* A line on the terminal for what takes longer than a second: how much is done, how fast, how long
 * it will take. Nothing where stderr is no terminal. */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct progress {
  const char *what; /* "filling" */
  const char *unit; /* NULL: bytes; else "ranks" */
  double total;     /* 0: not known */
  double done;
  double began; /* seconds */
  double shown; /* when the line was last written; 0: never */
  bool on;
} progress;

/* `on` false: says nothing, as on ranks other than 0. */
void progress_begin(progress *p, bool on, const char *what, const char *unit, double total);
void progress_add(progress *p, double done);
/* Removes the line. */
void progress_end(progress *p);

/* Seconds of the monotonic clock, the same in every process of a host. */
double progress_now(void);
/* Of n times, which it sorts. */
double progress_median(double *values, size_t n);

#endif
