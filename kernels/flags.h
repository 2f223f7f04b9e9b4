/* The words by which ranks signal each other, as hosts, streams and kernels read and write them. */
#ifndef XFI_FLAGS_H
#define XFI_FLAGS_H

#include <stdint.h>

/* A flag is a 64-bit word that only grows. With this bit set, the value that was waited for will
 * not come, and the wait ends. (Not the top bit: streams compare differences.) */
#define XFI_FLAG_VOID (UINT64_C(1) << 62)

#endif
