/* A JSON file, and where in it a value stands: what errors in data that people write must say. */
#ifndef XFI_DOC_H
#define XFI_DOC_H

#include <stdbool.h>
#include <stddef.h>

#include "xfer/xfer.h"

struct json_t;

typedef struct xfi_doc {
  char *where; /* the path, for errors */
  char *text;
  size_t n_chars;
  struct json_t *root; /* an object or a list */
} xfi_doc;

/* Infinity and NaN, which some programs write into JSON, are read as null. */
xfer_status xfi_doc_read(xfi_doc *doc, const char *path);
xfer_status xfi_doc_parse(xfi_doc *doc, const char *where, const char *text, size_t n_chars);
void xfi_doc_free(xfi_doc *doc);

/* The line in which a value of the document begins, from 1. */
int xfi_doc_line(const xfi_doc *doc, const struct json_t *value);

#endif
