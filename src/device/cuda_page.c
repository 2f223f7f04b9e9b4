/*
 * Pages of flags: host memory that this device and the devices of other processes can access. It is
 * host memory since the host must be able to release a stream that waits. A copy to device memory
 * could not do that: streams share a few queues (8, or CUDA_DEVICE_MAX_CONNECTIONS), and one that
 * waits blocks the others of its queue.
 *
 * Another process of the same user opens a page by the number of its file in this process.
 */
#include "cuda_device.h"

#include "alloc.h"
#include "descriptor.h"
#include "error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct xfi_cuda_page {
  char *base;
  size_t n_bytes;
  int file;
  bool by_streams;
  uint64_t id;
  xfi_cuda_page *next;
};

void xfi_cuda_page_unmap(char *mapped, size_t n_bytes, bool by_streams)
{
  if (by_streams) (void)cudaHostUnregister(mapped);
  (void)munmap(mapped, n_bytes);
}

/* Maps a page's file and, `by_streams`, registers it with the device, at one address for both. */
static xfer_status page_map(int file, size_t n_bytes, bool by_streams, char **mapped)
{
  xfer_status st = XFER_OK;
  void *seen = NULL;
  bool registered = false;
  void *base = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

  XFI_CHECK_DONE(base != MAP_FAILED, XFER_ERR_NOMEM, "mmap of %zu bytes of flags: %s", n_bytes,
                 strerror(errno));
  if (by_streams) {
    XFI_CUDA_TRY_DONE(cudaHostRegister,
                      (base, n_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
    registered = true;
    XFI_CUDA_TRY_DONE(cudaHostGetDevicePointer, (&seen, base, 0));
    XFI_CHECK_DONE(seen == base, XFER_ERR_UNSUPPORTED,
                   "the CUDA device has another address for registered memory");
  }
  *mapped = base;
  base = MAP_FAILED;
done:
  if (base != MAP_FAILED) xfi_cuda_page_unmap(base, n_bytes, registered);
  return st;
}

xfer_status xfi_cuda_page_alloc(xfi_device *base, uint64_t **flags, size_t n_flags, bool by_streams)
{
  static _Atomic uint64_t last_id;
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  xfi_cuda_page *page = NULL;
  size_t unit = (size_t)sysconf(_SC_PAGESIZE);

  page = xfi_calloc(1, sizeof *page);
  XFI_CHECK_DONE(page != NULL, XFER_ERR_NOMEM, "%zu flags", n_flags);
  page->n_bytes = (n_flags * sizeof **flags + unit) / unit * unit;
  page->file = xfi_memory_file("xfer-flags", page->n_bytes);
  XFI_CHECK_DONE(page->file >= 0, XFER_ERR_NOMEM, "%zu bytes of shared memory: %s", page->n_bytes,
                 strerror(errno));
  page->by_streams = by_streams;
  XFI_TRY_DONE(page_map(page->file, page->n_bytes, by_streams, &page->base));
  page->id = ++last_id;
  page->next = device->pages;
  device->pages = page;
  *flags = (uint64_t *)(void *)page->base;
  page = NULL;
done:
  if (page != NULL && page->file >= 0) (void)close(page->file);
  xfi_free(page);
  return st;
}

void xfi_cuda_page_free(xfi_device *base, uint64_t *flags)
{
  xfi_cuda_page **at = &xfi_cuda(base)->pages;

  while (*at != NULL && (*at)->base != (char *)flags)
    at = &(*at)->next;
  xfi_cuda_page *page = *at;
  if (page == NULL) return;
  *at = page->next;
  xfi_cuda_page_unmap(page->base, page->n_bytes, page->by_streams);
  (void)close(page->file);
  xfi_free(page);
}

bool xfi_cuda_page_find(const xfi_cuda_device *device, const void *pointer, xfi_allocation *found,
                        xfi_cuda_file *file)
{
  const char *p = pointer;

  for (const xfi_cuda_page *page = device->pages; page != NULL; page = page->next) {
    struct stat about = {0};

    if (p < page->base || p >= page->base + page->n_bytes) continue;
    *found = (xfi_allocation){.base = page->base, .n_bytes = page->n_bytes, .id = page->id};
    (void)fstat(page->file, &about);
    *file = (xfi_cuda_file){getpid(), page->file, about.st_dev, about.st_ino, page->by_streams};
    return true;
  }
  return false;
}

xfer_status xfi_cuda_page_open(const xfi_cuda_file *file, size_t n_bytes, char **mapped)
{
  xfer_status st = XFER_OK;
  struct stat about;
  char path[64];

  (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", file->process, file->number);
  int here = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  XFI_CHECK_DONE(here >= 0 && fstat(here, &about) == 0 && about.st_dev == file->device &&
                     about.st_ino == file->inode,
                 XFER_ERR_UNSUPPORTED, "%s is not a peer's flags any more: %s", path,
                 here < 0 ? strerror(errno) : "another file");
  XFI_CHECK_DONE(about.st_size == (off_t)n_bytes,
                 XFER_ERR_UNSUPPORTED, /* an access past its end raises SIGBUS */
                 "%s has %lld bytes; a peer says that its flags have %zu", path,
                 (long long)about.st_size, n_bytes);
  XFI_TRY_DONE(page_map(here, n_bytes, file->by_streams != 0, mapped));
done:
  if (here >= 0) (void)close(here);
  return st;
}
