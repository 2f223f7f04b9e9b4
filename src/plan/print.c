/*
 * A plan as text: a summary for people, or all of it as JSON.
 */
#include <inttypes.h>

#include "dtype.h"
#include "error.h"
#include "plan.h"
#include "text.h"

/* The figures of a report, by name and place. Printed in this order. */
typedef struct figure {
  const char *name;
  size_t offset;
} figure;

#define FIGURE(field)                                                                              \
  {                                                                                                \
#field, offsetof(xfer_plan_report_data, field)                                                 \
  }

static const figure figures[] = {
    FIGURE(n_tensors),         FIGURE(n_classes),         FIGURE(n_moves),
    FIGURE(payload_bytes),     FIGURE(in_bytes),          FIGURE(self_bytes),
    FIGURE(zero_bytes),        FIGURE(wire_bytes),        FIGURE(out_bytes),
    FIGURE(n_send_peers),      FIGURE(n_recv_peers),      FIGURE(broadcast_tensors),
    FIGURE(direct_bytes),      FIGURE(packed_bytes),      FIGURE(n_rounds),
    FIGURE(staging_bytes),     FIGURE(window_bytes),      FIGURE(bound_bytes),
    FIGURE(predicted_ns),      FIGURE(committed_version), FIGURE(torn),
    FIGURE(converted_tensors),
};
enum { N_FIGURES = sizeof figures / sizeof *figures };

static uint64_t figure_value(const xfer_plan_report_data *report, int i)
{
  return *(const uint64_t *)(const void *)((const char *)report + figures[i].offset);
}

static void print_ints(xfi_text *text, const int64_t *at, int n)
{
  xfi_text_printf(text, "[");
  for (int i = 0; i < n; i++)
    xfi_text_printf(text, "%s%" PRId64, i > 0 ? "," : "", at[i]);
  xfi_text_printf(text, "]");
}

static void json_move(xfi_text *text, const xfi_plan *plan, const xfi_move *move, bool send)
{
  const xfi_class *cls = xfi_plan_class(plan, move->tensor);
  const int n_dims = cls->src->n_dims;
  xfi_box box;

  xfi_move_box(&box, cls, send ? &cls->sends : &cls->recvs, move);
  xfi_text_printf(text, "{\"tensor\":%u,\"src\":%d,\"dst\":%d,\"lo\":", move->tensor,
                  send ? plan->rank : move->peer, send ? move->peer : plan->rank);
  print_ints(text, box.lo, n_dims);
  xfi_text_printf(text, ",\"length\":");
  print_ints(text, box.length, n_dims);
  xfi_text_printf(text, ",\"src_local\":");
  print_ints(text, box.src_local, n_dims);
  xfi_text_printf(text, ",\"dst_local\":");
  print_ints(text, box.dst_local, n_dims);
  xfi_text_printf(text, ",\"broadcast\":%s}", cls->broadcast ? "true" : "false");
}

static void json_moves(xfi_text *text, const xfi_plan *plan)
{
  const xfi_move_list *lists[3] = {&plan->selfs, &plan->recvs, &plan->sends};
  const char *comma = "";

  xfi_text_printf(text, ",\n\"moves\":[");
  for (int l = 0; l < 3; l++)
    for (size_t i = 0; i < lists[l]->n_moves; i++, comma = ",") {
      xfi_text_printf(text, "%s\n", comma);
      json_move(text, plan, &lists[l]->moves[i], l == 2);
    }
  xfi_text_printf(text, "]");
}

static void json_conversion(xfi_text *text, const xfi_tensor *tensor)
{
  char words[64];

  if (tensor->conversion == 0) return;
  xfi_conversion_format(words, sizeof words, tensor->conversion);
  xfi_text_printf(text, ",\"conversion\":\"%s\",\"to\":\"%s\"", words,
                  xfi_dtype_name((int)tensor->dst->dtype));
}

static void json_tensors(xfi_text *text, const xfi_plan *plan)
{
  xfi_text_printf(text, ",\n\"tensors\":[");
  for (size_t t = 0; t < plan->n_tensors; t++) {
    const xfer_layout *l = plan->tensors[t].src;
    int64_t shape[XFER_MAX_DIMS];

    for (int d = 0; d < l->n_dims; d++)
      shape[d] = l->dims[d].size;
    xfi_text_printf(text, "%s\n{\"name\":", t > 0 ? "," : "");
    xfi_text_json(text, plan->tensors[t].name);
    xfi_text_printf(text, ",\"dtype\":\"%s\",\"shape\":", xfi_dtype_name((int)l->dtype));
    print_ints(text, shape, l->n_dims);
    json_conversion(text, &plan->tensors[t]);
    xfi_text_printf(text, "}");
  }
  xfi_text_printf(text, "]");
}

/* A plan's peers and the way to each. */
typedef struct ways {
  xfi_way_fn of;
  const void *context;
} ways;

static void json_peers(xfi_text *text, const xfi_plan *plan, const ways *w)
{
  const char *comma = "";

  xfi_text_printf(text, ",\n\"peers\":[");
  for (int send = 0; send < 2; send++) {
    const xfi_move_list *list = send ? &plan->sends : &plan->recvs;

    for (size_t p = 0; p < list->n_peers; p++, comma = ",") {
      const char *way = w->of(w->context, send != 0, p);

      xfi_text_printf(text, "%s\n{\"%s\":%d,\"bytes\":%" PRIu64 ",\"way\":", comma,
                      send ? "to" : "from", list->peers[p].rank, list->peers[p].n_bytes);
      if (way == NULL)
        xfi_text_printf(text, "null}");
      else
        xfi_text_json(text, way);
      if (way != NULL) xfi_text_printf(text, "}");
    }
  }
  xfi_text_printf(text, "]");
}

static void people_peers(xfi_text *text, const xfi_plan *plan, const ways *w, bool send)
{
  const xfi_move_list *list = send ? &plan->sends : &plan->recvs;

  for (size_t p = 0; p < list->n_peers; p++) {
    const char *way = w->of(w->context, send, p);

    xfi_text_printf(text, "  %s rank %s%-6d %10zu moves %16" PRIu64 " bytes%s%s\n",
                    send ? "to" : "from", send ? "  " : "", list->peers[p].rank, list->peers[p].n,
                    list->peers[p].n_bytes, way == NULL ? "" : ", ", way == NULL ? "" : way);
  }
}

static void people_summary(xfi_text *text, const xfi_plan *plan,
                           const xfer_plan_report_data *report, const ways *w)
{
  xfi_text_printf(text, "plan of rank %d of %d\n", plan->rank, plan->n_ranks);
  for (int i = 0; i < N_FIGURES; i++)
    xfi_text_printf(text, "  %-18s %" PRIu64 "\n", figures[i].name, figure_value(report, i));
  people_peers(text, plan, w, false);
  people_peers(text, plan, w, true);
}

xfer_status xfi_plan_print(const xfi_plan *plan, const xfer_plan_report_data *report,
                           xfi_way_fn way, const void *context, char **text, bool json)
{
  const ways w = {way, context};
  xfer_status st = XFER_OK;
  xfi_text out = {0};

  if (json) {
    xfi_text_printf(&out, "{\"rank\":%d,\"n_ranks\":%d", plan->rank, plan->n_ranks);
    for (int i = 0; i < N_FIGURES; i++)
      xfi_text_printf(&out, ",\n\"%s\":%" PRIu64, figures[i].name, figure_value(report, i));
    json_peers(&out, plan, &w);
    json_tensors(&out, plan);
    json_moves(&out, plan);
    xfi_text_printf(&out, "}\n");
  } else {
    people_summary(&out, plan, report, &w);
  }
  XFI_TRY(xfi_text_status(&out));
  *text = xfi_text_take(&out);
done:
  xfi_text_free(&out);
  return st;
}
