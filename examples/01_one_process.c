/*
 * One tensor, one call, one process.
 *
 * Four threads play four ranks. A 6 x 8 matrix is split by rows over all four of them, a mesh of
 * shape (4). Afterwards it is split over a (2,2) mesh of the same ranks: rows over the first axis,
 * columns over the second. Each rank fills its source part with the global index of every element,
 * so that it can check its destination part alone.
 *
 *   cc 01_one_process.c $(pkg-config --cflags --libs xfer) -lpthread && ./a.out
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <xfer/xfer.h>

enum { N_RANKS = 4, COLS = 8 };

/* What all ranks share: layouts never change once made. */
static xfer_layout *src_layout;
static xfer_layout *dst_layout;

static void need(xfer_status st, const char *what)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, xfer_status_name(st), xfer_last_error());
  exit(1);
}

/* Fill a part with what it should hold, or count the elements that are wrong. */
static int visit(const xfer_layout *layout, int rank, float *part, int fill)
{
  const size_t n = xfer_layout_local_bytes(layout, rank) / sizeof *part;
  int n_wrong = 0;

  for (size_t i = 0; i < n; i++) {
    int64_t index[2];

    need(xfer_layout_global_index(layout, rank, (int64_t)i, index), "index");
    const float expected = (float)(index[0] * COLS + index[1]);
    if (fill) part[i] = expected;
    n_wrong += part[i] != expected;
  }
  return n_wrong;
}

static void *run_rank(void *arg)
{
  xfer_comm *comm = (xfer_comm *)arg;
  const int rank = xfer_comm_rank(comm);
  float *src = (float *)malloc(xfer_layout_local_bytes(src_layout, rank));
  float *dst = (float *)calloc(1, xfer_layout_local_bytes(dst_layout, rank));
  const xfer_view src_view = xfer_view_dense(src);
  const xfer_view dst_view = xfer_view_dense(dst);

  (void)visit(src_layout, rank, src, 1);
  need(xfer_redistribute(comm, src_layout, &src_view, dst_layout, &dst_view, NULL), "redistribute");
  const int n_wrong = visit(dst_layout, rank, dst, 0);
  printf("rank %d: first element %g, %d wrong\n", rank, (double)dst[0], n_wrong);
  xfer_comm_destroy(comm);
  free(src);
  free(dst);
  return n_wrong == 0 ? NULL : arg;
}

int main(int argc, char **argv)
{
  xfer_comm *comms[N_RANKS];
  pthread_t threads[N_RANKS];
  int failed = 0;

  if (argc > 1) {
    fprintf(stderr, "usage: %s\n", argv[0]);
    return 2;
  }
  need(xfer_layout_parse(&src_layout, "f32[6,8] (4):S0"), "source");
  need(xfer_layout_parse(&dst_layout, "f32[6,8] (2,2):S0,S1"), "destination");
  need(xfer_comm_create_local(comms, N_RANKS), "comm");
  for (int r = 0; r < N_RANKS; r++)
    if (pthread_create(&threads[r], NULL, run_rank, comms[r]) != 0) return 1;
  for (int r = 0; r < N_RANKS; r++) {
    void *wrong = NULL;

    pthread_join(threads[r], &wrong);
    failed += wrong != NULL;
  }
  xfer_layout_destroy(src_layout);
  xfer_layout_destroy(dst_layout);
  printf(failed == 0 ? "ok\n" : "FAILED\n");
  return failed == 0 ? 0 : 1;
}
