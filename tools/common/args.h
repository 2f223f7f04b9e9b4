/*
 * The command line of a program, by a table: --name, --name VALUE or --name=VALUE. The same table
 * makes its help, its manual page and what a shell completes.
 *
 * Every program ends with one of four statuses: 0, it was done; 1, it was not, or bytes arrived
 * wrong, and one sentence on stderr says why; 2, the command line is wrong, also where only the
 * library can tell; 130, it was interrupted.
 */
#ifndef TOOLS_ARGS_H
#define TOOLS_ARGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
  ARGS_GO_ON = -1,
  ARGS_WRONG = 2,
  ARGS_INTERRUPTED = 130,
  ARGS_MAX_OPTIONS = 64,
  ARGS_SENTENCE_BYTES = 1024
};

typedef enum arg_kind {
  ARG_GROUP,  /* no option: a heading over those that follow */
  ARG_FLAG,   /* bool *: becomes true; takes no value */
  ARG_TEXT,   /* const char **: points into argv */
  ARG_CHOICE, /* const char **: one of the words that the value's name lists, "local|mpi" */
  ARG_INT,    /* int64_t *: decimal, min to max */
  ARG_BYTES   /* int64_t *: likewise, and k, M, G and T, or KiB and so on, count in 1024s */
} arg_kind;

typedef struct arg_option {
  const char *name; /* with its two dashes; of a group its heading; NULL ends the table */
  arg_kind kind;
  void *value;      /* what it holds before parsing is the default that the help shows */
  const char *help; /* "LINE  a redistribution": the value's name, two blanks, what it is for */
  int64_t min;      /* INT and BYTES; both 0: 0 to INT64_MAX */
  int64_t max;
} arg_option;

typedef struct arg_program {
  const char *name;
  const char *purpose;         /* half a sentence */
  const char *about;           /* of the manual page: sentences */
  const arg_option *options;   /* --help, --version and --generate are added */
  const char *const *examples; /* command lines; NULL ends them */
  const char *failed;          /* stands before the sentence of a failure; NULL: the name */
} arg_program;

/* ARGS_GO_ON; else the status to end with: 0 after --help and the like, ARGS_WRONG after one
 * sentence on stderr about an option that is unknown, repeated, lacks its value or has a bad one.
 */
int args_parse(const arg_program *program, int argc, char **argv);

/* An option that decides nothing unless one of `with` is given, or while one of `without` is: names
 * with blanks between them; NULL: no such. "--lane=direct" is an option that has this value. */
typedef struct arg_rule {
  const char *option; /* NULL ends a list */
  const char *with;
  const char *without;
} arg_rule;

/* Of what args_parse() found: 0, or ARGS_WRONG after a sentence about the first rule that is
 * broken. */
int args_check(const arg_rule *rules);

/* One sentence on stderr, with `who` before it and control characters escaped; with --json also on
 * stdout, as {"ok":false,"error":SENTENCE}, unless that has such an object already. */
void args_say(const char *who, const char *sentence);
/* stdout has its object already, or it is that of another process of those started together. */
void args_leave_object(void);
/* This process was started with others, and is not the first, which has the object. What is wrong
 * here is mostly wrong there, and a launcher ends all when one has failed: it gets the time. */
void args_follow(void);
/* From here on a sentence is kept, not said; NULL: no more. */
void args_keep(char sentence[ARGS_SENTENCE_BYTES]);
/* args_say() of the command line with the program's name, returning ARGS_WRONG; of what failed with
 * what the program has for that, returning EXIT_FAILURE. */
__attribute__((format(printf, 1, 2))) int args_wrong(const char *fmt, ...);
__attribute__((format(printf, 1, 2))) int args_failed(const char *fmt, ...);
/* How a program ends that has printed: with `status`, or if stdout did not take it all, with a
 * failure, or as interrupted. */
int args_end(int status);

/* ---- as text (args_print.c), with the options that every program has ---- */

void args_print_help(FILE *file, const arg_program *program);
void args_print_man(FILE *file, const arg_program *program);
void args_print_bash(FILE *file, const arg_program *program);

#endif
