/* Two dims of a tensor are drawn: the first two that are cut, else the last. Down is the lower. */
#include "draw.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "output.h"
#include "shards.h"
#include "text.h"

enum { TEXT_WIDTH = 72, TEXT_HEIGHT = 16, SVG_WIDTH = 440, SVG_HEIGHT = 260, SVG_GAP = 40 };

typedef struct picture {
  const xfer_tensor *tensor;
  shards sides[2];
  int down; /* dims; -1: none */
  int across;
} picture;

static bool is_cut(const picture *p, int d)
{
  for (int s = 0; s < 2; s++) {
    const shards *of = &p->sides[s];

    for (size_t i = 0; i < of->n; i++)
      for (size_t b = 0; b < of->at[i].n_boxes; b++) {
        const int64_t *box = of->at[i].bounds + 2 * (size_t)of->n_dims * b;

        if (box[d] != 0 || box[of->n_dims + d] < of->shape[d]) return true;
      }
  }
  return false;
}

static void choose_dims(picture *p)
{
  const int n = p->sides[0].n_dims;

  p->down = p->across = -1;
  for (int d = 0; d < n && p->across < 0; d++) {
    if (!is_cut(p, d)) continue;
    if (p->down < 0)
      p->down = d;
    else
      p->across = d;
  }
  if (p->down < 0 && n > 0) p->down = n - 1;
  for (int d = n - 1; d >= 0 && p->across < 0; d--)
    if (d != p->down) p->across = d;
  if (p->across >= 0 && p->across < p->down) {
    const int d = p->down;

    p->down = p->across;
    p->across = d;
  }
}

static const xfer_tensor *find_tensor(const plan_whole *whole, const char *name)
{
  for (size_t i = 0; i < whole->n_tensors && name != NULL; i++)
    if (strcmp(whole->tensors[i].name, name) == 0) return &whole->tensors[i];
  return whole->n_tensors == 1 && name == NULL ? whole->tensors : NULL;
}

static void picture_free(picture *p)
{
  shards_free(&p->sides[0]);
  shards_free(&p->sides[1]);
}

/* 0, or the status to end with. */
static int picture_make(picture *p, const plan_whole *whole, const plan_args *args)
{
  memset(p, 0, sizeof *p);
  p->tensor = find_tensor(whole, args->tensor);
  if (p->tensor == NULL && args->tensor == NULL)
    return args_wrong("there are %zu tensors: --tensor names the one to draw; --html has all",
                      whole->n_tensors);
  if (p->tensor == NULL)
    return args_wrong("no tensor is called \"%s\"; the first is \"%s\"", args->tensor,
                      whole->n_tensors > 0 ? whole->tensors[0].name : "");
  if (shards_find(&p->sides[0], p->tensor->src, whole->n_ranks) &&
      shards_find(&p->sides[1], p->tensor->dst, whole->n_ranks)) {
    choose_dims(p);
    return 0;
  }
  picture_free(p);
  return args_failed("no memory for the picture");
}

/* Where a box begins and ends in a dim that is `size` long on the picture. */
static void span(const shards *of, const int64_t *box, int d, int size, int *from, int *to)
{
  const double n = d < 0 || of->shape[d] == 0 ? 1 : (double)of->shape[d];
  const double hi = d < 0 ? 1 : (double)box[of->n_dims + d];

  *from = d < 0 ? 0 : (int)((double)box[d] / n * size + 0.5);
  *to = (int)((hi < n ? hi : n) / n * size + 0.5);
}

/* ---- terminal ---- */

static void put_label(char *row, int x0, int x1, const shard *part)
{
  char text[TEXT_WIDTH + 1];
  const int n = shards_ranks(text, sizeof text, part);

  if (n <= x1 - x0 - 1 && n <= TEXT_WIDTH) memcpy(row + (x0 + x1 - n + 1) / 2, text, (size_t)n);
}

static void draw_box(char rows[TEXT_HEIGHT + 1][TEXT_WIDTH + 2], int x0, int x1, int y0, int y1,
                     const shard *part)
{
  for (int y = y0; y <= y1; y++)
    for (int x = x0; x <= x1; x++) {
      const bool across = y == y0 || y == y1;
      const bool down = x == x0 || x == x1;

      if (across || down) rows[y][x] = across && down ? '+' : across ? '-' : '|';
    }
  if (y1 - y0 > 1) put_label(rows[(y0 + y1) / 2], x0, x1, part);
}

static void print_side(const picture *p, int side)
{
  char rows[TEXT_HEIGHT + 1][TEXT_WIDTH + 2];
  const shards *of = &p->sides[side];

  memset(rows, ' ', sizeof rows);
  for (size_t i = 0; i < of->n; i++)
    for (size_t b = 0; b < of->at[i].n_boxes; b++) {
      const int64_t *box = of->at[i].bounds + 2 * (size_t)of->n_dims * b;
      int x0, x1, y0, y1;

      span(of, box, p->across, TEXT_WIDTH, &x0, &x1);
      span(of, box, p->down, TEXT_HEIGHT, &y0, &y1);
      if (x1 > x0 && y1 > y0) draw_box(rows, x0, x1, y0, y1, &of->at[i]);
    }
  for (int y = 0; y <= TEXT_HEIGHT; y++) {
    rows[y][TEXT_WIDTH + 1] = '\0';
    printf("%s\n", rows[y]);
  }
}

int plan_draw(const plan_whole *whole, const plan_args *args)
{
  char text[SHARDS_TEXT_BYTES];
  picture p;
  const int status = picture_make(&p, whole, args);

  if (status != 0) return status;
  for (int s = 0; s < 2; s++) {
    printf(s == 0 ? "before: " : "after: ");
    shards_text(text, s == 0 ? p.tensor->src : p.tensor->dst);
    printf("%s\n", text);
    print_side(&p, s);
  }
  picture_free(&p);
  return EXIT_SUCCESS;
}

/* ---- SVG ---- */

static void svg_side(FILE *file, const picture *p, int side)
{
  const shards *of = &p->sides[side];
  const int left = side * (SVG_WIDTH + SVG_GAP);
  char ranks[64], text[SHARDS_TEXT_BYTES];

  fprintf(file, "<text class=\"t\" x=\"%d\" y=\"14\">%s: ", left, side == 0 ? "before" : "after");
  shards_text(text, side == 0 ? p->tensor->src : p->tensor->dst);
  fprintf(file, "%s</text>\n", text);
  for (size_t i = 0; i < of->n; i++) {
    const int n = shards_ranks(ranks, sizeof ranks, &of->at[i]);

    for (size_t b = 0; b < of->at[i].n_boxes; b++) {
      int x0, x1, y0, y1;
      const int64_t *box = of->at[i].bounds + 2 * (size_t)of->n_dims * b;

      span(of, box, p->across, SVG_WIDTH, &x0, &x1);
      span(of, box, p->down, SVG_HEIGHT, &y0, &y1);
      if (x1 <= x0 || y1 <= y0) continue;
      fprintf(file,
              "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"hsl(%d 45%% 45%%)\"/>",
              left + x0, 22 + y0, x1 - x0, y1 - y0, (int)(210 + 137.508 * (double)i) % 360);
      if (y1 - y0 > 13 && x1 - x0 > 7 * n + 6)
        fprintf(file, "<text class=\"r\" x=\"%d\" y=\"%d\">%s</text>", left + (x0 + x1) / 2,
                26 + (y0 + y1) / 2, ranks);
      fputc('\n', file);
    }
  }
}

int plan_svg(const plan_whole *whole, const plan_args *args)
{
  picture p;
  output out;
  const int status = picture_make(&p, whole, args);

  if (status != 0) return status;
  if (!output_begin(&out, args->svg)) {
    picture_free(&p);
    return args_failed("%.300s cannot be written: %s", args->svg, strerror(errno));
  }
  fprintf(out.file,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\">\n"
          "<style>text{font:12px sans-serif}.t{fill:#445}.r{fill:#fff;text-anchor:middle}"
          "rect{stroke:#fff}@media(prefers-color-scheme:dark){.t{fill:#cde}rect{stroke:#14171c}}"
          "</style>\n",
          2 * SVG_WIDTH + SVG_GAP, SVG_HEIGHT + 24, 2 * SVG_WIDTH + SVG_GAP);
  svg_side(out.file, &p, 0);
  svg_side(out.file, &p, 1);
  fprintf(out.file, "</svg>\n");
  picture_free(&p);
  return output_end(&out, true)
             ? EXIT_SUCCESS
             : args_failed("%.300s cannot be written: %s", args->svg, strerror(errno));
}
