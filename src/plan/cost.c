/*
 * Which classes take the broadcast lane: a closed form from sizes and counts alone, equal on all
 * ranks.
 *
 * Sent to each destination, a tensor costs its sources and its destinations what they send and
 * receive; over a whole model that work spreads over all ranks that are a source of anything.
 * Broadcast, it costs every rank the whole tensor once. Which is cheaper is known of each class,
 * and then whether all of them together save enough.
 */

#include "cost.h"
#include "alloc.h"
#include "boxes.h"
#include "error.h"
#include "float_mode.h"

/* Broadcast must be clearly better: it also costs the ranks that need nothing. */
#define BROADCAST_GAIN 1.25

/* Has an earlier class the same source mesh? The search is short, since a model has few meshes. */
static bool seen_before(const xfi_moves *moves, size_t c)
{
  for (size_t i = c; i-- > 0 && c - i <= 64;)
    if (moves->classes[i].src->mesh == moves->classes[c].src->mesh) return true;
  return false;
}

/* How many distinct ranks are in the source mesh of some class. */
static xfer_status count_sources(const xfi_moves *moves, int *n_sources)
{
  xfer_status st = XFER_OK;
  unsigned char *seen = xfi_calloc((size_t)moves->n_ranks, 1);
  int n = 0;

  XFI_CHECK_DONE(seen != NULL, XFER_ERR_NOMEM, "%d ranks", moves->n_ranks);
  for (size_t c = 0; c < moves->n_classes; c++) {
    const xfer_mesh *mesh = moves->classes[c].src->mesh;

    if (seen_before(moves, c)) continue;
    for (int i = 0; i < mesh->size; i++) {
      n += seen[mesh->ranks[i]] == 0;
      seen[mesh->ranks[i]] = 1;
    }
  }
  *n_sources = n;
done:
  xfi_free(seen);
  return st;
}

/* Elements held by all parts of a dim together: its size, or more where a table repeats indices. */
static xfer_status held_by_parts(const xfi_dim *dim, double *held)
{
  xfer_status st = XFER_OK;
  xfi_holds holds = {NULL, 0, 0};

  *held = (double)dim->size;
  if (!xfi_dim_has_table(dim)) return XFER_OK;
  XFI_TRY_DONE(xfi_dim_holders(dim, 0, dim->size, false, &holds));
  *held = 0;
  for (size_t i = 0; i < holds.n; i++)
    *held += (double)holds.at[i].length;
done:
  xfi_free(holds.at);
  return st;
}

/* Elements held by all ranks together. */
static xfer_status held_by_ranks(const xfer_layout *layout, double *held)
{
  *held = layout->n_replicas;
  if (layout->boxes != NULL) {
    *held = layout->n_held;
    return XFER_OK;
  }
  for (int d = 0; d < layout->n_dims; d++) {
    double by_dim;

    XFI_TRY(held_by_parts(&layout->dims[d], &by_dim));
    *held *= by_dim;
  }
  return XFER_OK;
}

/* The share of what destination ranks hold that must be sent to them: sources have their own part,
 * on average. Of parts that a source holds alone, one that is no destination sends more than the
 * others. */
static xfer_status share_remote(double *share, const xfer_layout *src, const xfer_layout *dst)
{
  int n_own = 0;
  double held;

  *share = 1;
  for (int i = 0; i < dst->mesh->size; i++)
    n_own += xfi_mesh_find(src->mesh, dst->mesh->ranks[i]) >= 0;
  XFI_TRY(held_by_ranks(src, &held));
  const double own = src->n_elems == 0 ? 1 : held / ((double)src->n_elems * src->mesh->size);
  if (own >= 1 || n_own == src->mesh->size) *share -= n_own * (own < 1 ? own : 1) / dst->mesh->size;
  return XFER_OK;
}

/* Counts the bytes that a broadcast of one tensor of the class saves each rank; 0: it saves none.
 */
static xfer_status count_saved(double *saved, const xfi_class *cls, int n_sources)
{
  const xfer_layout *src = cls->src;
  const xfer_layout *dst = cls->dst;
  const double whole = (double)src->n_elems * cls->wire_bytes;
  double share;
  double held;
  double out;
  double in;

  XFI_TRY(share_remote(&share, src, dst));
  XFI_TRY(held_by_ranks(dst, &held));
  out = held * cls->wire_bytes * share / n_sources;
  in = share > 0 ? held * cls->wire_bytes / dst->mesh->size : 0;
  const double most = out > in ? out : in;
  *saved = whole > 0 && whole * BROADCAST_GAIN < most ? most - whole : 0;
  return XFER_OK;
}

static xfer_status choose(xfi_moves *moves)
{
  const bool asked = moves->options.lane == XFER_LANE_BROADCAST;
  const double least = (double)moves->options.min_broadcast_saving_bytes;
  int n_sources = 0;
  double all_saved = 0;

  if (moves->options.lane != XFER_LANE_AUTO && !asked) return XFER_OK;
  if (moves->n_ranks == 1) return XFER_OK;
  XFI_TRY(count_sources(moves, &n_sources));
  for (size_t c = 0; c < moves->n_classes; c++) {
    xfi_class *cls = &moves->classes[c];
    double saved = 0;

    if (!asked) XFI_TRY(count_saved(&saved, cls, n_sources));
    cls->broadcast = asked || saved > 0;
    all_saved += saved * (double)cls->n_tensors;
  }
  for (size_t c = 0; c < moves->n_classes; c++) {
    xfi_class *cls = &moves->classes[c];

    cls->broadcast = cls->broadcast && (asked || all_saved >= least);
    if (cls->broadcast) moves->n_broadcast += cls->n_tensors;
  }
  return XFER_OK;
}

/* Computed in one mode of rounding: all ranks must come to the same result, whatever modes their
 * threads are in. */
xfer_status xfi_cost_choose(xfi_moves *moves)
{
  fenv_t callers;
  xfer_status st;

  xfi_float_mode_enter(&callers);
  st = choose(moves);
  xfi_float_mode_leave(&callers);
  return st;
}
