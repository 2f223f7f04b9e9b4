/* Which of the changes that mutants.py put into the source is taken: XFER_MUTANT, a number. Each
 * that is come by is noted in the file XFER_MUTANTS_REACHED, a byte for each. */
#ifndef XFI_MUTANT_H
#define XFI_MUTANT_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { XFI_MUTANTS_MOST = 1 << 16 };

static long xfi_mutant_taken = -1;
static volatile char *xfi_mutants_reached;

__attribute__((constructor)) static void xfi_mutant_read(void)
{
  const char *number = getenv("XFER_MUTANT");
  const char *path = getenv("XFER_MUTANTS_REACHED");

  if (number != NULL) xfi_mutant_taken = strtol(number, NULL, 10);
  if (path != NULL) {
    const int fd = open(path, O_RDWR);
    void *map = fd < 0 ? MAP_FAILED
                       : mmap(NULL, XFI_MUTANTS_MOST, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (fd >= 0) (void)close(fd);
    if (map != MAP_FAILED) xfi_mutants_reached = map;
  }
}

static inline bool xfi_mutant(long number)
{
  if (xfi_mutants_reached != NULL) xfi_mutants_reached[number] = 1;
  return number == xfi_mutant_taken;
}
#define XFI_MUTANT(number) __builtin_expect(xfi_mutant(number), 0)

#endif
