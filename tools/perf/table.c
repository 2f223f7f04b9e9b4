/* The table of results, for people and as JSON. */
#include "world.h"

#include <stdio.h>
#include <string.h>

#include "text.h"

bool perf_wanted(const perf_world *w, const char *name)
{
  char text[PERF_NOTE_BYTES];

  for (const char *at = w->only; at != NULL && *at != '\0';) {
    size_t n = strcspn(at, ",");
    if (n < sizeof text) {
      memcpy(text, at, n);
      text[n] = '\0';
      if (strstr(name, text) != NULL) return true;
    }
    at += n + (at[n] == ',');
  }
  return w->only == NULL;
}

perf_row *perf_row_new(perf_world *w, const char *name)
{
  perf_row *row = &w->rows[w->n_rows];

  if (!perf_wanted(w, name)) return NULL;
  if (w->n_rows == PERF_ROWS_MAX) return NULL;
  memset(row, 0, sizeof *row);
  row->name = name;
  row->wrong = -1;
  w->n_rows++;
  return row;
}

FILE *perf_text(const perf_world *w)
{
  return w->json ? stderr : stdout;
}

/* A number in a column of its width, or a dash where there is none. */
static void cell(FILE *out, double value, int width, int digits, bool shown)
{
  if (shown)
    fprintf(out, " %*.*f", width, digits, value);
  else
    fprintf(out, " %*s", width, "-");
}

static void print_row(FILE *out, const perf_row *r)
{
  fprintf(out, "%-24s", r->name);
  if (r->us > 0)
    fprintf(out, " %7.1fus", r->us);
  else
    cell(out, r->ms, 9, 3, r->ms > 0);
  cell(out, r->gbps, 6, 0, r->gbps > 0);
  cell(out, r->ratio, 6, 3, r->ratio > 0);
  fprintf(out, " %-9s", r->of != NULL && r->ratio > 0 ? r->of : "");
  cell(out, r->bar, 6, 2, r->bar > 0);
  cell(out, r->wrong, 6, 0, r->wrong >= 0);
  cell(out, r->commit_ms, 8, 1, r->commit_ms > 0);
  cell(out, r->again_ms, 6, 1, r->again_ms > 0);
  cell(out, r->grown_mib, 6, 0, r->commit_ms > 0);
  fprintf(out, "%s%s\n", r->note[0] != '\0' ? "  " : "", r->note);
}

static void print_head(FILE *out)
{
  fprintf(out, "%-24s %9s %6s %6s %-9s %6s %6s %8s %6s %6s\n", "row", "ms", "GB/s", "ratio", "of",
          "bar", "wrong", "commit", "again", "MiB");
}

void perf_row_done(const perf_world *w, const perf_row *row)
{
  if (w->rank != 0) return;
  print_row(perf_text(w), row);
  (void)fflush(perf_text(w));
}

void perf_table(const perf_world *w)
{
  if (w->rank != 0) return;
  fprintf(perf_text(w), "\n");
  print_head(perf_text(w));
  for (int i = 0; i < w->n_rows; i++)
    print_row(perf_text(w), &w->rows[i]);
}

static void print_figure(const char *name, double value, bool known)
{
  if (known)
    printf(",\"%s\":%.6g", name, value);
  else
    printf(",\"%s\":null", name);
}

void perf_json(const perf_world *w)
{
  if (w->rank != 0) return;
  printf("{\"gpus\":%d,\"nccl_mib\":%.0f,\"rows\":[", w->size, w->nccl_mib);
  for (int i = 0; i < w->n_rows; i++) {
    const perf_row *r = &w->rows[i];
    printf("%s\n{\"row\":\"%s\"", i == 0 ? "" : ",", r->name);
    print_figure("ms", r->ms, r->ms > 0);
    print_figure("us", r->us, r->us > 0);
    print_figure("gbps", r->gbps, r->gbps > 0);
    print_figure("ratio", r->ratio, r->ratio > 0);
    print_figure("bar", r->bar, r->bar > 0);
    print_figure("wrong", r->wrong, r->wrong >= 0);
    print_figure("commit_ms", r->commit_ms, r->commit_ms > 0);
    print_figure("again_ms", r->again_ms, r->again_ms > 0);
    print_figure("grown_mib", r->grown_mib, r->commit_ms > 0);
    print_figure("staging_mib", r->staging_mib, r->commit_ms > 0);
    printf(",\"of\":");
    text_json(stdout, r->of != NULL ? r->of : "");
    printf(",\"note\":");
    text_json(stdout, r->note);
    printf("}");
  }
  printf("\n]}\n");
}
