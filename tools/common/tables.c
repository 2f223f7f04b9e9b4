#include "tables.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Finds the folder of the tables that were installed with this program, which is
 * PREFIX/bin/xfer_plan. In the Python package PREFIX is the package's folder. */
static void installed_in(char folder[TABLES_PATH_BYTES])
{
  char program[TABLES_PATH_BYTES - 32];
  ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);

  for (int up = 0; up < 2 && n > 0; up++)
    while (n > 0 && program[--n] != '/') {
    }
  program[n > 0 ? n : 0] = '\0';
  snprintf(folder, TABLES_PATH_BYTES, "%s/share/xfer/models", program);
  if (access(folder, F_OK) != 0) snprintf(folder, TABLES_PATH_BYTES, "%s/models", program);
}

static void folder_number(char folder[TABLES_PATH_BYTES], int i)
{
  if (i == 0) snprintf(folder, TABLES_PATH_BYTES, "models");
  if (i == 1) installed_in(folder);
}

bool tables_find(char path[TABLES_PATH_BYTES], const char *name)
{
  char folder[TABLES_PATH_BYTES];

  for (int i = 0; i < 2; i++) {
    folder_number(folder, i);
    if (snprintf(path, TABLES_PATH_BYTES, "%s/%s.json", folder, name) < TABLES_PATH_BYTES &&
        access(path, R_OK) == 0)
      return true;
  }
  return false;
}

static int is_table(const struct dirent *entry)
{
  const size_t n = strlen(entry->d_name);

  return n > 5 && strcmp(entry->d_name + n - 5, ".json") == 0;
}

void tables_list(char *text, size_t size)
{
  char folder[TABLES_PATH_BYTES];
  size_t at = 0;

  text[0] = '\0';
  for (int i = 0; i < 2 && at == 0; i++) {
    struct dirent **entries = NULL;

    folder_number(folder, i);
    const int n = scandir(folder, &entries, is_table, alphasort);
    for (int k = 0; k < n; k++) {
      const char *name = entries[k]->d_name;

      if (at < size)
        at += (size_t)snprintf(text + at, size - at, " %.*s", (int)strlen(name) - 5, name);
      free(entries[k]);
    }
    free(entries);
  }
}
