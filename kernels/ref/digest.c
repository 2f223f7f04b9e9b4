/* Digests in plain C, unit by unit. The bytes of a unit that a run does not have count as zero. */
#include "digest.h"

#include <string.h>

static const uint32_t keys[2][XFI_DIGEST_KEYS] = XFI_DIGEST_KEY_TABLE;

static void add_unit(xfi_sum *sum, uint64_t unit, const unsigned char bytes[XFI_DIGEST_UNIT])
{
  const uint32_t first = xfi_digest_key_of(unit);
  uint64_t chunk[2];
  uint32_t words[4];

  memcpy(words, bytes, sizeof words);
  xfi_digest_chunk(chunk, xfi_digest_chunk_of(unit));
  for (int s = 0; s < 2; s++) {
    uint64_t h = 0;

    for (uint32_t w = 0; w < 4; w++)
      h += (uint64_t)words[w] * keys[s][first + w];
    sum->word[s] += h * chunk[s];
  }
}

/* Adds n_bytes at `run`, which begin at `offset` in the tensor's order. */
static void add_run(xfi_sum *sum, const char *run, int64_t offset, int64_t n_bytes)
{
  while (n_bytes > 0) {
    const int64_t within = offset % XFI_DIGEST_UNIT;
    const int64_t left = XFI_DIGEST_UNIT - within;
    const int64_t n = n_bytes < left ? n_bytes : left;
    unsigned char unit[XFI_DIGEST_UNIT] = {0};

    if (n == XFI_DIGEST_UNIT)
      memcpy(unit, run, sizeof unit); /* of a constant size: one load */
    else
      memcpy(unit + within, run, (size_t)n);
    add_unit(sum, (uint64_t)(offset / XFI_DIGEST_UNIT), unit);
    run += n;
    offset += n;
    n_bytes -= n;
  }
}

static void add_box(xfi_sum *sum, const xfi_copy *copy)
{
  const char *src = copy->src;
  char *dst = copy->dst;
  int64_t index[XFI_COPY_DIMS] = {0};

  do {
    add_run(sum, src, xfi_digest_offset(dst), copy->run_bytes);
  } while (xfi_copy_next(copy, copy->n_dims, index, &src, &dst));
}

void xfi_ref_digest(xfi_sum *sums, const xfi_digest_box *boxes, size_t n_boxes)
{
  for (size_t i = 0; i < n_boxes; i++) {
    xfi_sum sum = {{0, 0}};

    if (xfi_copy_bytes(&boxes[i].copy) == 0) continue;
    add_box(&sum, &boxes[i].copy);
    for (int s = 0; s < 2; s++)
      sums[boxes[i].sum].word[s] += boxes[i].factor * sum.word[s];
  }
}
