/* Which kernel runs at odd addresses go by (kernels/cuda/compile.c). */
#include "launch.h"
#include "world.h"

enum { RUN = 101, RUNS = 5 };

/* Of runs of so many elements, whose sources begin `step` bytes apart, as bytes or as bf16 to f32:
 * the pieces that go by words of dst. */
static size_t n_skewed(int64_t step, const xfi_convert *convert)
{
  const int64_t dst_bytes = convert == NULL ? 1 : convert->dst_bytes;
  char *const memory = (char *)(uintptr_t)4096; /* is not touched */
  const xfi_copy copy = {.src = memory + 2,
                         .dst = memory + 4,
                         .run_bytes = RUN * dst_bytes,
                         .convert = convert,
                         .n_dims = 1,
                         .extent = {RUNS},
                         .src_stride = {step},
                         .dst_stride = {2 * RUN * dst_bytes}};
  xfi_cuda_program program;
  size_t n = 0;

  OK(xfi_cuda_compile(&program, &copy, 1, 1));
  for (int k = 0; k < XFI_CUDA_N_TABLES; k++) {
    const xfi_cuda_table *table = &program.tables[k];

    for (size_t i = 0; i < table->n_pieces; i++) {
      const uint32_t kind = table->pieces[i].kind;
      n += (k == XFI_CUDA_RAGGED && kind == XFI_CUDA_RAGGED_SKEWED) ||
           (k == XFI_CUDA_CONVERTS && kind >= XFI_CUDA_CONVERT_SKEWED &&
            kind < XFI_CUDA_CONVERT_ONE_BY_ONE);
    }
  }
  xfi_cuda_program_free(&program);
  return n;
}

/* Runs of a source that overlaps itself may end in its last word, of which the kernel leaves out
 * what is beyond the last whole one, since it takes that for the last run's. */
static void test_runs_that_end_together_go_word_by_word(void)
{
  static const xfi_convert v = {.from = XFER_BF16,
                                .to = XFER_F32,
                                .src_bytes = 2,
                                .dst_bytes = 4,
                                .op = XFI_CONVERT_AS_IT_IS};

  for (int64_t step = 1; step < 16; step++)
    NEED(n_skewed(step, NULL) == 0);
  for (int64_t step = 2; step < 16; step += 2)
    NEED(n_skewed(step, &v) == 0);
  for (int64_t step = 16; step < 3 * RUN; step += 2)
    NEED(n_skewed(step, NULL) == 1 && n_skewed(step, &v) == 1);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"runs_that_end_together_go_word_by_word", test_runs_that_end_together_go_word_by_word}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
