/* Inside of the comm over sockets of one host. host.c has the idea and carries; host_create.c
 * connects. */
#ifndef XFI_HOST_COMM_H
#define XFI_HOST_COMM_H

#include "comm.h"

#include <poll.h>

/* Before each message, so that ends that differ are found before anything is written. */
typedef struct xfi_host_head {
  uint64_t n_bytes;
  uint64_t call; /* of which it is a message */
} xfi_host_head;

/* A message under way. */
typedef struct xfi_parcel {
  xfi_message message;
  xfi_host_head head;
  size_t n_done; /* of the head and the message */
  size_t next;   /* of the same peer; none: the number of parcels */
} xfi_parcel;

typedef struct xfi_host_peer {
  int data;              /* -1: this rank itself */
  int alarm;             /* xfi_host_packet, or an empty word before it is closed */
  int process;           /* pidfd of the one that made its end; -1: not watched */
  bool has_left;         /* it said so */
  bool has_ended;        /* its process; children that it forked may hold its sockets open */
  bool is_deaf;          /* nothing more comes from its alarm */
  size_t next_parcel[2]; /* to it and from it; none: the number of parcels */
} xfi_host_peer;

/* What came to nothing on one rank. */
typedef enum xfi_host_kind {
  XFI_HOST_ALARM = 1, /* the comm, once that rank had completed `number` gatherings */
  XFI_HOST_WARNING    /* what all ranks do apart from the comm, their `number`-th time */
} xfi_host_kind;
typedef struct xfi_host_packet {
  uint64_t kind; /* 0: none came */
  uint64_t number;
  char why[XFI_BROKEN_BYTES];
} xfi_host_packet;

typedef struct xfi_host_comm {
  xfi_comm base;
  xfi_host_peer *peers;  /* [size] */
  struct pollfd *polled; /* [size][3]: data, alarm, process */
  xfi_parcel *parcels;   /* of the call in progress: what is sent, then what is received */
  size_t capacity;
  xfi_broken broken;
  xfi_host_packet warning;     /* the last one that came */
  xfi_host_packet alarm;       /* the first that does not concern the gathering in progress */
  _Atomic uint64_t n_gathered; /* gatherings that are complete */
} xfi_host_comm;

extern const xfi_comm_ops xfi_host_ops;

/* Closes what is open; NULL is fine. */
void xfi_host_free(xfi_host_comm *comm);

#endif
