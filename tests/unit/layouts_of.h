/* Layouts for the tests of src/layout and src/plan, from lines of the problem language, and what
 * each test of an owning function does: fail every allocation once. */
#ifndef LAYOUTS_OF_H
#define LAYOUTS_OF_H

#include "alloc.h"
#include "error.h"
#include "layout.h"
#include "problem.h"

#include <stdio.h>
#include <string.h>

/* Both layouts of a line. */
static inline void layouts_of(const char *line, xfer_layout **src, xfer_layout **dst)
{
  if (xfi_problem_parse(src, dst, line) != XFER_OK) fail_msg("%s: %s", line, xfer_last_error());
}

/* The layout of a line, for example "f32[8] (2):S0". */
static inline xfer_layout *layout_of(const char *side)
{
  xfer_layout *layout = NULL;

  if (xfi_layout_parse(&layout, side) != XFER_OK) fail_msg("%s: %s", side, xfer_last_error());
  return layout;
}

/* A one-axis layout of a tensor of one dim, u8, whose axis has the runs of `table`. */
static inline xfer_layout *layout_of_table(int64_t size, const xfer_run_table *table,
                                           const int *ranks)
{
  const int axes[] = {(int)table->n_coords};
  const xfer_placement placement = xfer_shard_runs(0, table);
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  xfer_layout *layout = NULL;
  xfer_mesh *mesh = NULL;

  assert_int_equal(xfi_mesh_create(&mesh, axes, 1, ranks), XFER_OK);
  desc.mesh = mesh;
  desc.dtype = XFER_U8;
  desc.n_dims = 1;
  desc.shape = &size;
  desc.placements = &placement;
  desc.n_placements = 1;
  if (xfi_layout_create(&layout, &desc) != XFER_OK) fail_msg("%s", xfer_last_error());
  xfi_mesh_destroy(mesh);
  return layout;
}

/* Calls make(context) with its first allocation failing, then with its second, until none fails.
 * Each failure must be reported as what it is; `make` itself checks that its outputs are untouched.
 * Returns how many allocations failed. */
static inline long fail_each_allocation(xfer_status (*make)(void *context), void *context)
{
  xfer_status st = XFER_ERR_NOMEM;
  long n = -1;

  while (st == XFER_ERR_NOMEM && n < 100000) {
    xfi_alloc_fail_after(++n);
    st = make(context);
    xfi_alloc_fail_after(-1);
  }
  if (st != XFER_OK) fail_msg("allocation %ld: status %d, %s", n, (int)st, xfer_last_error());
  return n;
}

#endif
