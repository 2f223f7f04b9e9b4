/* A recursive-descent evaluator. `a ?? b` is b where a name in a has no value. */
#include "expr.h"

#include "checked.h"
#include "error.h"
#include "names.h"
#include "text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 32 };

typedef enum fault { FINE = 0, SYNTAX, UNKNOWN, RANGE, BY_ZERO, NO_NUMBER } fault;

typedef struct parser {
  const char *text, *at;
  const xfi_scope *scope; /* NULL: only the syntax is checked */
  int depth;
  fault fault;
  const char *place; /* where the error is */
  size_t n_place;
} parser;

static xfi_found look_up(const xfi_scope *scope, const char *name, size_t n_chars, int64_t *value)
{
  for (; scope != NULL; scope = scope->next) {
    xfi_found found = XFI_NOT_FOUND;

    for (size_t i = 0; i < scope->n_vars; i++) {
      if (!xfi_name_is(name, n_chars, scope->vars[i].name)) continue;
      *value = scope->vars[i].value;
      return XFI_FOUND;
    }
    for (size_t i = 0; i < scope->n_absent; i++)
      if (xfi_name_is(name, n_chars, scope->absent[i])) return XFI_NOT_FOUND;
    if (scope->find != NULL) found = scope->find(value, name, n_chars, scope->context);
    if (found != XFI_NOT_FOUND) return found;
  }
  return XFI_NOT_FOUND;
}

bool xfi_scope_find(const xfi_scope *scope, const char *name, size_t n_chars, int64_t *value)
{
  return look_up(scope, name, n_chars, value) == XFI_FOUND;
}

/* Records an error. The first one is kept, except that a name that is no number replaces a name
 * that is not there. */
static void set_fault(parser *p, fault f, const char *place, size_t n)
{
  if (p->fault != FINE && (p->fault != UNKNOWN || f != NO_NUMBER)) return;
  p->fault = f;
  p->place = place;
  p->n_place = n;
}

static void skip_blanks(parser *p)
{
  while (isspace((unsigned char)*p->at))
    p->at++;
}

static bool take(parser *p, const char *token)
{
  size_t n = strlen(token);

  skip_blanks(p);
  if (strncmp(p->at, token, n) != 0) return false;
  p->at += n;
  return true;
}

static bool is_letter(char c)
{
  return isalnum((unsigned char)c) || c == '_';
}

static bool take_word(parser *p, const char *word)
{
  const char *before = p->at;

  if (take(p, word) && !is_letter(*p->at)) return true;
  p->at = before;
  return false;
}

static int64_t parse_conditional(parser *p);

/* Reads the next item of `name in [..]`, and looks `name.item` up. */
static bool parse_item(parser *p, const char *name, size_t n_chars)
{
  char full[XFI_NAME_BYTES];
  const char *item;
  int64_t value = 0;

  skip_blanks(p);
  item = p->at;
  while (is_letter(*p->at))
    p->at++;
  const int n_item = (int)(p->at - item);
  const int n = snprintf(full, sizeof full, "%.*s.%.*s", (int)n_chars, name, n_item, item);

  if (n_item == 0 || n >= (int)sizeof full) {
    set_fault(p, SYNTAX, item, strlen(item));
    return false;
  }
  return look_up(p->scope, full, (size_t)n, &value) == XFI_FOUND && value != 0;
}

/* Reads the list of `model_type in [llama, qwen3]`, which is 1 where model_type.llama or
 * model_type.qwen3 has a value other than 0, else 0. */
static int64_t parse_list(parser *p, const char *name, size_t n_chars)
{
  bool is_in = false;

  if (!take(p, "[")) set_fault(p, SYNTAX, p->at, strlen(p->at));
  do {
    if (parse_item(p, name, n_chars)) is_in = true;
  } while (take(p, ","));
  if (!take(p, "]")) set_fault(p, SYNTAX, p->at, strlen(p->at));
  return is_in;
}

static int64_t parse_name_or_number(parser *p)
{
  const char *begin = p->at;
  int64_t value = 0;

  if (isdigit((unsigned char)*begin)) {
    for (; isdigit((unsigned char)*p->at); p->at++) {
      if (!xfi_imul_fits(value, 10, &value) || __builtin_add_overflow(value, *p->at - '0', &value))
        set_fault(p, RANGE, begin, 1);
    }
    return value;
  }
  while (is_letter(p->at[0]) || (p->at > begin && p->at[0] == '.' && is_letter(p->at[1])))
    p->at++;
  if (p->at == begin) {
    set_fault(p, SYNTAX, begin, strlen(begin));
    return 0;
  }
  const size_t n_chars = (size_t)(p->at - begin);

  if (take_word(p, "in")) return parse_list(p, begin, n_chars);
  if (p->scope != NULL) {
    const xfi_found found = look_up(p->scope, begin, n_chars, &value);

    if (found != XFI_FOUND)
      set_fault(p, found == XFI_NO_NUMBER ? NO_NUMBER : UNKNOWN, begin, n_chars);
  }
  return value;
}

static int64_t parse_atom(parser *p) /* NOLINT(misc-no-recursion): MAX_DEPTH */
{
  int64_t value = 0;

  if (++p->depth > MAX_DEPTH) set_fault(p, SYNTAX, p->at, strlen(p->at));
  if (p->fault == SYNTAX) {
    p->depth--;
    return 0;
  }
  if (take(p, "(")) {
    value = parse_conditional(p);
    if (!take(p, ")")) set_fault(p, SYNTAX, p->at, strlen(p->at));
  } else if (take(p, "!")) {
    value = parse_atom(p) == 0;
  } else {
    skip_blanks(p);
    value = parse_name_or_number(p);
  }
  p->depth--;
  return value;
}

static int64_t apply(parser *p, const char *op, int64_t a, int64_t b)
{
  int64_t out = 0;
  bool fits = true;

  if (op[0] == '/' || op[0] == '%') {
    fits = b != 0 && !(a == INT64_MIN && b == -1);
    if (fits) out = op[0] == '/' ? a / b : a % b;
  } else if (op[0] == '*') {
    fits = xfi_imul_fits(a, b, &out);
  } else if (op[0] == '+') {
    fits = !__builtin_add_overflow(a, b, &out);
  } else if (op[0] == '-') {
    fits = !__builtin_sub_overflow(a, b, &out);
  } else if (strcmp(op, "==") == 0 || strcmp(op, "!=") == 0) {
    out = (a == b) == (op[0] == '=');
  } else if (op[0] == '<') {
    out = op[1] == '=' ? a <= b : a < b;
  } else if (op[0] == '>') {
    out = op[1] == '=' ? a >= b : a > b;
  } else {
    out = op[0] == '&' ? a != 0 && b != 0 : a != 0 || b != 0;
  }
  if (!fits && p->scope != NULL) set_fault(p, b == 0 ? BY_ZERO : RANGE, p->text, strlen(p->text));
  return out;
}

/* From loosest to tightest; longer tokens first. */
static const char *const LEVELS[][5] = {
    {"||"}, {"&&"}, {"==", "!="}, {"<=", ">=", "<", ">"}, {"+", "-"}, {"*", "/", "%"}};
enum { N_LEVELS = sizeof LEVELS / sizeof *LEVELS };

static int64_t parse_binary(parser *p, int level) /* NOLINT(misc-no-recursion): MAX_DEPTH */
{
  int64_t a = level + 1 < N_LEVELS ? parse_binary(p, level + 1) : parse_atom(p);

  for (int i = 0; i < 5 && LEVELS[level][i] != NULL;) {
    if (!take(p, LEVELS[level][i])) {
      i++;
      continue;
    }
    a = apply(p, LEVELS[level][i], a,
              level + 1 < N_LEVELS ? parse_binary(p, level + 1) : parse_atom(p));
    i = 0;
  }
  return a;
}

/* Parses an operand. Only its syntax is checked if its value is not needed. */
static int64_t parse_operand(parser *p, bool needed,
                             int64_t (*read)(parser *)) /* NOLINT(misc-no-recursion) */
{
  const xfi_scope *scope = p->scope;
  int64_t value = 0;

  if (++p->depth > MAX_DEPTH) set_fault(p, SYNTAX, p->at, strlen(p->at));
  if (!needed) p->scope = NULL;
  if (p->fault != SYNTAX) value = read(p);
  p->scope = scope;
  p->depth--;
  return value;
}

static int64_t parse_default(parser *p) /* NOLINT(misc-no-recursion): MAX_DEPTH */
{
  const fault before = p->fault;
  const int64_t a = parse_binary(p, 0);
  int64_t b;
  bool missing;

  if (!take(p, "??")) return a;
  missing = before == FINE && p->fault == UNKNOWN;
  if (missing) p->fault = FINE;
  b = parse_operand(p, missing, parse_default);
  return missing ? b : a;
}

static int64_t parse_conditional(parser *p) /* NOLINT(misc-no-recursion): MAX_DEPTH */
{
  const int64_t which = parse_default(p);
  int64_t a, b;

  if (!take(p, "?")) return which;
  a = parse_operand(p, which != 0, parse_conditional);
  if (!take(p, ":")) set_fault(p, SYNTAX, p->at, strlen(p->at));
  b = parse_operand(p, which == 0, parse_conditional);
  return which != 0 ? a : b;
}

static xfer_status evaluate(parser *p, int64_t *value)
{
  static const xfer_status STATUSES[] = {
      [FINE] = XFER_OK,         [SYNTAX] = XFER_ERR_IO,     [UNKNOWN] = XFER_ERR_SHAPE,
      [RANGE] = XFER_ERR_SHAPE, [BY_ZERO] = XFER_ERR_SHAPE, [NO_NUMBER] = XFER_ERR_IO};

  p->at = p->text;
  *value = parse_conditional(p);
  skip_blanks(p);
  if (*p->at != '\0') {
    p->fault = p->fault == SYNTAX ? SYNTAX : FINE;
    set_fault(p, SYNTAX, p->at, strlen(p->at));
  }
  return STATUSES[p->fault];
}

static const char *meaning_of(const xfi_scope *scope, const char **file, const char *name,
                              size_t n_chars)
{
  const char *text = NULL;

  for (; scope != NULL && text == NULL; scope = scope->next) {
    if (scope->means != NULL) text = scope->means(file, name, n_chars, scope->context);
  }
  return text;
}

/* Sets the error for a name without a value. For a word of the rules it names the key that the word
 * is computed from, since that is what the configuration lacks, and where the rules say so. */
static void say_unknown(const parser *p)
{
  parser last = *p;
  const char *file = "", *of = "";
  const char *text = meaning_of(p->scope, &of, p->place, p->n_place);

  for (int depth = 0; depth < MAX_DEPTH && text != NULL; depth++) {
    parser next = {.text = text, .scope = p->scope};
    int64_t value;

    text = NULL;
    if (evaluate(&next, &value) == XFER_OK || next.fault != UNKNOWN) continue;
    last = next;
    file = of;
    text = meaning_of(p->scope, &of, last.place, last.n_place);
  }
  if (last.text == p->text)
    xfi_set_error("\"%s\": the configuration has no \"%.*s\"", p->text, (int)last.n_place,
                  last.place);
  else
    xfi_set_error("\"%s\": the configuration has no \"%.*s\" (%s: \"%s\")", p->text,
                  (int)last.n_place, last.place, file, last.text);
}

static void set_error(const parser *p)
{
  const int n = (int)p->n_place;

  if (p->fault == SYNTAX)
    xfi_set_error("\"%s\" is no expression (at \"%.*s\")", p->text, n, p->place);
  else if (p->fault == UNKNOWN)
    say_unknown(p);
  else if (p->fault == NO_NUMBER)
    xfi_set_error("\"%s\": \"%.*s\" of the configuration is no whole number", p->text, n, p->place);
  else if (p->fault == RANGE)
    xfi_set_error("\"%s\" has no value that 63 bits hold", p->text);
  else if (p->fault == BY_ZERO)
    xfi_set_error("\"%s\" divides by zero", p->text);
}

xfer_status xfi_expr_check(const char *text)
{
  parser p = {.text = text};
  int64_t value;
  const xfer_status st = evaluate(&p, &value);

  set_error(&p);
  return st;
}

static const xfi_scope NOTHING = {.n_vars = 0};

xfer_status xfi_expr_eval(int64_t *value, const char *text, const xfi_scope *scope)
{
  parser p = {.text = text, .scope = scope != NULL ? scope : &NOTHING};
  const xfer_status st = evaluate(&p, value);

  set_error(&p);
  return st;
}

xfer_status xfi_expr_find(bool *has, int64_t *value, const char *text, const xfi_scope *scope)
{
  parser p = {.text = text, .scope = scope != NULL ? scope : &NOTHING};
  const xfer_status st = evaluate(&p, value);

  *has = st == XFER_OK;
  if (p.fault == UNKNOWN) return XFER_OK;
  set_error(&p);
  return st;
}

void xfi_expr_print(char *out, size_t size, const char *text, const xfi_scope *scope)
{
  xfi_text to;

  xfi_text_fixed(&to, out, size);
  while (*text != '\0') {
    const char *end = *text == '{' ? strchr(text, '}') : NULL;
    char inside[64];
    int64_t value;
    bool has;

    if (end != NULL && (size_t)(end - text) < sizeof inside) {
      memcpy(inside, text + 1, (size_t)(end - text) - 1);
      inside[end - text - 1] = '\0';
      if (xfi_expr_find(&has, &value, inside, scope) == XFER_OK && has) {
        xfi_text_printf(&to, "%lld", (long long)value);
        text = end + 1;
        continue;
      }
    }
    xfi_text_add(&to, text++, 1);
  }
}
