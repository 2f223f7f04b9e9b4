/*
 * What the files of the CUDA device share, from the ground up.
 *
 * - cuda_driver.c: the functions of the driver, and errors;
 * - cuda_page.c: pages of flags; cuda_flags.c: signals by them;
 * - cuda_allocation.c: which allocation memory lies in;
 * - cuda_allocation_mark.c: whether any allocation was made;
 * - cuda_chunk.c: peers' memory that is mapped chunk by chunk; cuda_map.c: peers' memory;
 * - cuda_join.c, cuda_engine.c, cuda_batch.c: copies; cuda_digest.c: digests;
 * - cuda_nvtx.c: ranges of profilers;
 * - cuda.c: memory, streams, events, and the table of it all.
 *
 * Callers have entered the device (device.h): it is current, and captures by other threads do not
 * forbid our calls.
 */
#ifndef XFI_CUDA_DEVICE_H
#define XFI_CUDA_DEVICE_H

#include "cuda_call.h"
#include "device.h"

#include <cuda.h>
#include <cudaTypedefs.h>

/* The driver functions that the runtime lacks, found at run time, so that nothing links to libcuda.
 * X(type, field, CUDA's name) */
#define XFI_CUDA_DRIVER(X)                                                                         \
  X(PFN_cuDeviceGetAttribute_v2000, device_attribute, "cuDeviceGetAttribute")                      \
  X(PFN_cuCtxGetCurrent_v4000, context_get, "cuCtxGetCurrent")                                     \
  X(PFN_cuCtxPushCurrent_v4000, context_push, "cuCtxPushCurrent")                                  \
  X(PFN_cuCtxPopCurrent_v4000, context_pop, "cuCtxPopCurrent")                                     \
  X(PFN_cuPointerGetAttribute_v4000, pointer_attribute, "cuPointerGetAttribute")                   \
  X(PFN_cuPointerGetAttributes_v7000, pointer_attributes, "cuPointerGetAttributes")                \
  X(PFN_cuMemGetAddressRange_v3020, address_range, "cuMemGetAddressRange")                         \
  X(PFN_cuStreamBatchMemOp_v11070, stream_mem_ops, "cuStreamBatchMemOp")                           \
  X(PFN_cuMemAddressReserve_v10020, address_reserve, "cuMemAddressReserve")                        \
  X(PFN_cuMemAddressFree_v10020, address_free, "cuMemAddressFree")                                 \
  X(PFN_cuMemCreate_v10020, create, "cuMemCreate")                                                 \
  X(PFN_cuMemMap_v10020, map, "cuMemMap")                                                          \
  X(PFN_cuMemUnmap_v10020, unmap, "cuMemUnmap")                                                    \
  X(PFN_cuMemSetAccess_v10020, set_access, "cuMemSetAccess")                                       \
  X(PFN_cuMemRelease_v10020, release, "cuMemRelease")                                              \
  X(PFN_cuMemRetainAllocationHandle_v11000, retain, "cuMemRetainAllocationHandle")                 \
  X(PFN_cuMemExportToShareableHandle_v10020, export_handle, "cuMemExportToShareableHandle")        \
  X(PFN_cuMemImportFromShareableHandle_v10020, import_handle, "cuMemImportFromShareableHandle")    \
  X(PFN_cuGetErrorName_v6000, error_name, "cuGetErrorName")

#define XFI_CUDA_DRIVER_FIELD(type, ours, name) type ours;
typedef struct xfi_cuda_driver {
  XFI_CUDA_DRIVER(XFI_CUDA_DRIVER_FIELD)
#if CUDA_VERSION >= 12080
  PFN_cuMemcpyBatchAsync_v12080 memcpy_batch; /* NULL: the driver is older */
#endif
} xfi_cuda_driver;

typedef struct xfi_cuda_page xfi_cuda_page;       /* cuda_page.c */
typedef struct xfi_cuda_exports xfi_cuda_exports; /* cuda_chunk.c */
typedef struct xfi_cuda_probe xfi_cuda_probe;     /* cuda_allocation_mark.c */

typedef struct xfi_cuda_device {
  xfi_device base;
  int ordinal;
  int n_multiprocessors;
  CUcontext context;         /* the program's context, current when the device was made */
  int64_t engine_run_bytes;  /* least size of a run that the copy engine takes */
  int64_t engine_row_bytes;  /* least size of a row of a 2-D copy that it takes */
  int64_t engine_call_bytes; /* least size of such a 2-D copy, all rows together */
  int64_t engine_all_bytes;  /* least size of a batch of which it takes anything */
  cudaStream_t aside;        /* a stream for uploads, independent of others */
  xfi_cuda_driver driver;

  xfi_cuda_page *pages;      /* made by flags_alloc() */
  xfi_cuda_exports *exports; /* exports of memory in chunks; NULL: none at present */
  xfi_cuda_probe *probe;     /* finds new allocations; NULL: not made yet */

  void *mappings;   /* mappings of peers' memory, a tree of tsearch() by address */
  void *known;      /* the same mappings, a tree by allocation */
  bool maps_across; /* memory of another GPU is or was mapped */
} xfi_cuda_device;

static inline xfi_cuda_device *xfi_cuda(xfi_device *device)
{
  return (xfi_cuda_device *)device;
}

/* Through an IPC mapping whose size is no multiple of this the copy engine reaches 0.6 to 0.8 of
 * the link while other copies run; kernels reach 0.95. */
#define XFI_CUDA_IPC_BYTES ((size_t)64 << 10)

/* Where an allocation, or a mapping of one, lies. */
typedef struct xfi_cuda_span {
  const char *base;
  size_t n_bytes;
} xfi_cuda_span;

static inline bool xfi_cuda_is_in(const xfi_cuda_span *span, const char *pointer)
{
  return (uintptr_t)pointer - (uintptr_t)span->base < span->n_bytes;
}

static inline cudaEvent_t xfi_cuda_event(xfi_event *event)
{
  return (cudaEvent_t)(void *)event;
}

/* ---- cuda_driver.c ---- */

xfer_status xfi_cuda_driver_load(xfi_cuda_driver *driver);
/* Does what xfi_cuda_failed() does, for an error of the driver. */
xfer_status xfi_cuda_driver_failed(const xfi_cuda_device *device, CUresult error, const char *call);

/* Called first by each thread of the library; `device` is an xfi_cuda_device. A call of the runtime
 * before it would create a context on GPU 0. */
void xfi_cuda_begin_thread(void *device);

/* ---- cuda_nvtx.c ---- */

/* From now on traced calls are ranges in NVIDIA's profilers, if NVTX was there at build time. */
void xfi_cuda_nvtx(void);

/* ---- cuda_page.c ---- */

/* A page's file, for another process of this host. */
typedef struct xfi_cuda_file {
  int32_t process;
  int32_t number;
  uint64_t device; /* identifies the file, together with `inode` */
  uint64_t inode;
  uint64_t by_streams; /* streams store its flags too, not only hosts */
} xfi_cuda_file;

xfer_status xfi_cuda_page_alloc(xfi_device *device, uint64_t **flags, size_t n_flags,
                                bool by_streams);
void xfi_cuda_page_free(xfi_device *device, uint64_t *flags);
/* The page of ours that holds `pointer`, and its file. */
bool xfi_cuda_page_find(const xfi_cuda_device *device, const void *pointer, xfi_allocation *found,
                        xfi_cuda_file *file);
/* Map a page of another process. */
xfer_status xfi_cuda_page_open(const xfi_cuda_file *file, size_t n_bytes, char **mapped);
void xfi_cuda_page_unmap(char *mapped, size_t n_bytes, bool by_streams);

/* ---- cuda_flags.c ---- */

struct xfi_cuda_blocks; /* of launch.h */
struct xfi_guard {
  uint64_t *flags[XFI_GUARD_FLAGS]; /* [n_flags] */
  int n_flags;
  bool strict;
  uint64_t *go;                   /* the decision, on the device */
  struct xfi_cuda_blocks *blocks; /* state of guarded launches, on the device */
};

xfer_status xfi_cuda_flags_sync(xfi_device *device, const xfi_flags *set, const xfi_flags *wait,
                                uint64_t value, xfer_stream stream, xfi_deadline deadline,
                                int *late);
xfer_status xfi_cuda_flags_set_op(xfi_device *device, const xfi_flags *set, const xfi_guard *guard,
                                  uint64_t value, xfer_stream stream);
void xfi_cuda_flags_store(xfi_device *device, uint64_t *flag, uint64_t value);
xfer_status xfi_cuda_guard_create(xfi_device *device, xfi_guard **guard, const xfi_flags *flags,
                                  bool strict);
void xfi_cuda_guard_destroy(xfi_device *device, xfi_guard *guard);
xfer_status xfi_cuda_guard_check_op(xfi_device *device, xfi_guard *guard, xfer_stream stream);

/* ---- cuda_allocation.c ---- */

/* What the driver says about a pointer. */
typedef struct xfi_cuda_pointer {
  unsigned type; /* CUmemorytype; 0: pageable */
  int ordinal;
  unsigned long long id;
  char *base; /* address of the allocation, or of one chunk of mapped memory */
  size_t n_bytes;
  unsigned managed; /* 1: managed memory */
  unsigned ipc;     /* 1: CUDA IPC can export it */
  bool file;        /* a chunk that can be exported as a file */
} xfi_cuda_pointer;

xfer_status xfi_cuda_inspect(const xfi_cuda_device *device, const void *pointer,
                             xfi_cuda_pointer *found);
xfer_status xfi_cuda_find_allocation(xfi_device *device, const void *pointer, size_t n_bytes,
                                     xfi_allocation *found);
/* Does the allocation have several adjacent chunks? */
bool xfi_cuda_has_several_chunks(const xfi_allocation *allocation);
size_t xfi_cuda_find_changed(xfi_device *device, const xfi_allocation *then, size_t n);

/* ---- cuda_allocation_mark.c ---- */

uint64_t xfi_cuda_allocation_mark(xfi_device *device);
void xfi_cuda_probe_free(xfi_cuda_device *device);

/* ---- cuda_chunk.c ---- */

/* Let peers request an allocation's chunks until the exports are closed, at a socket whose name
 * goes to name[XFI_SOCKET_NAME_BYTES]. */
xfer_status xfi_cuda_chunks_export(xfi_cuda_device *device, const xfi_allocation *allocation,
                                   char *name);
void xfi_cuda_chunks_close(xfi_device *device);
/* Map what another process or device exports. XFER_ERR_TIMEOUT: no reply. */
xfer_status xfi_cuda_chunks_map(const xfi_cuda_device *device, const char *name, uint64_t base,
                                size_t n_bytes, char **mapped, xfi_deadline deadline);
void xfi_cuda_chunks_unmap(const xfi_cuda_device *device, char *mapped, size_t n_bytes);

/* ---- cuda_map.c ---- */

/* The fields `locality` and `gpu` of an xfi_device. */
uint64_t xfi_cuda_locality(int ordinal);
xfer_status xfi_cuda_gpu(uint64_t *gpu, int ordinal);
void xfi_cuda_domain(xfi_device *device, unsigned char domain[64]);
xfer_status xfi_cuda_export(xfi_device *device, xfi_allocation allocation, xfi_mem_handle *handle);
xfer_status xfi_cuda_import(xfi_device *device, const xfi_mem_handle *handle, xfi_mapping **mapping,
                            xfi_deadline deadline);
void xfi_cuda_unimport(xfi_device *device, xfi_mapping *mapping);
/* The peer's allocation that is mapped at `pointer`; empty: none is. */
xfi_cuda_span xfi_cuda_mapped(const xfi_cuda_device *device, const void *pointer);
/* Is either end of a copy on another GPU, where the copy engine is fast, even with other copies
 * `beside` it? `last` caches the mapping that was found last, since copies of one allocation tend
 * to be adjacent. */
bool xfi_cuda_suits_engine(const xfi_cuda_device *device, const xfi_copy *copy, bool beside,
                           xfi_cuda_span *last);

/* ---- cuda_join.c ---- */

/* Join adjacent ones of the first `n` copies of the spec, which it sorts. Returns their new number.
 */
size_t xfi_cuda_join(const xfi_cuda_device *device, const xfi_batch_spec *spec, size_t n);

/* ---- cuda_engine.c ---- */

/* A 2-D copy. */
typedef struct xfi_cuda_rows {
  char *dst;
  const char *src;
  size_t dst_pitch;
  size_t src_pitch;
  size_t n_bytes; /* size of a row */
  size_t n;       /* number of rows */
} xfi_cuda_rows;

/* Copies for the copy engine. Freed by xfi_cuda_engine_free(), also after a failure. */
typedef struct xfi_cuda_runs {
  CUdeviceptr *dst; /* [n] */
  CUdeviceptr *src;
  size_t *n_bytes;
  size_t n;
  xfi_cuda_rows *rows; /* [n_rows] */
  size_t n_rows;
  bool is_full; /* the engine could take more if the batch were open */
} xfi_cuda_runs;

static inline bool xfi_cuda_engine_is_empty(const xfi_cuda_runs *runs)
{
  return runs->n == 0 && runs->n_rows == 0;
}

/* Set the sizes from which on the engine is worth using. */
void xfi_cuda_engine_limits(xfi_cuda_device *device);
/* Take those of the first `*n_rest` copies of the spec that the engine should make. The order of
 * the rest stays. */
xfer_status xfi_cuda_engine_take(xfi_cuda_runs *runs, const xfi_cuda_device *device,
                                 const xfi_batch_spec *spec, size_t *n_rest);
void xfi_cuda_engine_free(xfi_cuda_runs *runs);
xfer_status xfi_cuda_engine_launch(const xfi_cuda_device *device, const xfi_cuda_runs *runs,
                                   xfer_stream stream);

/* ---- cuda_batch.c ---- */

struct xfi_cuda_job; /* of launch.h */
struct xfi_cuda_table;
size_t xfi_cuda_table_bytes(const struct xfi_cuda_table *table);
/* Enqueue the copy of a table to `at` on the device. The caller keeps the table until the stream is
 * done. */
xfer_status xfi_cuda_table_upload(struct xfi_cuda_job *job, const struct xfi_cuda_table *table,
                                  char *at, cudaStream_t stream);
xfer_status xfi_cuda_batch_create(xfi_device *device, xfi_batch **batch,
                                  const xfi_batch_spec *spec);
void xfi_cuda_batch_destroy(xfi_device *device, xfi_batch *batch);
bool xfi_cuda_batch_is_read(const xfi_batch *batch);
bool xfi_cuda_batch_wants_open(const xfi_batch *batch);
xfer_status xfi_cuda_batch_launch(xfi_device *device, xfi_batch *batch, xfer_stream stream,
                                  xfi_event *turn);
xfer_status xfi_cuda_guarded_launch(xfi_device *device, const xfi_batch *batch,
                                    const xfi_flags *set, uint64_t value, xfer_stream stream,
                                    bool *launched);
bool xfi_cuda_batch_is_one_launch(const xfi_batch *batch);

/* ---- cuda_digest.c ---- */

xfer_status xfi_cuda_digest_create(xfi_device *device, xfi_digest **digest,
                                   const xfi_digest_box *boxes, size_t n_boxes, size_t n_sums);
void xfi_cuda_digest_destroy(xfi_device *device, xfi_digest *digest);
xfer_status xfi_cuda_digest_launch(xfi_device *device, xfi_digest *digest, xfer_stream stream);
const xfi_sum *xfi_cuda_digest_sums(const xfi_digest *digest);

#endif
