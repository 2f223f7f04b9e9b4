/* The object: SPEC, options, what a caller said of names; and the order of the ranks. */
#include "side.h"

#include "alloc.h"
#include "error.h"
#include "glob.h"
#include "options.h"
#include "vec.h"

#include <limits.h>
#include <string.h>

xfer_side *xfi_side_share(const xfer_side *side)
{
  xfer_side *shared = (xfer_side *)(uintptr_t)side; /* the count alone changes */

  atomic_fetch_add(&shared->n_refs, 1);
  return shared;
}

static void saids_free(xfi_saids *saids)
{
  for (size_t i = 0; i < saids->n; i++) {
    xfi_free(saids->at[i].pattern);
    xfi_free(saids->at[i].to);
  }
  xfi_free(saids->at);
}

void xfi_side_destroy(xfer_side *side)
{
  if (side == NULL || atomic_fetch_sub(&side->n_refs, 1) != 1) return;
  saids_free(&side->renames);
  saids_free(&side->ignores);
  saids_free(&side->places);
  saids_free(&side->wholes);
  saids_free(&side->dtypes);
  xfi_free(side->stage_layers);
  xfi_free(side->map_experts);
  xfi_free(side->map_first);
  xfi_free(side->spec);
  xfi_free(side);
}

xfer_status xfi_said_add(xfi_saids *saids, const char *pattern, const char *to, int value)
{
  xfi_said said = {.value = value};
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_glob_check(pattern, to));
  XFI_TRY(xfi_vec_reserve(&saids->at, &saids->capacity, saids->n + 1, sizeof *saids->at));
  said.pattern = xfi_strdup(pattern);
  said.to = to == NULL ? NULL : xfi_strdup(to);
  XFI_CHECK(said.pattern != NULL && (to == NULL || said.to != NULL), XFER_ERR_NOMEM,
            "the pattern \"%s\"", pattern);
  saids->at[saids->n++] = said;
  memset(&said, 0, sizeof said);
done:
  xfi_free(said.pattern);
  xfi_free(said.to);
  return st;
}

static xfer_status copy_map(xfer_side *side, const xfer_side_options *o)
{
  size_t n;
  xfer_status st = XFER_OK;

  if (o->n_map == 0) return XFER_OK;
  XFI_CHECK(o->map_experts != NULL && o->map_first != NULL && o->map_first[0] == 0, XFER_ERR_ARG,
            "an expert map of %lld ranks without its lists", (long long)o->n_map);
  XFI_CHECK(side->framework == XFI_VLLM && side->map_first == NULL && side->round_robin == 0 &&
                side->ep > 1,
            XFER_ERR_ARG, "\"%s\" takes no expert map", side->spec);
  XFI_CHECK(o->n_map == side->ep, XFER_ERR_ARG, "\"%s\": an expert map of %lld ranks", side->spec,
            (long long)o->n_map);
  for (int64_t r = 0; r < o->n_map; r++) {
    XFI_CHECK(o->map_first[r] <= o->map_first[r + 1], XFER_ERR_ARG, "map_first[%lld] descends",
              (long long)r + 1);
  }
  n = (size_t)o->map_first[o->n_map];
  side->map_first = xfi_calloc((size_t)o->n_map + 2, sizeof *side->map_first);
  side->map_experts = xfi_calloc(n, sizeof *side->map_experts);
  XFI_CHECK(side->map_first != NULL && side->map_experts != NULL, XFER_ERR_NOMEM, "an expert map");
  memcpy(side->map_first, o->map_first, ((size_t)o->n_map + 1) * sizeof *side->map_first);
  if (n > 0) memcpy(side->map_experts, o->map_experts, n * sizeof *side->map_experts);
  side->map_first[o->n_map + 1] = -1;
done:
  return st;
}

static xfer_status check_weights(xfer_side *side, const xfer_side_options *o)
{
  const uint32_t all = XFER_WEIGHTS_LOADED | XFER_WEIGHTS_UP_FIRST | XFER_WEIGHTS_INTERLEAVED |
                       XFER_WEIGHTS_TRANSPOSED;
  xfer_status st = XFER_OK;

  XFI_CHECK((o->weights & ~all) == 0, XFER_ERR_ARG, "weights %#x: an unknown bit",
            (unsigned)o->weights);
  if (side->framework != XFI_VLLM) return XFER_OK;
  if (side->weights == 0) side->weights = o->weights;
  XFI_CHECK(side->weights != 0, XFER_ERR_ARG,
            "\"%s\": say what its kernels have done to the weights (loaded, up_first, interleaved, "
            "transposed)",
            side->spec);
  XFI_CHECK((side->weights & XFER_WEIGHTS_LOADED) == 0 || side->weights == XFER_WEIGHTS_LOADED,
            XFER_ERR_ARG, "\"%s\": loaded and changed at once", side->spec);
done:
  return st;
}

xfer_status xfi_side_create(xfer_side **side, const char *spec, const xfer_side_options *options)
{
  xfer_side_options o = XFER_SIDE_OPTIONS_INIT;
  xfer_side *s = NULL;
  int n_map = 0;
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_options_copy(&o, sizeof o, options, "xfer_side_options"));
  s = xfi_calloc(1, sizeof *s);
  XFI_CHECK(s != NULL, XFER_ERR_NOMEM, "the side \"%s\"", spec);
  atomic_store(&s->n_refs, 1);
  s->spec = xfi_strdup(spec);
  XFI_CHECK(s->spec != NULL, XFER_ERR_NOMEM, "the side \"%s\"", spec);
  XFI_TRY(xfi_spec_parse(s, spec));
  XFI_CHECK(o.first_rank >= 0 && s->size <= INT_MAX - o.first_rank, XFER_ERR_ARG,
            "\"%s\": first_rank %d", spec, (int)o.first_rank);
  s->first_rank = o.first_rank;
  XFI_TRY(check_weights(s, &o));
  XFI_TRY(copy_map(s, &o));
  if (s->map_first != NULL) {
    while (s->map_first[n_map + 1] >= 0)
      n_map++;
    XFI_CHECK(n_map == s->ep, XFER_ERR_ARG, "\"%s\": an expert map of %d ranks", spec, n_map);
  }
  *side = s;
  s = NULL;
done:
  xfi_side_destroy(s);
  return st;
}

/* ---- ranks ---- */

int xfi_side_stage_size(const xfer_side *side)
{
  return side->size / side->pp;
}

/* Megatron: stages follow each other. vLLM: rank = tp + TP (pp + PP (dp + DP engine)). */
int xfi_side_rank(const xfer_side *side, int stage, int i)
{
  if (side->framework != XFI_VLLM) return side->first_rank + stage * xfi_side_stage_size(side) + i;
  return side->first_rank + i % side->tp + side->tp * (stage + side->pp * (i / side->tp));
}

int xfi_side_stage_of(const xfer_side *side, int rank)
{
  int r = rank - side->first_rank;

  if (r < 0 || r >= side->size) return -1;
  if (side->framework != XFI_VLLM) return r / xfi_side_stage_size(side);
  return r / side->tp % side->pp;
}

/* The place of a rank in its stage, in the order in which both grids count. */
static int place_in_stage(const xfer_side *side, int r)
{
  if (side->framework != XFI_VLLM) return r % xfi_side_stage_size(side);
  return r % side->tp + side->tp * (r / (side->tp * side->pp));
}

xfer_status xfi_side_coordinate(const xfer_side *side, const char *axis, int rank, int *coordinate)
{
  int i = place_in_stage(side, rank - side->first_rank);
  bool vllm = side->framework == XFI_VLLM, fsdp = side->framework == XFI_FSDP;
  int etp = side->framework == XFI_MEGATRON ? side->etp
            : vllm                          ? (side->ep > 1 ? 1 : side->dp * side->tp)
                                            : side->tp;
  int dp = vllm || fsdp ? side->dp : xfi_side_stage_size(side) / (side->tp * side->cp);
  int edp = fsdp ? side->dp / side->ep : xfi_side_stage_size(side) / (etp * side->ep);
  const struct {
    const char *name;
    int coordinate;
  } axes[] = {
      {"tp", i % side->tp},
      {"cp", i / side->tp % side->cp},
      {"dp", i / (side->tp * side->cp) % dp},
      {"pp", xfi_side_stage_of(side, rank)},
      {"etp", i % etp},
      {"ep", i / etp % side->ep},
      {"edp", i / (etp * side->ep) % edp},
      {"replicate", fsdp ? i / (side->tp * side->dp) : 0},
      {"engine", vllm ? i / (side->tp * side->dp) : 0},
  };
  xfer_status st = XFER_OK;

  XFI_CHECK(xfi_side_stage_of(side, rank) >= 0, XFER_ERR_ARG, "\"%s\" has no rank %d", side->spec,
            rank);
  for (size_t k = 0; k < sizeof axes / sizeof *axes; k++) {
    if (strcmp(axes[k].name, axis) != 0) continue;
    *coordinate = axes[k].coordinate;
    return XFER_OK;
  }
  XFI_CHECK(false, XFER_ERR_ARG, "no axis is called \"%s\"", axis);
done:
  return st;
}

/* Layers of a stage: as listed; even; or vLLM's rule, by which the remainder goes, one each, to the
 * stages before the last. */
static xfer_status stage_count(const xfer_side *side, int n_layers, int stage, int *count)
{
  int rest = n_layers % side->pp;
  xfer_status st = XFER_OK;

  *count = n_layers / side->pp;
  if (side->stage_layers != NULL) {
    *count = side->stage_layers[stage];
  } else if (side->framework == XFI_VLLM) {
    *count += stage < side->pp - 1 && stage >= side->pp - 1 - rest;
  } else {
    XFI_CHECK(rest == 0, XFER_ERR_ARG,
              "\"%s\": pp %d does not divide %d layers; list them with layers=", side->spec,
              side->pp, n_layers);
  }
done:
  return st;
}

xfer_status xfi_side_stages(const xfer_side *side, const xfer_model *model, int **stages)
{
  int *of = xfi_calloc((size_t)model->n_layers, sizeof *of);
  int at = 0;
  xfer_status st = XFER_OK;

  XFI_CHECK(of != NULL, XFER_ERR_NOMEM, "the stages of %d layers", model->n_layers);
  for (int stage = 0; stage < side->pp; stage++) {
    int count;

    XFI_TRY(stage_count(side, model->n_layers, stage, &count));
    XFI_CHECK(count <= model->n_layers - at, XFER_ERR_ARG,
              "\"%s\" lists more than the model's %d layers", side->spec, model->n_layers);
    for (int i = 0; i < count; i++)
      of[at++] = stage;
  }
  XFI_CHECK(at == model->n_layers, XFER_ERR_ARG, "\"%s\" lists %d layers, the model has %d",
            side->spec, at, model->n_layers);
  *stages = of;
  of = NULL;
done:
  xfi_free(of);
  return st;
}
