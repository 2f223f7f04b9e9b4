/*
 * What each rank states as a plan is made, and what must be equal whatever is planned: the version
 * of the library's arithmetic, the options, and that no rank has failed.
 */
#ifndef XFI_STATEMENT_H
#define XFI_STATEMENT_H

#include "comm.h"
#include "xfer/plan.h"

/* What is planned. */
typedef enum xfi_subject { XFI_OF_TENSORS = 1, XFI_OF_OPERATIONS = 2 } xfi_subject;

typedef struct xfi_statement {
  uint64_t version;   /* version of the library's arithmetic */
  uint64_t n_tensors; /* 0 for operations */
  uint64_t options[2];
  uint64_t digest[2]; /* of the tensors' names and layouts, not compared while some layouts are
                         open; or of operations, the sum of all sends minus that of all receives */
  uint64_t names[2];  /* digest of the tensors' names */
  uint64_t subject;   /* xfi_subject */
  uint64_t n_open;    /* layouts that the rank lacks, or of which it knows only its own boxes */
} xfi_statement;

/* Fills in all that does not depend on the subject. */
void xfi_statement_begin(xfi_statement *statement, xfi_subject subject,
                         const xfer_plan_options *options);

/* Collective: gather all statements, and compare them with rank 0's. Agrees on *st, the result of
 * this rank's own checks, as xfi_comm_agree_gather(). The caller frees the statements also after a
 * failure. */
xfi_statement *xfi_statements_exchange(xfi_comm *comm, xfer_status *st,
                                       const xfi_statement *statement,
                                       const xfer_plan_options *options, xfi_deadline deadline);

#endif
