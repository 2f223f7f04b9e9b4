/*
 * What ranks agree on before a plan exists: that all mean the same tensors, and the other side's
 * layouts where a rank was not given them.
 */
#ifndef XFI_AGREE_H
#define XFI_AGREE_H

#include "comm.h"
#include "moves.h"

/* The plan's tensors as all ranks agreed on them; it shares their layouts. */
typedef struct xfi_agreed {
  xfer_tensor *tensors; /* [n_tensors] the names belong to the caller */
  size_t n_tensors;
} xfi_agreed;

/*
 * Collective. `mine` is the result of this rank's own checks, whose text is set. `options` are
 * compared as bytes. XFER_ERR_MISMATCH names the first tensor that differs and how.
 */
xfer_status xfi_agree_tensors(xfi_agreed *agreed, xfi_comm *comm, xfer_status mine,
                              const xfer_tensor *tensors, size_t n_tensors,
                              const xfer_plan_options *options, xfi_deadline deadline);
void xfi_agreed_free(xfi_agreed *agreed);

#endif
