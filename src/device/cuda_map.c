/*
 * Peers' memory, exported and mapped at commit. A handle names a whole allocation: to the same
 * process by its address, to another process of this host by CUDA IPC, by the files of its chunks
 * (cuda_chunk.c), or by its own file if it is a page of flags. Mappings are counted, and kept in
 * two trees: by address, where copies find theirs, and by the allocation that is mapped.
 *
 * Other memory (cudaMallocAsync, pinned host memory, chunks that were not made for export) is
 * reached within the process only; other pairs use the packed lane for it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* of socket.h */
#endif
#include "cuda_device.h"

#include "alloc.h"
#include "error.h"
#include "process.h"
#include "socket.h"

#include <search.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { DOMAIN_BYTES = 64, BOOT_ID_BYTES = 36 };

enum handle_kind { HANDLE_LOCAL = 1, HANDLE_IPC = 2, HANDLE_PAGE = 3, HANDLE_CHUNKS = 4 };

/* What an xfi_mem_handle holds. */
typedef struct handle {
  uint32_t kind;
  int32_t ordinal;
  uint64_t gpu;
  uint64_t process; /* xfi_process_number() of the exporter */
  uint64_t id;
  uint64_t base;
  uint64_t n_bytes;
  xfi_cuda_file file; /* of a page */
  cudaIpcMemHandle_t ipc;
  char socket[XFI_SOCKET_NAME_BYTES]; /* of chunks */
} handle;
_Static_assert(sizeof(handle) <= sizeof(xfi_mem_handle), "a handle fits");

/* Which allocation of which process: no two have all three in common. */
typedef struct allocation_key {
  uint64_t process;
  uint64_t id;
  uint64_t base; /* there */
} allocation_key;

typedef struct mapping {
  xfi_mapping seen; /* what callers see */
  size_t n_bytes;
  allocation_key key;
  int n_refs;
  bool is_across;        /* on another GPU */
  bool by_streams;       /* of a page */
  enum handle_kind kind; /* how it was mapped */
} mapping;

uint64_t xfi_cuda_locality(int ordinal)
{
  return (xfi_process_number() & ~UINT64_C(0xff)) | (uint64_t)ordinal | UINT64_C(1) << 63;
}

/* ---- who may map whom --------------------------------------------------------------------- */

static uint64_t hash_text(uint64_t hash, const char *text)
{
  for (; *text != '\0'; text++)
    hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3); /* FNV-1a */
  return hash;
}

xfer_status xfi_cuda_gpu(uint64_t *gpu, int ordinal)
{
  char bus[32] = "";

  XFI_CUDA_TRY(cudaDeviceGetPCIBusId, (bus, sizeof bus, ordinal));
  *gpu = hash_text(UINT64_C(0xcbf29ce484222325), bus);
  return XFER_OK;
}

/* Ranks may map each other's memory if boot, user and namespaces are the same: a container counts
 * as a host of its own. */
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
    (void)snprintf(boot, sizeof boot, "%016llx", (unsigned long long)xfi_process_number());
  for (size_t i = 0; i < sizeof namespaces / sizeof namespaces[0]; i++) {
    char target[64] = "";
    if (readlink(namespaces[i], target, sizeof target - 1) > 0) spaces = hash_text(spaces, target);
  }
  memset(domain, 0, DOMAIN_BYTES);
  (void)snprintf((char *)domain, DOMAIN_BYTES, "%s %x %016llx", boot, (unsigned)getuid(),
                 (unsigned long long)spaces);
}

/* ---- export ------------------------------------------------------------------------------- */

xfer_status xfi_cuda_export(xfi_device *base, xfi_allocation allocation, xfi_mem_handle *out)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  xfi_cuda_pointer seen = {0};
  handle made = {.kind = HANDLE_LOCAL,
                 .ordinal = device->ordinal,
                 .gpu = device->base.gpu,
                 .process = xfi_process_number(),
                 .id = allocation.id,
                 .base = (uint64_t)(uintptr_t)allocation.base,
                 .n_bytes = allocation.n_bytes};
  xfi_allocation page;

  if (xfi_cuda_page_find(device, allocation.base, &page, &made.file)) {
    made.kind = HANDLE_PAGE;
  } else {
    XFI_TRY(xfi_cuda_inspect(device, allocation.base, &seen));
  }
  if (seen.ipc && seen.type == CU_MEMORYTYPE_DEVICE && !seen.managed) {
    if (cudaIpcGetMemHandle(&made.ipc, allocation.base) == cudaSuccess) {
      made.kind = HANDLE_IPC;
    } else {
      (void)cudaGetLastError(); /* other processes then report that they cannot map it */
    }
  } else if (seen.file) {
    st = xfi_cuda_chunks_export(device, &allocation, made.socket);
    if (st == XFER_OK) made.kind = HANDLE_CHUNKS;
    if (st == XFER_ERR_UNSUPPORTED) st = XFER_OK; /* likewise */
    XFI_TRY(st);
  }
  memset(out, 0, sizeof *out);
  memcpy(out, &made, sizeof made);
  return st;
}

/* ---- import ------------------------------------------------------------------------------- */

/* The order of mappings by address. Intervals that overlap count as equal: those of two mappings
 * never do. */
static int by_address(const void *a, const void *b)
{
  const mapping *x = a;
  const mapping *y = b;

  if (x->seen.base + x->n_bytes <= y->seen.base) return -1;
  return x->seen.base >= y->seen.base + y->n_bytes;
}

static int by_allocation(const void *a, const void *b)
{
  return memcmp(&((const mapping *)a)->key, &((const mapping *)b)->key, sizeof(allocation_key));
}

/* The mapping in a node of a tree; NULL if that is NULL. */
static mapping *mapping_in(void *node)
{
  return node == NULL ? NULL : *(mapping **)node;
}

static mapping *mapping_at(const xfi_cuda_device *device, const void *pointer)
{
  const mapping one_byte = {.seen = {(char *)pointer}, .n_bytes = 1}; /* only compared */

  return mapping_in(tfind(&one_byte, &device->mappings, by_address));
}

xfi_cuda_span xfi_cuda_mapped(const xfi_cuda_device *device, const void *pointer)
{
  const mapping *found = mapping_at(device, pointer);

  if (found == NULL) return (xfi_cuda_span){NULL, 0};
  return (xfi_cuda_span){found->seen.base, found->n_bytes};
}

bool xfi_cuda_suits_engine(const xfi_cuda_device *device, const xfi_copy *copy, bool beside,
                           xfi_cuda_span *last)
{
  const mapping *found;

  if (xfi_cuda_is_in(last, copy->dst) || xfi_cuda_is_in(last, copy->src)) return true;
  found = mapping_at(device, copy->dst);
  if (found == NULL || !found->is_across) found = mapping_at(device, copy->src);
  if (found == NULL || !found->is_across) return false;
  if (beside && found->kind == HANDLE_IPC && found->n_bytes % XFI_CUDA_IPC_BYTES != 0) return false;
  *last = (xfi_cuda_span){found->seen.base, found->n_bytes};
  return true;
}

/* Memory of the same process needs no mapping, since every address is valid. Only peer access
 * between the two devices may be missing. */
static xfer_status reach_within_process(xfi_cuda_device *device, const handle *from)
{
  xfer_status st = XFER_OK;
  int can = 0;

  if (from->ordinal == device->ordinal) return XFER_OK;
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
  if (error != cudaSuccess) { /* for example too many peers: the pair takes another lane */
    (void)xfi_cuda_failed(error, "cudaDeviceEnablePeerAccess");
    st = XFER_ERR_UNSUPPORTED;
  }
  return st;
}

static xfer_status map_by_ipc(const handle *from, char **mapped)
{
  void *base = NULL;

  XFI_CHECK(from->kind == HANDLE_IPC, XFER_ERR_UNSUPPORTED,
            "memory of device %d is neither of cudaMalloc nor in chunks that leave their process",
            from->ordinal);
  cudaError_t error = cudaIpcOpenMemHandle(&base, from->ipc, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    (void)xfi_cuda_failed(error, "cudaIpcOpenMemHandle");
    return XFER_ERR_UNSUPPORTED; /* the pair takes another lane */
  }
  *mapped = base;
  return XFER_OK;
}

/* Maps the allocation of a handle. */
static xfer_status open_mapping(mapping *m, xfi_cuda_device *device, const handle *from,
                                xfi_deadline deadline)
{
  const bool same_process = from->process == xfi_process_number();

  m->kind = from->kind;
  if (from->kind == HANDLE_CHUNKS && (!same_process || from->ordinal != device->ordinal)) {
    XFI_TRY(xfi_cuda_chunks_map(device, from->socket, from->base, from->n_bytes, &m->seen.base,
                                deadline));
  } else if (from->kind ==
             HANDLE_PAGE) { /* within the process too, since it lives until all are done with it */
    m->by_streams = from->file.by_streams != 0;
    XFI_TRY(xfi_cuda_page_open(&from->file, from->n_bytes, &m->seen.base));
  } else if (same_process) {
    XFI_TRY(reach_within_process(device, from));
    m->seen.base = (char *)(uintptr_t)from->base; /* NOLINT: sent as a number */
    m->kind = HANDLE_LOCAL;
  } else {
    XFI_TRY(map_by_ipc(from, &m->seen.base));
  }
  return XFER_OK;
}

static void close_mapping(const xfi_cuda_device *device, const mapping *m)
{
  if (m->kind == HANDLE_IPC) (void)cudaIpcCloseMemHandle(m->seen.base);
  if (m->kind == HANDLE_PAGE) xfi_cuda_page_unmap(m->seen.base, m->n_bytes, m->by_streams);
  if (m->kind == HANDLE_CHUNKS) xfi_cuda_chunks_unmap(device, m->seen.base, m->n_bytes);
}

/* Remove a mapping from both trees, if it is in them. */
static void forget(xfi_cuda_device *device, mapping *m)
{
  if (mapping_in(tfind(m, &device->mappings, by_address)) == m)
    (void)tdelete(m, &device->mappings, by_address);
  if (mapping_in(tfind(m, &device->known, by_allocation)) == m)
    (void)tdelete(m, &device->known, by_allocation);
}

/* Make room for a new mapping in the tree of addresses. There may be an old one of this process's
 * own memory, which has been freed since then: a plan that does not know this yet will release it
 * later. Nothing is mapped for it, and copies must not find it. (Or it is of other chunks of this
 * device, some of which are in the new one too; what copies would learn of them, they ask the
 * driver.) */
static void displace(xfi_cuda_device *device, const mapping *made)
{
  mapping *m;

  while ((m = mapping_in(tfind(made, &device->mappings, by_address))) != NULL &&
         m->kind == HANDLE_LOCAL)
    forget(device, m);
}

xfer_status xfi_cuda_import(xfi_device *base, const xfi_mem_handle *in, xfi_mapping **out,
                            xfi_deadline deadline)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  handle from;
  mapping *made = NULL;
  mapping *known;

  memcpy(&from, in, sizeof from);
  const allocation_key key = {from.process, from.id, from.base};
  known = mapping_in(tfind(&(mapping){.key = key}, &device->known, by_allocation));
  if (known != NULL) {
    known->n_refs++;
    *out = &known->seen;
    return XFER_OK;
  }
  made = xfi_calloc(1, sizeof *made);
  XFI_CHECK_DONE(made != NULL, XFER_ERR_NOMEM, "a mapping");
  *made = (mapping){
      .n_bytes = from.n_bytes, .key = key, .n_refs = 1, .is_across = from.gpu != device->base.gpu};
  XFI_TRY_DONE(open_mapping(made, device, &from, deadline));
  device->maps_across = device->maps_across || made->is_across;
  displace(device, made);
  if (mapping_in(tsearch(made, &device->mappings, by_address)) != made ||
      mapping_in(tsearch(made, &device->known, by_allocation)) != made) {
    forget(device, made);
    close_mapping(device, made);
    XFI_CHECK_DONE(false, XFER_ERR_NOMEM, "a mapping of %zu bytes", made->n_bytes);
  }
  *out = &made->seen;
  made = NULL;
done:
  xfi_free(made);
  return st;
}

void xfi_cuda_unimport(xfi_device *base, xfi_mapping *given)
{
  xfi_cuda_device *device = xfi_cuda(base);
  mapping *m = (mapping *)given;

  if (--m->n_refs > 0) return;
  forget(device, m);
  close_mapping(device, m);
  xfi_free(m);
}
