/* Gate and up of experts that take turns on both sides, tensors of their own, are one copy. */
#include "launch.h"
#include "two_ranks.h"

#include <string.h>

enum { EXPERTS = 3, ROWS = 20, COLUMNS = 16, BYTES = EXPERTS * 2 * ROWS * COLUMNS * 2 };

static _Atomic size_t n_made;

xfer_status __real_xfi_cuda_tables_make(xfi_cuda_tables *tables, const xfi_copy *copies,
                                        size_t n_copies, int n_blocks);
xfer_status __wrap_xfi_cuda_tables_make(xfi_cuda_tables *tables, const xfi_copy *copies,
                                        size_t n_copies, int n_blocks);

xfer_status __wrap_xfi_cuda_tables_make(xfi_cuda_tables *tables, const xfi_copy *copies,
                                        size_t n_copies, int n_blocks)
{
  n_made += n_copies;
  return __real_xfi_cuda_tables_make(tables, copies, n_copies, n_blocks);
}

/* Columns of both by turns become rows of both by turns. */
static void cross(int rank)
{
  static const char LINE[] = "bf16[3,20,16] (1)@0:R -> (1)@1:R";
  static const int64_t strides[2][3] = {
      {2 * ROWS * COLUMNS * 2, 4, 2 * ROWS * 2}, /* [expert][column][row of both] */
      {2 * ROWS * COLUMNS * 2, 2 * COLUMNS * 2, 2},
  };
  unsigned char *memory = world_alloc(BYTES);
  const int64_t up = rank == 0 ? 2 : COLUMNS * 2;
  part parts[2] = {{LINE, 0, xfer_view_strided(memory, strides[rank], 3), {NULL}},
                   {LINE, 0, xfer_view_strided(memory + up, strides[rank], 3), {NULL}}};
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = plan_of(rank, parts, 2);
  int16_t *elements = (int16_t *)memory;

  for (int i = 0; i < BYTES / 2; i++)
    elements[i] = (int16_t)(rank == 0 ? i : -1);
  OK(xfer_plan_commit(plan));
  OK(xfer_plan_run(plan, 1, stream));
  OK(xfer_plan_wait(plan, 0));
  for (int i = 0; i < BYTES / 2 && rank == 1; i++) {
    const int column = i % COLUMNS;
    const int row = i / COLUMNS % (2 * ROWS);

    NEED(elements[i] == i / (2 * ROWS * COLUMNS) * 2 * ROWS * COLUMNS + column * 2 * ROWS + row);
  }
  plan_end(plan, parts, 2);
}

static void test_halves_cross_as_one(void)
{
  n_made = 0;
  go(cross, NULL);
  NEED(n_made == 1);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {{"halves_cross_as_one", test_halves_cross_as_one}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
