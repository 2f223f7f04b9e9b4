#include "job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "as_loaded.h"

enum { MAX_NUMBER = 1 << 20, MAX_PATTERN = 4096 };

bool job_range(const char *text, int32_t *begin, int32_t *end)
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

/* "FROM=TO,FROM=TO" as pairs of strings in `text`, which it owns. */
typedef struct rename_list {
  char *text;
  const char **pairs; /* [2 n] */
  int64_t n;
} rename_list;

static void free_renames(rename_list *list)
{
  free(list->pairs);
  free(list->text);
}

/* `said` may be NULL. 0, or a status after a sentence; free_renames() after either. */
static int parse_renames(rename_list *list, const char *said)
{
  size_t n = 1;

  if (said == NULL || *said == '\0') return 0;
  for (const char *c = said; *c != '\0'; c++)
    n += *c == ',';
  list->text = strdup(said);
  list->pairs = calloc(n, 2 * sizeof *list->pairs);
  if (list->text == NULL || list->pairs == NULL) return args_failed("no memory for --rename");
  for (char *at = list->text, *next; at != NULL; at = next) {
    char *to;

    next = strchr(at, ',');
    if (next != NULL) *next++ = '\0';
    to = strchr(at, '=');
    if (to == NULL) return args_wrong("--rename: \"%s\" is not FROM=TO", at);
    *to = '\0';
    list->pairs[2 * list->n] = at;
    list->pairs[2 * list->n + 1] = to + 1;
    list->n++;
  }
  return 0;
}

/* "@3" at the end of PATTERN@RANK; it may be left out, and is then 0. */
static bool parse_rank(const char *pattern, size_t n, int *rank)
{
  size_t at = n;

  *rank = 0;
  while (at > 0 && pattern[at - 1] != '@')
    at--;
  if (at == 0) return true;
  for (size_t i = at; i < n; i++) {
    if (pattern[i] < '0' || pattern[i] > '9') return false;
    *rank = *rank * 10 + (pattern[i] - '0');
    if (*rank > MAX_NUMBER) return false;
  }
  return at < n;
}

/* Are the patterns of a list such as say_each() takes? 0, or ARGS_WRONG after a sentence. */
static int check_patterns(const char *option, const char *list, bool with_rank)
{
  size_t n;
  int rank;

  for (; list != NULL && *list != '\0'; list += n + (list[n] == ',')) {
    n = strcspn(list, ",");
    if (n >= MAX_PATTERN)
      return args_wrong("%s: a pattern of %zu characters; %d is the most", option, n,
                        MAX_PATTERN - 1);
    if (with_rank && !parse_rank(list, n, &rank))
      return args_wrong("%s %.*s: want PATTERN@RANK", option, (int)n, list);
  }
  return 0;
}

static int parse_options(xfer_model_options *options, const job_args *args)
{
  int wrong;

  if (!job_range(args->layers, &options->layers_begin, &options->layers_end))
    return args_wrong("--layers %s: want A-B, from A up to B, or A alone", args->layers);
  if (!job_range(args->experts, &options->experts_begin, &options->experts_end))
    return args_wrong("--experts %s: want A-B, from A up to B, or A alone", args->experts);
  options->ends = args->ends;
  options->extra = args->extra;
  wrong = check_patterns("--ignore", args->ignore, false);
  if (wrong == 0) wrong = check_patterns("--whole", args->whole, true);
  if (wrong != 0) return wrong;
  return 0;
}

/* A pattern of n characters, which may be changed. */
typedef xfer_status (*say_fn)(job *made, char *pattern, size_t n);

static xfer_status say_ignore(job *made, char *pattern, size_t n)
{
  const xfer_status st = xfer_side_ignore(made->train, pattern);

  (void)n;
  return st == XFER_OK ? xfer_side_ignore(made->gen, pattern) : st;
}

static xfer_status say_whole(job *made, char *pattern, size_t n)
{
  char *at = strrchr(pattern, '@');
  int rank = 0;

  (void)parse_rank(pattern, n, &rank); /* which parse_options() has checked */
  if (at != NULL) *at = '\0';
  return xfer_side_give_whole(made->train, pattern, rank);
}

/* Says each pattern of a list with commas, which check_patterns() found right. */
static xfer_status say_each(job *made, const char *list, say_fn say)
{
  char pattern[MAX_PATTERN];
  xfer_status st = XFER_OK;

  while (list != NULL && *list != '\0' && st == XFER_OK) {
    const size_t n = strcspn(list, ",");

    memcpy(pattern, list, n);
    pattern[n] = '\0';
    st = say(made, pattern, n);
    list += n;
    list += *list == ',';
  }
  return st;
}

static xfer_status make_sides(job *made, const job_args *args, const xfer_rules *rules)
{
  xfer_side_options train = XFER_SIDE_OPTIONS_INIT;
  xfer_side_options gen = XFER_SIDE_OPTIONS_INIT;
  xfer_status st;

  take_as_loaded(&train, args->train);
  take_as_loaded(&gen, args->gen);
  train.rules = gen.rules = rules;
  train.partial = gen.partial = args->partial;
  train.strict = gen.strict = 1; /* nothing is handed in by other names */
  st = xfer_side_create(&made->train, args->train, &train);
  if (st == XFER_OK) {
    gen.first_rank = xfer_side_size(made->train);
    st = xfer_side_create(&made->gen, args->gen, &gen);
  }
  if (st == XFER_OK) st = say_each(made, args->ignore, say_ignore);
  if (st == XFER_OK) st = say_each(made, args->whole, say_whole);
  return st;
}

xfer_status job_join(job *out, const job_args *args, xfer_model *model, const xfer_rules *rules)
{
  job made = {0};
  xfer_status st = make_sides(&made, args, rules);

  if (st == XFER_OK) st = xfer_refit_create(&made.refit, model, made.train, made.gen);
  if (st == XFER_OK) {
    *out = made;
  } else {
    job_destroy(&made);
  }
  return st;
}

int job_find_model(char path[TABLES_PATH_BYTES], const char *name)
{
  char tables[800];
  const int n = snprintf(path, TABLES_PATH_BYTES, "%s", name);

  if (n >= TABLES_PATH_BYTES) return args_wrong("--model: a path of %d characters", n);
  if (strchr(name, '/') != NULL || access(name, F_OK) == 0 || tables_find(path, name)) return 0;
  snprintf(path, TABLES_PATH_BYTES, "%s", name);
  if (n > 5 && strcmp(name + n - 5, ".json") == 0)
    return 0; /* a path, which the library says cannot be read */
  tables_list(tables, sizeof tables);
  return args_wrong("--model %s: there is no such file, and %s%s", name,
                    tables[0] != '\0' ? "the tables are" : "no tables are installed", tables);
}

/* 0, or the status to end with for what the library has refused, after its sentence. */
static int tell(xfer_status st)
{
  if (st == XFER_OK) return 0;
  return (st == XFER_ERR_NOMEM ? args_failed : args_wrong)("%s", xfer_last_error());
}

int job_create(job *out, const job_args *args)
{
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;
  job made = {0};
  rename_list renames = {NULL, NULL, 0};
  char path[TABLES_PATH_BYTES];
  int status = parse_options(&options, args);

  if (status == 0) status = parse_renames(&renames, args->rename);
  if (status == 0 && args->rules != NULL) status = tell(xfer_rules_load(&made.rules, args->rules));
  if (status == 0) status = tell(make_sides(&made, args, made.rules));
  if (status == 0) status = job_find_model(path, args->model);
  options.renames = renames.pairs;
  options.n_renames = renames.n;
  options.rules = made.rules;
  if (status == 0) status = tell(xfer_model_load(&made.model, path, &options));
  if (status == 0) status = tell(xfer_refit_create(&made.refit, made.model, made.train, made.gen));
  free_renames(&renames);
  if (status == 0)
    *out = made;
  else
    job_destroy(&made);
  return status;
}

void job_destroy(job *made)
{
  xfer_refit_destroy(made->refit);
  xfer_side_destroy(made->gen);
  xfer_side_destroy(made->train);
  xfer_model_destroy(made->model);
  xfer_rules_destroy(made->rules);
  memset(made, 0, sizeof *made);
}

int job_check(const job_args *args, const char *problem)
{
  if ((problem != NULL) == (args->model != NULL))
    return args_wrong("give either --problem or --model; see --help");
  if (args->model != NULL && (args->train == NULL || args->gen == NULL))
    return args_wrong("--model needs --train and --gen");
  return 0;
}
