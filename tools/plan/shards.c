#include "shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A rank's boxes; false: no memory. n_boxes is set, and bounds NULL where it is in no mesh. */
static bool boxes_of(shard *part, const xfer_layout *layout, int rank, int n_dims)
{
  size_t n = 0;

  *part = (shard){.bounds = NULL};
  if (xfer_layout_boxes(layout, rank, NULL, 0, &n) != XFER_OK) return true;
  part->bounds = malloc((2 * (size_t)n_dims * n + 1) * sizeof *part->bounds);
  return part->bounds != NULL &&
         xfer_layout_boxes(layout, rank, part->bounds, n, &part->n_boxes) == XFER_OK;
}

static bool same_boxes(const shard *a, const shard *b, int n_dims)
{
  return a->n_boxes == b->n_boxes && a->bounds != NULL && b->bounds != NULL &&
         memcmp(a->bounds, b->bounds, 2 * (size_t)n_dims * a->n_boxes * sizeof *a->bounds) == 0;
}

static bool add_rank(shard *part, int rank)
{
  if ((part->n_ranks & (part->n_ranks - 1)) == 0) { /* a power of two: it is full */
    const size_t room = part->n_ranks == 0 ? 1 : 2 * (size_t)part->n_ranks;
    int *grown = realloc(part->ranks, room * sizeof *grown);

    if (grown == NULL) return false;
    part->ranks = grown;
  }
  part->ranks[part->n_ranks++] = rank;
  return true;
}

static size_t hash_boxes(const shard *part, int n_dims)
{
  size_t h = part->n_boxes;

  for (size_t i = 0; i < 2 * (size_t)n_dims * part->n_boxes; i++)
    h = (h ^ (size_t)part->bounds[i]) * (size_t)0x9e3779b97f4a7c15 >> 1;
  return h;
}

/* The part of `mine`, which becomes one of the list if there is none like it. `slots` has for
 * hashes modulo their number, a power of two, one more than the index of a part; 0: none. */
static shard *place(shards *out, shard *mine, size_t *slots, size_t n_slots)
{
  size_t slot = hash_boxes(mine, out->n_dims) & (n_slots - 1);

  for (; slots[slot] != 0; slot = (slot + 1) & (n_slots - 1)) {
    shard *known = &out->at[slots[slot] - 1];

    if (!same_boxes(known, mine, out->n_dims)) continue;
    free(mine->bounds);
    return known;
  }
  out->at[out->n++] = *mine;
  slots[slot] = out->n;
  return &out->at[out->n - 1];
}

bool shards_find(shards *out, const xfer_layout *layout, int n_ranks)
{
  size_t n_slots = 2;
  bool ok;

  memset(out, 0, sizeof *out);
  while (n_slots < 2 * (size_t)n_ranks)
    n_slots *= 2;
  size_t *slots = calloc(n_slots, sizeof *slots);
  out->n_dims = xfer_layout_shape(layout, out->shape);
  out->at = calloc((size_t)n_ranks, sizeof *out->at);
  ok = out->at != NULL && slots != NULL;
  for (int r = 0; r < n_ranks && ok; r++) {
    shard mine;

    ok = boxes_of(&mine, layout, r, out->n_dims);
    if (!ok) free(mine.bounds);
    if (ok && mine.bounds != NULL) ok = add_rank(place(out, &mine, slots, n_slots), r);
  }
  free(slots);
  if (!ok) shards_free(out);
  return ok;
}

void shards_free(shards *out)
{
  for (size_t i = 0; out->at != NULL && i < out->n; i++) {
    free(out->at[i].bounds);
    free(out->at[i].ranks);
  }
  free(out->at);
  memset(out, 0, sizeof *out);
}

void shards_text(char text[SHARDS_TEXT_BYTES], const xfer_layout *layout)
{
  char line[SHARDS_TEXT_BYTES - 4];
  const size_t n = xfer_problem_format(line, sizeof line, layout, NULL) - strlen(" -> ?");

  if (n < sizeof line) line[n] = '\0';
  snprintf(text, SHARDS_TEXT_BYTES, "%s%s", strchr(line, ' ') + 1, n < sizeof line ? "" : "...");
}

/* How many ranks from `first` on make one range, and their distance. */
static int range_at(const shard *part, int first, int *step)
{
  int n = 1;

  *step = 1;
  if (first + 1 == part->n_ranks) return 1;
  *step = part->ranks[first + 1] - part->ranks[first];
  while (first + n < part->n_ranks && part->ranks[first + n] - part->ranks[first + n - 1] == *step)
    n++;
  return n > 2 || *step == 1 ? n : 1;
}

int shards_ranks(char *text, size_t size, const shard *part)
{
  int length = 0;

  for (int i = 0, n, step; i < part->n_ranks; i += n) {
    const size_t at = (size_t)length < size ? (size_t)length : size;
    const int first = part->ranks[i];

    n = range_at(part, i, &step);
    length += snprintf(text + at, size - at, "%s%d", i > 0 ? "," : "", first);
    const size_t then = (size_t)length < size ? (size_t)length : size;
    if (n > 1) length += snprintf(text + then, size - then, "-%d", part->ranks[i + n - 1]);
    const size_t last = (size_t)length < size ? (size_t)length : size;
    if (n > 1 && step > 1) length += snprintf(text + last, size - last, "/%d", step);
  }
  return length;
}
