/* Files in memory that other processes can map: sealed, so that none of them can cut them short. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "descriptor.h"

#include <sys/mman.h>
#include <sys/resource.h>

/* None where files may not be as large: that is a signal which ends the process. */
int xfi_memory_file(const char *name, size_t n_bytes)
{
  struct rlimit most;
  int file;

  errno = EFBIG;
  if (getrlimit(RLIMIT_FSIZE, &most) != 0 || most.rlim_cur < n_bytes) return -1;
  file = xfi_descriptor_kept(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file >= 0 && ftruncate(file, (off_t)n_bytes) == 0 &&
      fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
    return file;
  return xfi_descriptor_drop(file);
}
