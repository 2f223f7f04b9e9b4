/* Shapes from models/qwen3-4b.json and models/qwen3-30b-a3b.json. */
#include "m2n_workloads.h"

#include <stdio.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* 1 GiB, and 16 MiB. */
static const bench_tensor ROWS_TO_ROWS[] = {{2, {16384, 32768}, {0, 0}}};
static const bench_tensor ROWS_TO_COLUMNS[] = {{2, {16384, 32768}, {0, 1}}};
static const bench_tensor COLUMNS_TO_ROWS[] = {{2, {16384, 32768}, {1, 0}}};
static const bench_tensor WHOLE_TO_ROWS[] = {{2, {16384, 32768}, {WHOLE, 0}}};
static const bench_tensor ROWS_TO_WHOLE[] = {{2, {16384, 32768}, {0, WHOLE}}};
static const bench_tensor SMALLER[] = {{2, {2048, 4096}, {0, 1}}};

static const bench_tensor OF_64_KB[] = {{2, {128, 256}, {0, 1}}};
static const bench_tensor OF_10_KB[] = {{2, {80, 64}, {0, 1}}};
static const bench_tensor OF_4_KB[] = {{2, {32, 64}, {0, 1}}};

/* Tensor parallelism on both sides: q, k, v, o; gate, up, down; norms. */
static const bench_tensor DENSE_ENDS[] = {{2, {151936, 2560}, {0, 0}}, {1, {2560}, {WHOLE, WHOLE}}};
static const bench_tensor DENSE_LAYER[] = {
    {2, {4096, 2560}, {0, 0}},  {2, {1024, 2560}, {0, 0}},   {2, {1024, 2560}, {0, 0}},
    {2, {2560, 4096}, {1, 1}},  {2, {9728, 2560}, {0, 0}},   {2, {9728, 2560}, {0, 0}},
    {2, {2560, 9728}, {1, 1}},  {1, {2560}, {WHOLE, WHOLE}}, {1, {2560}, {WHOLE, WHOLE}},
    {1, {128}, {WHOLE, WHOLE}}, {1, {128}, {WHOLE, WHOLE}},
};

/* The same from a trainer that has dim 0 of each tensor sharded, as FSDP has. */
static const bench_tensor FSDP_ENDS[] = {{2, {151936, 2560}, {0, 0}}, {1, {2560}, {0, WHOLE}}};
static const bench_tensor FSDP_LAYER[] = {
    {2, {4096, 2560}, {0, 0}}, {2, {1024, 2560}, {0, 0}}, {2, {1024, 2560}, {0, 0}},
    {2, {2560, 4096}, {0, 1}}, {2, {9728, 2560}, {0, 0}}, {2, {9728, 2560}, {0, 0}},
    {2, {2560, 9728}, {0, 1}}, {1, {2560}, {0, WHOLE}},   {1, {2560}, {0, WHOLE}},
    {1, {128}, {0, WHOLE}},    {1, {128}, {0, WHOLE}},
};

/* Experts in grouped tensors, from expert to tensor parallelism: gate, up, down, router. */
static const bench_tensor EXPERTS_ENDS[] = {
    {2, {151936, 2048}, {0, 0}}, {2, {151936, 2048}, {0, 0}}, {1, {2048}, {WHOLE, WHOLE}}};
static const bench_tensor EXPERTS_LAYER[] = {
    {2, {4096, 2048}, {0, 0}},     {2, {512, 2048}, {0, 0}},         {2, {512, 2048}, {0, 0}},
    {2, {2048, 4096}, {1, 1}},     {3, {128, 768, 2048}, {0, 1}},    {3, {128, 768, 2048}, {0, 1}},
    {3, {128, 2048, 768}, {0, 2}}, {2, {128, 2048}, {WHOLE, WHOLE}}, {1, {2048}, {WHOLE, WHOLE}},
    {1, {2048}, {WHOLE, WHOLE}},   {1, {128}, {WHOLE, WHOLE}},       {1, {128}, {WHOLE, WHOLE}},
};

#define ONCE(tensors) .once = (tensors), .n_once = COUNT(tensors)
#define REPEATED(tensors, n) .repeated = (tensors), .n_repeated = COUNT(tensors), .times = (n)

static const bench_workload workloads[] = {
    {.name = "1 GiB", .per_side = 1, ONCE(ROWS_TO_ROWS)},
    {.name = "1 GiB, S0 -> S0", .per_side = 2, ONCE(ROWS_TO_ROWS)},
    {.name = "1 GiB, S0 -> S1", .per_side = 2, ONCE(ROWS_TO_COLUMNS)},
    {.name = "1 GiB, S1 -> S0", .per_side = 2, ONCE(COLUMNS_TO_ROWS)},
    {.name = "1 GiB, R -> S0", .per_side = 2, ONCE(WHOLE_TO_ROWS)},
    {.name = "1 GiB, S0 -> R", .per_side = 2, ONCE(ROWS_TO_WHOLE)},
    {.name = "16 MiB, S0 -> S1", ONCE(SMALLER)},
    {.name = "100 x 10 KB, S0 -> S1", REPEATED(OF_10_KB, 100)},
    {.name = "1,000 x 64 KB, S0 -> S1", REPEATED(OF_64_KB, 1000)},
    {.name = "Qwen3-4B, TP -> TP", ONCE(DENSE_ENDS), REPEATED(DENSE_LAYER, 36)},
    {.name = "Qwen3-4B, rows -> TP", .per_side = 2, ONCE(FSDP_ENDS), REPEATED(FSDP_LAYER, 36)},
    {.name = "Qwen3-4B, fused",
     .per_side = 1,
     .model = "qwen3-4b",
     .train = "megatron:tp1",
     .gen = "vllm:tp1"},
    {.name = "Qwen3-4B, fused",
     .per_side = 2,
     .model = "qwen3-4b",
     .train = "megatron:tp2",
     .gen = "vllm:tp2"},
    {.name = "Qwen3-30B-A3B, EP -> TP", ONCE(EXPERTS_ENDS), REPEATED(EXPERTS_LAYER, 48)},
    {.name = "Qwen3-30B-A3B, fused",
     .per_side = 1,
     .model = "qwen3-30b-a3b",
     .train = "megatron:experts=stacked",
     .gen = "vllm:tp1"},
    {.name = "Qwen3-30B-A3B, fused",
     .per_side = 2,
     .model = "qwen3-30b-a3b",
     .train = "megatron:tp2,ep2,experts=stacked",
     .gen = "vllm:tp2"},
    {.name = "10,000 x 4 KB, S0 -> S1", REPEATED(OF_4_KB, 10000)},
};

const bench_workload *bench_workload_get(int i)
{
  return i < COUNT(workloads) ? &workloads[i] : NULL;
}

int bench_workload_tensors(const bench_workload *w)
{
  return w->n_once + w->n_repeated * w->times;
}

const bench_tensor *bench_workload_tensor(const bench_workload *w, int i)
{
  return i < w->n_once ? &w->once[i] : &w->repeated[(i - w->n_once) % w->n_repeated];
}

void bench_tensor_line(const bench_tensor *t, int per_side, char *text, size_t size)
{
  char shape[64];
  char placements[2][8];
  int n = 0;

  for (int d = 0; d < t->n_dims; d++)
    n += snprintf(shape + n, sizeof shape - (size_t)n, d > 0 ? ",%lld" : "%lld",
                  (long long)t->shape[d]);
  for (int side = 0; side < 2; side++) {
    const int dim = per_side > 1 ? t->sharded[side] : WHOLE;

    (void)snprintf(placements[side], sizeof placements[side], dim == WHOLE ? "R" : "S%d", dim);
  }
  (void)snprintf(text, size, "bf16[%s] (%d)@0-%d:%s -> (%d)@%d-%d:%s", shape, per_side,
                 per_side - 1, placements[0], per_side, per_side, 2 * per_side - 1, placements[1]);
}
