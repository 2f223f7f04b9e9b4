#include "doc.h"

#include "alloc.h"
#include "error.h"
#include "names.h"
#include "vec.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_FILE = 256 << 20 };

/* ---- folders ---- */

xfer_status xfi_path_join(char path[XFI_PATH_BYTES], const char *folder, const char *file)
{
  XFI_CHECK(snprintf(path, XFI_PATH_BYTES, "%s/%s", folder, file) < XFI_PATH_BYTES, XFER_ERR_IO,
            "the path %s/%s is too long", folder, file);
  return XFER_OK;
}

xfer_status xfi_folder_add(xfi_folder *folder, const char *name)
{
  XFI_TRY(xfi_vec_reserve(&folder->names, &folder->capacity, folder->n + 1, sizeof *folder->names));
  XFI_TRY(xfi_name_copy(&folder->names[folder->n], name));
  folder->n++;
  return XFER_OK;
}

static int compare_texts(const void *a, const void *b)
{
  return strcmp(*(char *const *)a, *(char *const *)b);
}

void xfi_folder_sort(xfi_folder *folder)
{
  size_t n = 0;

  if (folder->n > 0) qsort(folder->names, folder->n, sizeof *folder->names, compare_texts);
  for (size_t i = 0; i < folder->n; i++) {
    if (n > 0 && strcmp(folder->names[n - 1], folder->names[i]) == 0)
      xfi_free(folder->names[i]);
    else
      folder->names[n++] = folder->names[i];
  }
  folder->n = n;
}

xfer_status xfi_folder_list(xfi_folder *folder, const char *path, const char *ending)
{
  const size_t k = strlen(ending);
  DIR *dir = opendir(path);
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(dir != NULL, XFER_ERR_IO, "%s cannot be read as a folder: %s", path,
                 strerror(errno));
  for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
    const size_t n = strlen(e->d_name);

    if (n > k && strcmp(e->d_name + n - k, ending) == 0)
      XFI_TRY_DONE(xfi_folder_add(folder, e->d_name));
  }
  XFI_CHECK_DONE(folder->n > 0, XFER_ERR_IO, "%s has no *%s", path, ending);
  xfi_folder_sort(folder);
done:
  if (dir != NULL) closedir(dir);
  return st;
}

void xfi_folder_free(xfi_folder *folder)
{
  for (size_t i = 0; i < folder->n; i++)
    xfi_free(folder->names[i]);
  xfi_free(folder->names);
}

/* ---- documents ---- */

xfer_status xfi_file_open(FILE **in, size_t *n_bytes, const char *path)
{
  struct stat info;

  XFI_CHECK(stat(path, &info) == 0, XFER_ERR_IO, "%s cannot be read: %s", path, strerror(errno));
  XFI_CHECK(S_ISREG(info.st_mode), XFER_ERR_IO, "%s is no regular file", path);
  *in = fopen(path, "rb");
  XFI_CHECK(*in != NULL, XFER_ERR_IO, "%s cannot be read: %s", path, strerror(errno));
  *n_bytes = (size_t)info.st_size;
  return XFER_OK;
}

/* Reads a whole file and adds a zero at its end. */
static xfer_status read_file(char **text, size_t *n_chars, const char *path)
{
  size_t size = 0;
  char *all = NULL;
  FILE *in = NULL;
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(xfi_file_open(&in, &size, path));
  XFI_CHECK_DONE(size <= MAX_FILE, XFER_ERR_IO, "%s has %zu bytes", path, size);
  all = xfi_calloc(size + 1, 1);
  XFI_CHECK_DONE(all != NULL, XFER_ERR_NOMEM, "the text of %s", path);
  *n_chars = fread(all, 1, size, in);
  *text = all;
  all = NULL;
done:
  if (in != NULL) fclose(in);
  xfi_free(all);
  return st;
}

/* Replaces `word`, if it is at `at`, by a number that is no longer. */
static bool replace(char *at, const char *word, const char *number)
{
  const size_t n = strlen(word);

  if (strncmp(at, word, n) != 0) return false;
  memset(at, ' ', n);
  memcpy(at, number, strlen(number));
  return true;
}

/* 1e9 is as long as NaN, and in JSON no whole number. */
static void replace_unfinite(char *text)
{
  bool quoted = false;

  for (char *at = text; *at != '\0'; at++) {
    if (quoted && *at == '\\' && at[1] != '\0')
      at++;
    else if (*at == '"')
      quoted = !quoted;
    else if (!quoted && (*at == '-' || *at == 'I' || *at == 'N') &&
             !replace(at, "-Infinity", "-1e9") && !replace(at, "Infinity", "1e9"))
      (void)replace(at, "NaN", "1e9");
  }
}

bool xfi_doc_had_no_memory(const json_error_t *error)
{
  return json_error_code(error) == json_error_out_of_memory || error->text[0] == '\0';
}

xfer_status xfi_doc_read(xfi_doc *doc, const char *where, const char *text)
{
  static const char BYTE_ORDER_MARK[] = "\xef\xbb\xbf";
  size_t n_chars = text != NULL ? strlen(text) : 0;
  json_error_t error;
  xfer_status st = XFER_OK;

  memset(doc, 0, sizeof *doc);
  doc->where = xfi_strdup(where);
  if (text != NULL) doc->text = xfi_strdup(text);
  XFI_CHECK_DONE(doc->where != NULL && (text == NULL || doc->text != NULL), XFER_ERR_NOMEM,
                 "the text of %s", where);
  if (text == NULL) XFI_TRY_DONE(read_file(&doc->text, &n_chars, where));
  XFI_CHECK_DONE(strncmp(doc->text, BYTE_ORDER_MARK, sizeof BYTE_ORDER_MARK - 1) != 0, XFER_ERR_IO,
                 "%s: line 1: it begins with a byte order mark; save it as UTF-8 without one",
                 where);
  replace_unfinite(doc->text);
  doc->root = json_loadb(doc->text, n_chars, JSON_REJECT_DUPLICATES, &error);
  XFI_CHECK_DONE(doc->root != NULL || !xfi_doc_had_no_memory(&error), XFER_ERR_NOMEM,
                 "what is in %s", where);
  XFI_CHECK_DONE(doc->root != NULL, XFER_ERR_IO, "%s: line %d: %s", where, error.line, error.text);
done:
  if (st != XFER_OK) xfi_doc_free(doc);
  return st;
}

void xfi_doc_free(xfi_doc *doc)
{
  xfi_free(doc->where);
  xfi_free(doc->text);
  json_decref(doc->root);
  memset(doc, 0, sizeof *doc);
}

const char *xfi_doc_text(const json_t *list, size_t i)
{
  return json_string_value(json_array_get(list, i));
}

bool xfi_doc_lists(const json_t *list, const char *text)
{
  for (size_t i = 0; i < json_array_size(list); i++) {
    if (strcmp(xfi_doc_text(list, i), text) == 0) return true;
  }
  return false;
}

/* ---- places: the text is walked along the values, which keep its order ---- */

typedef struct walk {
  const char *at;
  int line;
  const json_t *wanted;
} walk;

static void skip(walk *w, const char *more)
{
  for (; *w->at != '\0' && (isspace((unsigned char)*w->at) || strchr(more, *w->at) != NULL);
       w->at++)
    w->line += *w->at == '\n';
}

static void skip_string(walk *w)
{
  for (w->at++; *w->at != '\0' && *w->at != '"'; w->at++)
    w->at += *w->at == '\\' && w->at[1] != '\0';
  w->at += *w->at != '\0';
}

/* Returns whether the wanted value is this one or inside it. The parser limits the depth of files,
 * and so of the recursion. */
static bool walk_value(walk *w, const json_t *value) /* NOLINT(misc-no-recursion) */
{
  const char *key;
  json_t *child;
  size_t i;

  skip(w, ",:");
  if (value == w->wanted) return true;
  if (json_is_string(value)) {
    skip_string(w);
  } else if (json_is_object(value)) {
    w->at++;
    json_object_foreach((json_t *)(uintptr_t)value, key, child)
    {
      skip(w, ",");
      if (child == w->wanted) return true; /* its place is that of its key */
      skip_string(w);
      if (walk_value(w, child)) return true;
    }
    skip(w, "}");
  } else if (json_is_array(value)) {
    w->at++;
    json_array_foreach((json_t *)(uintptr_t)value, i, child)
    {
      if (walk_value(w, child)) return true;
    }
    skip(w, "]");
  } else {
    while (*w->at != '\0' && strchr(",}] \t\r\n", *w->at) == NULL)
      w->at++;
  }
  return false;
}

xfi_doc_where xfi_doc_find(const xfi_doc *doc, const json_t *value)
{
  enum { LONG_LINE = 200 }; /* characters, in which a reader would have to search */
  walk w = {doc->text, 1, value};
  const bool found = walk_value(&w, doc->root);
  const char *begin = found ? w.at : doc->text;
  xfi_doc_where place;

  while (begin > doc->text && begin[-1] != '\n')
    begin--;
  if (found && strcspn(begin, "\n") > LONG_LINE)
    snprintf(place.text, sizeof place.text, "line %d, column %td", w.line, w.at - begin + 1);
  else
    snprintf(place.text, sizeof place.text, "line %d", found ? w.line : 1);
  return place;
}

xfer_status xfi_doc_error(const xfi_doc *doc, const json_t *value, const char *fmt, ...)
{
  char text[256];
  va_list args;

  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  xfi_set_error("%s: %s: %s", doc->where, xfi_doc_find(doc, value).text, text);
  return XFER_ERR_IO;
}

static const json_t *find_string(const json_t *value,
                                 const char *string) /* NOLINT(misc-no-recursion): JSON's */
{
  const json_t *found = json_string_value(value) == string ? value : NULL;
  const char *key;
  json_t *child;
  size_t i;

  json_object_foreach((json_t *)(uintptr_t)value, key, child)
  {
    if (found == NULL) found = find_string(child, string);
  }
  json_array_foreach((json_t *)(uintptr_t)value, i, child)
  {
    if (found == NULL) found = find_string(child, string);
  }
  return found;
}

const json_t *xfi_doc_value_of(const xfi_doc *doc, const char *string)
{
  return string == NULL ? NULL : find_string(doc->root, string);
}
