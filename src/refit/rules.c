/* Sets of rules: which files they come from, and finding things in them. */
#include "rules.h"

#include "alloc.h"
#include "error.h"
#include "vec.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Reads the text, or the file `name` where there is none. */
static xfer_status add_file(xfer_rules *rules, const char *name, const char *text)
{
  xfi_doc *doc = xfi_calloc(1, sizeof *doc);
  xfer_status st = XFER_OK;

  XFI_CHECK(doc != NULL, XFER_ERR_NOMEM, "the rules of %s", name);
  XFI_TRY(text != NULL ? xfi_doc_parse(doc, name, text, strlen(text)) : xfi_doc_read(doc, name));
  XFI_TRY(xfi_vec_reserve(&rules->docs, &rules->docs_cap, rules->n_docs + 1, sizeof *rules->docs));
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

  XFI_CHECK(r != NULL, XFER_ERR_NOMEM, "a set of rules");
  atomic_store(&r->n_refs, 1);
  for (const xfi_rules_file *f = XFI_RULES_FILES; f->name != NULL; f++)
    XFI_TRY(add_file(r, f->name, f->text));
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
    XFI_TRY(create(&mine));
    st = xfi_rules_check(mine);
    if (st == XFER_OK && atomic_compare_exchange_strong(&shared, &known, mine)) {
      known = mine;
      mine = NULL;
    }
    XFI_TRY(st);
  }
  *rules = xfi_rules_share(known);
done:
  xfi_rules_destroy(mine);
  return st;
}

static int compare_texts(const void *a, const void *b)
{
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The *.json of a folder, by name. */
static xfer_status list_folder(char ***names, size_t *n, const char *folder)
{
  size_t capacity = 0;
  DIR *dir = opendir(folder);
  xfer_status st = XFER_OK;

  XFI_CHECK(dir != NULL, XFER_ERR_IO, "%s cannot be read as a folder: %s", folder, strerror(errno));
  for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
    size_t k = strlen(e->d_name);

    if (k < 6 || strcmp(e->d_name + k - 5, ".json") != 0) continue;
    XFI_TRY(xfi_vec_reserve(names, &capacity, *n + 1, sizeof **names));
    (*names)[*n] = xfi_strdup(e->d_name);
    XFI_CHECK((*names)[*n] != NULL, XFER_ERR_NOMEM, "the files of %s", folder);
    (*n)++;
  }
  XFI_CHECK(*n > 0, XFER_ERR_IO, "%s has no *.json", folder);
  qsort(*names, *n, sizeof **names, compare_texts);
done:
  if (dir != NULL) closedir(dir);
  return st;
}

xfer_status xfi_rules_load(xfer_rules **rules, const char *folder)
{
  char **names = NULL;
  char path[4096];
  size_t n = 0;
  xfer_rules *r = NULL;
  xfer_status st = XFER_OK;

  XFI_TRY(list_folder(&names, &n, folder));
  XFI_TRY(create(&r));
  for (size_t i = 0; i < n; i++) {
    XFI_CHECK((size_t)snprintf(path, sizeof path, "%s/%s", folder, names[i]) < sizeof path,
              XFER_ERR_IO, "the path %s/%s is too long", folder, names[i]);
    XFI_TRY(add_file(r, path, NULL));
  }
  XFI_TRY(xfi_rules_check(r));
  *rules = r;
  r = NULL;
done:
  for (size_t i = 0; i < n; i++)
    xfi_free(names[i]);
  xfi_free(names);
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
      const xfi_family *other =
          xfi_rules_family(rules, json_string_value(json_array_get(all[i]->include, k)));

      if (other == NULL || is_among(other, all, n) || n == XFI_MAX_INCLUDES) continue;
      all[n++] = other;
    }
  }
  return n;
}

xfer_status xfi_rules_check(const xfer_rules *rules)
{
  xfer_status st = XFER_OK;

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
done:
  return st;
}
