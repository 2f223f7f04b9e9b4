/* Instantiating the flows of each class for each of its tensors. */
#ifndef XFI_MOVE_LISTS_H
#define XFI_MOVE_LISTS_H

#include "moves_types.h"

/* Sets moves->order: largest elements first, so that packed streams never misalign one; or as
 * given. */
xfer_status xfi_moves_set_order(xfi_moves *moves, const uint32_t *given);
/* Fill sends, recvs, selfs and the byte counts of a plan. */
xfer_status xfi_moves_fill(xfi_moves *moves);
/* After xfi_moves_fill(): make moves->relay (relay.c). */
xfer_status xfi_relay_fill(xfi_moves *moves);

/* The most moves of a list: a plan of as many takes 2 GB and seconds, and its lanes far more. */
#define XFI_MOST_MOVES ((size_t)1 << 26)

/* Begin a list that will have peers. */
xfer_status xfi_moves_begin(const xfi_moves *moves, xfi_move_list *list);
/* Append a move, whose n_bytes are added to its peer's; 0: they do not count. XFER_ERR_OVERFLOW:
 * the list has too many moves. */
xfer_status xfi_move_add(xfi_move_list *list, xfi_move move, uint64_t n_bytes);
/* Sort moves by peer, keeping the order within one, and list the peers. */
xfer_status xfi_moves_group(const xfi_moves *moves, xfi_move_list *list);

#endif
