/* Reads a SPEC: framework, colon, items. One table says which items a framework has. */
#include "side.h"

#include "alloc.h"
#include "error.h"

#include <ctype.h>
#include <jansson.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef enum item_kind {
  ITEM_NUMBER, /* tp4 */
  ITEM_CHOICE, /* mla_down=fused: the value is its place in `choices` */
  ITEM_FLAG,   /* transposed */
  ITEM_LAYERS, /* layers=3+14x4+2 */
  ITEM_MAP     /* map=FILE */
} item_kind;

typedef struct item {
  const char *name;
  int frameworks;
  item_kind kind;
  size_t field;
  const char *choices[4];
  uint32_t flag;
} item;

enum { TRAIN_PP = XFI_MEGATRON, ANY = XFI_MEGATRON | XFI_FSDP | XFI_VLLM };

static const item ITEMS[] = {
    {"tp", ANY | XFI_HF, ITEM_NUMBER, offsetof(xfer_side, tp), {0}, 0},
    {"dp", ANY, ITEM_NUMBER, offsetof(xfer_side, dp), {0}, 0},
    {"ep", ANY, ITEM_NUMBER, offsetof(xfer_side, ep), {0}, 0},
    {"pp", XFI_MEGATRON | XFI_VLLM, ITEM_NUMBER, offsetof(xfer_side, pp), {0}, 0},
    {"cp", XFI_MEGATRON, ITEM_NUMBER, offsetof(xfer_side, cp), {0}, 0},
    {"etp", XFI_MEGATRON, ITEM_NUMBER, offsetof(xfer_side, etp), {0}, 0},
    {"vdiv", XFI_MEGATRON, ITEM_NUMBER, offsetof(xfer_side, vdiv), {0}, 0},
    {"layers", XFI_MEGATRON, ITEM_LAYERS, 0, {0}, 0},
    {"mla_down",
     XFI_MEGATRON,
     ITEM_CHOICE,
     offsetof(xfer_side, mla_down),
     {"replicated", "sharded", "fused"},
     0},
    {"experts", XFI_MEGATRON, ITEM_CHOICE, offsetof(xfer_side, stacked), {"list", "stacked"}, 0},
    {"replicate", XFI_FSDP, ITEM_NUMBER, offsetof(xfer_side, replicate), {0}, 0},
    {"engines", XFI_VLLM, ITEM_NUMBER, offsetof(xfer_side, engines), {0}, 0},
    {"loaded", XFI_VLLM, ITEM_FLAG, 0, {0}, XFER_WEIGHTS_LOADED},
    {"up_first", XFI_VLLM, ITEM_FLAG, 0, {0}, XFER_WEIGHTS_UP_FIRST},
    {"interleaved", XFI_VLLM, ITEM_FLAG, 0, {0}, XFER_WEIGHTS_INTERLEAVED},
    {"transposed", XFI_VLLM, ITEM_FLAG, 0, {0}, XFER_WEIGHTS_TRANSPOSED},
    {"round_robin",
     XFI_VLLM,
     ITEM_CHOICE,
     offsetof(xfer_side, round_robin),
     {"", "round_robin"},
     0},
    {"map", XFI_VLLM, ITEM_MAP, 0, {0}, 0},
};
enum { N_ITEMS = sizeof ITEMS / sizeof *ITEMS, MAX_PP = 4096 };

static const struct {
  const char *name;
  xfi_framework framework;
} FRAMEWORKS[] = {{"megatron", XFI_MEGATRON},
                  {"fsdp", XFI_FSDP},
                  {"full", XFI_FULL},
                  {"vllm", XFI_VLLM},
                  {"hf", XFI_HF}};

/* A number of at most 9 digits, all of `text` up to `end`; -1: it is none. */
static int number(const char *text, const char *end)
{
  int value = 0;

  if (text == end || end - text > 9) return -1;
  for (; text < end; text++) {
    if (!isdigit((unsigned char)*text)) return -1;
    value = 10 * value + (*text - '0');
  }
  return value;
}

/* "3+14x4+2": stages of 3, fourteen times 4, and 2 layers. */
static xfer_status parse_layers(xfer_side *side, const char *text, const char *end)
{
  int n_stages = 0;
  xfer_status st = XFER_OK;

  side->stage_layers = xfi_calloc(MAX_PP + 1, sizeof *side->stage_layers);
  XFI_CHECK(side->stage_layers != NULL, XFER_ERR_NOMEM, "the layers of the stages");
  while (text < end) {
    const char *stop = memchr(text, '+', (size_t)(end - text));
    const char *x;
    int times = 1, layers;

    if (stop == NULL) stop = end;
    x = memchr(text, 'x', (size_t)(stop - text));
    if (x != NULL) times = number(text, x);
    layers = number(x == NULL ? text : x + 1, stop);
    XFI_CHECK(times > 0 && layers >= 0 && times <= MAX_PP - n_stages && stop + 1 != end,
              XFER_ERR_ARG, "layers=%.*s: want counts such as 3+14x4+2", (int)(end - text), text);
    while (times-- > 0)
      side->stage_layers[n_stages++] = layers;
    text = stop + 1;
  }
  side->stage_layers[n_stages] = -1;
  XFI_CHECK(n_stages > 0, XFER_ERR_ARG, "layers= lists no stage");
done:
  return st;
}

static const item *find_item(const char *text, size_t n, size_t n_name)
{
  const item *found = NULL;

  for (size_t i = 0; i < N_ITEMS; i++) {
    size_t k = strlen(ITEMS[i].name);
    bool whole = ITEMS[i].kind == ITEM_FLAG || ITEMS[i].field == offsetof(xfer_side, round_robin);

    if (k > n || strncmp(text, ITEMS[i].name, k) != 0) continue;
    if (whole                          ? k != n
        : ITEMS[i].kind == ITEM_NUMBER ? !isdigit((unsigned char)text[k])
                                       : k != n_name) {
      continue;
    }
    found = &ITEMS[i];
  }
  return found;
}

static xfer_status parse_choice(xfer_side *side, const item *it, const char *value, const char *end)
{
  xfer_status st = XFER_OK;

  for (int c = 0; c < 4 && it->choices[c] != NULL; c++) {
    if (strlen(it->choices[c]) != (size_t)(end - value)) continue;
    if (strncmp(it->choices[c], value, (size_t)(end - value)) != 0) continue;
    memcpy((char *)side + it->field, &c, sizeof c);
    return XFER_OK;
  }
  XFI_CHECK(false, XFER_ERR_ARG, "%s=%.*s: no such choice", it->name, (int)(end - value), value);
done:
  return st;
}

static xfer_status parse_map(xfer_side *side, const char *value, const char *end)
{
  char path[1024];
  xfer_status st = XFER_OK;

  XFI_CHECK(end > value && (size_t)(end - value) < sizeof path, XFER_ERR_ARG, "map= wants a file");
  snprintf(path, sizeof path, "%.*s", (int)(end - value), value);
  XFI_TRY(xfi_map_read(side, path));
done:
  return st;
}

static xfer_status parse_item(xfer_side *side, const char *text, const char *end, bool *seen)
{
  const char *equals = memchr(text, '=', (size_t)(end - text));
  const item *it =
      find_item(text, (size_t)(end - text), (size_t)((equals == NULL ? end : equals) - text));
  const char *value;
  int n;
  xfer_status st = XFER_OK;

  XFI_CHECK(it != NULL && (it->frameworks & (int)side->framework) != 0, XFER_ERR_ARG,
            "\"%s\": no item \"%.*s\" there", side->spec, (int)(end - text), text);
  XFI_CHECK(!seen[it - ITEMS], XFER_ERR_ARG, "\"%s\": %s is given twice", side->spec, it->name);
  seen[it - ITEMS] = true;
  value = text + strlen(it->name);
  if (it->kind == ITEM_NUMBER) {
    n = number(value, end);
    XFI_CHECK(n > 0, XFER_ERR_ARG, "\"%s\": %.*s wants a number from 1", side->spec,
              (int)(end - text), text);
    memcpy((char *)side + it->field, &n, sizeof n);
  } else if (it->kind == ITEM_FLAG) {
    side->weights |= it->flag;
  } else if (it->field == offsetof(xfer_side, round_robin)) {
    side->round_robin = 1;
  } else {
    XFI_CHECK(*value == '=', XFER_ERR_ARG, "\"%s\": %s wants \"=\"", side->spec, it->name);
    if (it->kind == ITEM_LAYERS) XFI_TRY(parse_layers(side, value + 1, end));
    if (it->kind == ITEM_MAP) XFI_TRY(parse_map(side, value + 1, end));
    if (it->kind == ITEM_CHOICE) XFI_TRY(parse_choice(side, it, value + 1, end));
  }
done:
  return st;
}

/* ---- what fits together ---- */

static bool product(int *out, int a, int b, int c, int d)
{
  long long n = (long long)a * b;

  if (n > INT_MAX || n * c > INT_MAX || n * c * d > INT_MAX) return false;
  *out = (int)(n * c * d);
  return true;
}

static xfer_status check_megatron(xfer_side *side)
{
  int n_listed = 0;
  int64_t stage;
  xfer_status st = XFER_OK;

  XFI_CHECK(product(&side->size, side->tp, side->cp, side->dp, side->pp), XFER_ERR_OVERFLOW,
            "\"%s\" has more ranks than an int counts", side->spec);
  stage = side->size / side->pp;
  XFI_CHECK((int64_t)side->ep * side->etp <= stage && stage % ((int64_t)side->ep * side->etp) == 0,
            XFER_ERR_ARG, "\"%s\": ep %d times etp %d do not divide the %lld ranks of a stage",
            side->spec, side->ep, side->etp, (long long)stage);
  if (side->stage_layers != NULL) {
    while (side->stage_layers[n_listed] >= 0)
      n_listed++;
    XFI_CHECK(n_listed == side->pp, XFER_ERR_ARG, "\"%s\": layers= lists %d stages, pp is %d",
              side->spec, n_listed, side->pp);
  }
done:
  return st;
}

static xfer_status check_vllm(xfer_side *side)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(product(&side->size, side->tp, side->pp, side->dp, side->engines), XFER_ERR_OVERFLOW,
            "\"%s\" has more ranks than an int counts", side->spec);
  XFI_CHECK(side->ep == 1 || side->ep == side->dp * side->tp, XFER_ERR_ARG,
            "\"%s\": ep is %d; vLLM knows 1 and dp x tp, %d", side->spec, side->ep,
            side->dp * side->tp);
  XFI_CHECK(side->ep > 1 || (side->round_robin == 0 && side->map_first == NULL), XFER_ERR_ARG,
            "\"%s\": an expert map without ep", side->spec);
  XFI_CHECK(side->round_robin == 0 || side->map_first == NULL, XFER_ERR_ARG,
            "\"%s\": round_robin and map at once", side->spec);
done:
  return st;
}

static xfer_status check_others(xfer_side *side)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(product(&side->size, side->tp, side->dp, side->replicate, 1), XFER_ERR_OVERFLOW,
            "\"%s\" has more ranks than an int counts", side->spec);
  XFI_CHECK(side->dp % side->ep == 0, XFER_ERR_ARG, "\"%s\": ep %d does not divide dp %d",
            side->spec, side->ep, side->dp);
done:
  return st;
}

xfer_status xfi_spec_parse(xfer_side *side, const char *spec)
{
  const char *colon = strchr(spec, ':');
  size_t n = colon == NULL ? strlen(spec) : (size_t)(colon - spec);
  bool seen[N_ITEMS] = {false};
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < sizeof FRAMEWORKS / sizeof *FRAMEWORKS; i++) {
    if (strlen(FRAMEWORKS[i].name) == n && strncmp(FRAMEWORKS[i].name, spec, n) == 0) {
      side->framework = FRAMEWORKS[i].framework;
    }
  }
  XFI_CHECK(side->framework != 0, XFER_ERR_ARG, "\"%s\": no framework is called \"%.*s\"", spec,
            (int)n, spec);
  side->tp = side->cp = side->pp = side->ep = side->etp = side->dp = side->replicate =
      side->engines = 1;
  side->vdiv = 128;
  for (const char *at = colon == NULL ? "" : colon + 1; *at != '\0';) {
    const char *end = strchr(at, ',');

    if (end == NULL) end = at + strlen(at);
    XFI_CHECK(end > at && (*end == '\0' || end[1] != '\0'), XFER_ERR_ARG, "\"%s\": an empty item",
              spec);
    XFI_TRY(parse_item(side, at, end, seen));
    at = *end == ',' ? end + 1 : end;
  }
  if (side->framework == XFI_MEGATRON) XFI_TRY(check_megatron(side));
  if (side->framework == XFI_VLLM) XFI_TRY(check_vllm(side));
  if ((side->framework & (XFI_FSDP | XFI_FULL | XFI_HF)) != 0) XFI_TRY(check_others(side));
done:
  return st;
}

/* ---- map=FILE ---- */

static size_t count_map(const json_t *root)
{
  size_t n = 0;

  for (size_t i = 0; i < json_array_size(root); i++)
    n += json_array_size(json_array_get(root, i));
  return n;
}

xfer_status xfi_map_read(xfer_side *side, const char *path)
{
  json_error_t error;
  json_t *root = json_load_file(path, 0, &error);
  size_t n_ranks, n = 0;
  xfer_status st = XFER_OK;

  XFI_CHECK(root != NULL, XFER_ERR_IO, "%s: line %d: %s", path, error.line, error.text);
  n_ranks = json_array_size(root);
  XFI_CHECK(n_ranks > 0 && n_ranks < 1 << 20 && count_map(root) < 1 << 24, XFER_ERR_IO,
            "%s: want a list of a list of experts for each rank", path);
  side->map_first = xfi_calloc(n_ranks + 2, sizeof *side->map_first);
  side->map_experts = xfi_calloc(count_map(root), sizeof *side->map_experts);
  XFI_CHECK(side->map_first != NULL && side->map_experts != NULL, XFER_ERR_NOMEM, "an expert map");
  for (size_t r = 0; r < n_ranks; r++) {
    const json_t *list = json_array_get(root, r);

    for (size_t i = 0; i < json_array_size(list); i++) {
      json_int_t expert = json_integer_value(json_array_get(list, i));

      XFI_CHECK(json_is_integer(json_array_get(list, i)) && expert >= 0 && expert < 1 << 20,
                XFER_ERR_IO, "%s: rank %zu: entry %zu is no expert", path, r, i);
      side->map_experts[n++] = (int)expert;
    }
    side->map_first[r + 1] = (int)n;
  }
  side->map_first[n_ranks + 1] = -1; /* how many ranks it lists is checked once ep is known */
done:
  json_decref(root);
  return st;
}
