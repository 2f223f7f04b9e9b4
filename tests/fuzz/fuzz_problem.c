/*
 * Bytes -> a problem -> its canonical line -> the same problem -> the plan of each rank, whose
 * moves must tile the rank's destination part exactly. For libFuzzer; anything wrong aborts.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xfer/xfer.h>

enum { MAX_LINE = 160, MAX_RANKS = 24, MAX_ELEMS = 4096, MAX_MESH = 1 << 16 };

#define MUST(cond)                                                                                 \
  do {                                                                                             \
    if (!(cond)) {                                                                                 \
      fprintf(stderr, "%s:%d: %s: %s; %s\n", __FILE__, __LINE__, #cond, current,                   \
              xfer_last_error());                                                                  \
      abort();                                                                                     \
    }                                                                                              \
  } while (0)

static const char *current; /* the line */

/* What a rank holds: of each element, by its offset, whether it lies inside the tensor. By
 * placements the global index of each local index of a dim, -1 for a ZERO element; by boxes the
 * boxes, whose local indices count as if they were stacked along dim 0. */
typedef struct part {
  int n_dims;
  bool by_boxes;
  int64_t whole[XFER_MAX_DIMS];
  int64_t shape[XFER_MAX_DIMS];
  int64_t *global[XFER_MAX_DIMS];
  size_t n_boxes;
  int64_t *bounds;
} part;

/* Is the source, or destination, of the line that is tested written as boxes? */
static bool by_boxes[2];

static void free_part(part *p)
{
  for (int d = 0; d < p->n_dims; d++)
    free(p->global[d]);
  free(p->bounds);
}

static bool make_boxes(part *p, const xfer_layout *layout, int rank)
{
  if (xfer_layout_boxes(layout, rank, NULL, 0, &p->n_boxes) != XFER_OK) return false;
  p->bounds = calloc(p->n_boxes * 2 * (size_t)p->n_dims + 1, sizeof *p->bounds);
  MUST(xfer_layout_boxes(layout, rank, p->bounds, p->n_boxes, &p->n_boxes) == XFER_OK);
  return true;
}

static bool make_part(part *p, const xfer_layout *layout, int rank, bool boxes)
{
  p->n_dims = xfer_layout_shape(layout, p->whole);
  p->by_boxes = boxes;
  if (boxes) return make_boxes(p, layout, rank);
  if (xfer_layout_local_shape(layout, rank, p->shape) != XFER_OK) return false;
  for (int d = 0; d < p->n_dims; d++) {
    static xfer_run runs[MAX_ELEMS];
    size_t n = 0;

    p->global[d] = malloc((size_t)p->shape[d] * sizeof *p->global[d] + 1);
    for (int64_t i = 0; i < p->shape[d]; i++)
      p->global[d][i] = -1;
    MUST(xfer_layout_runs(layout, rank, d, runs, MAX_ELEMS, &n) == XFER_OK && n <= MAX_ELEMS);
    for (size_t r = 0; r < n; r++)
      for (int64_t i = 0; i < runs[r].length; i++)
        p->global[d][runs[r].local + i] = runs[r].global + i;
  }
  return true;
}

static int64_t box_elems(const part *p, size_t box)
{
  const int64_t *b = p->bounds + box * 2 * (size_t)p->n_dims;
  int64_t n = 1;

  for (int d = 0; d < p->n_dims; d++)
    n *= b[p->n_dims + d] - b[d];
  return n;
}

static int64_t n_elems(const part *p)
{
  int64_t n = p->by_boxes ? 0 : 1;

  for (size_t i = 0; p->by_boxes && i < p->n_boxes; i++)
    n += box_elems(p, i);
  for (int d = 0; !p->by_boxes && d < p->n_dims; d++)
    n *= p->shape[d];
  return n;
}

/* The same of boxes. */
static int64_t box_offset(const part *p, const int64_t *local, const int64_t *lo, const int64_t *x)
{
  int64_t row = 0;
  int64_t before = 0;

  for (size_t i = 0; i < p->n_boxes; i++) {
    const int64_t *b = p->bounds + i * 2 * (size_t)p->n_dims;
    const int64_t rows = p->n_dims == 0 ? 1 : b[p->n_dims] - b[0];
    int64_t offset = 0;

    if (p->n_dims > 0 && (local[0] + x[0] < row || local[0] + x[0] >= row + rows)) {
      row += rows;
      before += box_elems(p, i);
      continue;
    }
    for (int d = 0; d < p->n_dims; d++) {
      const int64_t at = local[d] + x[d] - (d == 0 ? row : 0);
      MUST(at >= 0 && b[d] + at < b[p->n_dims + d] && b[d] + at == lo[d] + x[d]);
      offset = offset * (b[p->n_dims + d] - b[d]) + at;
    }
    return before + offset;
  }
  MUST(false);
  return 0;
}

/* Row-major offset of the element at `local` + `x`, which must be the global element `lo` + `x`. */
static int64_t offset_of(const part *p, const int64_t *local, const int64_t *lo, const int64_t *x)
{
  int64_t offset = 0;

  if (p->by_boxes) return box_offset(p, local, lo, x);
  for (int d = 0; d < p->n_dims; d++) {
    const int64_t i = local[d] + x[d];
    MUST(i >= 0 && i < p->shape[d] && p->global[d][i] == lo[d] + x[d]);
    offset = offset * p->shape[d] + i;
  }
  return offset;
}

/* Mark what a move writes; each element at most once. */
static void mark(const xfer_move *m, const part *dst, const xfer_layout *src_layout,
                 unsigned char *marks)
{
  int64_t x[XFER_MAX_DIMS] = {0};
  int64_t n = 1;
  part src = {0};

  MUST(make_part(&src, src_layout, m->src_rank, by_boxes[0]));
  MUST(m->n_dims == dst->n_dims);
  for (int d = 0; d < m->n_dims; d++)
    n *= m->hi[d] - m->lo[d];
  MUST(n > 0 && m->n_bytes == (uint64_t)n * xfer_dtype_size(xfer_layout_dtype(src_layout)));
  for (int64_t i = 0; i < n; i++) {
    (void)offset_of(&src, m->src_local, m->lo, x);
    unsigned char *at = &marks[offset_of(dst, m->dst_local, m->lo, x)];
    MUST(*at == 0);
    *at = 1;
    for (int d = m->n_dims - 1; d >= 0 && ++x[d] == m->hi[d] - m->lo[d]; d--)
      x[d] = 0;
  }
  free_part(&src);
}

static void check_box_rest(const part *dst, const unsigned char *marks)
{
  for (size_t b = 0; b < dst->n_boxes; b++) {
    const int64_t *lo = dst->bounds + b * 2 * (size_t)dst->n_dims;
    const int64_t n = box_elems(dst, b);

    for (int64_t i = 0; i < n; i++) {
      bool zero = false;
      int64_t rest = i;

      for (int d = dst->n_dims - 1; d >= 0; d--) {
        const int64_t length = lo[dst->n_dims + d] - lo[d];
        zero = zero || lo[d] + rest % length >= dst->whole[d];
        rest /= length;
      }
      MUST((marks[i] == 0) == zero);
    }
    marks += n;
  }
}

/* Elements that nobody wrote are ZERO ones: some dim's index has no global one. */
static void check_rest(const part *dst, const unsigned char *marks)
{
  if (dst->by_boxes) {
    check_box_rest(dst, marks);
    return;
  }
  for (int64_t i = 0, n = n_elems(dst); i < n; i++) {
    bool zero = false;
    int64_t rest = i;

    for (int d = dst->n_dims - 1; d >= 0; d--) {
      zero = zero || dst->global[d][rest % dst->shape[d]] < 0;
      rest /= dst->shape[d];
    }
    MUST((marks[i] == 0) == zero);
  }
}

static void check_rank(const xfer_tensor *tensor, int n_ranks, int rank)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  xfer_plan *plan = NULL;
  part dst = {0};

  const xfer_status st = xfer_plan_simulate(&plan, n_ranks, rank, tensor, 1, NULL);
  if (st == XFER_ERR_SHAPE && by_boxes[0]) return; /* this rank needs what none of them has */
  MUST(st == XFER_OK);
  MUST(xfer_plan_report(plan, &report) == XFER_OK);
  const bool in_dst = make_part(&dst, tensor->dst, rank, by_boxes[1]);
  const int64_t n = in_dst ? n_elems(&dst) : 0;
  unsigned char *marks = calloc((size_t)n + 1, 1);
  uint64_t out_bytes = 0;
  for (uint64_t i = 0; i < report.n_moves; i++) {
    xfer_move m;

    MUST(xfer_plan_move_get(plan, i, &m) == XFER_OK);
    MUST(m.src_rank == rank || m.dst_rank == rank);
    if (m.dst_rank == rank)
      mark(&m, &dst, tensor->src, marks);
    else
      out_bytes += m.n_bytes;
  }
  if (in_dst) check_rest(&dst, marks);
  MUST(report.in_bytes == (uint64_t)n * xfer_dtype_size(xfer_layout_dtype(tensor->dst)));
  MUST(report.out_bytes == out_bytes);
  free(marks);
  if (in_dst) free_part(&dst);
  xfer_plan_destroy(plan);
}

/* True if a rank's boxes, or its part, have few elements. */
static bool is_small_part(const xfer_layout *layout, int rank, bool boxes)
{
  const int n_dims = xfer_layout_shape(layout, NULL);
  part p = {.n_dims = n_dims, .by_boxes = boxes};
  double n = 1;

  if (!boxes) {
    MUST(xfer_layout_local_shape(layout, rank, p.shape) == XFER_OK);
    for (int d = 0; d < n_dims; d++) {
      if (p.shape[d] > MAX_ELEMS) return false;
      n *= (double)p.shape[d];
      if (n > MAX_ELEMS) return false;
    }
    return true;
  }
  MUST(make_boxes(&p, layout, rank));
  n = 0;
  for (size_t i = 0; i < p.n_boxes && n <= MAX_ELEMS; i++) {
    double box = 1;

    for (int d = 0; d < n_dims; d++)
      box *= (double)(p.bounds[(2 * i + 1) * (size_t)n_dims + (size_t)d] -
                      p.bounds[2 * i * (size_t)n_dims + (size_t)d]);
    n += box;
  }
  free(p.bounds);
  return n <= MAX_ELEMS;
}

/* True if the layout has few elements; *n_ranks grows to hold the highest of its ranks below
 * MAX_RANKS. The plan refuses problems with higher ones. */
static bool is_small(const xfer_layout *layout, int *n_ranks, bool boxes)
{
  int64_t shape[XFER_MAX_DIMS] = {0};
  int64_t elems = 1;
  int found = 0;
  size_t n = 0;

  const int n_dims = xfer_layout_shape(layout, shape);
  for (int d = 0; d < n_dims; d++) {
    if (shape[d] < 1 || shape[d] > MAX_ELEMS) return false;
    elems *= shape[d];
    if (elems > MAX_ELEMS) return false;
  }
  for (int rank = 0; rank < MAX_RANKS; rank++)
    if (xfer_layout_boxes(layout, rank, NULL, 0, &n) == XFER_OK) {
      if (!is_small_part(layout, rank, boxes)) return false;
      found++;
      if (rank >= *n_ranks) *n_ranks = rank + 1;
    }
  if (found == 0) return false;
  const int64_t first[XFER_MAX_DIMS] = {0};
  xfer_owner owners[MAX_RANKS];
  MUST(xfer_layout_owners(layout, first, owners, MAX_RANKS, &n) == XFER_OK && (boxes || n >= 1));
  return true;
}

/* Does rank 0 plan it, or does it lack a source? */
static bool may_plan(const xfer_tensor *tensor, int n_ranks, xfer_plan **plan)
{
  const xfer_status st = xfer_plan_simulate(plan, n_ranks, 0, tensor, 1, NULL);

  return st == XFER_OK || (st == XFER_ERR_SHAPE && by_boxes[0]);
}

/* Meshes of very many ranks only take memory. */
static bool has_large_mesh(const char *line)
{
  for (const char *at = strchr(line, '('); at != NULL; at = strchr(at + 1, '(')) {
    double n = 1;

    for (const char *digit = at + 1; *digit != '\0' && *digit != ')'; digit++)
      if (digit[-1] == '(' || digit[-1] == ',') n *= strtod(digit, NULL);
    if (n > MAX_MESH) return true;
  }
  return false;
}

static void check_problem(const char *line)
{
  xfer_layout *src = NULL, *dst = NULL, *src2 = NULL, *dst2 = NULL;
  static char text[1 << 20], again[1 << 20];

  if (xfer_problem_parse(&src, &dst, line) != XFER_OK) {
    MUST(xfer_last_error()[0] != '\0' && src == NULL && dst == NULL);
    return;
  }
  MUST(xfer_problem_format(text, sizeof text, src, dst) < sizeof text);
  MUST(xfer_problem_parse(&src2, &dst2, text) == XFER_OK);
  MUST(xfer_problem_format(again, sizeof again, src2, dst2) < sizeof again);
  MUST(strcmp(text, again) == 0);

  const xfer_tensor tensor = {"t", src2, dst2, 0};
  int n_ranks = 0;
  xfer_plan *plan = NULL;
  by_boxes[0] = strstr(text, "] {") != NULL;
  by_boxes[1] = strchr(strstr(text, " -> "), '{') != NULL;
  if (xfer_layout_dtype(src2) == xfer_layout_dtype(dst2) && is_small(src2, &n_ranks, by_boxes[0]) &&
      is_small(dst2, &n_ranks, by_boxes[1]) && may_plan(&tensor, n_ranks, &plan))
    for (int rank = 0; rank < n_ranks; rank++)
      check_rank(&tensor, n_ranks, rank);
  xfer_plan_destroy(plan);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  xfer_layout_destroy(src2);
  xfer_layout_destroy(dst2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  char line[MAX_LINE + 1] = "";

  if (size > MAX_LINE) return 0;
  memcpy(line, data, size);
  line[size] = '\0';
  current = line;
  if (!has_large_mesh(line)) check_problem(line);
  return 0;
}
