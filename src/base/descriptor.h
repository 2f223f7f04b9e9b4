/* File descriptors that the library keeps open. */
#ifndef XFI_DESCRIPTOR_H
#define XFI_DESCRIPTOR_H

#include "plugin_api.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>

/* Closes a file, if there is one, and leaves errno as it is. Returns -1. */
static inline int xfi_descriptor_drop(int file)
{
  const int error = errno;

  if (file >= 0) (void)close(file);
  errno = error;
  return -1;
}

/* The descriptor, or a duplicate if it has the number of stdin, stdout or stderr, which a daemon
 * may have closed but still prints to. -1, with errno, if there is none; -1 stays -1. */
static inline int xfi_descriptor_kept(int made)
{
  int kept;

  if (made < 0 || made > STDERR_FILENO) return made;
  kept = fcntl(made, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  (void)xfi_descriptor_drop(made);
  return kept;
}

/* A file in memory, zeroed and sealed against resizing, so that a mapping of it never reaches past
 * its end; -1, with errno, if it cannot be made. /proc shows the name. */
XFI_PLUGIN_API int xfi_memory_file(const char *name, size_t n_bytes);

#endif
