/* Scales of fp8 weights: made of a table's weights, and paired with those that they are of. */
#ifndef XFI_QUANTISE_H
#define XFI_QUANTISE_H

#include "entries.h"

/* How a side quantises the weights of one model. */
typedef struct xfi_quant_scheme {
  int64_t block[2];   /* rows and columns */
  const char *scales; /* what the names of scales end in, where the weight's is "weight" */
  xfer_dtype dtype;
} xfi_quant_scheme;

/* By a rule of a side, in `rules`. */
xfer_status xfi_quant_scheme_find(xfi_quant_scheme *quant, const xfer_rules *rules,
                                  const xfi_quant_rule *rule, const xfer_model *model);
/* Is the entry's role one of those that published fp8 checkpoints quantise? */
bool xfi_role_is_scaled(const xfer_model *model, const xfi_entry *entry);
/* Is the entry a weight of such a role? */
bool xfi_is_quantised(const xfer_model *model, const xfi_entry *entry);
/* unquantised.c: marks weights that the configuration does not quantise, and splits their layers
 * from others. */
xfer_status xfi_unquantised_find(xfer_model *model, const xfer_side *by);
xfer_status xfi_scales_make(xfer_model *model, const xfi_quant_scheme *quant);
xfer_status xfi_scales_pair(xfer_model *model);

#endif
