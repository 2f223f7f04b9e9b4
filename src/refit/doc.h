/* Files: those of a folder, and JSON files, whose errors name the line of a value. */
#ifndef XFI_DOC_H
#define XFI_DOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "xfer/xfer.h"

struct json_t;
struct json_error_t;

typedef struct xfi_doc {
  char *where; /* the path, for errors */
  char *text;
  struct json_t *root; /* an object or a list */
} xfi_doc;

/* Read the text, or the file `where` if `text` is NULL. Infinity and NaN, which some programs write
 * into JSON, are read as numbers that are not whole: nothing here takes those, so that they are
 * refused where they are used, and only there. */
xfer_status xfi_doc_read(xfi_doc *doc, const char *where, const char *text);
/* Did jansson fail for lack of memory? */
bool xfi_doc_had_no_memory(const struct json_error_t *error);
void xfi_doc_free(xfi_doc *doc);

/* The files of a folder with a given ending, or any list of names, in ascending order without
 * duplicates. */
typedef struct xfi_folder {
  char **names;
  size_t n, capacity;
} xfi_folder;

xfer_status xfi_folder_list(xfi_folder *folder, const char *path, const char *ending);
xfer_status xfi_folder_add(xfi_folder *folder, const char *name);
void xfi_folder_sort(xfi_folder *folder);
void xfi_folder_free(xfi_folder *folder);

enum { XFI_PATH_BYTES = 4096 };
xfer_status xfi_path_join(char path[XFI_PATH_BYTES], const char *folder, const char *file);

/* Open a regular file for reading, and get its size. Anything else, such as a pipe, is refused,
 * since it may never end. */
xfer_status xfi_file_open(FILE **in, size_t *n_bytes, const char *path);

/* The i-th of a list of texts; NULL: there is none. */
const char *xfi_doc_text(const struct json_t *list, size_t i);
/* Is the text one of them? */
bool xfi_doc_lists(const struct json_t *list, const char *text);

/* Where a value of the document begins: "line 3", and in a long line its column too. */
typedef struct xfi_doc_where {
  char text[48];
} xfi_doc_where;
xfi_doc_where xfi_doc_find(const xfi_doc *doc, const struct json_t *value);
/* XFER_ERR_IO, with the file and the line of `value` before the text. */
__attribute__((format(printf, 3, 4))) xfer_status
xfi_doc_error(const xfi_doc *doc, const struct json_t *value, const char *fmt, ...);
/* The value in the document whose string is at this address; NULL: it is in no value of it. */
const struct json_t *xfi_doc_value_of(const xfi_doc *doc, const char *string);

#endif
