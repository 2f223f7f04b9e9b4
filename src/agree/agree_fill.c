/* Each layout that some rank needs of another is told by one that has it: own boxes, which become
 * whole layouts, and what ranks were not told. Sides of tensors are numbered, two for each. A rank
 * first says in two bits of each side whether it has a layout there and whether that is boxes of
 * its own. Then it tells which layout it has, of each side of which some rank has own boxes, and of
 * others that some lack and it is the lowest rank to have; and these layouts, each after its
 * length, by which one that many ranks have is read once. */
#include <string.h>

#include "agree_fill.h"
#include "alloc.h"
#include "boxes.h"
#include "checked.h"
#include "error.h"
#include "numbers.h"
#include "serial.h"

/* What a rank has on one side of a tensor, besides 1 + the place among those that it tells. */
#define NO_LAYOUT 0

/* Most bytes that one gathering takes. */
#define GATHER_BYTES ((size_t)16 << 20)

/* No layout is told in less: what it is, its dtype, its dims, and a mesh of a rank. */
#define LAYOUT_BYTES_MIN (6 * sizeof(int64_t))

/* What all ranks have said, one after the other. */
typedef struct heard {
  void *bytes;
  uint64_t *sizes; /* [size] */
} heard;

typedef struct filling {
  xfi_comm *comm;
  xfi_deadline deadline;
  xfer_tensor *tensors;
  size_t n_sides;
  size_t n_words;        /* of bits of them */
  uint64_t *own;         /* [n_words] sides of which some rank has own boxes */
  size_t n_own;          /* so many */
  uint64_t *bits;        /* [size][2][n_words] other sides that a rank fills; what it said is own */
  const uint32_t **uses; /* [size] each rank's, of the n_own sides, then of those that it fills */
  xfi_numbers different; /* layouts that are told */
  xfer_layout **told;    /* [n_told] each of them */
  size_t n_told;
  uint32_t *has; /* [n_has] of `told`, each rank's in the order in which it tells them */
  size_t n_has;
  size_t *first;       /* [size] likewise, where a rank's begin */
  xfer_layout **whole; /* [n_whole] of own boxes */
  size_t n_whole;
} filling;

static const xfer_layout **at_side(xfer_tensor *tensors, size_t side)
{
  return side % 2 == 0 ? &tensors[side / 2].src : &tensors[side / 2].dst;
}

static bool is_own(const xfer_layout *layout)
{
  return layout != NULL && layout->is_own;
}

/* The layout of a rank's use; NULL: there is none. */
static const xfer_layout *layout_of(const filling *f, size_t rank, uint32_t use)
{
  return use == NO_LAYOUT ? NULL : f->told[f->has[f->first[rank] + use - 1]];
}

/* Sides that a rank fills; before that is chosen, that it has a layout of. */
static uint64_t *fills_of(const filling *f, size_t rank)
{
  return f->bits + rank * 2 * f->n_words;
}

/* The lowest side in a word of bits that is not 0. */
static size_t side_of(size_t word, uint64_t bits)
{
  return 64 * word + (size_t)__builtin_ctzll(bits);
}

/* What each rank says, unless one has failed: this one by `st`. In steps of bounded memory; a rank
 * without that lets the others go. */
static xfer_status hear(heard *all, const filling *f, xfer_status st, const xfi_bytes *mine)
{
  const size_t size = (size_t)f->comm->size;
  const uint64_t n_mine = mine->n;
  size_t step = GATHER_BYTES / size + 1;
  size_t most = 0;
  size_t n_all = 0;
  unsigned char *rows = NULL;

  all->sizes = xfi_comm_hear(f->comm, &st, &n_mine, sizeof n_mine, f->deadline);
  XFI_TRY_DONE(st);
  for (size_t r = 0; r < size; r++) {
    if (!xfi_add_fits(n_all, all->sizes[r], &n_all)) n_all = SIZE_MAX;
    if (all->sizes[r] > most) most = all->sizes[r];
  }
  if (step > most) step = most;
  rows = xfi_comm_calloc(f->comm, size + 1, step); /* the last is what we say */
  all->bytes = xfi_comm_calloc(f->comm, n_all, 1);
  XFI_CHECK_DONE(rows != NULL && all->bytes != NULL, XFER_ERR_NOMEM,
                 "%zu bytes of layouts of %zu ranks", n_all, size);
  for (size_t first = 0; first < most; first += step) {
    const size_t n = most - first < step ? most - first : step;
    unsigned char *to = all->bytes;

    if (n_mine > first)
      memcpy(rows + size * n, mine->at + first, n_mine - first < n ? n_mine - first : n);
    XFI_TRY_DONE(f->comm->ops->all_gather(f->comm, rows, rows + size * n, n, f->deadline));
    for (size_t r = 0; r < size; to += all->sizes[r++])
      if (all->sizes[r] > first)
        memcpy(to + first, rows + r * n, all->sizes[r] - first < n ? all->sizes[r] - first : n);
  }
done:
  xfi_free(rows);
  return st;
}

/* ---- what each rank has ---- */

/* Bits of the sides that have a layout, then of those that have own boxes. */
static xfer_status write_bits(xfi_bytes *out, const filling *f)
{
  for (int own = 0; own < 2; own++) {
    for (size_t w = 0; w < f->n_words; w++) {
      uint64_t word = 0;

      for (size_t s = 64 * w; s < f->n_sides && s < 64 * (w + 1); s++) {
        const xfer_layout *layout = *at_side(f->tensors, s);

        word |= (uint64_t)(own != 0 ? is_own(layout) : layout != NULL) << s % 64;
      }
      XFI_TRY(xfi_bytes_put(out, &word, sizeof word));
    }
  }
  return XFER_OK;
}

/* What some lack is filled by the lowest rank that has it. Sides past n_sides are nobody's. */
static void choose_fills(filling *f)
{
  const size_t size = (size_t)f->comm->size;

  for (size_t w = 0; w < f->n_words; w++) {
    const size_t n = f->n_sides - 64 * w;
    uint64_t left = n < 64 ? (UINT64_C(1) << n) - 1 : UINT64_MAX;
    uint64_t all = left;

    for (size_t r = 0; r < size; r++) {
      all &= fills_of(f, r)[w];
      f->own[w] |= left & fills_of(f, r)[f->n_words + w];
    }
    f->n_own += (size_t)__builtin_popcountll(f->own[w]);
    left &= ~(f->own[w] | all);
    for (size_t r = 0; r < size; r++) {
      fills_of(f, r)[w] &= left;
      left &= ~fills_of(f, r)[w];
    }
  }
}

/* Who tells which sides, by what all have said. */
static xfer_status read_bits(filling *f, heard *all)
{
  f->own = xfi_calloc(f->n_words, sizeof *f->own);
  XFI_CHECK(f->own != NULL, XFER_ERR_NOMEM, "%zu layouts", f->n_sides);
  for (size_t r = 0; r < (size_t)f->comm->size; r++)
    XFI_CHECK(all->sizes[r] == 2 * f->n_words * sizeof *f->bits, XFER_ERR_MISMATCH,
              "a received list of layouts is malformed");
  f->bits = all->bytes;
  all->bytes = NULL;
  choose_fills(f);
  return XFER_OK;
}

/* ---- what is told ---- */

static xfer_status write_layout(xfi_bytes *out, const xfer_layout *layout)
{
  const size_t at = out->n;
  uint64_t n_bytes = 0;

  XFI_TRY(xfi_bytes_put(out, &n_bytes, sizeof n_bytes));
  XFI_TRY(xfi_layout_put(out, layout));
  n_bytes = out->n - at - sizeof n_bytes;
  memcpy(out->at + at, &n_bytes, sizeof n_bytes);
  return XFER_OK;
}

/* Which layouts this rank has on some sides: appended to the *n uses, and new ones to `layouts`. */
static xfer_status write_uses(uint32_t *uses, size_t *n, xfi_bytes *layouts, xfi_numbers *known,
                              const filling *f, const uint64_t *sides)
{
  for (size_t w = 0; w < f->n_words; w++) {
    for (uint64_t left = sides[w]; left != 0; left &= left - 1, ++*n) {
      const xfer_layout *layout = *at_side(f->tensors, side_of(w, left));
      const size_t n_known = known->n;

      if (layout == NULL) continue;
      uses[*n] = xfi_number_of(known, layout->digest) + 1;
      if (known->n > n_known) XFI_TRY(write_layout(layouts, layout));
    }
  }
  return XFER_OK;
}

static xfer_status write_mine(xfi_bytes *out, const filling *f)
{
  xfer_status st = XFER_OK;
  xfi_bytes layouts = {NULL, 0, 0};
  xfi_numbers known = {0};
  uint32_t *uses = xfi_calloc(f->n_sides, sizeof *uses); /* NO_LAYOUT */
  size_t n = 0;

  XFI_CHECK_DONE(uses != NULL, XFER_ERR_NOMEM, "%zu layouts", f->n_sides);
  XFI_TRY_DONE(xfi_numbers_create(&known, f->n_sides));
  XFI_TRY_DONE(write_uses(uses, &n, &layouts, &known, f, f->own));
  XFI_TRY_DONE(write_uses(uses, &n, &layouts, &known, f, fills_of(f, (size_t)f->comm->rank)));
  XFI_TRY_DONE(xfi_bytes_put(out, uses, n * sizeof *uses));
  XFI_TRY_DONE(xfi_bytes_put(out, layouts.at, layouts.n));
done:
  xfi_free(uses);
  xfi_numbers_free(&known);
  xfi_bytes_free(&layouts);
  return st;
}

/* The next layout that a rank has. */
static xfer_status read_layout(filling *f, xfi_reader *r)
{
  uint64_t n_bytes;
  uint32_t number;

  xfi_reader_take(r, &n_bytes, sizeof n_bytes);
  XFI_CHECK(!r->failed && n_bytes >= LAYOUT_BYTES_MIN && n_bytes <= r->n_left, XFER_ERR_MISMATCH,
            "a received list of layouts is malformed");
  number = xfi_number_of_bytes(&f->different, r->at, n_bytes);
  if (number == f->n_told) {
    xfi_reader one = {r->at, n_bytes, false};

    XFI_TRY(xfi_layout_take(&f->told[number], &one));
    f->n_told++;
    XFI_CHECK(one.n_left == 0, XFER_ERR_MISMATCH, "a received list of layouts is malformed");
  }
  f->has[f->n_has++] = number;
  r->at += n_bytes;
  r->n_left -= n_bytes;
  return XFER_OK;
}

/* Of one rank: its uses stay where they are. */
static xfer_status read_told(filling *f, size_t rank, const unsigned char *bytes, size_t n_bytes)
{
  const uint32_t *uses = (const void *)bytes;
  const size_t first = f->n_has;
  size_t n_uses = f->n_own;
  xfi_reader r;

  for (size_t w = 0; w < f->n_words; w++)
    n_uses += (size_t)__builtin_popcountll(fills_of(f, rank)[w]);
  XFI_CHECK(n_bytes % sizeof *uses == 0 && n_uses <= n_bytes / sizeof *uses, XFER_ERR_MISMATCH,
            "a received list of layouts is malformed");
  f->uses[rank] = uses;
  f->first[rank] = first;
  r = (xfi_reader){bytes + n_uses * sizeof *uses, n_bytes - n_uses * sizeof *uses, false};
  while (r.n_left > 0)
    XFI_TRY(read_layout(f, &r));
  for (size_t i = 0; i < n_uses; i++)
    XFI_CHECK(uses[i] <= f->n_has - first, XFER_ERR_MISMATCH,
              "rank %zu has a layout that it did not say", rank);
  return XFER_OK;
}

/* ---- whole layouts ---- */

/* The boxes of the ranks that have any, `uses` being by rank. */
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
    const xfer_layout *l = layout_of(f, (size_t)r, uses[r]);
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

/* This rank's share of a layout, in place of what it had. */
static void put(const xfer_layout **at, const xfer_layout *layout)
{
  xfi_layout_destroy((xfer_layout *)*at); /* a share too */
  *at = xfi_layout_share(layout);
}

/* Sides of which this rank has nothing. */
static void fill_lacking(filling *f)
{
  for (size_t r = 0; r < (size_t)f->comm->size; r++) {
    const uint32_t *use = f->uses[r] + f->n_own;

    for (size_t w = 0; w < f->n_words; w++) {
      for (uint64_t left = fills_of(f, r)[w]; left != 0; left &= left - 1) {
        const xfer_layout **at = at_side(f->tensors, side_of(w, left));
        const xfer_layout *layout = layout_of(f, r, *use++);

        if (*at == NULL && layout != NULL) put(at, layout);
      }
    }
  }
}

/* Sides of which some rank has its own boxes. Equal ones are one layout. */
static xfer_status fill_own(filling *f)
{
  const size_t size = (size_t)f->comm->size;
  xfer_status st = XFER_OK;
  xfi_numbers different = {0};
  uint32_t *uses = xfi_calloc(size, sizeof *uses);
  size_t n = 0;

  f->whole = xfi_calloc(f->n_own, sizeof(xfer_layout *));
  XFI_CHECK_DONE(uses != NULL && f->whole != NULL, XFER_ERR_NOMEM, "%zu ranks", size);
  XFI_TRY_DONE(xfi_numbers_create(&different, f->n_own));
  for (size_t w = 0; w < f->n_words; w++) {
    for (uint64_t left = f->own[w]; left != 0; left &= left - 1, n++) {
      const size_t side = side_of(w, left);
      uint32_t number;

      for (size_t r = 0; r < size; r++)
        uses[r] = f->uses[r][n];
      number = xfi_number_of_bytes(&different, uses, size * sizeof *uses);
      if (number == f->n_whole) {
        XFI_TRY_DONE(put_together(&f->whole[number], f, uses, f->tensors[side / 2].name));
        f->n_whole++;
      }
      put(at_side(f->tensors, side), f->whole[number]);
    }
  }
done:
  xfi_numbers_free(&different);
  xfi_free(uses);
  return st;
}

/* What all have told, where it belongs. */
static xfer_status fill(filling *f, const heard *all)
{
  const size_t size = (size_t)f->comm->size;
  const unsigned char *at = all->bytes;
  size_t most = 0; /* layouts that are told */

  for (size_t r = 0; r < size; r++)
    most += all->sizes[r] / (sizeof(uint64_t) + LAYOUT_BYTES_MIN);
  f->uses = xfi_calloc(size, sizeof *f->uses);
  f->first = xfi_calloc(size, sizeof *f->first);
  f->told = xfi_calloc(most, sizeof(xfer_layout *));
  f->has = xfi_calloc(most, sizeof *f->has);
  XFI_CHECK(f->uses != NULL && f->first != NULL && f->told != NULL && f->has != NULL,
            XFER_ERR_NOMEM, "%zu ranks", size);
  XFI_TRY(xfi_numbers_create(&f->different, most));
  for (size_t r = 0; r < size; at += all->sizes[r++])
    XFI_TRY(read_told(f, r, at, all->sizes[r]));
  fill_lacking(f);
  return fill_own(f);
}

xfer_status xfi_agree_fill(xfer_tensor *tensors, size_t n_tensors, xfi_comm *comm,
                           xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  filling f = {.comm = comm, .deadline = deadline, .tensors = tensors, .n_sides = 2 * n_tensors};
  xfi_bytes bits = {NULL, 0, 0};
  xfi_bytes mine = {NULL, 0, 0};
  heard all_bits = {NULL, NULL};
  heard all = {NULL, NULL};

  f.n_words = (f.n_sides + 63) / 64;
  XFI_TRY_DONE(hear(&all_bits, &f, write_bits(&bits, &f), &bits));
  st = read_bits(&f, &all_bits);
  if (st == XFER_OK) st = write_mine(&mine, &f);
  XFI_TRY_DONE(hear(&all, &f, st, &mine));
  XFI_TRY_DONE(xfi_comm_agree(comm, fill(&f, &all), deadline));
done:
  for (size_t i = 0; i < f.n_told; i++)
    xfi_layout_destroy(f.told[i]);
  for (size_t i = 0; i < f.n_whole; i++)
    xfi_layout_destroy(f.whole[i]);
  xfi_bytes_free(&bits);
  xfi_bytes_free(&mine);
  xfi_free(all_bits.bytes);
  xfi_free(all_bits.sizes);
  xfi_free(all.bytes);
  xfi_free(all.sizes);
  xfi_free(f.own);
  xfi_free(f.bits);
  xfi_free(f.uses);
  xfi_numbers_free(&f.different);
  xfi_free(f.told);
  xfi_free(f.has);
  xfi_free(f.first);
  xfi_free(f.whole);
  return st;
}
