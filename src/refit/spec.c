/* Reads a SPEC: side, colon, items. Which items there are, the side's rules say. */
#include "side.h"

#include "alloc.h"
#include "dtype.h"
#include "error.h"
#include "text.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PP = 4096 };

/* The flags that xfer_weights says too. */
static const struct {
  const char *name;
  uint32_t bit;
} WEIGHTS[] = {{"loaded", XFER_WEIGHTS_LOADED},
               {"up_first", XFER_WEIGHTS_UP_FIRST},
               {"interleaved", XFER_WEIGHTS_INTERLEAVED},
               {"transposed", XFER_WEIGHTS_TRANSPOSED}};
enum { N_WEIGHTS = sizeof WEIGHTS / sizeof *WEIGHTS };

/* ---- variables ---- */

static int64_t side_var(const xfer_side *side, const char *name)
{
  for (int i = 0; i < side->n_vars; i++) {
    if (strcmp(side->vars[i].name, name) == 0) return side->vars[i].value;
  }
  return 0;
}

xfi_scope xfi_side_scope(const xfer_side *side, const xfi_scope *next)
{
  return (xfi_scope){side->vars, (size_t)side->n_vars, next};
}

static void set_var(xfer_side *side, const char *name, size_t n, int64_t value)
{
  for (int i = 0; i < side->n_vars; i++) {
    if (strncmp(side->vars[i].name, name, n) == 0 && side->vars[i].name[n] == '\0')
      side->vars[i].value = value;
  }
}

static xfer_status add_var(xfer_side *side, const char *name, const char *tail, int64_t value)
{
  xfi_text text = {0};
  xfer_status st = XFER_OK;

  XFI_CHECK(side->n_vars < XFI_MAX_ITEMS, XFER_ERR_UNSUPPORTED, "side \"%s\" has too many items",
            side->rules->name);
  if (tail != NULL) {
    xfi_text_printf(&text, "%s_%s", name, tail);
    XFI_TRY(xfi_text_end(&text, &side->var_names[side->n_vars]));
    name = side->var_names[side->n_vars];
  }
  side->vars[side->n_vars++] = (xfi_var){name, value};
done:
  return st;
}

/* Every item at its default. */
static xfer_status add_vars(xfer_side *side)
{
  const xfi_side_rules *r = side->rules;
  const char *name;
  const json_t *value;
  xfer_status st = XFER_OK;

  json_object_foreach((json_t *)(uintptr_t)r->numbers, name, value)
  {
    XFI_TRY(add_var(side, name, NULL, json_integer_value(value)));
  }
  json_object_foreach((json_t *)(uintptr_t)r->choices, name, value)
  {
    for (size_t i = 0; i < json_array_size(value); i++)
      XFI_TRY(add_var(side, name, json_string_value(json_array_get(value, i)), i == 0));
  }
  for (size_t i = 0; i < json_array_size(r->flags); i++)
    XFI_TRY(add_var(side, json_string_value(json_array_get(r->flags, i)), NULL, 0));
  XFI_TRY(add_var(side, "map", NULL, 0));
done:
  return st;
}

/* ---- items ---- */

/* A number of at most 9 digits, all of `text` up to `end`; -1: it is none. */
static int number(const char *text, const char *end)
{
  int value = 0;

  if (text == end || end - text > 9) return -1;
  for (; text < end; text++) {
    if (!isdigit((unsigned char)*text)) return -1;
    value = 10 * value + (*text - '0');
  }
  return value;
}

/* "3+14x4+2": stages of 3, fourteen times 4, and 2 layers. */
static xfer_status parse_layers(xfer_side *side, const char *text, const char *end)
{
  int n_stages = 0;
  xfer_status st = XFER_OK;

  side->stage_layers = xfi_calloc(MAX_PP + 1, sizeof *side->stage_layers);
  XFI_CHECK(side->stage_layers != NULL, XFER_ERR_NOMEM, "the layers of the stages");
  while (text < end) {
    const char *stop = memchr(text, '+', (size_t)(end - text));
    const char *x;
    int times = 1, layers;

    if (stop == NULL) stop = end;
    x = memchr(text, 'x', (size_t)(stop - text));
    if (x != NULL) times = number(text, x);
    layers = number(x == NULL ? text : x + 1, stop);
    XFI_CHECK(times > 0 && layers >= 0 && times <= MAX_PP - n_stages && stop + 1 != end,
              XFER_ERR_ARG, "layers=%.*s: want counts such as 3+14x4+2", (int)(end - text), text);
    while (times-- > 0)
      side->stage_layers[n_stages++] = layers;
    text = stop + 1;
  }
  side->stage_layers[n_stages] = -1;
  XFI_CHECK(n_stages > 0, XFER_ERR_ARG, "layers= lists no stage");
done:
  return st;
}

static xfer_status parse_map(xfer_side *side, const char *value, const char *end)
{
  char path[1024];
  xfer_status st = XFER_OK;

  XFI_CHECK(end > value && (size_t)(end - value) < sizeof path, XFER_ERR_ARG, "map= wants a file");
  snprintf(path, sizeof path, "%.*s", (int)(end - value), value);
  XFI_TRY(xfi_map_read(side, path));
done:
  return st;
}

static xfer_status parse_dtype(xfer_side *side, const char *value, const char *end)
{
  char name[8] = "";
  xfer_status st = XFER_OK;

  if ((size_t)(end - value) < sizeof name) memcpy(name, value, (size_t)(end - value));
  XFI_CHECK(xfi_dtype_parse(&side->dtype, name) == XFER_OK, XFER_ERR_ARG,
            "dtype=%.*s: no element type is called that", (int)(end - value), value);
done:
  return st;
}

static bool is_word(const char *text, size_t n, const char *word)
{
  return strlen(word) == n && strncmp(text, word, n) == 0;
}

enum { LISTED_BYTES = 256 };

/* Adds " WORD" to a list, as far as there is room. */
static void list_word(char *text, size_t size, const char *word, const char *after)
{
  const size_t n = strlen(text);

  snprintf(text + n, size - n, "%s%s%s", n > 0 ? " " : "", word, after);
}

static xfer_status parse_quant(xfer_side *side, const char *value, const char *end)
{
  char known[LISTED_BYTES] = "";
  xfer_status st = XFER_OK;

  for (int i = 0; i < side->rules->n_quants; i++) {
    const xfi_quant_rule *quant = &side->rules->quants[i];

    if (is_word(value, (size_t)(end - value), quant->name)) side->quant = quant;
    list_word(known, sizeof known, quant->name, "");
  }
  XFI_CHECK(side->quant != NULL, XFER_ERR_ARG, "\"%s\": quant=%.*s: want one of %s", side->spec,
            (int)(end - value), value, known);
done:
  return st;
}

static bool is_flag(const xfer_side *side, const char *text, size_t n)
{
  for (size_t i = 0; i < json_array_size(side->rules->flags); i++) {
    if (is_word(text, n, json_string_value(json_array_get(side->rules->flags, i)))) return true;
  }
  return false;
}

/* An item is given once; these are the names so far. */
typedef struct seen {
  char names[XFI_MAX_ITEMS][XFI_ITEM_BYTES];
  int n;
} seen;

static void list_words(char *text, size_t size, const json_t *words)
{
  for (size_t i = 0; i < json_array_size(words); i++)
    list_word(text, size, json_string_value(json_array_get(words, i)), "");
}

/* An item that the side does not have: which it has. */
static xfer_status no_item(const xfer_side *side, const char *item, size_t n)
{
  const xfi_side_rules *rules = side->rules;
  char text[LISTED_BYTES] = "";
  const char *key;
  json_t *value;

  json_object_foreach((json_t *)(uintptr_t)rules->numbers, key, value)
      list_word(text, sizeof text, key, "N");
  list_words(text, sizeof text, rules->flags);
  json_object_foreach((json_t *)(uintptr_t)rules->choices, key, value)
      list_word(text, sizeof text, key, "=");
  if (rules->takes_layers) list_word(text, sizeof text, "layers=", "");
  if (rules->takes_map) list_word(text, sizeof text, "map=", "");
  list_word(text, sizeof text, "dtype=", "");
  if (rules->n_quants > 0) list_word(text, sizeof text, "quant=", "");
  xfi_set_error("\"%s\": no item \"%.*s\" there; it has %s", side->spec, (int)n, item, text);
  return XFER_ERR_ARG;
}

static xfer_status see(const xfer_side *side, seen *s, const char *name, size_t n)
{
  xfer_status st = XFER_OK;

  if (n >= sizeof *s->names) return no_item(side, name, n);
  for (int i = 0; i < s->n; i++) {
    XFI_CHECK(!is_word(name, n, s->names[i]), XFER_ERR_ARG, "\"%s\": %.*s is given twice",
              side->spec, (int)n, name);
  }
  XFI_CHECK(s->n < XFI_MAX_ITEMS, XFER_ERR_ARG, "\"%s\" has too many items", side->spec);
  snprintf(s->names[s->n++], sizeof *s->names, "%.*s", (int)n, name);
done:
  return st;
}

static xfer_status parse_choice(xfer_side *side, const char *name, size_t n, const char *value,
                                const char *end)
{
  const char *key;
  const json_t *list;
  char text[LISTED_BYTES] = "";
  xfer_status st = XFER_OK;

  json_object_foreach((json_t *)(uintptr_t)side->rules->choices, key, list)
  {
    bool found = false;

    if (!is_word(name, n, key)) continue;
    for (size_t i = 0; i < json_array_size(list); i++) {
      const char *choice = json_string_value(json_array_get(list, i));
      char var[128];
      int k = snprintf(var, sizeof var, "%s_%s", key, choice);
      bool chosen = is_word(value, (size_t)(end - value), choice);

      set_var(side, var, (size_t)k, chosen);
      found = found || chosen;
    }
    if (!found) {
      list_words(text, sizeof text, list);
      XFI_CHECK(false, XFER_ERR_ARG, "\"%s\": %s=%.*s: want one of %s", side->spec, key,
                (int)(end - value), value, text);
    }
    return XFER_OK;
  }
  st = no_item(side, name, n);
done:
  return st;
}

static xfer_status parse_number(xfer_side *side, const char *text, size_t n, const char *end)
{
  const int value = number(text + n, end);
  char name[XFI_ITEM_BYTES];
  xfer_status st = XFER_OK;

  snprintf(name, sizeof name, "%.*s", (int)n, text);
  if (n == 0 || json_object_get(side->rules->numbers, name) == NULL)
    return no_item(side, text, (size_t)(end - text));
  XFI_CHECK(value > 0, XFER_ERR_ARG, "\"%s\": %.*s wants a number from 1 to 999999999", side->spec,
            (int)(end - text), text);
  set_var(side, text, n, value);
done:
  return st;
}

/* A flag, NAME=VALUE, or a name with its number behind it. */
static xfer_status parse_item(xfer_side *side, const char *text, const char *end, seen *s)
{
  const char *equals = memchr(text, '=', (size_t)(end - text));
  const bool flag = equals == NULL && is_flag(side, text, (size_t)(end - text));
  size_t n = (size_t)((equals != NULL ? equals : end) - text);
  xfer_status st = XFER_OK;

  while (equals == NULL && !flag && n > 0 && isdigit((unsigned char)text[n - 1]))
    n--;
  XFI_TRY(see(side, s, text, n));
  if (flag)
    set_var(side, text, n, 1);
  else if (equals == NULL)
    XFI_TRY(parse_number(side, text, n, end));
  else if (is_word(text, n, "layers") && side->rules->takes_layers)
    XFI_TRY(parse_layers(side, equals + 1, end));
  else if (is_word(text, n, "map") && side->rules->takes_map)
    XFI_TRY(parse_map(side, equals + 1, end));
  else if (is_word(text, n, "dtype"))
    XFI_TRY(parse_dtype(side, equals + 1, end));
  else if (is_word(text, n, "quant") && side->rules->n_quants > 0)
    XFI_TRY(parse_quant(side, equals + 1, end));
  else
    XFI_TRY(parse_choice(side, text, n, equals + 1, end));
done:
  return st;
}

/* ---- what fits together ---- */

/* What the options say of weights, where the SPEC says nothing of them. */
static xfer_status take_weights(xfer_side *side, const xfer_side_options *o)
{
  uint32_t all = 0;
  bool said = false;
  xfer_status st = XFER_OK;

  for (int i = 0; i < N_WEIGHTS; i++) {
    all |= WEIGHTS[i].bit;
    said = said || side_var(side, WEIGHTS[i].name) != 0;
  }
  XFI_CHECK((o->weights & ~all) == 0, XFER_ERR_ARG, "weights %#x: an unknown bit",
            (unsigned)o->weights);
  for (int i = 0; i < N_WEIGHTS && !said; i++)
    set_var(side, WEIGHTS[i].name, strlen(WEIGHTS[i].name), (o->weights & WEIGHTS[i].bit) != 0);
done:
  return st;
}

/* Items of the options: as in the SPEC, but each with its number. */
static xfer_status parse_options(xfer_side *side, const xfer_side_options *o, seen *s)
{
  char item[96];
  xfer_status st = XFER_OK;

  XFI_CHECK(o->n_items >= 0 &&
                (o->n_items == 0 || (o->item_names != NULL && o->item_values != NULL)),
            XFER_ERR_ARG, "%lld items without names or values", (long long)o->n_items);
  for (int64_t i = 0; i < o->n_items; i++) {
    const char *name = o->item_names[i];
    int k;

    XFI_CHECK(name != NULL, XFER_ERR_ARG, "item %lld is NULL", (long long)i);
    if (strchr(name, '=') != NULL || is_flag(side, name, strlen(name)))
      k = snprintf(item, sizeof item, "%s", name);
    else
      k = snprintf(item, sizeof item, "%s%d", name, (int)o->item_values[i]);
    XFI_CHECK(k < (int)sizeof item, XFER_ERR_ARG, "item %lld has too long a name", (long long)i);
    XFI_CHECK(strncmp(item, "layers=", 7) != 0 && strncmp(item, "map=", 4) != 0, XFER_ERR_ARG,
              "\"%s\": say %s in the SPEC", side->spec, item);
    if (is_flag(side, name, strlen(name)) && o->item_values[i] == 0) continue;
    XFI_TRY(parse_item(side, item, item + k, s));
  }
done:
  return st;
}

xfer_status xfi_spec_parse(xfer_side *side, const char *spec, const xfer_side_options *options)
{
  const char *colon = strchr(spec, ':');
  size_t n = colon == NULL ? strlen(spec) : (size_t)(colon - spec);
  seen s = {.n = 0};
  xfi_scope scope;
  char known[LISTED_BYTES] = "";
  xfer_status st = XFER_OK;

  side->rules = xfi_rules_side(side->set, spec, n);
  for (size_t i = 0; side->rules == NULL && i < side->set->n_sides; i++)
    list_word(known, sizeof known, side->set->sides[i].name, "");
  XFI_CHECK(side->rules != NULL, XFER_ERR_ARG,
            "\"%s\": no framework is called \"%.*s\"; there are %s", spec, (int)n, spec, known);
  XFI_TRY(add_vars(side));
  scope = xfi_side_scope(side, NULL);
  for (const char *at = colon == NULL ? "" : colon + 1; *at != '\0';) {
    const char *end = strchr(at, ',');

    if (end == NULL) end = at + strlen(at);
    XFI_CHECK(end > at && (*end == '\0' || end[1] != '\0'), XFER_ERR_ARG, "\"%s\": an empty item",
              spec);
    XFI_TRY(parse_item(side, at, end, &s));
    at = *end == ',' ? end + 1 : end;
  }
  XFI_TRY(parse_options(side, options, &s));
  if (options->n_map > 0) XFI_TRY(xfi_map_copy(side, options));
  set_var(side, "map", 3, side->n_maps > 0);
  XFI_TRY(take_weights(side, options));
  XFI_TRY(xfi_rules_require(side->rules->require, &scope, XFER_ERR_ARG, "\"%s\"", spec));
done:
  return st;
}
