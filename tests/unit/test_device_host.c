/* The host device: memory, mappings between threads, batches, and flags that threads wait on. */
#include "device.h"

#include "alloc.h"
#include "ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static xfi_device *device;

static int setup(void **state)
{
  (void)state;
  return xfi_device_create_host(&device) == XFER_OK ? 0 : -1;
}

static int teardown(void **state)
{
  (void)state;
  device->ops->destroy(device);
  return 0;
}

static void test_alloc_gives_zeroed_memory(void **state)
{
  (void)state;
  void *memory = NULL;
  unsigned char zeros[1000] = {0};

  assert_int_equal(device->ops->alloc(device, &memory, sizeof zeros), XFER_OK);
  assert_memory_equal(memory, zeros, sizeof zeros);
  device->ops->free(device, memory);
  assert_int_equal(device->ops->alloc(device, &memory, 0), XFER_OK);
  device->ops->free(device, memory);
}

static void test_alloc_that_fails_says_how_much_it_was(void **state)
{
  (void)state;
  void *memory = NULL;

  xfi_alloc_fail_after(0);
  assert_int_equal(device->ops->alloc(device, &memory, 123456), XFER_ERR_NOMEM);
  assert_null(memory);
}

static xfi_deadline soon(void)
{
  return xfi_deadline_after(60000);
}

static xfer_status wait_for(uint64_t **flags, int n, uint64_t value, xfi_deadline deadline,
                            int *late)
{
  return device->ops->flags_sync(device, &(xfi_flags){NULL, 0}, &(xfi_flags){flags, n}, value, NULL,
                                 deadline, late);
}

static void test_mapping_in_one_process_yields_the_exporters_address(void **state)
{
  (void)state;
  char there[16] = "";
  xfi_allocation found = {0};
  xfi_mem_handle handle;
  xfi_mapping *mapping = NULL;

  assert_int_equal(device->ops->find_allocation(device, &there[3], 1, &found), XFER_OK);
  assert_true((uintptr_t)&there[3] - (uintptr_t)found.base < found.n_bytes);
  assert_int_equal(device->ops->mem_export(device, found, &handle), XFER_OK);
  assert_int_equal(device->ops->mem_import(device, &handle, &mapping, soon()), XFER_OK);
  *(mapping->base + (&there[3] - (char *)found.base)) = 'x';
  assert_int_equal(there[3], 'x');
  device->ops->mem_unimport(device, mapping);
}

static void test_domains_are_equal_within_a_process(void **state)
{
  (void)state;
  xfi_device *other = NULL;
  unsigned char a[64];
  unsigned char b[64];

  assert_int_equal(xfi_device_create_host(&other), XFER_OK);
  device->ops->domain(device, a);
  other->ops->domain(other, b);
  assert_memory_equal(a, b, sizeof a);
  other->ops->destroy(other);
}

static void test_mapping_from_another_process_is_refused(void **state)
{
  (void)state;
  xfi_mem_handle handle = {{0}};
  xfi_allocation found = {0};
  unsigned char domain[64];
  unsigned char child_domain[64];
  int status = -1;

  device->ops->domain(device, domain);
  assert_int_equal(device->ops->find_allocation(device, &handle, 1, &found), XFER_OK);
  assert_int_equal(device->ops->mem_export(device, found, &handle), XFER_OK);
  pid_t child = fork();
  if (child == 0) {
    xfi_mapping *mapping = NULL;
    const xfer_status st = device->ops->mem_import(device, &handle, &mapping, soon());

    device->ops->domain(device, child_domain); /* another one even if its number were the same */
    _exit(st == XFER_ERR_UNSUPPORTED && memcmp(domain + 8, child_domain + 8, 56) != 0 ? 0 : 1);
  }
  assert_true(child > 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void *make_pages(void *ends)
{
  while (!atomic_load((atomic_bool *)ends)) {
    uint64_t *flags = NULL;

    if (device->ops->flags_alloc(device, &flags, 8, false) != XFER_OK) abort();
    device->ops->flags_free(device, flags);
  }
  return NULL;
}

/* Whatever other threads do when it is forked. */
static void test_a_child_gives_flags_back(void **state)
{
  enum { CHILDREN = 300 };
  atomic_bool ends = false;
  uint64_t *flags = NULL;
  pthread_t thread;

  (void)state;
  assert_int_equal(device->ops->flags_alloc(device, &flags, 8, false), XFER_OK);
  assert_int_equal(pthread_create(&thread, NULL, make_pages, &ends), 0);
  for (int i = 0; i < CHILDREN; i++) {
    const pid_t child = fork();
    int status = -1;

    if (child == 0) {
      (void)alarm(10);
      device->ops->flags_free(device, flags);
      _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
  }
  atomic_store(&ends, true);
  assert_int_equal(pthread_join(thread, NULL), 0);
  device->ops->flags_free(device, flags);
}

static void test_batch_copies_what_it_was_made_of(void **state)
{
  (void)state;
  char from[] = "abcdef";
  char to[] = "......";
  xfi_copy copy = {.src = from,
                   .dst = to,
                   .run_bytes = 1,
                   .n_dims = 1,
                   .extent = {3},
                   .src_stride = {2},
                   .dst_stride = {1}};
  xfi_batch *batch = NULL;

  assert_int_equal(xfi_batch_make(device, &batch, &copy, 1, 100), XFER_OK);
  copy = (xfi_copy){0}; /* it was copied */
  assert_int_equal(device->ops->batch_launch(device, batch, NULL, NULL), XFER_OK);
  assert_string_equal(to, "ace...");
  copy = (xfi_copy){.src = from, .dst = to + 3, .run_bytes = 3};
  assert_int_equal(xfi_batch_make(device, &batch, &copy, 1, 100), XFER_OK);
  memset(to, '.', 6); /* the first one is gone */
  assert_int_equal(device->ops->batch_launch(device, batch, NULL, NULL), XFER_OK);
  assert_string_equal(to, "...abc");
  device->ops->batch_destroy(device, batch);
  device->ops->batch_destroy(device, NULL);
}

static void test_batch_create_survives_each_failed_allocation(void **state)
{
  (void)state;
  xfi_copy copies[3] = {{.run_bytes = 1}, {.run_bytes = 1}, {.run_bytes = 1}};
  xfi_batch *batch = NULL;
  xfer_status st = XFER_ERR_NOMEM;

  for (long n = 0; st != XFER_OK && n < 10; n++) {
    xfi_alloc_fail_after(n);
    st = xfi_batch_make(device, &batch, copies, 3, 100);
    if (st != XFER_OK) assert_null(batch);
  }
  assert_int_equal(st, XFER_OK);
  xfi_alloc_fail_after(0); /* nor is one left that it was to take the place of */
  assert_int_equal(xfi_batch_make(device, &batch, copies, 3, 100), XFER_ERR_NOMEM);
  xfi_alloc_fail_after(-1);
  assert_null(batch);
}

static void test_streams_and_events_are_done_at_once(void **state)
{
  (void)state;
  xfer_stream stream = NULL;
  xfi_event *event = NULL;

  assert_int_equal(xfi_stream_create(device, &stream), XFER_OK);
  assert_int_equal(xfi_stream_check(device, stream), XFER_OK);
  assert_int_equal(xfi_event_create(device, &event), XFER_OK);
  assert_int_equal(xfi_event_record(device, event, stream), XFER_OK);
  assert_int_equal(xfi_stream_wait(device, stream, event), XFER_OK);
  assert_int_equal(xfi_event_sync(device, event, xfi_deadline_after(0)), XFER_OK);
  xfi_event_destroy(device, event);
  xfi_stream_destroy(device, stream);
}

/* ---- flags -------------------------------------------------------------------------------- */

enum { N_STEPS = 300 };

typedef struct flag_ring {
  uint64_t *flags; /* [n_ranks] rank r waits on flags[r] */
  int64_t value;   /* passed on, guarded by the flags alone */
  int n_ranks;
} flag_ring;

/* A baton goes round: rank 0 starts each lap. */
static void pass_baton(int rank, void *context)
{
  flag_ring *ring = context;
  uint64_t *own = &ring->flags[rank];
  uint64_t *next = &ring->flags[(rank + 1) % ring->n_ranks];
  int late = -1;

  for (uint64_t lap = 1; lap <= N_STEPS; lap++) {
    xfi_deadline deadline = xfi_deadline_after(60000);
    uint64_t mine = rank == 0 ? lap - 1 : lap;
    expect(wait_for(&own, 1, mine, deadline, &late) == XFER_OK);
    ring->value++;
    expect(device->ops->flags_set(device, &(xfi_flags){&next, 1}, NULL, lap, NULL) == XFER_OK);
  }
}

static void test_flags_carry_what_was_written_before(void **state)
{
  (void)state;
  flag_ring ring = {.n_ranks = 16};
  void *memory = NULL;

  assert_int_equal(device->ops->alloc(device, &memory, 16 * sizeof(uint64_t)), XFER_OK);
  ring.flags = memory;
  run_ranks(16, pass_baton, &ring);
  assert_all_as_expected();
  assert_int_equal(ring.value, 16 * N_STEPS);
  device->ops->free(device, memory);
}

static void test_flags_wait_names_the_late_one(void **state)
{
  (void)state;
  uint64_t words[3] = {5, 4, 5};
  uint64_t *flags[3] = {&words[0], &words[1], &words[2]};
  int late = -1;
  int64_t start = xfi_now_ns();

  assert_int_equal(wait_for(flags, 3, 5, xfi_deadline_after(30), &late), XFER_ERR_TIMEOUT);
  assert_int_equal(late, 1);
  assert_true(xfi_now_ns() - start >= 30 * 1000000);
  for (int i = 0; i < 3; i++)
    device->ops->flags_store(device, &words[i], 9);
  assert_int_equal(wait_for(flags, 3, 9, xfi_deadline_after(0), &late), XFER_OK);
}

static void test_flags_beyond_32_bits_compare_as_64(void **state)
{
  (void)state;
  uint64_t word = (uint64_t)7 << 32;
  uint64_t *flag = &word;
  int late = -1;

  assert_int_equal(wait_for(&flag, 1, 8, xfi_deadline_after(0), &late), XFER_OK);
  assert_int_equal(wait_for(&flag, 1, ((uint64_t)7 << 32) + 1, xfi_deadline_after(1), &late),
                   XFER_ERR_TIMEOUT);
}

static void wait_or_release(int rank, void *context)
{
  uint64_t *flag = context;
  int late = -1;

  if (rank == 0) {
    (void)usleep(20000); /* the other one sleeps by now; if not, that is tested too */
    device->ops->flags_store(device, flag, XFI_FLAG_VOID);
  } else {
    xfi_deadline deadline = xfi_deadline_after(60000);
    expect(wait_for(&flag, 1, 1, deadline, &late) == XFER_OK);
  }
}

static void test_release_wakes_a_waiter(void **state)
{
  (void)state;
  uint64_t word = 0;
  int64_t start = xfi_now_ns();

  run_ranks(2, wait_or_release, &word);
  assert_all_as_expected();
  assert_true(xfi_now_ns() - start < (int64_t)30 * 1000000000);
}

static void test_flags_live_until_their_last_owner_leaves(void **state)
{
  (void)state;
  uint64_t *flags = NULL;

  assert_int_equal(device->ops->flags_alloc(device, &flags, 8, true), XFER_OK);
  assert_true(device->ops->flags_share(device, flags));
  device->ops->flags_free(device, flags);
  assert_int_equal(device->ops->flags_set(device, &(xfi_flags){&flags, 1}, NULL, 3, NULL), XFER_OK);
  assert_int_equal(flags[0], 3);
  device->ops->flags_free(device, flags);
  assert_false(device->ops->flags_share(device, flags));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_alloc_gives_zeroed_memory),
      cmocka_unit_test(test_alloc_that_fails_says_how_much_it_was),
      cmocka_unit_test(test_mapping_in_one_process_yields_the_exporters_address),
      cmocka_unit_test(test_domains_are_equal_within_a_process),
      cmocka_unit_test(test_mapping_from_another_process_is_refused),
      cmocka_unit_test(test_a_child_gives_flags_back),
      cmocka_unit_test(test_batch_copies_what_it_was_made_of),
      cmocka_unit_test(test_batch_create_survives_each_failed_allocation),
      cmocka_unit_test(test_streams_and_events_are_done_at_once),
      cmocka_unit_test(test_flags_carry_what_was_written_before),
      cmocka_unit_test(test_flags_wait_names_the_late_one),
      cmocka_unit_test(test_flags_beyond_32_bits_compare_as_64),
      cmocka_unit_test(test_release_wakes_a_waiter),
      cmocka_unit_test(test_flags_live_until_their_last_owner_leaves),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
