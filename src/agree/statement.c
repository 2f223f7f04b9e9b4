/*
 * Statements: one all-gather, and a second one only where options differ, to say which.
 */
#include "statement.h"

#include <string.h>

#include <xxhash.h>

#include "alloc.h"
#include "error.h"

/* A change of the plan's arithmetic or of the messages between ranks changes this. */
#define PLAN_VERSION 14

void xfi_statement_begin(xfi_statement *statement, xfi_subject subject,
                         const xfer_plan_options *options)
{
  const XXH128_hash_t hash = XXH3_128bits(options, sizeof *options);

  memset(statement, 0, sizeof *statement);
  statement->version = PLAN_VERSION;
  statement->subject = subject;
  statement->options[0] = hash.low64;
  statement->options[1] = hash.high64;
}

static const char *subject_name(uint64_t subject)
{
  return subject == XFI_OF_TENSORS ? "tensors" : "an exchange";
}

/* Compares everything but tensors and options. `all` has shape [size]. */
static xfer_status compare_statements(const xfi_comm *comm, const xfi_statement *all)
{
  for (int r = 1; r < comm->size; r++) {
    const xfi_statement *s = &all[r];

    XFI_CHECK(s->version == all[0].version, XFER_ERR_MISMATCH,
              "rank %d plans by version %llu, rank 0 by %llu", r, (unsigned long long)s->version,
              (unsigned long long)all[0].version);
    XFI_CHECK(s->subject == all[0].subject, XFER_ERR_MISMATCH, "rank %d plans %s, rank 0 %s", r,
              subject_name(s->subject), subject_name(all[0].subject));
  }
  return XFER_OK;
}

/* The options by name, for the text, and the names of their values. */
static const struct {
  const char *name;
  size_t at;
  size_t n_bytes;
  const char *values;
} option_fields[] = {
#define OPTION(field, values)                                                                      \
  {                                                                                                \
#field, offsetof(xfer_plan_options, field), sizeof(((xfer_plan_options *)NULL)->field), values \
  }
    OPTION(struct_size, ""),      OPTION(max_staging_bytes, ""),
    OPTION(window_bytes, ""),     OPTION(min_broadcast_saving_bytes, ""),
    OPTION(timeout_ms, ""),       OPTION(lane, " (0 auto, 1 direct, 2 packed, 3 broadcast)"),
    OPTION(ranks_per_domain, ""), OPTION(flags, " (1 verify, 2 staged, 4 fresh sources)"),
    OPTION(reserved, ""),
#undef OPTION
};

static unsigned long long option_value(const xfer_plan_options *options, size_t field)
{
  const char *at = (const char *)options + option_fields[field].at;
  uint64_t wide = 0;
  uint32_t narrow = 0;

  if (option_fields[field].n_bytes == sizeof wide)
    memcpy(&wide, at, sizeof wide);
  else
    memcpy(&narrow, at, sizeof narrow);
  return wide + narrow;
}

/* Every rank sees in the statements whether options differ; only then are they sent in full. */
static xfer_status compare_options(xfi_comm *comm, const xfi_statement *statement,
                                   const xfer_plan_options *options, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  xfer_plan_options *all = NULL;
  bool same = true;

  for (int r = 1; r < comm->size; r++)
    same = same &&
           memcmp(statement[r].options, statement[0].options, sizeof statement[0].options) == 0;
  if (same) return XFER_OK;
  all = xfi_comm_agree_gather(comm, &st, options, sizeof *options, deadline);
  XFI_TRY_DONE(st);
  for (int r = 1; r < comm->size; r++)
    for (size_t f = 0; f < sizeof option_fields / sizeof *option_fields; f++)
      XFI_CHECK_DONE(option_value(&all[r], f) == option_value(&all[0], f), XFER_ERR_MISMATCH,
                     "plan option %s is %llu on rank %d, %llu on rank 0%s", option_fields[f].name,
                     option_value(&all[r], f), r, option_value(&all[0], f),
                     option_fields[f].values);
done:
  xfi_free(all);
  return st;
}

xfi_statement *xfi_statements_exchange(xfi_comm *comm, xfer_status *st,
                                       const xfi_statement *statement,
                                       const xfer_plan_options *options, xfi_deadline deadline)
{
  xfi_statement *all = xfi_comm_agree_gather(comm, st, statement, sizeof *statement, deadline);

  if (all == NULL) return NULL;
  *st = compare_statements(comm, all);
  if (*st == XFER_OK) *st = compare_options(comm, all, options, deadline);
  return all;
}
