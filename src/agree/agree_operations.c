/*
 * Agreement on operations. A rank adds up digests of all that it sends, each of the two ranks, the
 * id and the array, and takes away those of all that it receives. Over all ranks nothing is left if
 * and only if each send is one receive, so that one gathering of a digest settles it, whatever the
 * number of ranks and of operations. Where something is left, the sums of each pair show which pair
 * it is, and the two tell each other their lists.
 */
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "alloc.h"
#include "dtype.h"
#include "error.h"
#include "operations.h"
#include "statement.h"

/* An operation as its two ends must have it. No padding: it is hashed and sent as it is. */
typedef struct told {
  uint64_t id;
  int32_t src;
  int32_t dst;
  int32_t dtype;
  int32_t n_dims;
  int64_t shape[XFER_MAX_DIMS];
} told;

typedef struct sum {
  uint64_t words[2];
} sum;

static told tell(const xfer_operation *op, int rank, bool send)
{
  told t = {op->id, send ? rank : op->peer, send ? op->peer : rank, op->dtype, op->n_dims, {0}};

  for (int d = 0; d < op->n_dims; d++)
    t.shape[d] = op->shape[d];
  return t;
}

/* Each operation of a list is added to the sum that `of_peer` has of its peer; or all to one. */
static void add_list(sum *sums, bool of_peer, const xfi_op_list *list, int rank, bool send)
{
  for (size_t i = 0; i < list->n; i++) {
    const told t = tell(&list->at[i], rank, send);
    const XXH128_hash_t hash = XXH3_128bits(&t, sizeof t);
    sum *s = of_peer ? &sums[list->at[i].peer] : sums;

    s->words[0] += hash.low64;
    s->words[1] += hash.high64;
  }
}

/* ---- what differs ---- */

enum { TEXT_BYTES = 200 };

/* What two ranks have of the same pair. */
typedef struct lists {
  told *at[2]; /* what is sent, what is received */
  size_t n[2];
} lists;

static const xfi_op_key *keys_of(const xfi_op_list *list, int peer, size_t *n)
{
  size_t first = 0;

  while (first < list->n && list->keys[first].peer != peer)
    first++;
  for (*n = 0; first + *n < list->n && list->keys[first + *n].peer == peer;)
    ++*n;
  return list->keys + first;
}

/* This rank's side of a pair's operations. A rank without memory lets its peers go. */
static xfer_status list_mine(lists *l, xfi_comm *comm, const xfi_operations *ops, int peer,
                             bool send)
{
  const xfi_op_list *list = send ? &ops->sends : &ops->recvs;
  const int side = send ? 0 : 1;
  xfer_status st = XFER_OK;
  const xfi_op_key *keys = keys_of(list, peer, &l->n[side]);

  l->at[side] = xfi_comm_calloc(comm, l->n[side], sizeof(told));
  XFI_CHECK(l->at[side] != NULL, XFER_ERR_NOMEM, "%zu operations", l->n[side]);
  for (size_t i = 0; i < l->n[side]; i++)
    l->at[side][i] = tell(&list->at[keys[i].index], ops->rank, send);
done:
  return st;
}

/* Tell the peer this rank's side, `mine`, and hear the other. Of the pair or not, every rank makes
 * the two calls: a comm may carry them by gathering. */
static xfer_status exchange_lists(lists *l, xfi_comm *comm, bool has_peer, int mine, int peer,
                                  xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  const int n = has_peer ? 1 : 0;
  const int other = 1 - mine;
  uint64_t n_mine = l->n[mine];
  uint64_t n_other = 0;
  xfi_message to = {&n_mine, sizeof n_mine, peer};
  xfi_message from = {&n_other, sizeof n_other, peer};

  XFI_TRY(comm->ops->exchange(comm, &to, n, &from, n, deadline));
  if (!has_peer) return comm->ops->exchange(comm, NULL, 0, NULL, 0, deadline);
  l->n[other] = n_other;
  l->at[other] = xfi_comm_calloc(comm, n_other, sizeof(told));
  XFI_CHECK(l->at[other] != NULL, XFER_ERR_NOMEM, "%llu operations", (unsigned long long)n_other);
  to = (xfi_message){l->at[mine], n_mine * sizeof(told), peer};
  from = (xfi_message){l->at[other], n_other * sizeof(told), peer};
  XFI_TRY(comm->ops->exchange(comm, &to, n_mine > 0 ? 1 : 0, &from, n_other > 0 ? 1 : 0, deadline));
done:
  return st;
}

static int print_array(char *text, size_t n_bytes, const told *t)
{
  int n = snprintf(text, n_bytes, "%s[", xfi_dtype_name(t->dtype));

  for (int d = 0; d < t->n_dims && d < XFER_MAX_DIMS; d++) /* a peer may say any number */
    n +=
        snprintf(text + n, n_bytes - (size_t)n, "%s%lld", d > 0 ? "," : "", (long long)t->shape[d]);
  return n + snprintf(text + n, n_bytes - (size_t)n, "]");
}

/* The first difference of two lists in order of id. */
static void say_difference(char text[TEXT_BYTES], const lists *l, int src, int dst)
{
  char sent[200] = "nothing"; /* an array of 8 dims has 20 digits in each at most */
  char received[200] = "nothing";
  size_t i = 0;
  uint64_t id;

  while (i < l->n[0] && i < l->n[1] && memcmp(&l->at[0][i], &l->at[1][i], sizeof(told)) == 0)
    i++;
  id = i < l->n[0] ? l->at[0][i].id : UINT64_MAX;
  if (i < l->n[1] && l->at[1][i].id < id) id = l->at[1][i].id;
  if (i < l->n[0] && l->at[0][i].id == id) (void)print_array(sent, sizeof sent, &l->at[0][i]);
  if (i < l->n[1] && l->at[1][i].id == id)
    (void)print_array(received, sizeof received, &l->at[1][i]);
  (void)snprintf(text, TEXT_BYTES,
                 "operation %llu from rank %d to rank %d: the one sends %.50s, the other expects "
                 "%.50s",
                 (unsigned long long)id, src, dst, sent, received);
}

/* Of the first pair that differs, on its two ranks. */
static xfer_status compare_pair(char text[TEXT_BYTES], xfi_comm *comm, const xfi_operations *ops,
                                int src, int dst, xfi_deadline deadline)
{
  const bool is_end = comm->rank == src || comm->rank == dst;
  xfer_status st = XFER_OK;
  lists l = {{NULL, NULL}, {0, 0}};

  if (comm->rank == src) XFI_TRY(list_mine(&l, comm, ops, dst, true));
  if (comm->rank == dst) XFI_TRY(list_mine(&l, comm, ops, src, false));
  XFI_TRY(exchange_lists(&l, comm, is_end && src != dst, comm->rank == src ? 0 : 1,
                         comm->rank == src ? dst : src, deadline));
  if (is_end) say_difference(text, &l, src, dst);
done:
  xfi_free(l.at[0]);
  xfi_free(l.at[1]);
  return st;
}

/* The first pair whose sums differ. all is [size][2][size]: what each rank sends, and receives. */
static xfer_status find_pair(int *src, int *dst, const sum *all, int size)
{
  const size_t n = (size_t)size;
  xfer_status st = XFER_OK;

  for (size_t pair = 0; pair < n * n; pair++) {
    const size_t s = pair / n;
    const size_t d = pair % n;

    *src = (int)s;
    *dst = (int)d;
    if (memcmp(&all[(2 * s) * n + d], &all[(2 * d + 1) * n + s], sizeof *all) != 0) return XFER_OK;
  }
  XFI_CHECK(false, XFER_ERR_INTERNAL, "operations differ, and those of each pair do not");
done:
  return st;
}

/* Every rank ends here with XFER_ERR_MISMATCH, and all with the same text. */
static xfer_status report_difference(xfi_comm *comm, const xfi_operations *ops,
                                     xfi_deadline deadline)
{
  const size_t n = (size_t)comm->size;
  xfer_status st = XFER_OK;
  sum *mine = xfi_comm_calloc(comm, 2 * n, sizeof *mine);
  sum *all = xfi_comm_calloc(comm, 2 * n * n, sizeof *all);
  char(*texts)[TEXT_BYTES] = xfi_comm_calloc(comm, n, sizeof *texts);
  char text[TEXT_BYTES] = {0};
  int src;
  int dst;

  XFI_CHECK(mine != NULL && all != NULL && texts != NULL, XFER_ERR_NOMEM, "%zu ranks", n);
  add_list(mine, true, &ops->sends, comm->rank, true);
  add_list(mine + n, true, &ops->recvs, comm->rank, false);
  XFI_TRY(comm->ops->all_gather(comm, all, mine, 2 * n * sizeof *mine, deadline));
  XFI_TRY(find_pair(&src, &dst, all, comm->size));
  XFI_TRY(compare_pair(text, comm, ops, src, dst, deadline));
  XFI_TRY(comm->ops->all_gather(comm, texts, text, sizeof text, deadline));
  XFI_CHECK(false, XFER_ERR_MISMATCH, "%.*s", (int)TEXT_BYTES - 1, texts[src]);
done:
  xfi_free(mine);
  xfi_free(all);
  xfi_free(texts);
  return st;
}

xfer_status xfi_operations_agree(xfi_comm *comm, xfer_status mine, const xfi_operations *ops,
                                 const xfer_plan_options *options, xfi_deadline deadline)
{
  xfer_status st = mine;
  xfi_statement said;
  xfi_statement *all = NULL;
  sum sent = {{0, 0}};
  sum received = {{0, 0}};
  sum left = {{0, 0}};

  xfi_statement_begin(&said, XFI_OF_OPERATIONS, options);
  if (mine == XFER_OK) {
    add_list(&sent, false, &ops->sends, comm->rank, true);
    add_list(&received, false, &ops->recvs, comm->rank, false);
    for (int k = 0; k < 2; k++)
      said.digest[k] = sent.words[k] - received.words[k];
  }
  all = xfi_statements_exchange(comm, &st, &said, options, deadline);
  XFI_TRY(st);
  for (int r = 0; r < comm->size; r++)
    for (int k = 0; k < 2; k++)
      left.words[k] += all[r].digest[k];
  if (left.words[0] != 0 || left.words[1] != 0) XFI_TRY(report_difference(comm, ops, deadline));
done:
  xfi_free(all);
  return st;
}
