/* Files that are there complete or not at all: written under another name, then renamed. A pipe or
 * a device is written as it is. */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

typedef struct output {
  FILE *file;
  char path[4096];
  char partial[4096 + 16];
} output;

/* False: errno. */
bool output_begin(output *out, const char *path);
/* With `ok` the file takes its name, else it is removed. False: it is removed, and errno says why.
 */
bool output_end(output *out, bool ok);

#endif
