/* Two dims of a tensor are drawn: the first two that are cut, else the last. Down is the lower.
 * What a picture leaves out it says. */
#include "draw.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "areas.h"
#include "args.h"
#include "output.h"
#include "text.h"

enum { TEXT_WIDTH = 72, TEXT_HEIGHT = 16, SVG_WIDTH = 440, SVG_HEIGHT = 260, SVG_GAP = 40 };
enum { SVG_TOP = 22, SVG_NOTES = 20, NOTE_BYTES = 128 };

typedef struct picture {
  const xfer_tensor *tensor;
  shards sides[2];
  areas areas[2];
  int dims[2]; /* down and across; -1: none */
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
  int down = -1, across = -1;

  for (int d = 0; d < n && across < 0; d++) {
    if (!is_cut(p, d)) continue;
    if (down < 0)
      down = d;
    else
      across = d;
  }
  if (down < 0 && n > 0) down = n - 1;
  for (int d = n - 1; d >= 0 && across < 0; d--)
    if (d != down) across = d;
  p->dims[0] = across >= 0 && across < down ? across : down;
  p->dims[1] = across >= 0 && across < down ? down : across;
}

static const xfer_tensor *find_tensor(const plan_whole *whole, const char *name)
{
  for (size_t i = 0; i < whole->n_tensors && name != NULL; i++)
    if (strcmp(whole->tensors[i].name, name) == 0) return &whole->tensors[i];
  return whole->n_tensors == 1 && name == NULL ? whole->tensors : NULL;
}

static void picture_free(picture *p)
{
  for (int s = 0; s < 2; s++) {
    shards_free(&p->sides[s]);
    areas_free(&p->areas[s]);
  }
}

static bool find_areas(picture *p)
{
  choose_dims(p);
  return areas_find(&p->areas[0], &p->sides[0], p->dims) &&
         areas_find(&p->areas[1], &p->sides[1], p->dims);
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
      shards_find(&p->sides[1], p->tensor->dst, whole->n_ranks) && find_areas(p))
    return 0;
  picture_free(p);
  return args_failed("no memory for the picture");
}

typedef struct rect {
  int x0, x1, y0, y1;
} rect;

static int place_of(int64_t index, int64_t n, int size)
{
  return (int)((double)index / (double)n * size + 0.5);
}

/* The place of an area on a picture of that size. */
static rect rect_of(const areas *of, const area *one, int width, int height)
{
  return (rect){
      .x0 = place_of(one->lo[1], of->shape[1], width),
      .x1 = place_of(one->hi[1], of->shape[1], width),
      .y0 = place_of(one->lo[0], of->shape[0], height),
      .y1 = place_of(one->hi[0], of->shape[0], height),
  };
}

/* Writes what the picture of a side does not show; `left_out` areas have no room for the numbers of
 * their ranks. "": it shows all. */
static void note(char text[NOTE_BYTES], const picture *p, int side, size_t left_out)
{
  const int n_dims = p->sides[side].n_dims;
  size_t n = 0;

  text[0] = '\0';
  if (p->areas[side].n == 0) {
    snprintf(text, NOTE_BYTES, "no elements");
    return;
  }
  if (n_dims > 2)
    n = (size_t)snprintf(text, NOTE_BYTES, "dims %d (down) and %d of %d", p->dims[0], p->dims[1],
                         n_dims);
  if (left_out > 0)
    snprintf(text + n, NOTE_BYTES - n, "%sthe ranks of %zu of %zu parts do not fit",
             n > 0 ? "; " : "", left_out, p->areas[side].n);
}

/* ---- terminal ---- */

typedef char canvas[TEXT_HEIGHT + 1][TEXT_WIDTH + 2];

static void draw_box(canvas rows, rect r)
{
  if (r.x1 <= r.x0 || r.y1 <= r.y0) return;
  for (int y = r.y0; y <= r.y1; y++)
    for (int x = r.x0; x <= r.x1; x++) {
      const bool across = y == r.y0 || y == r.y1;
      const bool down = x == r.x0 || x == r.x1;

      if (across || down) rows[y][x] = across && down ? '+' : across ? '-' : '|';
    }
}

/* False: there is no room for it. */
static bool put_label(canvas rows, rect r, const shard *who)
{
  char text[TEXT_WIDTH + 1];
  const int n = shards_ranks(text, sizeof text, who);

  if (r.y1 - r.y0 < 2 || n > r.x1 - r.x0 - 1) return false;
  char *at = rows[(r.y0 + r.y1) / 2] + (r.x0 + r.x1 - n + 1) / 2;
  for (int i = 0; i < n; i++)
    if (at[i] != ' ') return false;
  memcpy(at, text, (size_t)n);
  return true;
}

static void print_side(const picture *p, int side)
{
  canvas rows;
  char text[NOTE_BYTES];
  const areas *of = &p->areas[side];
  size_t left_out = 0;

  memset(rows, ' ', sizeof rows);
  for (size_t i = 0; i < of->n; i++)
    draw_box(rows, rect_of(of, &of->at[i], TEXT_WIDTH, TEXT_HEIGHT));
  for (size_t i = 0; i < of->n; i++) /* where no border crosses them */
    left_out += !put_label(rows, rect_of(of, &of->at[i], TEXT_WIDTH, TEXT_HEIGHT), &of->at[i].who);
  for (int y = 0; y <= TEXT_HEIGHT && of->n > 0; y++) {
    rows[y][TEXT_WIDTH + 1] = '\0';
    printf("%s\n", rows[y]);
  }
  note(text, p, side, left_out);
  if (text[0] != '\0') printf("%s\n", text);
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

/* The label of an area, or "": it has no room. */
static void svg_label(char text[64], rect r, const shard *who)
{
  const int n = shards_ranks(text, 64, who);

  if (n >= 64 || r.y1 - r.y0 <= 13 || r.x1 - r.x0 <= 7 * n + 6) text[0] = '\0';
}

static size_t svg_left_out(const areas *of)
{
  char label[64];
  size_t n = 0;

  for (size_t i = 0; i < of->n; i++) {
    svg_label(label, rect_of(of, &of->at[i], SVG_WIDTH, SVG_HEIGHT), &of->at[i].who);
    n += label[0] == '\0';
  }
  return n;
}

static void svg_area(FILE *file, rect r, int left, const area *one)
{
  char label[64];

  if (r.x1 <= r.x0 || r.y1 <= r.y0) return;
  fprintf(file, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"hsl(%d 45%% 45%%)\"/>",
          left + r.x0, SVG_TOP + r.y0, r.x1 - r.x0, r.y1 - r.y0,
          (int)(210 + 137.508 * (double)one->part) % 360);
  svg_label(label, r, &one->who);
  if (label[0] != '\0')
    fprintf(file, "<text class=\"r\" x=\"%d\" y=\"%d\">%s</text>", left + (r.x0 + r.x1) / 2,
            SVG_TOP + 4 + (r.y0 + r.y1) / 2, label);
  fputc('\n', file);
}

static void svg_side(FILE *file, const picture *p, int side, const char *left_out)
{
  const areas *of = &p->areas[side];
  const int left = side * (SVG_WIDTH + SVG_GAP);
  char text[SHARDS_TEXT_BYTES];

  fprintf(file, "<text class=\"t\" x=\"%d\" y=\"14\">%s: ", left, side == 0 ? "before" : "after");
  shards_text(text, side == 0 ? p->tensor->src : p->tensor->dst);
  fprintf(file, "%s</text>\n", text);
  for (size_t i = 0; i < of->n; i++)
    svg_area(file, rect_of(of, &of->at[i], SVG_WIDTH, SVG_HEIGHT), left, &of->at[i]);
  if (left_out[0] != '\0')
    fprintf(file, "<text class=\"t\" x=\"%d\" y=\"%d\">%s</text>\n", left,
            SVG_TOP + SVG_HEIGHT + SVG_NOTES - 4, left_out);
}

static void svg_all(FILE *file, const picture *p)
{
  char notes[2][NOTE_BYTES];
  int height = SVG_TOP + SVG_HEIGHT + 2;

  for (int s = 0; s < 2; s++)
    note(notes[s], p, s, svg_left_out(&p->areas[s]));
  if (notes[0][0] != '\0' || notes[1][0] != '\0') height += SVG_NOTES;
  fprintf(file,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\">\n"
          "<style>text{font:12px sans-serif}.t{fill:#445}.r{fill:#fff;text-anchor:middle}"
          "rect{stroke:#fff}@media(prefers-color-scheme:dark){.t{fill:#cde}rect{stroke:#14171c}}"
          "</style>\n",
          2 * SVG_WIDTH + SVG_GAP, height, 2 * SVG_WIDTH + SVG_GAP);
  svg_side(file, p, 0, notes[0]);
  svg_side(file, p, 1, notes[1]);
  fprintf(file, "</svg>\n");
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
  svg_all(out.file, &p);
  picture_free(&p);
  return output_end(&out, true)
             ? EXIT_SUCCESS
             : args_failed("%.300s cannot be written: %s", args->svg, strerror(errno));
}
