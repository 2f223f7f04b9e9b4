/* The table of a plan's states, cell by cell, and on threads by calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#include "error.h"
#include "state.h"

enum { NO = -1 }; /* refused */

/* What each call comes to in each state: the states after it ended and after it failed. Written
 * down apart from the table, as the header's words have it. */
static const int expected[XFI_N_CALLS][XFI_N_STATES][XFI_N_ENDS] = {
    [XFI_CALL_BIND] = {{XFI_UNCOMMITTED, XFI_UNCOMMITTED},
                       {XFI_REBOUND, XFI_COMMITTED},
                       {XFI_REBOUND, XFI_REBOUND},
                       {NO, NO},
                       {XFI_WITHHELD, XFI_REFUSED},
                       {XFI_WITHHELD, XFI_WITHHELD},
                       {XFI_TORN, XFI_TORN}},
    [XFI_CALL_COMMIT] = {{XFI_COMMITTED, XFI_UNCOMMITTED},
                         {XFI_COMMITTED, XFI_UNCOMMITTED},
                         {XFI_COMMITTED, XFI_UNCOMMITTED},
                         {NO, NO},
                         {XFI_COMMITTED, XFI_UNCOMMITTED},
                         {XFI_COMMITTED, XFI_UNCOMMITTED},
                         {XFI_COMMITTED, XFI_TORN}},
    [XFI_CALL_RUN] = {{NO, NO},
                      {XFI_RUNNING, XFI_REFUSED},
                      {XFI_WITHHELD, XFI_WITHHELD},
                      {NO, NO},
                      {XFI_RUNNING, XFI_REFUSED},
                      {NO, NO},
                      {NO, NO}},
    [XFI_CALL_REFUSE] = {{XFI_UNCOMMITTED, XFI_UNCOMMITTED},
                         {XFI_WITHHELD, XFI_WITHHELD},
                         {XFI_REBOUND, XFI_REBOUND},
                         {NO, NO},
                         {XFI_WITHHELD, XFI_WITHHELD},
                         {XFI_WITHHELD, XFI_WITHHELD},
                         {XFI_TORN, XFI_TORN}},
    [XFI_CALL_WAIT] = {{NO, NO},
                       {NO, NO},
                       {NO, NO},
                       {XFI_COMMITTED, XFI_TORN},
                       {XFI_TORN, XFI_TORN},
                       {XFI_TORN, XFI_TORN},
                       {NO, NO}},
    [XFI_CALL_RELEASE] = {{XFI_UNCOMMITTED, XFI_UNCOMMITTED},
                          {XFI_UNCOMMITTED, XFI_UNCOMMITTED},
                          {XFI_UNCOMMITTED, XFI_UNCOMMITTED},
                          {NO, NO},
                          {XFI_UNCOMMITTED, XFI_UNCOMMITTED},
                          {XFI_UNCOMMITTED, XFI_UNCOMMITTED},
                          {XFI_UNCOMMITTED, XFI_UNCOMMITTED}},
};

static void test_every_call_in_every_state_ends_as_written_down(void **state)
{
  (void)state;
  for (int call = 0; call < XFI_N_CALLS; call++)
    for (int at = 0; at < XFI_N_STATES; at++) {
      const bool allowed = expected[call][at][0] != NO;

      print_message("call %d in state %d\n", call, at);
      xfi_set_error("nothing");
      assert_int_equal(xfi_state_allows((xfi_state)at, (xfi_call)call),
                       allowed ? XFER_OK : XFER_ERR_STATE);
      assert_true(allowed == (strcmp(xfer_last_error(), "nothing") == 0));
      for (int end = 0; end < XFI_N_ENDS; end++)
        assert_int_equal(xfi_state_after((xfi_state)at, (xfi_call)call, (xfi_end_of_call)end),
                         allowed ? expected[call][at][end] : at);
    }
}

static void test_a_refusal_says_what_to_do(void **state)
{
  (void)state;
  assert_int_equal(xfi_state_allows(XFI_RUNNING, XFI_CALL_RELEASE), XFER_ERR_STATE);
  assert_string_equal(xfer_last_error(),
                      "a run is in flight: call xfer_plan_wait() before releasing");
  assert_int_equal(xfi_state_allows(XFI_TORN, XFI_CALL_RUN), XFER_ERR_STATE);
  assert_non_null(strstr(xfer_last_error(), "call xfer_plan_commit() before the next"));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_call_in_every_state_ends_as_written_down),
      cmocka_unit_test(test_a_refusal_says_what_to_do),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
