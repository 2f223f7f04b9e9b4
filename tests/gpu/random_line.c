#include "random_line.h"

#include <stdio.h>
#include <string.h>

int64_t random_draw(uint64_t *random, int64_t a, int64_t b)
{
  *random ^= *random >> 12;
  *random ^= *random << 25;
  *random ^= *random >> 27;
  return a + (int64_t)((*random * UINT64_C(2685821657736338717) >> 11) % (uint64_t)(b - a + 1));
}

/* A mesh of some of the ranks, in the problem language; returns its number of axes. */
static int random_mesh(uint64_t *random, int n_ranks, char *text, size_t size)
{
  int n_axes = (int)random_draw(random, 1, 3);
  int shape[3] = {1, 1, 1};
  int total = 1;
  int ranks[64];
  size_t at = 0;

  for (int a = 0; a < n_axes; a++) {
    shape[a] = (int)random_draw(random, 1, n_ranks / total);
    total *= shape[a];
  }
  for (int r = 0; r < n_ranks; r++)
    ranks[r] = r;
  for (int r = n_ranks - 1; r > 0; r--) {
    int other = (int)random_draw(random, 0, r);
    int kept = ranks[r];
    ranks[r] = ranks[other];
    ranks[other] = kept;
  }
  for (int a = 0; a < n_axes; a++)
    at += (size_t)snprintf(text + at, size - at, a == 0 ? "(%d" : ",%d", shape[a]);
  for (int r = 0; r < total; r++)
    at += (size_t)snprintf(text + at, size - at, r == 0 ? ")@%d" : ",%d", ranks[r]);
  (void)snprintf(text + at, size - at, ":");
  return n_axes;
}

static void random_side(uint64_t *random, int n_ranks, char *text, size_t size, int n_dims)
{
  int n_axes = random_mesh(random, n_ranks, text, size);

  for (int a = 0; a < n_axes; a++) {
    size_t at = strlen(text);
    const char *comma = a == 0 ? "" : ",";
    switch (random_draw(random, 0, 4)) {
    case 0:
      (void)snprintf(text + at, size - at, "%sR", comma);
      break;
    case 1:
      (void)snprintf(text + at, size - at, "%sS%db", comma,
                     (int)random_draw(random, 0, n_dims - 1));
      break;
    case 2:
      (void)snprintf(text + at, size - at, "%sS%df%d", comma,
                     (int)random_draw(random, 0, n_dims - 1), (int)random_draw(random, 1, 4));
      break;
    default:
      (void)snprintf(text + at, size - at, "%sS%d", comma, (int)random_draw(random, 0, n_dims - 1));
      break;
    }
  }
}

void random_line(uint64_t *random, int n_ranks, char *line, size_t size)
{
  static const char *const dtypes[] = {"u8", "bf16", "f32", "f64"};
  char src[256] = "";
  char dst[256] = "";
  int n_dims = (int)random_draw(random, 1, 4);
  int64_t room = random_draw(random, 0, 5) == 0 ? 4000000 : 60000;
  size_t at = 0;

  at += (size_t)snprintf(line, size, "%s", dtypes[random_draw(random, 0, 3)]);
  for (int d = 0; d < n_dims; d++) {
    int64_t n = random_draw(random, 0, 30) == 0
                    ? 0
                    : random_draw(random, 1, random_draw(random, 0, 2) == 0 ? 2000 : 40);
    if (n > room) n = room > 0 ? room : 1;
    if (n > 0) room /= n;
    at += (size_t)snprintf(line + at, size - at, d == 0 ? "[%lld" : ",%lld", (long long)n);
  }
  random_side(random, n_ranks, src, sizeof src, n_dims);
  random_side(random, n_ranks, dst, sizeof dst, n_dims);
  (void)snprintf(line + at, size - at, "] %s -> %s", src, dst);
}
