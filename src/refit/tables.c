/* Cuts that no rule of a mesh axis says, as tables of runs. */
#include "side.h"

#include "alloc.h"
#include "error.h"
#include "vec.h"

#include <string.h>

/* ---- making a table ---- */

xfer_status xfi_table_run(xfi_table_maker *maker, int64_t global, int64_t length, int64_t local)
{
  xfer_status st = XFER_OK;

  if (length == 0) return XFER_OK;
  XFI_TRY(xfi_vec_reserve(&maker->runs, &maker->runs_cap, maker->n_runs + 1, sizeof *maker->runs));
  maker->runs[maker->n_runs++] = (xfer_run){global, length, local};
done:
  return st;
}

xfer_status xfi_table_coord(xfi_table_maker *maker, int64_t local_length)
{
  size_t n = maker->n_coords;
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_vec_reserve(&maker->first, &maker->first_cap, n + 2, sizeof *maker->first));
  XFI_TRY(xfi_vec_reserve(&maker->lengths, &maker->lengths_cap, n + 1, sizeof *maker->lengths));
  maker->lengths[n] = local_length;
  maker->first[n + 1] = (int64_t)maker->n_runs;
  maker->n_coords = n + 1;
done:
  return st;
}

xfer_status xfi_table_place(xfi_table_maker *maker, xfi_spread *spread, int axis, int dim,
                            bool allow_zero)
{
  xfer_run_table *table = &spread->tables[spread->n_tables++];
  xfer_status st = XFER_OK;

  /* A table of empty parts has no run, but needs an address. */
  XFI_TRY(xfi_vec_reserve(&maker->runs, &maker->runs_cap, 1, sizeof *maker->runs));
  *table = (xfer_run_table){maker->runs, maker->first, maker->lengths, (int64_t)maker->n_coords,
                            allow_zero};
  spread->placements[axis] = xfer_shard_runs(dim, table);
  memset(maker, 0, sizeof *maker);
done:
  return st;
}

void xfi_table_free(xfi_table_maker *maker)
{
  xfi_free(maker->runs);
  xfi_free(maker->first);
  xfi_free(maker->lengths);
}

void xfi_spread_free(xfi_spread *spread)
{
  for (int i = 0; i < spread->n_tables; i++) {
    xfi_free((void *)(uintptr_t)spread->tables[i].runs);
    xfi_free((void *)(uintptr_t)spread->tables[i].first);
    xfi_free((void *)(uintptr_t)spread->tables[i].local_lengths);
  }
  memset(spread, 0, sizeof *spread);
}

/* ---- Mamba: z|x|B|C|dt and x|B|C, each cut by itself ---- */

typedef struct segment {
  int64_t rows;
  int64_t unit; /* rows that stay together */
  bool shared;  /* every rank has all of it */
} segment;

static xfer_status find_segments(segment *segments, int *n_segments, const xfer_side *side,
                                 const xfer_model *model, const xfi_entry *entry)
{
  const xfi_config *c = &model->config;
  int64_t inner = c->mamba_heads * c->mamba_head_dim;
  int64_t state = c->mamba_groups * c->mamba_state;
  /* vLLM gives every rank the one group there is. */
  bool shared = c->mamba_groups == 1 && side->framework == XFI_VLLM;
  const segment in[5] = {{inner, c->mamba_head_dim, false},
                         {inner, c->mamba_head_dim, false},
                         {state, c->mamba_state, shared},
                         {state, c->mamba_state, shared},
                         {c->mamba_heads, 1, false}};
  bool conv = entry->row->cut == XFI_CUT_MAMBA_CONV;
  int64_t total = 0;
  xfer_status st = XFER_OK;

  *n_segments = conv ? 3 : 5;
  memcpy(segments, conv ? in + 1 : in, (size_t)*n_segments * sizeof *segments);
  for (int k = 0; k < *n_segments; k++)
    total += segments[k].rows;
  XFI_CHECK(total == entry->shape[0], XFER_ERR_SHAPE,
            "\"%s\" has %lld rows; %lld heads of %lld and %lld groups of %lld states make %lld",
            entry->pattern, (long long)entry->shape[0], (long long)c->mamba_heads,
            (long long)c->mamba_head_dim, (long long)c->mamba_groups, (long long)c->mamba_state,
            (long long)total);
done:
  return st;
}

xfer_status xfi_table_mamba(xfi_spread *spread, int axis, int n, const xfer_side *side,
                            const xfer_model *model, const xfi_entry *entry)
{
  bool even = (side->framework & (XFI_MEGATRON | XFI_VLLM)) != 0;
  segment segments[5];
  int n_segments;
  xfi_table_maker maker = {0};
  xfer_status st = XFER_OK;

  XFI_TRY(find_segments(segments, &n_segments, side, model, entry));
  for (int r = 0; r < n; r++) {
    int64_t global = 0, local = 0;

    for (int k = 0; k < n_segments; k++) {
      const segment *s = &segments[k];
      int64_t part = s->shared ? s->rows : xfi_ceil_div(s->rows, n);
      int64_t begin = s->shared ? 0 : r * part;

      XFI_CHECK(!even || s->shared || s->rows / s->unit % n == 0, XFER_ERR_SHAPE,
                "\"%s\": %lld heads or groups do not divide by tp %d", entry->pattern,
                (long long)(s->rows / s->unit), n);
      if (begin > s->rows) begin = s->rows;
      if (part > s->rows - begin) part = s->rows - begin;
      XFI_TRY(xfi_table_run(&maker, global + begin, part, local));
      global += s->rows;
      local += part;
    }
    XFI_TRY(xfi_table_coord(&maker, local));
  }
  XFI_TRY(xfi_table_place(&maker, spread, axis, 0, false));
done:
  xfi_table_free(&maker);
  return st;
}

/* ---- Megatron's linear_qkv ---- */

xfer_status xfi_qkv_make(xfi_qkv *qkv, const xfer_model *model, const xfi_entry *entry, int n)
{
  const xfi_config *c = &model->config;
  int64_t head = c->head_dim;
  int64_t block = entry->scale_of >= 0 ? model->config.block[0] : 1;
  int64_t rows;
  xfer_status st = XFER_OK;

  XFI_CHECK(head % block == 0, XFER_ERR_UNSUPPORTED,
            "\"%s\": a head of %lld rows is no whole number of blocks of %lld", entry->pattern,
            (long long)head, (long long)block);
  head /= block;
  qkv->groups = c->kv_heads;
  qkv->rows[0] = c->heads / c->kv_heads * head;
  qkv->rows[1] = qkv->rows[2] = head;
  rows = qkv->groups * (qkv->rows[0] + 2 * head);
  XFI_CHECK(rows % n == 0, XFER_ERR_SHAPE,
            "\"%s\": the %lld rows of linear_qkv do not divide by tp %d", entry->pattern,
            (long long)rows, n);
  qkv->local = rows / n;
done:
  return st;
}

bool xfi_qkv_stretch(const xfi_qkv *qkv, int r, int which, int64_t k, xfi_stretch *stretch)
{
  int64_t group_rows = qkv->rows[0] + qkv->rows[1] + qkv->rows[2];
  int64_t begin = r * qkv->local, end = begin + qkv->local;
  int64_t in_group = which == 0 ? 0 : which == 1 ? qkv->rows[0] : qkv->rows[0] + qkv->rows[1];
  int64_t n = qkv->rows[which];
  int64_t group = begin / group_rows;
  int64_t local = 0;

  for (; group < qkv->groups && group * group_rows < end; group++) {
    int64_t lo = group * group_rows + in_group, hi = lo + n;
    int64_t from = lo > begin ? lo : begin;
    int64_t to = hi < end ? hi : end;

    if (to <= from) continue;
    if (k-- == 0) {
      *stretch = (xfi_stretch){from - begin, local, group * n + (from - lo), to - from};
      return true;
    }
    local += to - from;
  }
  return false;
}

static int which_of_qkv(const xfi_entry *entry)
{
  const char *name = strrchr(entry->stem, '.');

  return name[1] == 'q' ? 0 : name[1] == 'k' ? 1 : 2;
}

xfer_status xfi_table_qkv(xfi_spread *spread, int axis, int n, const xfer_model *model,
                          const xfi_entry *entry)
{
  xfi_qkv qkv;
  xfi_table_maker maker = {0};
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_qkv_make(&qkv, model, entry, n));
  for (int r = 0; r < n; r++) {
    xfi_stretch s = {0, 0, 0, 0};
    int64_t length = 0;

    for (int64_t k = 0; xfi_qkv_stretch(&qkv, r, which_of_qkv(entry), k, &s); k++) {
      XFI_TRY(xfi_table_run(&maker, s.global, s.length, s.local));
      length = s.local + s.length;
    }
    XFI_TRY(xfi_table_coord(&maker, length));
  }
  XFI_TRY(xfi_table_place(&maker, spread, axis, 0, false));
done:
  xfi_table_free(&maker);
  return st;
}

/* ---- expert maps ---- */

static xfer_status check_expert(const xfer_side *side, const xfi_entry *entry, int expert,
                                bool *held)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(expert >= 0 && expert < entry->shape[0], XFER_ERR_ARG,
            "\"%s\": the expert map has expert %d, \"%s\" has %lld", side->spec, expert,
            entry->pattern, (long long)entry->shape[0]);
  held[expert] = true;
done:
  return st;
}

xfer_status xfi_table_map(xfi_spread *spread, int axis, const xfer_side *side,
                          const xfi_entry *entry)
{
  bool *held = xfi_calloc((size_t)entry->shape[0], sizeof *held);
  xfi_table_maker maker = {0};
  xfer_status st = XFER_OK;

  XFI_CHECK(held != NULL, XFER_ERR_NOMEM, "%lld experts", (long long)entry->shape[0]);
  for (int r = 0; r < side->ep; r++) {
    int64_t n = 0;

    if (side->map_first != NULL) {
      for (int i = side->map_first[r]; i < side->map_first[r + 1]; i++) {
        XFI_TRY(check_expert(side, entry, side->map_experts[i], held));
        XFI_TRY(xfi_table_run(&maker, side->map_experts[i], 1, n++));
      }
    } else { /* round robin */
      for (int64_t e = r; e < entry->shape[0]; e += side->ep) {
        held[e] = true;
        XFI_TRY(xfi_table_run(&maker, e, 1, n++));
      }
    }
    XFI_TRY(xfi_table_coord(&maker, n));
  }
  for (int64_t e = 0; e < entry->shape[0]; e++) {
    XFI_CHECK(held[e], XFER_ERR_ARG, "\"%s\": the expert map gives expert %lld to no rank",
              side->spec, (long long)e);
  }
  XFI_TRY(xfi_table_place(&maker, spread, axis, 0, false));
done:
  xfi_free(held);
  xfi_table_free(&maker);
  return st;
}

/* ---- what the first rank alone holds, and the others hold as zeros ---- */

xfer_status xfi_table_first_only(xfi_spread *spread, int axis, int n, const xfi_entry *entry,
                                 int dim)
{
  xfi_table_maker maker = {0};
  xfer_status st = XFER_OK;

  for (int r = 0; r < n; r++) {
    XFI_TRY(xfi_table_run(&maker, 0, r == 0 ? entry->shape[dim] : 0, 0));
    XFI_TRY(xfi_table_coord(&maker, entry->shape[dim]));
  }
  XFI_TRY(xfi_table_place(&maker, spread, axis, dim, true));
done:
  xfi_table_free(&maker);
  return st;
}
