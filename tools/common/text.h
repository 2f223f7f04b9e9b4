/* Text for people and for programs. */
#ifndef TOOLS_TEXT_H
#define TOOLS_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Text that may come from a file: control characters as \n or \x1b, so that it cannot act on the
 * terminal. */
void text_print(FILE *file, const char *text);
/* n bytes of a JSON string, without its quotes; U+FFFD for each that belongs to no character of
 * UTF-8, such as one that is cut. */
void text_json_chars(FILE *file, const char *chars, size_t n);
/* A JSON string, which is also safe inside HTML. */
void text_json(FILE *file, const char *text);

/* Room for a size in units that people read. */
typedef struct text_size {
  char at[24];
} text_size;

/* "61.1 GB": powers of 1000, as links are measured. */
text_size text_bytes(double n_bytes);
/* "42.1 ms", "3.2 s", "5 min". */
text_size text_seconds(double seconds);

#endif
