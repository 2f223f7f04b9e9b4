#include "text.h"

#include <string.h>

/* The length of a control character in UTF-8 at `at`: 1, 2 for U+0080 to U+009F, 0 for any other.
 */
static int control_length(const char *at)
{
  const unsigned char c = (unsigned char)at[0];

  if (c < 0x20 || c == 0x7f) return 1;
  return c == 0xc2 && (unsigned char)at[1] >= 0x80 && (unsigned char)at[1] < 0xa0 ? 2 : 0;
}

void text_print(FILE *file, const char *text)
{
  while (*text != '\0') {
    const int n = control_length(text);

    if (n == 0)
      fputc(*text, file);
    else if (*text == '\n')
      fputs("\\n", file);
    else if (*text == '\t')
      fputs("\\t", file);
    else
      fprintf(file, "\\x%02x", (unsigned char)text[n - 1]);
    text += n > 0 ? n : 1;
  }
}

/* The length of the character of UTF-8 that begins at `at`, of n bytes; 0: none does. */
static size_t character_length(const char *at, size_t n)
{
  const unsigned char first = (unsigned char)at[0];
  size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80; /* none is too long */
  unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;  /* nor a surrogate */

  if (first < 0x80) return 1;
  if (length > n) return 0;
  for (size_t i = 1; i < length; i++) {
    const unsigned char c = (unsigned char)at[i];

    if (c < least || c > most) return 0;
    least = 0x80;
    most = 0xbf;
  }
  return length;
}

void text_json_chars(FILE *file, const char *chars, size_t n)
{
  for (size_t i = 0, length; i<n; i += length> 0 ? length : 1) {
    const unsigned char c = (unsigned char)chars[i];

    length = character_length(chars + i, n - i);
    if (length == 0)
      fputs("\\ufffd", file);
    else if (c < 0x20 || c == 0x7f || c == '<' || c == '>' || c == '&')
      fprintf(file, "\\u%04x", c);
    else {
      if (c == '"' || c == '\\') fputc('\\', file);
      fwrite(chars + i, 1, length, file);
    }
  }
}

void text_json(FILE *file, const char *text)
{
  fputc('"', file);
  text_json_chars(file, text, strlen(text));
  fputc('"', file);
}

text_size text_bytes(double n_bytes)
{
  static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  text_size text;
  int u = 0;

  for (; n_bytes >= 999.5 && u < 5; u++)
    n_bytes /= 1000;
  snprintf(text.at, sizeof text.at, u == 0 || n_bytes >= 99.95 ? "%.0f %s" : "%.1f %s", n_bytes,
           units[u]);
  return text;
}

text_size text_seconds(double seconds)
{
  text_size text;

  if (seconds < 1e-3)
    snprintf(text.at, sizeof text.at, "%.0f us", seconds * 1e6);
  else if (seconds < 1)
    snprintf(text.at, sizeof text.at, "%.1f ms", seconds * 1e3);
  else if (seconds < 120)
    snprintf(text.at, sizeof text.at, "%.1f s", seconds);
  else
    snprintf(text.at, sizeof text.at, "%.0f min", seconds / 60);
  return text;
}
