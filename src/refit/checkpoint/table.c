/* Reads the project's own tables of models, "format": "xfer-model-v1". */
#include "model.h"

#include "alloc.h"
#include "checked.h"
#include "dtype.h"
#include "error.h"
#include "rules_fields.h"

#include <jansson.h>
#include <string.h>

/* The element types' names in safetensors headers, by xfer_dtype. Our own names are accepted too.
 */
static const char *const SPELLINGS[] = {"",        "U8",  "I8",  "BOOL", "F8_E4M3", "F8_E5M2",
                                        "F8_E8M0", "U16", "I16", "F16",  "BF16",    "U32",
                                        "I32",     "F32", "U64", "I64",  "F64",     NULL};

xfer_status xfi_listed_tensor_read(xfi_listed_tensor *listed, const json_t *object,
                                   const char *where, const char *name)
{
  const char *spelling = json_string_value(json_object_get(object, "dtype"));
  const json_t *list = json_object_get(object, "shape");
  int theirs;

  XFI_CHECK(spelling != NULL, XFER_ERR_IO, "%s: \"%s\" has no dtype", where, name);
  theirs = xfi_rules_choice(SPELLINGS, spelling);
  if (theirs > 0) listed->dtype = (xfer_dtype)theirs;
  XFI_CHECK(theirs > 0 || xfi_dtype_parse(&listed->dtype, spelling) == XFER_OK, XFER_ERR_IO,
            "%s: \"%s\": no element type is called \"%s\"", where, name, spelling);
  XFI_CHECK(json_is_array(list) && json_array_size(list) <= XFER_MAX_DIMS, XFER_ERR_IO,
            "%s: \"%s\" has no shape of at most %d dims", where, name, XFER_MAX_DIMS);
  listed->n_dims = (int)json_array_size(list);
  for (int d = 0; d < listed->n_dims; d++) {
    const json_t *size = json_array_get(list, (size_t)d);

    XFI_CHECK(json_is_integer(size) && json_integer_value(size) >= 0, XFER_ERR_IO,
              "%s: \"%s\": dim %d of its shape is no whole number from 0", where, name, d);
    listed->shape[d] = json_integer_value(size);
  }
  return XFER_OK;
}

/* ---- tensors ---- */

enum { MOST_NUMBERS = 1 << 20 };

typedef struct reader {
  xfer_model *model;
  const xfer_model_options *options;
  const xfi_doc *doc;
  int *layers; /* scratch */
} reader;

static xfer_status read_range(const reader *r, const json_t *range, const char *name, int *lo,
                              int *n)
{
  json_int_t first = json_integer_value(json_array_get(range, 0));
  json_int_t last = json_integer_value(json_array_get(range, 1));

  if (json_array_size(range) != 2 || !json_is_integer(json_array_get(range, 0)) ||
      !json_is_integer(json_array_get(range, 1)) || 0 > first || first > last)
    return xfi_doc_error(r->doc, range, "\"%s\": a range is [first, last]", name);
  if (last >= MOST_NUMBERS)
    return xfi_doc_error(r->doc, range,
                         "\"%s\": a range up to %lld; numbers of layers and experts are below %d",
                         name, (long long)last, MOST_NUMBERS);
  *lo = (int)first;
  *n = (int)(last - first + 1);
  return XFER_OK;
}

static xfer_status read_layers(reader *r, const json_t *object, const char *name,
                               xfi_listed_tensor *listed)
{
  const json_t *range = json_object_get(object, "layer");
  const json_t *list = json_object_get(object, "layer_list");
  int first = 0;

  if (range == NULL && list == NULL) return XFER_OK;
  if (range != NULL && list != NULL)
    return xfi_doc_error(r->doc, object, "\"%s\" has both \"layer\" and \"layer_list\"", name);
  if (range != NULL) {
    XFI_TRY(read_range(r, range, name, &first, &listed->n_layers));
  } else {
    if (json_array_size(list) == 0 || json_array_size(list) >= MOST_NUMBERS)
      return xfi_doc_error(r->doc, list, "\"%s\": layer_list has %zu layers", name,
                           json_array_size(list));
    listed->n_layers = (int)json_array_size(list);
  }
  xfi_free(r->layers);
  r->layers = xfi_calloc((size_t)listed->n_layers, sizeof *r->layers);
  XFI_CHECK(r->layers != NULL, XFER_ERR_NOMEM, "%d layer numbers", listed->n_layers);
  for (int i = 0; i < listed->n_layers; i++) {
    const json_t *item = json_array_get(list, (size_t)i);
    json_int_t layer = range != NULL ? first + i : json_integer_value(item);

    if (range == NULL && !json_is_integer(item))
      return xfi_doc_error(r->doc, item, "\"%s\": entry %d of layer_list is no layer", name, i);
    if (layer < 0 || layer >= MOST_NUMBERS)
      return xfi_doc_error(r->doc, item, "\"%s\": layer %lld", name, (long long)layer);
    r->layers[i] = (int)layer;
  }
  listed->layers = r->layers;
  return XFER_OK;
}

static xfer_status read_tensor(reader *r, const json_t *object)
{
  const char *name = NULL, *pattern = NULL;
  const json_t *experts = NULL;
  const xfi_field fields[] = {FIELD("name", TEXT, &name),     FIELD("pattern", TEXT, &pattern),
                              FIELD("shape", LIST, NULL),     FIELD("dtype", TEXT, NULL),
                              FIELD("layer", LIST, NULL),     FIELD("layer_list", LIST, NULL),
                              FIELD("expert", LIST, &experts)};
  xfi_listed_tensor listed = {.path = r->doc->where};

  XFI_TRY(XFI_RULES_READ(r->doc, object, "a tensor", fields));
  listed.pattern = pattern == NULL ? name : pattern;
  if ((name == NULL) == (pattern == NULL))
    return xfi_doc_error(r->doc, object, "a tensor needs either \"name\" or \"pattern\"");
  if (name == NULL) name = pattern;
  XFI_TRY(xfi_listed_tensor_read(&listed, object, r->doc->where, name));
  if (pattern == NULL && strchr(name, '{') != NULL)
    return xfi_doc_error(r->doc, object, "\"%s\" is a pattern, not a name", name);
  XFI_TRY(read_layers(r, object, name, &listed));
  if (experts != NULL)
    XFI_TRY(read_range(r, experts, name, &listed.first_expert, &listed.n_experts));
  return xfi_model_append(r->model, &listed, r->options);
}

static xfer_status read_list(reader *r, const json_t *list, const char *what)
{
  size_t i;
  const json_t *object;

  if (!json_is_array(list)) return xfi_doc_error(r->doc, list, "\"%s\" is no list", what);
  json_array_foreach(list, i, object)
  {
    if (!json_is_object(object))
      return xfi_doc_error(r->doc, object, "\"%s\"[%zu] is no object", what, i);
    XFI_TRY(read_tensor(r, object));
  }
  return XFER_OK;
}

/* ---- totals ---- */

/* Compares the totals of the list `what`, which a table may state, with what the entries from
 * `first` on, which are the list's, make. */
static xfer_status check_totals(const reader *r, const json_t *totals, const char *what,
                                size_t first)
{
  static const char *const KEYS[] = {"tensors", "elements", "bytes"};
  int64_t have[3] = {0, 0, 0};
  const xfi_field fields[] = {FIELD(KEYS[0], COUNT, NULL), FIELD(KEYS[1], COUNT, NULL),
                              FIELD(KEYS[2], COUNT, NULL)};

  if (totals == NULL) return XFER_OK;
  XFI_TRY(XFI_RULES_READ(r->doc, totals, "totals", fields));
  for (size_t i = first; i < r->model->n_entries; i++) {
    const xfi_entry *e = &r->model->entries[i];
    int64_t n_elems = xfi_entry_places(e);

    have[0] += n_elems * (e->n_experts > 0 ? e->n_experts : 1);
    for (int d = 0; d < e->n_dims; d++)
      if (!xfi_imul_fits(n_elems, e->shape[d], &n_elems)) return XFER_OK; /* no table has so many */
    have[1] += n_elems;
    have[2] += n_elems * (int64_t)xfi_dtype_size((int)e->dtype);
  }
  for (int k = 0; k < 3; k++) {
    const json_t *said = json_object_get(totals, KEYS[k]);

    if (said != NULL && json_integer_value(said) != have[k])
      return xfi_doc_error(r->doc, said, "its totals say %lld %s, and its %s make %lld",
                           (long long)json_integer_value(said), KEYS[k], what, (long long)have[k]);
  }
  return XFER_OK;
}

xfer_status xfi_table_read(xfer_model *model, const char *path, const xfer_model_options *options)
{
  reader r = {model, options, &model->config, NULL};
  const json_t *root, *params = NULL, *totals = NULL, *extras = NULL, *extra_totals = NULL;
  const char *format;
  /* What says where a table is from is for people. */
  const xfi_field fields[] = {NEEDED("format", TEXT, NULL),
                              FIELD("name", TEXT, NULL),
                              NEEDED("config", OBJECT, &model->configuration),
                              NEEDED("params", LIST, &params),
                              FIELD("totals", OBJECT, &totals),
                              FIELD("extra_params", OBJECT, &extras),
                              FIELD("source", TEXT, NULL),
                              FIELD("extra_totals", OBJECT, &extra_totals),
                              FIELD("verification", OBJECT, NULL)};
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(xfi_doc_read(&model->config, path, NULL));
  root = model->config.root;
  format = json_string_value(json_object_get(root, "format"));
  XFI_CHECK_DONE(format != NULL && strcmp(format, "xfer-model-v1") == 0, XFER_ERR_IO,
                 "%s: its format is \"%s\", not xfer-model-v1", path, format == NULL ? "" : format);
  XFI_TRY_DONE(XFI_RULES_READ(&model->config, root, "a table", fields));
  XFI_TRY_DONE(xfi_config_read(model));
  XFI_TRY_DONE(read_list(&r, params, "params"));
  XFI_TRY_DONE(check_totals(&r, totals, "params", 0));
  if (options->extra != NULL) {
    const json_t *extra = json_object_get(extras, options->extra);
    const size_t n_params = model->n_entries;

    XFI_CHECK_DONE(extra != NULL, XFER_ERR_ARG, "%s has no extra_params called \"%s\"", path,
                   options->extra);
    XFI_TRY_DONE(read_list(&r, extra, options->extra));
    XFI_TRY_DONE(
        check_totals(&r, json_object_get(extra_totals, options->extra), "extra_params", n_params));
  }
done:
  xfi_free(r.layers);
  return st;
}
