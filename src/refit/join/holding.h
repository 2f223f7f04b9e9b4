/* How a side holds an entry: the local tensor in which its rows lie, and the layouts. */
#ifndef XFI_HOLDING_H
#define XFI_HOLDING_H

#include "layout.h"
#include "slot.h"

/* How a side holds an entry. */
typedef struct xfi_holding {
  xfi_slot slot;
  xfer_layout **layouts; /* [n_layers or 1] */
  bool misc;           /* the framework has no such tensor: a named buffer or a callback takes it */
  bool unknown;        /* no rule holds it, so every rank of the side has it whole */
  bool hook;           /* the framework computes other values from it */
  bool absent;         /* the side does not have it */
  bool scales_dropped; /* these are scales, and the side has their weights in a type without scales;
                          then `absent` is set too */
  int64_t less;        /* the side's values are the checkpoint's minus this */
} xfi_holding;

xfer_status xfi_holding_make(xfi_holding *held, xfi_placing *placing, size_t entry);
void xfi_holding_free(xfi_holding *held, const xfi_entry *entry);

#endif
