/*
 * Reads the folder of a Hugging Face checkpoint: config.json for the figures, and names, shapes and
 * types from the headers of its safetensors files. No weight is read.
 *
 * A safetensors file begins with 8 bytes, little-endian, the length of a JSON object that follows,
 * which has for each tensor its dtype and shape (huggingface/safetensors, format). Names are then
 * put together again: those that differ in the number of a layer or an expert alone become one
 * entry.
 */
#include "model.h"

#include "alloc.h"
#include "checked.h"
#include "error.h"
#include "names.h"
#include "vec.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_HEADER = 256 << 20 };

/* One tensor of the checkpoint. */
typedef struct record {
  xfi_raw raw; /* of this one */
  char *pattern;
  int layer, expert;  /* -1: its name has none */
  int64_t begin, end; /* of its bytes in its file; 0: the file does not say */
} record;

typedef struct folder {
  const char *path;
  const xfer_model *model; /* what layers are called */
  record *records;
  size_t n, capacity;
  xfi_folder files;
  json_t *wanted; /* of the index: the file of each name that was not met yet; NULL: no index */
} folder;

static void folder_free(folder *f)
{
  for (size_t i = 0; i < f->n; i++)
    xfi_free(f->records[i].pattern);
  xfi_free(f->records);
  xfi_folder_free(&f->files);
  json_decref(f->wanted);
}

/* ---- headers ---- */

/* Where the file says that the tensor's bytes are must have as many as its shape. */
static bool read_offsets(record *r, const json_t *offsets)
{
  int64_t n_bytes = (int64_t)xfer_dtype_size(r->raw.dtype);

  r->begin = json_integer_value(json_array_get(offsets, 0));
  r->end = json_integer_value(json_array_get(offsets, 1));
  bool fits = r->begin >= 0 && r->end >= r->begin;
  if (offsets == NULL) return true; /* nothing here reads the bytes */
  for (int d = 0; d < r->raw.n_dims; d++)
    fits = fits && xfi_imul_fits(n_bytes, r->raw.shape[d], &n_bytes);
  return fits && r->end - r->begin == n_bytes;
}

static int compare_offsets(const void *a, const void *b)
{
  const record *x = a, *y = b;

  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->end > y->end) - (x->end < y->end);
}

/* No byte of a file is of two tensors. */
static xfer_status check_offsets(record *records, size_t n, const char *file)
{
  qsort(records, n, sizeof *records, compare_offsets);
  for (size_t i = 1; i < n; i++)
    XFI_CHECK(records[i].begin >= records[i - 1].end, XFER_ERR_IO,
              "%s: the data_offsets of \"%s\" begin at %lld, within those of \"%s\"", file,
              records[i].pattern, (long long)records[i].begin, records[i - 1].pattern);
  return XFER_OK;
}

/* The index has each tensor of its files, and in that file. */
static xfer_status check_indexed(folder *f, const char *file, const char *name)
{
  const char *wanted = json_string_value(json_object_get(f->wanted, name));

  if (f->wanted == NULL) return XFER_OK;
  XFI_CHECK(wanted != NULL && strcmp(wanted, file) == 0, XFER_ERR_IO,
            "%s: \"%s\" lies in %s, and its index does not have it there", f->path, name, file);
  json_object_del(f->wanted, name);
  return XFER_OK;
}

static xfer_status read_record(folder *f, const char *file, const char *name, const json_t *object)
{
  char pattern[XFI_NAME_BYTES];
  record r = {0};

  XFI_CHECK(strchr(name, '{') == NULL, XFER_ERR_IO, "%s: \"%s\" is no name of a tensor", file,
            name);
  XFI_TRY(xfi_raw_read(&r.raw, object, file, name));
  XFI_CHECK(read_offsets(&r, json_object_get(object, "data_offsets")), XFER_ERR_IO,
            "%s: \"%s\": its data_offsets do not have the bytes of its shape", file, name);
  XFI_TRY(xfi_name_split(pattern, &r.layer, &r.expert, name, f->model->words, f->model->n_words));
  XFI_TRY(xfi_vec_reserve(&f->records, &f->capacity, f->n + 1, sizeof *f->records));
  XFI_TRY(xfi_name_copy(&r.pattern, pattern));
  f->records[f->n++] = r;
  return XFER_OK;
}

static xfer_status read_header(folder *f, const char *file)
{
  char path[XFI_PATH_BYTES];
  unsigned char head[8];
  size_t size;
  uint64_t n = 0;
  const size_t first = f->n;
  char *text = NULL;
  FILE *in = NULL;
  json_t *root = NULL;
  json_error_t error;
  const char *name;
  json_t *object;
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(xfi_path_join(path, f->path, file));
  XFI_TRY_DONE(xfi_file_open(&in, &size, path));
  XFI_CHECK_DONE(fread(head, 1, sizeof head, in) == sizeof head, XFER_ERR_IO,
                 "%s ends before its header", path);
  for (int i = 7; i >= 0; i--)
    n = n << 8 | head[i];
  XFI_CHECK_DONE(n > 0 && n <= MAX_HEADER, XFER_ERR_IO, "%s: a header of %llu bytes", path,
                 (unsigned long long)n);
  text = xfi_calloc(n, 1);
  XFI_CHECK_DONE(text != NULL, XFER_ERR_NOMEM, "%s: a header of %llu bytes", path,
                 (unsigned long long)n);
  XFI_CHECK_DONE(fread(text, 1, n, in) == n, XFER_ERR_IO, "%s ends inside its header", path);
  root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
  XFI_CHECK_DONE(root != NULL || !xfi_doc_had_no_memory(&error), XFER_ERR_NOMEM, "the header of %s",
                 path);
  XFI_CHECK_DONE(json_is_object(root), XFER_ERR_IO, "%s: its header is no JSON object%s%s", path,
                 root == NULL ? ": " : "", root == NULL ? error.text : "");
  json_object_foreach(root, name, object)
  {
    if (strcmp(name, "__metadata__") == 0) continue;
    XFI_TRY_DONE(check_indexed(f, file, name));
    XFI_TRY_DONE(read_record(f, path, name, object));
  }
  if (f->n > first) XFI_TRY_DONE(check_offsets(f->records + first, f->n - first, path));
done:
  if (in != NULL) fclose(in);
  xfi_free(text);
  json_decref(root);
  return st;
}

/* ---- which files ---- */

/* A name such as model-00001-of-00003.safetensors, or model-1-of-3: the length of what stands
 * before its number, and of how many files it is one; 0: it is none. */
static int read_numbered(int *of, const char *name)
{
  static const char digits[] = "0123456789";
  const char *at = name;
  const char *next;
  int n;

  while ((next = strstr(at, "-of-")) != NULL)
    at = next + 1;
  n = (int)(at - name) - 1; /* up to the last "-of-" */
  const size_t k = strspn(at == name ? at : at + 3, digits);
  if (n <= 0 || k == 0 || k > 9 || strcmp(at + 3 + k, ".safetensors") != 0) return 0;
  *of = (int)strtol(at + 3, NULL, 10);
  while (n > 0 && strchr(digits, name[n - 1]) != NULL)
    n--;
  return name + n + 1 < at && n > 1 && name[n - 1] == '-' ? n : 0;
}

/* Of files that say how many they are, all are there. Those of one name follow each other. */
static xfer_status check_numbered(const folder *f)
{
  for (size_t i = 0, next; i < f->files.n; i = next) {
    const char *name = f->files.names[i];
    int of, n_files = 1;
    const int n = read_numbered(&of, name);

    for (next = i + 1; n > 0 && next < f->files.n; next++) {
      int of_next;
      const int k = read_numbered(&of_next, f->files.names[next]);

      if (k > 0 && (k != n || of_next != of || strncmp(name, f->files.names[next], (size_t)n) != 0))
        break;
      n_files += k > 0;
    }
    XFI_CHECK(n == 0 || n_files == of, XFER_ERR_IO,
              "%s: of the %d files \"%.*s*-of-%d.safetensors\" %d are there", f->path, of, n, name,
              of, n_files);
  }
  return XFER_OK;
}

/* Without an index: the one that is called as a whole model is, beside which may lie adapters or
 * the same weights in another form, or all there are. */
static xfer_status list_unindexed(folder *f)
{
  static const char whole[] = "model.safetensors";
  char path[XFI_PATH_BYTES];

  XFI_TRY(xfi_path_join(path, f->path, whole));
  if (access(path, F_OK) == 0) return xfi_folder_add(&f->files, whole);
  XFI_TRY(xfi_folder_list(&f->files, f->path, ".safetensors"));
  return check_numbered(f);
}

/* The files that the index names. */
static xfer_status list_indexed(folder *f, const json_t *index)
{
  const json_t *map = json_object_get(index, "weight_map");
  const char *name;
  json_t *file;

  XFI_CHECK(json_is_object(map), XFER_ERR_IO, "%s: its index has no weight_map", f->path);
  json_object_foreach((json_t *)(uintptr_t)map, name, file)
  {
    const char *text = json_string_value(file);

    XFI_CHECK(text != NULL && strchr(text, '/') == NULL, XFER_ERR_IO,
              "%s: its index has no file for \"%s\"", f->path, name);
    XFI_TRY(xfi_folder_add(&f->files, text));
  }
  xfi_folder_sort(&f->files);
  f->wanted = json_copy((json_t *)(uintptr_t)map);
  /* which copies as much as there is memory for */
  XFI_CHECK(json_object_size(f->wanted) == json_object_size(map), XFER_ERR_NOMEM, "the index of %s",
            f->path);
  return XFER_OK;
}

static xfer_status read_headers(folder *f)
{
  char path[XFI_PATH_BYTES];
  xfi_doc index = {0};
  void *left;
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(xfi_path_join(path, f->path, "model.safetensors.index.json"));
  if (access(path, F_OK) == 0) XFI_TRY_DONE(xfi_doc_read(&index, path, NULL));
  XFI_TRY_DONE(index.root != NULL ? list_indexed(f, index.root) : list_unindexed(f));
  for (size_t i = 0; i < f->files.n; i++)
    XFI_TRY_DONE(read_header(f, f->files.names[i]));
  left = json_object_iter(f->wanted);
  XFI_CHECK_DONE(left == NULL, XFER_ERR_IO,
                 "%s: its index has \"%s\" in %s, which does not have it", f->path,
                 json_object_iter_key(left), json_string_value(json_object_iter_value(left)));
done:
  xfi_doc_free(&index);
  return st;
}

/* ---- putting names together ---- */

static int compare_kinds(const record *x, const record *y)
{
  int c = strcmp(x->pattern, y->pattern);

  if (c != 0) return c;
  if (x->raw.dtype != y->raw.dtype) return x->raw.dtype < y->raw.dtype ? -1 : 1;
  if (x->raw.n_dims != y->raw.n_dims) return x->raw.n_dims < y->raw.n_dims ? -1 : 1;
  for (int d = 0; d < x->raw.n_dims; d++) {
    if (x->raw.shape[d] != y->raw.shape[d]) return x->raw.shape[d] < y->raw.shape[d] ? -1 : 1;
  }
  return 0;
}

static int compare_records(const void *a, const void *b)
{
  const record *x = a, *y = b;
  int c = compare_kinds(x, y);

  if (c != 0) return c;
  if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
  return (x->expert > y->expert) - (x->expert < y->expert);
}

/* Records [at, *end) differ in their expert alone; these must follow each other. */
static xfer_status scan_layer(const folder *f, size_t at, size_t *end)
{
  const record *first = &f->records[at];

  for (*end = at + 1; *end < f->n; (*end)++) {
    const record *r = &f->records[*end];

    if (compare_kinds(first, r) != 0 || r->layer != first->layer) break;
    XFI_CHECK(first->expert >= 0 && r->expert != r[-1].expert, XFER_ERR_IO,
              "%s: \"%s\" of layer %d is there twice", f->path, r->pattern, r->layer);
    XFI_CHECK(r->expert == r[-1].expert + 1, XFER_ERR_IO, "%s: \"%s\" of layer %d has no expert %d",
              f->path, r->pattern, r->layer, r[-1].expert + 1);
  }
  return XFER_OK;
}

/* They become an entry of so many experts. */
static xfer_status append_layer(xfer_model *model, const folder *f, const record *r, size_t n,
                                const xfer_model_options *options)
{
  xfi_raw raw = r->raw;

  raw.pattern = r->pattern;
  raw.path = f->path;
  raw.layers = &r->layer;
  raw.n_layers = r->layer >= 0;
  raw.n_experts = r->expert < 0 ? 0 : (int)n;
  raw.first_expert = r->expert < 0 ? 0 : r->expert;
  return xfi_model_append(model, &raw, options);
}

xfer_status xfi_checkpoint_read(xfer_model *model, const char *path,
                                const xfer_model_options *options)
{
  char config[XFI_PATH_BYTES];
  folder f = {.path = path, .model = model};
  size_t end;
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(options->extra == NULL, XFER_ERR_ARG, "%s: a checkpoint has no extra_params",
                 path);
  XFI_TRY_DONE(xfi_path_join(config, path, "config.json"));
  XFI_TRY_DONE(xfi_doc_read(&model->config, config, NULL));
  XFI_CHECK_DONE(json_is_object(model->config.root), XFER_ERR_IO, "%s: line 1: no object", config);
  model->top = model->config.root;
  XFI_TRY_DONE(xfi_config_read(model));
  XFI_TRY_DONE(read_headers(&f));
  XFI_CHECK_DONE(f.n > 0, XFER_ERR_IO, "%s has no tensor", path);
  qsort(f.records, f.n, sizeof *f.records, compare_records);
  for (size_t at = 0; at < f.n; at = end) {
    XFI_TRY_DONE(scan_layer(&f, at, &end));
    XFI_TRY_DONE(append_layer(model, &f, &f.records[at], end - at, options));
  }
done:
  folder_free(&f);
  return st;
}
