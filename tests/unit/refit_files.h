/* Small model tables and checkpoints in a folder of the test's own. */
#ifndef REFIT_FILES_H
#define REFIT_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char refit_folder[] = "/tmp/xfer-refit-XXXXXX";

static inline const char *refit_path(const char *name)
{
  static char paths[8][256];
  static int n;
  char *path = paths[n++ % 8];

  snprintf(path, sizeof paths[0], "%s/%s", refit_folder, name);
  return path;
}

/* Writes a file and returns its path, which stays valid for a few calls. */
static inline const char *refit_write(const char *name, const char *text)
{
  const char *path = refit_path(name);
  FILE *file = fopen(path, "wb");

  if (file == NULL || fwrite(text, 1, strlen(text), file) != strlen(text) || fclose(file) != 0)
    abort();
  return path;
}

/* A safetensors file that is all header. */
static inline void refit_write_header(const char *name, const char *header)
{
  FILE *file = fopen(refit_path(name), "wb");
  const uint64_t n = strlen(header);

  if (file == NULL) abort();
  for (int i = 0; i < 8; i++)
    fputc((int)(n >> 8 * i & 255), file);
  fputs(header, file);
  if (fclose(file) != 0) abort();
}

static inline int refit_files_begin(void **state)
{
  (void)state;
  return mkdtemp(refit_folder) == NULL;
}

static inline int refit_files_end(void **state)
{
  char command[512];

  (void)state;
  snprintf(command, sizeof command, "rm -rf %s", refit_folder);
  return system(command) != 0;
}

#define REFIT_TABLE(config, params)                                                                \
  "{\"format\":\"xfer-model-v1\",\"config\":{" config "},\"params\":[" params "]}"

/* A layer of attention and a dense MLP, two layers, 4 heads, 2 of keys and values. */
#define REFIT_DENSE_CONFIG                                                                         \
  "\"vocab_size\":100,\"hidden_size\":16,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_" \
  "key_value_heads\":2,"                                                                           \
  "\"head_dim\":4"
#define REFIT_P(pattern, shape)                                                                    \
  "{\"pattern\":\"model.layers.{layer}." pattern "\",\"layer\":[0,1],\"shape\":" shape             \
  ",\"dtype\":\"bf16\"}"
#define REFIT_N(name, shape) "{\"name\":\"" name "\",\"shape\":" shape ",\"dtype\":\"bf16\"}"
#define REFIT_ATTENTION                                                                            \
  REFIT_P("self_attn.q_proj.weight", "[16,16]")                                                    \
  "," REFIT_P("self_attn.k_proj.weight", "[8,16]") "," REFIT_P(                                    \
      "self_attn.v_proj.weight", "[8,16]") "," REFIT_P("self_attn.o_proj.weight", "[16,16]")
#define REFIT_MLP                                                                                  \
  REFIT_P("mlp.gate_proj.weight", "[32,16]")                                                       \
  "," REFIT_P("mlp.up_proj.weight", "[32,16]") "," REFIT_P("mlp.down_proj.weight", "[16,32]")
#define REFIT_ENDS                                                                                 \
  REFIT_N("model.embed_tokens.weight", "[100,16]")                                                 \
  "," REFIT_N("model.norm.weight", "[16]") "," REFIT_N("lm_head.weight", "[100,16]")
#define REFIT_DENSE_PARAMS REFIT_ENDS "," REFIT_ATTENTION "," REFIT_MLP
#define REFIT_DENSE REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_DENSE_PARAMS)

#endif
