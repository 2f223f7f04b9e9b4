/*
 * In which order a rank goes to its peers, whose memory it reads or writes one after the other. Two
 * that come to one peer at the same time have half of its link each, and go on to the next one
 * together; so each begins with another.
 */
#ifndef XFI_ORDER_H
#define XFI_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In rising order. */
typedef struct xfi_ranks {
  int32_t *at;
  size_t n;
} xfi_ranks;

typedef struct xfi_visit {
  int rank;                  /* gone to */
  const xfi_ranks *visitors; /* who goes there for much, maybe itself */
  const void *link;          /* the caller's */
  size_t turn;               /* made: by which they are sorted */
} xfi_visit;

/* Put the visits of `rank` in order, one to itself among them if it keeps anything. True: then
 * ranks seldom meet. False: they do in any order, and had better go to all peers at once. */
bool xfi_order_visits(xfi_visit *visits, size_t n, int rank);

#endif
