/* Figures of a join, computed in closed form, without a loop over ranks. */
#ifndef XFI_REPORT_H
#define XFI_REPORT_H

#include "join.h"

void xfi_refit_report(const xfer_refit *refit, xfer_refit_report_data *report);
int xfi_refit_ranks(const xfer_refit *refit);
void xfi_refit_tensor(const xfer_refit *refit, size_t i, xfer_refit_tensor *tensor);

#endif
