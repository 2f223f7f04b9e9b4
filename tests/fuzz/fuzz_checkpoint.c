/*
 * libFuzzer: bytes to the files of a checkpoint's folder, or to an expert map. Nothing may crash,
 * leak or hang; what is refused is refused with a text.
 *
 * Parts stand between bytes 0xff: config.json, the header of one safetensors file, that of another,
 * the index (empty: there is none), an expert map.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xfer/refit.h>

#include "folder.h"

enum { N_PARTS = 5, END = 0xff };
static const char *const names[N_PARTS] = {"config.json", "a.safetensors", "b.safetensors",
                                           "model.safetensors.index.json", "map.json"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void in_folder(char *path, size_t size, const char *name)
{
  (void)snprintf(path, size, "%s/%s", fuzz_folder(), name);
}

/* A safetensors file begins with the length of its header. */
static void write_part(int part, const uint8_t *data, size_t size)
{
  const uint64_t length = size;
  const bool has_length = part == 1 || part == 2;
  char path[128];
  int file;

  in_folder(path, sizeof path, names[part]);
  if (size == 0 && part > 0) {
    (void)unlink(path);
    return;
  }
  file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
  if (file < 0) abort();
  if (has_length && write(file, &length, sizeof length) != (ssize_t)sizeof length) abort();
  if (write(file, data, size) != (ssize_t)size) abort();
  (void)close(file);
}

static void need_text(xfer_status st)
{
  if (st != XFER_OK && (st == XFER_ERR_INTERNAL || xfer_last_error()[0] == '\0')) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  xfer_model *model = NULL;
  xfer_side *side = NULL;
  char spec[128];
  size_t n = 0;

  for (int part = 0; part < N_PARTS; part++) {
    const uint8_t *end = size == 0 ? NULL : memchr(data, END, size);

    n = end == NULL ? size : (size_t)(end - data);
    write_part(part, data, n);
    size -= n + (end != NULL);
    data += n + (end != NULL);
  }
  need_text(xfer_model_load(&model, fuzz_folder(), NULL));
  (void)snprintf(spec, sizeof spec, "vllm:tp2,ep2,map=%s/%s", fuzz_folder(), names[N_PARTS - 1]);
  if (n > 0) need_text(xfer_side_create(&side, spec, NULL));
  xfer_model_destroy(model);
  xfer_side_destroy(side);
  return 0;
}
