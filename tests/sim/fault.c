/* Calls that are made to fail, to be late, or to end the process. */
#include "machine.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAULTS_MAX = 32 };

typedef struct armed {
  sim_fault fault;
  uint64_t n; /* such calls so far */
} armed;

static armed faults[FAULTS_MAX]; /* [n_faults] */
static int n_faults;

void sim_fault_add(const sim_fault *fault)
{
  (void)pthread_mutex_lock(&sim.lock);
  if (n_faults == FAULTS_MAX) abort();
  faults[n_faults++] = (armed){*fault, 0};
  (void)pthread_mutex_unlock(&sim.lock);
}

void sim_fault_clear(void)
{
  (void)pthread_mutex_lock(&sim.lock);
  n_faults = 0;
  (void)pthread_mutex_unlock(&sim.lock);
}

/* Calls that give something back, set the calling thread's state or ask what cannot fail: a fault
 * without a name leaves them alone. */
static bool may_fail(const char *name)
{
  static const char *const never[] = {"cudaGetDevice",
                                      "cudaSetDevice",
                                      "cudaGetDeviceCount",
                                      "cudaStreamDestroy",
                                      "cudaEventDestroy",
                                      "cudaFree",
                                      "cudaFreeHost",
                                      "cudaHostUnregister",
                                      "cudaIpcCloseMemHandle",
                                      "cuMemRelease",
                                      "cuMemUnmap",
                                      "cuMemAddressFree",
                                      "ncclCommAbort",
                                      "ncclCommDestroy",
                                      "ncclGroupEnd",
                                      "ncclCommGetAsyncError",
                                      "cudaThreadExchangeStreamCaptureMode"};

  for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
    if (strcmp(never[i], name) == 0) return false;
  return true;
}

static bool applies(armed *a, const char *name)
{
  const sim_fault *f = &a->fault;

  if (f->name != NULL ? strcmp(f->name, name) != 0 : !may_fail(name)) return false;
  if (f->rank != SIM_NO_RANK && f->rank != sim_self()->rank) return false;
  a->n++;
  return f->nth != 0 ? a->n == f->nth : sim_draw(100) < (uint64_t)f->percent;
}

int sim_fault_of(const char *name)
{
  for (int i = 0; i < n_faults; i++) {
    if (!applies(&faults[i], name)) continue;
    const sim_fault f = faults[i].fault;
    if (f.kills) (void)kill(getpid(), SIGKILL);
    for (int64_t slept = 0; f.delay_us < 0 ? n_faults > 0 : slept < f.delay_us;
         slept += f.delay_us) {
      (void)pthread_mutex_unlock(&sim.lock);
      sim_sleep_us(f.delay_us < 0 ? 1000 : f.delay_us);
      (void)pthread_mutex_lock(&sim.lock);
    }
    if (f.code != 0) return f.code;
  }
  return 0;
}
