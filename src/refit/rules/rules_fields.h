/* Reads the fields of a JSON object in rules or in a model's table. All fields of an object are
 * listed in one place, and an unknown key is an error with its line. Only for rules_*.c and
 * table.c, since the names of kinds are short. */
#ifndef XFI_RULES_FIELDS_H
#define XFI_RULES_FIELDS_H

#include <jansson.h>
#include <stdbool.h>

#include "doc.h"
#include "xfer/xfer.h"

typedef enum xfi_field_kind {
  TEXT,     /* a string that is not empty */
  EXPR,     /* a string that is an expression */
  TEXTS,    /* a list of strings */
  EXPRS,    /* an object: names and expressions */
  LISTED,   /* a list of expressions */
  ALL,      /* an expression, or a list of them; to const json_t * */
  TWO,      /* a list of two expressions; to const char *[2] */
  TWOS,     /* an object: names, each with a list of two expressions */
  PAIRS,    /* a list of [string, string] */
  REQUIRES, /* a list of [expression, string] */
  FLAG,     /* true or false */
  CHOICE,   /* one string of a list; its index is stored */
  DTYPE,    /* the name of an element type */
  LIST,     /* any list */
  OBJECT,   /* any object */
  COUNT,    /* a whole number from 0; not stored */
} xfi_field_kind;

typedef struct xfi_field {
  const char *name;
  xfi_field_kind kind;
  void *to; /* const char **, const json_t **, bool *, or int * of a choice and an element type */
  bool needed;
  const char *const *choices; /* ended by NULL */
} xfi_field;

#define FIELD(name, kind, to)                                                                      \
  {                                                                                                \
    (name), (kind), (to), false, NULL                                                              \
  }
#define NEEDED(name, kind, to)                                                                     \
  {                                                                                                \
    (name), (kind), (to), true, NULL                                                               \
  }
#define XFI_RULES_READ(doc, object, what, fields)                                                  \
  xfi_rules_fields((doc), (object), (what), (fields), sizeof(fields) / sizeof *(fields))

/* A string that is not empty and has no NUL. */
bool xfi_rules_is_text(const json_t *value);
bool xfi_rules_is(const json_t *value, xfi_field_kind k);
/* The index of a string in a list that ends with NULL; -1: it is not there. */
int xfi_rules_choice(const char *const *choices, const char *text);
/* A string that is an expression. */
xfer_status xfi_rules_check_expr(const xfi_doc *doc, const json_t *value);
/* Read the `n` fields of an object. Errors call it `what`. */
xfer_status xfi_rules_fields(const xfi_doc *doc, const json_t *object, const char *what,
                             const xfi_field *fields, size_t n);

#endif
