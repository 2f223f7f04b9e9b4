/* What ranks map of each other, and what they need not. */
#include "object.h" /* before a type called tensor */

#include "chunk_memory.h"
#include "counted_mappings.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static void in_world_of(comm_kind kind, void (*work)(int rank))
{
  world_of(2, kind, (sim_config){.seed = 0}, work);
  world_destroy();
}

static void in_world(void (*work)(int rank))
{
  in_world_of(COMM_GATHER, work);
}

/* Of a flow of which some has scales nothing is pulled, so nobody is told of what it comes from. */
static void with_scales(int rank)
{
  enum { SIDE = 64, PLAIN = 1 << 20 };
  static const char *const lines[3] = {"f32[64,64] (1)@1:R -> f8e4m3 (1)@0:R",
                                       "f32[4,4] (1)@1:R -> (1)@0:R",
                                       "u8[1048576] (1)@1:R -> (1)@0:R"};
  static const size_t at[3] = {0, SIDE * SIDE * sizeof(float), 2 * SIDE * SIDE * sizeof(float)};
  unsigned char *memory = world_alloc(at[2] + PLAIN);
  xfer_plan *plan = NULL;
  xfer_layout *layouts[3][2] = {{NULL}};

  memset(memory, rank == 1 ? 1 : 0xee, at[2] + PLAIN);
  for (int i = 0; i < 3; i++)
    OK(xfer_problem_parse(&layouts[i][0], &layouts[i][1], lines[i]));
  const xfer_tensor mixed[3] = {
      {"weights", layouts[0][0], layouts[0][1], xfer_convert_blocks(16, 16, XFER_SCALE_F32)},
      {"scales", NULL, layouts[1][1], xfer_convert_scales_of(0)},
      {"plain", layouts[2][0], layouts[2][1], {0}}};

  OK(xfer_plan_create(&plan, w.comms[rank], mixed, 3, NULL));
  for (size_t i = 0; i < 3; i++) {
    const xfer_view view = xfer_view_dense(memory + at[i]);

    OK(xfer_plan_bind(plan, i, rank == 1 && i != 1 ? &view : NULL, rank == 0 ? &view : NULL));
  }
  ranks_barrier();
  const uint64_t calls = sim_calls_of("cudaIpcGetMemHandle");
  ranks_barrier();
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  NEED(sim_calls_of("cudaIpcGetMemHandle") == calls + 1);
  OK(xfer_plan_run(plan, 1, world_stream()));
  OK(xfer_plan_wait(plan, 0));
  for (size_t i = 0; i < PLAIN; i += 511)
    NEED(memory[at[2] + i] == 1);
  ranks_barrier();
  xfer_plan_destroy(plan);
  world_free(memory);
  for (int i = 0; i < 6; i++)
    xfer_layout_destroy(layouts[i / 2][i % 2]);
}

static void test_what_has_scales_is_not_mapped(void)
{
  in_world(with_scales);
}

/* Only the sender has the scales: where it cannot write, the receiver does not read either. */
static void scales_stay(int rank)
{
  enum { ELEMS = 64 * 64, CHUNK = 2 << 20 };
  static const char *const lines[2] = {"f32[64,64] (1)@1:R -> f8e4m3 (1)@0:R",
                                       "f32[4,4] (1)@1:R -> (1)@0:R"};
  const size_t at[2] = {0, ELEMS * sizeof(float)};
  unsigned char *memory = rank == 0 ? chunks_alloc(CHUNK, 0, false) : world_alloc(CHUNK);
  xfer_plan *plan = NULL;
  xfer_layout *layouts[2][2] = {{NULL}};
  char *text = NULL;

  memset(memory, 0x40, CHUNK); /* as an f32 some 3 */
  for (int i = 0; i < 2; i++)
    OK(xfer_problem_parse(&layouts[i][0], &layouts[i][1], lines[i]));
  const xfer_tensor both[2] = {
      {"weights", layouts[0][0], layouts[0][1], xfer_convert_blocks(16, 16, XFER_SCALE_F32)},
      {"scales", NULL, layouts[1][1], xfer_convert_scales_of(0)}};

  OK(xfer_plan_create(&plan, w.comms[rank], both, 2, NULL));
  for (size_t i = 0; i < 2; i++) {
    const xfer_view view = xfer_view_dense(memory + at[i]);

    OK(xfer_plan_bind(plan, i, rank == 1 && i == 0 ? &view : NULL, rank == 0 ? &view : NULL));
  }
  OK(xfer_plan_commit(plan));
  OK(xfer_plan_print(plan, &text, 0));
  NEED(strstr(text, "packed: rank 1 cannot map rank 0") != NULL);
  xfer_text_free(text);
  OK(xfer_plan_run(plan, 1, world_stream()));
  OK(xfer_plan_wait(plan, 0));
  for (size_t i = 0; i < ELEMS && rank == 0; i++)
    NEED(memory[i] == 0x7e); /* 448, of the largest of a block */
  ranks_barrier();
  xfer_plan_destroy(plan);
  for (int i = 0; i < 4; i++)
    xfer_layout_destroy(layouts[i / 2][i % 2]);
}

static void test_what_has_scales_is_not_pulled(void)
{
  in_world_of(COMM_NCCL, scales_stay);
}

/* Two tensors of two allocations, then of one, then of two again. Between the steps nobody else
 * counts. */
static void bound_together(int rank)
{
  enum { BYTES = 4096, STEPS = 3 };
  static const int in[STEPS][2] = {{0, 1}, {0, 0}, {0, 1}};
  unsigned char *const memory[2] = {world_alloc(2 * BYTES), world_alloc(2 * BYTES)};
  xfer_plan *plan = NULL;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;

  OK(xfer_problem_parse(&src, &dst, "u8[4096] (1)@0:R -> (1)@1:R"));
  const xfer_tensor both[2] = {{"a", src, dst, {0}}, {"b", src, dst, {0}}};
  OK(xfer_plan_create(&plan, w.comms[rank], both, 2, NULL));
  for (uint64_t step = 0; step < STEPS; step++) {
    for (size_t i = 0; i < 2; i++) {
      unsigned char *at = memory[rank == 0 ? in[step][i] : 0] + i * BYTES;
      const xfer_view view = xfer_view_dense(at);

      memset(at, rank == 0 ? (int)(1 + 2 * step + i) : 0xee, BYTES);
      OK(xfer_plan_bind(plan, i, rank == 0 ? &view : NULL, rank == 1 ? &view : NULL));
    }
    OK(xfer_plan_commit(plan));
    ranks_barrier();
    NEED(n_mapped == 2 + (step == 1 ? 1 : 2));
    ranks_barrier();
    OK(xfer_plan_run(plan, step + 1, world_stream()));
    OK(xfer_plan_wait(plan, 0));
    for (size_t i = 0; i < 2 && rank == 1; i++)
      NEED(memory[0][i * BYTES] == 1 + 2 * step + i &&
           memory[0][(i + 1) * BYTES - 1] == 1 + 2 * step + i);
  }
  ranks_barrier();
  xfer_plan_destroy(plan);
  for (int i = 0; i < 2; i++)
    world_free(memory[i]);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

static void test_what_nobody_is_bound_to_is_not_mapped(void)
{
  in_counted_world(bound_together);
}

/* What both send is pushed: each maps the other's destination and no more. */
static void send_both_ways(int rank)
{
  tensor t;
  xfer_plan *plan;

  tensor_make(&t, EACH_EACH, rank, 4096);
  plan = world_plan(rank, &t, 1, XFER_LANE_DIRECT, 20000);
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  NEED(n_mapped == 2 + 2);
  ranks_barrier();
  world_run(plan, &t, 1, 1, world_stream());
  ranks_barrier();
  xfer_plan_destroy(plan);
  tensor_free(&t);
}

static void test_where_both_send_destinations_are_mapped(void)
{
  in_counted_world(send_both_ways);
}

/* Rows of `row` bytes at their destination, which lie `stride` apart there. Their source has `line`
 * of them in one, and 64 bytes between lines, or, where 0, all. */
typedef struct row_case {
  int64_t row;
  int64_t stride;
  int64_t line;
  bool cast; /* f32 as bf16, else bytes */
  bool is_pulled;
} row_case;

/* Two tensors of two allocations, as rows that lie apart in one allocation of rank 1: it maps both,
 * or is pushed to, and rank 0 maps the one. */
static void send_rows(int rank, const row_case *c)
{
  const int src_elem = c->cast ? 4 : 1;
  const int dst_elem = c->cast ? 2 : 1;
  const int64_t line = c->line > 0 ? c->line : 1;
  const int64_t cols = c->row / dst_elem;
  const int64_t n = (INT64_C(512) << 10) / c->row / line;
  const int64_t src_strides[3] = {line * cols * src_elem + (c->line > 0 ? 64 : 0), cols * src_elem,
                                  src_elem};
  const int64_t dst_strides[3] = {line * c->stride, c->stride, dst_elem};
  const size_t n_src = (size_t)(n * src_strides[0]);
  const size_t n_dst = (size_t)(n * dst_strides[0]);
  const size_t n_bytes = rank == 0 ? n_src : n_dst;
  unsigned char *const memory[2] = {world_alloc(2 * n_bytes), world_alloc(n_bytes)};
  const xfer_conversion conversion = c->cast ? xfer_convert_cast() : (xfer_conversion){0};
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plan = NULL;
  char text[96];

  (void)snprintf(text, sizeof text, "%s[%lld,%lld,%lld] (1)@0:R -> %s (1)@1:R",
                 c->cast ? "f32" : "u8", (long long)n, (long long)line, (long long)cols,
                 c->cast ? "bf16" : "u8");
  OK(xfer_problem_parse(&src, &dst, text));
  const xfer_tensor both[2] = {{"a", src, dst, conversion}, {"b", src, dst, conversion}};
  OK(xfer_plan_create(&plan, w.comms[rank], both, 2, NULL));
  for (size_t i = 0; i < 2; i++) {
    const xfer_view from = xfer_view_strided(memory[i], src_strides, 3);
    const xfer_view to = xfer_view_strided(memory[0] + i * n_bytes, dst_strides, 3);

    OK(xfer_plan_bind(plan, i, rank == 0 ? &from : NULL, rank == 0 ? NULL : &to));
    if (rank == 0) memset(memory[i], 1 + (int)i, n_bytes);
  }
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  NEED(n_mapped == 2 + (c->is_pulled ? 2 : 1)); /* with both pages */
  OK(xfer_plan_run(plan, 1, world_stream()));
  OK(xfer_plan_wait(plan, 0));
  for (size_t i = 0; i < 2 && rank == 1; i++)
    NEED(memory[0][i * n_bytes] == 1 + i &&
         memory[0][i * n_bytes + (size_t)((n * line - 1) * c->stride + c->row - 1)] == 1 + i);
  ranks_barrier();
  xfer_plan_destroy(plan);
  for (int i = 0; i < 2; i++)
    world_free(memory[i]);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  ranks_barrier();
}

static void rows_of_each_length(int rank)
{
  static const row_case cases[] = {
      {.row = 32, .stride = 64, .is_pulled = true},                  /* short */
      {.row = 512, .stride = 1024, .is_pulled = false},              /* narrow */
      {.row = 512, .stride = 1025, .is_pulled = true},               /* ragged */
      {.row = 1024, .stride = 2047, .is_pulled = false},             /* ragged and long */
      {.row = 65536, .stride = 65537, .is_pulled = true},            /* long */
      {.row = 32, .stride = 64, .line = 8, .is_pulled = true},       /* short, in long lines, */
      {.row = 32, .stride = 64, .line = 4, .is_pulled = false},      /* and in short ones */
      {.row = 512, .stride = 1025, .line = 1, .is_pulled = false},   /* ragged, on both sides */
      {.row = 50, .stride = 100, .cast = true, .is_pulled = true},   /* ragged, */
      {.row = 48, .stride = 96, .cast = true, .is_pulled = false},   /* not, */
      {.row = 200, .stride = 402, .cast = true, .is_pulled = false}, /* and long; smaller there */
  };

  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    send_rows(rank, &cases[i]);
}

static void test_short_and_ragged_rows_are_pulled(void)
{
  in_counted_world(rows_of_each_length);
}

/* Both send to each other, from one allocation into another, then the other way round: where a peer
 * writes, or reads, by then is known to it and not mapped. */
static void swap_memory(int rank, const char *const lines[2], xfer_conversion conversion)
{
  enum { ELEMS = 4096, BYTES = ELEMS * sizeof(float) };
  unsigned char *const memory[2] = {world_alloc(BYTES), world_alloc(BYTES)};
  xfer_plan *plan = NULL;
  xfer_layout *layouts[2][2] = {{NULL}};
  cudaStream_t stream = world_stream();

  for (int i = 0; i < 2; i++)
    OK(xfer_problem_parse(&layouts[i][0], &layouts[i][1], lines[i]));
  const xfer_tensor both[2] = {{"there", layouts[0][0], layouts[0][1], conversion},
                               {"back", layouts[1][0], layouts[1][1], conversion}};

  OK(xfer_plan_create(&plan, w.comms[rank], both, 2, NULL));
  for (uint64_t run = 1; run <= 4; run++) {
    const xfer_view from = xfer_view_dense(memory[run % 2]);
    const xfer_view to = xfer_view_dense(memory[1 - run % 2]);

    for (int i = 0; i < 2; i++)
      OK(xfer_plan_bind(plan, (size_t)i, rank == i ? &from : NULL, rank == i ? NULL : &to));
    OK(xfer_plan_commit(plan));
    memset(memory[run % 2], (int)run, BYTES); /* of a bf16 the upper half of an f32 */
    memset(memory[1 - run % 2], 0xee, BYTES);
    ranks_barrier();
    OK(xfer_plan_run(plan, run, stream));
    OK(xfer_plan_wait(plan, 0));
    NEED(memory[1 - run % 2][ELEMS - 1] == run && memory[run % 2][BYTES - 1] == run);
    ranks_barrier();
  }
  xfer_plan_destroy(plan);
  for (int i = 0; i < 2; i++)
    world_free(memory[i]);
  for (int i = 0; i < 4; i++)
    xfer_layout_destroy(layouts[i / 2][i % 2]);
}

static void swap_pushed(int rank)
{
  static const char *const lines[2] = {"u8[16384] (1)@0:R -> (1)@1:R",
                                       "u8[16384] (1)@1:R -> (1)@0:R"};

  swap_memory(rank, lines, (xfer_conversion){0});
}

static void swap_pulled(int rank)
{
  static const char *const lines[2] = {"bf16[4096] (1)@0:R -> f32 (1)@1:R",
                                       "bf16[4096] (1)@1:R -> f32 (1)@0:R"};

  swap_memory(rank, lines, xfer_convert_cast());
}

static void test_a_bind_to_what_was_not_mapped_is_mapped(void)
{
  in_world(swap_pushed);
  in_world(swap_pulled);
}

/* What both send is pushed, but for many allocations that each would have to map. */
static void into_many(int rank)
{
  enum { N = 300, EACH = 64 };
  static xfer_tensor both[2 * N];
  static char names[2 * N][8];
  xfer_layout *layouts[2][2] = {{NULL}};
  unsigned char *const from = world_alloc(N * EACH);
  unsigned char *to[N];
  xfer_plan *plan = NULL;

  OK(xfer_problem_parse(&layouts[0][0], &layouts[0][1], "u8[64] (1)@0:R -> (1)@1:R"));
  OK(xfer_problem_parse(&layouts[1][0], &layouts[1][1], "u8[64] (1)@1:R -> (1)@0:R"));
  for (int i = 0; i < 2 * N && rank == 0; i++) {
    (void)snprintf(names[i], sizeof names[i], "t%d", i);
    both[i] = (xfer_tensor){.name = names[i], .src = layouts[i % 2][0], .dst = layouts[i % 2][1]};
  }
  memset(from, 1 + rank, N * EACH);
  ranks_barrier();
  OK(xfer_plan_create(&plan, w.comms[rank], both, 2 * N, NULL));
  for (int i = 0; i < 2 * N; i++) {
    const xfer_view src = xfer_view_dense(from + i / 2 * EACH);
    const xfer_view dst = xfer_view_dense(i % 2 == rank ? NULL : (to[i / 2] = world_alloc(EACH)));

    OK(xfer_plan_bind(plan, (size_t)i, i % 2 == rank ? &src : NULL, i % 2 == rank ? NULL : &dst));
  }
  ranks_barrier();
  const uint64_t calls = sim_calls_of("cudaIpcGetMemHandle");
  ranks_barrier();
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  NEED(sim_calls_of("cudaIpcGetMemHandle") == calls + 2);
  OK(xfer_plan_run(plan, 1, world_stream()));
  OK(xfer_plan_wait(plan, 0));
  for (int i = 0; i < N; i++)
    NEED(to[i][0] == 2 - rank && to[i][EACH - 1] == 2 - rank);
  ranks_barrier();
  xfer_plan_destroy(plan);
  world_free(from);
  for (int i = 0; i < N; i++)
    world_free(to[i]);
  for (int i = 0; i < 4; i++)
    xfer_layout_destroy(layouts[i / 2][i % 2]);
}

static void test_many_destinations_are_pulled_into(void)
{
  in_world(into_many);
}

/* The system maps what comes next where some memory was: all higher places are taken. */
static void take_until(const unsigned char *from, size_t n_bytes)
{
  enum { PAGE = 4096, MOST = 1 << 20 };
  const unsigned char *at = NULL;
  int n = 0;

  while (n++ < MOST && (at < from || at >= from + n_bytes)) {
    at = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED);
  }
  NEED(n < MOST);
  NEED(munmap((void *)(uintptr_t)at, PAGE) == 0); /* NOLINT: to be const no longer */
}

static xfer_plan *both_ways(int rank, unsigned char *memory, xfer_layout *layouts[4])
{
  xfer_plan *plan = NULL;

  OK(xfer_problem_parse(&layouts[0], &layouts[1], "u8[4096] (1)@0:R -> (1)@1:R"));
  OK(xfer_problem_parse(&layouts[2], &layouts[3], "u8[4096] (1)@1:R -> (1)@0:R"));
  const xfer_tensor list[2] = {{"a", layouts[0], layouts[1], {0}},
                               {"b", layouts[2], layouts[3], {0}}};
  const xfer_view src = xfer_view_dense(memory);
  const xfer_view dst = xfer_view_dense(memory + 4096);

  memset(memory, 1 + rank, 4096);
  memset(memory + 4096, 0xee, 4096);
  OK(xfer_plan_create(&plan, w.comms[rank], list, 2, NULL));
  for (int i = 0; i < 2; i++)
    OK(xfer_plan_bind(plan, (size_t)i, i == rank ? &src : NULL, i == rank ? NULL : &dst));
  OK(xfer_plan_commit(plan));
  return plan;
}

static void run_both_ways(xfer_plan *plan, int rank, const unsigned char *memory)
{
  OK(xfer_plan_run(plan, 1, world_stream()));
  OK(xfer_plan_wait(plan, 0));
  NEED(memory[4096] == 2 - rank && memory[2 * 4096 - 1] == 2 - rank);
}

/* Chunks that a peer on the same device has freed, of which the plan has not heard. What another
 * plan maps comes to lie there. */
static void where_freed_chunks_were(int rank)
{
  enum { BYTES = 8 << 20 };
  unsigned char *chunks = chunks_alloc(BYTES, 0, false);
  unsigned char *memory = world_alloc(2 * 4096);
  xfer_layout *layouts[2][4] = {{NULL}};
  xfer_plan *plans[2] = {both_ways(rank, chunks, layouts[0]), NULL};

  run_both_ways(plans[0], rank, chunks);
  ranks_barrier();
  if (rank == 0) {
    DRIVER(PFN_cuMemUnmap_v10020, cuMemUnmap, ((CUdeviceptr)(uintptr_t)chunks, BYTES));
    DRIVER(PFN_cuMemAddressFree_v10020, cuMemAddressFree, ((CUdeviceptr)(uintptr_t)chunks, BYTES));
    take_until(chunks, BYTES);
  }
  ranks_barrier();
  plans[1] = both_ways(rank, memory, layouts[1]);
  if (rank == 0) NEED(xfer_plan_run(plans[0], 2, world_stream()) == XFER_ERR_STATE);
  ranks_barrier();
  xfer_plan_destroy(plans[0]);
  ranks_barrier();
  run_both_ways(plans[1], rank, memory); /* what it has mapped is there still */
  ranks_barrier();
  xfer_plan_destroy(plans[1]);
  world_free(memory);
  for (int i = 0; i < 8; i++)
    xfer_layout_destroy(layouts[i / 4][i % 4]);
}

static void test_what_lies_where_a_peers_memory_was_is_mapped(void)
{
  world_of(2, COMM_GATHER, (sim_config){.n_devices = 1}, where_freed_chunks_were);
  world_destroy();
}

/* A GPU stops at an element that does not lie at a multiple of its size, so no commit lets a run
 * convert one; bytes that stay as they are may lie anywhere. */
static void from_an_odd_address(int rank)
{
  static const struct {
    const char *line;
    xfer_conversion conversion;
    int64_t stride; /* of the source, in bytes */
    int shift;      /* bytes that its first element is away from a whole element */
    xfer_status st;
  } cases[] = {{"f32[8] (1)@0:R -> bf16 (1)@1:R", {.kind = XFER_CONVERSION_CAST}, 4, 2, -1},
               {"f32[8] (1)@0:R -> bf16 (1)@1:R", {.kind = XFER_CONVERSION_CAST}, 6, 0, -1},
               {"f32[8] (1)@0:R -> bf16 (1)@1:R", {.kind = XFER_CONVERSION_CAST}, 8, 0, XFER_OK},
               {"f32[1] (1)@0:R -> bf16 (1)@1:R", {.kind = XFER_CONVERSION_CAST}, 6, 0, XFER_OK},
               {"f32[8] (1)@0:R -> (1)@1:R", {0}, 6, 1, XFER_OK}};
  enum { BYTES = 256 };
  char *const memory = world_alloc(BYTES);

  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const xfer_view from = xfer_view_strided(memory + cases[i].shift, &cases[i].stride, 1);
    const xfer_view to = xfer_view_dense(memory);
    xfer_tensor odd = {"odd", NULL, NULL, cases[i].conversion};
    xfer_plan *plan = NULL;
    xfer_layout *src = NULL;
    xfer_layout *dst = NULL;

    OK(xfer_problem_parse(&src, &dst, cases[i].line));
    odd.src = src;
    odd.dst = dst;
    OK(xfer_plan_create(&plan, w.comms[rank], &odd, 1, NULL));
    OK(xfer_plan_bind(plan, 0, rank == 0 ? &from : NULL, rank == 0 ? NULL : &to));
    if (cases[i].st == XFER_OK) {
      OK(xfer_plan_commit(plan));
    } else {
      NEED(xfer_plan_commit(plan) == (rank == 0 ? XFER_ERR_UNSUPPORTED : XFER_ERR_PEER));
      NEED(strstr(xfer_last_error(), "tensor \"odd\", source view: a GPU converts") != NULL);
    }
    xfer_plan_destroy(plan);
    xfer_layout_destroy(src);
    xfer_layout_destroy(dst);
  }
  world_free(memory);
  ranks_barrier();
}

static void test_what_is_converted_lies_at_whole_elements(void)
{
  in_world(from_an_odd_address);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"what_has_scales_is_not_mapped", test_what_has_scales_is_not_mapped},
      {"what_has_scales_is_not_pulled", test_what_has_scales_is_not_pulled},
      {"what_nobody_is_bound_to_is_not_mapped", test_what_nobody_is_bound_to_is_not_mapped},
      {"where_both_send_destinations_are_mapped", test_where_both_send_destinations_are_mapped},
      {"short_and_ragged_rows_are_pulled", test_short_and_ragged_rows_are_pulled},
      {"a_bind_to_what_was_not_mapped_is_mapped", test_a_bind_to_what_was_not_mapped_is_mapped},
      {"many_destinations_are_pulled_into", test_many_destinations_are_pulled_into},
      {"what_lies_where_a_peers_memory_was_is_mapped",
       test_what_lies_where_a_peers_memory_was_is_mapped},
      {"what_is_converted_lies_at_whole_elements", test_what_is_converted_lies_at_whole_elements}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
