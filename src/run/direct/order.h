/*
 * The order in which a rank visits its peers, whose memory it reads or writes one after another.
 * Two ranks that visit a peer at the same time get half of its link each, and would go on to the
 * next peer together; so each begins with another peer.
 */
#ifndef XFI_ORDER_H
#define XFI_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A list of ranks in rising order. */
typedef struct xfi_ranks {
  int32_t *at;
  size_t n;
} xfi_ranks;

typedef struct xfi_visit {
  int rank;                  /* the rank that is visited */
  const xfi_ranks *visitors; /* the ranks that exchange much with it; it may be one of them */
  const void *link;          /* the caller's link to that rank */
  size_t turn;               /* place in the order, set by xfi_order_visits() */
} xfi_visit;

/* Put the visits of `rank` in order, among them one to itself for what it keeps. True: in this
 * order ranks seldom meet. False: they meet in any order, and had better visit all peers at once.
 */
bool xfi_order_visits(xfi_visit *visits, size_t n, int rank);

#endif
