/* Tables of models by their names, such as "qwen3-4b": of ./models, as in a source tree, before
 * those that are installed. */
#ifndef TOOLS_TABLES_H
#define TOOLS_TABLES_H

#include <stdbool.h>
#include <stddef.h>

enum { TABLES_PATH_BYTES = 4096 };

/* False: there is none, and `path` is where one would be installed. */
bool tables_find(char path[TABLES_PATH_BYTES], const char *name);
/* The names of one folder's, the first that has any, each after a blank; "": there are none. */
void tables_list(char *text, size_t size);

#endif
