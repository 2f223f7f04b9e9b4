#include "trace.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xfer/xfer.h>

static char path[4096];
static atomic_int why; /* it could not be written; 0: it could */

/* The library tells of either file that it has given it up, and by errno the reason. */
static void note(void *context, int level, int rank, const char *line)
{
  (void)context;
  (void)level;
  if (rank < 0 && strstr(line, "XFER_TRACE") != NULL) atomic_store(&why, errno);
}

void trace_ask(const char *name, int rank)
{
  const int n = rank < 0 ? snprintf(path, sizeof path, "%s", name)
                         : snprintf(path, sizeof path, "%s.%d", name, rank);

  if (n >= (int)sizeof path) atomic_store(&why, ENAMETOOLONG);
  if (n >= (int)sizeof path) return;
  setenv("XFER_TRACE", path, 1);
  xfer_log_set(note, NULL, XFER_LOG_WARN);
}

bool trace_is_written(const char **at)
{
  *at = path;
  errno = atomic_load(&why);
  return errno == 0;
}
