/*
 * Bytes -> two SPECs and a model table -> a join -> the plan and the local tensors of a few ranks.
 * Nothing may crash, leak or hang, and what joins must plan, since the join refuses what a
 * framework cannot hold.
 *
 * The first line is the training SPEC, the second the generation SPEC, the rest the table.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xfer/refit.h>

#include "../../tools/common/as_loaded.h"
#include "folder.h"

enum { MAX_RANKS = 64, MAX_SPEC = 128 };

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

/* The table as a file, which is what the reader takes. */
static const char *write_table(const unsigned char *data, size_t size)
{
  static char path[64];
  int file;

  if (path[0] == '\0') snprintf(path, sizeof path, "%s/table.json", fuzz_folder());
  file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
  if (file < 0 || write(file, data, size) != (ssize_t)size) abort();
  close(file);
  return path;
}

static const unsigned char *take_line(char *line, const unsigned char *data, size_t *size)
{
  const unsigned char *end = memchr(data, '\n', *size);
  size_t n = end == NULL ? *size : (size_t)(end - data);

  snprintf(line, MAX_SPEC, "%.*s", (int)(n < MAX_SPEC ? n : MAX_SPEC - 1), (const char *)data);
  n += end != NULL;
  *size -= n;
  return data + n;
}

static void list_locals(const xfer_refit *refit, int rank)
{
  xfer_locals *locals = NULL;
  xfer_local local;
  xfer_local_part part;

  if (xfer_locals_create(&locals, refit, rank) != XFER_OK) return;
  for (size_t i = 0; i < xfer_locals_count(locals); i++) {
    if (xfer_locals_get(locals, i, &local) != XFER_OK) abort();
    for (int k = 0; k < local.n_parts; k++)
      if (xfer_locals_part_get(locals, i, (size_t)k, &part) != XFER_OK) abort();
  }
  xfer_locals_destroy(locals);
}

static void plan(const xfer_refit *refit, int rank)
{
  size_t n = 0;
  const xfer_tensor *tensors = xfer_refit_tensors(refit, &n);
  xfer_plan *made = NULL;

  if (xfer_plan_simulate(&made, xfer_refit_ranks(refit), rank, tensors, n, NULL) != XFER_OK) {
    if (strstr(xfer_last_error(), "63 bits") == NULL) {
      fprintf(stderr, "joined, but: %s\n", xfer_last_error());
      abort();
    }
  }
  xfer_plan_destroy(made);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
  char train_spec[MAX_SPEC], gen_spec[MAX_SPEC];
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  xfer_model *model = NULL;
  xfer_side *train = NULL, *gen = NULL;
  xfer_refit *refit = NULL;
  bool ok;

  data = take_line(train_spec, data, &size);
  data = take_line(gen_spec, data, &size);
  if (strstr(gen_spec, "map=") != NULL || strstr(train_spec, "map=") != NULL)
    return 0; /* reads files */
  take_as_loaded(&options, gen_spec);
  ok = xfer_model_load(&model, write_table(data, size), NULL) == XFER_OK;
  ok = ok && xfer_side_create(&train, train_spec, NULL) == XFER_OK &&
       xfer_side_size(train) <= MAX_RANKS;
  if (ok) options.first_rank = xfer_side_size(train);
  ok = ok && xfer_side_create(&gen, gen_spec, &options) == XFER_OK &&
       xfer_side_size(gen) <= MAX_RANKS;
  ok = ok && xfer_refit_create(&refit, model, train, gen) == XFER_OK;
  for (int rank = 0; ok && rank < xfer_refit_ranks(refit); rank += 3) {
    plan(refit, rank);
    list_locals(refit, rank);
  }
  xfer_refit_destroy(refit);
  xfer_side_destroy(gen);
  xfer_side_destroy(train);
  xfer_model_destroy(model);
  return 0;
}
