/*
 * What the files of the CUDA device share. cuda.c: memory, streams, events; cuda_batch.c: copies;
 * cuda_flags.c: signals and their deadlines; cuda_page.c: where the signals lie; cuda_map.c: peers'
 * memory; cuda_chunk.c: that which is mapped chunk by chunk.
 */
#ifndef XFI_CUDA_DEVICE_H
#define XFI_CUDA_DEVICE_H

#include "device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cudaTypedefs.h>
#include <pthread.h>

/* The few driver functions without a runtime twin, found at run time: no link to libcuda. */
typedef struct xfi_cuda_driver {
  PFN_cuDeviceGetAttribute_v2000 device_attribute;
  PFN_cuPointerGetAttribute_v4000 pointer_attribute;
  PFN_cuPointerGetAttributes_v7000 pointer_attributes;
  PFN_cuMemGetAddressRange_v3020 address_range;
  PFN_cuStreamBatchMemOp_v11070 stream_mem_ops;
  PFN_cuMemAddressReserve_v10020 address_reserve;
  PFN_cuMemAddressFree_v10020 address_free;
  PFN_cuMemMap_v10020 map;
  PFN_cuMemUnmap_v10020 unmap;
  PFN_cuMemSetAccess_v10020 set_access;
  PFN_cuMemRelease_v10020 release;
  PFN_cuMemRetainAllocationHandle_v11000 retain;
  PFN_cuMemExportToShareableHandle_v10020 export_handle;
  PFN_cuMemImportFromShareableHandle_v10020 import_handle;
  PFN_cuGetErrorName_v6000 error_name;
} xfi_cuda_driver;

/* An interval of addresses. */
typedef struct xfi_cuda_range {
  const char *base;
  size_t n_bytes;
} xfi_cuda_range;

typedef struct xfi_cuda_mapping xfi_cuda_mapping; /* cuda_map.c */

typedef struct xfi_cuda_page xfi_cuda_page; /* cuda_page.c */

typedef struct xfi_cuda_offers xfi_cuda_offers; /* cuda_chunk.c */

/* A wait on the device that must end by its deadline. */
typedef struct xfi_cuda_watch {
  const uint64_t *flag;
  uint64_t value;
  int64_t at_ns;
} xfi_cuda_watch;

typedef struct xfi_cuda_device {
  xfi_device base;
  int ordinal;
  bool has_wait64;    /* streams can wait on 64-bit words */
  cudaStream_t aside; /* for uploads whatever the other streams do */
  xfi_cuda_driver driver;

  xfi_cuda_range *own; /* [n_own] of alloc(), to tell staging from tensors */
  size_t n_own;
  size_t cap_own;

  xfi_cuda_page *pages; /* of flags_alloc() */

  xfi_cuda_offers *offers; /* to peers, in chunks; NULL: none now */

  xfi_cuda_mapping *mappings; /* [n_mappings], ascending in base */
  size_t n_mappings;
  size_t cap_mappings;

  /* Below: guarded by lock, since the watcher runs beside the owner. */
  pthread_mutex_t lock;
  pthread_cond_t wake;
  pthread_t watcher;
  bool has_watcher;
  bool stop;
  int64_t sleeps_until_ns;
  xfi_cuda_watch *watches; /* [n_watches of XFI_CUDA_WATCHES] */
  size_t n_watches;
  const uint64_t *late;
} xfi_cuda_device;

enum { XFI_CUDA_WATCHES = 4096 };

static inline xfi_cuda_device *xfi_cuda(xfi_device *device)
{
  return (xfi_cuda_device *)device;
}

/* Make the device current; what was before goes back with leave. */
int xfi_cuda_enter(const xfi_cuda_device *device);
void xfi_cuda_leave(const xfi_cuda_device *device, int before);

/* Sets the text and gives the status for a failed runtime or driver call. */
xfer_status xfi_cuda_failed(cudaError_t error, const char *call);
xfer_status xfi_cuda_driver_failed(const xfi_cuda_device *device, CUresult error, const char *call);

/* XFI_CUDA_TRY(cudaMalloc, (&p, n)) */
#define XFI_CUDA_TRY(function, arguments)                                                          \
  do {                                                                                             \
    cudaError_t xfi_error = function arguments;                                                    \
    if (xfi_error != cudaSuccess) {                                                                \
      st = xfi_cuda_failed(xfi_error, #function);                                                  \
      goto done;                                                                                   \
    }                                                                                              \
  } while (0)

/* What the driver says about a pointer. */
typedef struct xfi_cuda_pointer {
  unsigned type; /* CUmemorytype; 0: pageable */
  int ordinal;
  unsigned long long id;
  char *base; /* of the allocation, or of one chunk of mapped memory */
  size_t n_bytes;
  bool managed;
  bool ipc;  /* of cudaMalloc */
  bool file; /* a chunk that can leave the process as a file */
} xfi_cuda_pointer;
xfer_status xfi_cuda_look(const xfi_cuda_device *device, const void *pointer,
                          xfi_cuda_pointer *found);

/* cuda.c: which of our own allocations holds it; NULL: none. */
const xfi_cuda_range *xfi_cuda_own(const xfi_cuda_device *device, const void *pointer);

/* cuda_batch.c */
xfer_status xfi_cuda_batch_create(xfi_device *device, xfi_batch **batch, const xfi_copy *copies,
                                  size_t n_copies);
void xfi_cuda_batch_destroy(xfi_device *device, xfi_batch *batch);
xfer_status xfi_cuda_batch_launch(xfi_device *device, xfi_batch *batch, xfer_stream stream);

/* cuda_flags.c */
xfer_status xfi_cuda_watch_start(xfi_cuda_device *device);
void xfi_cuda_watch_stop(xfi_cuda_device *device);
/* The earliest deadline of a wait; one in the past where a wait was late; INT64_MAX: none. */
int64_t xfi_cuda_watch_first(xfi_cuda_device *device);
void xfi_cuda_watch_forget(xfi_cuda_device *device, const void *memory, size_t n_bytes);
xfer_status xfi_cuda_flags_set_op(xfi_device *device, uint64_t *const *flags, int n_flags,
                                  uint64_t value, xfer_stream stream);
xfer_status xfi_cuda_flags_wait(xfi_device *device, uint64_t *const *flags, int n_flags,
                                uint64_t value, xfer_stream stream, xfi_deadline deadline,
                                int *late);
xfer_status xfi_cuda_flags_release(xfi_device *device, uint64_t *flags, size_t n_flags,
                                   uint64_t value);
const uint64_t *xfi_cuda_late_flag(xfi_device *device);

/* cuda_page.c */
xfer_status xfi_cuda_page_alloc(xfi_device *device, uint64_t **flags, size_t n_flags);
void xfi_cuda_page_free(xfi_device *device, uint64_t *flags);
/* The page of ours that holds `pointer`, and its file. */
bool xfi_cuda_page_find(const xfi_cuda_device *device, const void *pointer, xfi_allocation *found,
                        int *file);
/* Map a page of another process of this host. */
xfer_status xfi_cuda_page_open(int process, int file, size_t n_bytes, char **mapped);
void xfi_cuda_page_unmap(char *mapped, size_t n_bytes);

/* cuda_map.c */
void xfi_cuda_domain(xfi_device *device, unsigned char domain[64]);
xfer_status xfi_cuda_export(xfi_device *device, const xfi_allocation *allocation,
                            xfi_mem_handle *handle);
xfer_status xfi_cuda_import(xfi_device *device, const xfi_mem_handle *handle, void **base);
void xfi_cuda_unimport(xfi_device *device, void *base);
void xfi_cuda_unimport_all(xfi_cuda_device *device);
/* Is `pointer` in a peer's memory? */
bool xfi_cuda_is_imported(const xfi_cuda_device *device, const void *pointer);

/* cuda_chunk.c */
enum { XFI_CUDA_SOCKET_BYTES = 37 }; /* "xfer-" and 32 digits, no 0 at the end */
/* Let peers ask for an allocation's chunks until the offers are closed. */
xfer_status xfi_cuda_chunks_offer(xfi_cuda_device *device, const xfi_allocation *allocation,
                                  char name[XFI_CUDA_SOCKET_BYTES]);
void xfi_cuda_chunks_close(xfi_cuda_device *device);
/* Map what another device's process offers. */
xfer_status xfi_cuda_chunks_map(const xfi_cuda_device *device,
                                const char name[XFI_CUDA_SOCKET_BYTES], uint64_t base,
                                size_t n_bytes, char **mapped);
void xfi_cuda_chunks_unmap(const xfi_cuda_device *device, char *mapped, size_t n_bytes);

#endif
