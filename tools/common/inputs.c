#include "inputs.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "output.h"

static int refuse(const char *option, const char *path, const char *what)
{
  return args_wrong("%s %s: that is a file of %s, which would be overwritten", option, path, what);
}

static bool ends_with(const char *name, const char *end)
{
  const size_t n = strlen(name), k = strlen(end);

  return n >= k && strcmp(name + n - k, end) == 0;
}

/* Does the library read a file of this name in the folder of a checkpoint? */
static bool is_of_checkpoint(const char *name)
{
  return strcmp(name, "config.json") == 0 || ends_with(name, ".safetensors.index.json") ||
         ends_with(name, ".safetensors");
}

static bool is_of_rules(const char *name)
{
  return ends_with(name, ".json");
}

/* Is it `input` itself, or one of those files of that folder that are read? */
static bool is_input(const char *input, bool (*is_read)(const char *), const char *path)
{
  DIR *folder = opendir(input);
  bool found = output_is_same(input, path);
  char file[OUTPUT_PATH_BYTES];
  const struct dirent *entry;

  while (!found && folder != NULL && (entry = readdir(folder)) != NULL) {
    const int n = snprintf(file, sizeof file, "%s/%s", input, entry->d_name);

    found = is_read(entry->d_name) && n < (int)sizeof file && output_is_same(file, path);
  }
  if (folder != NULL) closedir(folder);
  return found;
}

/* Is it the FILE of map= in a SPEC? */
static bool is_map(const char *spec, const char *path)
{
  static const char MAP[] = "map=";
  const char *at = spec != NULL ? strstr(spec, MAP) : NULL;
  char file[OUTPUT_PATH_BYTES];

  if (at == NULL) return false;
  at += sizeof MAP - 1;
  const int n = (int)strcspn(at, ",");
  return snprintf(file, sizeof file, "%.*s", n, at) < (int)sizeof file &&
         output_is_same(file, path);
}

int inputs_check(const job_args *args, const char *option, const char *path)
{
  char model[TABLES_PATH_BYTES];
  int wrong;

  if (path != NULL && strcmp(path, "-") == 0)
    return args_wrong("%s -: standard output is /dev/stdout, and a file of this name ./-", option);
  if (path == NULL || args->model == NULL) return 0;
  wrong = job_find_model(model, args->model);
  if (wrong != 0) return wrong;
  if (is_input(model, is_of_checkpoint, path)) return refuse(option, path, "--model");
  if (args->rules != NULL && is_input(args->rules, is_of_rules, path))
    return refuse(option, path, "--rules");
  if (is_map(args->train, path)) return refuse(option, path, "--train");
  return is_map(args->gen, path) ? refuse(option, path, "--gen") : 0;
}
