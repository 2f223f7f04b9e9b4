#include "rules_fields.h"

#include <string.h>

#include "dtype.h"
#include "error.h"
#include "expr.h"

static const char *const KINDS[] = {"a text that is not empty",
                                    "an expression",
                                    "a list of texts",
                                    "an object of expressions",
                                    "a list of expressions",
                                    "an expression, or a list of expressions",
                                    "a list of two expressions",
                                    "an object of lists of two expressions",
                                    "a list of pairs of texts",
                                    "a list of pairs of an expression and a text",
                                    "true or false",
                                    "a text that is not empty",
                                    "a text that is not empty",
                                    "a list",
                                    "an object",
                                    "a whole number from 0"};

bool xfi_rules_is_text(const json_t *value)
{
  return json_is_string(value) && json_string_length(value) > 0 &&
         strlen(json_string_value(value)) == json_string_length(value);
}

xfer_status xfi_rules_check_expr(const xfi_doc *doc, const json_t *value)
{
  xfer_status st = XFER_OK;

  if (xfi_expr_check(json_string_value(value)) != XFER_OK)
    st = xfi_doc_error(doc, value, "\"%.100s\" is no expression", json_string_value(value));
  return st;
}

bool xfi_rules_is(const json_t *value, xfi_field_kind k) /* NOLINT(misc-no-recursion): once */
{
  const char *name;
  const json_t *child;
  size_t i;

  if (k == TEXT || k == EXPR || k == CHOICE || k == DTYPE) return xfi_rules_is_text(value);
  if (k == ALL) return xfi_rules_is(value, json_is_array(value) ? LISTED : EXPR);
  if (k == FLAG) return json_is_boolean(value);
  if (k == COUNT) return json_is_integer(value) && json_integer_value(value) >= 0;
  if (k != OBJECT && k != EXPRS && k != TWOS) {
    if (!json_is_array(value) || (k == TWO && json_array_size(value) != 2)) return false;
    json_array_foreach(value, i, child)
    {
      if ((k == TEXTS || k == LISTED || k == TWO) && !xfi_rules_is_text(child)) return false;
      if ((k == PAIRS || k == REQUIRES) &&
          (json_array_size(child) != 2 || !xfi_rules_is_text(json_array_get(child, 0)) ||
           !xfi_rules_is_text(json_array_get(child, 1))))
        return false;
    }
    return true;
  }
  if (!json_is_object(value)) return false;
  json_object_foreach((json_t *)(uintptr_t)value, name, child)
  {
    if (k == EXPRS && !xfi_rules_is_text(child)) return false;
    if (k == TWOS && !xfi_rules_is(child, TWO)) return false;
  }
  return true;
}

int xfi_rules_choice(const char *const *choices, const char *text)
{
  for (int k = 0; choices[k] != NULL; k++) {
    if (strcmp(choices[k], text) == 0) return k;
  }
  return -1;
}

static xfer_status check_exprs(const xfi_doc *doc, const json_t *value, xfi_field_kind k)
{
  const char *name;
  const json_t *child;
  size_t i;

  if (k == EXPR || (k == ALL && !json_is_array(value))) return xfi_rules_check_expr(doc, value);
  if (k == EXPRS) {
    json_object_foreach((json_t *)(uintptr_t)value, name, child)
    {
      XFI_TRY(xfi_rules_check_expr(doc, child));
    }
  } else if (k == TWOS) {
    json_object_foreach((json_t *)(uintptr_t)value, name, child)
    {
      for (i = 0; i < 2; i++)
        XFI_TRY(xfi_rules_check_expr(doc, json_array_get(child, i)));
    }
  } else if (k == LISTED || k == ALL || k == TWO || k == REQUIRES) {
    json_array_foreach(value, i, child)
    {
      XFI_TRY(xfi_rules_check_expr(doc, k == REQUIRES ? json_array_get(child, 0) : child));
    }
  }
  return XFER_OK;
}

/* Stores the value. Returns false if it is none of the choices. */
static bool store(const xfi_field *f, const json_t *value)
{
  xfer_dtype dtype;

  if (f->to == NULL) return true;
  if (f->kind == CHOICE) {
    *(int *)f->to = xfi_rules_choice(f->choices, json_string_value(value));
    return *(int *)f->to >= 0;
  }
  if (f->kind == DTYPE) {
    if (xfi_dtype_parse(&dtype, json_string_value(value)) != XFER_OK) return false;
    *(int *)f->to = (int)dtype;
  } else if (f->kind == TEXT || f->kind == EXPR)
    *(const char **)f->to = json_string_value(value);
  else if (f->kind == FLAG)
    *(bool *)f->to = json_is_true(value);
  else if (f->kind == TWO)
    for (size_t i = 0; i < 2; i++)
      ((const char **)f->to)[i] = xfi_doc_text(value, i);
  else
    *(const json_t **)f->to = value;
  return true;
}

xfer_status xfi_rules_fields(const xfi_doc *doc, const json_t *object, const char *what,
                             const xfi_field *fields, size_t n)
{
  const char *key;
  const json_t *value;
  size_t k;

  if (!json_is_object(object)) return xfi_doc_error(doc, object, "%s is no object", what);
  json_object_foreach((json_t *)(uintptr_t)object, key, value)
  {
    for (k = 0; k < n && strcmp(fields[k].name, key) != 0;)
      k++;
    if (k == n)
      return xfi_doc_error(doc, json_is_boolean(value) ? object : value,
                           "%s has no field \"%.60s\"", what, key);
    if (!xfi_rules_is(value, fields[k].kind))
      return xfi_doc_error(doc, json_is_boolean(value) || json_is_null(value) ? object : value,
                           "\"%s\" of %s must be %s", key, what, KINDS[fields[k].kind]);
    XFI_TRY(check_exprs(doc, value, fields[k].kind));
    if (!store(&fields[k], value))
      return xfi_doc_error(doc, value, "\"%s\" of %s cannot be \"%.60s\"", key, what,
                           json_string_value(value));
  }
  for (k = 0; k < n; k++) {
    if (fields[k].needed && json_object_get(object, fields[k].name) == NULL)
      return xfi_doc_error(doc, object, "%s needs \"%s\"", what, fields[k].name);
  }
  return XFER_OK;
}
