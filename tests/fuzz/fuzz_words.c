/*
 * libFuzzer: bytes to what another rank could send in place of its layouts, or of what it tells of
 * its memory. They are refused, or are what they say: a layout that is read is written as the same
 * bytes.
 *
 *   build/<preset>/tests/fuzz/fuzz_words -max_len=4096 DIR tests/fuzz/corpus_words
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "error.h"
#include "link.h"
#include "serial.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_layout(const unsigned char *bytes, size_t n_bytes)
{
  xfer_layout *layout = NULL;
  xfer_layout *again = NULL;
  xfi_bytes written = {NULL, 0, 0};

  if (xfi_layout_read(&layout, bytes, n_bytes) != XFER_OK) {
    if (layout != NULL || xfer_last_error()[0] == '\0') abort();
    return;
  }
  if (xfi_layout_write(&written, layout) != XFER_OK) abort();
  if (xfi_layout_read(&again, written.at, written.n) != XFER_OK) abort();
  if (memcmp(again->digest, layout->digest, sizeof layout->digest) != 0) abort();
  xfi_bytes_free(&written);
  xfi_layout_destroy(layout);
  xfi_layout_destroy(again);
}

static void read_link(unsigned char *bytes, size_t n_bytes)
{
  xfi_link link = {.rank = 1, .recv_buffer = {bytes, n_bytes, 0}};
  const xfer_status st = xfi_link_read(&link);

  if (st != XFER_OK && xfer_last_error()[0] == '\0') abort();
  if (st == XFER_OK && link.n_src_locations > link.n_locations) abort();
  for (size_t i = 0; st == XFER_OK && i < link.n_bounds; i++)
    if (link.bounds[i].piece_dim >= XFER_MAX_DIMS) abort();
  for (size_t i = 0; st == XFER_OK && i < link.n_locations; i++)
    if (link.locations[i][0] >= link.n_remotes) abort();
  for (size_t i = 0; i < link.n_bounds && link.bounds != NULL; i++)
    xfi_bound_clear(&link.bounds[i]);
  xfi_free(link.their_ranks[0].at);
  xfi_free(link.their_ranks[1].at);
  xfi_free(link.remotes);
  xfi_free(link.bounds);
  xfi_free(link.locations);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  unsigned char *bytes;

  if (size == 0) return 0;
  bytes = malloc(size); /* of its own size and alignment */
  if (bytes == NULL) return 0;
  memcpy(bytes, data + 1, size - 1);
  if (data[0] % 2 == 0)
    read_layout(bytes, size - 1);
  else
    read_link(bytes, size - 1);
  free(bytes);
  return 0;
}
