/* NCCL, found at run time (nccl_load.c). */
#ifndef XFI_NCCL_LOAD_H
#define XFI_NCCL_LOAD_H

/* Find NCCL, once. NULL: it is there; else half a sentence that says why not. */
const char *xfi_nccl_load(void);

#endif
