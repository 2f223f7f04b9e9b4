/* Random problems on ranks that reach each other's memory in groups only, as the processes of
   several hosts do: direct copies, packed rounds and broadcasts in one plan, every byte compared
   with the oracle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "carry.h"
#include "object.h"

enum { ISLANDS = 3, CASES = 600 };

static xfi_device_ops island_ops[ISLANDS];

static void tell_domain(unsigned char island, unsigned char domain[64])
{
  memset(domain, 0, 64);
  domain[0] = island;
}

static void domain_0(xfi_device *device, unsigned char domain[64])
{
  (void)device;
  tell_domain(0, domain);
}

static void domain_1(xfi_device *device, unsigned char domain[64])
{
  (void)device;
  tell_domain(1, domain);
}

static void domain_2(xfi_device *device, unsigned char domain[64])
{
  (void)device;
  tell_domain(2, domain);
}

/* Ranks 0 and 1, 2 and 3, ... share an island; there are fewer islands than pairs. */
static xfer_status make_islands(xfer_comm **comms, int n_ranks)
{
  static void (*const domains[ISLANDS])(xfi_device *, unsigned char[64]) = {domain_0, domain_1,
                                                                            domain_2};
  const xfer_status st = xfer_comm_create_local(comms, n_ranks);

  for (int r = 0; r < n_ranks && st == XFER_OK; r++) {
    xfi_device_ops *ops = &island_ops[r / 2 % ISLANDS];

    *ops = *comms[r]->device->ops;
    ops->domain = domains[r / 2 % ISLANDS];
    comms[r]->device->ops = ops;
  }
  return st;
}

static void test_random_problems_between_islands(void **state)
{
  static const uint64_t windows[] = {16, 64, 257, 4096};
  problem p = {0};
  carrier *c = carrier_create();
  char why[800];

  (void)state;
  assert_non_null(c);
  carrier_make_comms(c, make_islands);
  for (uint64_t k = 0; k < CASES; k++) {
    problem_random(&p, 4, k);
    /* Small windows make many messages of small tensors, some of them in place. */
    if (p.options.lane != XFER_LANE_PACKED && k % 2 == 0) {
      p.null_options = false;
      p.options.struct_size = sizeof p.options;
      p.options.lane = XFER_LANE_AUTO;
      p.options.window_bytes = windows[k / 2 % 4];
      p.options.message_ns = 1 << 20; /* broadcasts are worth while early */
    }
    const verdict v = carrier_run(c, &p, why, sizeof why);
    if (v == RIGHT || v == REFUSED) continue;
    problem_print(stderr, &p);
    fail_msg("case %llu: %s", (unsigned long long)k, why);
  }
  carrier_destroy(c);
  problem_free(&p);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_problems_between_islands)};

  return cmocka_run_group_tests(tests, NULL, NULL);
}
