/* Copies that go on where another ends are joined, within one allocation on each side. */
#include "cuda_device.h"
#include "property/rng.h"
#include "world.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES = 1 << 18, MOST = 400, CASES = 80 };

static xfi_device *device;
static char *memory[3]; /* each its own allocation, of the machine that is simulated: on the host */
static rng numbers;

static void begin(void)
{
  sim_setup(&(sim_config){.eager = true});
  NEED(cudaSetDevice(0) == cudaSuccess);
  OK(xfi_device_create_cuda(&device));
  for (int i = 0; i < 3; i++)
    NEED(cudaMalloc((void **)&memory[i], BYTES) == cudaSuccess);
  numbers.state = world_seed() + 1;
}

static size_t join(xfi_copy *copies, size_t n)
{
  return xfi_cuda_join(xfi_cuda(device), &(xfi_batch_spec){.copies = copies}, n);
}

enum { RUN = 600 };

/* Run i of those that go on where another ends. */
static xfi_copy run(int i)
{
  return (xfi_copy){.src = memory[0] + i * RUN, .dst = memory[1] + i * RUN, .run_bytes = RUN};
}

static void test_runs_become_one(void)
{
  xfi_copy copies[16];

  begin();
  for (int i = 0; i < 16; i++)
    copies[(i * 7 + 3) % 16] = run(i); /* in any order */
  NEED(join(copies, 16) == 1);
  NEED(copies[0].run_bytes == 16 * RUN && copies[0].n_dims == 0);
  NEED(copies[0].src == memory[0] && copies[0].dst == memory[1]);
  for (int i = 0; i < 4; i++) { /* backwards */
    copies[i] = run(i);
    copies[i].dst = memory[1] + (4 - i) * RUN;
  }
  NEED(join(copies, 4) == 4);
}

/* What goes on on one side alone, has rows, or writes zeros. */
static void test_others_stay(void)
{
  xfi_copy copies[2];

  begin();
  for (int k = 0; k < 5; k++) {
    copies[0] = run(0);
    copies[1] = run(1);
    if (k == 0) copies[1].src++;
    if (k == 1) copies[1].dst++;
    if (k == 2) copies[k - 1].src = NULL;
    if (k == 3) copies[0].src = NULL;
    if (k == 4) {
      copies[1].run_bytes = RUN / 2;
      copies[1].n_dims = 1;
      copies[1].extent[0] = 2;
      copies[1].src_stride[0] = copies[1].dst_stride[0] = RUN;
    }
    NEED(join(copies, 2) == 2);
  }
}

/* An allocation that begins where another ends. */
static char *neighbour(void)
{
  char *last = memory[2];
  char *next = NULL;

  for (int i = 0; i < 100; i++) {
    NEED(cudaMalloc((void **)&next, BYTES) == cudaSuccess);
    if (next == last + BYTES) break;
    last = next;
  }
  NEED(next == last + BYTES);
  return next;
}

static void test_two_allocations_stay_two(void)
{
  char *border;

  begin();
  border = neighbour();
  for (int inside = 0; inside < 2; inside++) {
    char *end = border - (inside ? RUN : 0);

    for (int side = 0; side < 2; side++) {
      xfi_copy copies[2] = {run(0), run(1)};

      for (int i = 0; i < 2; i++) {
        char *at = end + (i - 1) * RUN;

        if (side == 0) copies[i].src = at;
        if (side == 1) copies[i].dst = at;
      }
      NEED(join(copies, 2) == (inside ? 1 : 2));
    }
  }
}

/* What copies do is what they did before. */
static void check_equal(const xfi_copy *before, size_t n_before, const xfi_copy *after,
                        size_t n_after)
{
  static char wanted[BYTES];

  memset(memory[1], 0x5a, BYTES);
  xfi_ref_copy(before, n_before);
  memcpy(wanted, memory[1], BYTES);
  memset(memory[1], 0x5a, BYTES);
  xfi_ref_copy(after, n_after);
  NEED(memcmp(wanted, memory[1], BYTES) == 0);
}

static size_t add_rows(xfi_copy *copies, size_t n)
{
  xfi_copy c = {.run_bytes = rng_int(&numbers, 1, 9), .n_dims = rng_int(&numbers, 0, 2)};
  const int rows = rng_int(&numbers, 1, 12);
  int64_t step = c.run_bytes;
  int64_t at[2];
  int64_t steps[2];

  for (int64_t d = c.n_dims - 1; d >= 0; d--) {
    c.extent[d] = rng_int(&numbers, 1, 4);
    c.src_stride[d] = c.dst_stride[d] = step;
    step *= c.extent[d] + rng_int(&numbers, 0, 1);
  }
  for (int s = 0; s < 2; s++) {
    steps[s] = step + (rng_percent(&numbers, 70) ? 0 : rng_int(&numbers, 0, 20));
    at[s] = rng_below(&numbers, BYTES / 2);
  }
  for (int i = 0; i < rows && n < MOST; i++) {
    c.src = rng_percent(&numbers, 3) ? NULL : memory[0] + at[0] + i * steps[0];
    c.dst = memory[1] + at[1] + i * steps[1];
    copies[n++] = c;
  }
  return n;
}

/* Whether one copy's bytes are written by another too: then their order counts. */
static bool overlaps(const xfi_copy *copies, size_t n)
{
  static char taken[BYTES];
  bool found = false;

  memset(taken, 0, sizeof taken);
  for (size_t i = 0; i < n && !found; i++) {
    xfi_copy mark = copies[i];
    int64_t n_bytes = 0;

    memset(memory[1], 0x11, BYTES);
    mark.src = NULL;
    xfi_ref_copy(&mark, 1);
    for (size_t k = 0; k < BYTES; k++) {
      if (memory[1][k] != 0) continue;
      found = found || taken[k] != 0;
      taken[k] = 1;
      n_bytes++;
    }
    found = found || n_bytes != xfi_copy_bytes(&mark);
  }
  return found;
}

static void test_random_copies_do_the_same(void)
{
  size_t n_joined = 0;

  begin();
  for (size_t k = 0; k < BYTES; k++)
    memory[0][k] = (char)rng_below(&numbers, 256);
  for (int i = 0; i < CASES; i++) {
    xfi_copy before[MOST];
    xfi_copy after[MOST];
    size_t n = 0;
    size_t n_after;

    for (int groups = rng_int(&numbers, 1, 4); groups > 0; groups--)
      n = add_rows(before, n);
    if (overlaps(before, n)) continue;
    for (size_t k = n; k > 1; k--) { /* in any order */
      const size_t other = (size_t)rng_below(&numbers, (int64_t)k);
      const xfi_copy kept = before[k - 1];
      before[k - 1] = before[other];
      before[other] = kept;
    }
    for (size_t k = 0; k < n; k++) {
      after[k] = before[k];
      xfi_copy_simplify(&after[k]);
    }
    n_after = join(after, n);
    NEED(n_after <= n);
    n_joined += n - n_after;
    check_equal(before, n, after, n_after);
  }
  NEED(n_joined > CASES); /* it is tested at all */
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"runs_become_one", test_runs_become_one},
      {"others_stay", test_others_stay},
      {"two_allocations_stay_two", test_two_allocations_stay_two},
      {"random_copies_do_the_same", test_random_copies_do_the_same},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
