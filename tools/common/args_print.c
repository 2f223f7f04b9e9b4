/* A program's help, its manual page and its completion, all from the table of its options. */
#include <inttypes.h>
#include <string.h>

#include <xfer/xfer.h>

#include "args.h"
#include "text.h"

enum { HELP_COLUMN = 28, HELP_WIDTH = 100 };

static const struct {
  int status;
  const char *when;
} EXITS[] = {
    {0, "It was done."},
    {1, "It was not done, as where no plan is possible, or bytes arrived wrong; stderr says why."},
    {2,
     "The command line is wrong: an option, a SPEC, a problem line, or a file it names to read."},
    {ARGS_INTERRUPTED, "It was interrupted. Files that were not complete are removed."},
};
enum { N_EXITS = sizeof EXITS / sizeof *EXITS };

/* "LINE  a redistribution": the length of the value's name, 0 for a flag. */
static int value_length(const arg_option *o)
{
  const char *gap = o->kind == ARG_FLAG || o->kind == ARG_GROUP ? NULL : strstr(o->help, "  ");

  return gap == NULL ? 0 : (int)(gap - o->help);
}

static const char *meaning(const arg_option *o)
{
  const int n = value_length(o);

  return n > 0 ? o->help + n + 2 : o->help;
}

/* The default value of an option as text; "": none worth printing. */
static const char *default_of(const arg_option *o, char *text, size_t size)
{
  text[0] = '\0';
  if ((o->kind == ARG_TEXT || o->kind == ARG_CHOICE) && *(const char **)o->value != NULL)
    snprintf(text, size, "%s", *(const char **)o->value);
  if ((o->kind == ARG_INT || o->kind == ARG_BYTES) && *(int64_t *)o->value > 0)
    snprintf(text, size, "%" PRId64, *(int64_t *)o->value);
  return text;
}

/* ---- help ---- */

/* Words, from `column` on, broken before HELP_WIDTH and indented to HELP_COLUMN. */
static void print_words(FILE *file, const char *words, int *column)
{
  while (*words != '\0') {
    const int n = (int)strcspn(words, " ");

    if (*column > HELP_COLUMN && *column + 1 + n > HELP_WIDTH) {
      fprintf(file, "\n%*s", HELP_COLUMN - 1, "");
      *column = HELP_COLUMN - 1;
    }
    fprintf(file, " %.*s", n, words);
    *column += 1 + n;
    words += n + (words[n] == ' ');
  }
}

static void print_option(FILE *file, const arg_option *o)
{
  char text[256];
  int column = fprintf(file, "  %s %.*s", o->name, value_length(o), o->help);

  if (column >= HELP_COLUMN) {
    fputc('\n', file);
    column = 0;
  }
  column += fprintf(file, "%*s", HELP_COLUMN - 1 - column, "");
  print_words(file, meaning(o), &column);
  if (default_of(o, text, sizeof text)[0] != '\0') {
    print_words(file, "(default", &column);
    column += fprintf(file, " %s)", text);
  }
  fputc('\n', file);
}

void args_print_help(FILE *file, const arg_program *program)
{
  fprintf(file, "%s: %s\n", program->name, program->purpose);
  for (const arg_option *o = program->options; o->name != NULL; o++) {
    if (o->kind == ARG_GROUP)
      fprintf(file, "\n%s:\n", o->name);
    else
      print_option(file, o);
  }
  fprintf(file, "\nExamples:\n");
  for (const char *const *line = program->examples; *line != NULL; line++)
    fprintf(file, "  %s\n", *line);
  fprintf(file, "\nExit status:\n");
  for (int i = 0; i < N_EXITS; i++)
    fprintf(file, "  %3d  %s\n", EXITS[i].status, EXITS[i].when);
}

/* ---- manual page ---- */

/* Text as troff wants it: no line begins with a dot, a dash stays one, a backslash too. */
static void print_troff(FILE *file, const char *text, int n)
{
  for (int i = 0; i < n && text[i] != '\0'; i++) {
    if (text[i] == '-')
      fputs("\\-", file);
    else if (text[i] == '\\')
      fputs("\\e", file);
    else if (text[i] == '\'')
      fputs("\\(aq", file);
    else
      fputc(text[i], file);
  }
}

static void print_man_option(FILE *file, const arg_option *o)
{
  char text[256];
  const int n = value_length(o);

  fputs(".TP\n.B ", file);
  print_troff(file, o->name, 100);
  fputs(n > 0 ? " \\fI" : "", file);
  print_troff(file, o->help, n);
  fputs(n > 0 ? "\\fR\n" : "\n", file);
  print_troff(file, meaning(o), 1000);
  if (default_of(o, text, sizeof text)[0] != '\0') {
    fputs(" (default ", file);
    print_troff(file, text, 1000);
    fputc(')', file);
  }
  fputs(".\n", file);
}

void args_print_man(FILE *file, const arg_program *program)
{
  fprintf(file, ".TH %s 1 \"\" \"xfer %s\" \"xfer\"\n.SH NAME\n%s \\- ", program->name,
          xfer_version(), program->name);
  print_troff(file, program->purpose, 1000);
  fprintf(file, "\n.SH SYNOPSIS\n.B %s\n[\\fIOPTION\\fR]...\n.SH DESCRIPTION\n", program->name);
  print_troff(file, program->about, 10000);
  fputs("\n.SH OPTIONS\n", file);
  for (const arg_option *o = program->options; o->name != NULL; o++) {
    if (o->kind == ARG_GROUP)
      fprintf(file, ".SS %s\n", o->name);
    else
      print_man_option(file, o);
  }
  fputs("Sizes take k, M, G or T, also as KiB and so on, and count in 1024s.\n"
        ".SH EXIT STATUS\n",
        file);
  for (int i = 0; i < N_EXITS; i++)
    fprintf(file, ".TP\n%d\n%s\n", EXITS[i].status, EXITS[i].when);
  fputs(".SH EXAMPLES\n.nf\n", file);
  for (const char *const *line = program->examples; *line != NULL; line++) {
    print_troff(file, *line, 10000);
    fputc('\n', file);
  }
  fputs(".fi\n.SH SEE ALSO\n", file);
  static const char *const programs[] = {"xfer_info", "xfer_perf", "xfer_plan", "xfer_refit"};
  const char *comma = "";
  for (int i = 0; i < 4; i++) {
    if (strcmp(programs[i], program->name) == 0) continue;
    fprintf(file, "%s.BR %s (1)", comma, programs[i]);
    comma = ",\n";
  }
  fputc('\n', file);
}

/* ---- completion ---- */

/* Is the value the name of a file or a folder? */
static bool takes_path(const arg_option *o)
{
  const int n = value_length(o);

  return n > 0 &&
         (strncmp(o->help, "FILE", (size_t)n) == 0 || strncmp(o->help, "DIR", (size_t)n) == 0 ||
          strncmp(o->help, "PATH", (size_t)n) == 0);
}

void args_print_bash(FILE *file, const arg_program *program)
{
  fprintf(file,
          "# bash completion of %s\n_%s()\n{\n"
          "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
          "  case $prev in\n",
          program->name, program->name);
  for (const arg_option *o = program->options; o->name != NULL; o++) {
    if (o->kind == ARG_GROUP || o->kind == ARG_FLAG) continue;
    fprintf(file, "    %s) ", o->name);
    if (o->kind == ARG_CHOICE) {
      fputs("COMPREPLY=($(compgen -W '", file);
      for (int i = 0; i < value_length(o); i++)
        fputc(o->help[i] == '|' ? ' ' : o->help[i], file);
      fputs("' -- \"$cur\")); ", file);
    } else if (takes_path(o)) {
      fputs("mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); ", file);
    }
    fputs("return ;;\n", file);
  }
  fputs("  esac\n  COMPREPLY=($(compgen -W '-h", file);
  for (const arg_option *o = program->options; o->name != NULL; o++)
    if (o->kind != ARG_GROUP) fprintf(file, " %s", o->name);
  fprintf(file, "' -- \"$cur\"))\n}\ncomplete -o filenames -F _%s %s\n", program->name,
          program->name);
}
