/* A refit as the options of xfer_refit and xfer_plan describe it. */
#ifndef TOOLS_JOB_H
#define TOOLS_JOB_H

#include <stdbool.h>
#include <xfer/refit.h>

typedef struct job_args {
  const char *model; /* a table, or the folder of a checkpoint */
  const char *train; /* SPECs */
  const char *gen;
  const char *layers;  /* "A-B", NULL: all */
  const char *experts; /* "A-B", NULL: all */
  bool ends;
  const char *quant;  /* NULL: as the table is */
  const char *extra;  /* NULL: none */
  const char *rename; /* "FROM=TO" with commas between them: what names of the table mean */
  const char *ignore; /* name patterns, with commas between them */
  const char *whole;  /* "PATTERN@RANK", likewise: a training rank has these whole */
  const char *rules;  /* a folder of rules beside the library's own; NULL: none */
  bool partial;       /* of weights that lie in one tensor, some may be ignored */
} job_args;

/* All zero: nothing made. */
typedef struct job {
  xfer_rules *rules;
  xfer_model *model;
  xfer_side *train;
  xfer_side *gen;
  xfer_refit *refit;
} job;

/* Do these options go together, and with --problem LINE (NULL: not given)? 0, or ARGS_WRONG after a
 * sentence on stderr. */
int job_check(const job_args *args, const char *problem);
/* 0; ARGS_WRONG after a sentence on stderr about the options; else EXIT_FAILURE, with
 * xfer_last_error(). */
int job_create(job *out, const job_args *args);
/* The sides and the refit of a model that is read already, which stays the caller's, as do the
 * rules (NULL: the library's own). */
xfer_status job_join(job *out, const job_args *args, xfer_model *model, const xfer_rules *rules);
void job_destroy(job *made);

#endif
