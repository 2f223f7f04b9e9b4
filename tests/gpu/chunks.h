/* Memory that is mapped chunk by chunk, as torch's expandable segments and the allocators of
 * engines that sleep have it. A failure ends the program. */
#ifndef XFER_TEST_CHUNKS_H
#define XFER_TEST_CHUNKS_H

#include <stdbool.h>
#include <stddef.h>

/* `n_bytes` of the current device in chunks of 2 MiB; `leaves`: other processes may map it. */
void *chunks_alloc(size_t n_bytes, bool leaves);
/* Other memory at the same addresses, as after an engine has slept. */
void chunks_renew(void *memory, size_t n_bytes, bool leaves);
void chunks_free(void *memory, size_t n_bytes);

#endif
