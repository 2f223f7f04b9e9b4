#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Finds the full path of a file that does not exist yet, in a folder that does. */
static bool find_new(char found[OUTPUT_PATH_BYTES], const char *path)
{
  char folder[OUTPUT_PATH_BYTES];
  size_t n = strlen(path), first;

  while (n > 1 && path[n - 1] == '/')
    n--;
  for (first = n; first > 0 && path[first - 1] != '/';)
    first--;
  snprintf(folder, sizeof folder, "%.*s", first > 0 ? (int)first : 1, first > 0 ? path : ".");
  char *real = first < sizeof folder ? realpath(folder, NULL) : NULL;
  if (real == NULL && first >= sizeof folder) errno = ENAMETOOLONG;
  if (real == NULL) return false;
  const int length =
      snprintf(found, OUTPUT_PATH_BYTES, "%s/%.*s", real, (int)(n - first), path + first);
  free(real);
  if (length >= OUTPUT_PATH_BYTES) errno = ENAMETOOLONG;
  return length < OUTPUT_PATH_BYTES;
}

/* The path without links. False: errno. */
static bool find(char found[OUTPUT_PATH_BYTES], const char *path)
{
  char *real = realpath(path, NULL);

  if (real == NULL) return find_new(found, path);
  const int length = snprintf(found, OUTPUT_PATH_BYTES, "%s", real);
  free(real);
  return length < OUTPUT_PATH_BYTES; /* PATH_MAX is not more */
}

bool output_is_same(const char *a, const char *b)
{
  char x[OUTPUT_PATH_BYTES], y[OUTPUT_PATH_BYTES];
  struct stat of_a, of_b;

  if (stat(a, &of_a) == 0 && stat(b, &of_b) == 0)
    return of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
  return strcmp(a, b) == 0 || (find(x, a) && find(y, b) && strcmp(x, y) == 0);
}

static bool goes_to_stdout(const struct stat *about)
{
  struct stat of_stdout;

  return S_ISREG(about->st_mode) && fstat(STDOUT_FILENO, &of_stdout) == 0 &&
         about->st_dev == of_stdout.st_dev && about->st_ino == of_stdout.st_ino;
}

bool output_is_stdout(const char *path)
{
  struct stat about;

  return stat(path, &about) == 0 && goes_to_stdout(&about);
}

/* A new file beside the one it is to become; no link is followed, and none that is there is
 * touched. */
static int open_partial(output *out)
{
  static atomic_uint number;
  const char *name = strrchr(out->path, '/');
  const int n = (int)(name != NULL ? name + 1 - out->path : 0);
  int file;

  do {
    snprintf(out->partial, sizeof out->partial, "%.*sxfer-%ld-%u.partial", n, out->path,
             (long)getpid(), atomic_fetch_add(&number, 1));
    file = open(out->partial, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  } while (file < 0 && errno == EEXIST);
  if (file < 0) out->partial[0] = '\0';
  return file;
}

bool output_begin(output *out, const char *path)
{
  struct stat about;
  int file = -1;

  out->file = NULL;
  out->partial[0] = '\0';
  if (path[0] == '\0') errno = ENOENT;
  if (path[0] == '\0' || !find(out->path, path)) return false;
  const bool is_there = stat(out->path, &about) == 0;
  if (is_there && S_ISDIR(about.st_mode))
    errno = EISDIR;
  else if (is_there && goes_to_stdout(&about))
    file = fflush(stdout) == 0 ? dup(STDOUT_FILENO) : -1;
  else if (is_there && !S_ISREG(about.st_mode))
    file = open(out->path, O_WRONLY | O_CLOEXEC);
  else
    file = open_partial(out);
  if (file < 0) return false;
  out->file = fdopen(file, "wb");
  if (out->file != NULL) return true;
  close(file);
  if (out->partial[0] != '\0') unlink(out->partial);
  errno = ENOMEM;
  return false;
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
