/* Plans for the tests of src/plan: tensors from lines of the problem language, and all ranks'
 * plans. */
#ifndef PLANS_OF_H
#define PLANS_OF_H

#include "class.h"
#include "layouts_of.h"
#include "moves.h"

enum { MAX_TENSORS = 512, MAX_PLANS = 64 };

typedef struct tensor_list {
  xfer_tensor at[MAX_TENSORS];
  xfer_layout *owned[2 * MAX_TENSORS];
  size_t n;
  size_t n_owned;
} tensor_list;

/* Append `count` tensors of the same two layouts, which become the list's. */
static inline void add_layouts(tensor_list *list, const char *name, size_t count, xfer_layout *src,
                               xfer_layout *dst)
{
  assert_true(list->n + count <= MAX_TENSORS);
  for (size_t i = 0; i < count; i++)
    list->at[list->n++] = (xfer_tensor){name, src, dst, {0}};
  list->owned[list->n_owned++] = src;
  list->owned[list->n_owned++] = dst;
}

static inline void add_line(tensor_list *list, const char *name, size_t count, const char *line)
{
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;

  layouts_of(line, &src, &dst);
  add_layouts(list, name, count, src, dst);
}

static inline void free_tensors(tensor_list *list)
{
  for (size_t i = 0; i < list->n_owned; i++)
    xfi_layout_destroy(list->owned[i]);
  list->n = 0;
  list->n_owned = 0;
}

/* Data goes point to point, near sources are not preferred. */
static const xfi_moves_options plain_options = {XFER_LANE_DIRECT, 0, 0, NULL};

static inline xfi_moves *plan_of(const tensor_list *list, int n_ranks, int rank,
                                 const xfi_moves_options *options)
{
  xfi_moves *plan = NULL;

  if (xfi_moves_create(&plan, n_ranks, rank, list->at, list->n, options) != XFER_OK)
    fail_msg("rank %d of %d: %s", rank, n_ranks, xfer_last_error());
  return plan;
}

static inline void plans_of(xfi_moves **plans, const tensor_list *list, int n_ranks,
                            const xfi_moves_options *options)
{
  assert_true(n_ranks <= MAX_PLANS);
  for (int r = 0; r < n_ranks; r++)
    plans[r] = plan_of(list, n_ranks, r, options);
}

static inline void free_plans(xfi_moves **plans, int n_ranks)
{
  for (int r = 0; r < n_ranks; r++)
    xfi_moves_destroy(plans[r]);
}

/* Bytes of a box of one tensor. */
static inline uint64_t bytes_of(const xfi_class *cls, const int64_t *length)
{
  return (uint64_t)(xfi_box_elems(length, cls->src->n_dims) * cls->src->elem_bytes);
}

#endif
