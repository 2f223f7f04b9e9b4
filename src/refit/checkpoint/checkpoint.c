/*
 * Reads the folder of a Hugging Face checkpoint: the figures from config.json, and names, shapes
 * and types from the headers of its safetensors files. No weights are read.
 *
 * A safetensors file begins with the length of a JSON object, in 8 bytes, little-endian; the object
 * follows, and has the dtype and shape of each tensor (huggingface/safetensors, format).
 */
#include "model.h"

#include "alloc.h"
#include "checked.h"
#include "error.h"
#include "vec.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_HEADER = 256 << 20, MANY_ENTRIES = 4096 };

/* One tensor of a file. */
typedef struct record {
  xfi_listed_tensor listed;
  int64_t begin, end; /* of its bytes in the file; 0: the file does not say */
} record;

typedef struct folder {
  const char *path;
  xfer_model *model;
  const xfer_model_options *options;
  size_t most;     /* entries that the model may have before they are merged */
  record *records; /* [n] of one file */
  size_t n, capacity;
  xfi_folder files;
  json_t *wanted; /* from the index: the file of each tensor that was not read yet; NULL: there is
                     no index */
} folder;

static void folder_free(folder *f)
{
  xfi_free(f->records);
  xfi_folder_free(&f->files);
  json_decref(f->wanted);
}

/* ---- headers ---- */

/* Reads where the tensor's bytes are, and returns whether there are as many as its shape needs. */
static bool read_offsets(record *r, const json_t *offsets)
{
  int64_t n_bytes = (int64_t)xfer_dtype_size(r->listed.dtype);

  r->begin = json_integer_value(json_array_get(offsets, 0));
  r->end = json_integer_value(json_array_get(offsets, 1));
  bool fits = r->begin >= 0 && r->end >= r->begin;
  if (offsets == NULL) return true; /* offsets may be missing, since nothing here reads the bytes */
  for (int d = 0; d < r->listed.n_dims; d++)
    fits = fits && xfi_imul_fits(n_bytes, r->listed.shape[d], &n_bytes);
  return fits && r->end - r->begin == n_bytes;
}

static int compare_offsets(const void *a, const void *b)
{
  const record *x = a, *y = b;

  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->end > y->end) - (x->end < y->end);
}

/* Checks that no two tensors of a file share bytes, and that none is cut off, of the `n_data` bytes
 * after the header. A file without any is a header that was fetched alone. */
static xfer_status check_offsets(const folder *f, const char *file, uint64_t n_data)
{
  const record *records = f->records;

  for (size_t i = 0; i < f->n && n_data > 0; i++)
    XFI_CHECK((uint64_t)records[i].end <= n_data, XFER_ERR_IO,
              "%s is cut off: it has %llu bytes of weights, and \"%s\" ends at %lld", file,
              (unsigned long long)n_data, records[i].listed.pattern, (long long)records[i].end);

  xfi_sort(f->records, f->n, sizeof *records, compare_offsets);
  for (size_t i = 1; i < f->n; i++)
    XFI_CHECK(records[i].begin >= records[i - 1].end, XFER_ERR_IO,
              "%s: the data_offsets of \"%s\" begin at %lld, within those of \"%s\"", file,
              records[i].listed.pattern, (long long)records[i].begin,
              records[i - 1].listed.pattern);
  return XFER_OK;
}

/* Checks that the index has the tensor, in this file. */
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
  record r = {.listed = {.pattern = name, .path = f->path}};

  XFI_CHECK(strchr(name, '{') == NULL, XFER_ERR_IO, "%s: \"%s\" is no name of a tensor", file,
            name);
  XFI_TRY(xfi_listed_tensor_read(&r.listed, object, file, name));
  XFI_CHECK(read_offsets(&r, json_object_get(object, "data_offsets")), XFER_ERR_IO,
            "%s: \"%s\": its data_offsets do not have the bytes of its shape", file, name);
  return XFI_APPEND(f->records, f->n, f->capacity, r);
}

/* Appends the tensors of a file. There may be very many experts, so they are merged whenever the
 * list has grown enough; then each layer has one entry for all of them. */
static xfer_status append_records(folder *f)
{
  xfer_model *model = f->model;

  for (size_t i = 0; i < f->n; i++) {
    XFI_TRY(xfi_model_append(model, &f->records[i].listed, f->options));
    if (model->n_entries < f->most) continue;
    XFI_TRY(xfi_model_gather_experts(model));
    f->most = 2 * model->n_entries + MANY_ENTRIES;
  }
  f->n = 0;
  return XFER_OK;
}

static xfer_status read_header(folder *f, const char *file)
{
  char path[XFI_PATH_BYTES];
  unsigned char head[8];
  size_t size;
  uint64_t n = 0;
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
  XFI_TRY_DONE(check_offsets(f, path, size - sizeof head - n));
  XFI_TRY_DONE(append_records(f));
done:
  if (in != NULL) fclose(in);
  xfi_free(text);
  json_decref(root);
  return st;
}

/* ---- which files ---- */

/* Parses a name such as model-00001-of-00003.safetensors or model-1-of-3. Returns the length of
 * what precedes the number, or 0 if the name is not of this form; *of becomes the number of files.
 */
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

/* Is a file one of `of` files whose names have the same n characters before the number? */
static bool is_of_set(const char *file, const char *name, int n, int of)
{
  int of_file;

  return read_numbered(&of_file, file) == n && of_file == of && strncmp(file, name, (size_t)n) == 0;
}

/* Is the file with this number there, of the set? */
static bool has_number(const folder *f, const char *name, int n, int of, int number)
{
  for (size_t i = 0; i < f->files.n; i++)
    if (is_of_set(f->files.names[i], name, n, of) &&
        strtol(f->files.names[i] + n, NULL, 10) == number)
      return true;
  return false;
}

/* Checks that the set of a file is complete: `of` files, with n characters before the number. */
static xfer_status check_set(const folder *f, const char *name, int n, int of)
{
  const int width = (int)strcspn(name + n, "-");
  int missing = has_number(f, name, n, of, 0) ? 0 : 1;
  int n_files = 0;

  for (size_t i = 0; i < f->files.n; i++)
    n_files += is_of_set(f->files.names[i], name, n, of);
  if (n_files == of) return XFER_OK;
  XFI_CHECK(n_files < of, XFER_ERR_IO,
            "%s: of the %d files \"%.*s*-of-%d.safetensors\" %d are there", f->path, of, n, name,
            of, n_files);
  while (has_number(f, name, n, of, missing))
    missing++;
  return XFI_ERROR(XFER_ERR_IO,
                   "%s: of the %d files \"%.*s*-of-%d.safetensors\" %d are there; "
                   "\"%.*s%0*d%s\" is missing",
                   f->path, of, n, name, of, n_files, n, name, width, missing, name + n + width);
}

/* Checks that numbered files are complete. Those of one name are mostly neighbours in the list. */
static xfer_status check_numbered(const folder *f)
{
  for (size_t i = 0; i < f->files.n; i++) {
    const char *name = f->files.names[i];
    int of;
    const int n = read_numbered(&of, name);

    if (n == 0 || (i > 0 && is_of_set(f->files.names[i - 1], name, n, of))) continue;
    XFI_TRY(check_set(f, name, n, of));
  }
  return XFER_OK;
}

/* Lists the files of a folder without an index: only the file with the usual name of a whole model
 * if it is there, since adapters or the same weights in another form may lie beside it; else all.
 */
static xfer_status list_unindexed(folder *f)
{
  static const char whole[] = "model.safetensors";
  char path[XFI_PATH_BYTES];

  XFI_TRY(xfi_path_join(path, f->path, whole));
  if (access(path, F_OK) == 0) return xfi_folder_add(&f->files, whole);
  XFI_TRY(xfi_folder_list(&f->files, f->path, ".safetensors"));
  return check_numbered(f);
}

/* Lists the files that the index names. */
static xfer_status list_indexed(folder *f, const json_t *index)
{
  const json_t *map = json_object_get(index, "weight_map");
  const char *name;
  json_t *file;

  XFI_CHECK(json_is_object(map), XFER_ERR_IO, "%s: its index has no weight_map", f->path);
  json_object_foreach((json_t *)(uintptr_t)map, name, file)
  {
    const char *text = json_string_value(file);

    XFI_CHECK(text != NULL, XFER_ERR_IO, "%s: its index has no file for \"%s\"", f->path, name);
    XFI_CHECK(strchr(text, '/') == NULL, XFER_ERR_IO,
              "%s: its index has \"%s\" in \"%s\", and files of a checkpoint are in its own folder",
              f->path, name, text);
    XFI_TRY(xfi_folder_add(&f->files, text));
  }
  xfi_folder_sort(&f->files);
  f->wanted = json_copy((json_t *)(uintptr_t)map);
  /* the copy is incomplete if memory ran out */
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

/* ---- all of it ---- */

xfer_status xfi_checkpoint_read(xfer_model *model, const char *path,
                                const xfer_model_options *options)
{
  char config[XFI_PATH_BYTES];
  folder f = {.path = path, .model = model, .options = options, .most = MANY_ENTRIES};
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(options->extra == NULL, XFER_ERR_ARG, "%s: a checkpoint has no extra_params",
                 path);
  XFI_TRY_DONE(xfi_path_join(config, path, "config.json"));
  XFI_TRY_DONE(xfi_doc_read(&model->config, config, NULL));
  XFI_CHECK_DONE(json_is_object(model->config.root), XFER_ERR_IO, "%s: line 1: no object", config);
  model->configuration = model->config.root;
  model->from_checkpoint = true;
  XFI_TRY_DONE(xfi_config_read(model));
  XFI_TRY_DONE(read_headers(&f));
  XFI_CHECK_DONE(model->n_entries > 0, XFER_ERR_IO, "%s has no tensor", path);
  xfi_model_sort(model);
done:
  folder_free(&f);
  return st;
}
