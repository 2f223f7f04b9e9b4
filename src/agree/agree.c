/*
 * Agreement on metadata: usually one all-gather of digests. If some rank lacks layouts, or knows
 * only its own boxes, these are completed first (agree_fill.c). If digests differ, a bisection over
 * prefixes of the tensor list finds the first difference.
 */
#include "agree.h"

#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "agree_fill.h"
#include "alloc.h"
#include "error.h"
#include "problem.h"
#include "statement.h"

/* What is compared of one tensor. */
typedef void hash_fn(XXH3_state_t *state, const xfer_tensor *tensor);

static void hash_name(XXH3_state_t *state, const xfer_tensor *t)
{
  XXH3_128bits_update(state, t->name, strlen(t->name) + 1);
}

static void hash_all(XXH3_state_t *state, const xfer_tensor *t)
{
  const uint64_t none[2] = {0, 0};

  hash_name(state, t);
  XXH3_128bits_update(state, t->src == NULL ? none : t->src->digest, sizeof none);
  XXH3_128bits_update(state, t->dst == NULL ? none : t->dst->digest, sizeof none);
  XXH3_128bits_update(state, &t->conversion, sizeof t->conversion);
}

/* Must other ranks complete the layout? */
static bool is_open(const xfer_layout *layout)
{
  return layout == NULL || layout->is_own;
}

/* The digest of tensors [0, n). */
static void hash_tensors(uint64_t digest[2], hash_fn *hash_one, const xfer_tensor *tensors,
                         size_t n)
{
  XXH3_state_t state;
  XXH128_hash_t hash;

  XXH3_128bits_reset(&state);
  for (size_t t = 0; t < n; t++)
    hash_one(&state, &tensors[t]);
  hash = XXH3_128bits_digest(&state);
  digest[0] = hash.low64;
  digest[1] = hash.high64;
}

/* ---- the first difference ---- */

static xfer_status same_everywhere(bool *same, xfi_comm *comm, const uint64_t digest[2],
                                   xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  uint64_t(*all)[2] = xfi_comm_agree_gather(comm, &st, digest, sizeof *all, deadline);

  XFI_TRY_DONE(st);
  *same = true;
  for (int r = 1; r < comm->size; r++)
    *same = *same && memcmp(all[r], all[0], sizeof *all) == 0;
done:
  xfi_free(all);
  return st;
}

/* The first tensor that is not the same on all ranks, by bisection over prefixes of the list; the
 * whole list is known to differ. */
static xfer_status find_difference(size_t *first, xfi_comm *comm, hash_fn *hash_one,
                                   const xfer_tensor *tensors, size_t n, xfi_deadline deadline)
{
  size_t lo = 0; /* prefixes of lo tensors are the same, of hi are not */
  size_t hi = n;

  while (hi - lo > 1) {
    const size_t mid = lo + (hi - lo) / 2;
    uint64_t digest[2];
    bool same = false;

    hash_tensors(digest, hash_one, tensors, mid);
    XFI_TRY(same_everywhere(&same, comm, digest, deadline));
    if (same)
      lo = mid;
    else
      hi = mid;
  }
  *first = lo;
  return XFER_OK;
}

/* One tensor of a rank as text, and digests of what the text may have no room for. */
enum { DESCRIPTION_BYTES = 200, N_PARTS = 5 };
typedef struct description {
  char parts[N_PARTS][DESCRIPTION_BYTES]; /* name, layouts, source, destination, conversion */
  uint64_t meshes[2][2];                  /* digests of the source's and the destination's */
  uint64_t is_cut;                        /* the text of a layout was cut off */
} description;

/* The last bytes of a long name, since its end says more than its beginning. */
static const char *end_of(const char *name, size_t n_bytes)
{
  const size_t length = strlen(name);

  return name + (length > n_bytes ? length - n_bytes : 0);
}

static void describe(description *d, const xfer_tensor *tensor)
{
  const xfer_layout *sides[2] = {tensor->src, tensor->dst};
  char how[64];

  xfi_conversion_format(how, sizeof how, &tensor->conversion);
  (void)snprintf(d->parts[0], DESCRIPTION_BYTES, "\"%s\"", end_of(tensor->name, 180));
  (void)xfi_problem_format(d->parts[1], DESCRIPTION_BYTES, sides[0], sides[1]);
  for (int s = 0; s < 2; s++) {
    d->is_cut |= xfi_problem_format(d->parts[2 + s], DESCRIPTION_BYTES, s == 0 ? sides[0] : NULL,
                                    s == 1 ? sides[1] : NULL) >= DESCRIPTION_BYTES;
    if (sides[s] != NULL) memcpy(d->meshes[s], sides[s]->mesh->digest, sizeof d->meshes[s]);
  }
  (void)snprintf(
      d->parts[4], DESCRIPTION_BYTES,
      tensor->conversion.kind == XFER_CONVERSION_NONE ? "no conversion" : "conversion \"%s\"", how);
}

/* Report a difference that no text shows: layouts whose texts were cut off before it. */
static xfer_status report_rest(const description *all, int n_ranks, const char *what)
{
  static const char *const sides[2] = {"source", "destination"};

  for (int s = 0; s < 2; s++) {
    for (int r = 1; r < n_ranks; r++)
      XFI_CHECK(memcmp(all[r].meshes[s], all[0].meshes[s], sizeof all[0].meshes[s]) == 0,
                XFER_ERR_MISMATCH,
                "%s: the %s meshes of rank %d and rank 0 differ past what is shown here: %.*s",
                what, sides[s], r, DESCRIPTION_BYTES, all[0].parts[2 + s]);
  }
  XFI_CHECK(all[0].is_cut == 0, XFER_ERR_MISMATCH,
            "%s: ranks have layouts that differ past what is shown here: %.*s", what,
            DESCRIPTION_BYTES, all[0].parts[1]);
  xfi_set_error("%s: ranks have different run tables or boxes", what);
  return XFER_ERR_MISMATCH;
}

/* Report the first difference. Every rank gets XFER_ERR_MISMATCH, with the same text. */
static xfer_status report_difference(xfi_comm *comm, hash_fn *hash_one, const xfer_tensor *tensors,
                                     size_t n, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  size_t t = 0;
  char what[160];
  description mine = {.is_cut = 0};
  description *all = NULL;

  XFI_TRY_DONE(find_difference(&t, comm, hash_one, tensors, n, deadline));
  describe(&mine, &tensors[t]);
  all = xfi_comm_agree_gather(comm, &st, &mine, sizeof mine, deadline);
  XFI_TRY_DONE(st);
  (void)snprintf(what, sizeof what, "tensor %zu", t);
  for (int part = 0; part < N_PARTS; part++) {
    for (int r = 1; r < comm->size; r++)
      XFI_CHECK_DONE(memcmp(all[r].parts[part], all[0].parts[part], DESCRIPTION_BYTES) == 0,
                     XFER_ERR_MISMATCH, "%s: rank %d has %.*s, rank 0 has %.*s", what, r,
                     DESCRIPTION_BYTES, all[r].parts[part], DESCRIPTION_BYTES, all[0].parts[part]);
    (void)snprintf(what, sizeof what, "tensor %zu \"%s\"", t, end_of(tensors[t].name, 100));
  }
  st = report_rest(all, comm->size, what);
done:
  xfi_free(all);
  return st;
}

/* If the numbers of tensors differ, reports the first name that does, as report_difference(). */
static xfer_status compare_numbers(xfi_comm *comm, const xfi_statement *statement,
                                   const xfer_tensor *tensors, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  uint64_t n_of_all = statement[0].n_tensors;
  size_t t = 0;
  int other = 0; /* the first rank that has another number than rank 0, */
  int named = 1; /* and another tensor t */
  char mine[DESCRIPTION_BYTES] = "none";
  char(*all)[DESCRIPTION_BYTES] = NULL;

  for (int r = comm->size - 1; r > 0; r--) {
    if (statement[r].n_tensors != statement[0].n_tensors) other = r;
    if (statement[r].n_tensors < n_of_all) n_of_all = statement[r].n_tensors;
  }
  if (other == 0) return XFER_OK;
  XFI_TRY_DONE(find_difference(&t, comm, hash_name, tensors, n_of_all + 1, deadline));
  if (t < statement[comm->rank].n_tensors)
    (void)snprintf(mine, sizeof mine, "\"%s\"", end_of(tensors[t].name, 100));
  all = xfi_comm_agree_gather(comm, &st, mine, sizeof mine, deadline);
  XFI_TRY_DONE(st);
  while (named < comm->size - 1 && memcmp(all[named], all[0], sizeof all[0]) == 0)
    named++;
  XFI_CHECK_DONE(false, XFER_ERR_MISMATCH,
                 "rank %d has %llu tensors, rank 0 %llu: tensor %zu is %.*s on rank %d, %.*s on "
                 "rank 0",
                 other, (unsigned long long)statement[other].n_tensors,
                 (unsigned long long)statement[0].n_tensors, t, DESCRIPTION_BYTES, all[named],
                 named, DESCRIPTION_BYTES, all[0]);
done:
  xfi_free(all);
  return st;
}

/* ---- what all have ---- */

static void share_all(xfi_agreed *agreed, const xfer_tensor *tensors)
{
  for (size_t t = 0; t < agreed->n_tensors; t++) {
    const xfer_tensor *given = &tensors[t];
    xfer_tensor *a = &agreed->tensors[t];

    *a = *given;
    if (given->src != NULL) a->src = xfi_layout_share(given->src);
    if (given->dst != NULL) a->dst = xfi_layout_share(given->dst);
  }
}

/* Exchange statements, and compare all but the tensors. */
static xfi_statement *exchange_statements(xfi_comm *comm, xfer_status *st, const xfi_agreed *agreed,
                                          const xfer_plan_options *options, xfi_deadline deadline)
{
  xfi_statement statement;

  xfi_statement_begin(&statement, XFI_OF_TENSORS, options);
  if (*st == XFER_OK) {
    statement.n_tensors = agreed->n_tensors;
    hash_tensors(statement.digest, hash_all, agreed->tensors, agreed->n_tensors);
    hash_tensors(statement.names, hash_name, agreed->tensors, agreed->n_tensors);
    for (size_t t = 0; t < agreed->n_tensors; t++)
      statement.n_open += is_open(agreed->tensors[t].src) + is_open(agreed->tensors[t].dst);
  }
  return xfi_statements_exchange(comm, st, &statement, options, deadline);
}

static xfer_status check_known(const xfi_agreed *agreed)
{
  for (size_t t = 0; t < agreed->n_tensors; t++) {
    const xfer_tensor *a = &agreed->tensors[t];

    XFI_CHECK(a->src != NULL && a->dst != NULL, XFER_ERR_ARG,
              "tensor %zu \"%.100s\": no rank gave its %s layout", t, a->name,
              a->src == NULL ? "source" : "destination");
  }
  return XFER_OK;
}

xfer_status xfi_agree_tensors(xfi_agreed *agreed, xfi_comm *comm, xfer_status mine,
                              const xfer_tensor *tensors, size_t n_tensors,
                              const xfer_plan_options *options, xfi_deadline deadline)
{
  xfer_status st = mine;
  bool is_complete = true;
  bool same_names = true; /* or ranks would complete the layouts of different tensors */
  bool same = true;
  xfi_statement *all = NULL;
  xfi_agreed a = {xfi_calloc(n_tensors, sizeof *a.tensors), n_tensors};

  if (st == XFER_OK && a.tensors == NULL) st = XFI_NO_MEMORY("%zu tensors", n_tensors);
  if (st == XFER_OK) share_all(&a, tensors);
  all = exchange_statements(comm, &st, &a, options, deadline);
  XFI_TRY_DONE(st);
  XFI_TRY_DONE(compare_numbers(comm, all, a.tensors, deadline));
  for (int r = 0; r < comm->size; r++) {
    is_complete = is_complete && all[r].n_open == 0;
    same_names = same_names && memcmp(all[r].names, all[0].names, sizeof all[0].names) == 0;
  }
  if (!is_complete) {
    if (!same_names)
      XFI_TRY_DONE(report_difference(comm, hash_name, a.tensors, n_tensors, deadline));
    XFI_TRY_DONE(xfi_agree_fill(a.tensors, n_tensors, comm, deadline));
    xfi_free(all);
    all = exchange_statements(comm, &st, &a, options, deadline);
    XFI_TRY_DONE(st);
    XFI_TRY_DONE(check_known(&a));
  }
  for (int r = 1; r < comm->size; r++)
    same = same && memcmp(all[r].digest, all[0].digest, sizeof all[0].digest) == 0;
  if (!same) XFI_TRY_DONE(report_difference(comm, hash_all, a.tensors, n_tensors, deadline));

  *agreed = a;
  a.tensors = NULL;
done:
  xfi_agreed_free(&a);
  xfi_free(all);
  return st;
}

void xfi_agreed_free(xfi_agreed *agreed)
{
  for (size_t t = 0; agreed->tensors != NULL && t < agreed->n_tensors; t++) {
    xfi_layout_destroy((xfer_layout *)agreed->tensors[t].src); /* its share of the layout */
    xfi_layout_destroy((xfer_layout *)agreed->tensors[t].dst);
  }
  xfi_free(agreed->tensors);
  *agreed = (xfi_agreed){NULL, 0};
}
