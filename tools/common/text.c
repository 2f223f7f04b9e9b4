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

void text_json_chars(FILE *file, const char *chars, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    const unsigned char c = (unsigned char)chars[i];

    if (c < 0x20 || c == 0x7f || c == '<' || c == '>' || c == '&')
      fprintf(file, "\\u%04x", c);
    else
      fprintf(file, c == '"' || c == '\\' ? "\\%c" : "%c", c);
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
