#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xfer/xfer.h>

static char path[4096];
static atomic_int why; /* it could not be written; 0: it could */

/* The library tells by a line that it has given up the file, and errno is the reason. */
static void note(void *context, int level, int rank, const char *line)
{
  (void)context;
  (void)level;
  if (rank < 0 && strstr(line, "XFER_TRACE") != NULL) atomic_store(&why, errno != 0 ? errno : EIO);
}

/* `name` with the host for %h and the process for %p. */
static void expand(const char *name)
{
  char host[64] = "";
  size_t n = 0;

  gethostname(host, sizeof host - 1);
  for (; *name != '\0' && n + sizeof host < sizeof path; name++) {
    const char of = name[0] == '%' ? name[1] : '\0';

    if (of == 'h')
      n += (size_t)snprintf(path + n, sizeof path - n, "%s", host);
    else if (of == 'p')
      n += (size_t)snprintf(path + n, sizeof path - n, "%ld", (long)getpid());
    else
      path[n++] = *name;
    if (of == 'h' || of == 'p') name++;
  }
  path[n] = '\0';
  if (*name != '\0') atomic_store(&why, ENAMETOOLONG);
}

void trace_ask(const char *name, int rank)
{
  expand(name);
  if (rank >= 0) snprintf(path + strlen(path), sizeof path - strlen(path), ".%d", rank);
  const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) atomic_store(&why, errno);
  if (file < 0 || atomic_load(&why) != 0) return;
  close(file);
  setenv("XFER_TRACE", path, 1);
  xfer_log_set(note, NULL, XFER_LOG_WARN);
}

bool trace_is_written(const char **at)
{
  *at = path;
  if (atomic_load(&why) == 0 && fflush(NULL) != 0) atomic_store(&why, errno);
  errno = atomic_load(&why);
  return errno == 0;
}
