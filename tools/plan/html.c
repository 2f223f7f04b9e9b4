/*
 * The page is page.html with the plan as JSON inside. Its size is kept in bounds: above MAX_PAIRS
 * ranks are joined to blocks, layouts are written once each, and of a part at most MAX_BOXES boxes.
 */
#include "html.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "bytes.h"
#include "interrupt.h"
#include "output.h"
#include "shards.h"
#include "text.h"
#include "traffic.h"

extern const char page_html[];

enum { MAX_PAIRS = 70000, MAX_BOXES = 32, RANKS_BYTES = 400 };

/* ---- figures of ranks ---- */

#define PRINT_FIGURES(file, key, figure)                                                           \
  do {                                                                                             \
    fprintf(file, ",\"%s\":[", key);                                                               \
    for (int r = 0; r < n_ranks; r++)                                                              \
      fprintf(file, "%s%" PRIu64, r > 0 ? "," : "", (uint64_t)(figure));                           \
    fputc(']', file);                                                                              \
  } while (0)

static void print_ranks(FILE *file, const plan_traffic *traffic, int n_ranks)
{
  const xfer_plan_report_data *ranks = traffic->ranks;

  PRINT_FIGURES(file, "wire", ranks[r].wire_bytes);
  PRINT_FIGURES(file, "self", ranks[r].self_bytes);
  PRINT_FIGURES(file, "out", ranks[r].out_bytes);
  PRINT_FIGURES(file, "from", ranks[r].n_recv_peers);
  PRINT_FIGURES(file, "to", ranks[r].n_send_peers);
  PRINT_FIGURES(file, "ns", 1e9 * traffic->seconds[r]);
}

/* ---- pairs ---- */

/* Joins ranks to blocks of `unit`; pairs of equal blocks become one. */
static bool join_pairs(plan_traffic *t, int n_ranks, int unit)
{
  const size_t n = (size_t)((n_ranks + unit - 1) / unit);
  xfer_traffic *sums = calloc(n * n, sizeof *sums);
  size_t n_pairs = 0;

  if (sums == NULL) return false;
  for (size_t i = 0; i < t->n_pairs; i++) {
    const xfer_traffic *p = &t->pairs[i];
    xfer_traffic *to = &sums[(size_t)(p->dst_rank / unit) * n + (size_t)(p->src_rank / unit)];

    to->n_bytes += p->n_bytes;
    to->n_moves += p->n_moves;
    to->broadcast_bytes += p->broadcast_bytes;
  }
  for (size_t i = 0; i < n * n; i++) {
    if (sums[i].n_moves == 0) continue;
    sums[i].src_rank = (int32_t)(i % n);
    sums[i].dst_rank = (int32_t)(i / n);
    t->pairs[n_pairs++] = sums[i];
  }
  t->n_pairs = n_pairs;
  free(sums);
  return true;
}

/* The smallest power of two that leaves few enough pairs for a page. */
static int unit_of(const plan_traffic *t, int n_ranks)
{
  int unit = 1;

  if (t->n_pairs <= MAX_PAIRS) return 1;
  while ((int64_t)(n_ranks / unit) * (n_ranks / unit) > MAX_PAIRS)
    unit *= 2;
  return unit;
}

#define PRINT_PAIRS(file, key, format, field)                                                      \
  do {                                                                                             \
    fprintf(file, ",\"%s\":[", key);                                                               \
    for (size_t i = 0; i < t->n_pairs; i++)                                                        \
      fprintf(file, "%s%" format, i > 0 ? "," : "", t->pairs[i].field);                            \
    fputc(']', file);                                                                              \
  } while (0)

static bool print_pairs(FILE *file, plan_traffic *t, int n_ranks)
{
  const int unit = unit_of(t, n_ranks);

  if (unit > 1 && !join_pairs(t, n_ranks, unit)) return false;
  fprintf(file, ",\"pairs\":{\"unit\":%d", unit);
  PRINT_PAIRS(file, "src", PRId32, src_rank);
  PRINT_PAIRS(file, "dst", PRId32, dst_rank);
  PRINT_PAIRS(file, "bytes", PRIu64, n_bytes);
  PRINT_PAIRS(file, "moves", PRIu64, n_moves);
  PRINT_PAIRS(file, "cast", PRIu64, broadcast_bytes);
  fputc('}', file);
  return true;
}

/* ---- tensors and layouts ---- */

/* Layouts by their addresses: those of a model are shared by its tensors. */
typedef struct layout_list {
  const xfer_layout **at;
  size_t n;
} layout_list;

static size_t number_of(layout_list *list, const xfer_layout *layout)
{
  for (size_t i = list->n; i-- > 0;)
    if (list->at[i] == layout) return i;
  list->at[list->n] = layout;
  return list->n++;
}

static void print_box(FILE *file, const int64_t *bounds, int n_dims)
{
  fputc('[', file);
  for (int d = 0; d < 2 * n_dims; d++)
    fprintf(file, "%s%" PRId64, d > 0 ? "," : "", bounds[d]);
  fputc(']', file);
}

/* {"text":..,"parts":[[ranks,[box,..],n_boxes],..]} */
static bool print_layout(FILE *file, const xfer_layout *layout, int n_ranks)
{
  char ranks[RANKS_BYTES], text[SHARDS_TEXT_BYTES];
  shards parts;

  if (!shards_find(&parts, layout, n_ranks)) return false;
  shards_text(text, layout);
  fprintf(file, "{\"text\":");
  text_json(file, text);
  fprintf(file, ",\"parts\":[");
  for (size_t p = 0; p < parts.n; p++) {
    const shard *part = &parts.at[p];

    if (shards_ranks(ranks, sizeof ranks, part) >= RANKS_BYTES)
      memcpy(ranks + RANKS_BYTES - 4, "...", 4);
    fprintf(file, "%s[\"%s\",[", p > 0 ? "," : "", ranks);
    for (size_t b = 0; b < part->n_boxes && b < MAX_BOXES; b++) {
      fputs(b > 0 ? "," : "", file);
      print_box(file, part->bounds + 2 * (size_t)parts.n_dims * b, parts.n_dims);
    }
    fprintf(file, "],%zu]", part->n_boxes);
  }
  fprintf(file, "]}");
  shards_free(&parts);
  return true;
}

static void print_tensor(FILE *file, const xfer_tensor *t, size_t src, size_t dst)
{
  int64_t shape[XFER_MAX_DIMS];
  const int n_dims = xfer_layout_shape(t->src, shape);
  const size_t elem_bytes = xfer_dtype_size(xfer_layout_dtype(t->src));

  fputc('[', file);
  text_json(file, t->name);
  fprintf(file, ",\"%s\",[", xfer_dtype_name(xfer_layout_dtype(t->src)));
  for (int d = 0; d < n_dims; d++)
    fprintf(file, "%s%" PRId64, d > 0 ? "," : "", shape[d]);
  fprintf(file, "],%zu,%zu,%" PRIu64 "]", src, dst, bytes_of(shape, n_dims, elem_bytes));
}

static bool print_tensors(FILE *file, const plan_whole *whole)
{
  layout_list list = {calloc(2 * whole->n_tensors + 1, sizeof *list.at), 0};
  bool ok = list.at != NULL;

  fprintf(file, ",\"tensors\":[");
  for (size_t i = 0; i < whole->n_tensors && ok; i++) {
    const xfer_tensor *t = &whole->tensors[i];
    const size_t src = number_of(&list, t->src);

    fputs(i > 0 ? "," : "", file);
    print_tensor(file, t, src, number_of(&list, t->dst));
  }
  fprintf(file, "],\"layouts\":[");
  for (size_t i = 0; i < list.n && ok && !interrupt_came(); i++) {
    fputs(i > 0 ? "," : "", file);
    ok = print_layout(file, list.at[i], whole->n_ranks);
  }
  fputc(']', file);
  free(list.at);
  return ok;
}

/* ---- the page ---- */

static bool print_page(FILE *file, const plan_whole *whole, const plan_args *args,
                       plan_traffic *traffic)
{
  const char *place = strstr(page_html, "@DATA@");
  bool ok;

  fwrite(page_html, 1, (size_t)(place - page_html), file);
  fprintf(file, "{\"title\":");
  text_json(file, whole->title);
  fprintf(file, ",\"sides\":\"");
  if (args->job.model != NULL) {
    text_json_chars(file, args->job.train, strlen(args->job.train));
    fprintf(file, " -\\u003e ");
    text_json_chars(file, args->job.gen, strlen(args->job.gen));
  }
  fprintf(file, "\",\"version\":\"%s\",\"ranks\":%d,\"names\":%" PRIu64 ",\"payload\":%" PRIu64,
          xfer_version(), whole->n_ranks, whole->names, whole->payload_bytes);
  fprintf(file,
          ",\"machine\":{\"link\":%" PRId64 ",\"nic\":%" PRId64 ",\"domain\":%" PRId64
          ",\"guessed\":%s}",
          whole->machine->link_gbs, whole->machine->nic_gbs, whole->machine->domain,
          traffic->guessed ? "true" : "false");
  print_ranks(file, traffic, whole->n_ranks);
  ok = print_pairs(file, traffic, whole->n_ranks) && print_tensors(file, whole);
  fputc('}', file);
  fputs(place + strlen("@DATA@"), file);
  return ok;
}

int plan_html(const plan_whole *whole, const plan_args *args)
{
  plan_traffic traffic = {.ranks = NULL};
  output out;
  bool ok;

  if (!plan_traffic_find(&traffic, whole, true)) return EXIT_FAILURE;
  if (!output_begin(&out, args->html)) {
    plan_traffic_free(&traffic);
    return args_failed("%.300s cannot be written: %s", args->html, strerror(errno));
  }
  ok = print_page(out.file, whole, args, &traffic);
  plan_traffic_free(&traffic);
  if (output_end(&out, ok && !interrupt_came())) return EXIT_SUCCESS;
  if (interrupt_came()) return args_failed("interrupted");
  return ok ? args_failed("%.300s cannot be written: %s", args->html, strerror(errno))
            : args_failed("no memory for the page");
}
