/*
 * A plan as text: a summary for people, or all of it as JSON.
 */
#include <inttypes.h>

#include "dtype.h"
#include "error.h"
#include "moves.h"
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
    FIGURE(n_tensors),         FIGURE(n_classes),     FIGURE(n_moves),
    FIGURE(payload_bytes),     FIGURE(in_bytes),      FIGURE(self_bytes),
    FIGURE(zero_bytes),        FIGURE(wire_bytes),    FIGURE(out_bytes),
    FIGURE(n_send_peers),      FIGURE(n_recv_peers),  FIGURE(broadcast_tensors),
    FIGURE(direct_bytes),      FIGURE(packed_bytes),  FIGURE(n_rounds),
    FIGURE(staging_bytes),     FIGURE(window_bytes),  FIGURE(bound_bytes),
    FIGURE(committed_version), FIGURE(torn),          FIGURE(converted_tensors),
    FIGURE(crossed_bytes),     FIGURE(relayed_bytes), FIGURE(replicated_tensors),
};
enum { N_FIGURES = sizeof figures / sizeof *figures, MOST_PEERS = 10000 };

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

/* A list of a plan's moves, or of its relay's. */
typedef struct listing {
  const xfi_move_list *list;
  const xfi_moves *of;
  bool send;
} listing;
enum { MOST_LISTINGS = 5 };

/* The lists in the order in which they are printed. Returns their number. */
static int make_listings(listing lists[MOST_LISTINGS], const xfi_moves *moves)
{
  const xfi_moves *relay = moves->relay;

  lists[0] = (listing){&moves->selfs, moves, false};
  lists[1] = (listing){&moves->recvs, moves, false};
  lists[2] = (listing){&moves->sends, moves, true};
  if (relay == NULL) return 3;
  lists[3] = (listing){&relay->recvs, relay, false};
  lists[4] = (listing){&relay->sends, relay, true};
  return MOST_LISTINGS;
}

static xfer_move describe(const xfi_moves *moves, const listing *from, const xfi_move *m)
{
  const xfi_class *cls = xfi_moves_class(from->of, m->tensor);
  const bool send = from->send;
  xfer_move move = {.tensor = m->tensor,
                    .src_rank = send ? moves->rank : m->peer,
                    .dst_rank = send ? m->peer : moves->rank,
                    .n_dims = cls->src->n_dims,
                    .broadcast = xfi_moves_class(moves, m->tensor)->broadcast,
                    .relayed = from->of != moves};
  xfi_box box;

  xfi_move_box(&box, cls, send ? &cls->sends : &cls->recvs, m);
  move.n_bytes = (uint64_t)(xfi_box_elems(box.length, move.n_dims) *
                            xfi_moves_class(moves, m->tensor)->wire_bytes);
  for (int d = 0; d < move.n_dims; d++) {
    move.lo[d] = box.lo[d];
    move.hi[d] = box.lo[d] + box.length[d];
    move.src_local[d] = box.src_local[d];
    move.dst_local[d] = box.dst_local[d];
  }
  return move;
}

xfer_status xfi_moves_get(xfer_move *move, const xfi_moves *moves, size_t i)
{
  listing lists[MOST_LISTINGS];
  const int n = make_listings(lists, moves);
  size_t at = i;

  for (int l = 0; l < n; at -= lists[l++].list->n_moves) {
    if (at >= lists[l].list->n_moves) continue;
    *move = describe(moves, &lists[l], &lists[l].list->moves[at]);
    return XFER_OK;
  }
  return XFI_ERROR(XFER_ERR_ARG, "move %zu is past the last one; there are %zu", i, i - at);
}

static void json_move(xfi_text *text, const xfer_move *m)
{
  int64_t length[XFER_MAX_DIMS];

  for (int d = 0; d < m->n_dims; d++)
    length[d] = m->hi[d] - m->lo[d];
  xfi_text_printf(text, "{\"tensor\":%" PRIu64 ",\"src\":%d,\"dst\":%d,\"lo\":", m->tensor,
                  m->src_rank, m->dst_rank);
  print_ints(text, m->lo, m->n_dims);
  xfi_text_printf(text, ",\"length\":");
  print_ints(text, length, m->n_dims);
  xfi_text_printf(text, ",\"src_local\":");
  print_ints(text, m->src_local, m->n_dims);
  xfi_text_printf(text, ",\"dst_local\":");
  print_ints(text, m->dst_local, m->n_dims);
  xfi_text_printf(text, ",\"broadcast\":%s%s}", m->broadcast != 0 ? "true" : "false",
                  m->relayed != 0 ? ",\"relayed\":true" : "");
}

static void json_moves(xfi_text *text, const xfi_moves *moves)
{
  listing lists[MOST_LISTINGS];
  const int n = make_listings(lists, moves);
  const char *comma = "";

  xfi_text_printf(text, ",\n\"moves\":[");
  for (int l = 0; l < n; l++)
    for (size_t i = 0; i < lists[l].list->n_moves; i++, comma = ",") {
      const xfer_move move = describe(moves, &lists[l], &lists[l].list->moves[i]);

      xfi_text_printf(text, "%s\n", comma);
      json_move(text, &move);
    }
  xfi_text_printf(text, "]");
}

static void json_conversion(xfi_text *text, const xfi_tensor *tensor)
{
  char words[64];

  if (tensor->conversion.kind == XFER_CONVERSION_NONE) return;
  xfi_conversion_format(words, sizeof words, &tensor->conversion);
  xfi_text_printf(text, ",\"conversion\":\"%s\",\"to\":\"%s\"", words,
                  xfi_dtype_name((int)tensor->dst->dtype));
}

static void json_tensors(xfi_text *text, const xfi_moves *moves)
{
  xfi_text_printf(text, ",\n\"tensors\":[");
  for (size_t t = 0; t < moves->n_tensors; t++) {
    const xfer_layout *l = moves->tensors[t].src;
    int64_t shape[XFER_MAX_DIMS];

    for (int d = 0; d < l->n_dims; d++)
      shape[d] = l->dims[d].size;
    xfi_text_printf(text, "%s\n{\"name\":", t > 0 ? "," : "");
    xfi_text_json(text, moves->tensors[t].name);
    xfi_text_printf(text, ",\"dtype\":\"%s\",\"shape\":", xfi_dtype_name((int)l->dtype));
    print_ints(text, shape, l->n_dims);
    json_conversion(text, &moves->tensors[t]);
    xfi_text_printf(text, "}");
  }
  xfi_text_printf(text, "]");
}

/* A plan's peers and the lane to each. */
typedef struct lanes {
  xfi_lane_fn of;
  const void *context;
} lanes;

static void json_peer(xfi_text *text, const xfi_peer *peer, bool send, bool relay, const char *lane)
{
  xfi_text_printf(text, "\n{\"%s\":%d,\"bytes\":%" PRIu64 ",%s\"lane\":", send ? "to" : "from",
                  peer->rank, peer->n_bytes, relay ? "\"relayed\":true," : "");
  if (lane == NULL)
    xfi_text_printf(text, "null");
  else
    xfi_text_json(text, lane);
  xfi_text_printf(text, "}");
}

static void people_peer(xfi_text *text, const xfi_peer *peer, bool send, bool relay,
                        const char *lane)
{
  xfi_text_printf(text, "  %s rank %s%-6d %10zu moves ", send ? "to" : "from", send ? "  " : "",
                  peer->rank, peer->n);
  if (peer->n_bytes == 0)
    xfi_text_printf(text, "%22s", "by broadcast");
  else
    xfi_text_printf(text, "%16" PRIu64 " bytes", peer->n_bytes);
  xfi_text_printf(text, "%s%s%s\n", relay ? ", relayed" : "", lane == NULL ? "" : ", ",
                  lane == NULL ? "" : lane);
}

/* Prints the peers of the plan, then those of its relay; for people at most MOST_PEERS of each
 * list. */
static void print_peers(xfi_text *text, const xfi_moves *moves, const lanes *w, bool json)
{
  listing lists[MOST_LISTINGS];
  const int n = make_listings(lists, moves);
  const char *comma = "";

  for (int l = 1; l < n; l++) {
    const size_t n_peers = lists[l].list->n_peers;

    for (size_t p = 0; p < n_peers && (json || p < MOST_PEERS); p++, comma = ",") {
      const xfi_peer *peer = &lists[l].list->peers[p];
      const bool relay = lists[l].of != moves;
      const char *lane = w->of(w->context, relay, lists[l].send, p);

      if (json) xfi_text_printf(text, "%s", comma);
      (json ? json_peer : people_peer)(text, peer, lists[l].send, relay, lane);
    }
    if (!json && n_peers > MOST_PEERS)
      xfi_text_printf(text, "  %s %zu more ranks\n", lists[l].send ? "to" : "from",
                      n_peers - MOST_PEERS);
  }
}

xfer_status xfi_moves_print(const xfi_moves *moves, const xfer_plan_report_data *report,
                            xfi_lane_fn lane, const void *context, char **text, bool json)
{
  const lanes w = {lane, context};
  xfer_status st;
  xfi_text out = {0};
  char *made;

  if (json) {
    xfi_text_printf(&out, "{\"rank\":%d,\"n_ranks\":%d", moves->rank, moves->n_ranks);
    for (int i = 0; i < N_FIGURES; i++)
      xfi_text_printf(&out, ",\n\"%s\":%" PRIu64, figures[i].name, figure_value(report, i));
    xfi_text_printf(&out, ",\n\"peers\":[");
    print_peers(&out, moves, &w, true);
    xfi_text_printf(&out, "]");
    json_tensors(&out, moves);
    json_moves(&out, moves);
    xfi_text_printf(&out, "}\n");
  } else {
    xfi_text_printf(&out, "plan of rank %d of %d\n", moves->rank, moves->n_ranks);
    for (int i = 0; i < N_FIGURES; i++)
      xfi_text_printf(&out, "  %-18s %" PRIu64 "\n", figures[i].name, figure_value(report, i));
    print_peers(&out, moves, &w, false);
  }
  st = xfi_text_end(&out, &made);
  if (st == XFER_OK) *text = made;
  return st;
}
