#include "job.h"

#include <stdlib.h>
#include <string.h>

#include "args.h"

enum { MAX_NUMBER = 1 << 20, MAX_PATTERN = 512, MAX_RENAMES = 32 };

/* "3" or "3-5", as [begin, end). */
static bool parse_range(const char *text, int32_t *begin, int32_t *end)
{
  char *stop = NULL;
  long first, last;

  if (text == NULL) return true;
  if (*text < '0' || *text > '9') return false;
  first = last = strtol(text, &stop, 10);
  if (*stop == '-') {
    if (stop[1] < '0' || stop[1] > '9') return false;
    last = strtol(stop + 1, &stop, 10);
  }
  if (*stop != '\0' || last < first || last > MAX_NUMBER) return false;
  *begin = (int32_t)first;
  *end = (int32_t)last + 1;
  return true;
}

/* "FROM=TO,FROM=TO" as pairs of pointers into `text`, which it changes; their number, -1: a "=" is
 * missing. */
static int64_t split_renames(char *text, const char **pairs)
{
  int64_t n = 0;

  for (char *at = strtok(text, ","); at != NULL && n < MAX_RENAMES; at = strtok(NULL, ",")) {
    char *to = strchr(at, '=');

    if (to == NULL) return -1;
    *to = '\0';
    pairs[2 * n] = at;
    pairs[2 * n + 1] = to + 1;
    n++;
  }
  return n;
}

static int parse_options(xfer_model_options *options, const job_args *args)
{
  if (!parse_range(args->layers, &options->layers_begin, &options->layers_end))
    return args_wrong("--layers %s: want A-B", args->layers);
  if (!parse_range(args->experts, &options->experts_begin, &options->experts_end))
    return args_wrong("--experts %s: want A-B", args->experts);
  options->ends = args->ends;
  options->extra = args->extra;
  if (args->quant == NULL) return 0;
  if (strcmp(args->quant, "fp8_block128") != 0)
    return args_wrong("--quant %s: there is only fp8_block128", args->quant);
  options->quant = XFER_QUANT_FP8_BLOCK128;
  return 0;
}

typedef xfer_status (*say_fn)(job *made, const char *pattern);

static xfer_status say_ignore(job *made, const char *pattern)
{
  const xfer_status st = xfer_side_ignore(made->train, pattern);

  return st == XFER_OK ? xfer_side_ignore(made->gen, pattern) : st;
}

static xfer_status say_whole(job *made, const char *said)
{
  char pattern[MAX_PATTERN];
  const char *at = strrchr(said, '@');
  const size_t n = at == NULL ? strlen(said) : (size_t)(at - said);

  memcpy(pattern, said, n);
  pattern[n] = '\0';
  return xfer_side_give_whole(made->train, pattern, at == NULL ? 0 : (int)strtol(at + 1, NULL, 10));
}

/* Says each pattern of a list with commas. */
static xfer_status say_each(job *made, const char *list, say_fn say)
{
  char pattern[MAX_PATTERN];
  xfer_status st = XFER_OK;

  while (list != NULL && *list != '\0' && st == XFER_OK) {
    size_t n = strcspn(list, ",");

    if (n >= sizeof pattern) n = sizeof pattern - 1;
    memcpy(pattern, list, n);
    pattern[n] = '\0';
    st = say(made, pattern);
    list += n;
    list += *list == ',';
  }
  return st;
}

xfer_status job_join(job *out, const job_args *args, xfer_model *model)
{
  xfer_side_options train = XFER_SIDE_OPTIONS_INIT;
  xfer_side_options gen = XFER_SIDE_OPTIONS_INIT;
  job made = {NULL, NULL, NULL, NULL};
  xfer_status st;

  train.weights = gen.weights = XFER_WEIGHTS_LOADED; /* what a tool's "vllm:" means */
  st = xfer_side_create(&made.train, args->train, &train);
  if (st == XFER_OK) {
    gen.first_rank = xfer_side_size(made.train);
    st = xfer_side_create(&made.gen, args->gen, &gen);
  }
  if (st == XFER_OK) st = say_each(&made, args->ignore, say_ignore);
  if (st == XFER_OK) st = say_each(&made, args->whole, say_whole);
  if (st == XFER_OK) st = xfer_refit_create(&made.refit, model, made.train, made.gen);
  if (st == XFER_OK) {
    *out = made;
  } else {
    job_destroy(&made);
  }
  return st;
}

int job_create(job *out, const job_args *args)
{
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;
  xfer_model *model = NULL;
  const int wrong = parse_options(&options, args);
  const char *pairs[2 * MAX_RENAMES];
  char renames[4096] = "";
  xfer_status st;

  if (wrong != 0) return wrong;
  if (args->rename != NULL && strlen(args->rename) < sizeof renames)
    memcpy(renames, args->rename, strlen(args->rename));
  options.renames = pairs;
  options.n_renames = split_renames(renames, pairs);
  if (options.n_renames < 0) return args_wrong("--rename %s: want FROM=TO", args->rename);
  st = xfer_model_load(&model, args->model, &options);
  if (st == XFER_OK) st = job_join(out, args, model);
  if (st != XFER_OK) {
    xfer_model_destroy(model);
    return EXIT_FAILURE;
  }
  out->model = model;
  return 0;
}

void job_destroy(job *made)
{
  xfer_refit_destroy(made->refit);
  xfer_side_destroy(made->gen);
  xfer_side_destroy(made->train);
  xfer_model_destroy(made->model);
  memset(made, 0, sizeof *made);
}
