/* Destination bytes that are no part of any tensor, as rows whose weights were ignored. */
#ifndef TOOLS_REFIT_UNTOUCHED_H
#define TOOLS_REFIT_UNTOUCHED_H

#include "fill.h"
#include "memory.h"

/* Of which memory, and what byte every destination was set to before the run. */
typedef struct untouched {
  const refit_memory *memory;
  int byte;
} untouched;

/* What sets a box back to the byte where others would check it. */
fill_device untouched_eraser(const untouched *of);
/* After every part went through it: adds the bytes that are not as they were before the run. False:
 * no memory, or after a message of the device. */
bool untouched_count(const untouched *of, uint64_t *wrong);

#endif
