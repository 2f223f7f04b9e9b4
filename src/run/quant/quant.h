/*
 * Quantisation by blocks, the part that comes before the lanes. Each rank finds the amax of the
 * blocks of which it holds elements (kernels/block_scales.h), receives the amaxes that other ranks
 * have of blocks that it holds in part (plan->amax_plan), and makes scales of them. From then on
 * the scales are a tensor like any other, whose sources are these tables, and each rank converts
 * elements by the scales that it has.
 */
#ifndef XFI_QUANT_H
#define XFI_QUANT_H

#include "blocks.h"
#include "bound_plan.h"

/* Large sources are quantised in parts, so that the first parts travel while later ones are
 * scanned. */
enum { XFI_QUANT_PARTS = 4 };

/* A tensor and its scales. */
typedef struct xfi_quant_pair {
  uint32_t weights;
  uint32_t scales;
  xfi_blocks blocks; /* blocks of this rank's source part */
  float *table;      /* [n_scales] this rank's scales */
  size_t n_scales;
  bool is_cut; /* some blocks lie in several parts of the source layout */
  int part;    /* in which part of a run the tensor is quantised, below XFI_QUANT_PARTS */
} xfi_quant_pair;

/* The amaxes that parts which share blocks of one tensor exchange: a tensor with one more dim,
 * which has an index for each box of cells (a unit, see quant_cuts.c). */
typedef struct xfi_quant_cut {
  size_t pair; /* index of the tensor's pair */
  xfer_layout *src;
  xfer_layout *dst;
  void **sent; /* [n_sent] this rank's boxes that others ask for, in order */
  size_t n_sent;
  size_t received; /* offset of dst, which is dense, in quant->received */
} xfi_quant_cut;

struct xfi_quant {
  const xfi_quant_pair **pair_of; /* [n_tensors] NULL: neither weights nor scales */
  xfi_quant_pair *pairs;          /* [n_pairs] */
  size_t n_pairs;
  xfi_quant_cut *cuts; /* [n_cuts] at most n_pairs */
  size_t n_cuts;
  void *tables; /* [n_table_bytes] the scales of all pairs */
  size_t n_table_bytes;
  char *received; /* [n_received_bytes] amaxes of other ranks */
  size_t n_received_bytes;
  xfi_copies from_received; /* copies that combine these amaxes with this rank's; until `received`
                               is allocated, their sources are offsets */
  xfi_device *device;
  xfi_batch *clear;
  xfi_batch *combine;
  int n_parts;
  xfi_batch *amax[XFI_QUANT_PARTS];
  xfi_batch *finish[XFI_QUANT_PARTS];
  xfi_event *ready[XFI_QUANT_PARTS]; /* the table of each part but the first is ready */
};

/* `tensors` are the plan's, with the conversions as given. *quant is NULL if none has blocks. */
xfer_status xfi_quant_create(xfi_quant **quant, const xfer_plan *plan, const xfer_tensor *tensors);
void xfi_quant_destroy(xfi_quant *quant);
/* The source view of a tensor of scales; false: the tensor is not one of scales. */
bool xfi_quant_source(const xfi_quant *quant, size_t tensor, xfer_view *view);
/* The blocks of a tensor that is quantised; NULL: the tensor is not quantised. */
const xfi_blocks *xfi_quant_blocks(const xfi_quant *quant, size_t tensor);
/* Prepare, at each commit, what runs before the lanes; and free it. */
xfer_status xfi_quant_prepare(xfer_plan *plan);
void xfi_quant_drop(xfi_quant *quant);
/* In which part a tensor, or the tensor whose scales it is, is quantised; 0 for all others. */
int xfi_quant_part(const xfi_quant *quant, size_t tensor);
/* Enqueue what runs before the lanes: first the amaxes that other ranks need and, once
 * plan->amax_plan has run, the rest. plan->run.started is recorded after the first part, or at once
 * if nothing is quantised. */
xfer_status xfi_quant_start(const xfer_plan *plan, xfer_stream stream);
xfer_status xfi_quant_continue(const xfer_plan *plan, xfer_stream stream);
/* Enqueue on another stream the wait for a part, or for the last part if there are fewer. */
xfer_status xfi_quant_await(const xfer_plan *plan, int part, xfer_stream stream);

/* ---- quant_cuts.c ---- */

/* Find what ranks have to exchange, alike on all of them: quant->cuts, and what this rank receives.
 */
xfer_status xfi_quant_find_cuts(xfi_quant *quant, const xfer_plan *plan);
void xfi_quant_free_cuts(xfi_quant *quant);

#endif
