/* The ranks of a side: their order, their pipeline stages, and their coordinates on grids. */
#include "side.h"

#include "alloc.h"
#include "error.h"
#include "layout.h"
#include "text.h"

#include <limits.h>
#include <string.h>

/* ---- sizes ---- */

static xfer_status eval_size(const xfer_side *side, const char *expr, int *size)
{
  const xfi_scope scope = xfi_side_scope(side, NULL);
  int64_t value;

  XFI_TRY(xfi_rules_eval(&value, side->rules, expr, &scope));
  XFI_CHECK(value > 0 && value <= INT_MAX, XFER_ERR_ARG, "\"%s\": an axis of %lld ranks",
            side->spec, (long long)value);
  *size = (int)value;
  return XFER_OK;
}

/* Sets *n to the number of ranks that the grid's axes make. */
static xfer_status make_grid(const xfer_side *side, xfi_grid *grid, const xfi_grid_rule *rule,
                             int *n)
{
  *n = 1;
  grid->rule = rule;
  grid->cut = grid->experts = -1;
  for (int a = 0; a < rule->n_axes; a++) {
    XFI_TRY(eval_size(side, rule->sizes[a], &grid->sizes[a]));
    XFI_CHECK(!__builtin_mul_overflow(*n, grid->sizes[a], n), XFER_ERR_OVERFLOW,
              "\"%s\" has more ranks than an int counts", side->spec);
    if (rule->uses[a] == XFI_AXIS_CUT) grid->cut = a;
    if (rule->uses[a] == XFI_AXIS_EXPERTS) grid->experts = a;
  }
  return XFER_OK;
}

static xfer_status make_stage_grid(const xfer_side *side, xfi_grid *grid, const xfi_grid_rule *rule)
{
  const int all = xfi_side_stage_size(side);
  int n;

  XFI_TRY(make_grid(side, grid, rule, &n));
  XFI_CHECK(all % n == 0, XFER_ERR_ARG,
            "\"%s\": the axes of %d ranks do not divide the %d of a stage", side->spec, n, all);
  grid->replicas = all / n;
  return XFER_OK;
}

/* ---- ranks ---- */

/* Returns the stage of the i-th rank and sets *place to its place in the stage. */
static int find_stage(const xfer_side *side, int i, int *place)
{
  int stage = 0, stride = 1;

  *place = 0;
  for (int a = 0; a < side->axes.rule->n_axes; a++) {
    int size = side->axes.sizes[a];

    if (a == side->stage_axis) {
      stage = i % size;
    } else {
      *place += stride * (i % size);
      stride *= size;
    }
    i /= size;
  }
  return stage;
}

static xfer_status make_ranks(xfer_side *side, const xfer_side_options *o)
{
  int stage, place;
  xfer_status st;

  XFI_CHECK(side->size <= XFI_MOST_RANKS, XFER_ERR_OVERFLOW, "\"%s\" has %d ranks, more than %d",
            side->spec, side->size, XFI_MOST_RANKS);
  XFI_CHECK(o->first_rank >= 0 && side->size <= INT_MAX - o->first_rank, XFER_ERR_ARG,
            "\"%s\": first_rank is %d; want 0 or more, and room for %d ranks", side->spec,
            (int)o->first_rank, side->size);
  XFI_CHECK(o->n_ranks == (o->ranks != NULL ? side->size : 0), XFER_ERR_ARG,
            "\"%s\" has %d ranks, %lld are listed", side->spec, side->size, (long long)o->n_ranks);
  XFI_CHECK(o->n_ranks == 0 || o->first_rank == 0, XFER_ERR_ARG,
            "\"%s\": ranks are listed, and first_rank is %d too", side->spec, (int)o->first_rank);
  side->ranks_by_stage = xfi_calloc((size_t)side->size, sizeof *side->ranks_by_stage);
  XFI_CHECK(side->ranks_by_stage != NULL, XFER_ERR_NOMEM, "%d ranks", side->size);
  for (int i = 0; i < side->size; i++)
    side->ranks_by_stage[i] = o->n_ranks > 0 ? o->ranks[i] : o->first_rank + i;
  st = xfi_mesh_create(&side->mesh, &side->size, 1, side->ranks_by_stage);
  if (st != XFER_OK) xfi_set_error("\"%s\": %s", side->spec, xfer_last_error());
  XFI_TRY(st);
  for (int i = 0; i < side->size; i++) {
    stage = find_stage(side, i, &place);
    side->ranks_by_stage[stage * xfi_side_stage_size(side) + place] = side->mesh->ranks[i];
  }
  return XFER_OK;
}

xfer_status xfi_grid_make(xfer_side *side, const xfer_side_options *options)
{
  const xfi_side_rules *framework = side->framework;
  int n_listed = 0;

  side->pp = side->chunks = 1;
  side->stage_axis = -1;
  XFI_TRY(make_grid(side, &side->axes, &framework->ranks, &side->size));
  for (int a = 0; a < framework->ranks.n_axes && framework->stage != NULL; a++) {
    if (strcmp(framework->ranks.names[a], framework->stage) != 0) continue;
    side->stage_axis = a;
    side->pp = side->axes.sizes[a];
  }
  XFI_TRY(make_ranks(side, options));
  XFI_TRY(make_stage_grid(side, &side->dense, &framework->dense));
  XFI_TRY(make_stage_grid(side, &side->wide, &framework->wide));
  XFI_TRY(make_stage_grid(side, &side->experts, &framework->experts));
  if (framework->chunks != NULL) XFI_TRY(eval_size(side, framework->chunks, &side->chunks));
  XFI_CHECK(side->chunks <= INT_MAX / side->pp, XFER_ERR_OVERFLOW, "\"%s\": %d chunks", side->spec,
            side->chunks);
  if (side->stage_layers != NULL) {
    while (side->stage_layers[n_listed] >= 0)
      n_listed++;
    XFI_CHECK(n_listed == side->pp * side->chunks, XFER_ERR_ARG,
              "\"%s\": layers= lists %d stages, there are %d%s", side->spec, n_listed,
              side->pp * side->chunks, side->chunks > 1 ? " virtual ones" : "");
  }
  return XFER_OK;
}

int xfi_side_stage_size(const xfer_side *side)
{
  return side->size / side->pp;
}

int xfi_side_stage_of(const xfer_side *side, int rank, int *place)
{
  const int i = xfi_mesh_find(side->mesh, rank);
  int at = 0;
  const int stage = i < 0 ? -1 : find_stage(side, i, &at);

  if (place != NULL) *place = at;
  return stage;
}

int xfi_grid_cut_of(const xfi_grid *grid, int place)
{
  for (int a = 0; a < grid->cut; a++)
    place /= grid->sizes[a];
  return grid->cut < 0 ? 0 : place % grid->sizes[grid->cut];
}

static bool find_in_grid(const xfi_grid *grid, const char *axis, int place, int *coordinate)
{
  for (int a = 0; a < grid->rule->n_axes; a++) {
    *coordinate = place % grid->sizes[a];
    place /= grid->sizes[a];
    if (strcmp(grid->rule->names[a], axis) == 0) return true;
  }
  *coordinate = place;
  return strcmp(axis, "edp") == 0 && grid->experts >= 0;
}

enum { N_GRIDS = 4 };

/* Refuses an axis that the side does not have, and lists those that it has, each name once. */
static xfer_status no_axis(const xfer_side *side, const char *axis, const xfi_grid *const *grids)
{
  char known[128];
  xfi_text text;

  xfi_text_fixed(&text, known, sizeof known);
  for (int g = 0; g < N_GRIDS; g++) {
    for (int a = 0; a < grids[g]->rule->n_axes; a++) {
      const char *name = grids[g]->rule->names[a];
      int earlier = 0, unused;

      while (earlier < g && !find_in_grid(grids[earlier], name, 0, &unused))
        earlier++;
      if (earlier == g) xfi_text_printf(&text, " %s", name);
    }
  }
  if (side->experts.experts >= 0 && strstr(known, " edp") == NULL) xfi_text_printf(&text, " edp");
  return XFI_ERROR(XFER_ERR_ARG, "\"%s\" has no axis called \"%s\"; it has%s", side->spec, axis,
                   text.n_chars == 0 ? " none" : known);
}

xfer_status xfi_side_coordinate(const xfer_side *side, const char *axis, int rank, int *coordinate)
{
  const xfi_grid *const grids[N_GRIDS] = {&side->axes, &side->dense, &side->wide, &side->experts};
  int i = xfi_mesh_find(side->mesh, rank), place, found;

  XFI_CHECK(i >= 0, XFER_ERR_ARG, "\"%s\" has no rank %d among its %d", side->spec, rank,
            side->size);
  find_stage(side, i, &place);
  for (int g = 0; g < N_GRIDS; g++) {
    if (!find_in_grid(grids[g], axis, g == 0 ? i : place, &found)) continue;
    *coordinate = found;
    return XFER_OK;
  }
  return no_axis(side, axis, grids);
}

/* ---- layers ---- */

/* Counts the layers of a stage: as listed, or evenly many, with the remainder, one each, on the
 * stages that the side's rules name. */
static xfer_status stage_count(const xfer_side *side, int n_layers, int stage, int *count)
{
  const xfi_spare spare = side->framework->spare_layers;
  const int n_stages = side->pp * side->chunks, last = n_stages - 1;
  /* Embedding and output layer count as a layer each. */
  const int ends = spare == XFI_SPARE_FIRST && n_stages > 1;
  const int rest = (n_layers + 2 * ends) % n_stages;

  *count = (n_layers + 2 * ends) / n_stages;
  if (side->stage_layers != NULL) {
    *count = side->stage_layers[stage];
    return XFER_OK;
  }
  XFI_CHECK(*count >= ends && (rest == 0 || spare != XFI_SPARE_NONE), XFER_ERR_ARG,
            "\"%s\": %d stages do not divide %d layers; list them with layers=", side->spec,
            n_stages, n_layers);
  *count += spare == XFI_SPARE_FIRST  ? stage < rest
            : spare == XFI_SPARE_LAST ? stage > last - rest
                                      : stage < last && stage >= last - rest;
  *count -= ends && (stage == 0 || stage == last);
  return XFER_OK;
}

xfer_status xfi_side_stages(const xfer_side *side, const xfer_model *model, int **stages)
{
  int *of = xfi_calloc((size_t)model->n_layers, sizeof *of);
  int at = 0;
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(of != NULL, XFER_ERR_NOMEM, "the stages of %d layers", model->n_layers);
  for (int stage = 0; stage < side->pp * side->chunks; stage++) {
    int count;

    XFI_TRY_DONE(stage_count(side, model->n_layers, stage, &count));
    XFI_CHECK_DONE(count <= model->n_layers - at, XFER_ERR_ARG,
                   "\"%s\" lists more than the model's %d layers", side->spec, model->n_layers);
    for (int i = 0; i < count; i++)
      of[at++] = stage;
  }
  XFI_CHECK_DONE(at == model->n_layers, XFER_ERR_ARG, "\"%s\" lists %d layers, the model has %d",
                 side->spec, at, model->n_layers);
  *stages = of;
  of = NULL;
done:
  xfi_free(of);
  return st;
}
