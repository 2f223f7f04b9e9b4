/*
 * Rank orders: the groups of both grids of 35 Megatron configurations, as Megatron-LM's
 * RankGenerator makes them (tests/unit_tests/test_parallel_state.py); vLLM's stages and expert
 * maps.
 *
 * Groups are compared by the first 16 digits of the SHA-256 of their compact JSON, keys sorted,
 * groups in the order of their remaining coordinates.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <xfer/refit.h>

#include "../../tools/common/as_loaded.h"
#include "refit_files.h"

/* ---- SHA-256 (FIPS 180-4) ---- */

static uint32_t rotate(uint32_t x, int n)
{
  return x >> n | x << (32 - n);
}

static void sha_block(uint32_t *h, const unsigned char *p)
{
  static const uint32_t k[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
      0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
      0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
      0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
      0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
      0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
      0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
      0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
      0xc67178f2};
  uint32_t w[64], v[8];

  for (int i = 0; i < 16; i++)
    w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 |
           p[4 * i + 3];
  for (int i = 16; i < 64; i++) {
    const uint32_t a = w[i - 15], b = w[i - 2];

    w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
           (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
  }
  memcpy(v, h, sizeof v);
  for (int i = 0; i < 64; i++) {
    const uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
    const uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
    const uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
    const uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));

    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += t1;
    v[0] = t1 + t2;
  }
  for (int i = 0; i < 8; i++)
    h[i] += v[i];
}

static void sha_hex16(char *hex, const char *text, size_t n)
{
  uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const size_t padded = (n + 8) / 64 * 64 + 64;
  unsigned char *p = calloc(padded, 1);

  if (p == NULL) abort();
  memcpy(p, text, n);
  p[n] = 0x80;
  for (int i = 0; i < 8; i++)
    p[padded - 1 - (size_t)i] = (unsigned char)((uint64_t)n * 8 >> 8 * i);
  for (size_t at = 0; at < padded; at += 64)
    sha_block(h, p + at);
  snprintf(hex, 17, "%08x%08x", (unsigned)h[0], (unsigned)h[1]);
  free(p);
}

/* ---- groups ---- */

/* For each kind of group the axes that stay, slowest first. */
static const struct {
  const char *name;
  const char *stay[4];
} KINDS[] = {
    {"cp", {"pp", "dp", "tp"}},   {"dp", {"pp", "cp", "tp"}},   {"dp-cp", {"pp", "tp"}},
    {"edp", {"pp", "ep", "etp"}}, {"ep", {"pp", "edp", "etp"}}, {"etp", {"pp", "edp", "ep"}},
    {"pp", {"dp", "cp", "tp"}},   {"tp", {"pp", "dp", "cp"}},   {"tp-pp", {"dp", "cp"}},
};

typedef struct member {
  uint64_t key;
  int rank;
} member;

static int compare_members(const void *a, const void *b)
{
  const member *x = a, *y = b;

  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

static size_t print_kind(char *text, const xfer_side *side, size_t kind, member *members)
{
  const int n = xfer_side_size(side);
  size_t at = (size_t)sprintf(text, "%s\"%s\":[", kind > 0 ? "," : "{", KINDS[kind].name);

  for (int r = 0; r < n; r++) {
    members[r] = (member){0, r};
    for (int k = 0; k < 4 && KINDS[kind].stay[k] != NULL; k++) {
      int coordinate = 0;

      assert_int_equal(xfer_side_coordinate(side, KINDS[kind].stay[k], r, &coordinate), XFER_OK);
      members[r].key = members[r].key << 16 | (uint64_t)coordinate;
    }
  }
  qsort(members, (size_t)n, sizeof *members, compare_members);
  for (int r = 0; r < n; r++) {
    const bool first = r == 0 || members[r].key != members[r - 1].key;

    at += (size_t)sprintf(text + at, "%s%s%d", first && r > 0 ? "]," : "", first ? "[" : ",",
                          members[r].rank);
  }
  return at + (size_t)sprintf(text + at, "]]");
}

static void test_groups_of_megatron_are_its_own(void **state)
{
  static const struct {
    const char *spec, *hash;
  } cases[] = {
      {"megatron:tp1,cp1,dp1,pp1,ep1,etp1", "19e52b4f0bc78911"},
      {"megatron:tp8,cp1,dp1,pp1,ep1,etp8", "822681ee62e236ec"},
      {"megatron:tp2,cp1,dp2,pp2,ep1,etp2", "5c4d1a8caf509c6b"},
      {"megatron:tp2,cp1,dp1,pp4,ep1,etp2", "252040aa0c0cbe7e"},
      {"megatron:tp8,cp1,dp1,pp3,ep1,etp8", "2318bfa2fc938412"},
      {"megatron:tp2,cp1,dp4,pp4,ep1,etp2", "6ce013717ed8af3f"},
      {"megatron:tp8,cp1,dp1,pp8,ep1,etp8", "7c4d9e06e80e89fd"},
      {"megatron:tp2,cp1,dp32,pp1,ep4,etp2", "67f1bd906eee4d27"},
      {"megatron:tp2,cp2,dp8,pp2,ep4,etp2", "287dfb09ba11222b"},
      {"megatron:tp2,cp4,dp8,pp1,ep8,etp2", "aa1c2bc3e84e9643"},
      {"megatron:tp2,cp2,dp8,pp2,ep8,etp2", "1d214252b1b8d60d"},
      {"megatron:tp4,cp1,dp4,pp8,ep1,etp4", "a318d928fbbfb82f"},
      {"megatron:tp4,cp1,dp4,pp8,ep4,etp4", "beb2338d38147bba"},
      {"megatron:tp4,cp4,dp1,pp8,ep1,etp4", "e528173e4159c227"},
      {"megatron:tp8,cp1,dp2,pp8,ep1,etp8", "fe3faa42114e0576"},
      {"megatron:tp4,cp1,dp4,pp8,ep1,etp4", "a318d928fbbfb82f"},
      {"megatron:tp8,cp1,dp2,pp8,ep1,etp8", "fe3faa42114e0576"},
      {"megatron:tp4,cp1,dp8,pp8,ep1,etp4", "57c053af9ac544e8"},
      {"megatron:tp8,cp1,dp4,pp8,ep1,etp8", "51a130cb82562ddd"},
      {"megatron:tp4,cp1,dp8,pp8,ep4,etp4", "081a4aad04ce5065"},
      {"megatron:tp8,cp4,dp1,pp8,ep1,etp8", "aa9e0c4817c7f41a"},
      {"megatron:tp4,cp8,dp8,pp2,ep8,etp4", "f42f27d208723ef2"},
      {"megatron:tp4,cp1,dp16,pp8,ep1,etp4", "436c260ac3e7e34f"},
      {"megatron:tp8,cp1,dp8,pp8,ep1,etp8", "28d24cd20bf43217"},
      {"megatron:tp4,cp1,dp24,pp8,ep1,etp4", "f4ebc905234c7564"},
      {"megatron:tp4,cp8,dp16,pp2,ep8,etp4", "90ee9a49c8385ed2"},
      {"megatron:tp4,cp1,dp32,pp8,ep1,etp4", "dc212e98d3e18193"},
      {"megatron:tp4,cp1,dp64,pp8,ep1,etp4", "f418eb1adcc93b33"},
      {"megatron:tp4,cp1,dp79,pp8,ep1,etp4", "ff5452a68276ed3e"},
      {"megatron:tp4,cp1,dp96,pp8,ep1,etp4", "a6bac0236bd260bd"},
      {"megatron:tp4,cp1,dp128,pp8,ep1,etp4", "26cb8081f2af0b8b"},
      {"megatron:tp4,cp1,dp192,pp8,ep1,etp4", "77d427d7d926e2e5"},
      {"megatron:tp4,cp1,dp256,pp8,ep1,etp4", "59903431b22fa8e5"},
      {"megatron:tp4,cp1,dp320,pp8,ep1,etp4", "9b717d009dd6ca75"},
      {"megatron:tp4,cp1,dp336,pp8,ep1,etp4", "546e164c8d6a8e82"},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    xfer_side *side = NULL;
    char hex[17];
    size_t at = 0;

    print_message("%s\n", cases[i].spec);
    assert_int_equal(xfer_side_create(&side, cases[i].spec, NULL), XFER_OK);
    char *text = malloc((size_t)xfer_side_size(side) * 9 * 10 + 1024);
    member *members = calloc((size_t)xfer_side_size(side), sizeof *members);
    assert_true(text != NULL && members != NULL);
    for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS; k++)
      at += print_kind(text + at, side, k, members);
    text[at++] = '}';
    sha_hex16(hex, text, at);
    assert_string_equal(hex, cases[i].hash);
    free(members);
    free(text);
    xfer_side_destroy(side);
  }
}

/* ---- stages and expert maps of vLLM ---- */

/* A side alone, over a model of `n_layers` norms or of one layer of `n_experts` experts. */
static xfer_refit *join_gen(const char *spec, int n_layers, int n_experts)
{
  char table[1024];
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  xfer_model *model = NULL;
  xfer_side *side = NULL;
  xfer_refit *refit = NULL;

  if (n_experts == 0) {
    snprintf(
        table, sizeof table,
        REFIT_TABLE("",
                    "{\"pattern\":\"model.layers.{layer}.input_layernorm.weight\",\"layer\":[0,%d],"
                    "\"shape\":[8],\"dtype\":\"bf16\"}"),
        n_layers - 1);
  } else {
    snprintf(table, sizeof table,
             REFIT_TABLE("", "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.up_proj."
                             "weight\",\"layer\":[0,"
                             "0],\"expert\":[0,%d],\"shape\":[8,8],\"dtype\":\"bf16\"}"),
             n_experts - 1);
  }
  take_as_loaded(&options, spec);
  assert_int_equal(xfer_model_load(&model, refit_write("table.json", table), NULL), XFER_OK);
  assert_int_equal(xfer_side_create(&side, spec, &options), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, NULL, side), XFER_OK);
  xfer_side_destroy(side);
  xfer_model_destroy(model);
  return refit;
}

static void test_stages_of_vllm_share_layers_as_it_does(void **state)
{
  static const struct {
    int n_layers, pp, counts[8];
  } cases[] = {{61, 4, {15, 15, 16, 15}},         {94, 4, {23, 24, 24, 23}}, {36, 4, {9, 9, 9, 9}},
               {52, 8, {6, 6, 6, 7, 7, 7, 7, 6}}, {7, 3, {2, 3, 2}},         {5, 1, {5}}};

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char spec[32];

    snprintf(spec, sizeof spec, "vllm:pp%d", cases[i].pp);
    xfer_refit *refit = join_gen(spec, cases[i].n_layers, 0);
    for (int stage = 0; stage < cases[i].pp; stage++) {
      xfer_locals *locals = NULL;

      assert_int_equal(xfer_locals_create(&locals, refit, stage), XFER_OK);
      assert_int_equal(xfer_locals_count(locals), cases[i].counts[stage]);
      xfer_locals_destroy(locals);
    }
    xfer_refit_destroy(refit);
  }
}

static void test_linear_expert_map_gives_the_first_ranks_one_more(void **state)
{
  static const struct {
    int n_experts, ep, first[8], count[8];
  } cases[] = {
      {128, 8, {0, 16, 32, 48, 64, 80, 96, 112}, {16, 16, 16, 16, 16, 16, 16, 16}},
      {10, 4, {0, 3, 6, 8}, {3, 3, 2, 2}},
      {130, 8, {0, 17, 34, 50, 66, 82, 98, 114}, {17, 17, 16, 16, 16, 16, 16, 16}},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char spec[32];

    snprintf(spec, sizeof spec, "vllm:tp%d,ep%d", cases[i].ep, cases[i].ep);
    xfer_refit *refit = join_gen(spec, 1, cases[i].n_experts);
    const xfer_tensor *t = xfer_refit_tensors(refit, NULL);
    for (int r = 0; r < cases[i].ep; r++) {
      xfer_run run;
      size_t n = 0;

      assert_int_equal(xfer_layout_runs(t->dst, r, 0, &run, 1, &n), XFER_OK);
      assert_true(n == 1 && run.global == cases[i].first[r] && run.length == cases[i].count[r]);
    }
    xfer_refit_destroy(refit);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_groups_of_megatron_are_its_own),
      cmocka_unit_test(test_stages_of_vllm_share_layers_as_it_does),
      cmocka_unit_test(test_linear_expert_map_gives_the_first_ranks_one_more),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
