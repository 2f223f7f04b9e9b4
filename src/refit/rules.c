/* Sets of rules: which files they come from, and finding things in them. */
#include "rules.h"

#include "alloc.h"
#include "error.h"
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
  for (size_t i = 0; i < rules->n_sides; i++)
    xfi_free(rules->sides[i].locals);
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
  xfer_rules *shared = (xfer_rules *)(uintptr_t)rules; /* the count alone changes */

  atomic_fetch_add(&shared->n_refs, 1);
  return shared;
}

/* Reads the text, or the file `name`, if it is NULL. */
static xfer_status add_file(xfer_rules *rules, const char *name, const char *text)
{
  xfi_doc *doc = xfi_calloc(1, sizeof *doc);
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(doc != NULL, XFER_ERR_NOMEM, "the rules of %s", name);
  XFI_TRY_DONE(xfi_doc_read(doc, name, text));
  XFI_TRY_DONE(
      xfi_vec_reserve(&rules->docs, &rules->docs_cap, rules->n_docs + 1, sizeof *rules->docs));
  rules->docs[rules->n_docs++] = doc;
  st = xfi_rules_add(rules, doc);
  doc = NULL;
done:
  if (doc != NULL) xfi_doc_free(doc);
  xfi_free(doc);
  return st;
}

static xfer_status create(xfer_rules **rules)
{
  xfer_rules *r = xfi_calloc(1, sizeof *r);
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(r != NULL, XFER_ERR_NOMEM, "a set of rules");
  atomic_store(&r->n_refs, 1);
  for (const xfi_rules_file *f = XFI_RULES_FILES; f->name != NULL; f++)
    XFI_TRY_DONE(add_file(r, f->name, f->text));
  *rules = r;
  r = NULL;
done:
  xfi_rules_destroy(r);
  return st;
}

xfer_status xfi_rules_builtin(xfer_rules **rules)
{
  static _Atomic(xfer_rules *) shared; /* read once, never given back */
  xfer_rules *known = atomic_load(&shared);
  xfer_rules *mine = NULL;
  xfer_status st = XFER_OK;

  if (known == NULL) {
    XFI_TRY_DONE(create(&mine));
    st = xfi_rules_check(mine);
    if (st == XFER_OK && atomic_compare_exchange_strong(&shared, &known, mine)) {
      known = mine;
      mine = NULL;
    }
    XFI_TRY_DONE(st);
  }
  *rules = xfi_rules_share(known);
done:
  xfi_rules_destroy(mine);
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
    XFI_TRY_DONE(add_file(r, path, NULL));
  }
  XFI_TRY_DONE(xfi_rules_check(r));
  *rules = r;
  r = NULL;
done:
  xfi_folder_free(&files);
  xfi_rules_destroy(r);
  return st;
}

/* ---- finding; what was read last counts ---- */

const xfi_family *xfi_rules_family(const xfer_rules *rules, const char *name)
{
  for (size_t i = rules->n_families; i-- > 0;) {
    if (strcmp(rules->families[i].name, name) == 0) return &rules->families[i];
  }
  return NULL;
}

const xfi_side_rules *xfi_rules_side(const xfer_rules *rules, const char *name, size_t n_chars)
{
  for (size_t i = rules->n_sides; i-- > 0;) {
    const char *have = rules->sides[i].name;

    if (strlen(have) == n_chars && strncmp(have, name, n_chars) == 0) return &rules->sides[i];
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

int xfi_family_all(const xfer_rules *rules, const xfi_family *family,
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

xfer_status xfi_rules_require(const json_t *list, const xfi_scope *scope, xfer_status refusal,
                              const char *who, ...)
{
  char text[256], name[256];
  va_list args;

  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *pair = json_array_get(list, i);
    int64_t holds;

    XFI_TRY(xfi_expr_eval(&holds, xfi_doc_text(pair, 0), scope));
    if (holds != 0) continue;
    va_start(args, who);
    vsnprintf(name, sizeof name, who, args);
    va_end(args);
    xfi_expr_print(text, sizeof text, xfi_doc_text(pair, 1), scope);
    XFI_CHECK(false, refusal, "%s: %s", name, text);
  }
  return XFER_OK;
}

xfer_status xfi_rules_check(const xfer_rules *rules)
{
  for (size_t i = 0; i < rules->n_families; i++) {
    const xfi_family *f = &rules->families[i];

    for (size_t k = 0; k < json_array_size(f->include); k++) {
      const json_t *name = json_array_get(f->include, k);

      XFI_CHECK(xfi_rules_family(rules, json_string_value(name)) != NULL, XFER_ERR_IO,
                "%s: line %d: no family is called \"%s\"", f->doc->where,
                xfi_doc_line(f->doc, name), json_string_value(name));
    }
    for (size_t k = 0; k < f->n_sides; k++) {
      XFI_CHECK(xfi_rules_side(rules, f->sides[k].side, strlen(f->sides[k].side)) != NULL,
                XFER_ERR_IO, "%s: line 1: no side is called \"%s\"", f->doc->where,
                f->sides[k].side);
    }
  }
  return XFER_OK;
}
