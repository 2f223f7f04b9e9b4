/*
 * Peers' memory. A handle names a whole allocation: to the same process by its address, to another
 * process of this host by CUDA IPC, by the files of its chunks (cuda_chunk.c), or by its own file
 * if it is a page of flags. Mappings are counted, and kept in order of address so that copies find
 * theirs.
 *
 * Other memory (cudaMallocAsync, pinned host memory, chunks that were not made for it) is reached
 * within the process only; such pairs take the packed lane.
 */
#include "cuda_device.h"

#include "alloc.h"
#include "error.h"
#include "vec.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { DOMAIN_BYTES = 64, BOOT_ID_BYTES = 36 };

enum handle_kind { HANDLE_LOCAL = 1, HANDLE_IPC = 2, HANDLE_PAGE = 3, HANDLE_CHUNKS = 4 };

/* What an xfi_mem_handle holds. */
typedef struct handle {
  uint32_t kind;
  int32_t ordinal;
  uint64_t process; /* a random number of the exporting process */
  uint64_t id;
  uint64_t base;
  uint64_t n_bytes;
  int32_t pid; /* of a page */
  int32_t file;
  cudaIpcMemHandle_t ipc;
  char socket[XFI_CUDA_SOCKET_BYTES]; /* of chunks */
} handle;
_Static_assert(sizeof(handle) <= sizeof(xfi_mem_handle), "a handle fits");

struct xfi_cuda_mapping {
  char *base;
  size_t n_bytes;
  uint64_t process; /* with id and origin: which allocation */
  uint64_t id;
  uint64_t origin;
  int n_refs;
  enum handle_kind kind; /* how it was mapped */
};

static uint64_t this_process;
static pthread_once_t this_process_once = PTHREAD_ONCE_INIT;

static void this_process_choose(void)
{
  if (getrandom(&this_process, sizeof this_process, 0) != (ssize_t)sizeof this_process) {
    this_process = (uint64_t)getpid() << 32 ^ (uint64_t)xfi_now_ns();
  }
}

static uint64_t process_number(void)
{
  (void)pthread_once(&this_process_once, this_process_choose);
  return this_process;
}

/* ---- who may map whom --------------------------------------------------------------------- */

static uint64_t hash_text(uint64_t hash, const char *text)
{
  for (; *text != '\0'; text++)
    hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3); /* FNV-1a */
  return hash;
}

/* One boot of one kernel, one user, and the same namespaces: a container is a host of its own. */
void xfi_cuda_domain(xfi_device *base, unsigned char domain[64])
{
  static const char *const namespaces[] = {"/proc/self/ns/pid", "/proc/self/ns/ipc",
                                           "/proc/self/ns/user"};
  char boot[BOOT_ID_BYTES + 1] = "";
  uint64_t spaces = UINT64_C(0xcbf29ce484222325);
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");

  (void)base;
  if (file != NULL) {
    if (fgets(boot, sizeof boot, file) == NULL) boot[0] = '\0';
    (void)fclose(file);
  }
  if (boot[0] == '\0')
    (void)snprintf(boot, sizeof boot, "%016llx", (unsigned long long)process_number());
  for (size_t i = 0; i < sizeof namespaces / sizeof namespaces[0]; i++) {
    char target[64] = "";
    if (readlink(namespaces[i], target, sizeof target - 1) > 0) spaces = hash_text(spaces, target);
  }
  memset(domain, 0, DOMAIN_BYTES);
  (void)snprintf((char *)domain, DOMAIN_BYTES, "%s %x %016llx", boot, (unsigned)getuid(),
                 (unsigned long long)spaces);
}

/* ---- export ------------------------------------------------------------------------------- */

xfer_status xfi_cuda_export(xfi_device *base, const xfi_allocation *allocation, xfi_mem_handle *out)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  int before = xfi_cuda_enter(device);
  xfi_cuda_pointer seen = {0};
  handle made = {.kind = HANDLE_LOCAL,
                 .ordinal = device->ordinal,
                 .process = process_number(),
                 .id = allocation->id,
                 .base = (uint64_t)(uintptr_t)allocation->base,
                 .n_bytes = allocation->n_bytes};
  xfi_allocation page;
  int file = -1;

  if (xfi_cuda_page_find(device, allocation->base, &page, &file)) {
    made.kind = HANDLE_PAGE;
    made.pid = (int32_t)getpid();
    made.file = file;
  } else {
    XFI_TRY(xfi_cuda_look(device, allocation->base, &seen));
  }
  if (seen.ipc && seen.type == CU_MEMORYTYPE_DEVICE && !seen.managed) {
    if (cudaIpcGetMemHandle(&made.ipc, allocation->base) == cudaSuccess) {
      made.kind = HANDLE_IPC;
    } else {
      (void)cudaGetLastError(); /* other processes then say that they cannot reach it */
    }
  } else if (seen.file) {
    st = xfi_cuda_chunks_offer(device, allocation, made.socket);
    if (st == XFER_OK) made.kind = HANDLE_CHUNKS;
    if (st == XFER_ERR_UNSUPPORTED) st = XFER_OK; /* likewise */
    XFI_TRY(st);
  }
  memset(out, 0, sizeof *out);
  memcpy(out, &made, sizeof made);
done:
  xfi_cuda_leave(device, before);
  return st;
}

/* ---- import ------------------------------------------------------------------------------- */

/* The first mapping that begins above p. */
static size_t mapping_above(const xfi_cuda_device *device, const char *p)
{
  size_t lo = 0;
  size_t hi = device->n_mappings;

  while (lo < hi) {
    size_t mid = lo + (hi - lo) / 2;
    if (device->mappings[mid].base <= p) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return lo;
}

bool xfi_cuda_is_imported(const xfi_cuda_device *device, const void *pointer)
{
  size_t at = mapping_above(device, pointer);

  if (at == 0) return false;
  const xfi_cuda_mapping *mapping = &device->mappings[at - 1];
  return (const char *)pointer < mapping->base + mapping->n_bytes;
}

/* Same process: every address is valid here; only the way between the devices may have to be
 * opened. */
static xfer_status reach_within_process(xfi_cuda_device *device, const handle *from)
{
  xfer_status st = XFER_OK;
  int can = 0;

  if (from->ordinal == device->ordinal || from->kind == HANDLE_PAGE) return XFER_OK;
  XFI_CHECK(from->kind == HANDLE_IPC, XFER_ERR_UNSUPPORTED,
            "memory of device %d is not of cudaMalloc: device %d may not be allowed to reach it",
            from->ordinal, device->ordinal);
  XFI_CUDA_TRY(cudaDeviceCanAccessPeer, (&can, device->ordinal, from->ordinal));
  XFI_CHECK(can != 0, XFER_ERR_UNSUPPORTED, "device %d cannot reach memory of device %d",
            device->ordinal, from->ordinal);
  cudaError_t error = cudaDeviceEnablePeerAccess(from->ordinal, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
    error = cudaSuccess;
  }
  if (error != cudaSuccess) st = xfi_cuda_failed(error, "cudaDeviceEnablePeerAccess");
done:
  return st;
}

static xfer_status map_by_ipc(const handle *from, char **mapped)
{
  xfer_status st = XFER_OK;
  void *base = NULL;

  XFI_CHECK(from->kind == HANDLE_IPC, XFER_ERR_UNSUPPORTED,
            "memory of device %d is neither of cudaMalloc nor in chunks that leave their process",
            from->ordinal);
  cudaError_t error = cudaIpcOpenMemHandle(&base, from->ipc, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    (void)xfi_cuda_failed(error, "cudaIpcOpenMemHandle");
    st = XFER_ERR_UNSUPPORTED; /* the pair takes another lane */
    goto done;
  }
  *mapped = base;
done:
  return st;
}

xfer_status xfi_cuda_import(xfi_device *base, const xfi_mem_handle *in, void **out)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  int before = xfi_cuda_enter(device);
  handle from;
  char *mapped = NULL;
  enum handle_kind kind = HANDLE_LOCAL;

  memcpy(&from, in, sizeof from);
  for (size_t i = 0; i < device->n_mappings; i++) {
    xfi_cuda_mapping *known = &device->mappings[i];
    if (known->id != from.id || known->process != from.process || known->origin != from.base)
      continue;
    known->n_refs++;
    *out = known->base;
    goto done;
  }
  XFI_TRY(xfi_vec_reserve(&device->mappings, &device->cap_mappings, device->n_mappings + 1,
                          sizeof *device->mappings));
  if (from.kind == HANDLE_CHUNKS &&
      (from.process != process_number() || from.ordinal != device->ordinal)) {
    XFI_TRY(xfi_cuda_chunks_map(device, from.socket, from.base, from.n_bytes, &mapped));
    kind = HANDLE_CHUNKS;
  } else if (from.process == process_number()) {
    XFI_TRY(reach_within_process(device, &from));
    mapped = (char *)(uintptr_t)from.base; /* NOLINT: it came as a number */
  } else if (from.kind == HANDLE_PAGE) {
    XFI_TRY(xfi_cuda_page_open(from.pid, from.file, from.n_bytes, &mapped));
    kind = HANDLE_PAGE;
  } else {
    XFI_TRY(map_by_ipc(&from, &mapped));
    kind = HANDLE_IPC;
  }
  size_t at = mapping_above(device, mapped);
  memmove(device->mappings + at + 1, device->mappings + at,
          (device->n_mappings - at) * sizeof *device->mappings);
  device->mappings[at] = (xfi_cuda_mapping){.base = mapped,
                                            .n_bytes = from.n_bytes,
                                            .process = from.process,
                                            .id = from.id,
                                            .origin = from.base,
                                            .n_refs = 1,
                                            .kind = kind};
  device->n_mappings++;
  *out = mapped;
done:
  xfi_cuda_leave(device, before);
  return st;
}

static void mapping_close(const xfi_cuda_device *device, const xfi_cuda_mapping *mapping)
{
  if (mapping->kind == HANDLE_IPC) (void)cudaIpcCloseMemHandle(mapping->base);
  if (mapping->kind == HANDLE_PAGE) xfi_cuda_page_unmap(mapping->base, mapping->n_bytes);
  if (mapping->kind == HANDLE_CHUNKS)
    xfi_cuda_chunks_unmap(device, mapping->base, mapping->n_bytes);
}

void xfi_cuda_unimport(xfi_device *base, void *mapped)
{
  xfi_cuda_device *device = xfi_cuda(base);
  size_t above = mapping_above(device, mapped);

  if (above == 0) return;
  xfi_cuda_mapping *mapping = &device->mappings[above - 1];
  if (mapping->base != mapped || --mapping->n_refs > 0) return;
  int before = xfi_cuda_enter(device);
  mapping_close(device, mapping);
  xfi_cuda_leave(device, before);
  memmove(mapping, mapping + 1, (device->n_mappings - above) * sizeof *mapping);
  device->n_mappings--;
}

void xfi_cuda_unimport_all(xfi_cuda_device *device)
{
  for (size_t i = 0; i < device->n_mappings; i++)
    mapping_close(device, &device->mappings[i]);
  xfi_free(device->mappings);
  device->mappings = NULL;
  device->n_mappings = 0;
}
