/*
 * A fuzz target without a fuzzer, for any compiler: each file of a corpus as it is, cut off at each
 * byte, and with each byte changed in a few ways.
 *
 *   replay_<target> CORPUS
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_BYTES = 1 << 16, MOST_CHANGED = 600 };

static unsigned long n_runs;

static void give(const uint8_t *data, size_t size)
{
  uint8_t *own = malloc(size + 1); /* ends where the input does */

  if (own == NULL) abort();
  memcpy(own + 1, data, size);
  (void)LLVMFuzzerTestOneInput(own + 1, size);
  free(own);
  n_runs++;
}

static void replay(const char *path)
{
  static uint8_t bytes[MOST_BYTES];
  static const uint8_t others[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
  FILE *file = fopen(path, "rb");
  size_t n;

  if (file == NULL) abort();
  n = fread(bytes, 1, sizeof bytes, file);
  (void)fclose(file);
  give(bytes, n);
  for (size_t i = 0; i < n && i < MOST_CHANGED; i++) {
    const uint8_t was = bytes[i];

    give(bytes, i);
    for (size_t k = 0; k < sizeof others; k++) {
      bytes[i] = was ^ others[k];
      if (others[k] != 0) give(bytes, n);
      bytes[i] = others[k];
      give(bytes, n);
    }
    bytes[i] = was;
  }
}

int main(int argc, char **argv)
{
#if !ADDRESS_SANITIZER && !THREAD_SANITIZER
  /* A peer may speak of any number of bytes: who has not that much says so. */
  const struct rlimit memory = {64 << 20, 64 << 20};

  (void)setrlimit(RLIMIT_DATA, &memory);
#endif
  DIR *corpus = argc == 2 ? opendir(argv[1]) : NULL;
  char path[4096];

  if (corpus == NULL) return 2;
  for (const struct dirent *e = readdir(corpus); e != NULL; e = readdir(corpus)) {
    if (e->d_name[0] == '.') continue;
    (void)snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
    replay(path);
  }
  (void)closedir(corpus);
  printf("replayed %lu inputs\n", n_runs);
  return n_runs > 0 ? 0 : 1;
}
