/* What the library does, told to a function: levels, lines, and no more of it once it is taken
 * away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <xfer/xfer.h>

static struct {
  int n[4]; /* by level */
  int rank;
  char last[600];
} heard;

static void hear(void *context, int level, int rank, const char *line)
{
  assert_ptr_equal(context, &heard);
  assert_null(strchr(line, '\n'));
  heard.n[level]++;
  heard.rank = rank;
  (void)snprintf(heard.last, sizeof heard.last, "%s", line);
}

/* A comm, a plan, a commit that fails, and one that does not; a run. */
static void do_some(void)
{
  static int32_t memory[2][6];
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_comm *comm = NULL;
  xfer_plan *plan = NULL;

  memset(&heard, 0, sizeof heard);
  assert_int_equal(xfer_problem_parse(&src, &dst, "i32[2,3] (1):R -> (1):R"), XFER_OK);
  assert_int_equal(xfer_comm_create_local(&comm, 1), XFER_OK);
  const xfer_tensor tensor = {"t", src, dst, 0};
  const xfer_view views[2] = {xfer_view_dense(memory[0]), xfer_view_dense(memory[1])};
  assert_int_equal(xfer_plan_create(&plan, comm, &tensor, 1, NULL), XFER_OK);
  assert_int_equal(xfer_plan_commit(plan), XFER_ERR_STATE);
  assert_int_equal(xfer_plan_bind(plan, 0, &views[0], &views[1]), XFER_OK);
  assert_int_equal(xfer_plan_commit(plan), XFER_OK);
  assert_int_equal(xfer_plan_run(plan, 1, NULL), XFER_OK);
  assert_int_equal(xfer_plan_wait(plan, 0), XFER_OK);
  xfer_plan_destroy(plan);
  xfer_comm_destroy(comm);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

static void test_levels_say_what_is_told(void **state)
{
  (void)state;
  xfer_log_set(hear, &heard, XFER_LOG_WARN);
  do_some();
  assert_int_equal(heard.n[XFER_LOG_WARN], 1);
  assert_int_equal(heard.n[XFER_LOG_INFO] + heard.n[XFER_LOG_TRACE], 0);
  assert_int_equal(heard.rank, 0);
  assert_non_null(strstr(heard.last, "PLAN xfer_plan_commit: XFER_ERR_STATE: "));
  assert_non_null(strstr(heard.last, " ms"));
  xfer_log_set(hear, &heard, XFER_LOG_INFO);
  do_some();
  assert_int_equal(heard.n[XFER_LOG_WARN], 1);
  assert_true(heard.n[XFER_LOG_INFO] >= 3); /* the comm, the plan, the commit */
  assert_int_equal(heard.n[XFER_LOG_TRACE], 0);
  xfer_log_set(hear, &heard, XFER_LOG_TRACE);
  do_some();
  assert_true(heard.n[XFER_LOG_TRACE] >= 2);
  xfer_log_set(NULL, NULL, XFER_LOG_TRACE);
  do_some();
  assert_int_equal(heard.n[XFER_LOG_WARN], 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_levels_say_what_is_told),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
