/* Options of a command line, by a table: --name, --name VALUE or --name=VALUE. */
#ifndef TOOLS_ARGS_H
#define TOOLS_ARGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { ARGS_WRONG = 2, ARGS_MAX_OPTIONS = 64 }; /* the exit status of a wrong command line */

typedef enum arg_kind {
  ARG_FLAG, /* bool *: becomes true; takes no value */
  ARG_TEXT, /* const char **: points into argv */
  ARG_INT,  /* int64_t *: decimal, min to max */
  ARG_BYTES /* int64_t *: likewise, and K, M and G count in 1024s */
} arg_kind;

typedef struct arg_option {
  const char *name; /* with its two dashes; NULL ends the table */
  arg_kind kind;
  void *value;
  const char *help; /* "LINE  a redistribution": the value's name, two blanks, what it is for */
  int64_t min;      /* INT and BYTES; both 0: 0 to INT64_MAX */
  int64_t max;
} arg_option;

/* False after one sentence on stderr: an option that is unknown, repeated, lacks its value or has a
 * bad one. */
bool args_parse(const arg_option *options, int argc, char **argv);

/* One line per option. */
void args_help(FILE *file, const arg_option *options);

/* One sentence on stderr, with the program's name before it; returns ARGS_WRONG. */
__attribute__((format(printf, 1, 2))) int args_wrong(const char *fmt, ...);

#endif
