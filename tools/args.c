/* Options of a command line, by a table. */
#include "args.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

static const char *program = "xfer";

int args_wrong(const char *fmt, ...)
{
  char text[512];
  va_list args;

  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  fprintf(stderr, "%s: %s\n", program, text);
  return ARGS_WRONG;
}

/* What K, M or G at the end of a number multiplies by; 0: no such suffix. */
static int64_t suffix_factor(const char *suffix)
{
  static const char letters[] = "KMG";

  if (suffix[0] == '\0') return 1;
  const char *at = strchr(letters, suffix[0]);
  return at != NULL && suffix[1] == '\0' ? INT64_C(1) << (10 * (at - letters + 1)) : 0;
}

static bool parse_int(const char *text, bool suffixes, int64_t *value)
{
  int64_t v = 0;
  const char *at = text;

  for (; *at >= '0' && *at <= '9'; at++)
    if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *at - '0', &v)) return false;
  if (at == text || (!suffixes && *at != '\0')) return false;
  const int64_t factor = suffix_factor(at);
  return factor != 0 && !__builtin_mul_overflow(v, factor, value);
}

static bool set_value(const arg_option *option, const char *text)
{
  const int64_t max = option->min == 0 && option->max == 0 ? INT64_MAX : option->max;
  int64_t value = 0;

  if (option->kind == ARG_TEXT) {
    *(const char **)option->value = text;
    return true;
  }
  if (!parse_int(text, option->kind == ARG_BYTES, &value)) {
    args_wrong("%s takes a whole number%s, not '%s'", option->name,
               option->kind == ARG_BYTES ? " of bytes, with K, M or G if wanted" : "", text);
    return false;
  }
  if (value < option->min || value > max) {
    args_wrong("%s takes a number from %lld to %lld, not %s", option->name, (long long)option->min,
               (long long)max, text);
    return false;
  }
  *(int64_t *)option->value = value;
  return true;
}

/* The option of an argument "--name" or "--name=VALUE"; NULL: there is none. */
static const arg_option *find(const arg_option *options, const char *arg)
{
  const size_t n = strcspn(arg, "=");

  for (const arg_option *o = options; o->name != NULL; o++)
    if (strlen(o->name) == n && strncmp(o->name, arg, n) == 0) return o;
  return NULL;
}

/* One option, at argv[*i]; leaves *i at the last argument that was used. */
static bool parse_one(const arg_option *option, int argc, char **argv, int *i)
{
  const char *equals = strchr(argv[*i], '=');

  if (option->kind == ARG_FLAG) {
    if (equals != NULL) args_wrong("%s takes no value", option->name);
    *(bool *)option->value = true;
    return equals == NULL;
  }
  if (equals != NULL) return set_value(option, equals + 1);
  if (*i + 1 == argc) {
    args_wrong("%s needs a value", option->name);
    return false;
  }
  return set_value(option, argv[++*i]);
}

bool args_parse(const arg_option *options, int argc, char **argv)
{
  bool seen[ARGS_MAX_OPTIONS] = {false};

  if (argc > 0) {
    const char *slash = strrchr(argv[0], '/');
    program = slash != NULL ? slash + 1 : argv[0];
  }
  for (int i = 1; i < argc; i++) {
    const arg_option *option = find(options, argv[i]);

    if (option == NULL) {
      args_wrong("no option is called '%s'; --help lists them", argv[i]);
      return false;
    }
    assert(option - options < ARGS_MAX_OPTIONS);
    if (seen[option - options]) {
      args_wrong("%s is given twice", option->name);
      return false;
    }
    seen[option - options] = true;
    if (!parse_one(option, argc, argv, &i)) return false;
  }
  return true;
}

void args_help(FILE *file, const arg_option *options)
{
  for (const arg_option *o = options; o->name != NULL; o++) {
    const char *gap = strstr(o->help, "  ");
    const int n_value = o->kind == ARG_FLAG || gap == NULL ? 0 : (int)(gap - o->help);
    const char *help = n_value > 0 ? gap + 2 : o->help;

    fprintf(file, "  %s %.*s%*s%s\n", o->name, n_value, o->help,
            24 - (int)strlen(o->name) - n_value > 1 ? 24 - (int)strlen(o->name) - n_value : 1, "",
            help);
  }
}
