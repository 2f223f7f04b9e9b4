/*
 * The moves of a plan: for one rank, which boxes of which tensors go to and come from whom. A pure
 * function of metadata: both ends of a pair derive the same list in the same order, with no
 * negotiation.
 *
 * Tensors with equal (source layout, destination layout) form a *class*. Overlaps of parts are
 * found once per class (*flows*) and only instantiated per tensor (*moves*), so cost follows a
 * rank's own moves.
 */
#ifndef XFI_MOVES_H
#define XFI_MOVES_H

#include "choose.h"
#include "conversion.h"
#include "moves_types.h"

/* Most tensors of a plan, and most operations of an exchange each way. */
enum { XFI_MOST_TENSORS = (1 << 30) - 1 };

/* XFER_ERR_OVERFLOW if a plan has more tensors than it may. */
xfer_status xfi_moves_check_number(size_t n_tensors);
/* Both layouts of each tensor are known. The tensors are copied. */
xfer_status xfi_moves_create(xfi_moves **moves, int n_ranks, int rank, const xfer_tensor *tensors,
                             size_t n_tensors, const xfi_moves_options *options);
/* Check the tensors and sort them into classes, which are not filled: there are no moves yet. */
xfer_status xfi_moves_classify(xfi_moves **moves, int n_ranks, int rank, const xfer_tensor *tensors,
                               size_t n_tensors, const xfi_moves_options *options);
void xfi_moves_destroy(xfi_moves *moves);

/* ---- print.c ---- */

/* Describe the i-th move, of all lists in the order in which they are printed. XFER_ERR_ARG: there
 * is none. */
xfer_status xfi_moves_get(xfer_move *move, const xfi_moves *moves, size_t i);

/* How data travels to or from sends.peers[peer] or recvs.peers[peer] of a plan or of its relay;
 * NULL: this is not settled yet. */
typedef const char *(*xfi_lane_fn)(const void *context, bool relay, bool send, size_t peer);

xfer_status xfi_moves_print(const xfi_moves *moves, const xfer_plan_report_data *report,
                            xfi_lane_fn lane, const void *context, char **text, bool json);

#endif
