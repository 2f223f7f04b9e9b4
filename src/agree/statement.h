/*
 * What each rank says of itself as a plan is made, and what must be equal whatever is planned: the
 * version of the library's arithmetic, the options, and that nobody has failed.
 */
#ifndef XFI_STATEMENT_H
#define XFI_STATEMENT_H

#include "comm.h"
#include "xfer/plan.h"

/* What is planned. */
typedef enum xfi_subject { XFI_OF_TENSORS = 1, XFI_OF_OPERATIONS = 2 } xfi_subject;

typedef struct xfi_statement {
  uint64_t version;
  uint64_t n_tensors; /* 0 of operations */
  uint64_t options[2];
  uint64_t digest[2]; /* of tensors: of names and layouts; not compared while some are open. Of
                         operations: what is sent less what is received */
  uint64_t names[2];  /* digest of those of tensors */
  uint64_t subject;   /* xfi_subject */
  uint64_t n_open;    /* layouts that it lacks, or of which it has its own boxes only */
} xfi_statement;

/* All but what depends on the subject. */
void xfi_statement_begin(xfi_statement *said, xfi_subject subject,
                         const xfer_plan_options *options);

/* Collective: hear what all say, and compare it with what rank 0 says. As xfi_comm_agree_gather(),
 * of *st, what this rank's own checks came to; to be freed whatever it becomes. */
xfi_statement *xfi_statements_exchange(xfi_comm *comm, xfer_status *st, const xfi_statement *said,
                                       const xfer_plan_options *options, xfi_deadline deadline);

#endif
