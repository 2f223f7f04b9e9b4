#include "output.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* The file that `path` leads to, links followed, so that a link stays one. False: errno. */
static bool resolve(output *out, const char *path, bool *is_special)
{
  struct stat about;
  char *real = realpath(path, NULL);
  const int n = snprintf(out->path, sizeof out->path, "%s", real != NULL ? real : path);

  free(real);
  *is_special = n > 0 && stat(out->path, &about) == 0 && !S_ISREG(about.st_mode);
  errno = *is_special && S_ISDIR(about.st_mode) ? EISDIR : n <= 0 ? ENOENT : ENAMETOOLONG;
  return n > 0 && (size_t)n < sizeof out->path && !(*is_special && S_ISDIR(about.st_mode));
}

bool output_begin(output *out, const char *path)
{
  bool is_special;

  out->file = NULL;
  out->partial[0] = '\0';
  if (!resolve(out, path, &is_special)) return false;
  if (!is_special) snprintf(out->partial, sizeof out->partial, "%s.partial", out->path);
  out->file = fopen(is_special ? out->path : out->partial, "wb");
  return out->file != NULL;
}

bool output_end(output *out, bool ok)
{
  const bool renamed = out->partial[0] != '\0';
  int error = ok ? 0 : errno;

  if (ok && (fflush(out->file) != 0 || ferror(out->file) != 0)) error = errno;
  if (fclose(out->file) != 0 && error == 0) error = errno;
  if (ok && error == 0 && renamed && rename(out->partial, out->path) != 0) error = errno;
  if (renamed && (!ok || error != 0)) unlink(out->partial);
  errno = error;
  return ok && error == 0;
}
