/* Inside of the comm of processes of one host. host.c has the idea and carries; host_create.c lets
 * them meet. */
#ifndef XFI_HOST_COMM_H
#define XFI_HOST_COMM_H

#include "shared.h"

typedef struct xfi_host_comm {
  xfi_shared shared;
  xfi_channel *channels; /* [2 * size] of the messages in progress */
  char **data;           /* likewise */
} xfi_host_comm;

extern const xfi_comm_ops xfi_host_ops;
extern const xfi_shared_ops xfi_host_shared_ops;

/* NULL is fine. */
void xfi_host_free(xfi_host_comm *comm);

#endif
