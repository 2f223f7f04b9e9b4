/* Whole numbers computed from names: `heads * head_dim`, `ep > 1 ? 1 : dp * tp`.
 * docs/rules.md describes this language of rule files. */
#ifndef XFI_EXPR_H
#define XFI_EXPR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xfer/xfer.h"

typedef struct xfi_var {
  const char *name;
  int64_t value;
} xfi_var;

/* The result of looking up a name: nothing, a number, or a value that is not a number. */
typedef enum xfi_found { XFI_NOT_FOUND = 0, XFI_FOUND, XFI_NO_NUMBER } xfi_found;

/* Names are looked up here, then in `next`, unless they are `absent`: those have no value, whatever
 * `next` has under them. The last scope may have `find` for names with dots.
 * `means`: the expression of a word, and its file, for the error if it has no value. */
typedef struct xfi_scope {
  const xfi_var *vars;
  size_t n_vars;
  const char *const *absent;
  size_t n_absent;
  const struct xfi_scope *next;
  xfi_found (*find)(int64_t *value, const char *name, size_t n_chars, const void *context);
  const char *(*means)(const char **file, const char *name, size_t n_chars, const void *context);
  const void *context;
} xfi_scope;

bool xfi_scope_find(const xfi_scope *scope, const char *name, size_t n_chars, int64_t *value);

/* XFER_ERR_IO: no expression. */
xfer_status xfi_expr_check(const char *text);
/* XFER_ERR_SHAPE: a name without a value, a division by zero, or too large a number; XFER_ERR_IO: a
 * name that stands for no number. */
xfer_status xfi_expr_eval(int64_t *value, const char *text, const xfi_scope *scope);
/* As xfi_expr_eval(), but a name without a value is no error: *has becomes false. */
xfer_status xfi_expr_find(bool *has, int64_t *value, const char *text, const xfi_scope *scope);
/* "ep is {ep}": each {expression} becomes its value, cut to the size of `out`. */
void xfi_expr_print(char *out, size_t size, const char *text, const xfi_scope *scope);

#endif
