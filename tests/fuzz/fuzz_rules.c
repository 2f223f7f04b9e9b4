/*
 * Bytes -> a file of rules -> if it is read, a model and two sides by these rules, joined, and
 * local tensors given by name. Nothing may crash, leak or hang, and what is refused is refused with
 * a sentence.
 *
 * The first line is the generation SPEC, the rest the file.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xfer/refit.h>

#include "../../tools/common/as_loaded.h"
#include "folder.h"

enum { MAX_SPEC = 128, MAX_RANKS = 64 };

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static const char TABLE[] =
    "{\"format\":\"xfer-model-v1\",\"config\":{\"model_type\":\"llama\",\"vocab_size\":100,"
    "\"hidden_size\":16,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":4},\"params\":["
    "{\"name\":\"model.embed_tokens.weight\",\"shape\":[100,16],\"dtype\":\"bf16\"},"
    "{\"pattern\":\"model.layers.{layer}.self_attn.q_proj.weight\",\"layer\":[0,1],\"shape\":[16,"
    "16],\"dtype\":\"bf16\"},"
    "{\"pattern\":\"model.layers.{layer}.self_attn.k_proj.weight\",\"layer\":[0,1],\"shape\":[8,16]"
    ",\"dtype\":\"bf16\"},"
    "{\"pattern\":\"model.layers.{layer}.self_attn.v_proj.weight\",\"layer\":[0,1],\"shape\":[8,16]"
    ",\"dtype\":\"bf16\"},"
    "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight\",\"layer\":[0,1],"
    "\"expert\":[0,3],\"shape\":[8,16],\"dtype\":\"bf16\"}]}";

static char rules_path[128], table_path[128];

static void write_file(const char *path, const void *bytes, size_t n)
{
  int file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);

  if (file < 0 || write(file, bytes, n) != (ssize_t)n) abort();
  close(file);
}

static void begin(void)
{
  if (table_path[0] != '\0') return;
  snprintf(rules_path, sizeof rules_path, "%s/rules.json", fuzz_folder());
  snprintf(table_path, sizeof table_path, "%s/table", fuzz_folder()); /* not one of the rules */
  write_file(table_path, TABLE, sizeof TABLE - 1);
}

/* The first few as they are called, and otherwise, so that spellings are tried. */
static void give(xfer_locals *locals)
{
  static char memory[1];
  char name[256];
  xfer_local local;

  for (size_t i = 0; i < xfer_locals_count(locals) && i < 4; i++) {
    if (xfer_locals_get(locals, i, &local) != XFER_OK) abort();
    for (int other = 0; other < 2; other++) {
      (void)snprintf(name, sizeof name, "%s%.200s", other ? "module." : "", local.name);
      if (xfer_locals_give(locals, XFER_REFIT_GEN, name, (xfer_dtype)local.dtype, memory,
                           local.shape, NULL, local.n_dims) != XFER_OK &&
          strlen(xfer_last_error()) == 0)
        abort();
    }
  }
}

static void join(const xfer_rules *rules, const char *spec)
{
  xfer_model_options model_options = XFER_MODEL_OPTIONS_INIT;
  xfer_side_options train_options = XFER_SIDE_OPTIONS_INIT, gen_options = XFER_SIDE_OPTIONS_INIT;
  xfer_model *model = NULL;
  xfer_side *train = NULL, *gen = NULL;
  xfer_refit *refit = NULL;
  xfer_locals *locals = NULL;

  model_options.rules = train_options.rules = gen_options.rules = rules;
  take_as_loaded(&gen_options, spec);
  if (xfer_model_load(&model, table_path, &model_options) == XFER_OK &&
      xfer_side_create(&train, "full", &train_options) == XFER_OK &&
      xfer_side_create(&gen, spec, &gen_options) == XFER_OK && xfer_side_size(gen) <= MAX_RANKS &&
      xfer_refit_create(&refit, model, train, gen) == XFER_OK) {
    for (int rank = 0; rank < xfer_refit_ranks(refit); rank += 3) {
      if (xfer_locals_create(&locals, refit, rank) != XFER_OK) continue;
      give(locals);
      xfer_locals_destroy(locals);
    }
  }
  xfer_refit_destroy(refit);
  xfer_side_destroy(gen);
  xfer_side_destroy(train);
  xfer_model_destroy(model);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
  const unsigned char *end = memchr(data, '\n', size);
  size_t n = end == NULL ? 0 : (size_t)(end - data);
  char spec[MAX_SPEC];
  xfer_rules *rules = NULL;

  begin();
  if (end == NULL || n >= MAX_SPEC) return 0;
  snprintf(spec, sizeof spec, "%.*s", (int)n, (const char *)data);
  if (strstr(spec, "map=") != NULL) return 0; /* reads files */
  write_file(rules_path, end + 1, size - n - 1);
  if (xfer_rules_load(&rules, fuzz_folder()) == XFER_OK) {
    join(rules, spec);
  } else if (strlen(xfer_last_error()) == 0 || rules != NULL) {
    abort();
  }
  xfer_rules_destroy(rules);
  return 0;
}
