/*
 * Agreement on operations. A rank adds up the digests of all that it sends (of both ranks, the id
 * and the array), and subtracts those of all that it receives. The sum over all ranks is 0 if and
 * only if each send matches one receive, so one all-gather of a digest settles it, whatever the
 * number of ranks and of operations. If it is not 0, the sums of each pair of ranks show which pair
 * differs, and the two tell all ranks what they have.
 */
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "alloc.h"
#include "dtype.h"
#include "error.h"
#include "operations.h"
#include "statement.h"
#include "text.h"

/* An operation as its two ends must have it. No padding: it is hashed and sent as it is. */
typedef struct record {
  uint64_t id;
  int32_t src;
  int32_t dst;
  int32_t dtype;
  int32_t n_dims;
  int64_t shape[XFER_MAX_DIMS];
} record;

typedef struct sum {
  uint64_t words[2];
} sum;

static record record_of(const xfer_operation *op, int rank, bool send)
{
  record t = {op->id, send ? rank : op->peer, send ? op->peer : rank, op->dtype, op->n_dims, {0}};

  for (int d = 0; d < op->n_dims; d++)
    t.shape[d] = op->shape[d];
  return t;
}

/* Add each operation of a list to one sum or, with `of_peer`, to the sum of its peer. */
static void add_list(sum *sums, bool of_peer, const xfi_op_list *list, int rank, bool send)
{
  for (size_t i = 0; i < list->n; i++) {
    const record t = record_of(&list->at[i], rank, send);
    const XXH128_hash_t hash = XXH3_128bits(&t, sizeof t);
    sum *s = of_peer ? &sums[list->at[i].peer] : sums;

    s->words[0] += hash.low64;
    s->words[1] += hash.high64;
  }
}

/* ---- what differs ---- */

enum { TEXT_BYTES = 200, STEP = 32 };

static const xfi_op_key *keys_of(const xfi_op_list *list, int peer, size_t *n)
{
  const size_t first = xfi_op_list_find(list, peer);

  *n = xfi_op_list_find(list, peer + 1) - first;
  return list->keys + first;
}

static void print_array(char *text, size_t n_bytes, const record *t)
{
  xfi_text out;

  xfi_text_fixed(&out, text, n_bytes);
  xfi_text_printf(&out, "%s[", xfi_dtype_name(t->dtype));
  for (int d = 0; d < t->n_dims && d < XFER_MAX_DIMS; d++) /* a peer may send any number */
    xfi_text_printf(&out, "%s%lld", d > 0 ? "," : "", (long long)t->shape[d]);
  xfi_text_printf(&out, "]");
}

/* Say how two operations differ that should match. */
static void print_difference(char text[TEXT_BYTES], const record *sent, const record *received,
                             int src, int dst)
{
  char arrays[2][200] = {"nothing", "nothing"};
  const uint64_t id = sent->id < received->id ? sent->id : received->id;

  if (sent->n_dims >= 0 && sent->id == id) print_array(arrays[0], sizeof *arrays, sent);
  if (received->n_dims >= 0 && received->id == id) print_array(arrays[1], sizeof *arrays, received);
  (void)snprintf(text, TEXT_BYTES,
                 "operation %llu from rank %d to rank %d: the one sends %.50s, the other expects "
                 "%.50s",
                 (unsigned long long)id, src, dst, arrays[0], arrays[1]);
}

/* Finds the first difference between the operations of a pair of ranks. These are sorted by id, and
 * the two ranks send them to all, some at a time. */
static xfer_status compare_pair(char text[TEXT_BYTES], xfi_comm *comm, const xfi_operations *ops,
                                int src, int dst, xfi_deadline deadline)
{
  const record none = {.id = UINT64_MAX, .n_dims = -1};
  size_t n[2];
  const xfi_op_key *keys[2] = {keys_of(&ops->sends, dst, &n[0]), keys_of(&ops->recvs, src, &n[1])};
  record mine[2][STEP]; /* what is sent, what is received */
  record(*all)[2][STEP] = xfi_comm_calloc(comm, (size_t)comm->size, sizeof *all);
  xfer_status st = XFER_OK;
  size_t k = STEP;

  XFI_CHECK_DONE(all != NULL, XFER_ERR_NOMEM, "%d ranks", comm->size);
  if (comm->rank != src) n[0] = 0;
  if (comm->rank != dst) n[1] = 0;
  for (size_t first = 0; k == STEP; first += STEP) {
    for (size_t i = 0; i < STEP; i++) {
      mine[0][i] = mine[1][i] = none;
      if (first + i < n[0])
        mine[0][i] = record_of(&ops->sends.at[keys[0][first + i].index], src, true);
      if (first + i < n[1])
        mine[1][i] = record_of(&ops->recvs.at[keys[1][first + i].index], dst, false);
    }
    XFI_TRY_DONE(comm->ops->all_gather(comm, all, mine, sizeof mine, deadline));
    const record *sent = all[src][0];
    const record *received = all[dst][1];
    for (k = 0; k < STEP && sent[k].n_dims >= 0; k++)
      if (memcmp(&sent[k], &received[k], sizeof *sent) != 0) break;
    if (k < STEP) print_difference(text, &sent[k], &received[k], src, dst);
  }
done:
  xfi_free(all);
  return st;
}

/* The first pair whose sums differ. all is [size][2][size]: what each rank sends, and receives. */
static xfer_status find_pair(int *src, int *dst, const sum *all, int size)
{
  const size_t n = (size_t)size;

  for (size_t pair = 0; pair < n * n; pair++) {
    const size_t s = pair / n;
    const size_t d = pair % n;

    *src = (int)s;
    *dst = (int)d;
    if (memcmp(&all[(2 * s) * n + d], &all[(2 * d + 1) * n + s], sizeof *all) != 0) return XFER_OK;
  }
  return XFI_ERROR(XFER_ERR_INTERNAL, "operations differ, and those of each pair do not");
}

/* Report the first difference. Every rank gets XFER_ERR_MISMATCH, with the same text. */
static xfer_status report_difference(xfi_comm *comm, const xfi_operations *ops,
                                     xfi_deadline deadline)
{
  const size_t n = (size_t)comm->size;
  xfer_status st = XFER_OK;
  sum *mine = xfi_comm_calloc(comm, 2 * n, sizeof *mine);
  sum *all = xfi_comm_calloc(comm, 2 * n * n, sizeof *all);
  char text[TEXT_BYTES];
  int src;
  int dst;

  XFI_CHECK_DONE(mine != NULL && all != NULL, XFER_ERR_NOMEM, "%zu ranks", n);
  add_list(mine, true, &ops->sends, comm->rank, true);
  add_list(mine + n, true, &ops->recvs, comm->rank, false);
  XFI_TRY_DONE(comm->ops->all_gather(comm, all, mine, 2 * n * sizeof *mine, deadline));
  XFI_TRY_DONE(find_pair(&src, &dst, all, comm->size));
  XFI_TRY_DONE(compare_pair(text, comm, ops, src, dst, deadline));
  XFI_CHECK_DONE(false, XFER_ERR_MISMATCH, "%s", text);
done:
  xfi_free(mine);
  xfi_free(all);
  return st;
}

xfer_status xfi_operations_agree(xfi_comm *comm, xfer_status mine, const xfi_operations *ops,
                                 const xfer_plan_options *options, xfi_deadline deadline)
{
  xfer_status st = mine;
  xfi_statement statement;
  xfi_statement *all = NULL;
  sum sent = {{0, 0}};
  sum received = {{0, 0}};
  sum left = {{0, 0}};

  xfi_statement_begin(&statement, XFI_OF_OPERATIONS, options);
  if (mine == XFER_OK) {
    add_list(&sent, false, &ops->sends, comm->rank, true);
    add_list(&received, false, &ops->recvs, comm->rank, false);
    for (int k = 0; k < 2; k++)
      statement.digest[k] = sent.words[k] - received.words[k];
  }
  all = xfi_statements_exchange(comm, &st, &statement, options, deadline);
  XFI_TRY_DONE(st);
  for (int r = 0; r < comm->size; r++)
    for (int k = 0; k < 2; k++)
      left.words[k] += all[r].digest[k];
  if (left.words[0] != 0 || left.words[1] != 0)
    XFI_TRY_DONE(report_difference(comm, ops, deadline));
done:
  xfi_free(all);
  return st;
}
