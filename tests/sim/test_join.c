/* Copies that are rows of a larger one are joined, within one allocation on each side. */
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
  return xfi_cuda_join(xfi_cuda(device), copies, n);
}

/* Row i of `rows` copies of 2-D boxes, from one buffer into another. */
static xfi_copy row(int i, int64_t src_step, int64_t dst_step)
{
  return (xfi_copy){.src = memory[0] + i * src_step,
                    .dst = memory[1] + i * dst_step,
                    .run_bytes = 24,
                    .n_dims = 1,
                    .extent = {5},
                    .src_stride = {40},
                    .dst_stride = {32}};
}

static void test_rows_become_one(void)
{
  xfi_copy copies[16];

  begin();
  for (int i = 0; i < 16; i++)
    copies[(i * 7 + 3) % 16] = row(i, 1000, 500); /* in any order */
  NEED(join(copies, 16) == 1);
  NEED(xfi_copy_bytes(&copies[0]) == 16 * 5 * 24);
  NEED(copies[0].n_dims == 2 && copies[0].src == memory[0] && copies[0].dst == memory[1]);
  /* backwards: strides are positive */
  for (int i = 0; i < 4; i++) {
    copies[i] = row(i, 1000, 500);
    copies[i].dst = memory[1] + (4 - i) * 500;
  }
  NEED(join(copies, 4) == 4);
}

static void test_two_allocations_stay_two(void)
{
  xfi_copy copies[2];

  begin();
  copies[0] = row(0, 0, 0);
  copies[1] = row(1, 1000, 500);
  copies[memory[0] < memory[2] ? 1 : 0].src = memory[2]; /* sources rise, as within one */
  NEED(join(copies, 2) == 2);
  copies[0] = row(0, 0, 0);
  copies[1] = row(1, 1000, 500);
  copies[memory[1] < memory[2] ? 1 : 0].dst = memory[2];
  NEED(join(copies, 2) == 2);
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
    steps[s] = step + rng_int(&numbers, 0, 20);
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

static void test_random_rows_do_the_same(void)
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
    memcpy(after, before, sizeof after);
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
      {"rows_become_one", test_rows_become_one},
      {"two_allocations_stay_two", test_two_allocations_stay_two},
      {"random_rows_do_the_same", test_random_rows_do_the_same},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
