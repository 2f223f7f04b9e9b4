/*
 * Figures of a configuration. A name is a key, or keys of objects inside each other, and then by
 * what the configuration has there:
 *
 *   KEY of a number, true or false  the number, 1 or 0
 *   KEY.null of null                1
 *   KEY.size of a list or a text    how many items or characters it has
 *   KEY.WORD of a text              1 if it is that word
 *   architectures.WORD              1 if the list has that word
 *
 * Of one layer, a name of a list or a text has other meanings, but for its size:
 *
 *   KEY of a list                   the layer's item, a number
 *   KEY.has of a list               1 if it has the layer's number, else 0
 *   KEY.WORD of a list              1 if the layer's item is that word, else 0 if it is another
 *   KEY.C of a text                 1 if the layer's character is C, else 0
 *
 * Anything else is not there, except a text or a fraction where a number is meant: if that counted
 * as absent, a default would be used silently.
 */
#include "config_values.h"

#include "names.h"

#include <jansson.h>
#include <string.h>

/* A vision model has a text part; in a model that also speaks, the thinker has it. */
const json_t *xfi_config_text(const json_t *top)
{
  static const char *const PARTS[] = {"text_config", "llm_config", "language_config"};
  const json_t *thinker = json_object_get(top, "thinker_config"), *text = NULL;

  if (thinker != NULL) top = thinker;
  for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS && text == NULL; i++)
    text = json_object_get(top, PARTS[i]);
  return json_is_object(text) ? text : NULL;
}

/* A key of the text part, else of the whole; "whole" is all of it, so that
 * "whole.model_type.gemma3" is that of a vision model. tie_word_embeddings is the whole model's
 * first. In vLLM null means untied, whatever the class has if the key is absent; classes of
 * transformers 5 allow no null. */
const json_t *xfi_config_key(const json_t *top, const char *key)
{
  const json_t *text = xfi_config_text(top);
  const json_t *value = json_object_get(top, key);
  const bool is_tie = strcmp(key, "tie_word_embeddings") == 0;

  if (strcmp(key, "whole") == 0) return top;
  if ((!is_tie || value == NULL) && json_object_get(text, key) != NULL)
    value = json_object_get(text, key);
  return is_tie && json_is_null(value) ? json_false() : value;
}

/* ---- names ---- */

typedef struct word {
  const char *at;
  size_t n_chars;
} word;

static bool is_word(word w, const char *text)
{
  return xfi_name_is(w.at, w.n_chars, text);
}

static bool is_text(word w, const json_t *value)
{
  return json_is_string(value) && is_word(w, json_string_value(value));
}

/* Takes the part before the first dot off *rest, which becomes empty if there is none. Returns
 * false if the part is longer than any key. */
static bool take_key(char key[XFI_NAME_BYTES], word *rest)
{
  const char *dot = memchr(rest->at, '.', rest->n_chars);
  const size_t n = dot == NULL ? rest->n_chars : (size_t)(dot - rest->at);

  if (n >= XFI_NAME_BYTES) return false;
  memcpy(key, rest->at, n);
  key[n] = '\0';
  rest->at += n + (dot != NULL);
  rest->n_chars -= n + (dot != NULL);
  return true;
}

/* ---- values ---- */

static xfi_found found_if(bool there, int64_t *value, int64_t number)
{
  if (!there) return XFI_NOT_FOUND;
  *value = number;
  return XFI_FOUND;
}

/* null counts as absent, as do lists and objects, of which rules use items. */
static xfi_found number_of(int64_t *value, const json_t *at)
{
  if (json_is_string(at) || json_is_real(at)) return XFI_NO_NUMBER;
  return found_if(json_is_boolean(at) || json_is_integer(at), value,
                  json_is_true(at) ? 1 : json_integer_value(at));
}

static bool has_text(const json_t *list, word text)
{
  for (size_t i = 0; i < json_array_size(list); i++)
    if (is_text(text, json_array_get(list, i))) return true;
  return false;
}

static bool has_number(const json_t *list, int64_t number)
{
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *item = json_array_get(list, i);

    if (json_is_integer(item) && json_integer_value(item) == number) return true;
  }
  return false;
}

xfi_found xfi_config_value(int64_t *value, const char *name, size_t n_chars, const void *top)
{
  word rest = {name, n_chars};
  char key[XFI_NAME_BYTES];
  const json_t *at;

  if (!take_key(key, &rest)) return XFI_NOT_FOUND;
  at = xfi_config_key(top, key);
  while (json_is_object(at) && rest.n_chars > 0) {
    if (!take_key(key, &rest)) return XFI_NOT_FOUND;
    at = json_object_get(at, key);
  }
  if (rest.n_chars == 0) return number_of(value, at);
  if (strcmp(key, "architectures") == 0) return found_if(has_text(at, rest), value, 1);
  if (is_word(rest, "size") && (json_is_array(at) || json_is_string(at)))
    return found_if(true, value, (int64_t)(json_array_size(at) + json_string_length(at)));
  return found_if(is_text(rest, at) || (json_is_null(at) && is_word(rest, "null")), value, 1);
}

xfi_found xfi_config_value_of_layer(int64_t *value, const char *name, size_t n_chars,
                                    const void *context)
{
  const xfi_config_layer *of = context;
  word rest = {name, n_chars};
  const json_t *at, *item;
  char key[XFI_NAME_BYTES];

  if (!take_key(key, &rest)) return XFI_NOT_FOUND;
  at = xfi_config_key(of->top, key);
  if (json_is_string(at) && rest.n_chars == 1) {
    if ((size_t)of->layer >= json_string_length(at)) return XFI_NOT_FOUND;
    return found_if(true, value, json_string_value(at)[of->layer] == rest.at[0]);
  }
  if (!json_is_array(at) || is_word(rest, "size"))
    return xfi_config_value(value, name, n_chars, of->top);
  if (is_word(rest, "has")) return found_if(true, value, has_number(at, of->layer));
  item = json_array_get(at, (size_t)of->layer);
  if (rest.n_chars == 0) return number_of(value, item);
  return found_if(json_is_string(item), value, is_text(rest, item));
}
