/* Own boxes become whole layouts: each distinct list is gathered once, from the lowest rank that
 * has it. */
#include <string.h>

#include <xxhash.h>

#include "agree_own.h"
#include "alloc.h"
#include "boxes.h"
#include "error.h"
#include "numbers.h"
#include "serial.h"
#include "vec.h"

/* What a rank gave for one side of a tensor, besides list + 1. */
#define NO_LIST 0
#define WHOLE UINT32_MAX

typedef struct gathering {
  xfi_comm *comm;
  xfi_deadline deadline;
  const xfer_tensor *tensors;
  size_t n_sides;           /* two for each tensor */
  const xfer_layout **mine; /* [n_mine] this rank's distinct lists */
  size_t n_mine;
  uint32_t *uses;      /* [n_sides] of `mine`, later of `lists` */
  xfi_numbers known;   /* of all ranks' */
  int *tellers;        /* [known.n] the lowest rank that has it */
  xfer_layout **lists; /* [known.n] */
  uint32_t *all_uses;  /* [size][n_sides] */
} gathering;

static const xfer_layout *given(const xfer_tensor *tensors, size_t side)
{
  return side % 2 == 0 ? tensors[side / 2].src : tensors[side / 2].dst;
}

static bool is_own(const xfer_layout *layout)
{
  return layout != NULL && layout->is_own;
}

uint32_t xfi_agree_count_own(const xfer_tensor *tensors, size_t n_tensors)
{
  uint32_t n = 0;

  for (size_t s = 0; s < 2 * n_tensors; s++)
    n += is_own(given(tensors, s));
  return n;
}

/* This rank's distinct lists, and where it uses them. */
static xfer_status list_mine(gathering *g)
{
  xfer_status st = XFER_OK;
  xfi_numbers own = {0};

  g->mine = xfi_comm_calloc(g->comm, g->n_sides, sizeof(xfer_layout *));
  g->uses = xfi_comm_calloc(g->comm, g->n_sides, sizeof *g->uses);
  XFI_CHECK(g->mine != NULL && g->uses != NULL, XFER_ERR_NOMEM, "%zu lists of boxes", g->n_sides);
  XFI_TRY(xfi_numbers_create(&own, g->comm, g->n_sides));
  for (size_t s = 0; s < g->n_sides; s++) {
    const xfer_layout *layout = given(g->tensors, s);
    uint32_t number;

    g->uses[s] = layout == NULL ? NO_LIST : WHOLE;
    if (!is_own(layout)) continue;
    number = xfi_number_of(&own, layout->digest);
    g->mine[number] = layout;
    g->uses[s] = number + 1;
  }
  g->n_mine = own.n;
done:
  xfi_numbers_free(&own);
  return st;
}

/* Number the lists of all ranks, and use these numbers. */
static xfer_status number_all(gathering *g)
{
  const size_t size = (size_t)g->comm->size;
  uint64_t n_mine = g->n_mine;
  uint64_t most = 0;
  uint64_t n_all = 0;
  xfer_status st = XFER_OK;
  uint64_t *counts = xfi_comm_hear(g->comm, &st, &n_mine, sizeof n_mine, g->deadline);
  uint64_t(*digests)[2] = NULL;
  uint64_t(*all)[2] = NULL;

  XFI_TRY(st);
  for (size_t r = 0; r < size; r++) {
    n_all += counts[r];
    if (counts[r] > most) most = counts[r];
  }
  digests = xfi_comm_calloc(g->comm, most, sizeof *digests);
  all = xfi_comm_calloc(g->comm, size * most, sizeof *all);
  g->tellers = xfi_comm_calloc(g->comm, n_all, sizeof *g->tellers);
  XFI_CHECK(digests != NULL && all != NULL && g->tellers != NULL, XFER_ERR_NOMEM,
            "%llu lists of boxes", (unsigned long long)n_all);
  XFI_TRY(xfi_numbers_create(&g->known, g->comm, n_all));
  for (size_t i = 0; i < g->n_mine; i++)
    memcpy(digests[i], g->mine[i]->digest, sizeof *digests);
  XFI_TRY(g->comm->ops->all_gather(g->comm, all, digests, most * sizeof *digests, g->deadline));
  for (size_t r = 0; r < size; r++) {
    for (size_t i = 0; i < counts[r]; i++) {
      const size_t n = g->known.n;
      const uint32_t number = xfi_number_of(&g->known, all[r * most + i]);

      if (number == n) g->tellers[number] = (int)r;
    }
  }
  for (size_t s = 0; s < g->n_sides; s++)
    if (g->uses[s] != NO_LIST && g->uses[s] != WHOLE)
      g->uses[s] = xfi_number_of(&g->known, g->mine[g->uses[s] - 1]->digest) + 1;
done:
  xfi_free(counts);
  xfi_free(digests);
  xfi_free(all);
  return st;
}

/* The lists that this rank tells: (number, length, bytes) each. */
static xfer_status write_mine(xfi_bytes *out, gathering *g)
{
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < g->n_mine; i++) {
    const uint64_t number = xfi_number_of(&g->known, g->mine[i]->digest);

    if (g->tellers[number] != g->comm->rank) continue;
    XFI_TRY(xfi_bytes_put(out, &number, sizeof number));
    XFI_TRY(xfi_layout_put(out, g->mine[i]));
  }
done:
  return st;
}

static xfer_status read_lists(gathering *g, const unsigned char *bytes, size_t n_bytes)
{
  xfer_status st = XFER_OK;
  xfi_reader r = {bytes, n_bytes, false};

  while (r.n_left > 0) {
    uint64_t number;

    xfi_reader_take(&r, &number, sizeof number);
    XFI_CHECK(!r.failed && number < g->known.n && g->lists[number] == NULL, XFER_ERR_MISMATCH,
              "a received list of boxes is malformed");
    XFI_TRY(xfi_layout_take(&g->lists[number], &r));
    XFI_CHECK(is_own(g->lists[number]), XFER_ERR_MISMATCH, "a received list of boxes is malformed");
  }
done:
  return st;
}

/* What ranks use was told. */
static xfer_status check_uses(const gathering *g)
{
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < (size_t)g->comm->size * g->n_sides; i++) {
    const uint32_t use = g->all_uses[i];

    XFI_CHECK(use == NO_LIST || use == WHOLE || (use <= g->known.n && g->lists[use - 1] != NULL),
              XFER_ERR_MISMATCH, "rank %zu has a list of boxes that nobody told", i / g->n_sides);
  }
done:
  return st;
}

/* Every list to every rank, and who uses which. */
static xfer_status exchange_lists(gathering *g)
{
  const size_t size = (size_t)g->comm->size;
  xfi_bytes mine = {NULL, 0, 0};
  xfer_status st = write_mine(&mine, g);
  const uint64_t n_mine = mine.n;
  uint64_t most = 0;
  uint64_t *sizes = xfi_comm_hear(g->comm, &st, &n_mine, sizeof n_mine, g->deadline);
  unsigned char *all = NULL;

  XFI_TRY(st);
  for (size_t r = 0; r < size; r++)
    if (sizes[r] > most) most = sizes[r];
  st = xfi_vec_reserve(&mine.at, &mine.capacity, most, 1);
  all = xfi_comm_calloc(g->comm, size, most);
  g->lists = xfi_comm_calloc(g->comm, g->known.n, sizeof(xfer_layout *));
  g->all_uses = xfi_comm_calloc(g->comm, size * g->n_sides, sizeof *g->all_uses);
  XFI_CHECK(all != NULL && g->lists != NULL && g->all_uses != NULL, XFER_ERR_NOMEM,
            "lists of boxes of %zu ranks, %llu bytes each", size, (unsigned long long)most);
  XFI_TRY(xfi_comm_agree(g->comm, st, g->deadline));
  XFI_TRY(g->comm->ops->all_gather(g->comm, all, mine.at, most, g->deadline));
  XFI_TRY(g->comm->ops->all_gather(g->comm, g->all_uses, g->uses, g->n_sides * sizeof *g->uses,
                                   g->deadline));
  for (size_t r = 0; r < size && st == XFER_OK; r++)
    st = read_lists(g, all + r * most, sizes[r]);
  if (st == XFER_OK) st = check_uses(g);
  st = xfi_comm_agree(g->comm, st, g->deadline);
done:
  xfi_bytes_free(&mine);
  xfi_free(sizes);
  xfi_free(all);
  return st;
}

/* ---- whole layouts ---- */

/* The boxes of the ranks that gave a list, `uses` being by rank. */
static xfer_status put_together(xfer_layout **whole, const gathering *g, const uint32_t *uses,
                                const char *name)
{
  const int size = g->comm->size;
  xfer_status st = XFER_OK;
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  const xfer_layout *model = NULL;
  xfi_bytes bounds = {NULL, 0, 0};
  int64_t *first = xfi_calloc((size_t)size + 1, sizeof *first);
  int *ranks = xfi_calloc((size_t)size, sizeof *ranks);
  int64_t shape[XFER_MAX_DIMS];
  xfer_mesh *mesh = NULL;
  int n = 0;

  XFI_CHECK(first != NULL && ranks != NULL, XFER_ERR_NOMEM, "%d ranks", size);
  for (int r = 0; r < size; r++) {
    const xfer_layout *l = uses[r] == NO_LIST || uses[r] == WHOLE ? NULL : g->lists[uses[r] - 1];
    int64_t n_boxes;

    XFI_CHECK(uses[r] != WHOLE, XFER_ERR_MISMATCH,
              "tensor \"%s\": rank %d has a whole layout, others their own boxes", name, r);
    if (l == NULL) continue;
    if (model == NULL) model = l;
    XFI_CHECK(l->dtype == model->dtype && l->n_dims == model->n_dims, XFER_ERR_MISMATCH,
              "tensor \"%s\": rank %d has boxes of another dtype or number of dims than rank %d",
              name, r, ranks[0]);
    for (int d = 0; d < l->n_dims; d++) {
      shape[d] = model->dims[d].size;
      XFI_CHECK(l->dims[d].size == shape[d], XFER_ERR_MISMATCH,
                "tensor \"%s\", dim %d: rank %d has boxes of %lld indices, rank %d of %lld", name,
                d, r, (long long)l->dims[d].size, ranks[0], (long long)shape[d]);
    }
    n_boxes = l->boxes->first[1];
    XFI_TRY(xfi_bytes_put(&bounds, l->boxes->bounds,
                          (size_t)n_boxes * 2 * (size_t)l->n_dims * sizeof *first));
    ranks[n] = r;
    first[n + 1] = first[n] + n_boxes;
    n++;
  }
  XFI_TRY(xfi_mesh_create(&mesh, &n, 1, ranks));
  desc.mesh = mesh;
  desc.dtype = (int32_t)model->dtype;
  desc.n_dims = model->n_dims;
  desc.shape = shape;
  desc.first = first;
  desc.bounds = (const int64_t *)(const void *)bounds.at;
  XFI_TRY(xfi_layout_create_boxes(whole, &desc));
done:
  xfi_bytes_free(&bounds);
  xfi_free(first);
  xfi_free(ranks);
  xfi_mesh_destroy(mesh);
  return st;
}

/* Replace every side of which some rank has its own boxes. Equal ones are one layout. */
static xfer_status make_whole(xfer_tensor *tensors, xfi_layouts *made, const gathering *g)
{
  const size_t size = (size_t)g->comm->size;
  xfer_status st = XFER_OK;
  xfi_numbers different = {0};
  uint32_t *uses = xfi_comm_calloc(g->comm, size, sizeof *uses);

  XFI_CHECK(uses != NULL, XFER_ERR_NOMEM, "%zu ranks", size);
  XFI_TRY(xfi_numbers_create(&different, g->comm, g->n_sides));
  for (size_t s = 0; s < g->n_sides; s++) {
    XXH128_hash_t hash;
    uint32_t number;
    bool any = false;

    for (size_t r = 0; r < size; r++) {
      uses[r] = g->all_uses[r * g->n_sides + s];
      any = any || (uses[r] != NO_LIST && uses[r] != WHOLE);
    }
    if (!any) continue;
    hash = XXH3_128bits(uses, size * sizeof *uses);
    number = xfi_number_of(&different, (uint64_t[2]){hash.low64, hash.high64});
    if (number == made->n) {
      XFI_TRY(xfi_vec_reserve(&made->at, &made->capacity, made->n + 1, sizeof *made->at));
      XFI_TRY(put_together(&made->at[made->n], g, uses, tensors[s / 2].name));
      made->n++;
    }
    *(s % 2 == 0 ? &tensors[s / 2].src : &tensors[s / 2].dst) = made->at[number];
  }
done:
  xfi_numbers_free(&different);
  xfi_free(uses);
  return st;
}

xfer_status xfi_agree_own(xfer_tensor *tensors, size_t n_tensors, xfi_layouts *made, xfi_comm *comm,
                          xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  gathering g = {.comm = comm, .deadline = deadline, .tensors = tensors, .n_sides = 2 * n_tensors};

  XFI_TRY(list_mine(&g));
  XFI_TRY(number_all(&g));
  XFI_TRY(exchange_lists(&g));
  st = make_whole(tensors, made, &g);
  XFI_TRY(xfi_comm_agree(comm, st, deadline));
done:
  for (size_t i = 0; g.lists != NULL && i < g.known.n; i++)
    xfi_layout_destroy(g.lists[i]);
  xfi_free(g.lists);
  xfi_free(g.mine);
  xfi_free(g.uses);
  xfi_free(g.tellers);
  xfi_free(g.all_uses);
  xfi_numbers_free(&g.known);
  return st;
}

void xfi_layouts_free(xfi_layouts *layouts)
{
  for (size_t i = 0; i < layouts->n; i++)
    xfi_layout_destroy(layouts->at[i]);
  xfi_free(layouts->at);
}
