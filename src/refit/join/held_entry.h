/* How a side holds an entry: the local tensor in which its rows lie, and the layouts. */
#ifndef XFI_HELD_ENTRY_H
#define XFI_HELD_ENTRY_H

#include "layout.h"
#include "param_mapping.h"

/* How a side holds an entry. */
typedef struct xfi_held_entry {
  xfi_param_mapping mapping;
  xfer_layout **layouts; /* [n_layers or 1] */
  bool misc;           /* the framework has no such tensor: a named buffer or a callback takes it */
  bool unknown;        /* no rule holds it, so every rank of the side has it whole */
  bool hook;           /* the framework computes other values from it */
  bool absent;         /* the side does not have it */
  bool scales_dropped; /* these are scales, and the side has their weights in a type without scales;
                          then `absent` is set too */
  int64_t subtracted;  /* the side's values are the checkpoint's minus this */
} xfi_held_entry;

xfer_status xfi_held_entry_make(xfi_held_entry *held, xfi_rule_set *set, size_t entry);
void xfi_held_entry_free(xfi_held_entry *held, const xfi_entry *entry);

#endif
