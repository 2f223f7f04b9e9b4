/* Inside of the comm of processes of one host. host.c has the idea and carries; host_create.c lets
 * them meet. */
#ifndef XFI_HOST_COMM_H
#define XFI_HOST_COMM_H

#include "shared.h"

typedef struct xfi_host_peer {
  int in;         /* bytes of it wake this rank; closed when it ends. -1: this rank itself */
  int out;        /* likewise to it */
  int process;    /* pidfd of the one that made its end; -1: not watched */
  bool has_ended; /* it or its process; children that it forked may hold its sockets open */
} xfi_host_peer;
#define XFI_HOST_NO_PEER ((xfi_host_peer){.in = -1, .out = -1, .process = -1})

typedef struct xfi_host_comm {
  xfi_shared shared;
  xfi_host_peer *peers;  /* [size] */
  int events;            /* epoll of `in`, numbered 2 * rank, and of `process`, one more */
  xfi_channel *channels; /* [2 * size] of the messages in progress */
  char **data;           /* likewise */
} xfi_host_comm;

extern const xfi_comm_ops xfi_host_ops;
extern const xfi_shared_ops xfi_host_shared_ops;

/* Closes what is open to the others. */
void xfi_host_hang_up(xfi_host_comm *comm);
/* That too; NULL is fine. */
void xfi_host_free(xfi_host_comm *comm);

#endif
