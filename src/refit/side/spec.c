/* Reads a SPEC such as "vllm:tp2,loaded": a framework, a colon, and items, which the framework's
 * rules list. */
#include "side.h"

#include "alloc.h"
#include "dtype.h"
#include "error.h"
#include "names.h"
#include "text.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PP = 4096 };

/* ---- variables ---- */

xfi_scope xfi_side_scope(const xfer_side *side, const xfi_scope *next)
{
  return (xfi_scope){.vars = side->vars, .n_vars = (size_t)side->n_vars, .next = next};
}

static xfi_var *find_var(xfer_side *side, const char *name)
{
  int i = 0;

  while (i < side->n_vars && strcmp(side->vars[i].name, name) != 0)
    i++;
  return i < side->n_vars ? &side->vars[i] : NULL;
}

static void set_var(xfer_side *side, const char *name, int64_t value)
{
  xfi_var *var = find_var(side, name);

  if (var != NULL) var->value = value;
}

static xfer_status add_var(xfer_side *side, const char *name, const char *tail, int64_t value)
{
  xfi_text text = {0};

  XFI_CHECK(side->n_vars < XFI_MAX_ITEMS, XFER_ERR_UNSUPPORTED, "side \"%s\" has too many items",
            side->framework->name);
  if (tail != NULL) {
    xfi_text_printf(&text, "%s_%s", name, tail);
    XFI_TRY(xfi_text_end(&text, &side->var_names[side->n_vars]));
    name = side->var_names[side->n_vars];
  }
  side->vars[side->n_vars++] = (xfi_var){name, value};
  return XFER_OK;
}

/* Adds a variable for each item, with its default. */
static xfer_status add_vars(xfer_side *side)
{
  const xfi_side_rules *framework = side->framework;
  const char *name;
  const json_t *value;

  json_object_foreach((json_t *)(uintptr_t)framework->numbers, name, value)
  {
    XFI_TRY(add_var(side, name, NULL, json_integer_value(value)));
  }
  json_object_foreach((json_t *)(uintptr_t)framework->choices, name, value)
  {
    for (size_t i = 0; i < json_array_size(value); i++)
      XFI_TRY(add_var(side, name, xfi_doc_text(value, i), i == 0));
  }
  for (size_t i = 0; i < json_array_size(framework->flags); i++)
    XFI_TRY(add_var(side, xfi_doc_text(framework->flags, i), NULL, 0));
  return add_var(side, "map", NULL, 0);
}

/* ---- items ---- */

/* Reads a number of at most 9 digits and moves *at behind it; -1: there is none. */
static int parse_digits(const char **at)
{
  const char *begin = *at;
  const size_t n = strspn(begin, "0123456789");

  *at += n;
  return n == 0 || n > 9 ? -1 : (int)strtol(begin, NULL, 10);
}

/* "3+14x4+2": stages of 3, fourteen times 4, and 2 layers. */
static xfer_status parse_layers(xfer_side *side, const char *text)
{
  const char *at = text;
  int n_stages = 0;

  side->stage_layers = xfi_calloc(MAX_PP + 1, sizeof *side->stage_layers);
  XFI_CHECK(side->stage_layers != NULL, XFER_ERR_NOMEM, "the layers of the stages");
  XFI_CHECK(*text != '\0', XFER_ERR_ARG, "\"%s\": layers= lists no stage", side->spec);
  for (bool more = true; more;) {
    int times = 1, layers = parse_digits(&at);

    if (*at == 'x') {
      at++;
      times = layers;
      layers = parse_digits(&at);
    }
    more = *at == '+';
    XFI_CHECK(times > 0 && layers >= 0 && times <= MAX_PP - n_stages && (more || *at == '\0'),
              XFER_ERR_ARG, "\"%s\": layers=%.80s: want counts such as 3+14x4+2", side->spec, text);
    at += more;
    while (times-- > 0)
      side->stage_layers[n_stages++] = layers;
  }
  side->stage_layers[n_stages] = -1;
  return XFER_OK;
}

static xfer_status parse_dtype(xfer_side *side, const char *name)
{
  XFI_CHECK(xfi_dtype_parse(&side->dtype, name) == XFER_OK, XFER_ERR_ARG,
            "\"%s\": dtype=%.80s: no element type is called that; want one such as bf16 or f32",
            side->spec, name);
  return XFER_OK;
}

enum { LISTED_BYTES = 256 };

/* Adds " WORD" to a list, if there is room. */
static void list_word(char *text, size_t size, const char *word, const char *after)
{
  const size_t n = strlen(text);

  snprintf(text + n, size - n, "%s%s%s", n > 0 ? " " : "", word, after);
}

static xfer_status parse_quant(xfer_side *side, const char *name)
{
  char known[LISTED_BYTES] = "";

  for (int i = 0; i < side->framework->n_quants; i++) {
    const xfi_quant_rule *quant = &side->framework->quants[i];

    if (strcmp(name, quant->name) == 0) side->quant = quant;
    list_word(known, sizeof known, quant->name, "");
  }
  XFI_CHECK(side->quant != NULL, XFER_ERR_ARG, "\"%s\": quant=%.80s: want one of %s", side->spec,
            name, known);
  return XFER_OK;
}

/* The names of the items read until now, since each may occur only once. */
typedef struct seen {
  char names[XFI_MAX_ITEMS][XFI_ITEM_BYTES];
  int n;
} seen;

static void list_words(char *text, size_t size, const json_t *words)
{
  for (size_t i = 0; i < json_array_size(words); i++)
    list_word(text, size, xfi_doc_text(words, i), "");
}

/* Finds the item meant by one in capitals or with a sign before its number. Returns false if there
 * is none. */
static bool find_meant(const xfi_side_rules *framework, const char *item,
                       char meant[XFI_ITEM_BYTES])
{
  char name[XFI_ITEM_BYTES];
  size_t n = 0;

  for (; *item != '\0' && n + 1 < XFI_ITEM_BYTES; item++)
    if (strchr("-= ", *item) == NULL) meant[n++] = (char)tolower((unsigned char)*item);
  meant[n] = '\0';
  snprintf(name, sizeof name, "%.*s", (int)strcspn(meant, "0123456789"), meant);
  return xfi_doc_lists(framework->flags, meant) ||
         (strlen(name) < n && strspn(meant + strlen(name), "0123456789") == n - strlen(name) &&
          json_object_get(framework->numbers, name) != NULL);
}

/* Refuses an item that the side does not have, and lists those that it has. */
static xfer_status no_item(const xfer_side *side, const char *name, const char *item)
{
  const xfi_side_rules *framework = side->framework;
  char text[LISTED_BYTES] = "";
  char meant[XFI_ITEM_BYTES];
  const char *key;
  json_t *value;

  if (find_meant(framework, item, meant)) {
    const char *sign = strchr(item, '-');

    xfi_set_error("\"%s\": no item \"%.80s\" there: %s %s", side->spec, name,
                  sign != NULL && isdigit((unsigned char)sign[1])
                      ? "a number follows its name, and none is negative, as in"
                      : "write",
                  meant);
    return XFER_ERR_ARG;
  }
  json_object_foreach((json_t *)(uintptr_t)framework->numbers, key, value)
      list_word(text, sizeof text, key, "N");
  list_words(text, sizeof text, framework->flags);
  json_object_foreach((json_t *)(uintptr_t)framework->choices, key, value)
      list_word(text, sizeof text, key, "=");
  if (framework->takes_layers) list_word(text, sizeof text, "layers=", "N+N");
  if (framework->takes_map) list_word(text, sizeof text, "map=", "");
  list_word(text, sizeof text, "dtype=", "");
  if (framework->n_quants > 0) list_word(text, sizeof text, "quant=", "");
  xfi_set_error("\"%s\": no item \"%.80s\" there; it has %s", side->spec, name, text);
  return XFER_ERR_ARG;
}

static xfer_status add_seen(const xfer_side *side, seen *s, const char *name)
{
  for (int i = 0; i < s->n; i++) {
    XFI_CHECK(strcmp(name, s->names[i]) != 0, XFER_ERR_ARG, "\"%s\": %s is given twice", side->spec,
              name);
  }
  XFI_CHECK(s->n < XFI_MAX_ITEMS, XFER_ERR_ARG, "\"%s\" has too many items", side->spec);
  snprintf(s->names[s->n++], sizeof *s->names, "%s", name);
  return XFER_OK;
}

static xfer_status parse_choice(xfer_side *side, const char *name, const char *item)
{
  const json_t *list = json_object_get(side->framework->choices, name);
  const char *value = item + strlen(name) + 1;
  char text[LISTED_BYTES] = "";

  if (list == NULL) return no_item(side, name, item);
  list_words(text, sizeof text, list);
  XFI_CHECK(xfi_doc_lists(list, value), XFER_ERR_ARG, "\"%s\": %s=%.80s: want one of %s",
            side->spec, name, value, text);
  for (size_t i = 0; i < json_array_size(list); i++) {
    const char *choice = xfi_doc_text(list, i);
    char var[128];

    snprintf(var, sizeof var, "%s_%s", name, choice);
    set_var(side, var, strcmp(choice, value) == 0);
  }
  return XFER_OK;
}

static xfer_status parse_number(xfer_side *side, const char *name, const char *item)
{
  const char *at = item + strlen(name);
  const int value = parse_digits(&at);

  if (json_object_get(side->framework->numbers, name) == NULL) return no_item(side, item, item);
  XFI_CHECK(value > 0, XFER_ERR_ARG, "\"%s\": %.80s wants a number from 1 to 999999999", side->spec,
            item);
  set_var(side, name, value);
  return XFER_OK;
}

/* Parses an item: a flag, NAME=VALUE, or a name followed by its number. */
static xfer_status parse_item(xfer_side *side, const char *item, seen *s)
{
  const char *equals = strchr(item, '=');
  const bool flag = equals == NULL && xfi_doc_lists(side->framework->flags, item);
  size_t n = equals != NULL ? (size_t)(equals - item) : strlen(item);
  char name[XFI_ITEM_BYTES];

  while (equals == NULL && !flag && n > 0 && isdigit((unsigned char)item[n - 1]))
    n--;
  if (n >= sizeof name) return no_item(side, item, item);
  snprintf(name, sizeof name, "%.*s", (int)n, item);
  XFI_TRY(add_seen(side, s, name));
  if (flag)
    set_var(side, name, 1);
  else if (equals == NULL)
    XFI_TRY(parse_number(side, name, item));
  else if (strcmp(name, "layers") == 0 && side->framework->takes_layers)
    XFI_TRY(parse_layers(side, equals + 1));
  else if (strcmp(name, "map") == 0 && side->framework->takes_map)
    XFI_TRY(xfi_expert_map_read(side, equals + 1));
  else if (strcmp(name, "dtype") == 0)
    XFI_TRY(parse_dtype(side, equals + 1));
  else if (strcmp(name, "quant") == 0 && side->framework->n_quants > 0)
    XFI_TRY(parse_quant(side, equals + 1));
  else
    XFI_TRY(parse_choice(side, name, item));
  return XFER_OK;
}

/* ---- the options' items ---- */

/* Checks an item name of the options, which have the number separately. A digit at the end of the
 * name would become part of the number, and a separator would make two items of it. */
static xfer_status check_item_name(const xfer_side *side, const char *name)
{
  const size_t n = strlen(name);

  XFI_CHECK(strpbrk(name, ",:") == NULL, XFER_ERR_ARG,
            "\"%s\": \"%s\" of item_names is not the name of one item", side->spec, name);
  XFI_CHECK(n == 0 || strchr(name, '=') != NULL || xfi_doc_lists(side->framework->flags, name) ||
                !isdigit((unsigned char)name[n - 1]),
            XFER_ERR_ARG,
            "\"%s\": \"%s\" of item_names ends in a digit: an item's number goes into item_values",
            side->spec, name);
  return XFER_OK;
}

/* Parses the options' items as if they were in the SPEC. */
static xfer_status parse_options(xfer_side *side, const xfer_side_options *o, seen *s)
{
  char item[96];

  XFI_CHECK(o->n_items >= 0 &&
                (o->n_items == 0 || (o->item_names != NULL && o->item_values != NULL)),
            XFER_ERR_ARG, "%lld items without names or values", (long long)o->n_items);
  for (int64_t i = 0; i < o->n_items; i++) {
    const char *name = o->item_names[i];
    int k;

    XFI_CHECK(name != NULL, XFER_ERR_ARG, "item %lld is NULL", (long long)i);
    XFI_TRY(check_item_name(side, name));
    if (strchr(name, '=') != NULL || xfi_doc_lists(side->framework->flags, name)) {
      k = snprintf(item, sizeof item, "%s", name);
    } else if (json_object_get(side->framework->numbers, name) == NULL) {
      return no_item(side, name, name);
    } else {
      XFI_CHECK(o->item_values[i] >= 0, XFER_ERR_ARG, "\"%s\": item \"%s\" is %d", side->spec, name,
                (int)o->item_values[i]);
      k = snprintf(item, sizeof item, "%s%d", name, (int)o->item_values[i]);
    }
    XFI_CHECK(k < (int)sizeof item, XFER_ERR_ARG, "item %lld has too long a name", (long long)i);
    XFI_CHECK(strncmp(item, "layers=", 7) != 0 && strncmp(item, "map=", 4) != 0, XFER_ERR_ARG,
              "\"%s\": say %s in the SPEC", side->spec, item);
    if (xfi_doc_lists(side->framework->flags, name) && o->item_values[i] == 0) continue;
    XFI_TRY(parse_item(side, item, s));
  }
  return XFER_OK;
}

xfer_status xfi_spec_parse(xfer_side *side, const char *spec, const xfer_side_options *options)
{
  const char *colon = strchr(spec, ':');
  size_t n = colon == NULL ? strlen(spec) : (size_t)(colon - spec);
  seen s = {.n = 0};
  xfi_scope scope;
  char known[LISTED_BYTES] = "";
  char *items = NULL;
  xfer_status st = XFER_OK;

  side->framework = xfi_rules_side(side->rules, spec, n);
  for (size_t i = 0; side->framework == NULL && i < side->rules->n_sides; i++)
    list_word(known, sizeof known, side->rules->sides[i].name, "");
  XFI_CHECK_DONE(side->framework != NULL, XFER_ERR_ARG,
                 "\"%s\": no framework is called \"%.*s\"; there are %s", side->spec,
                 (int)(n < 80 ? n : 80), spec, known);
  XFI_TRY_DONE(add_vars(side));
  scope = xfi_side_scope(side, NULL);
  XFI_TRY_DONE(xfi_name_copy(&items, colon == NULL ? "" : colon + 1));
  for (char *at = items, *next; at != NULL && *items != '\0'; at = next) {
    next = strchr(at, ',');
    if (next != NULL) *next++ = '\0';
    XFI_CHECK_DONE(*at != '\0', XFER_ERR_ARG, "\"%s\": an empty item", side->spec);
    XFI_TRY_DONE(parse_item(side, at, &s));
  }
  XFI_TRY_DONE(parse_options(side, options, &s));
  set_var(side, "map", side->n_maps > 0 || options->n_map > 0);
  XFI_TRY_DONE(xfi_rules_require(side->rules, side->framework->require, &scope, XFER_ERR_ARG,
                                 "\"%s\"", side->spec));
done:
  xfi_free(items);
  return st;
}
