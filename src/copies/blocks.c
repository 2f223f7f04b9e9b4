/* Cuts boxes at the ends of blocks. */
#include "blocks.h"

#include "alloc.h"
#include "boxes.h"
#include "error.h"

/* ---- a rank's part ---- */

static void set_strides(xfi_block_box *box, const xfi_blocks *blocks)
{
  const int n_dims = blocks->n_dims;
  int64_t stride = 1;

  for (int d = n_dims - 1; d >= 0; d--) {
    box->cell_stride[d] = stride;
    stride *= box->cells[n_dims + d] - box->cells[d];
  }
}

static xfi_convert convert_of(const xfer_layout *layout, xfi_convert_op op)
{
  return (xfi_convert){.from = (uint8_t)layout->dtype,
                       .to = XFER_F8E4M3,
                       .src_bytes = (uint8_t)layout->elem_bytes,
                       .dst_bytes = 1,
                       .op = (uint32_t)op};
}

xfer_status xfi_blocks_make(xfi_blocks *blocks, const xfer_layout *layout, int rank,
                            const xfer_conversion *conversion)
{
  xfer_status st = XFER_OK;
  const int n_dims = layout->n_dims;
  xfi_held_list held = {NULL, 0, 0};

  blocks->n_dims = n_dims;
  blocks->quantise = convert_of(layout, XFI_CONVERT_BLOCKS);
  blocks->amax = convert_of(layout, XFI_CONVERT_AMAX);
  xfi_conversion_block(blocks->block, conversion, n_dims);
  XFI_TRY_DONE(xfi_layout_held(&held, layout, rank, false));
  blocks->boxes = xfi_calloc(held.n, sizeof *blocks->boxes);
  XFI_CHECK_DONE(blocks->boxes != NULL, XFER_ERR_NOMEM, "%zu boxes", held.n);
  for (; blocks->n < held.n; blocks->n++) {
    xfi_block_box *box = &blocks->boxes[blocks->n];

    box->at = held.at[blocks->n];
    for (int d = 0; d < n_dims; d++)
      box->length[d] = box->at.bounds[n_dims + d] - box->at.bounds[d];
    xfi_block_cells(box->cells, box->at.bounds, blocks->block, n_dims);
    set_strides(box, blocks);
  }
done:
  xfi_free(held.at);
  return st;
}

size_t xfi_blocks_n_scales(const xfi_blocks *blocks)
{
  size_t n = 0;

  for (size_t i = 0; i < blocks->n; i++)
    n += (size_t)xfi_bounds_elems(blocks->boxes[i].cells, blocks->n_dims);
  return n;
}

void xfi_blocks_place(xfi_blocks *blocks, float *scales)
{
  for (size_t i = 0; i < blocks->n; i++) {
    blocks->boxes[i].scales = scales;
    scales += xfi_bounds_elems(blocks->boxes[i].cells, blocks->n_dims);
  }
}

void xfi_blocks_free(xfi_blocks *blocks)
{
  xfi_free(blocks->boxes);
  *blocks = (xfi_blocks){.n = 0};
}

/* ---- copies ---- */

/* A box that is being cut, one dim after the other. In the dims that are done it has n[d] blocks,
 * and inner[d] elements of each block. */
typedef struct cut {
  xfi_copies *copies;
  const xfi_blocks *blocks;
  const xfi_block_box *box;
  const xfi_end *dst; /* NULL: the copies find amaxes */
  const xfi_end *src;
  int64_t global[XFER_MAX_DIMS]; /* index of the whole box's first element */
  int64_t offset[XFER_MAX_DIMS]; /* relative to `global` */
  int64_t n[XFER_MAX_DIMS];
  int64_t inner[XFER_MAX_DIMS];
} cut;

/* Adds a dim to a copy. */
static void add_dim(xfi_copy *copy, int64_t extent, int64_t src_stride, int64_t dst_stride,
                    int64_t scale_stride)
{
  copy->extent[copy->n_dims] = extent;
  copy->scale_stride[copy->n_dims] = scale_stride;
  copy->src_stride[copy->n_dims] = src_stride;
  copy->dst_stride[copy->n_dims++] = dst_stride;
}

/* Returns the address of the first element of the present part. */
static char *address_of(const cut *c, const xfi_end *end, const int64_t **strides)
{
  const int64_t piece = xfi_bound_piece_at(end->bound, end->start);
  int64_t index[XFER_MAX_DIMS];

  for (int d = 0; d < c->blocks->n_dims; d++)
    index[d] = end->start[d] + c->offset[d];
  *strides = xfi_bound_strides(end->bound, piece);
  return xfi_bound_address(end->bound, piece, index);
}

static float *scale_of(const cut *c)
{
  float *scales = c->box->scales;

  for (int d = 0; d < c->blocks->n_dims; d++)
    scales += ((c->global[d] + c->offset[d]) / c->blocks->block[d] - c->box->cells[d]) *
              c->box->cell_stride[d];
  return scales;
}

/* Returns the dim in which a block's elements are contiguous on both sides, which becomes the run;
 * -1: there is none. */
static int run_dim(const cut *c, const int64_t *src, const int64_t *dst)
{
  int d = c->blocks->n_dims - 1;

  while (d >= 0 && (c->blocks->block[d] == 1 || src[d] != c->blocks->quantise.src_bytes ||
                    (c->dst != NULL && dst[d] != c->blocks->quantise.dst_bytes)))
    d--;
  return d;
}

static xfer_status add_copy(const cut *c)
{
  static const int64_t none[XFER_MAX_DIMS] = {0};
  const int n_dims = c->blocks->n_dims;
  const int64_t *block = c->blocks->block;
  const int64_t *dst_stride = none;
  const int64_t *src_stride;
  xfi_copy copy = {.run_bytes = 1, .scales = scale_of(c)};
  int run;

  copy.convert = c->dst == NULL ? &c->blocks->amax : &c->blocks->quantise;
  copy.src = address_of(c, c->src, &src_stride);
  if (c->dst != NULL) copy.dst = address_of(c, c->dst, &dst_stride);
  run = run_dim(c, src_stride, dst_stride);
  for (int d = 0; d < n_dims; d++) {
    add_dim(&copy, c->n[d], block[d] * src_stride[d], block[d] * dst_stride[d],
            c->box->cell_stride[d]);
    if (c->dst != NULL && block[d] > 1 && d != run)
      add_dim(&copy, c->inner[d], src_stride[d], dst_stride[d], 0);
  }
  for (int d = 0; d < n_dims && c->dst == NULL; d++)
    if (block[d] > 1 && d != run) add_dim(&copy, c->inner[d], src_stride[d], 0, 0);
  if (run >= 0) copy.run_bytes = c->inner[run];
  return xfi_copies_push(c->copies, &copy);
}

/* Cuts dims from d on: each into the rest of a block, whole blocks, and the beginning of the last
 * block. */
static xfer_status cut_from(cut *c, const int64_t *length, int d)
{
  if (d == c->blocks->n_dims) return add_copy(c);
  for (int64_t at = 0, block = c->blocks->block[d]; at < length[d];) {
    const int64_t left = length[d] - at;
    const int64_t in_block = block - (c->global[d] + at) % block;

    c->offset[d] = at;
    c->n[d] = in_block == block && left >= block ? left / block : 1;
    c->inner[d] = left < in_block ? left : in_block;
    at += c->n[d] * c->inner[d];
    XFI_TRY(cut_from(c, length, d + 1));
  }
  return XFER_OK;
}

static const xfi_block_box *find_box(const xfi_blocks *blocks, const int64_t *local)
{
  for (size_t i = 0; i < blocks->n; i++) {
    const xfi_block_box *box = &blocks->boxes[i];
    const int64_t *first = box->at.local;
    int d = 0;

    while (d < blocks->n_dims && local[d] >= first[d] && local[d] < first[d] + box->length[d])
      d++;
    if (d == blocks->n_dims) return box;
  }
  return NULL;
}

xfer_status xfi_blocks_add(xfi_copies *copies, const xfi_end *dst, const xfi_end *src,
                           const int64_t *length, const xfi_convert *convert)
{
  cut c = {.copies = copies, .blocks = src->bound->blocks, .src = src};

  XFI_CHECK(c.blocks != NULL, XFER_ERR_INTERNAL, "scales that are a peer's");
  c.box = find_box(c.blocks, src->start);
  XFI_CHECK(c.box != NULL, XFER_ERR_INTERNAL, "a box without scales");
  if (convert->op == XFI_CONVERT_BLOCKS) c.dst = dst;
  for (int d = 0; d < c.blocks->n_dims; d++)
    c.global[d] = c.box->at.bounds[d] + (src->start[d] - c.box->at.local[d]);
  return cut_from(&c, length, 0);
}
