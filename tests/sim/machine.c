/* The lock, the calls' frame, devices and their attributes, and the machine's own thread. */
#include "machine.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

sim_machine sim = {.lock = PTHREAD_MUTEX_INITIALIZER,
                   .work = PTHREAD_COND_INITIALIZER,
                   .config = {.n_devices = 8, .memory_bytes = UINT64_C(4) << 30},
                   .random = 1};

static _Thread_local sim_thread self = {.rank = SIM_NO_RANK};

sim_thread *sim_self(void)
{
  return &self;
}

uint64_t sim_draw(uint64_t n)
{
  uint64_t z = (sim.random += 0x9e3779b97f4a7c15u); /* splitmix64 */

  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (z ^ (z >> 31)) % n;
}

int64_t sim_now_ns(void)
{
  struct timespec now;

  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void sim_sleep_us(int64_t us)
{
  const struct timespec pause = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};

  (void)nanosleep(&pause, NULL);
}

/* ---- the machine's thread ----------------------------------------------------------------- */

/* Streams go on although nobody waits for them; how fast depends on the lag. */
static void *thread_main(void *unused)
{
  static const int64_t pause_us[] = {0, 20, 200, 1500};

  (void)unused;
  for (;;) {
    int lag;
    bool moved = true;

    (void)pthread_mutex_lock(&sim.lock);
    while (sim_is_idle())
      (void)pthread_cond_wait(&sim.work, &sim.lock);
    for (uint64_t n = 1 + sim_draw(8); n > 0 && moved; n--)
      moved = sim_step();
    lag = sim.lag;
    (void)pthread_mutex_unlock(&sim.lock);
    sim_sleep_us(moved ? pause_us[lag] : 50);
  }
  return NULL;
}

static void thread_start(void)
{
  sigset_t all;
  sigset_t before;

  const char *seed = getenv("XFER_SIM_SEED"); /* of programs that know nothing of the machine */

  if (sim.has_thread) return;
  if (seed != NULL) sim.random = strtoull(seed, NULL, 10) * 0x9e3779b97f4a7c15u + 1;
  if (seed != NULL) sim.lag = (int)sim_draw(4);
  (void)sigfillset(&all); /* signals are the program's */
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  sim.has_thread = pthread_create(&sim.thread, NULL, thread_main, NULL) == 0;
  if (!sim.has_thread) abort();
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  (void)pthread_detach(sim.thread);
}

/* ---- calls -------------------------------------------------------------------------------- */

enum { NAMES_MAX = 256 };

static struct {
  const char *name;
  uint64_t n;
} names[NAMES_MAX];

static void count_name(const char *name)
{
  size_t i = 0;

  while (i < NAMES_MAX - 1 && names[i].name != NULL && strcmp(names[i].name, name) != 0)
    i++;
  names[i].name = name;
  names[i].n++;
}

static void use_context(int device)
{
  sim.contexts |= UINT64_C(1) << device;
  self.device = device;
}

/* A call of the runtime makes its device's primary context and the thread's, where there is none.
 */
static void have_context(const char *name)
{
  static const char *const without[] = {
      "cudaGetDevice",           "cudaGetDeviceCount",
      "cudaSetDevice",           "cudaDriverGetVersion",
      "cudaGetLastError",        "cudaPeekAtLastError",
      "cudaGetErrorString",      "cudaGetErrorName",
      "cudaGetDriverEntryPoint", "cudaGetDriverEntryPointByVersion",
      "cudaDeviceCanAccessPeer", "cudaDeviceGetAttribute",
      "cudaDeviceGetPCIBusId"};

  if (self.n_contexts > 0 || strncmp(name, "cuda", 4) != 0) return;
  for (size_t i = 0; i < sizeof without / sizeof without[0]; i++)
    if (strcmp(name, without[i]) == 0) return;
  self.contexts[self.n_contexts++] = self.runtime_device;
  use_context(self.runtime_device);
}

int sim_enter(const char *name, int safety)
{
  if (strncmp(name, "sim_", 4) == 0) name += 4;
  (void)pthread_mutex_lock(&sim.lock);
  thread_start();
  sim.counts.calls++;
  count_name(name);
  const int code = sim_fault_of(name);
  if (code != 0) sim.counts.faults++;
  if (code != 0) return code;
  have_context(name);
  if (safety == SIM_UNSAFE && !sim_capture_allows()) return cudaErrorStreamCaptureUnsupported;
  return 0;
}

cudaError_t sim_leave(cudaError_t error)
{
  if (error != cudaSuccess) self.last_error = error;
  (void)pthread_mutex_unlock(&sim.lock);
  return error;
}

CUresult sim_leave_driver(CUresult error)
{
  (void)pthread_mutex_unlock(&sim.lock);
  return error;
}

/* ---- for tests ---------------------------------------------------------------------------- */

void sim_setup(const sim_config *config)
{
  (void)pthread_mutex_lock(&sim.lock);
  sim.config = *config;
  if (sim.config.n_devices == 0) sim.config.n_devices = 8;
  if (sim.config.memory_bytes == 0) sim.config.memory_bytes = UINT64_C(4) << 30;
  sim_arenas_trim();
  (void)pthread_mutex_unlock(&sim.lock);
  sim_seed(config->seed);
}

sim_config sim_config_now(void)
{
  (void)pthread_mutex_lock(&sim.lock);
  const sim_config now = sim.config;
  (void)pthread_mutex_unlock(&sim.lock);
  return now;
}

void sim_seed(uint64_t seed)
{
  (void)pthread_mutex_lock(&sim.lock);
  sim.random = seed * 0x9e3779b97f4a7c15u + 1;
  sim.lag = (int)sim_draw(4);
  if (sim.config.eager) sim.lag = 0;
  (void)pthread_mutex_unlock(&sim.lock);
}

void sim_rank(int rank)
{
  self.rank = rank;
}

void sim_run(uint64_t run)
{
  self.run = run;
}

static bool is_idle(void *unused)
{
  (void)unused;
  return sim_is_idle();
}

bool sim_settle(int64_t timeout_ms)
{
  const int64_t until = sim_now_ns() + timeout_ms * 1000000;
  bool idle = false;

  while (!idle && sim_now_ns() < until) {
    (void)pthread_mutex_lock(&sim.lock);
    while (sim_step())
      continue;
    idle = is_idle(NULL);
    (void)pthread_mutex_unlock(&sim.lock);
    if (!idle) sim_sleep_us(50);
  }
  return idle;
}

void sim_hold(int device, bool held)
{
  (void)pthread_mutex_lock(&sim.lock);
  sim.held[device] = held;
  (void)pthread_mutex_unlock(&sim.lock);
}

void sim_dump(void)
{
  (void)pthread_mutex_lock(&sim.lock);
  sim_streams_dump();
  (void)pthread_mutex_unlock(&sim.lock);
}

sim_counts sim_count(void)
{
  (void)pthread_mutex_lock(&sim.lock);
  const sim_counts counts = sim.counts;
  (void)pthread_mutex_unlock(&sim.lock);
  return counts;
}

uint64_t sim_contexts(void)
{
  (void)pthread_mutex_lock(&sim.lock);
  const uint64_t contexts = sim.contexts;
  (void)pthread_mutex_unlock(&sim.lock);
  return contexts;
}

uint64_t sim_calls_of(const char *name)
{
  uint64_t n = 0;

  (void)pthread_mutex_lock(&sim.lock);
  for (size_t i = 0; i < NAMES_MAX && names[i].name != NULL; i++)
    if (strcmp(names[i].name, name) == 0) n += names[i].n;
  (void)pthread_mutex_unlock(&sim.lock);
  return n;
}

/* ---- devices ------------------------------------------------------------------------------ */

static bool is_device(int device)
{
  return device >= 0 && device < sim.config.n_devices;
}

cudaError_t CUDARTAPI cudaGetDeviceCount(int *n)
{
  SIM_ENTER(SIM_SAFE);
  *n = sim.config.n_devices;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaGetDevice(int *device)
{
  SIM_ENTER(SIM_SAFE);
  *device = self.device;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaSetDevice(int device)
{
  SIM_ENTER(SIM_SAFE);
  if (!is_device(device)) return sim_leave(cudaErrorInvalidDevice);
  if (self.n_contexts == 0) self.n_contexts = 1;
  self.contexts[self.n_contexts - 1] = self.runtime_device = device;
  use_context(device);
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
  SIM_ENTER(SIM_SAFE);
  if (!is_device(device) || !is_device(peer)) return sim_leave(cudaErrorInvalidDevice);
  *can = device != peer && (sim.config.apart[device] >> peer & 1) == 0 &&
         (sim.config.apart[peer] >> device & 1) == 0;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
  SIM_ENTER(SIM_SAFE);
  if (!is_device(peer) || peer == self.device) return sim_leave(cudaErrorInvalidDevice);
  if (flags != 0) return sim_leave(cudaErrorInvalidValue);
  if ((sim.config.apart[self.device] >> peer & 1) != 0 ||
      (sim.config.apart[peer] >> self.device & 1) != 0)
    return sim_leave(cudaErrorPeerAccessUnsupported);
  if ((sim.reaches[self.device] >> peer & 1) != 0)
    return sim_leave(cudaErrorPeerAccessAlreadyEnabled);
  sim.reaches[self.device] |= UINT64_C(1) << peer;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
  SIM_ENTER(SIM_SAFE);
  if (least != NULL) *least = 0;
  if (greatest != NULL) *greatest = -5;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
  SIM_ENTER(SIM_SAFE);
  if (!is_device(device)) return sim_leave(cudaErrorInvalidDevice);
  switch (attribute) {
  case cudaDevAttrMaxPitch:
    *value = INT32_MAX;
    break;
  case cudaDevAttrComputeCapabilityMajor:
    *value = 9;
    break;
  case cudaDevAttrMultiProcessorCount:
    *value = 132;
    break;
  case cudaDevAttrUnifiedAddressing:
  case cudaDevAttrCanUseHostPointerForRegisteredMem:
    *value = 1;
    break;
  default:
    *value = 0;
    break;
  }
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaDeviceSynchronize(void)
{
  SIM_ENTER(SIM_UNSAFE);
  sim_wait_device(self.device);
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaMemGetInfo(size_t *unused, size_t *total)
{
  SIM_ENTER(SIM_SAFE);
  *total = sim.config.memory_bytes;
  *unused = sim.config.memory_bytes - sim.used[self.device];
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaDriverGetVersion(int *version)
{
  SIM_ENTER(SIM_SAFE);
  *version = CUDART_VERSION;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaRuntimeGetVersion(int *version)
{
  SIM_ENTER(SIM_SAFE);
  *version = CUDART_VERSION;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char *text, int n_bytes, int device)
{
  SIM_ENTER(SIM_SAFE);
  if (!is_device(device)) return sim_leave(cudaErrorInvalidDevice);
  (void)snprintf(text, (size_t)n_bytes, "0000:%02x:00.0", device + 1);
  return sim_leave(cudaSuccess);
}

/* ---- errors ------------------------------------------------------------------------------- */

cudaError_t CUDARTAPI cudaGetLastError(void)
{
  const cudaError_t error = self.last_error;

  self.last_error = cudaSuccess;
  return error;
}

static const struct {
  cudaError_t error;
  const char *name;
  const char *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

static size_t error_index(cudaError_t error)
{
  size_t i = 0;

  while (i < sizeof errors / sizeof errors[0] - 1 && errors[i].error != error)
    i++;
  return i;
}

const char *CUDARTAPI cudaGetErrorName(cudaError_t error)
{
  return errors[error_index(error)].name;
}

const char *CUDARTAPI cudaGetErrorString(cudaError_t error)
{
  return errors[error_index(error)].text;
}

/* ---- the driver --------------------------------------------------------------------------- */

static CUresult CUDAAPI sim_cuGetErrorName(CUresult error, const char **name)
{
  *name = cudaGetErrorName((cudaError_t)error); /* the numbers are the same */
  return CUDA_SUCCESS;
}

static CUresult CUDAAPI sim_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute,
                                                 CUdevice device)
{
  SIM_ENTER_DRIVER(SIM_SAFE);
  if (!is_device(device)) return sim_leave_driver(CUDA_ERROR_INVALID_DEVICE);
  *value = 0;
  if (attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)
    *value = sim.config.no_wait64 ? 0 : 1;
  if (attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) *value = 1;
  if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) *value = 1;
  return sim_leave_driver(CUDA_SUCCESS);
}

/* A context is its device's primary one, as a number. */
static CUresult CUDAAPI sim_cuCtxGetCurrent(CUcontext *context)
{
  SIM_ENTER_DRIVER(SIM_SAFE);
  *context = (CUcontext)(uintptr_t)(self.n_contexts > 0 ? self.device + 1 : 0); /* NOLINT */
  return sim_leave_driver(CUDA_SUCCESS);
}

static CUresult CUDAAPI sim_cuCtxPushCurrent(CUcontext context)
{
  SIM_ENTER_DRIVER(SIM_SAFE);
  if (context == NULL || self.n_contexts == SIM_CONTEXTS)
    return sim_leave_driver(CUDA_ERROR_INVALID_CONTEXT);
  self.contexts[self.n_contexts++] = (int)(uintptr_t)context - 1;
  use_context((int)(uintptr_t)context - 1);
  return sim_leave_driver(CUDA_SUCCESS);
}

static CUresult CUDAAPI sim_cuCtxPopCurrent(CUcontext *context)
{
  SIM_ENTER_DRIVER(SIM_SAFE);
  if (self.n_contexts == 0) return sim_leave_driver(CUDA_ERROR_INVALID_CONTEXT);
  *context = (CUcontext)(uintptr_t)(self.device + 1); /* NOLINT */
  self.n_contexts--;
  self.device = self.n_contexts > 0 ? self.contexts[self.n_contexts - 1] : self.runtime_device;
  return sim_leave_driver(CUDA_SUCCESS);
}

static const sim_function device_functions[] = {
    SIM_FUNCTION(cuGetErrorName),  SIM_FUNCTION(cuDeviceGetAttribute),
    SIM_FUNCTION(cuCtxGetCurrent), SIM_FUNCTION(cuCtxPushCurrent),
    SIM_FUNCTION(cuCtxPopCurrent), {NULL, NULL}};

cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char *name, void **function,
                                                       unsigned version, unsigned long long flags,
                                                       enum cudaDriverEntryPointQueryResult *result)
{
  const sim_function *const tables[] = {device_functions, sim_copy_functions, sim_word_functions,
                                        sim_memory_functions, sim_chunk_functions};
  void *found = NULL;

  SIM_ENTER(SIM_SAFE);
  (void)flags;
  if (sim.config.driver > 0 && version > sim.config.driver) {
    *function = NULL;
    return sim_leave(cudaErrorInvalidValue);
  }
  for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
    for (const sim_function *f = tables[t]; f->name != NULL; f++)
      if (strcmp(f->name, name) == 0 &&
          (sim.config.lacks == NULL || strcmp(name, sim.config.lacks) != 0))
        memcpy(&found, &f->function, sizeof found); /* C has no cast between the two */
  }
  *function = found;
  if (result != NULL)
    *result = found != NULL ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char *name, void **function,
                                              unsigned long long flags,
                                              enum cudaDriverEntryPointQueryResult *result)
{
  return cudaGetDriverEntryPointByVersion(name, function, CUDA_VERSION, flags, result);
}
