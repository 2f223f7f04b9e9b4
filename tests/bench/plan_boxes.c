/*
 * How long a rank plans by boxes: plan_boxes [TENSORS [RANKS]]. Prints CPU milliseconds of
 * xfer_plan_simulate() for a model whose tensors are held by every rank in 4 boxes on both sides,
 * with few distinct layouts and with each tensor's own; and of one model by placements and by the
 * boxes that they come to. Making the layouts is timed apart.
 */
#include "bench.h"

enum { BOXES = 4 };

/* Others may use the machine too. */
static double now_ms(void)
{
  return clock_ms(CLOCK_THREAD_CPUTIME_ID);
}

/* Rows cut in BOXES blocks for each rank, `shift` rows off; `cyclic`: a rank's are far apart. */
static xfer_layout *blocks(const xfer_mesh *mesh, int64_t rows, int64_t shift, int cyclic)
{
  const int n_ranks = xfer_mesh_size(mesh);
  const int64_t shape[2] = {rows, 64};
  const int64_t n = (int64_t)n_ranks * BOXES;
  int64_t *first = room((size_t)n_ranks + 1, sizeof *first);
  int64_t *bounds = room((size_t)n * 4, sizeof *bounds);
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_layout *layout = NULL;

  for (int r = 0; r < n_ranks; r++) {
    for (int64_t b = 0; b < BOXES; b++) {
      const int64_t block = cyclic ? b * n_ranks + r : (int64_t)r * BOXES + b;
      int64_t *box = bounds + ((int64_t)r * BOXES + b) * 4;

      box[0] = block == 0 ? 0 : block * rows / n + shift;
      box[2] = block == n - 1 ? rows : (block + 1) * rows / n + shift;
      box[3] = shape[1];
    }
    first[r + 1] = (int64_t)(r + 1) * BOXES;
  }
  desc.mesh = mesh;
  desc.dtype = XFER_BF16;
  desc.n_dims = 2;
  desc.shape = shape;
  desc.first = first;
  desc.bounds = bounds;
  OK(xfer_layout_create_boxes(&layout, &desc));
  free(first);
  free(bounds);
  return layout;
}

/* The boxes of a layout by placements. */
static xfer_layout *as_boxes(const xfer_mesh *mesh, const xfer_layout *placed)
{
  const int n_ranks = xfer_mesh_size(mesh);
  int64_t shape[XFER_MAX_DIMS];
  const int n_dims = xfer_layout_shape(placed, shape);
  int64_t *first = room((size_t)n_ranks + 1, sizeof *first);
  int64_t *bounds = NULL;
  size_t n = 0;
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_layout *layout = NULL;

  for (int r = 0; r < n_ranks; r++) {
    size_t more = 0;

    OK(xfer_layout_boxes(placed, r, NULL, 0, &more));
    bounds = realloc(bounds, (n + more + 1) * 2 * (size_t)n_dims * sizeof *bounds);
    if (bounds == NULL) abort();
    OK(xfer_layout_boxes(placed, r, bounds + n * 2 * (size_t)n_dims, more, &more));
    n += more;
    first[r + 1] = (int64_t)n;
  }
  desc.mesh = mesh;
  desc.dtype = (int32_t)xfer_layout_dtype(placed);
  desc.n_dims = n_dims;
  desc.shape = shape;
  desc.first = first;
  desc.bounds = bounds;
  OK(xfer_layout_create_boxes(&layout, &desc));
  free(first);
  free(bounds);
  return layout;
}

/* Best of three. */
static double plan_ms(const xfer_tensor *tensors, size_t n, int n_ranks, int rank,
                      xfer_plan_report_data *report)
{
  double best = 0;

  for (int i = 0; i < 3; i++) {
    xfer_plan *plan = NULL;
    const double start = now_ms();

    OK(xfer_plan_simulate(&plan, n_ranks, rank, tensors, n, NULL));
    const double ms = now_ms() - start;
    if (i == 0 || ms < best) best = ms;
    *report = (xfer_plan_report_data)XFER_PLAN_REPORT_INIT;
    OK(xfer_plan_report(plan, report));
    xfer_plan_destroy(plan);
  }
  return best;
}

static void bench_blocks(int n_tensors, int n_ranks, int n_distinct, const char *what)
{
  xfer_tensor *tensors = room((size_t)n_tensors, sizeof *tensors);
  xfer_layout **layouts = room((size_t)n_distinct * 2, sizeof(xfer_layout *));
  xfer_mesh *mesh = NULL;
  xfer_plan_report_data report;
  const double start = now_ms();

  OK(xfer_mesh_create(&mesh, &n_ranks, 1, NULL));
  for (int i = 0; i < n_distinct; i++) {
    const int64_t rows = (int64_t)n_ranks * BOXES * 16 + i;

    layouts[2 * i] = blocks(mesh, rows, 0, 1);
    layouts[2 * i + 1] = blocks(mesh, rows, 5, 0);
  }
  const double made = now_ms() - start;
  for (int t = 0; t < n_tensors; t++)
    tensors[t] =
        (xfer_tensor){"t", layouts[2 * (t % n_distinct)], layouts[2 * (t % n_distinct) + 1], {0}};
  const double ms = plan_ms(tensors, (size_t)n_tensors, n_ranks, n_ranks / 3, &report);
  printf("%s: %d tensors, %d ranks, %d boxes each side: %.1f ms, %llu moves; layouts made in "
         "%.0f ms\n",
         what, n_tensors, n_ranks, BOXES, ms, (unsigned long long)report.n_moves, made);
  for (int i = 0; i < 2 * n_distinct; i++)
    xfer_layout_destroy(layouts[i]);
  xfer_mesh_destroy(mesh);
  free(layouts);
  free(tensors);
}

/* Fully sharded to tensor parallel, n_ranks ranks each side, the same ones. */
static void bench_placements(int n_tensors, int n_ranks)
{
  static const char *const lines[] = {
      "bf16[8192,4096] (%d):S0 -> (%d,8):R,S0",       "bf16[4096,8192] (%d):S0 -> (%d,8):R,S1",
      "bf16[8192,512] (%d,8):S0,S1 -> (%d,8):R,S1",   "bf16[151936,64] (%d,8):S0,R -> (%d,8):R,S0",
      "bf16[4096,4096] (%d,8):S0,S1 -> (%d,8):S1,S0",
  };
  enum { N = sizeof lines / sizeof *lines };
  xfer_layout *placed[2 * N];
  xfer_layout *boxed[2 * N];
  xfer_tensor *tensors = room((size_t)n_tensors, sizeof *tensors);
  xfer_plan_report_data a;
  xfer_plan_report_data b;
  xfer_mesh *mesh = NULL;
  double ms[2];

  OK(xfer_mesh_create(&mesh, &n_ranks, 1, NULL));
  for (int i = 0; i < N; i++) {
    char line[128];

    snprintf(line, sizeof line, lines[i], i < 2 ? n_ranks : n_ranks / 8, n_ranks / 8);
    OK(xfer_problem_parse(&placed[2 * i], &placed[2 * i + 1], line));
    boxed[2 * i] = as_boxes(mesh, placed[2 * i]);
    boxed[2 * i + 1] = as_boxes(mesh, placed[2 * i + 1]);
  }
  for (int by = 0; by < 2; by++) {
    xfer_layout **from = by == 0 ? placed : boxed;

    for (int t = 0; t < n_tensors; t++)
      tensors[t] = (xfer_tensor){"t", from[2 * (t % N)], from[2 * (t % N) + 1], {0}};
    ms[by] = plan_ms(tensors, (size_t)n_tensors, n_ranks, n_ranks / 3, by == 0 ? &a : &b);
  }
  printf("%d tensors, %d ranks: by placements %.1f ms, %llu moves; by boxes %.1f ms, %llu moves: "
         "%.2f times\n",
         n_tensors, n_ranks, ms[0], (unsigned long long)a.n_moves, ms[1],
         (unsigned long long)b.n_moves, ms[1] / ms[0]);
  for (int i = 0; i < 2 * N; i++) {
    xfer_layout_destroy(placed[i]);
    xfer_layout_destroy(boxed[i]);
  }
  xfer_mesh_destroy(mesh);
  free(tensors);
}

int main(int argc, char **argv)
{
  const int n_tensors = argc > 1 ? atoi(argv[1]) : 40000;
  const int n_ranks = argc > 2 ? atoi(argv[2]) : 64;

  bench_blocks(n_tensors, n_ranks, n_tensors < 12 ? n_tensors : 12, "12 pairs of layouts");
  bench_blocks(n_tensors, n_ranks, n_tensors, "each its own layouts");
  bench_placements(2000, 1024);
  bench_placements(5, 1024);
  return 0;
}
