/* The CUDA kernels against kernels/ref/, byte for byte; and flags. One process, one device: also
 * for the sanitizer. */
#include "on_device.h"

#include "error.h"
#include "kernels.h"

#include <string.h>

enum { ARENA = 1 << 20, GUARD = 256, COPIES_MAX = 8, POISON = 0xa5 };

/* The same bytes on host and device; copies are described by offsets and then given either base. */
typedef struct arena {
  char *host;
  char *device;
} arena;

static arena arena_make(size_t n_bytes)
{
  arena made = {.host = calloc(1, n_bytes)};

  assert_non_null(made.host);
  CUDA(cudaMalloc, ((void **)&made.device, n_bytes));
  return made;
}

static void arena_free(arena *a)
{
  free(a->host);
  CUDA(cudaFree, (a->device));
}

/* ---- random copies ------------------------------------------------------------------------ */

/* Strides of one side, dims in random order, with gaps of whole words. Returns the bytes spanned.
 */
static int64_t random_strides(uint64_t *state, const xfi_copy *c, int64_t word, int64_t *strides)
{
  int order[XFI_COPY_DIMS] = {0, 1, 2, 3, 4, 5, 6, 7};
  int64_t span = c->run_bytes;

  for (int64_t d = c->n_dims - 1; d > 0; d--) {
    int64_t other = random_from(state, 0, d);
    int kept = order[d];
    order[d] = order[other];
    order[other] = kept;
  }
  for (int64_t i = c->n_dims - 1; i >= 0; i--) {
    if (random_from(state, 0, 2) == 0) span += word * random_from(state, 0, 3);
    strides[order[i]] = span;
    span *= c->extent[order[i]];
  }
  return span;
}

/* A copy of at most ARENA / COPIES_MAX bytes a side, with offsets for pointers; false: it came out
 * too large. */
static bool random_copy(uint64_t *state, xfi_copy *c, int64_t *dst_used)
{
  int64_t word = INT64_C(1) << random_from(state, 0, 4);
  int64_t room = ARENA / COPIES_MAX;

  memset(c, 0, sizeof *c);
  c->run_bytes = word;
  if (random_from(state, 0, 1) != 0) /* short, or long enough for several tiles */
    c->run_bytes *= random_from(state, 1, INT64_C(1) << random_from(state, 1, 15));
  c->n_dims = random_from(state, 0, 5);
  for (int64_t d = 0; d < c->n_dims; d++)
    c->extent[d] = random_from(state, 1, random_from(state, 0, 1) ? 5 : 90);
  int64_t src_span = random_strides(state, c, word, c->src_stride);
  int64_t dst_span = random_strides(state, c, word, c->dst_stride);
  if (src_span > room || dst_span + 16 > room) return false;
  c->src = (const char *)(intptr_t)(word * random_from(state, 0, (ARENA - src_span) / word));
  *dst_used = (*dst_used + word - 1) / word * word;
  c->dst = (char *)(intptr_t)*dst_used;
  *dst_used += dst_span;
  return true;
}

static void rebase(xfi_copy *to, const xfi_copy *from, size_t n, char *src, char *dst,
                   const bool *zero)
{
  for (size_t i = 0; i < n; i++) {
    to[i] = from[i];
    to[i].src = zero[i] ? NULL : src + (intptr_t)from[i].src;
    to[i].dst = dst + (intptr_t)from[i].dst;
  }
}

static void test_random_copies_equal_ref(void **state)
{
  static const int blocks[] = {1, 7, 48, BLOCKS_ALONE};
  uint64_t random = 42;
  int n_cases = getenv("XFER_GPU_CASES") != NULL ? atoi(getenv("XFER_GPU_CASES")) : 3000;
  arena src;
  arena dst;
  char *seen = malloc(ARENA + GUARD);
  int64_t n_bytes = 0;

  (void)state;
  NEEDS_GPUS(1);
  src = arena_make(ARENA);
  dst = arena_make(ARENA + GUARD);
  random_fill(&random, src.host, ARENA);
  CUDA(cudaMemcpy, (src.device, src.host, ARENA, cudaMemcpyHostToDevice));
  for (int i = 0; i < n_cases; i++) {
    xfi_copy offsets[COPIES_MAX];
    xfi_copy copies[COPIES_MAX];
    bool zero[COPIES_MAX];
    int64_t used = 0;
    size_t want = (size_t)random_from(&random, 1, COPIES_MAX);
    size_t n = 0;
    while (n < want) {
      if (!random_copy(&random, &offsets[n], &used)) continue;
      zero[n++] = random_from(&random, 0, 9) == 0;
    }
    memset(dst.host, POISON, ARENA + GUARD);
    CUDA(cudaMemset, (dst.device, POISON, ARENA + GUARD));
    rebase(copies, offsets, n, src.host, dst.host, zero);
    xfi_ref_copy(copies, n);
    rebase(copies, offsets, n, src.device, dst.device, zero);
    run_on_device(copies, n, blocks[i % 4]);
    CUDA(cudaMemcpy, (seen, dst.device, ARENA + GUARD, cudaMemcpyDeviceToHost));
    if (memcmp(seen, dst.host, ARENA + GUARD) != 0) print_error("case %d of %zu copies\n", i, n);
    assert_memory_equal(seen, dst.host, ARENA + GUARD);
    n_bytes += used;
  }
  print_message("%d cases, %lld bytes\n", n_cases, (long long)n_bytes);
  arena_free(&src);
  arena_free(&dst);
  free(seen);
}

/* ---- shapes of the field ------------------------------------------------------------------ */

/* One copy between two dense matrices of `rows` x `cols` words; `swap` transposes. */
static void check_matrix(int64_t rows, int64_t cols, int64_t word, bool swap, int64_t stretch)
{
  size_t n_bytes = (size_t)(rows * cols * word);
  size_t dst_bytes = n_bytes * (size_t)stretch;
  uint64_t random = 7;
  arena src = arena_make(n_bytes);
  arena dst = arena_make(dst_bytes);
  char *seen = malloc(dst_bytes);
  xfi_copy c = {
      .run_bytes = word, .n_dims = 2, .extent = {rows, cols}, .src_stride = {cols * word, word}};

  c.dst_stride[0] = (swap ? word : cols * word) * stretch;
  c.dst_stride[1] = (swap ? rows * word : word) * stretch;
  random_fill(&random, src.host, n_bytes);
  CUDA(cudaMemcpy, (src.device, src.host, n_bytes, cudaMemcpyHostToDevice));
  memset(dst.host, POISON, dst_bytes);
  CUDA(cudaMemset, (dst.device, POISON, dst_bytes));
  c.src = src.host;
  c.dst = dst.host;
  xfi_ref_copy(&c, 1);
  c.src = src.device;
  c.dst = dst.device;
  run_on_device(&c, 1, BLOCKS_ALONE);
  CUDA(cudaMemcpy, (seen, dst.device, dst_bytes, cudaMemcpyDeviceToHost));
  if (memcmp(seen, dst.host, dst_bytes) != 0) {
    print_error("%lld x %lld words of %lld bytes, swap %d, stretch %lld\n", (long long)rows,
                (long long)cols, (long long)word, swap, (long long)stretch);
  }
  assert_memory_equal(seen, dst.host, dst_bytes);
  free(seen);
  arena_free(&src);
  arena_free(&dst);
}

static void test_matrices_of_each_word_equal_ref(void **state)
{
  (void)state;
  NEEDS_GPUS(1);
  for (int64_t word = 1; word <= 16; word *= 2) {
    check_matrix(777, 1000, word, true, 1);
    check_matrix(64, 64, word, true, 1);
    check_matrix(8, 4099, word, true, 1);
    check_matrix(513, 129, word, true, 2); /* interleaved as well */
    check_matrix(300, 500, word, false, 2);
    check_matrix(1, 100001, word, false, 1);
  }
}

/* Memory that copies read and write, and what the device's was seen to be. */
typedef struct ends {
  arena src;
  arena dst;
  char *seen;
} ends;

static ends ends_make(uint64_t *random)
{
  ends e = {arena_make(ARENA), arena_make(ARENA), malloc(ARENA)};

  assert_non_null(e.seen);
  random_fill(random, e.src.host, ARENA);
  CUDA(cudaMemcpy, (e.src.device, e.src.host, ARENA, cudaMemcpyHostToDevice));
  return e;
}

static void ends_free(ends *e)
{
  arena_free(&e->src);
  arena_free(&e->dst);
  free(e->seen);
}

/* Does a copy from src + at[0] to dst + at[1] leave in all of dst what kernels/ref does? */
static bool equals_ref(ends *e, xfi_copy *c, const int64_t *at, int n_blocks)
{
  memset(e->dst.host, POISON, ARENA);
  CUDA(cudaMemset, (e->dst.device, POISON, ARENA));
  c->src = e->src.host + at[0];
  c->dst = e->dst.host + at[1];
  xfi_ref_copy(c, 1);
  c->src = e->src.device + at[0];
  c->dst = e->dst.device + at[1];
  run_on_device(c, 1, n_blocks);
  CUDA(cudaMemcpy, (e->seen, e->dst.device, ARENA, cudaMemcpyDeviceToHost));
  return memcmp(e->seen, e->dst.host, ARENA) == 0;
}

/* Planes of words whose rows begin anywhere on both sides, transposed, with gaps beside them. */
static void test_transposes_of_rows_that_begin_anywhere_equal_ref(void **state)
{
  enum { CASES = 300 };
  uint64_t random = 13;
  ends e;

  (void)state;
  NEEDS_GPUS(1);
  e = ends_make(&random);
  for (int i = 0; i < CASES; i++) {
    const int64_t word = INT64_C(1) << i % 5;
    const int64_t room = (ARENA - 64) / word;
    const bool small = random_from(&random, 0, 1) == 1; /* several teams */
    const int64_t planes = random_from(&random, 1, small ? 40 : 3);
    const int64_t rows = random_from(&random, 8, small ? 40 : 300);
    const int64_t fit = room / planes / rows - 9;
    const int64_t most = small ? 40 : 400;
    const int64_t cols = random_from(&random, 8, fit < most ? fit : most);
    const int64_t src_row = cols + random_from(&random, 0, 9);
    const int64_t dst_row = rows + random_from(&random, 0, room / planes / cols - rows);
    xfi_copy c = {.run_bytes = word,
                  .n_dims = 3,
                  .extent = {planes, rows, cols},
                  .src_stride = {rows * src_row * word, src_row * word, word},
                  .dst_stride = {cols * dst_row * word, word, dst_row * word}};
    const int64_t at[2] = {word * random_from(&random, 0, 64 / word),
                           word * random_from(&random, 0, 64 / word)};

    if (!equals_ref(&e, &c, at, i % 3 == 0 ? 1 : 40))
      print_error(
          "case %d: %lld planes of %lld x %lld words of %lld bytes, rows of %lld and %lld\n", i,
          (long long)planes, (long long)rows, (long long)cols, (long long)word, (long long)src_row,
          (long long)dst_row);
    assert_memory_equal(e.seen, e.dst.host, ARENA);
  }
  ends_free(&e);
}

/* Runs of narrow words at any address, in one line, in a few or in many, where one side has no gaps
 * or both have; some are longer than a tile. */
static void test_ragged_runs_equal_ref(void **state)
{
  enum { CASES = 900 };
  uint64_t random = 11;
  ends e;

  (void)state;
  NEEDS_GPUS(1);
  e = ends_make(&random);
  for (int i = 0; i < CASES; i++) {
    const int64_t word = INT64_C(1) << random_from(&random, 0, 3);
    const int64_t longest[] = {2, 40, 2200 / word, 40000 / word};
    const int64_t row = word * random_from(&random, 1, longest[random_from(&random, 0, 3)]);
    const int64_t gap = word * random_from(&random, 1, 40);
    const int64_t most = (ARENA - 64) / (row + gap);
    const int64_t many = i % 4 < 2 ? 1 : i % 8 < 4 ? 5 : 600;
    const int64_t lines = random_from(&random, 1, most < many ? most : many);
    const int64_t n = random_from(&random, 1, most / lines);
    const int64_t other_gap = i % 3 < 2 ? 0 : word * random_from(&random, 1, gap / word);
    xfi_copy c = {.run_bytes = row, .n_dims = 2, .extent = {lines, n}};
    int64_t *dense = i % 2 == 0 ? c.dst_stride : c.src_stride;
    int64_t *other = i % 2 == 0 ? c.src_stride : c.dst_stride;
    const int64_t at[2] = {word * random_from(&random, 0, 16 / word),
                           word * random_from(&random, 0, 16 / word)};

    dense[0] = n * (row + other_gap);
    dense[1] = row + other_gap;
    other[0] = (ARENA - 64) / lines / word * word; /* lines of their own */
    other[1] = row + gap;
    if (!equals_ref(&e, &c, at, i % 3 == 0 ? 1 : 40))
      print_error("case %d: %lld lines of %lld rows of %lld bytes, gaps of %lld and %lld\n", i,
                  (long long)lines, (long long)n, (long long)row, (long long)gap,
                  (long long)other_gap);
    assert_memory_equal(e.seen, e.dst.host, ARENA);
  }
  ends_free(&e);
}

/* Runs that end where their allocations do: the sanitizer sees what is read beyond. */
static void test_whole_allocations_equal_what_was_put(void **state)
{
  static const int64_t sizes[] = {65, 1021, 1023, 4098, 70001};
  char put[70001];
  char got[70001];

  (void)state;
  NEEDS_GPUS(1);
  for (size_t i = 0; i < sizeof put; i++)
    put[i] = (char)(i * 7 + i / 251);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    for (int64_t first = 0; first < 4; first++) {
      xfi_copy c = {.run_bytes = sizes[i]};
      char *src = NULL;
      char *dst = NULL;

      CUDA(cudaMalloc, ((void **)&src, (size_t)(first + sizes[i])));
      CUDA(cudaMalloc, ((void **)&dst, (size_t)(3 - first + sizes[i])));
      CUDA(cudaMemset, (src, 0, (size_t)first)); /* read with the run's first word, and not used */
      CUDA(cudaMemcpy, (src + first, put, (size_t)sizes[i], cudaMemcpyHostToDevice));
      c.src = src + first;
      c.dst = dst + 3 - first;
      run_on_device(&c, 1, 4);
      CUDA(cudaMemcpy, (got, c.dst, (size_t)sizes[i], cudaMemcpyDeviceToHost));
      assert_memory_equal(got, put, (size_t)sizes[i]);
      CUDA(cudaFree, (src));
      CUDA(cudaFree, (dst));
    }
  }
}

/* Windows of a source, each a little further on. */
static void test_runs_that_overlap_equal_ref(void **state)
{
  enum { RUN = 101, RUNS = 5 };
  uint64_t random = 17;
  ends e;

  (void)state;
  NEEDS_GPUS(1);
  e = ends_make(&random);
  for (int64_t step = 1; step < 40; step++)
    for (int64_t first = 0; first < 16; first++) {
      xfi_copy c = {.run_bytes = RUN,
                    .n_dims = 1,
                    .extent = {RUNS},
                    .src_stride = {step},
                    .dst_stride = {RUN + 3}};
      const int64_t at[2] = {first, 0};

      if (!equals_ref(&e, &c, at, 1))
        print_error("from byte %lld, %lld apart\n", (long long)first, (long long)step);
      assert_memory_equal(e.seen, e.dst.host, ARENA);
    }
  ends_free(&e);
}

/* Offsets and counts past 2^31 and 2^32: one column of a matrix whose rows are far apart, and many
 * single bytes. */
static void test_far_offsets_equal_what_was_put(void **state)
{
  size_t far = ((size_t)1 << 32) + 4096;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  unsigned char seen[3];
  char *src = NULL;
  char *dst = NULL;

  (void)state;
  NEEDS_GPUS(1);
  CUDA(cudaMemGetInfo, (&free_bytes, &total_bytes));
  if (free_bytes < 3 * far) skip();
  CUDA(cudaMalloc, ((void **)&src, far + 16));
  CUDA(cudaMalloc, ((void **)&dst, far + 16));
  CUDA(cudaMemset, (src, 0x11, far + 16));
  CUDA(cudaMemset, (src + far, 0x77, 16));
  CUDA(cudaMemset, (dst, POISON, far + 16));
  xfi_copy c = {.src = src,
                .dst = dst,
                .run_bytes = 1,
                .n_dims = 1,
                .extent = {2},
                .src_stride = {(int64_t)far},
                .dst_stride = {(int64_t)far}};
  run_on_device(&c, 1, 4);
  CUDA(cudaMemcpy, (seen, dst, 2, cudaMemcpyDeviceToHost));
  CUDA(cudaMemcpy, (seen + 2, dst + far, 1, cudaMemcpyDeviceToHost));
  assert_int_equal(seen[0], 0x11);
  assert_int_equal(seen[1], POISON);
  assert_int_equal(seen[2], 0x77);

  /* 2^31 + 2048 runs of one byte at stride 2 on one side: more runs than a piece may have. */
  c = (xfi_copy){.src = src,
                 .dst = dst,
                 .run_bytes = 1,
                 .n_dims = 1,
                 .extent = {(INT64_C(1) << 31) + 2048},
                 .src_stride = {1},
                 .dst_stride = {2}};
  CUDA(cudaMemset, (src + (INT64_C(1) << 31) + 2047, 0x55, 1));
  run_on_device(&c, 1, BLOCKS_ALONE);
  CUDA(cudaMemcpy, (seen, dst + 2 * ((INT64_C(1) << 31) + 2047) - 2, 3, cudaMemcpyDeviceToHost));
  assert_int_equal(seen[0], 0x11);
  assert_int_equal(seen[1], POISON);
  assert_int_equal(seen[2], 0x55);

  /* One run of 2^31 + 5 bytes, at different odd addresses. */
  c = (xfi_copy){.src = src + 1, .dst = dst + 2, .run_bytes = (INT64_C(1) << 31) + 5};
  CUDA(cudaMemset, (src + 1, 0x66, 1));
  CUDA(cudaMemset, (src + c.run_bytes, 0x44, 1)); /* its last byte */
  CUDA(cudaMemset, (dst, POISON, far));
  run_on_device(&c, 1, BLOCKS_ALONE);
  CUDA(cudaMemcpy, (seen, dst + 1, 3, cudaMemcpyDeviceToHost));
  assert_int_equal(seen[0], POISON);
  assert_int_equal(seen[1], 0x66);
  assert_int_equal(seen[2], 0x11);
  CUDA(cudaMemcpy, (seen, dst + c.run_bytes, 3, cudaMemcpyDeviceToHost));
  assert_int_equal(seen[0], 0x11);
  assert_int_equal(seen[1], 0x44);
  assert_int_equal(seen[2], POISON);
  CUDA(cudaFree, (src));
  CUDA(cudaFree, (dst));
}

static void test_empty_job_launches_nothing(void **state)
{
  xfi_cuda_job job = {.n_blocks = BLOCKS_ALONE};
  xfi_copy none = {.run_bytes = 4, .n_dims = 1, .extent = {0}};

  (void)state;
  NEEDS_GPUS(1);
  for (int k = 0; k < XFI_CUDA_N_TABLES; k++)
    OK(xfi_cuda_kernels_of(k)->copy(&job, NULL));
  run_on_device(&none, 1, 1);
  run_on_device(NULL, 0, 1);
}

/* ---- flags -------------------------------------------------------------------------------- */

static void test_flags_are_set(void **state)
{
  enum { N = 100 };
  uint64_t *flags = NULL;
  uint64_t *list[N];
  uint64_t seen[N];
  cudaStream_t stream = NULL;

  (void)state;
  NEEDS_GPUS(1);
  CUDA(cudaStreamCreateWithFlags, (&stream, cudaStreamNonBlocking));
  CUDA(cudaMalloc, ((void **)&flags, sizeof seen));
  CUDA(cudaMemset, (flags, 0, sizeof seen));
  for (int i = 0; i < N; i++)
    list[i] = flags + i;
  OK(xfi_cuda_flags_set(list, N, 5, NULL, stream));
  CUDA(cudaStreamSynchronize, (stream));
  CUDA(cudaMemcpy, (seen, flags, sizeof seen, cudaMemcpyDeviceToHost));
  for (int i = 0; i < N; i++)
    assert_int_equal(seen[i], 5);
  CUDA(cudaStreamDestroy, (stream));
  CUDA(cudaFree, (flags));
}

int main(int argc, char **argv)
{
  const struct CMUnitTest small[] = {
      cmocka_unit_test(test_random_copies_equal_ref),
      cmocka_unit_test(test_matrices_of_each_word_equal_ref),
      cmocka_unit_test(test_transposes_of_rows_that_begin_anywhere_equal_ref),
      cmocka_unit_test(test_ragged_runs_equal_ref),
      cmocka_unit_test(test_runs_that_overlap_equal_ref),
      cmocka_unit_test(test_whole_allocations_equal_what_was_put),
      cmocka_unit_test(test_empty_job_launches_nothing),
  };
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_copies_equal_ref),
      cmocka_unit_test(test_matrices_of_each_word_equal_ref),
      cmocka_unit_test(test_transposes_of_rows_that_begin_anywhere_equal_ref),
      cmocka_unit_test(test_ragged_runs_equal_ref),
      cmocka_unit_test(test_runs_that_overlap_equal_ref),
      cmocka_unit_test(test_whole_allocations_equal_what_was_put),
      cmocka_unit_test(test_far_offsets_equal_what_was_put),
      cmocka_unit_test(test_empty_job_launches_nothing),
      cmocka_unit_test(test_flags_are_set),
  };

  int n_failed;

  /* Under the sanitizer: no gigabytes, and no kernel that waits for another. */
  if (argc > 1 && strcmp(argv[1], "--small") == 0)
    return cmocka_run_group_tests_name("kernels, small", small, NULL, NULL);
  n_failed = cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
  carries = false;
  return n_failed + cmocka_run_group_tests_name("kernels, all tables in memory", tests, NULL, NULL);
}
