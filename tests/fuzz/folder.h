/* A folder of the process's own for files that readers are given; gone when it ends, but by a
 * finding. */
#ifndef FUZZ_FOLDER_H
#define FUZZ_FOLDER_H

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static char fuzz_folder_path[] = "/dev/shm/xfer-fuzz-XXXXXX";

static inline void fuzz_folder_remove(void)
{
  DIR *folder = opendir(fuzz_folder_path);

  for (struct dirent *each; folder != NULL && (each = readdir(folder)) != NULL;)
    (void)unlinkat(dirfd(folder), each->d_name, 0);
  if (folder != NULL) (void)closedir(folder);
  (void)rmdir(fuzz_folder_path);
}

static inline const char *fuzz_folder(void)
{
  static const char *made;

  if (made != NULL) return made;
  made = mkdtemp(fuzz_folder_path);
  if (made == NULL || atexit(fuzz_folder_remove) != 0) abort();
  return made;
}

#endif
