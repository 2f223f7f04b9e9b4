/* Files that are there complete or not at all: written under another name in the same folder, then
 * renamed. A link stays one, its target is the file. A pipe or a device is written as it is, and so
 * is the file that standard output goes to, after what is in it. */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

enum { OUTPUT_PATH_BYTES = 4096 };

typedef struct output {
  FILE *file;
  char path[OUTPUT_PATH_BYTES];
  char partial[OUTPUT_PATH_BYTES + 64]; /* "": none, `path` is written */
} output;

/* False: errno. */
bool output_begin(output *out, const char *path);
/* With `ok` the file takes its name, else it is removed. False: it is removed, and errno says why.
 */
bool output_end(output *out, bool ok);
/* Do both lead to the same file or folder, which need not be there yet? */
bool output_is_same(const char *a, const char *b);
/* Is it the file, no pipe or device, that standard output goes to? */
bool output_is_stdout(const char *path);

#endif
