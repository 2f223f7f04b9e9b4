/*
 * For tests of what ranks map of each other: how many mappings all of them have, pages of flags
 * too.
 */
#ifndef XFER_SIM_COUNTED_MAPPINGS_H
#define XFER_SIM_COUNTED_MAPPINGS_H

#include "object.h" /* before a type called tensor */

#include "world.h"

static const xfi_device_ops *real;
static xfi_device_ops counting;
static _Atomic int n_mapped;

static inline xfer_status count_import(xfi_device *device, const xfi_mem_handle *handle,
                                       xfi_mapping **mapping, xfi_deadline deadline)
{
  const xfer_status st = real->mem_import(device, handle, mapping, deadline);

  if (st == XFER_OK) n_mapped++;
  return st;
}

static inline void count_unimport(xfi_device *device, xfi_mapping *mapping)
{
  real->mem_unimport(device, mapping);
  n_mapped--;
}

static inline void in_counted_world(void (*work)(int rank))
{
  world_make(2, COMM_GATHER, (sim_config){.seed = 0});
  real = w.comms[0]->device->ops;
  counting = *real;
  counting.mem_import = count_import;
  counting.mem_unimport = count_unimport;
  for (int r = 0; r < w.n; r++)
    w.comms[r]->device->ops = &counting;
  world_go(work);
  NEED_NO_VIOLATION();
  NEED(n_mapped == 0);
  world_destroy();
}

#endif
