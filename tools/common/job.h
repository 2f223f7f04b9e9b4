/* A refit as the options of xfer_refit and xfer_plan describe it. */
#ifndef TOOLS_JOB_H
#define TOOLS_JOB_H

#include <stdbool.h>
#include <xfer/refit.h>

#include "args.h"
#include "tables.h"

typedef struct job_args {
  const char *model; /* a table, or the folder of a checkpoint */
  const char *train; /* SPECs */
  const char *gen;
  const char *layers;  /* "A-B", NULL: all */
  const char *experts; /* "A-B", NULL: all */
  bool ends;
  const char *extra;  /* NULL: none */
  const char *rename; /* "FROM=TO" with commas between them: what names of the table mean */
  const char *ignore; /* name patterns, with commas between them */
  const char *whole;  /* "PATTERN@RANK", likewise: a training rank has these whole */
  const char *rules;  /* a folder of rules beside the library's own; NULL: none */
  bool partial;       /* of weights that lie in one tensor, some may be ignored */
} job_args;

/* The rows of a table of options that fill a job_args and the line of --problem. */
#define JOB_OPTIONS(job, problem)                                                                    \
  {"What is moved", ARG_GROUP, NULL, NULL, 0, 0},                                                    \
      {"--problem", ARG_TEXT, problem, "LINE  one tensor, in the problem language", 0, 0},           \
      {"--model",                                                                                    \
       ARG_TEXT,                                                                                     \
       &(job)->model,                                                                                \
       "PATH  a model's table, a checkpoint's folder, or the name of a table, installed or of "      \
       "./models",                                                                                   \
       0,                                                                                            \
       0},                                                                                           \
      {"--train", ARG_TEXT, &(job)->train, "SPEC  who holds it, such as megatron:tp2,ep4,dp2",       \
       0,         0},                                                                                \
      {"--gen", ARG_TEXT, &(job)->gen, "SPEC  who gets it, such as vllm:tp4", 0, 0},                 \
      {"--layers", ARG_TEXT, &(job)->layers, "A-B  only layers A to B of the model, or A alone",     \
       0,          0},                                                                               \
      {"--experts", ARG_TEXT, &(job)->experts, "A-B  only experts A to B of each layer, or A alone", \
       0,           0},                                                                              \
      {"--ends", ARG_FLAG, &(job)->ends, "with --layers, the tensors outside the layers too", 0, 0}, \
      {"--extra", ARG_TEXT, &(job)->extra, "NAME  add these extra_params of the table", 0, 0},       \
      {"--rename", ARG_TEXT, &(job)->rename, "FROM=TO,..  what names of the table mean", 0, 0},      \
      {"--ignore", ARG_TEXT, &(job)->ignore, "PATTERNS  leave these tensors out", 0, 0},             \
      {"--partial", ARG_FLAG, &(job)->partial, "--ignore may leave out a part of a fused tensor",    \
       0,           0},                                                                              \
      {"--whole", ARG_TEXT, &(job)->whole, "PATTERN@RANK,..  a rank, else 0, has these whole",       \
       0,         0},                                                                                \
  {                                                                                                  \
    "--rules", ARG_TEXT, &(job)->rules, "DIR  rules of families and sides beside our own", 0, 0      \
  }

/* And the rules of these options. */
#define JOB_RULES                                                                                  \
  {"--train", "--model", NULL}, {"--gen", "--model", NULL}, {"--layers", "--model", NULL},         \
      {"--experts", "--model", NULL}, {"--ends", "--layers", NULL}, {"--extra", "--model", NULL},  \
      {"--rename", "--model", NULL}, {"--ignore", "--model", NULL},                                \
      {"--partial", "--ignore", NULL}, {"--whole", "--model", NULL},                               \
  {                                                                                                \
    "--rules", "--model", NULL                                                                     \
  }

/* All zero: nothing made. */
typedef struct job {
  xfer_rules *rules;
  xfer_model *model;
  xfer_side *train;
  xfer_side *gen;
  xfer_refit *refit;
} job;

/* Is there a job, or a --problem LINE (NULL: not given)? 0, or ARGS_WRONG after a
 * sentence on stderr. */
int job_check(const job_args *args, const char *problem);

/* Of "3" or "3-5", as [begin, end); NULL leaves them. False: `text` is no range. */
bool job_range(const char *text, int32_t *begin, int32_t *end);
/* What is no file may be the name of a table. 0, or ARGS_WRONG after a sentence. */
int job_find_model(char path[TABLES_PATH_BYTES], const char *name);
/* 0, or the status to end with, after a sentence on stderr. */
int job_create(job *out, const job_args *args);
/* The sides and the refit of a model that is read already, which stays the caller's, as do the
 * rules (NULL: the library's own). */
xfer_status job_join(job *out, const job_args *args, xfer_model *model, const xfer_rules *rules);
void job_destroy(job *made);

#endif
