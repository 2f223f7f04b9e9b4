/*
 * Agreement on metadata. In the usual case one all-gather of digests. Where some rank lacks
 * layouts, the lowest rank that has any that are still missing sends all it has to everybody, until
 * nobody has more. Where digests differ, a bisection over prefixes of the tensor list finds the
 * first difference.
 */
#include "agree.h"

#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "agree_own.h"
#include "alloc.h"
#include "error.h"
#include "numbers.h"
#include "problem.h"
#include "serial.h"
#include "statement.h"
#include "vec.h"

static void hash_tensor(XXH3_state_t *state, const xfer_tensor *t)
{
  const uint64_t none[2] = {0, 0};

  XXH3_128bits_update(state, t->name, strlen(t->name) + 1);
  XXH3_128bits_update(state, t->src == NULL ? none : t->src->digest, sizeof none);
  XXH3_128bits_update(state, t->dst == NULL ? none : t->dst->digest, sizeof none);
  XXH3_128bits_update(state, &t->conversion, sizeof t->conversion);
}

/* Of tensors [0, n). */
static void hash_tensors(uint64_t digest[2], const xfer_tensor *tensors, size_t n)
{
  XXH3_state_t state;
  XXH128_hash_t hash;

  XXH3_128bits_reset(&state);
  for (size_t t = 0; t < n; t++)
    hash_tensor(&state, &tensors[t]);
  hash = XXH3_128bits_digest(&state);
  digest[0] = hash.low64;
  digest[1] = hash.high64;
}

/* ---- layouts that some rank lacks ---- */

/* What one rank tells the others, a parcel: n layouts as (length, bytes), then a triple for each
 * use. */

static const xfer_layout **side_of(xfer_tensor *t, int side)
{
  return side == 0 ? &t->src : &t->dst;
}

/* Everything this rank was given that the agreed table still lacks. */
static xfer_status make_parcel(xfi_bytes *p, const xfi_agreed *agreed, const xfer_tensor *tensors)
{
  xfer_status st = XFER_OK;
  uint64_t n_layouts;
  xfi_numbers known = {0};
  xfi_bytes layouts = {NULL, 0, 0};
  xfi_bytes uses = {NULL, 0, 0};

  XFI_TRY(xfi_numbers_create(&known, NULL, 2 * agreed->n_tensors));
  for (size_t t = 0; t < agreed->n_tensors; t++) {
    for (int side = 0; side < 2; side++) {
      xfer_tensor given = tensors[t];
      const xfer_layout *layout = *side_of(&given, side);
      uint64_t use[3] = {t, (uint64_t)side, 0};
      const size_t n_before = known.n;

      if (layout == NULL || *side_of(&agreed->tensors[t], side) != NULL) continue;
      use[2] = xfi_number_of(&known, layout->digest);
      if (known.n > n_before) XFI_TRY(xfi_layout_put(&layouts, layout));
      XFI_TRY(xfi_bytes_put(&uses, use, sizeof use));
    }
  }
  n_layouts = known.n;
  XFI_TRY(xfi_bytes_put(p, &n_layouts, sizeof n_layouts));
  XFI_TRY(xfi_bytes_put(p, layouts.at, layouts.n));
  XFI_TRY(xfi_bytes_put(p, uses.at, uses.n));
done:
  xfi_numbers_free(&known);
  xfi_bytes_free(&layouts);
  xfi_bytes_free(&uses);
  return st;
}

/* Fill the agreed table from a parcel. */
static xfer_status read_parcel(xfi_agreed *agreed, const xfi_bytes *p)
{
  xfer_status st = XFER_OK;
  xfi_reader r = {p->at, p->n, false};
  xfer_layout **layouts = NULL;
  uint64_t n;

  xfi_reader_take(&r, &n, sizeof n);
  XFI_CHECK(!r.failed && n <= r.n_left, XFER_ERR_MISMATCH,
            "a received list of layouts is malformed");
  layouts = xfi_calloc(n, sizeof(xfer_layout *));
  XFI_CHECK(layouts != NULL, XFER_ERR_NOMEM, "%llu layouts", (unsigned long long)n);
  for (uint64_t i = 0; i < n; i++)
    XFI_TRY(xfi_layout_take(&layouts[i], &r));
  while (r.n_left > 0) {
    const xfer_layout **slot;
    uint64_t use[3];

    xfi_reader_take(&r, use, sizeof use);
    XFI_CHECK(!r.failed && use[0] < agreed->n_tensors && use[1] < 2 && use[2] < n,
              XFER_ERR_MISMATCH, "a received list of layouts is malformed");
    slot = side_of(&agreed->tensors[use[0]], (int)use[1]);
    if (*slot == NULL) *slot = xfi_layout_share(layouts[use[2]]);
  }
done:
  for (uint64_t i = 0; layouts != NULL && i < n; i++)
    xfi_layout_destroy(layouts[i]);
  xfi_free(layouts);
  return st;
}

/* Room for the messages, and on other ranks than root for the parcel. */
static xfer_status make_room(xfi_message **messages, xfi_bytes *p, const xfi_comm *comm, int root,
                             uint64_t n_bytes)
{
  xfer_status st = XFER_OK;

  *messages = xfi_calloc((size_t)comm->size, sizeof **messages);
  XFI_CHECK(*messages != NULL, XFER_ERR_NOMEM, "%d ranks", comm->size);
  if (comm->rank == root) return XFER_OK;
  p->n = 0;
  XFI_TRY(xfi_vec_reserve(&p->at, &p->capacity, n_bytes, 1));
  p->n = n_bytes;
done:
  return st;
}

/* root's parcel to every rank, if all are well so far. */
static xfer_status send_parcel(xfi_comm *comm, xfi_bytes *p, int root, xfer_status mine,
                               xfi_deadline deadline)
{
  const uint64_t n_bytes = p->n;
  xfer_status st = mine;
  xfi_message *messages = NULL;
  uint64_t *sizes = xfi_comm_hear(comm, &st, &n_bytes, sizeof n_bytes, deadline);
  int n = 0;

  XFI_TRY(st);
  st = make_room(&messages, p, comm, root, sizes[root]);
  XFI_TRY(xfi_comm_agree(comm, st, deadline));
  if (comm->rank == root) {
    for (int r = 0; r < comm->size; r++)
      if (r != root) messages[n++] = (xfi_message){p->at, p->n, r};
    XFI_TRY(comm->ops->exchange(comm, messages, n, NULL, 0, deadline));
  } else {
    messages[0] = (xfi_message){p->at, p->n, root};
    XFI_TRY(comm->ops->exchange(comm, NULL, 0, messages, 1, deadline));
  }
done:
  xfi_free(messages);
  xfi_free(sizes);
  return st;
}

/* The lowest rank that can fill a gap in the agreed table; -1: none can. */
static xfer_status next_teller(int *teller, xfi_comm *comm, const xfi_agreed *agreed,
                               const xfer_tensor *tensors, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  unsigned char *all = NULL; /* as others have it: no bool before it is known to be 0 or 1 */
  unsigned char can = 0;

  for (size_t t = 0; t < agreed->n_tensors && can == 0; t++)
    can = (tensors[t].src != NULL && agreed->tensors[t].src == NULL) ||
          (tensors[t].dst != NULL && agreed->tensors[t].dst == NULL);
  all = xfi_comm_hear(comm, &st, &can, sizeof can, deadline);
  XFI_TRY(st);
  *teller = -1;
  for (int r = comm->size - 1; r >= 0; r--)
    if (all[r] != 0) *teller = r;
done:
  xfi_free(all);
  return st;
}

/* Fill the agreed table from what all ranks know together. */
static xfer_status share_layouts(xfi_agreed *agreed, xfi_comm *comm, const xfer_tensor *tensors,
                                 xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  xfi_bytes p = {NULL, 0, 0};
  int teller = 0;

  for (;;) {
    XFI_TRY(next_teller(&teller, comm, agreed, tensors, deadline));
    if (teller < 0) break;
    p.n = 0;
    st = comm->rank == teller ? make_parcel(&p, agreed, tensors) : XFER_OK;
    XFI_TRY(send_parcel(comm, &p, teller, st, deadline));
    st = read_parcel(agreed, &p);
    XFI_TRY(xfi_comm_agree(comm, st, deadline));
  }
  for (size_t t = 0; t < agreed->n_tensors; t++) {
    const xfer_tensor *a = &agreed->tensors[t];

    XFI_CHECK(a->src != NULL && a->dst != NULL, XFER_ERR_ARG,
              "tensor %zu \"%s\": no rank gave its %s layout", t, a->name,
              a->src == NULL ? "source" : "destination");
  }
done:
  xfi_bytes_free(&p);
  return st;
}

/* ---- the first difference ---- */

static xfer_status same_everywhere(bool *same, xfi_comm *comm, const uint64_t digest[2],
                                   xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  uint64_t(*all)[2] = xfi_comm_hear(comm, &st, digest, sizeof *all, deadline);

  XFI_TRY(st);
  *same = true;
  for (int r = 1; r < comm->size; r++)
    *same = *same && memcmp(all[r], all[0], sizeof *all) == 0;
done:
  xfi_free(all);
  return st;
}

/* The first tensor that is not the same everywhere, by bisection over prefixes. */
static xfer_status find_difference(size_t *first, xfi_comm *comm, const xfer_tensor *tensors,
                                   size_t n, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  size_t lo = 0; /* prefixes of lo tensors are the same, of hi are not */
  size_t hi = n;

  while (hi - lo > 1) {
    const size_t mid = lo + (hi - lo) / 2;
    uint64_t digest[2];
    bool same = false;

    hash_tensors(digest, tensors, mid);
    XFI_TRY(same_everywhere(&same, comm, digest, deadline));
    if (same)
      lo = mid;
    else
      hi = mid;
  }
  *first = lo;
done:
  return st;
}

enum { DESCRIPTION_BYTES = 200 };

/* XFER_ERR_MISMATCH where the ranks' descriptions of a tensor differ. */
static xfer_status compare_descriptions(xfi_comm *comm, const char *what,
                                        const char mine[DESCRIPTION_BYTES], xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  char(*all)[DESCRIPTION_BYTES] = xfi_comm_hear(comm, &st, mine, sizeof *all, deadline);

  XFI_TRY(st);
  for (int r = 1; r < comm->size; r++)
    XFI_CHECK(memcmp(all[r], all[0], sizeof *all) == 0, XFER_ERR_MISMATCH,
              "%s: rank %d has %.*s, rank 0 has %.*s", what, r, DESCRIPTION_BYTES, all[r],
              DESCRIPTION_BYTES, all[0]);
done:
  xfi_free(all);
  return st;
}

/* Every rank ends here with XFER_ERR_MISMATCH, and all with the same text. Of a long name the end
 * tells more than the beginning. */
static xfer_status report_difference(xfi_comm *comm, const xfer_tensor *tensors, size_t n,
                                     xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  size_t t = 0;
  size_t length;
  char what[160];
  char mine[DESCRIPTION_BYTES] = {0};
  char how[64];

  XFI_TRY(find_difference(&t, comm, tensors, n, deadline));
  length = strlen(tensors[t].name);
  (void)snprintf(what, sizeof what, "tensor %zu", t);
  (void)snprintf(mine, sizeof mine, "\"%s\"", tensors[t].name + (length > 180 ? length - 180 : 0));
  XFI_TRY(compare_descriptions(comm, what, mine, deadline));
  (void)snprintf(what, sizeof what, "tensor %zu \"%s\"", t,
                 tensors[t].name + (length > 100 ? length - 100 : 0));
  memset(mine, 0, sizeof mine);
  (void)xfi_problem_format(mine, sizeof mine, tensors[t].src, tensors[t].dst);
  XFI_TRY(compare_descriptions(comm, what, mine, deadline));
  xfi_conversion_format(how, sizeof how, tensors[t].conversion);
  memset(mine, 0, sizeof mine);
  (void)snprintf(mine, sizeof mine, "conversion \"%s\"", how);
  XFI_TRY(compare_descriptions(comm, what, mine, deadline));
  XFI_CHECK(false, XFER_ERR_MISMATCH, "%s: ranks have different run tables or boxes", what);
done:
  return st;
}

/* What is agreed, where this rank was given something else: its own, so that the difference shows.
 */
static xfer_status compare_tensors(const xfi_agreed *agreed, xfi_comm *comm,
                                   const xfer_tensor *tensors, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  xfer_tensor *own = xfi_comm_calloc(comm, agreed->n_tensors, sizeof *own);
  uint64_t digest[2];
  bool same = false;

  XFI_CHECK(own != NULL, XFER_ERR_NOMEM, "%zu tensors", agreed->n_tensors);
  for (size_t t = 0; t < agreed->n_tensors; t++) {
    own[t] = agreed->tensors[t];
    own[t].conversion = tensors[t].conversion;
    if (tensors[t].src != NULL) own[t].src = tensors[t].src;
    if (tensors[t].dst != NULL) own[t].dst = tensors[t].dst;
  }
  hash_tensors(digest, own, agreed->n_tensors);
  XFI_TRY(same_everywhere(&same, comm, digest, deadline));
  if (!same) XFI_TRY(report_difference(comm, own, agreed->n_tensors, deadline));
done:
  xfi_free(own);
  return st;
}

static xfer_status settle(xfi_agreed *a, xfi_comm *comm, const xfi_statement *all,
                          const xfer_tensor *tensors, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  bool missing = false;
  bool same = true;

  for (int r = 0; r < comm->size; r++) {
    missing = missing || all[r].n_missing > 0;
    same = same && memcmp(all[r].digest, all[0].digest, sizeof all[0].digest) == 0;
  }
  if (!missing && !same) XFI_TRY(report_difference(comm, tensors, a->n_tensors, deadline));
  for (size_t t = 0; t < a->n_tensors; t++) {
    a->tensors[t].name = tensors[t].name;
    a->tensors[t].conversion = tensors[t].conversion;
    if (missing) continue;
    a->tensors[t].src = xfi_layout_share(tensors[t].src);
    a->tensors[t].dst = xfi_layout_share(tensors[t].dst);
  }
  if (!missing) return XFER_OK;
  XFI_TRY(share_layouts(a, comm, tensors, deadline));
  XFI_TRY(compare_tensors(a, comm, tensors, deadline));
done:
  return st;
}

/* Say all but own boxes, hear what the others say, and compare. */
static xfi_statement *exchange_statements(xfi_comm *comm, xfer_status *st,
                                          const xfer_tensor *tensors, size_t n_tensors,
                                          const xfer_plan_options *options, xfi_deadline deadline)
{
  xfi_statement said;

  xfi_statement_begin(&said, XFI_OF_TENSORS, options);
  if (*st == XFER_OK) {
    said.n_tensors = n_tensors;
    hash_tensors(said.digest, tensors, n_tensors);
    said.n_own = xfi_agree_count_own(tensors, n_tensors);
    for (size_t t = 0; t < n_tensors; t++)
      said.n_missing += tensors[t].src == NULL || tensors[t].dst == NULL;
  }
  return xfi_statements_exchange(comm, st, &said, options, deadline);
}

xfer_status xfi_agree_tensors(xfi_agreed *agreed, xfi_comm *comm, xfer_status mine,
                              const xfer_tensor *given, size_t n_tensors,
                              const xfer_plan_options *options, xfi_deadline deadline)
{
  xfer_status st = mine;
  bool any_own = false;
  xfi_statement *all = NULL;
  xfer_tensor *tensors = xfi_calloc(n_tensors, sizeof *tensors);
  xfi_agreed a = {xfi_calloc(n_tensors, sizeof *a.tensors), n_tensors};
  xfi_layouts made = {NULL, 0, 0};

  if (st == XFER_OK && (a.tensors == NULL || tensors == NULL))
    st = XFI_NO_MEMORY("%zu tensors", n_tensors);
  if (st == XFER_OK && n_tensors > 0) memcpy(tensors, given, n_tensors * sizeof *tensors);
  all = exchange_statements(comm, &st, tensors, n_tensors, options, deadline);
  XFI_TRY(st);
  for (int r = 0; r < comm->size; r++)
    any_own = any_own || all[r].n_own > 0;
  if (any_own) {
    XFI_TRY(xfi_agree_own(tensors, n_tensors, &made, comm, deadline));
    xfi_free(all);
    all = exchange_statements(comm, &st, tensors, n_tensors, options, deadline);
    XFI_TRY(st);
  }
  XFI_TRY(settle(&a, comm, all, tensors, deadline));

  *agreed = a;
  a.tensors = NULL;
done:
  xfi_agreed_free(&a);
  xfi_layouts_free(&made);
  xfi_free(tensors);
  xfi_free(all);
  return st;
}

void xfi_agreed_free(xfi_agreed *agreed)
{
  for (size_t t = 0; agreed->tensors != NULL && t < agreed->n_tensors; t++) {
    xfi_layout_destroy((xfer_layout *)agreed->tensors[t].src); /* ours: a share */
    xfi_layout_destroy((xfer_layout *)agreed->tensors[t].dst);
  }
  xfi_free(agreed->tensors);
  *agreed = (xfi_agreed){NULL, 0};
}
