#include "trace.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xfer/xfer.h>

#include "output.h"

static char path[OUTPUT_PATH_BYTES];
static output file;    /* in whose place the library writes, where file.partial is not empty */
static atomic_int why; /* it could not be written; 0: it could */

/* The library tells of either file that it has given it up, and by errno the reason. */
static void note(void *context, xfer_log_level level, int rank, const char *line)
{
  (void)context;
  (void)level;
  if (rank < 0 && strstr(line, "XFER_TRACE") != NULL) atomic_store(&why, errno);
}

/* Does the library have to write in the place itself? Begins `file` if not. */
static bool is_written_in_place(void)
{
  struct stat about;

  if (strchr(path, '%') != NULL || (stat(path, &about) == 0 && !S_ISREG(about.st_mode)))
    return true;
  if (!output_begin(&file, path)) {
    atomic_store(&why, errno);
    return false;
  }
  if (strchr(file.partial, '%') == NULL) return false;
  (void)output_end(&file, false);
  return true;
}

void trace_ask(const char *name, int rank)
{
  const int n = rank < 0 ? snprintf(path, sizeof path, "%s", name)
                         : snprintf(path, sizeof path, "%s.%d", name, rank);

  if (n >= (int)sizeof path) atomic_store(&why, ENAMETOOLONG);
  if (n >= (int)sizeof path) return;
  const bool in_place = is_written_in_place();
  if (atomic_load(&why) != 0) return;
  setenv("XFER_TRACE", in_place ? path : file.partial, 1);
  xfer_log_set(note, NULL, XFER_LOG_WARN);
}

bool trace_is_written(const char **at)
{
  *at = path;
  errno = atomic_load(&why);
  return errno == 0;
}

void trace_end(bool keep)
{
  const char *at;

  if (file.file == NULL) return;
  (void)output_end(&file, trace_is_written(&at) && keep);
  file.file = NULL;
}
