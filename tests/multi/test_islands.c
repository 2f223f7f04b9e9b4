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
#include "moves.h"
#include "object.h"

enum { ISLANDS = 3, CASES = 600, MIXED_CASES = 50 /* at least */ };

static xfi_device_ops island_ops[ISLANDS];
static xfi_comm_ops comm_ops;
static const xfi_comm_ops *local_ops;
static const xfi_device_ops *host_ops;

/* What the ranks of a case did. */
static _Atomic int n_imports;
static _Atomic int n_rounds;
static _Atomic int n_broadcasts;

static xfer_status count_import(xfi_device *device, const xfi_mem_handle *handle,
                                xfi_mapping **mapping, xfi_deadline deadline)
{
  n_imports++;
  return host_ops->mem_import(device, handle, mapping, deadline);
}

static xfer_status count_round(xfi_comm *comm, const xfi_messages *messages, xfer_stream stream,
                               xfi_deadline deadline)
{
  n_rounds++;
  return local_ops->round(comm, messages, stream, deadline);
}

static xfer_status count_broadcast(xfi_comm *comm, const xfi_message *messages, int n, int root,
                                   xfer_stream stream, xfi_deadline deadline)
{
  n_broadcasts++;
  return local_ops->broadcast(comm, messages, n, root, stream, deadline);
}

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

/* Stands before xfi_cost_choose() by the linker's --wrap: where the plan chooses lanes, every
 * second class is broadcast whether or not it pays. */
xfer_status __real_xfi_cost_choose(xfi_moves *plan);
xfer_status __wrap_xfi_cost_choose(xfi_moves *plan);
xfer_status __wrap_xfi_cost_choose(xfi_moves *plan)
{
  const xfer_status st = __real_xfi_cost_choose(plan);

  if (plan->options.lane != XFER_LANE_AUTO || plan->n_ranks == 1) return st;
  for (size_t c = 1; c < plan->n_classes; c += 2) {
    if (plan->classes[c].broadcast) continue;
    plan->classes[c].broadcast = true;
    plan->n_broadcast += plan->classes[c].n_tensors;
  }
  return st;
}

/* Ranks 0 and 1, 2 and 3, ... share an island; there are fewer islands than pairs. */
static xfer_status make_islands(xfer_comm **comms, int n_ranks)
{
  static void (*const domains[ISLANDS])(xfi_device *, unsigned char[64]) = {domain_0, domain_1,
                                                                            domain_2};
  const xfer_status st = xfer_comm_create_local(comms, n_ranks);

  if (st == XFER_OK) {
    host_ops = comms[0]->device->ops;
    local_ops = comms[0]->transport->ops;
    comm_ops = *local_ops;
    comm_ops.round = count_round;
    comm_ops.broadcast = count_broadcast;
  }
  for (int r = 0; r < n_ranks && st == XFER_OK; r++) {
    xfi_device_ops *ops = &island_ops[r / 2 % ISLANDS];

    *ops = *host_ops;
    ops->domain = domains[r / 2 % ISLANDS];
    ops->mem_import = count_import;
    comms[r]->device->ops = ops;
    comms[r]->transport->ops = &comm_ops;
  }
  return st;
}

static void test_random_problems_between_islands(void **state)
{
  static const uint64_t windows[] = {16, 64, 257, 4096};
  problem p = {0};
  carrier *c = carrier_create();
  char why[800];
  int n_mixed = 0;

  (void)state;
  assert_non_null(c);
  carrier_make_comms(c, make_islands);
  for (uint64_t k = 0, n = 0; n < CASES; k++) {
    problem_random(&p, 4, k);
    if (p.n_ranks < 4 || p.n_tensors < 2) continue; /* too small for all lanes */
    n++;
    /* Small windows make many messages of small tensors, some of them in place. */
    if (p.options.lane != XFER_LANE_PACKED && k % 2 == 0) {
      p.null_options = false;
      p.options.struct_size = sizeof p.options;
      p.options.lane = XFER_LANE_AUTO;
      p.options.window_bytes = windows[k / 2 % 4];
      p.options.min_broadcast_saving_bytes = 1;
    }
    n_imports = n_rounds = n_broadcasts = 0;
    const verdict v = carrier_run(c, &p, why, sizeof why);
    n_mixed += n_imports > 0 && n_rounds > 0 && n_broadcasts > 0;
    if (v == RIGHT || v == REFUSED) continue;
    problem_print(stderr, &p);
    fail_msg("case %llu: %s", (unsigned long long)k, why);
  }
  print_message("%d cases of %d took all lanes\n", n_mixed, CASES);
  assert_true(n_mixed >= MIXED_CASES);
  carrier_destroy(c);
  problem_free(&p);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_problems_between_islands)};

  return cmocka_run_group_tests(tests, NULL, NULL);
}
