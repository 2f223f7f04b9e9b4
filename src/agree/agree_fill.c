/* Completes the layouts that ranks do not know. The two sides of the tensors are numbered,
 * 2 * n_tensors in all, and there are three steps:
 *
 * 1. Each rank sends two bits for each side, whether it has a layout there and whether that lists
 * only its own boxes, and the digests of its distinct layouts. Layouts are numbered from then on.
 * 2. The number of each rank's layout: from all ranks on sides where some rank lists its own boxes;
 * on sides that some rank lacks, from the lowest rank that has the layout, which "fills" the side.
 * 3. Each layout that is needed is sent once, by the lowest rank that has it. Of own boxes every
 * rank then makes whole layouts.
 */
#include <string.h>

#include "agree_fill.h"
#include "alloc.h"
#include "boxes.h"
#include "checked.h"
#include "error.h"
#include "intern.h"
#include "serial.h"

/* A "use" is what a rank has on one side of a tensor: 1 + the number of a layout, or NO_LAYOUT. */
#define NO_LAYOUT 0

/* Most bytes of one all-gather. */
#define GATHER_BYTES ((size_t)16 << 20)

typedef struct filling {
  xfi_comm *comm;
  xfi_deadline deadline;
  xfer_tensor *tensors;
  size_t n_sides;
  size_t n_words;           /* of a set of sides, one bit for each */
  const xfer_layout **mine; /* [n_mine] this rank's distinct layouts */
  size_t n_mine;
  uint32_t *uses; /* [n_sides] this rank's: first numbers in `mine`, from step 1 on in `known` */
  xfi_interned known;     /* the layouts of all ranks */
  int *senders;           /* [known.n] the lowest rank that has each */
  xfer_layout **received; /* [known.n] as received; NULL: no rank needs it */
  uint64_t *own;          /* [n_words] set of the sides on which some rank lists its own boxes */
  size_t n_own;           /* how many */
  uint64_t *fills;        /* [size][n_words] sets of the sides that each rank fills */
  uint32_t *all_uses;     /* each rank's uses on the n_own sides, then on those that it fills */
  size_t *from;           /* [size + 1] where each rank's begin in `all_uses` */
  uint32_t *filled;       /* [n_sides] the use on each side that some rank fills */
  xfer_layout **whole;    /* [n_whole] layouts that were made of own boxes */
  size_t n_whole;
} filling;

static const xfer_layout **at_side(xfer_tensor *tensors, size_t side)
{
  return side % 2 == 0 ? &tensors[side / 2].src : &tensors[side / 2].dst;
}

static bool has_bit(const uint64_t *words, size_t side)
{
  return (words[side / 64] >> side % 64 & 1) != 0;
}

/* The layout of a use; NULL: none, or it was not sent. */
static const xfer_layout *layout_of(const filling *f, uint32_t use)
{
  return use == NO_LAYOUT ? NULL : f->received[use - 1];
}

/* Does a layout list only a rank's own boxes? Such layouts are always sent, so NULL is not one. */
static bool is_own(const xfer_layout *layout)
{
  return layout != NULL && layout->is_own;
}

/* ---- what each rank has ---- */

/* All-gather of sizes[r] bytes from each rank r into *all, in rank order, in steps that bound the
 * memory. A rank that is out of memory breaks the comm, so that the others do not wait. */
static xfer_status gather(void **all, const filling *f, const void *mine, const uint64_t *sizes)
{
  const size_t size = (size_t)f->comm->size;
  const size_t own = sizes[f->comm->rank];
  size_t step = GATHER_BYTES / size + 1;
  size_t most = 0;
  size_t n_all = 0;
  xfer_status st = XFER_OK;
  unsigned char *rows = NULL;
  unsigned char *made = NULL;

  for (size_t r = 0; r < size; r++) {
    if (!xfi_add_fits(n_all, sizes[r], &n_all)) n_all = SIZE_MAX;
    if (sizes[r] > most) most = sizes[r];
  }
  if (step > most) step = most;
  rows = xfi_comm_calloc(f->comm, size + 1, step); /* the last is our own */
  made = xfi_comm_calloc(f->comm, n_all, 1);
  XFI_CHECK_DONE(rows != NULL && made != NULL, XFER_ERR_NOMEM, "%zu bytes of layouts of %zu ranks",
                 n_all, size);
  for (size_t first = 0; first < most; first += step) {
    const size_t n = most - first < step ? most - first : step;
    unsigned char *to = made;

    if (mine != NULL && own > first)
      memcpy(rows + size * n, (const char *)mine + first, own - first < n ? own - first : n);
    XFI_TRY_DONE(f->comm->ops->all_gather(f->comm, rows, rows + size * n, n, f->deadline));
    for (size_t r = 0; r < size; to += sizes[r++])
      if (sizes[r] > first)
        memcpy(to + first, rows + r * n, sizes[r] - first < n ? sizes[r] - first : n);
  }
  *all = made;
  made = NULL;
done:
  xfi_free(made);
  xfi_free(rows);
  return st;
}

/* Make a set of layouts. If memory is short this breaks the comm, as gather() does. */
static xfer_status make_interned(xfi_interned *made, const filling *f, size_t n)
{
  const xfer_status st = xfi_interned_create(made, n);

  if (st != XFER_OK) xfi_comm_decline(f->comm, f->deadline);
  return st;
}

/* List this rank's distinct layouts in `mine`, and which of them it uses on each side. */
static xfer_status list_mine(filling *f)
{
  xfer_status st = XFER_OK;
  xfi_interned own = {0};

  f->mine = xfi_comm_calloc(f->comm, f->n_sides, sizeof(xfer_layout *));
  f->uses = xfi_comm_calloc(f->comm, f->n_sides, sizeof *f->uses);
  XFI_CHECK_DONE(f->mine != NULL && f->uses != NULL, XFER_ERR_NOMEM, "%zu layouts", f->n_sides);
  XFI_TRY_DONE(make_interned(&own, f, f->n_sides));
  for (size_t s = 0; s < f->n_sides; s++) {
    const xfer_layout *layout = *at_side(f->tensors, s);
    uint32_t number;

    if (layout == NULL) continue;
    number = xfi_intern(&own, layout->digest);
    f->mine[number] = layout;
    f->uses[s] = number + 1;
  }
  f->n_mine = own.n;
done:
  xfi_interned_free(&own);
  return st;
}

/* What a rank sends in step 1, as pairs of words: n_words pairs of bits (has a layout, lists its
 * own boxes), then the digests of its layouts. */
static void write_pairs(uint64_t (*pairs)[2], const filling *f)
{
  for (size_t s = 0; s < f->n_sides; s++) {
    const xfer_layout *layout = *at_side(f->tensors, s);

    pairs[s / 64][0] |= (uint64_t)(layout != NULL) << s % 64;
    pairs[s / 64][1] |= (uint64_t)is_own(layout) << s % 64;
  }
  for (size_t i = 0; i < f->n_mine; i++)
    memcpy(pairs[f->n_words + i], f->mine[i]->digest, sizeof *pairs);
}

/* The same, as received from a rank. */
static void read_pairs(filling *f, size_t rank, const uint64_t (*pairs)[2], size_t n)
{
  for (size_t w = 0; w < f->n_words; w++) {
    f->fills[rank * f->n_words + w] = pairs[w][0]; /* for now all sides that it could fill */
    f->own[w] |= pairs[w][1];
  }
  for (size_t i = f->n_words; i < n; i++) {
    const size_t n_known = f->known.n;
    const uint32_t number = xfi_intern(&f->known, pairs[i]);

    if (number == n_known) f->senders[number] = (int)rank;
  }
}

/* Choose which rank fills which side: the lowest that has a layout there. Bits past n_sides are
 * cleared. */
static void choose_fills(filling *f)
{
  const size_t size = (size_t)f->comm->size;

  for (size_t w = 0; w < f->n_words; w++) {
    const size_t n = f->n_sides - 64 * w;
    uint64_t left = n < 64 ? (UINT64_C(1) << n) - 1 : UINT64_MAX;
    uint64_t all = left;

    f->own[w] &= left;
    f->n_own += (size_t)__builtin_popcountll(f->own[w]);
    for (size_t r = 0; r < size; r++)
      all &= f->fills[r * f->n_words + w];
    left &= ~(f->own[w] | all);
    for (size_t r = 0; r < size; r++) {
      f->fills[r * f->n_words + w] &= left;
      left &= ~f->fills[r * f->n_words + w];
    }
  }
}

/* Step 1: who has a layout on which side, and the digests of all layouts. Collective. */
static xfer_status gather_lists(filling *f)
{
  const size_t size = (size_t)f->comm->size;
  const uint64_t n_bytes = (f->n_words + f->n_mine) * sizeof *f->known.digests;
  xfer_status st = XFER_OK;
  uint64_t *sizes = xfi_comm_agree_gather(f->comm, &st, &n_bytes, sizeof n_bytes, f->deadline);
  uint64_t(*mine)[2] = NULL;
  void *all = NULL;
  const uint64_t(*pairs)[2];
  size_t n_all = 0;

  XFI_TRY_DONE(st);
  mine = xfi_comm_calloc(f->comm, f->n_words + f->n_mine, sizeof *mine);
  f->fills = xfi_comm_calloc(f->comm, size, f->n_words * sizeof *f->fills);
  f->own = xfi_comm_calloc(f->comm, f->n_words, sizeof *f->own);
  XFI_CHECK_DONE(mine != NULL && f->fills != NULL && f->own != NULL, XFER_ERR_NOMEM, "%zu layouts",
                 f->n_sides);
  write_pairs(mine, f);
  XFI_TRY_DONE(gather(&all, f, mine, sizes));
  for (size_t r = 0; r < size; r++) {
    XFI_CHECK_DONE(sizes[r] % sizeof *pairs == 0 && sizes[r] / sizeof *pairs >= f->n_words,
                   XFER_ERR_MISMATCH, "a received list of layouts is malformed");
    n_all += sizes[r] / sizeof *pairs - f->n_words;
  }
  f->senders = xfi_comm_calloc(f->comm, n_all, sizeof *f->senders);
  XFI_CHECK_DONE(f->senders != NULL, XFER_ERR_NOMEM, "%zu layouts", n_all);
  XFI_TRY_DONE(make_interned(&f->known, f, n_all));
  pairs = all;
  for (size_t r = 0; r < size; pairs += sizes[r++] / sizeof *pairs)
    read_pairs(f, r, pairs, sizes[r] / sizeof *pairs);
  choose_fills(f);
  for (size_t s = 0; s < f->n_sides; s++)
    if (f->uses[s] != NO_LAYOUT)
      f->uses[s] = xfi_intern(&f->known, f->mine[f->uses[s] - 1]->digest) + 1;
done:
  xfi_free(sizes);
  xfi_free(mine);
  xfi_free(all);
  return st;
}

static void write_uses(uint32_t *to, const filling *f)
{
  const uint64_t *fills = f->fills + (size_t)f->comm->rank * f->n_words;

  for (size_t s = 0; s < f->n_sides; s++)
    if (has_bit(f->own, s)) *to++ = f->uses[s];
  for (size_t s = 0; s < f->n_sides; s++)
    if (has_bit(fills, s)) *to++ = f->uses[s];
}

/* Step 2: the numbers of the layouts that each rank has. Collective. */
static xfer_status gather_uses(filling *f)
{
  const size_t size = (size_t)f->comm->size;
  xfer_status st = XFER_OK;
  uint64_t *sizes = xfi_comm_calloc(f->comm, size, sizeof *sizes);
  uint32_t *mine = xfi_comm_calloc(f->comm, f->n_sides, sizeof *mine);
  void *all = NULL;

  f->from = xfi_comm_calloc(f->comm, size + 1, sizeof *f->from);
  XFI_CHECK_DONE(sizes != NULL && mine != NULL && f->from != NULL, XFER_ERR_NOMEM, "%zu ranks",
                 size);
  for (size_t r = 0; r < size; r++) {
    size_t n = f->n_own;

    for (size_t w = 0; w < f->n_words; w++)
      n += (size_t)__builtin_popcountll(f->fills[r * f->n_words + w]);
    f->from[r + 1] = f->from[r] + n;
    sizes[r] = n * sizeof *mine;
  }
  write_uses(mine, f);
  XFI_TRY_DONE(gather(&all, f, mine, sizes));
  f->all_uses = all;
done:
  xfi_free(sizes);
  xfi_free(mine);
  return st;
}

/* ---- layouts that are sent ---- */

/* Set `filled` from the uses of step 2. */
static xfer_status read_uses(filling *f)
{
  f->filled = xfi_calloc(f->n_sides, sizeof *f->filled);
  XFI_CHECK(f->filled != NULL, XFER_ERR_NOMEM, "%zu layouts", f->n_sides);
  for (size_t r = 0; r < (size_t)f->comm->size; r++) {
    const uint32_t *use = f->all_uses + f->from[r] + f->n_own;

    for (size_t i = f->from[r]; i < f->from[r + 1]; i++)
      XFI_CHECK(f->all_uses[i] <= f->known.n, XFER_ERR_MISMATCH,
                "rank %zu has a layout that it did not say", r);
    for (size_t w = 0; w < f->n_words; w++)
      for (uint64_t left = f->fills[r * f->n_words + w]; left != 0; left &= left - 1)
        f->filled[64 * w + (size_t)__builtin_ctzll(left)] = *use++;
  }
  return XFER_OK;
}

/* The layouts that this rank sends in step 3, each as (number, length, bytes). */
static xfer_status write_mine(xfi_bytes *out, filling *f)
{
  xfer_status st = XFER_OK;
  bool *is_needed = xfi_calloc(f->known.n + 1, sizeof *is_needed); /* by use */

  XFI_CHECK_DONE(is_needed != NULL, XFER_ERR_NOMEM, "%zu layouts", f->known.n);
  XFI_TRY_DONE(read_uses(f));
  for (size_t s = 0; s < f->n_sides; s++)
    is_needed[f->filled[s]] = true;
  for (size_t i = 0; i < f->n_mine; i++) {
    const uint64_t number = xfi_intern(&f->known, f->mine[i]->digest);

    if (f->senders[number] != f->comm->rank || !(is_own(f->mine[i]) || is_needed[number + 1]))
      continue;
    XFI_TRY_DONE(xfi_bytes_put(out, &number, sizeof number));
    XFI_TRY_DONE(xfi_layout_put(out, f->mine[i]));
  }
done:
  xfi_free(is_needed);
  return st;
}

static xfer_status read_layouts(filling *f, const unsigned char *bytes, size_t n_bytes)
{
  xfi_reader r = {bytes, n_bytes, false};

  while (r.n_left > 0) {
    uint64_t number;

    xfi_reader_take(&r, &number, sizeof number);
    XFI_CHECK(!r.failed && number < f->known.n && f->received[number] == NULL, XFER_ERR_MISMATCH,
              "a received list of layouts is malformed");
    XFI_TRY(xfi_layout_take(&f->received[number], &r));
    XFI_CHECK(memcmp(f->received[number]->digest, f->known.digests[number],
                     sizeof *f->known.digests) == 0,
              XFER_ERR_MISMATCH, "a received list of layouts is malformed");
  }
  return XFER_OK;
}

/* Step 3: the layouts that some rank needs, each once. Collective. */
static xfer_status send_layouts(filling *f)
{
  xfi_bytes mine = {NULL, 0, 0};
  xfer_status st = write_mine(&mine, f);
  const uint64_t n_mine = mine.n;
  uint64_t *sizes = xfi_comm_agree_gather(f->comm, &st, &n_mine, sizeof n_mine, f->deadline);
  void *all = NULL;
  const unsigned char *at;

  XFI_TRY_DONE(st);
  f->received = xfi_comm_calloc(f->comm, f->known.n, sizeof(xfer_layout *));
  XFI_CHECK_DONE(f->received != NULL, XFER_ERR_NOMEM, "%zu layouts", f->known.n);
  XFI_TRY_DONE(gather(&all, f, mine.at, sizes));
  at = all;
  for (int r = 0; r < f->comm->size && st == XFER_OK; at += sizes[r++])
    st = read_layouts(f, at, sizes[r]);
done:
  xfi_bytes_free(&mine);
  xfi_free(sizes);
  xfi_free(all);
  return st;
}

/* ---- whole layouts ---- */

/* Make the whole layout from the ranks' own boxes; uses[size] are their uses on one side. */
static xfer_status put_together(xfer_layout **whole, const filling *f, const uint32_t *uses,
                                const char *name)
{
  const int size = f->comm->size;
  xfer_status st = XFER_OK;
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  const xfer_layout *model = NULL;
  xfi_bytes bounds = {NULL, 0, 0};
  int64_t *first = xfi_calloc((size_t)size + 1, sizeof *first);
  int *ranks = xfi_calloc((size_t)size, sizeof *ranks);
  int64_t shape[XFER_MAX_DIMS];
  xfer_mesh *mesh = NULL;
  int n = 0;

  XFI_CHECK_DONE(first != NULL && ranks != NULL, XFER_ERR_NOMEM, "%d ranks", size);
  for (int r = 0; r < size; r++) {
    const xfer_layout *l = layout_of(f, uses[r]);
    int64_t n_boxes;

    if (uses[r] == NO_LAYOUT) continue;
    XFI_CHECK_DONE(is_own(l), XFER_ERR_MISMATCH,
                   "tensor \"%.100s\": rank %d has a whole layout, others their own boxes", name,
                   r);
    if (model == NULL) model = l;
    XFI_CHECK_DONE(
        l->dtype == model->dtype && l->n_dims == model->n_dims, XFER_ERR_MISMATCH,
        "tensor \"%.100s\": rank %d has boxes of another dtype or number of dims than rank %d",
        name, r, ranks[0]);
    for (int d = 0; d < l->n_dims; d++) {
      shape[d] = model->dims[d].size;
      XFI_CHECK_DONE(
          l->dims[d].size == shape[d], XFER_ERR_MISMATCH,
          "tensor \"%.100s\", dim %d: rank %d has boxes of %lld indices, rank %d of %lld", name, d,
          r, (long long)l->dims[d].size, ranks[0], (long long)shape[d]);
    }
    n_boxes = l->boxes->first[1];
    XFI_TRY_DONE(xfi_bytes_put(&bounds, l->boxes->bounds,
                               (size_t)n_boxes * 2 * (size_t)l->n_dims * sizeof *first));
    ranks[n] = r;
    first[n + 1] = first[n] + n_boxes;
    n++;
  }
  XFI_CHECK_DONE(model != NULL, XFER_ERR_INTERNAL, "tensor \"%s\": no rank has boxes of its own",
                 name);
  XFI_TRY_DONE(xfi_mesh_create(&mesh, &n, 1, ranks));
  desc.mesh = mesh;
  desc.dtype = (int32_t)model->dtype;
  desc.n_dims = model->n_dims;
  desc.shape = shape;
  desc.first = first;
  desc.bounds = (const int64_t *)(const void *)bounds.at;
  XFI_TRY_DONE(xfi_layout_create_boxes(whole, &desc));
done:
  xfi_bytes_free(&bounds);
  xfi_free(first);
  xfi_free(ranks);
  xfi_mesh_destroy(mesh);
  return st;
}

/* Replaces a side's layout by another share of `layout`. */
static void put(const xfer_layout **at, const xfer_layout *layout)
{
  xfi_layout_destroy((xfer_layout *)*at); /* a share as well */
  *at = xfi_layout_share(layout);
}

/* Replaces the layouts of sides on which some rank has own boxes, or this rank has none. Sides with
 * equal boxes share one layout. */
static xfer_status fill(filling *f)
{
  const size_t size = (size_t)f->comm->size;
  xfer_status st = XFER_OK;
  xfi_interned different = {0};
  uint32_t *uses = xfi_calloc(size, sizeof *uses);
  size_t n_own = 0;

  f->whole = xfi_calloc(f->n_sides, sizeof(xfer_layout *));
  XFI_CHECK_DONE(uses != NULL && f->whole != NULL, XFER_ERR_NOMEM, "%zu ranks", size);
  XFI_TRY_DONE(xfi_interned_create(&different, f->n_sides));
  for (size_t s = 0; s < f->n_sides; s++) {
    const xfer_layout **at = at_side(f->tensors, s);
    uint32_t number;

    if (*at == NULL && layout_of(f, f->filled[s]) != NULL) put(at, layout_of(f, f->filled[s]));
    if (!has_bit(f->own, s)) continue;
    for (size_t r = 0; r < size; r++)
      uses[r] = f->all_uses[f->from[r] + n_own];
    n_own++;
    number = xfi_intern_bytes(&different, uses, size * sizeof *uses);
    if (number == f->n_whole) {
      XFI_TRY_DONE(put_together(&f->whole[number], f, uses, f->tensors[s / 2].name));
      f->n_whole++;
    }
    put(at, f->whole[number]);
  }
done:
  xfi_interned_free(&different);
  xfi_free(uses);
  return st;
}

xfer_status xfi_agree_fill(xfer_tensor *tensors, size_t n_tensors, xfi_comm *comm,
                           xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  filling f = {.comm = comm, .deadline = deadline, .tensors = tensors, .n_sides = 2 * n_tensors};

  f.n_words = (f.n_sides + 63) / 64;
  XFI_TRY_DONE(list_mine(&f));
  XFI_TRY_DONE(gather_lists(&f));
  XFI_TRY_DONE(gather_uses(&f));
  st = send_layouts(&f);
  if (st == XFER_OK) st = fill(&f);
  XFI_TRY_DONE(xfi_comm_agree(comm, st, deadline));
done:
  for (size_t i = 0; f.received != NULL && i < f.known.n; i++)
    xfi_layout_destroy(f.received[i]);
  for (size_t i = 0; i < f.n_whole; i++)
    xfi_layout_destroy(f.whole[i]);
  xfi_free(f.received);
  xfi_free(f.whole);
  xfi_free(f.mine);
  xfi_free(f.uses);
  xfi_free(f.senders);
  xfi_free(f.own);
  xfi_free(f.fills);
  xfi_free(f.all_uses);
  xfi_free(f.from);
  xfi_free(f.filled);
  xfi_interned_free(&f.known);
  return st;
}
