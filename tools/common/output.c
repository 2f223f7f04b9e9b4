#include "output.h"

#include <errno.h>
#include <unistd.h>

bool output_begin(output *out, const char *path)
{
  const int n = snprintf(out->path, sizeof out->path, "%s", path);

  out->file = NULL;
  errno = path[0] == '\0' ? ENOENT : ENAMETOOLONG;
  if (n <= 0 || (size_t)n >= sizeof out->path) return false;
  snprintf(out->partial, sizeof out->partial, "%s.partial", path);
  out->file = fopen(out->partial, "wb");
  return out->file != NULL;
}

bool output_end(output *out, bool ok)
{
  int error = ok ? 0 : errno;

  if (ok && (fflush(out->file) != 0 || ferror(out->file) != 0)) error = errno;
  if (fclose(out->file) != 0 && error == 0) error = errno;
  if (ok && error == 0 && rename(out->partial, out->path) != 0) error = errno;
  if (!ok || error != 0) unlink(out->partial);
  errno = error;
  return ok && error == 0;
}
