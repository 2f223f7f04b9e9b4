/*
 * Each star takes the shortest text that lets the rest match. Only the last star may have to be
 * extended: taking the first occurrence of the text between two stars leaves the most for the rest.
 * So the time is at most the product of the two lengths, for any number of stars.
 */
#include "names.h"

#include "alloc.h"
#include "error.h"
#include "text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

bool xfi_name_has_part(const char *name, const char *part)
{
  const size_t n = strlen(part);

  for (const char *at = strstr(name, part); n > 0 && at != NULL; at = strstr(at + 1, part))
    if ((at == name || at[-1] == '.') && (at[n] == '.' || at[n] == '\0')) return true;
  return false;
}

/* ---- patterns ---- */

typedef struct capture {
  const char *at;
  size_t n;
} capture;

/* Sets captures[k] to the text that the k-th star matches. */
static bool match(const char *pattern, const char *name, capture *captures)
{
  const char *after = NULL; /* what follows the last star */
  size_t n_stars = 0;

  while (*pattern != '\0' || *name != '\0') {
    if (*pattern == '*') {
      captures[n_stars++] = (capture){name, 0};
      after = ++pattern;
    } else if (*pattern == *name) {
      pattern++;
      name++;
    } else if (after != NULL && *name != '\0') {
      capture *last = &captures[n_stars - 1];

      last->n++;
      name = last->at + last->n;
      pattern = after;
    } else {
      return false;
    }
  }
  return true;
}

static int count_stars(const char *pattern)
{
  int n = 0;

  for (; *pattern != '\0'; pattern++)
    n += *pattern == '*';
  return n;
}

bool xfi_glob_match(const char *pattern, const char *name)
{
  capture captures[XFI_GLOB_STARS + 1];

  return count_stars(pattern) <= XFI_GLOB_STARS && match(pattern, name, captures);
}

xfer_status xfi_glob_check(const char *from, const char *to)
{
  XFI_CHECK(from[0] != '\0', XFER_ERR_ARG, "an empty name pattern");
  XFI_CHECK(count_stars(from) <= XFI_GLOB_STARS, XFER_ERR_ARG,
            "name pattern \"%s\" has more than %d stars", from, XFI_GLOB_STARS);
  XFI_CHECK(to == NULL || count_stars(to) <= count_stars(from), XFER_ERR_ARG,
            "rename \"%s\" -> \"%s\": the new name has more stars than the old", from, to);
  return XFER_OK;
}

xfer_status xfi_glob_rename(char **renamed, const char *from, const char *to, const char *name)
{
  capture captures[XFI_GLOB_STARS + 1] = {{NULL, 0}};
  int star = 0;
  xfi_text text = {0};

  *renamed = NULL;
  if (!match(from, name, captures)) return XFER_OK;
  for (; *to != '\0'; to++) {
    if (*to == '*') {
      xfi_text_add(&text, captures[star].at, captures[star].n);
      star++;
    } else {
      xfi_text_add(&text, to, 1);
    }
  }
  return xfi_text_end(&text, renamed);
}

size_t xfi_role_chars(const char *role)
{
  static const char BIAS[] = ".bias";
  const size_t n = strlen(role);

  return xfi_name_ends(role, n, BIAS) ? n - (sizeof BIAS - 1) : n;
}

bool xfi_role_matches(const char *pattern, const char *role)
{
  return role != NULL && (strcmp(pattern, role) == 0 ||
                          (strchr(pattern, '*') != NULL && xfi_glob_match(pattern, role)));
}

xfer_status xfi_name_copy(char **copy, const char *name)
{
  *copy = xfi_strdup(name);
  XFI_CHECK(*copy != NULL, XFER_ERR_NOMEM, "the name \"%s\"", name);
  return XFER_OK;
}

/* ---- numbers in names ---- */

xfer_status xfi_name_fill(char **name, const char *pattern, const xfi_name_numbers *numbers)
{
  static const char *const PLACES[] = {"{layer}", "{checkpoint_layer}", "{expert}", "{local}",
                                       "{chunk}"};
  const int of[] = {numbers->layer, numbers->layer, numbers->expert, numbers->local,
                    numbers->chunk};
  xfi_text text = {0};

  for (const char *at = pattern; *at != '\0';) {
    int k = 0;

    while (k < 5 && (of[k] < 0 || strncmp(at, PLACES[k], strlen(PLACES[k])) != 0))
      k++;
    if (k < 5) {
      xfi_text_printf(&text, "%d", of[k]);
      at += strlen(PLACES[k]);
    } else {
      xfi_text_add(&text, at++, 1);
    }
  }
  return xfi_text_end(&text, name);
}

xfer_status xfi_name_layer(char **name, const char *pattern, int layer)
{
  return xfi_name_fill(name, pattern, &(xfi_name_numbers){layer, -1, -1, -1});
}

/* Replaces by `place` the number after the first part of the name that is `word`, and returns the
 * number; -1: there is none. */
static int take_number(char *name, const char *word, const char *place)
{
  const size_t n = strcspn(word, ".") + 1;
  char rest[XFI_NAME_BYTES];

  for (char *at = name, *dot; at != NULL; at = dot != NULL ? dot + 1 : NULL) {
    char *digits, *end;
    int number = 0;

    dot = strchr(at, '.');
    if (strncmp(at, word, n) != 0) continue;
    digits = end = at + n;
    for (; isdigit((unsigned char)*end) && end - digits < 9; end++)
      number = 10 * number + (*end - '0');
    if (end == digits || (*end != '.' && *end != '\0')) continue;
    snprintf(rest, sizeof rest, "%s", end);
    snprintf(digits, XFI_NAME_BYTES - (size_t)(digits - name), "%s%s", place, rest);
    return number;
  }
  return -1;
}

xfer_status xfi_name_split(char *pattern, int *layer, int *expert, const char *name,
                           const char *const *words, int n_words)
{
  XFI_CHECK(strlen(name) + 16 < XFI_NAME_BYTES, XFER_ERR_IO, "a tensor name of %zu characters",
            strlen(name));
  snprintf(pattern, XFI_NAME_BYTES, "%s", name);
  *layer = -1;
  for (int i = 0; i < n_words && *layer < 0; i++)
    *layer = take_number(pattern, words[i], "{layer}");
  *expert = take_number(pattern, "experts.", "{expert}");
  return XFER_OK;
}
