/*
 * NCCL, found at run time: without it libxfer_nccl loads all the same, and only making a comm over
 * NCCL fails.
 *
 * An NCCL that the process has loaded has priority, since a communicator may be borrowed from it;
 * dlopen() finds it by its soname. The functions below have NCCL's names but are private.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "nccl_load.h"

#pragma GCC visibility push(hidden)
#include <nccl.h>
ncclResult_t ncclGroupStart(void); /* nccl.h has them without a prototype */
ncclResult_t ncclGroupEnd(void);
#pragma GCC visibility pop

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* X(result, name, parameters, arguments, what it returns without NCCL) */
#define FUNCTIONS(X)                                                                               \
  X(const char *, ncclGetErrorString, (ncclResult_t r), (r), "NCCL was not found")                 \
  X(const char *, ncclGetLastError, (ncclComm_t c), (c), "")                                       \
  CALLS(X, ncclGetVersion, (int *v), (v))                                                          \
  CALLS(X, ncclGetUniqueId, (ncclUniqueId * i), (i))                                               \
  CALLS(X, ncclCommInitRank, (ncclComm_t * c, int n, ncclUniqueId i, int r), (c, n, i, r))         \
  CALLS(X, ncclCommInitRankConfig,                                                                 \
        (ncclComm_t * c, int n, ncclUniqueId i, int r, ncclConfig_t *o), (c, n, i, r, o))          \
  CALLS(X, ncclCommSplit, (ncclComm_t c, int g, int k, ncclComm_t *n, ncclConfig_t *o),            \
        (c, g, k, n, o))                                                                           \
  CALLS(X, ncclCommFinalize, (ncclComm_t c), (c))                                                  \
  CALLS(X, ncclCommDestroy, (ncclComm_t c), (c))                                                   \
  CALLS(X, ncclCommAbort, (ncclComm_t c), (c))                                                     \
  CALLS(X, ncclCommGetAsyncError, (ncclComm_t c, ncclResult_t * e), (c, e))                        \
  CALLS(X, ncclCommCount, (const ncclComm_t c, int *n), (c, n))                                    \
  CALLS(X, ncclCommCuDevice, (const ncclComm_t c, int *d), (c, d))                                 \
  CALLS(X, ncclCommUserRank, (const ncclComm_t c, int *r), (c, r))                                 \
  CALLS(X, ncclBroadcast,                                                                          \
        (const void *s, void *r, size_t n, ncclDataType_t t, int root, ncclComm_t c,               \
         cudaStream_t at),                                                                         \
        (s, r, n, t, root, c, at))                                                                 \
  CALLS(X, ncclAllGather,                                                                          \
        (const void *s, void *r, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t at),       \
        (s, r, n, t, c, at))                                                                       \
  CALLS(X, ncclSend,                                                                               \
        (const void *s, size_t n, ncclDataType_t t, int p, ncclComm_t c, cudaStream_t at),         \
        (s, n, t, p, c, at))                                                                       \
  CALLS(X, ncclRecv, (void *r, size_t n, ncclDataType_t t, int p, ncclComm_t c, cudaStream_t at),  \
        (r, n, t, p, c, at))                                                                       \
  CALLS(X, ncclGroupStart, (void), ())                                                             \
  CALLS(X, ncclGroupEnd, (void), ())
#define CALLS(X, name, parameters, arguments)                                                      \
  X(ncclResult_t, name, parameters, arguments, ncclSystemError)

#define POINTER(result, name, parameters, arguments, otherwise) result(*name) parameters;
static struct {
  FUNCTIONS(POINTER)
} found;

#define FORWARD(result, name, parameters, arguments, otherwise)                                    \
  result name parameters                                                                           \
  {                                                                                                \
    return xfi_nccl_load() == NULL ? found.name arguments : (otherwise);                           \
  }
FUNCTIONS(FORWARD)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char missing[320];

#define NAMED(result, name, parameters, arguments, otherwise) {#name, &found.name},
static void load(void)
{
  const struct {
    const char *name;
    void *pointer;
  } wanted[] = {FUNCTIONS(NAMED)};
  void *library = RTLD_DEFAULT;

  if (dlsym(RTLD_DEFAULT, "ncclCommInitRankConfig") == NULL) {
    library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
      const char *why = dlerror();

      (void)snprintf(missing, sizeof missing, "%s", why != NULL ? why : "libnccl.so.2");
      return;
    }
  }
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    void *function = dlsym(library, wanted[i].name);

    if (function == NULL) {
      (void)snprintf(missing, sizeof missing, "libnccl.so.2 is too old: it has no %s",
                     wanted[i].name);
      return;
    }
    memcpy(wanted[i].pointer, &function, sizeof function); /* C has no cast to such a pointer */
  }
}

const char *xfi_nccl_load(void)
{
  (void)pthread_once(&once, load);
  return missing[0] == '\0' ? NULL : missing;
}
