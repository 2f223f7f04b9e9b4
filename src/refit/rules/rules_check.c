/*
 * Whether the names in a set of rules fit each other: includes, sides, roles, rows and words. A
 * misspelt name would otherwise be one that nothing has, and its rule would silently do nothing.
 */
#include "rules.h"

#include "alloc.h"
#include "error.h"
#include "names.h"
#include "rules_fields.h"
#include "vec.h"

#include <ctype.h>
#include <string.h>

/* A name, and the value that it is in or is the key of. */
typedef struct name {
  const char *text;
  size_t n_chars;
  const xfi_doc *doc;
  const json_t *at;
} name;

typedef struct names {
  name *items;
  size_t n, capacity;
} names;

typedef struct book {
  names given;  /* roles of the families' tensors */
  names asked;  /* patterns of roles in all other places of families and sides */
  names placed; /* those of them that tell where a side has a tensor */
  names words;  /* what families define: config, counts and set */
  names used;   /* what texts name, expressions among them */
} book;

static xfer_status add(names *list, const xfi_doc *doc, const json_t *at, const char *text,
                       size_t n_chars)
{
  const name one = {text, n_chars, doc, at};

  return XFI_APPEND(list->items, list->n, list->capacity, one);
}

static xfer_status add_texts(names *list, const xfi_doc *doc, const json_t *texts)
{
  for (size_t i = 0; i < json_array_size(texts); i++) {
    const json_t *text = json_array_get(texts, i);

    XFI_TRY(add(list, doc, text, json_string_value(text), json_string_length(text)));
  }
  return XFER_OK;
}

static xfer_status add_keys(names *list, const xfi_doc *doc, const json_t *object)
{
  const char *key;
  const json_t *value;

  json_object_foreach((json_t *)(uintptr_t)object, key, value)
  {
    XFI_TRY(add(list, doc, value, key, strlen(key)));
  }
  return XFER_OK;
}

static int compare(const void *a, const void *b)
{
  const name *x = a, *y = b;
  const size_t n = x->n_chars < y->n_chars ? x->n_chars : y->n_chars;
  const int order = memcmp(x->text, y->text, n);

  return order != 0 ? order : (x->n_chars > y->n_chars) - (x->n_chars < y->n_chars);
}

static void sort(names *list)
{
  size_t n = 0;

  xfi_sort(list->items, list->n, sizeof *list->items, compare);
  for (size_t i = 0; i < list->n; i++)
    if (n == 0 || compare(&list->items[n - 1], &list->items[i]) != 0)
      list->items[n++] = list->items[i];
  list->n = n;
}

/* ---- collecting ---- */

static bool is_letter(char c)
{
  return isalnum((unsigned char)c) || c == '_';
}

/* Adds all that could be a name in an expression of the value. Sentences for people name nothing.
 */
static xfer_status add_used(names *used,
                            const json_t *value) /* NOLINT(misc-no-recursion): JSON's */
{
  const char *key, *at = json_string_value(value);
  json_t *child;
  size_t i;

  while (at != NULL && *at != '\0') {
    const char *end = at;

    while (is_letter(*end))
      end++;
    if (end > at) XFI_TRY(add(used, NULL, value, at, (size_t)(end - at)));
    at = *end == '\0' ? end : end + 1;
  }
  json_array_foreach((json_t *)(uintptr_t)value, i, child)
  {
    XFI_TRY(add_used(used, child));
  }
  json_object_foreach((json_t *)(uintptr_t)value, key, child)
  {
    if (strcmp(key, "about") != 0 && strcmp(key, "refusal") != 0) XFI_TRY(add_used(used, child));
  }
  return XFER_OK;
}

/* Adds the roles that local tensors name. An "each" is a local tensor for each of its roles. */
static xfer_status add_locals(book *b, const xfi_doc *doc, const xfi_local_rule *locals, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    for (int k = 0; k < locals[i].n_parts; k++) {
      const xfi_part_rule *part = &locals[i].parts[k];

      XFI_TRY(add(&b->placed, doc, part->at, part->role, strlen(part->role)));
      XFI_TRY(add(&b->asked, doc, part->at, part->role, strlen(part->role)));
    }
    XFI_TRY(add_texts(&b->asked, doc, locals[i].with));
    XFI_TRY(add_texts(&b->asked, doc, locals[i].without));
  }
  return XFER_OK;
}

static xfer_status add_needs(names *asked, const xfi_doc *doc, const json_t *needs)
{
  const char *role;
  const json_t *value;

  json_object_foreach((json_t *)(uintptr_t)needs, role, value)
  {
    XFI_TRY(add(asked, doc, value, role, xfi_role_chars(role)));
  }
  return XFER_OK;
}

static xfer_status add_family(book *b, const xfi_family *f)
{
  for (size_t i = 0; i < f->n_tensors; i++) {
    const xfi_tensor_rule *t = &f->tensors[i];

    if (t->role != NULL) XFI_TRY(add(&b->given, f->doc, t->at, t->role, strlen(t->role)));
    for (int k = 0; k < t->n_segments && t->role == NULL; k++) {
      const xfi_segment_rule *s = &t->segments[k];

      XFI_TRY(add(&b->given, f->doc, s->at, s->name, strlen(s->name)));
    }
  }
  XFI_TRY(add_keys(&b->asked, f->doc, f->where));
  XFI_TRY(add_needs(&b->asked, f->doc, f->needs));
  XFI_TRY(add_keys(&b->asked, f->doc, f->sizes));
  XFI_TRY(add_texts(&b->asked, f->doc, f->scaled));
  XFI_TRY(add_keys(&b->words, f->doc, f->config));
  XFI_TRY(add_keys(&b->words, f->doc, f->counts));
  for (size_t i = 0; i < f->n_sides; i++) {
    XFI_TRY(add_keys(&b->words, f->doc, f->sides[i].set));
    XFI_TRY(add_texts(&b->asked, f->doc, f->sides[i].unquantised));
    XFI_TRY(add_locals(b, f->doc, f->sides[i].locals, f->sides[i].n_locals));
  }
  return XFER_OK;
}

static xfer_status collect(book *b, const xfer_rules *rules)
{
  names *const lists[] = {&b->given, &b->asked, &b->placed, &b->words, &b->used};

  for (size_t i = 0; i < rules->n_docs; i++)
    XFI_TRY(add_used(&b->used, rules->docs[i]->root));
  for (size_t i = 0; i < rules->n_families; i++)
    XFI_TRY(add_family(b, &rules->families[i]));
  for (size_t i = 0; i < rules->n_sides; i++) {
    const xfi_side_rules *s = &rules->sides[i];

    XFI_TRY(add_locals(b, s->doc, s->first, s->n_first));
    XFI_TRY(add_locals(b, s->doc, s->locals, s->n_locals));
  }
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    sort(lists[i]);
  return XFER_OK;
}

/* ---- checks ---- */

static bool matches(const name *pattern, const name *role)
{
  return compare(pattern, role) == 0 || xfi_role_matches(pattern->text, role->text);
}

static bool has_role(const names *roles, const name *pattern)
{
  for (size_t i = 0; i < roles->n; i++)
    if (matches(pattern, &roles->items[i])) return true;
  return false;
}

/* Does a pattern other than "*" match the role; `closely`: one that is not of a whole group? */
static bool is_matched(const names *patterns, const name *role, bool closely)
{
  for (size_t i = 0; i < patterns->n; i++) {
    const name *pattern = &patterns->items[i];

    if (strcmp(pattern->text, "*") != 0 &&
        !(closely && xfi_name_ends(pattern->text, pattern->n_chars, ".*")) &&
        matches(pattern, role))
      return true;
  }
  return false;
}

/* "*" and "mlp.*" match misspelt roles too. So some side must place the role, and something must
 * name it more closely than by its group. */
static xfer_status check_roles(const book *b)
{
  for (size_t i = 0; i < b->asked.n; i++) {
    const name *asked = &b->asked.items[i];

    if (!has_role(&b->given, asked))
      return xfi_doc_error(asked->doc, asked->at, "no family has a tensor of the role \"%.60s\"",
                           asked->text);
  }
  for (size_t i = 0; i < b->given.n; i++) {
    const name *role = &b->given.items[i];

    if (!is_matched(&b->placed, role, false))
      return xfi_doc_error(role->doc, role->at, "no side has a tensor of the role \"%.60s\"",
                           role->text);
    if (!is_matched(&b->asked, role, true))
      return xfi_doc_error(role->doc, role->at,
                           "no side and no \"needs\" name the role \"%.60s\" in full", role->text);
  }
  return XFER_OK;
}

static xfer_status check_words(const book *b)
{
  /* The library asks for these itself. */
  static const char *const OWN[] = {"layers", "further_layers", "experts", "sparse",
                                    "empty",  "tied",           NULL};

  for (size_t i = 0; i < b->words.n; i++) {
    const name *word = &b->words.items[i];

    if (xfi_rules_choice(OWN, word->text) < 0 &&
        bsearch(word, b->used.items, b->used.n, sizeof *b->used.items, compare) == NULL)
      return xfi_doc_error(word->doc, word->at, "no expression uses the word \"%.60s\"",
                           word->text);
  }
  return XFER_OK;
}

static bool has_rows(const xfi_tensor_rule *t, const xfi_part_rule *part)
{
  for (int s = 0; s < t->n_segments; s++) {
    const xfi_segment_rule *segment = &t->segments[s];

    if (!xfi_role_matches(part->role, t->role != NULL ? t->role : segment->name)) continue;
    if (strcmp(segment->name, part->take) == 0) return true;
    for (int k = 0; k < segment->n_subs; k++)
      if (strcmp(segment->sub_names[k], part->take) == 0) return true;
  }
  return false;
}

/* Has some weight the rows that are taken of it? */
static bool is_taken(const xfer_rules *rules, const xfi_part_rule *part)
{
  for (size_t f = 0; f < rules->n_families; f++) {
    for (size_t i = 0; i < rules->families[f].n_tensors; i++)
      if (has_rows(&rules->families[f].tensors[i], part)) return true;
  }
  return false;
}

static xfer_status check_rows(const xfer_rules *rules, const xfi_doc *doc,
                              const xfi_local_rule *locals, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    for (int k = 0; k < locals[i].n_parts; k++) {
      const xfi_part_rule *part = &locals[i].parts[k];

      if (part->take != NULL && !is_taken(rules, part))
        return xfi_doc_error(doc, part->at, "no \"%.60s\" has rows called \"%.60s\"", part->role,
                             part->take);
    }
  }
  return XFER_OK;
}

static xfer_status check_family(const xfer_rules *rules, const xfi_family *f)
{
  for (size_t k = 0; k < json_array_size(f->include); k++) {
    const json_t *other = json_array_get(f->include, k);

    if (xfi_rules_family(rules, json_string_value(other)) == NULL)
      return xfi_doc_error(f->doc, other, "no family is called \"%.60s\"",
                           json_string_value(other));
  }
  for (size_t k = 0; k < f->n_sides; k++) {
    const xfi_family_side *s = &f->sides[k];

    if (xfi_rules_side(rules, s->side, strlen(s->side)) == NULL)
      return xfi_doc_error(f->doc, json_object_get(json_object_get(f->doc->root, "sides"), s->side),
                           "no side is called \"%.60s\"", s->side);
    XFI_TRY(check_rows(rules, f->doc, s->locals, s->n_locals));
  }
  return XFER_OK;
}

xfer_status xfi_rules_check(const xfer_rules *rules)
{
  book b = {0};
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < rules->n_families; i++)
    XFI_TRY_DONE(check_family(rules, &rules->families[i]));
  for (size_t i = 0; i < rules->n_sides; i++) {
    const xfi_side_rules *s = &rules->sides[i];

    XFI_TRY_DONE(check_rows(rules, s->doc, s->first, s->n_first));
    XFI_TRY_DONE(check_rows(rules, s->doc, s->locals, s->n_locals));
  }
  XFI_TRY_DONE(collect(&b, rules));
  XFI_TRY_DONE(check_roles(&b));
  XFI_TRY_DONE(check_words(&b));
done:
  xfi_free(b.given.items);
  xfi_free(b.asked.items);
  xfi_free(b.placed.items);
  xfi_free(b.words.items);
  xfi_free(b.used.items);
  return st;
}
