/* Options of a command line, by a table. */
#include "args.h"

#include <assert.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xfer/xfer.h>

#include "interrupt.h"
#include "text.h"

enum { FOLLOWS_SECONDS = 4 }; /* a launcher wants one or two to end all */

static const char *program_name = "xfer";
static const char *failed_name = "xfer"; /* before a failure */

static bool owes_object;   /* --json is given, and stdout has no object yet */
static bool others_object; /* it is there, or another process has it */
static bool has_said;      /* a sentence is on stderr */
static bool follows;       /* another process of those started together speaks first */
static char *kept;         /* a sentence goes here and is not said; NULL: it is said */

void args_leave_object(void)
{
  others_object = true;
}

void args_follow(void)
{
  others_object = true;
  follows = true;
}

void args_keep(char sentence[ARGS_SENTENCE_BYTES])
{
  kept = sentence;
}

/* Prints a line in one write, since the pieces of several processes' lines would mix. */
static void print_line(const char *who, const char *sentence)
{
  char *text = NULL;
  size_t n = 0;
  FILE *line = open_memstream(&text, &n);
  FILE *file = line != NULL ? line : stderr;

  fprintf(file, "%s: ", who);
  text_print(file, sentence);
  fputc('\n', file);
  if (line != NULL && fclose(line) == 0) fputs(text, stderr);
  free(text);
}

void args_say(const char *who, const char *sentence)
{
  if (kept != NULL) {
    snprintf(kept, ARGS_SENTENCE_BYTES, "%s", sentence);
    return;
  }
  if (follows) (void)sleep(FOLLOWS_SECONDS);
  print_line(who, sentence);
  has_said = true;
  if (!owes_object || others_object) return;
  owes_object = false;
  printf("{\"ok\":false,\"error\":");
  text_json(stdout, sentence);
  printf("}\n");
  (void)fflush(stdout); /* a launcher of MPI may end the process before it does itself */
}

static void say(const char *who, const char *fmt, va_list args)
{
  char text[ARGS_SENTENCE_BYTES];

  vsnprintf(text, sizeof text, fmt, args);
  args_say(who, text);
}

int args_wrong(const char *fmt, ...)
{
  va_list args;

  va_start(args, fmt);
  say(program_name, fmt, args);
  va_end(args);
  return ARGS_WRONG;
}

int args_failed(const char *fmt, ...)
{
  va_list args;

  va_start(args, fmt);
  say(failed_name, fmt, args);
  va_end(args);
  return EXIT_FAILURE;
}

int args_end(int status)
{
  if (fflush(stdout) == 0 && ferror(stdout) == 0) return status;
  owes_object = false;
  if (has_said) return status; /* one sentence is enough */
  if (interrupt_has_cut()) {
    args_say(program_name, "interrupted; nobody read the output, which is cut off");
    return ARGS_INTERRUPTED;
  }
  args_say(program_name, "the output cannot be written");
  return EXIT_FAILURE;
}

/* The factor of k, M, G, T, KiB and so on behind a number; 0: `suffix` is none of these. */
static int64_t suffix_factor(const char *suffix)
{
  static const char letters[] = "KMGT";

  if (suffix[0] == '\0') return 1;
  const char *at = strchr(letters, suffix[0] == 'k' ? 'K' : suffix[0]);
  if (at == NULL || (suffix[1] != '\0' && strcmp(suffix + 1, "iB") != 0)) return 0;
  return INT64_C(1) << (10 * (at - letters + 1));
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

/* Stores the number of an option. Returns 0, or ARGS_WRONG after a sentence on stderr, as the
 * functions below. */
static int set_number(const arg_option *option, const char *text)
{
  const int64_t max = option->min == 0 && option->max == 0 ? INT64_MAX : option->max;
  int64_t value = 0;

  if (!parse_int(text, option->kind == ARG_BYTES, &value))
    return args_wrong("%s takes a whole number%s, not '%s'", option->name,
                      option->kind == ARG_BYTES ? " of bytes, with k, M, G or T if wanted" : "",
                      text);
  if (value < option->min || value > max)
    return args_wrong("%s takes a number from %lld to %lld, not %s", option->name,
                      (long long)option->min, (long long)max, text);
  *(int64_t *)option->value = value;
  return 0;
}

/* Is `text` one of the words "a|b|c  what they are for" lists? */
static bool is_choice(const char *help, const char *text)
{
  const size_t n = strlen(text);

  for (size_t length; *help != ' ' && *help != '\0'; help += length + (help[length] == '|')) {
    length = strcspn(help, "| ");
    if (length == n && strncmp(help, text, n) == 0) return true;
  }
  return false;
}

/* No option means anything by an empty value, as a shell makes of a variable that is not set. */
static int set_value(const arg_option *option, const char *text)
{
  if (*text == '\0') return args_wrong("%s needs a value", option->name);
  if (option->kind == ARG_INT || option->kind == ARG_BYTES) return set_number(option, text);
  if (option->kind == ARG_CHOICE && !is_choice(option->help, text))
    return args_wrong("%s %s: want %.*s", option->name, text, (int)strcspn(option->help, " "),
                      option->help);
  *(const char **)option->value = text;
  return 0;
}

/* The option of an argument "--name" or "--name=VALUE"; NULL: there is none in the table. */
static const arg_option *find(const arg_option *options, const char *arg)
{
  const size_t n = strcspn(arg, "=");

  for (const arg_option *o = options; o->name != NULL; o++)
    if (o->kind != ARG_GROUP && strlen(o->name) == n && strncmp(o->name, arg, n) == 0) return o;
  return NULL;
}

/* The options of the command line, each with its value or NULL. */
static struct {
  const char *name, *value;
} given[ARGS_MAX_OPTIONS];
static size_t n_given;

/* Is it given, where a rule says "--lane=direct" with this value? */
static bool is_given(const char *name, size_t n)
{
  const char *equals = memchr(name, '=', n);
  const size_t n_name = equals != NULL ? (size_t)(equals - name) : n;

  for (size_t i = 0; i < n_given; i++) {
    if (strlen(given[i].name) != n_name || strncmp(given[i].name, name, n_name) != 0) continue;
    return equals == NULL || (given[i].value != NULL && strlen(given[i].value) == n - n_name - 1 &&
                              strncmp(given[i].value, equals + 1, n - n_name - 1) == 0);
  }
  return false;
}

/* The first of a rule's names that is given, and its length; NULL: none. */
static const char *first_given(const char *names, int *length)
{
  for (; names != NULL && *names != '\0'; names += *length + (names[*length] == ' ')) {
    *length = (int)strcspn(names, " ");
    if (is_given(names, (size_t)*length)) return names;
  }
  return NULL;
}

/* "--a --b --c" as "--a, --b or --c". */
static void write_list(char *text, size_t size, const char *names)
{
  size_t n = 0;

  for (size_t length; *names != '\0'; names += length + (names[length] == ' ')) {
    length = strcspn(names, " ");
    const bool more = names[length] == ' ';
    const bool last = more && strchr(names + length + 1, ' ') == NULL;

    n += (size_t)snprintf(text + n, size - n, "%.*s%s", (int)length, names,
                          last   ? " or "
                          : more ? ", "
                                 : "");
  }
}

int args_check(const arg_rule *rules)
{
  char text[256];
  int n;

  for (const arg_rule *r = rules; r->option != NULL; r++) {
    if (!is_given(r->option, strlen(r->option))) continue;
    if (r->with != NULL && first_given(r->with, &n) == NULL) {
      write_list(text, sizeof text, r->with);
      return args_wrong("%s goes with %s; see --help", r->option, text);
    }
    const char *other = first_given(r->without, &n);
    if (other != NULL) return args_wrong("%.*s does not go with %s", n, other, r->option);
  }
  return 0;
}

/* The option of an argument; NULL after a sentence. */
static const arg_option *known(const arg_option *options, const char *arg)
{
  const arg_option *option = find(options, arg);

  if (option == NULL) args_wrong("no option is called '%s'; --help lists them", arg);
  return option;
}

static int parse_all(const arg_option *options, int argc, char **argv)
{
  for (int i = 1; i < argc; i++) {
    const arg_option *option = known(options, argv[i]);
    const char *value = strchr(argv[i], '=');

    if (option == NULL) return ARGS_WRONG;
    if (is_given(option->name, strlen(option->name)))
      return args_wrong("%s is given twice", option->name);
    if (option->kind == ARG_FLAG && value != NULL)
      return args_wrong("%s takes no value", option->name);
    if (option->kind != ARG_FLAG && value == NULL && i + 1 == argc)
      return args_wrong("%s needs a value", option->name);
    if (option->kind == ARG_FLAG) {
      *(bool *)option->value = true;
    } else {
      value = value != NULL ? value + 1 : argv[++i];
      if (set_value(option, value) != 0) return ARGS_WRONG;
    }
    assert(n_given < ARGS_MAX_OPTIONS);
    given[n_given].name = option->name;
    given[n_given++].value = value;
  }
  return 0;
}

/* ---- what every program has ---- */

static const char *generated;
static bool flag; /* asked for before the others are parsed */

static const arg_option COMMON[] = {
    {"This program", ARG_GROUP, NULL, NULL, 0, 0},
    {"--generate", ARG_CHOICE, &generated, "man|bash  print the manual page, or bash's completion",
     0, 0},
    {"--version", ARG_FLAG, &flag, "print the version", 0, 0},
    {"--help", ARG_FLAG, &flag, "print this text; -h likewise", 0, 0},
    {NULL, ARG_FLAG, NULL, NULL, 0, 0},
};

/* Which argument asks for help, the version or generated text; argc: none. These count wherever
 * they stand. */
static int find_common(int argc, char **argv)
{
  int i = 1;

  while (i < argc && strcmp(argv[i], "-h") != 0 && strcmp(argv[i], "--help") != 0 &&
         strcmp(argv[i], "--version") != 0 && strcmp(argv[i], "--generate") != 0)
    i++;
  return i;
}

/* Does an option stand wherever one should? Values are not looked at, and may be missing. */
static bool are_options(const arg_option *options, int argc, char **argv)
{
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "-h") == 0) continue;
    const arg_option *option = known(options, argv[i]);

    if (option == NULL) return false;
    if (option->kind != ARG_FLAG && strchr(argv[i], '=') == NULL &&
        find_common(argc, argv) != i + 1)
      i++;
  }
  return true;
}

/* Is there such an option, and is it given? Wherever it stands, so that it counts for those that
 * are wrong before it. */
static bool wants_object(const arg_option *options, int argc, char **argv)
{
  int i = 1;

  while (i < argc && strcmp(argv[i], "--json") != 0 && strncmp(argv[i], "--json=", 7) != 0)
    i++;
  return i < argc && find(options, "--json") != NULL;
}

/* Before values change what the help shows as defaults. */
static bool print_common(const arg_program *program, const char *what, const char *value)
{
  if (strcmp(what, "-h") == 0 || strcmp(what, "--help") == 0)
    args_print_help(stdout, program);
  else if (strcmp(what, "--version") == 0)
    printf("%s (xfer) %s\n", program->name, xfer_version());
  else if (value != NULL && strcmp(value, "man") == 0)
    args_print_man(stdout, program);
  else if (value != NULL && strcmp(value, "bash") == 0)
    args_print_bash(stdout, program);
  else
    return false;
  return true;
}

/* Opens /dev/null for reading in place of each closed standard file. Without that, the next file
 * that the program opens would receive what it prints. */
static void keep_standard_files(void)
{
  for (int fd = 0; fd <= 2; fd++)
    if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", O_RDONLY);
}

int args_parse(const arg_program *program, int argc, char **argv)
{
  arg_option options[ARGS_MAX_OPTIONS];
  arg_program whole = *program;
  size_t n = 0;

  keep_standard_files();
  program_name = program->name;
  failed_name = program->failed != NULL ? program->failed : program->name;
  n_given = 0;
  while (program->options[n].name != NULL)
    n++;
  assert(n + sizeof COMMON / sizeof *COMMON <= ARGS_MAX_OPTIONS);
  memcpy(options, program->options, n * sizeof *options);
  memcpy(options + n, COMMON, sizeof COMMON);
  whole.options = options;
  owes_object = wants_object(options, argc, argv);
  const int common = find_common(argc, argv);
  if (common < argc && !are_options(options, argc, argv)) return ARGS_WRONG;
  if (common < argc && print_common(&whole, argv[common], argv[common + 1]))
    return args_end(EXIT_SUCCESS);
  return parse_all(options, argc, argv) == 0 ? ARGS_GO_ON : ARGS_WRONG;
}
