/* File descriptors that the library keeps. */
#ifndef XFI_DESCRIPTOR_H
#define XFI_DESCRIPTOR_H

#include "door.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>

/* The descriptor, or another one for it where it is the number of stdin, stdout or stderr, which a
 * daemon may have closed and would still print to; -1 stays that. Where there is no other it is
 * closed: -1, and errno. */
static inline int xfi_descriptor_kept(int made)
{
  int kept;
  int error;

  if (made < 0 || made > STDERR_FILENO) return made;
  kept = fcntl(made, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  error = errno;
  (void)close(made);
  errno = error;
  return kept;
}

/* A file in memory, of zeros, whose size nobody changes any more, so that who maps it cannot be
 * made to touch what is not there; -1 and errno. The name is what /proc shows. */
XFI_DOOR int xfi_memory_file(const char *name, size_t n_bytes);

#endif
