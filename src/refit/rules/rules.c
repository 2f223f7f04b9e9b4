/* Rules: which files they come from, and how families and sides are found in them. */
#include "rules.h"

#include "alloc.h"
#include "error.h"
#include "names.h"
#include "vec.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void clear_family(xfi_family *f)
{
  for (size_t i = 0; i < f->n_sides; i++)
    xfi_free(f->sides[i].locals);
  xfi_free(f->sides);
  xfi_free(f->tensors);
}

void xfi_rules_destroy(xfer_rules *rules)
{
  if (rules == NULL || atomic_fetch_sub(&rules->n_refs, 1) != 1) return;
  for (size_t i = 0; i < rules->n_families; i++)
    clear_family(&rules->families[i]);
  for (size_t i = 0; i < rules->n_sides; i++) {
    xfi_free(rules->sides[i].first);
    xfi_free(rules->sides[i].locals);
  }
  for (size_t i = 0; i < rules->n_docs; i++) {
    xfi_doc_free(rules->docs[i]);
    xfi_free(rules->docs[i]);
  }
  xfi_free(rules->families);
  xfi_free(rules->sides);
  xfi_free(rules->docs);
  xfi_free(rules);
}

xfer_rules *xfi_rules_share(const xfer_rules *rules)
{
  xfer_rules *shared = (xfer_rules *)(uintptr_t)rules; /* only the count changes */

  atomic_fetch_add(&shared->n_refs, 1);
  return shared;
}

/* Reads the text, or the file `name` if `text` is NULL, into the last of the documents. */
static xfer_status read_file(xfer_rules *rules, const char *name, const char *text)
{
  xfi_doc *doc = xfi_calloc(1, sizeof *doc);
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(doc != NULL, XFER_ERR_NOMEM, "the rules of %s", name);
  XFI_TRY_DONE(xfi_doc_read(doc, name, text));
  XFI_TRY_DONE(XFI_APPEND(rules->docs, rules->n_docs, rules->docs_cap, doc));
  doc = NULL;
done:
  if (doc != NULL) xfi_doc_free(doc);
  xfi_free(doc);
  return st;
}

static xfer_status add_file(xfer_rules *rules, const char *name, const char *text)
{
  XFI_TRY(read_file(rules, name, text));
  return xfi_rules_add(rules, rules->docs[rules->n_docs - 1]);
}

/* ---- the library's own: what is not asked for is not read ---- */

/* Is the text in the file in quotes? */
static bool has_text(const char *file, const char *text)
{
  const size_t n = strlen(text);

  for (const char *at = strstr(file, text); n > 0 && at != NULL; at = strstr(at + 1, text)) {
    if (at > file && at[-1] == '"' && at[n] == '"') return true;
  }
  return false;
}

static bool is_side(const xfi_rules_file *file, const void *context)
{
  (void)context;
  return file->family == NULL;
}

/* May the file's family have a model of these types? The file lists its types in quotes. */
static bool may_be_of_types(const xfi_rules_file *file, const void *context)
{
  const char *const *types = context;

  return file->family != NULL && (has_text(file->text, types[0]) || has_text(file->text, types[1]));
}

static bool is_family(const xfi_rules_file *file, const void *name)
{
  return file->family != NULL && (name == NULL || strcmp(file->family, name) == 0);
}

static bool is_any(const xfi_rules_file *file, const void *context)
{
  (void)file;
  (void)context;
  return true;
}

static xfer_status add_own(xfer_rules *rules,
                           bool (*wanted)(const xfi_rules_file *file, const void *context),
                           const void *context)
{
  for (const xfi_rules_file *f = XFI_RULES_FILES; f->name != NULL; f++) {
    if (wanted(f, context)) XFI_TRY(add_file(rules, f->name, f->text));
  }
  return XFER_OK;
}

static xfer_status add_included(xfer_rules *rules)
{
  for (size_t i = 0; i < rules->n_families; i++) {
    const json_t *include = rules->families[i].include;

    for (size_t k = 0; k < json_array_size(include); k++) {
      const char *name = xfi_doc_text(include, k);

      if (xfi_rules_family(rules, name) == NULL) XFI_TRY(add_own(rules, is_family, name));
    }
  }
  return XFER_OK;
}

static xfer_status create(xfer_rules **rules)
{
  *rules = xfi_calloc(1, sizeof **rules);
  XFI_CHECK(*rules != NULL, XFER_ERR_NOMEM, "a set of rules");
  atomic_store(&(*rules)->n_refs, 1);
  return XFER_OK;
}

/* Returns a set of the library's own rules, which is read once and never freed. */
static xfer_status share_own(xfer_rules **rules, _Atomic(xfer_rules *) *shared,
                             bool (*wanted)(const xfi_rules_file *file, const void *context))
{
  xfer_rules *known = atomic_load(shared);
  xfer_rules *mine = NULL;
  xfer_status st = XFER_OK;

  if (known == NULL) {
    XFI_TRY_DONE(create(&mine));
    XFI_TRY_DONE(add_own(mine, wanted, NULL));
    if (atomic_compare_exchange_strong(shared, &known, mine)) {
      known = mine;
      mine = NULL;
    }
  }
  *rules = xfi_rules_share(known);
done:
  xfi_rules_destroy(mine);
  return st;
}

xfer_status xfi_rules_sides(xfer_rules **rules)
{
  static _Atomic(xfer_rules *) sides;

  return share_own(rules, &sides, is_side);
}

xfer_status xfi_rules_families(xfer_rules **rules, const char *type, const char *other)
{
  static _Atomic(xfer_rules *) all;
  const char *const types[] = {type, other};
  xfer_rules *r = NULL;
  xfer_status st = XFER_OK;

  if (*type == '\0' && *other == '\0') return share_own(rules, &all, is_family);
  XFI_TRY_DONE(create(&r));
  XFI_TRY_DONE(add_own(r, may_be_of_types, types));
  XFI_TRY_DONE(add_included(r));
  *rules = r;
  r = NULL;
done:
  xfi_rules_destroy(r);
  return st;
}

xfer_status xfi_rules_load(xfer_rules **rules, const char *folder)
{
  xfi_folder files = {0};
  char path[XFI_PATH_BYTES];
  xfer_rules *r = NULL;
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(xfi_folder_list(&files, folder, ".json"));
  XFI_TRY_DONE(create(&r));
  for (size_t i = 0; i < files.n; i++) {
    XFI_TRY_DONE(xfi_path_join(path, folder, files.names[i]));
    XFI_TRY_DONE(read_file(r, path, NULL));
  }
  /* After the folder's, since a file that is no JSON makes the library's needless. */
  XFI_TRY_DONE(add_own(r, is_any, NULL));
  for (size_t i = 0; i < files.n; i++)
    XFI_TRY_DONE(xfi_rules_add(r, r->docs[i]));
  XFI_TRY_DONE(xfi_rules_check(r));
  *rules = r;
  r = NULL;
done:
  xfi_folder_free(&files);
  xfi_rules_destroy(r);
  return st;
}

/* ---- finding; the last one read counts ---- */

const xfi_family *xfi_rules_family(const xfer_rules *rules, const char *name)
{
  for (size_t i = rules->n_families; i-- > 0;) {
    if (strcmp(rules->families[i].name, name) == 0) return &rules->families[i];
  }
  return NULL;
}

const xfi_family_side *xfi_family_side_find(const xfi_family *family, const char *side)
{
  for (size_t i = 0; i < family->n_sides; i++)
    if (strcmp(family->sides[i].side, side) == 0) return &family->sides[i];
  return NULL;
}

const xfi_side_rules *xfi_rules_side(const xfer_rules *rules, const char *name, size_t n_chars)
{
  for (size_t i = rules->n_sides; i-- > 0;) {
    if (xfi_name_is(name, n_chars, rules->sides[i].name)) return &rules->sides[i];
  }
  return NULL;
}

static bool is_among(const xfi_family *family, const xfi_family *const *all, int n)
{
  for (int i = 0; i < n; i++) {
    if (all[i] == family) return true;
  }
  return false;
}

int xfi_family_with_included(const xfer_rules *rules, const xfi_family *family,
                             const xfi_family *all[XFI_MAX_INCLUDES])
{
  int n = 0;

  all[n++] = family;
  for (int i = 0; i < n; i++) {
    for (size_t k = 0; k < json_array_size(all[i]->include); k++) {
      const xfi_family *other = xfi_rules_family(rules, xfi_doc_text(all[i]->include, k));

      if (other == NULL || is_among(other, all, n) || n == XFI_MAX_INCLUDES) continue;
      all[n++] = other;
    }
  }
  return n;
}

/* ---- expressions ---- */

bool xfi_rules_locate_error(const xfer_rules *rules, const char *expr)
{
  for (size_t i = 0; i < rules->n_docs; i++) {
    const json_t *at = xfi_doc_value_of(rules->docs[i], expr);

    if (at == NULL) continue;
    xfi_set_error("%s: %s: %s", rules->docs[i]->where, xfi_doc_find(rules->docs[i], at).text,
                  xfer_last_error());
    return true;
  }
  return false;
}

xfer_status xfi_rules_eval(int64_t *value, const xfer_rules *rules, const char *expr,
                           const xfi_scope *scope)
{
  const xfer_status st = xfi_expr_eval(value, expr, scope);

  if (st != XFER_OK) (void)xfi_rules_locate_error(rules, expr);
  return st;
}

xfer_status xfi_rules_require(const xfer_rules *rules, const json_t *list, const xfi_scope *scope,
                              xfer_status refusal, const char *who, ...)
{
  char text[256], name[256];
  va_list args;

  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *pair = json_array_get(list, i);
    int64_t holds;

    XFI_TRY(xfi_rules_eval(&holds, rules, xfi_doc_text(pair, 0), scope));
    if (holds != 0) continue;
    va_start(args, who);
    vsnprintf(name, sizeof name, who, args);
    va_end(args);
    xfi_expr_print(text, sizeof text, xfi_doc_text(pair, 1), scope);
    XFI_CHECK(false, refusal, "%s: %s", name, text);
  }
  return XFER_OK;
}
