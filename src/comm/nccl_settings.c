/*
 * NCCL's settings that say how ranks are connected and how they cut their messages, so that ranks
 * which differ in one may wait for each other for ever: an engine that sets NCCL_CUMEM_ENABLE=0,
 * say, and a trainer that does not. Often a difference does no harm, so it is no error; but the
 * text of a wait that ends by its deadline names it.
 */
#include "nccl_comm.h"

#include "alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"NCCL_ALGO",
                                    "NCCL_BUFFSIZE",
                                    "NCCL_COLLNET_ENABLE",
                                    "NCCL_CROSS_NIC",
                                    "NCCL_CUMEM_ENABLE",
                                    "NCCL_CUMEM_HOST_ENABLE",
                                    "NCCL_IB_DISABLE",
                                    "NCCL_LL128_BUFFSIZE",
                                    "NCCL_LL_BUFFSIZE",
                                    "NCCL_MAX_CTAS",
                                    "NCCL_MAX_NCHANNELS",
                                    "NCCL_MIN_CTAS",
                                    "NCCL_MIN_NCHANNELS",
                                    "NCCL_MNNVL_ENABLE",
                                    "NCCL_NCHANNELS_PER_PEER",
                                    "NCCL_NET",
                                    "NCCL_NET_PLUGIN",
                                    "NCCL_NTHREADS",
                                    "NCCL_NVLS_ENABLE",
                                    "NCCL_P2P_DISABLE",
                                    "NCCL_P2P_LEVEL",
                                    "NCCL_P2P_NET_CHUNKSIZE",
                                    "NCCL_P2P_NVL_CHUNKSIZE",
                                    "NCCL_P2P_PCI_CHUNKSIZE",
                                    "NCCL_P2P_DIRECT_DISABLE",
                                    "NCCL_PROTO",
                                    "NCCL_RUNTIME_CONNECT",
                                    "NCCL_SHM_DISABLE"};

enum { N_SETTINGS = sizeof names / sizeof *names, VALUE_BYTES = 32 };

/* A rank's settings; "": not set. */
typedef struct settings {
  char values[N_SETTINGS][VALUE_BYTES];
} settings;

/* Read the settings from the environment. By then NCCL has put those of its own files there, too.
 */
static void read_settings(settings *s)
{
  memset(s, 0, sizeof *s);
  for (int i = 0; i < N_SETTINGS; i++) {
    const char *value = getenv(names[i]);

    (void)snprintf(s->values[i], VALUE_BYTES, "%s", value == NULL ? "" : value);
  }
}

static const char *said(const char *value)
{
  return value[0] == '\0' ? "not set" : value;
}

/* Say which setting is the first in which some rank differs from rank 0. */
static void say_difference(char text[XFI_NCCL_DIFFERENCE_BYTES], const settings *all, int n_ranks)
{
  for (int i = 0; i < N_SETTINGS; i++)
    for (int r = 1; r < n_ranks; r++) {
      if (strcmp(all[r].values[i], all[0].values[i]) == 0) continue;
      (void)snprintf(text, XFI_NCCL_DIFFERENCE_BYTES, "; %s is %s on rank %d and %s on rank 0",
                     names[i], said(all[r].values[i]), r, said(all[0].values[i]));
      return;
    }
}

xfer_status xfi_nccl_settings_compare(xfi_nccl_comm *comm, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  settings own;
  settings *all;

  read_settings(&own);
  all = xfi_comm_agree_gather(&comm->base, &st, &own, sizeof own, deadline);
  comm->data.difference[0] = '\0';
  if (st == XFER_OK) say_difference(comm->data.difference, all, comm->base.size);
  xfi_free(all);
  return st;
}
