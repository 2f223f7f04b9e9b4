/* What the library does, told to a function: levels, lines, and no more of it once it is taken
 * away. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <xfer/xfer.h>

static struct {
  int n[4]; /* by level */
  int rank;
  char last[600];
} heard;

static void hear(void *context, xfer_log_level level, int rank, const char *line)
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
  const xfer_tensor tensor = {"t", src, dst, {0}};
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

/* A child may be forked while others write, and by who is told of it. */
static void *write_lines(void *context)
{
  for (const atomic_bool *ends = context; !atomic_load(ends);) {
    xfer_comm *comm = NULL;
    char all = 0;

    if (xfer_comm_create_local(&comm, 1) != XFER_OK) abort();
    for (int i = 0; i < 20; i++)
      if (xfer_comm_all_gather(comm, &all, "x", 1) != XFER_OK) abort();
    xfer_comm_destroy(comm);
  }
  return NULL;
}

static void hear_any(void *context, xfer_log_level level, int rank, const char *line)
{
  (void)context, (void)level, (void)rank, (void)line;
}

static void fork_in_it(void *context, xfer_log_level level, int rank, const char *line)
{
  int status = 1;

  (void)level, (void)rank, (void)line;
  if (*(pid_t *)context == 0 && (*(pid_t *)context = fork()) == 0) exit(0);
  while (waitpid(*(pid_t *)context, &status, 0) < 0 && errno == EINTR)
    continue;
}

static void test_a_child_ends_whoever_writes(void **state)
{
  enum { CHILDREN = 200 };
  pthread_t threads[3];
  atomic_bool ends = false;
  pid_t child = 0;
  xfer_layout *src = NULL, *dst = NULL;
  xfer_comm *comm = NULL;
  xfer_plan *plan = NULL;

  (void)state;
  assert_int_equal(xfer_problem_parse(&src, &dst, "i32[6] (1):R -> (1):R"), XFER_OK);
  assert_int_equal(xfer_comm_create_local(&comm, 1), XFER_OK);
  const xfer_tensor tensor = {"t", src, dst, {0}};
  assert_int_equal(xfer_plan_create(&plan, comm, &tensor, 1, NULL), XFER_OK);
  xfer_log_set(hear_any, NULL, XFER_LOG_TRACE);
  for (int i = 0; i < 3; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, write_lines, &ends), 0);
  for (int i = 0; i < CHILDREN; i++) {
    int status = 1;
    const pid_t pid = fork();

    if (pid == 0) { /* a line without an allocation, which a sanitizer may not allow here */
      (void)alarm(20);
      _exit(xfer_plan_wait(plan, 0) == XFER_ERR_STATE ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
  }
  atomic_store(&ends, true);
  for (int i = 0; i < 3; i++)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  xfer_log_set(fork_in_it, &child, XFER_LOG_INFO);
  do_some();
  xfer_log_set(NULL, NULL, XFER_LOG_NONE);
  assert_true(child > 0);
  xfer_plan_destroy(plan);
  xfer_comm_destroy(comm);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

/* As Python does, whose function waits for the interpreter that the forking thread has. */
static struct {
  atomic_bool is_told;
  atomic_bool has_forked;
} meeting;

static void hear_once_it_forked(void *context, xfer_log_level level, int rank, const char *line)
{
  (void)context, (void)level, (void)rank, (void)line;
  atomic_store(&meeting.is_told, true);
  while (!atomic_load(&meeting.has_forked))
    (void)usleep(100);
}

static void test_who_forks_does_not_wait_for_who_is_told(void **state)
{
  atomic_bool ends = false;
  pthread_t thread;

  (void)state;
  xfer_log_set(hear_once_it_forked, NULL, XFER_LOG_TRACE);
  (void)alarm(60); /* else it would wait for ever */
  assert_int_equal(pthread_create(&thread, NULL, write_lines, &ends), 0);
  while (!atomic_load(&meeting.is_told))
    (void)usleep(100);
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  atomic_store(&meeting.has_forked, true);
  assert_int_equal(waitpid(pid, NULL, 0), pid);
  (void)alarm(0);
  atomic_store(&ends, true);
  assert_int_equal(pthread_join(thread, NULL), 0);
  xfer_log_set(NULL, NULL, XFER_LOG_NONE);
}

static void keep_why(void *context, xfer_log_level level, int rank, const char *line)
{
  if (level == XFER_LOG_WARN && rank == -1 && strstr(line, "XFER_TRACE") != NULL)
    *(int *)context = errno;
}

/* Of a process that has not asked for one before. */
static void test_a_file_that_cannot_be_opened_is_told_with_errno(void **state)
{
  int why = 0, status = 1;
  const pid_t pid = fork();

  (void)state;
  if (pid == 0) {
    setenv("XFER_TRACE", "/nowhere/x", 1);
    xfer_log_set(keep_why, &why, XFER_LOG_WARN);
    _exit(why == ENOENT ? 0 : 1);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(
          test_a_file_that_cannot_be_opened_is_told_with_errno), /* before the others */
      cmocka_unit_test(test_who_forks_does_not_wait_for_who_is_told),
      cmocka_unit_test(test_levels_say_what_is_told),
      cmocka_unit_test(test_a_child_ends_whoever_writes),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
