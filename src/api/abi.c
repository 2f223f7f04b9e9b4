/*
 * The version; sizes and offsets of the public structs by name, for bindings that have no C
 * compiler.
 */
#include <string.h>

#include "error.h"
#include "xfer/refit.h"
#include "xfer/xfer.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *xfer_version(void)
{
  return TEXT(XFER_VERSION_MAJOR) "." TEXT(XFER_VERSION_MINOR) "." TEXT(XFER_VERSION_PATCH);
}

typedef struct row {
  const char *name;
  size_t value;
} row;

#define ROW(type, field)                                                                           \
  {                                                                                                \
#type "." #field, offsetof(type, field)                                                        \
  }

/* Rows of 1 to 13 fields. */
#define F1(t, f) ROW(t, f)
#define F2(t, f, ...) ROW(t, f), F1(t, __VA_ARGS__)
#define F3(t, f, ...) ROW(t, f), F2(t, __VA_ARGS__)
#define F4(t, f, ...) ROW(t, f), F3(t, __VA_ARGS__)
#define F5(t, f, ...) ROW(t, f), F4(t, __VA_ARGS__)
#define F6(t, f, ...) ROW(t, f), F5(t, __VA_ARGS__)
#define F7(t, f, ...) ROW(t, f), F6(t, __VA_ARGS__)
#define F8(t, f, ...) ROW(t, f), F7(t, __VA_ARGS__)
#define F9(t, f, ...) ROW(t, f), F8(t, __VA_ARGS__)
#define F10(t, f, ...) ROW(t, f), F9(t, __VA_ARGS__)
#define F11(t, f, ...) ROW(t, f), F10(t, __VA_ARGS__)
#define F12(t, f, ...) ROW(t, f), F11(t, __VA_ARGS__)
#define F13(t, f, ...) ROW(t, f), F12(t, __VA_ARGS__)
#define PICK(f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, pick, ...) pick
#define FIELDS(type, ...)                                                                          \
  PICK(__VA_ARGS__, F13, F12, F11, F10, F9, F8, F7, F6, F5, F4, F3, F2, F1, 0)(type, __VA_ARGS__)
#define STRUCT(type, ...) {#type, sizeof(type)}, FIELDS(type, __VA_ARGS__)

static const row rows[] = {
    STRUCT(xfer_run, global, length, local),
    STRUCT(xfer_run_table, runs, first, local_lengths, n_coords, allow_zero),
    STRUCT(xfer_placement, kind, dim, rule, reserved, split_factor, table),
    STRUCT(xfer_layout_desc, struct_size, mesh, dtype, n_dims, shape, padded_shape, placements,
           n_placements, n_order, order),
    STRUCT(xfer_boxes_desc, struct_size, mesh, dtype, n_dims, shape, first, bounds),
    STRUCT(xfer_owner, local, rank, reserved),
    STRUCT(xfer_view, kind, n_dims, base, strides, pieces, n_pieces, piece_dim, reserved,
           box_strides),
    STRUCT(xfer_tensor, name, src, dst, conversion),
    STRUCT(xfer_conversion, kind, value, rows, columns, scale, reserved, tensor),
    STRUCT(xfer_plan_options, struct_size, max_staging_bytes, window_bytes,
           min_broadcast_saving_bytes, timeout_ms, lane, ranks_per_domain, flags, reserved),
    STRUCT(xfer_plan_report_data, struct_size, n_tensors, n_classes, n_moves, payload_bytes,
           in_bytes, self_bytes, zero_bytes, wire_bytes, out_bytes, n_send_peers, n_recv_peers,
           broadcast_tensors),
    FIELDS(xfer_plan_report_data, direct_bytes, packed_bytes, n_rounds, staging_bytes, window_bytes,
           bound_bytes, committed_version, torn, converted_tensors, crossed_bytes, relayed_bytes,
           replicated_tensors),
    STRUCT(xfer_digest, word),
    STRUCT(xfer_move, tensor, src_rank, dst_rank, lo, hi, src_local, dst_local, n_bytes, n_dims,
           broadcast, relayed, reserved),
    STRUCT(xfer_traffic, src_rank, dst_rank, n_bytes, n_moves, broadcast_bytes, relayed_bytes),
    STRUCT(xfer_operation, id, peer, dtype, n_dims, reserved, shape),
    STRUCT(xfer_model_options, struct_size, layers_begin, layers_end, experts_begin, experts_end,
           ends, reserved, extra, renames, n_renames, rules),
    STRUCT(xfer_side_options, struct_size, first_rank, partial, strict, reserved, map_experts,
           map_first, n_map, ranks, n_ranks, item_names, item_values, n_items),
    FIELDS(xfer_side_options, rules),
    STRUCT(xfer_refit_tensor, hf, n_experts, first_expert, offset, strides, n_dims, half_dim,
           half_first, half_step, layer, misc, hook),
    STRUCT(xfer_refit_report_data, struct_size, hf_tensors, tensors, payload_bytes, ruled_bytes,
           misc_bytes, delivered_bytes, hooks, ignored, duplicates, largest_bytes),
    STRUCT(xfer_local, name, side, dtype, n_dims, n_parts, shape, dims, expert, misc, made,
           made_dtype, reserved),
    STRUCT(xfer_local_part, tensor, dim, tensor_dim, begin, end, step, first),
};

xfer_status xfer_abi_check(const char *name, size_t value)
{
  size_t i = 0;

  XFI_NEED(name);
  while (i < sizeof rows / sizeof *rows && strcmp(rows[i].name, name) != 0)
    i++;
  XFI_CHECK(i < sizeof rows / sizeof *rows, XFER_ERR_ARG, "abi check: there is no \"%s\"", name);
  XFI_CHECK(rows[i].value == value, XFER_ERR_MISMATCH, "%s is %zu here, the caller has %zu", name,
            rows[i].value, value);
  return XFER_OK;
}
