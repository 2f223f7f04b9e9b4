/* A host comm of which some ranks are threads of one process and others are another process's: what
 * goes between the first does so directly, what goes to the others through slots, in one call. */
#include <xfer/xfer.h>

#include "unit/meeting.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>

#include <cmocka.h>

enum { RANKS = 4, THREADS = 2, CALLS = 40, PATIENCE_S = 120, DEADLINE_MS = 30000 };

static meeting_place *place;
static int width; /* bytes that each rank sends to each */
static _Atomic int n_bad;

static void need(int ok, int rank, const char *what)
{
  if (ok) return;
  (void)fprintf(stderr, "rank %d, %d bytes: %s: %s\n", rank, width, what, xfer_last_error());
  n_bad++;
}

/* Byte i of what `from` sends to `to` in a call. */
static unsigned char value(int call, int from, int to, int i)
{
  return (unsigned char)(call + 7 * from + 31 * to + i / 4096 * 3);
}

static void fill(unsigned char *src, int call, int rank)
{
  for (int to = 0; to < RANKS; to++)
    for (int i = 0; i < width; i++)
      src[to * width + i] = value(call, rank, to, i);
}

static int is_right(const unsigned char *dst, int call, int rank)
{
  for (int from = 0; from < RANKS; from++)
    for (int i = 0; i < width; i++)
      if (dst[from * width + i] != value(call, from, rank, i)) return 0;
  return 1;
}

/* The same buffers in each call: nothing is planned, bound or moved anew after the first. */
static void call_again(xfer_comm *comm, int rank)
{
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  unsigned char *from = malloc((size_t)RANKS * (size_t)width);
  unsigned char *to = malloc((size_t)RANKS * (size_t)width);
  const xfer_view src_view = xfer_view_dense(from);
  const xfer_view dst_view = xfer_view_dense(to);
  char line[100];

  (void)snprintf(line, sizeof line, "u8[%d,%d] (%d):S0 -> (%d):S1", RANKS, RANKS * width, RANKS,
                 RANKS);
  need(xfer_problem_parse(&src, &dst, line) == XFER_OK, rank, line);
  need(xfer_comm_set_timeout(comm, DEADLINE_MS) == XFER_OK, rank, "deadline");
  for (int call = 0; call < CALLS && n_bad == 0; call++) {
    fill(from, call, rank);
    memset(to, 0xee, (size_t)RANKS * (size_t)width);
    need(xfer_redistribute(comm, src, &src_view, dst, &dst_view, NULL) == XFER_OK, rank, "call");
    need(is_right(to, call, rank), rank, "wrong bytes");
  }
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  free(from);
  free(to);
}

static void *rank_main(void *number)
{
  const int rank = *(const int *)number;
  visitor v = {place, rank, 0, -1};
  xfer_comm *comm = NULL;

  need(xfer_comm_create_host(&comm, gather_there, &v, rank, RANKS) == XFER_OK, rank, "comm");
  if (comm != NULL) call_again(comm, rank);
  xfer_comm_destroy(comm);
  return NULL;
}

static _Noreturn void process_main(int first)
{
  pthread_t threads[THREADS];
  int ranks[THREADS];

  (void)alarm(PATIENCE_S);
  for (int i = 0; i < THREADS; i++) {
    ranks[i] = first + i;
    if (pthread_create(&threads[i], NULL, rank_main, &ranks[i]) != 0) _exit(2);
  }
  for (int i = 0; i < THREADS; i++)
    (void)pthread_join(threads[i], NULL);
  _exit(n_bad == 0 ? 0 : 1);
}

static void test_calls_between_threads_and_processes(void **state)
{
  static const int widths[] = {100, 300000, 524288};

  (void)state;
  for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
    pid_t pids[RANKS / THREADS];
    int how = 0;

    width = widths[w];
    place = open_place(RANKS);
    for (int p = 0; p < RANKS / THREADS; p++) {
      pids[p] = fork();
      if (pids[p] == 0) process_main(p * THREADS);
      assert_true(pids[p] > 0);
    }
    for (int p = 0; p < RANKS / THREADS; p++) {
      assert_int_equal(waitpid(pids[p], &how, 0), pids[p]);
      assert_int_equal(how, 0);
    }
    (void)munmap(place, sizeof *place);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls_between_threads_and_processes)};

  return cmocka_run_group_tests(tests, NULL, NULL);
}
