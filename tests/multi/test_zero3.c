/*
 * ZeRO-3 to vLLM: every parameter is flattened and cut over 8 ranks, each of which knows its own
 * range only; the engine is tensor parallel by 4, with its fused tensors. The whole model is
 * planned, a part of it moved and compared byte by byte: over threads, or under MPI when there are
 * 8 processes.
 *
 *   test_zero3 models/qwen3-30b-a3b.json
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include <xfer/mpi.h>
#include <xfer/refit.h>

#include "../../tools/common/fill.h"

enum { N_TRAIN = 8, N_GEN = 4 };

static const char *table;

#define MUST(call)                                                                                 \
  do {                                                                                             \
    const xfer_status must_st = (call);                                                            \
    if (must_st != XFER_OK) {                                                                      \
      fprintf(stderr, "%s: %s: %s\n", #call, xfer_status_name(must_st), xfer_last_error());        \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

/* ---- the cut ---- */

/* Each expert is a parameter of its own; a parameter is cut in N_TRAIN equal ranges, padded. */
static void cut(xfer_boxes_desc *desc, int64_t *first, int64_t **bounds, const xfer_layout *dst,
                bool experts, int one_rank)
{
  int64_t shape[XFER_MAX_DIMS], n_elems = 1, n_boxes = 0, capacity = 0;
  const int n = xfer_layout_shape(dst, shape);
  const int64_t n_params = experts ? shape[0] : 1;

  for (int d = experts ? 1 : 0; d < n; d++)
    n_elems *= shape[d];
  const int64_t each = (n_elems + N_TRAIN - 1) / N_TRAIN;
  *bounds = NULL;
  first[0] = 0;
  for (int r = 0, at = 0; r < N_TRAIN; r++) {
    for (int64_t p = 0; p < n_params && (one_rank < 0 || r == one_rank); p++) {
      /* the boxes of a range, from a flat layout of the parameter */
      int64_t range[2] = {r * each, (r + 1) * each};
      int64_t begin = range[0] < n_elems ? range[0] : n_elems;
      int64_t end = range[1] < n_elems ? range[1] : n_elems;
      xfer_boxes_desc flat = XFER_BOXES_DESC_INIT;
      xfer_layout *layout = NULL;
      size_t more = 0;
      int64_t part[2] = {begin, end};
      int64_t whole[XFER_MAX_DIMS];

      memcpy(whole, shape, sizeof whole);
      if (experts) whole[0] = 1;
      flat.dtype = (int32_t)xfer_layout_dtype(dst);
      flat.n_dims = n;
      flat.shape = whole;
      flat.bounds = part;
      MUST(xfer_layout_create_flat(&layout, &flat));
      MUST(xfer_layout_boxes(layout, 0, NULL, 0, &more));
      if (n_boxes + (int64_t)more > capacity) {
        capacity = 2 * (n_boxes + (int64_t)more);
        *bounds = realloc(*bounds, (size_t)capacity * 2 * (size_t)n * sizeof **bounds);
      }
      if (more > 0) MUST(xfer_layout_boxes(layout, 0, *bounds + n_boxes * 2 * n, more, &more));
      for (size_t b = 0; experts && b < more; b++) {
        (*bounds)[(n_boxes + (int64_t)b) * 2 * n] += p;
        (*bounds)[(n_boxes + (int64_t)b) * 2 * n + n] += p;
      }
      n_boxes += (int64_t)more;
      xfer_layout_destroy(layout);
    }
    if (one_rank < 0) first[++at] = n_boxes;
  }
  if (one_rank >= 0) first[1] = n_boxes;
  desc->dtype = (int32_t)xfer_layout_dtype(dst);
  desc->n_dims = n;
  desc->first = first;
  desc->bounds = *bounds;
}

/* What a rank knows, or with one_rank -1 all of it. */
static xfer_layout *zero3(const xfer_mesh *mesh, const xfer_layout *dst, bool experts, int one_rank)
{
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  int64_t shape[XFER_MAX_DIMS], first[N_TRAIN + 1], *bounds = NULL;
  xfer_layout *layout = NULL;

  (void)xfer_layout_shape(dst, shape);
  desc.mesh = mesh;
  desc.shape = shape;
  cut(&desc, first, &bounds, dst, experts, one_rank);
  MUST(xfer_layout_create_boxes(&layout, &desc));
  free(bounds);
  return layout;
}

static xfer_refit *join(int first_gen, int32_t layers, int32_t experts)
{
  xfer_model_options model_options = XFER_MODEL_OPTIONS_INIT;
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  xfer_model *model = NULL;
  xfer_side *gen = NULL;
  xfer_refit *refit = NULL;

  model_options.layers_end = layers;
  model_options.experts_end = experts;
  options.first_rank = first_gen;
  MUST(xfer_model_load(&model, table, &model_options));
  MUST(xfer_side_create(&gen, "vllm:tp4,up_first", &options));
  MUST(xfer_refit_create(&refit, model, NULL, gen));
  xfer_side_destroy(gen);
  xfer_model_destroy(model);
  return refit;
}

/* The refit's tensors with the trainer's side, by the rank that knows it; -1: all of it. */
static xfer_tensor *tensors_of(const xfer_refit *refit, size_t *n, int rank)
{
  const xfer_tensor *given = xfer_refit_tensors(refit, n);
  xfer_tensor *tensors = calloc(*n, sizeof *tensors);
  xfer_mesh *mesh = NULL;

  if (tensors == NULL) abort();
  MUST(xfer_mesh_create(&mesh, &(int){N_TRAIN}, 1, NULL));
  for (size_t t = 0; t < *n; t++) {
    xfer_refit_tensor info;

    MUST(xfer_refit_tensor_get(refit, t, &info));
    tensors[t] = given[t];
    if (rank < N_TRAIN)
      tensors[t].src = zero3(rank < 0 ? mesh : NULL, given[t].dst, info.n_experts > 0, rank);
  }
  xfer_mesh_destroy(mesh);
  return tensors;
}

static void free_tensors(xfer_tensor *tensors, size_t n)
{
  for (size_t t = 0; t < n; t++)
    xfer_layout_destroy((xfer_layout *)(uintptr_t)tensors[t].src);
  free(tensors);
}

/* ---- the whole model, planned ---- */

static int plan_whole(void)
{
  xfer_refit *refit = join(N_TRAIN, 0, 0);
  size_t n = 0;
  xfer_tensor *tensors = tensors_of(refit, &n, -1);
  uint64_t most = 0, sum = 0, payload = 0;

  for (int rank = 0; rank < N_TRAIN; rank++) {
    xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
    xfer_plan *plan = NULL;

    MUST(xfer_plan_simulate(&plan, N_TRAIN + N_GEN, rank, tensors, n, NULL));
    MUST(xfer_plan_report(plan, &report));
    if (report.out_bytes > most) most = report.out_bytes;
    sum += report.out_bytes;
    payload = report.payload_bytes;
    xfer_plan_destroy(plan);
  }
  const double imbalance = (double)most * N_TRAIN / (double)sum;
  printf("zero3 planned: tensors=%zu bytes=%llu sent=%llu imbalance=%.4f\n", n,
         (unsigned long long)payload, (unsigned long long)sum, imbalance);
  free_tensors(tensors, n);
  xfer_refit_destroy(refit);
  return imbalance <= 1.02 ? 0 : 1;
}

/* ---- a part of it, moved ---- */

static uint64_t mix(uint64_t x)
{
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static uint64_t seed_of(const xfer_refit_tensor *info, int64_t expert)
{
  const char *place = info->n_experts > 0 ? strstr(info->hf, "{expert}") : NULL;
  uint64_t h = UINT64_C(0xcbf29ce484222325);
  char name[1024];

  if (place == NULL)
    snprintf(name, sizeof name, "%s", info->hf);
  else
    snprintf(name, sizeof name, "%.*s%lld%s", (int)(place - info->hf), info->hf,
             (long long)(info->first_expert + expert), place + strlen("{expert}"));
  for (const char *c = name; *c != '\0'; c++)
    h = (h ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
  return h;
}

/* The values of a rank's boxes, one after the other, as fill_box.h has them. */
static char *fill_boxes(const xfer_refit_tensor *info, const xfer_layout *layout)
{
  const int n = xfer_layout_shape(layout, NULL);
  const size_t elem = xfer_dtype_size(xfer_layout_dtype(layout));
  size_t n_boxes = 0, n_elems = 0;
  int64_t *bounds;
  char *memory, *at;

  MUST(xfer_layout_boxes(layout, 0, NULL, 0, &n_boxes));
  bounds = calloc(n_boxes * 2 * (size_t)n + 1, sizeof *bounds);
  MUST(xfer_layout_boxes(layout, 0, bounds, n_boxes, &n_boxes));
  for (size_t b = 0; b < n_boxes; b++) {
    size_t size = 1;
    for (int d = 0; d < n; d++)
      size *= (size_t)(bounds[(2 * b + 1) * (size_t)n + (size_t)d] -
                       bounds[2 * b * (size_t)n + (size_t)d]);
    n_elems += size;
  }
  at = memory = malloc(n_elems * elem + 1);
  for (size_t b = 0; b < n_boxes; b++) {
    const int64_t *lo = bounds + 2 * b * (size_t)n, *hi = lo + n;
    int64_t x[XFER_MAX_DIMS];
    uint64_t seed = seed_of(info, lo[0]); /* a box is of one expert */
    int d = 0;

    memcpy(x, lo, (size_t)n * sizeof *x);
    while (d >= 0) {
      uint64_t index = seed + (uint64_t)info->offset;
      for (d = 0; d < n; d++)
        if (d > 0 || info->n_experts == 0) index += (uint64_t)(x[d] * info->strides[d]);
      const uint64_t value = mix(index);
      memcpy(at, &value, elem);
      at += elem;
      for (d = n - 1; d >= 0 && ++x[d] == hi[d]; d--)
        x[d] = lo[d];
    }
  }
  free(bounds);
  return memory;
}

typedef struct rank_job {
  xfer_comm *comm;
  uint64_t wrong, checked;
} rank_job;

static void give_all(xfer_locals *locals, char **memory)
{
  for (size_t i = 0; i < xfer_locals_count(locals); i++) {
    xfer_local local;
    size_t bytes;

    MUST(xfer_locals_get(locals, i, &local));
    bytes = xfer_dtype_size((xfer_dtype)local.dtype);
    for (int d = 0; d < local.n_dims; d++)
      bytes *= (size_t)local.shape[d];
    memory[i] = malloc(bytes + 1);
    memset(memory[i], 0xa5, bytes + 1);
    MUST(xfer_locals_give(locals, (xfer_refit_side)local.side, local.name, (xfer_dtype)local.dtype,
                          memory[i], local.shape, NULL, local.n_dims));
  }
}

static void *rank_main(void *context)
{
  rank_job *j = context;
  const int rank = xfer_comm_rank(j->comm);
  xfer_refit *refit = join(N_TRAIN - N_GEN, 2, 8);
  size_t n = 0;
  xfer_tensor *tensors = tensors_of(refit, &n, rank);
  char **sources = calloc(n, sizeof *sources);
  xfer_locals *locals = NULL;
  xfer_plan *plan = NULL;
  fill_sum sum = {0, 0, 0};

  MUST(xfer_locals_create(&locals, refit, rank));
  char **memory = calloc(xfer_locals_count(locals) + 1, sizeof *memory);
  if (sources == NULL || memory == NULL) abort();
  give_all(locals, memory);
  MUST(xfer_plan_create(&plan, j->comm, tensors, n, NULL));
  for (size_t t = 0; t < n; t++) {
    xfer_view src, dst, flat;
    xfer_refit_tensor info;
    uint32_t has = 0;

    MUST(xfer_locals_view(locals, t, &src, &dst, &has));
    MUST(xfer_refit_tensor_get(refit, t, &info));
    sources[t] = fill_boxes(&info, tensors[t].src);
    flat = xfer_view_dense(sources[t]);
    MUST(xfer_plan_bind(plan, t, &flat, (has & XFER_LOCALS_DST) != 0 ? &dst : NULL));
  }
  MUST(xfer_plan_commit(plan));
  for (uint64_t run = 1; run <= 2; run++) {
    MUST(xfer_plan_run(plan, run, NULL));
    MUST(xfer_plan_wait(plan, 0));
  }
  for (size_t t = 0; t < n; t++) {
    xfer_view src, dst;
    xfer_refit_tensor info;
    uint32_t has = 0;

    MUST(xfer_locals_view(locals, t, &src, &dst, &has));
    MUST(xfer_refit_tensor_get(refit, t, &info));
    if ((has & XFER_LOCALS_DST) != 0 &&
        !fill_check(
            &(fill_job){.tensor = &info, .layout = tensors[t].dst, .rank = rank, .view = &dst},
            &sum))
      exit(1);
    free(sources[t]);
  }
  j->wrong = sum.wrong;
  j->checked = sum.bytes;
  for (size_t i = 0; i < xfer_locals_count(locals); i++)
    free(memory[i]);
  xfer_plan_destroy(plan);
  xfer_locals_destroy(locals);
  free_tensors(tensors, n);
  xfer_refit_destroy(refit);
  xfer_comm_destroy(j->comm);
  free(sources);
  free(memory);
  return NULL;
}

static int say(const char *how, uint64_t wrong, uint64_t checked)
{
  printf("zero3 moved over %s: checked=%llu wrong=%llu\n", how, (unsigned long long)checked,
         (unsigned long long)wrong);
  return wrong == 0 && checked > 0 ? 0 : 1;
}

static int over_threads(void)
{
  xfer_comm *comms[N_TRAIN];
  rank_job jobs[N_TRAIN] = {{0}};
  pthread_t threads[N_TRAIN];
  uint64_t wrong = 0, checked = 0;

  MUST(xfer_comm_create_local(comms, N_TRAIN));
  for (int r = 0; r < N_TRAIN; r++) {
    jobs[r].comm = comms[r];
    if (pthread_create(&threads[r], NULL, rank_main, &jobs[r]) != 0) abort();
  }
  for (int r = 0; r < N_TRAIN; r++) {
    (void)pthread_join(threads[r], NULL);
    wrong += jobs[r].wrong;
    checked += jobs[r].checked;
  }
  return say("threads", wrong, checked);
}

int main(int argc, char **argv)
{
  int level = MPI_THREAD_SINGLE, rank = 0, size = 0, failed = 0;

  if (argc != 2 || MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
    return 2;
  table = argv[1];
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) {
    failed = plan_whole() + over_threads();
  } else if (size == N_TRAIN) {
    rank_job j = {0};
    uint64_t sums[2], mine[2];

    MUST(xfer_comm_create_mpi(&j.comm, MPI_COMM_WORLD));
    (void)rank_main(&j);
    mine[0] = j.wrong;
    mine[1] = j.checked;
    (void)MPI_Allreduce(mine, sums, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    failed = rank == 0 ? say("MPI", sums[0], sums[1]) : sums[0] != 0;
  }
  (void)MPI_Finalize();
  return failed;
}
