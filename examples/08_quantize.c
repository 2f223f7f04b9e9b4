/*
 * Weights in bf16 become fp8 on the way, with a scale for each block of 128 x 128.
 *
 * Ranks 0 and 1 train a 256 x 384 matrix, each half of its rows, and ranks 2 and 3 serve half of
 * its columns each; all four are threads. The second column of blocks lies on both ranks that
 * serve: blocks belong to the tensor, however it is sharded. The scales are a tensor of their own
 * in the same plan, which has no source. A run quantises, sends and writes both in place.
 *
 *   cc 08_quantize.c $(pkg-config --cflags --libs xfer) -lpthread -lm && ./a.out
 */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xfer/xfer.h>

enum { N_RANKS = 4, N_TRAIN = 2, N_STEPS = 3, BLOCK = 128, ROWS = 256, COLUMNS = 384 };

/* What all ranks share: the weights in both dtypes, and the scales. */
static xfer_layout *trained, *served, *scales;

static void need(xfer_status st, const char *what)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, xfer_status_name(st), xfer_last_error());
  exit(1);
}

/* An element after a training step. Each block has its own range, and bf16 holds all exactly. */
static float weight(const int64_t index[2], int step)
{
  const int64_t block = index[0] / BLOCK * (COLUMNS / BLOCK) + index[1] / BLOCK;

  return ldexpf((float)((index[0] * 7 + index[1] * 13 + step) % 251 - 125), -(int)block);
}

static uint16_t bf16(float value)
{
  uint32_t bits;

  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)(bits >> 16);
}

/* The value of an f8e4m3: a sign, 4 bits of exponent, 3 of mantissa. */
static float f8_value(uint8_t byte)
{
  const int exponent = byte >> 3 & 15;
  const float mantissa = (float)(byte & 7);
  const float value =
      exponent == 0 ? ldexpf(mantissa, -9) : ldexpf(8.0f + mantissa, exponent - 7 - 3);

  return (byte & 0x80) != 0 ? -value : value;
}

static void train(uint16_t *weights, int rank, int step)
{
  const size_t n = xfer_layout_local_bytes(trained, rank) / sizeof *weights;

  for (size_t i = 0; i < n; i++) {
    int64_t index[2];

    need(xfer_layout_global_index(trained, rank, (int64_t)i, index), "index");
    weights[i] = bf16(weight(index, step));
  }
}

/* The number of elements that are further from the trained ones than rounding to fp8 explains. */
static int count_wrong(const uint8_t *weights, const float *scale, int rank, int step)
{
  const size_t n = xfer_layout_local_bytes(served, rank);
  int n_wrong = 0;

  for (size_t i = 0; i < n; i++) {
    int64_t index[2];

    need(xfer_layout_global_index(served, rank, (int64_t)i, index), "index");
    const float of_block = scale[index[0] / BLOCK * (COLUMNS / BLOCK) + index[1] / BLOCK];
    const float expected = weight(index, step);
    const float error = fabsf(f8_value(weights[i]) * of_block - expected);
    n_wrong += !(error <= fmaxf(fabsf(expected) / 15, of_block * 0x1p-9f));
  }
  return n_wrong;
}

static void *run_rank(void *arg)
{
  xfer_comm *comm = (xfer_comm *)arg;
  const int rank = xfer_comm_rank(comm);
  uint16_t source[ROWS / 2 * COLUMNS];
  uint8_t weights[ROWS * COLUMNS / 2];
  float scale[ROWS / BLOCK * (COLUMNS / BLOCK)];
  const xfer_view source_view = xfer_view_dense(source);
  const xfer_view weights_view = xfer_view_dense(weights);
  const xfer_view scale_view = xfer_view_dense(scale);
  const xfer_tensor tensors[] = {
      {"w", trained, served, xfer_convert_blocks(BLOCK, BLOCK, XFER_SCALE_F32)},
      {"w_scale_inv", NULL, scales, xfer_convert_scales_of(0)}};
  xfer_plan *plan = NULL;
  int n_wrong = 0;

  need(xfer_plan_create(&plan, comm, tensors, 2, NULL), "plan");
  need(xfer_plan_bind(plan, 0, &source_view, &weights_view), "bind");
  need(xfer_plan_bind(plan, 1, NULL, &scale_view), "bind");
  need(xfer_plan_commit(plan), "commit");
  for (int step = 1; step <= N_STEPS; step++) {
    if (rank < N_TRAIN) train(source, rank, step);
    need(xfer_plan_run(plan, (uint64_t)step, NULL), "run");
    need(xfer_plan_wait(plan, 0), "wait");
    if (rank >= N_TRAIN) n_wrong += count_wrong(weights, scale, rank, step);
  }
  if (rank >= N_TRAIN)
    printf("rank %d: scales from %g to %g, %d wrong\n", rank, (double)scale[5], (double)scale[0],
           n_wrong);
  xfer_plan_destroy(plan);
  xfer_comm_destroy(comm);
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
  need(xfer_layout_parse(&trained, "bf16[256,384] (2)@0-1:S0"), "trained");
  need(xfer_layout_parse(&served, "f8e4m3[256,384] (2)@2-3:S1"), "served");
  need(xfer_layout_parse(&scales, "f32[2,3] (2)@2-3:R"), "scales");
  need(xfer_comm_create_local(comms, N_RANKS), "comm");
  for (int r = 0; r < N_RANKS; r++)
    if (pthread_create(&threads[r], NULL, run_rank, comms[r]) != 0) return 1;
  for (int r = 0; r < N_RANKS; r++) {
    void *wrong = NULL;

    pthread_join(threads[r], &wrong);
    failed += wrong != NULL;
  }
  xfer_layout_destroy(trained);
  xfer_layout_destroy(served);
  xfer_layout_destroy(scales);
  printf(failed == 0 ? "ok\n" : "FAILED\n");
  return failed == 0 ? 0 : 1;
}
