/*
 * Sizes and offsets of the public structs by name, for bindings that have no C compiler.
 */
#include <string.h>

#include "error.h"
#include "xfer/refit.h"
#include "xfer/xfer.h"

typedef struct row {
  const char *name;
  size_t value;
} row;

#define SIZE(type)                                                                                 \
  {                                                                                                \
#type, sizeof(type)                                                                            \
  }
#define FIELD(type, field)                                                                         \
  {                                                                                                \
#type "." #field, offsetof(type, field)                                                        \
  }

static const row rows[] = {
    SIZE(xfer_run),
    FIELD(xfer_run, global),
    FIELD(xfer_run, length),
    FIELD(xfer_run, local),
    SIZE(xfer_run_table),
    FIELD(xfer_run_table, runs),
    FIELD(xfer_run_table, first),
    FIELD(xfer_run_table, local_lengths),
    FIELD(xfer_run_table, n_coords),
    FIELD(xfer_run_table, allow_zero),
    SIZE(xfer_placement),
    FIELD(xfer_placement, kind),
    FIELD(xfer_placement, dim),
    FIELD(xfer_placement, rule),
    FIELD(xfer_placement, reserved),
    FIELD(xfer_placement, split_factor),
    FIELD(xfer_placement, table),
    SIZE(xfer_layout_desc),
    FIELD(xfer_layout_desc, struct_size),
    FIELD(xfer_layout_desc, mesh),
    FIELD(xfer_layout_desc, dtype),
    FIELD(xfer_layout_desc, n_dims),
    FIELD(xfer_layout_desc, shape),
    FIELD(xfer_layout_desc, padded_shape),
    FIELD(xfer_layout_desc, placements),
    FIELD(xfer_layout_desc, n_placements),
    FIELD(xfer_layout_desc, n_order),
    FIELD(xfer_layout_desc, order),
    SIZE(xfer_owner),
    FIELD(xfer_owner, local),
    FIELD(xfer_owner, rank),
    FIELD(xfer_owner, reserved),
    SIZE(xfer_view),
    FIELD(xfer_view, kind),
    FIELD(xfer_view, n_dims),
    FIELD(xfer_view, base),
    FIELD(xfer_view, strides),
    FIELD(xfer_view, pieces),
    FIELD(xfer_view, n_pieces),
    FIELD(xfer_view, piece_dim),
    FIELD(xfer_view, reserved),
    SIZE(xfer_tensor),
    FIELD(xfer_tensor, name),
    FIELD(xfer_tensor, src),
    FIELD(xfer_tensor, dst),
    FIELD(xfer_tensor, reserved),
    SIZE(xfer_plan_options),
    FIELD(xfer_plan_options, struct_size),
    FIELD(xfer_plan_options, max_staging_bytes),
    FIELD(xfer_plan_options, window_bytes),
    FIELD(xfer_plan_options, link_bytes_per_s),
    FIELD(xfer_plan_options, message_ns),
    FIELD(xfer_plan_options, timeout_ms),
    FIELD(xfer_plan_options, lane),
    FIELD(xfer_plan_options, ranks_per_domain),
    FIELD(xfer_plan_options, flags),
    FIELD(xfer_plan_options, reserved),
    SIZE(xfer_plan_report_data),
    FIELD(xfer_plan_report_data, struct_size),
    FIELD(xfer_plan_report_data, n_tensors),
    FIELD(xfer_plan_report_data, n_classes),
    FIELD(xfer_plan_report_data, n_moves),
    FIELD(xfer_plan_report_data, payload_bytes),
    FIELD(xfer_plan_report_data, in_bytes),
    FIELD(xfer_plan_report_data, self_bytes),
    FIELD(xfer_plan_report_data, zero_bytes),
    FIELD(xfer_plan_report_data, wire_bytes),
    FIELD(xfer_plan_report_data, out_bytes),
    FIELD(xfer_plan_report_data, n_send_peers),
    FIELD(xfer_plan_report_data, n_recv_peers),
    FIELD(xfer_plan_report_data, broadcast_tensors),
    FIELD(xfer_plan_report_data, direct_bytes),
    FIELD(xfer_plan_report_data, packed_bytes),
    FIELD(xfer_plan_report_data, n_rounds),
    FIELD(xfer_plan_report_data, staging_bytes),
    FIELD(xfer_plan_report_data, window_bytes),
    FIELD(xfer_plan_report_data, bound_bytes),
    FIELD(xfer_plan_report_data, predicted_ns),
    FIELD(xfer_plan_report_data, committed_version),
    FIELD(xfer_plan_report_data, torn),
    SIZE(xfer_move),
    FIELD(xfer_move, tensor),
    FIELD(xfer_move, src_rank),
    FIELD(xfer_move, dst_rank),
    FIELD(xfer_move, lo),
    FIELD(xfer_move, hi),
    FIELD(xfer_move, src_local),
    FIELD(xfer_move, dst_local),
    FIELD(xfer_move, n_bytes),
    FIELD(xfer_move, n_dims),
    FIELD(xfer_move, broadcast),
    SIZE(xfer_model_options),
    FIELD(xfer_model_options, struct_size),
    FIELD(xfer_model_options, layers_begin),
    FIELD(xfer_model_options, layers_end),
    FIELD(xfer_model_options, experts_begin),
    FIELD(xfer_model_options, experts_end),
    FIELD(xfer_model_options, ends),
    FIELD(xfer_model_options, quant),
    FIELD(xfer_model_options, extra),
    FIELD(xfer_model_options, renames),
    FIELD(xfer_model_options, n_renames),
    SIZE(xfer_side_options),
    FIELD(xfer_side_options, struct_size),
    FIELD(xfer_side_options, first_rank),
    FIELD(xfer_side_options, weights),
    FIELD(xfer_side_options, map_experts),
    FIELD(xfer_side_options, map_first),
    FIELD(xfer_side_options, n_map),
    SIZE(xfer_refit_tensor),
    FIELD(xfer_refit_tensor, hf),
    FIELD(xfer_refit_tensor, n_experts),
    FIELD(xfer_refit_tensor, first_expert),
    FIELD(xfer_refit_tensor, offset),
    FIELD(xfer_refit_tensor, strides),
    FIELD(xfer_refit_tensor, n_dims),
    FIELD(xfer_refit_tensor, half_dim),
    FIELD(xfer_refit_tensor, half_first),
    FIELD(xfer_refit_tensor, half_step),
    FIELD(xfer_refit_tensor, layer),
    FIELD(xfer_refit_tensor, misc),
    FIELD(xfer_refit_tensor, hook),
    SIZE(xfer_refit_report_data),
    FIELD(xfer_refit_report_data, struct_size),
    FIELD(xfer_refit_report_data, hf_tensors),
    FIELD(xfer_refit_report_data, tensors),
    FIELD(xfer_refit_report_data, payload_bytes),
    FIELD(xfer_refit_report_data, ruled_bytes),
    FIELD(xfer_refit_report_data, misc_bytes),
    FIELD(xfer_refit_report_data, delivered_bytes),
    FIELD(xfer_refit_report_data, hooks),
    FIELD(xfer_refit_report_data, ignored),
    FIELD(xfer_refit_report_data, duplicates),
    FIELD(xfer_refit_report_data, largest_bytes),
    SIZE(xfer_local),
    FIELD(xfer_local, name),
    FIELD(xfer_local, side),
    FIELD(xfer_local, dtype),
    FIELD(xfer_local, n_dims),
    FIELD(xfer_local, n_parts),
    FIELD(xfer_local, shape),
    FIELD(xfer_local, dims),
    FIELD(xfer_local, expert),
    FIELD(xfer_local, misc),
    FIELD(xfer_local, made),
    FIELD(xfer_local, made_dtype),
    FIELD(xfer_local, reserved),
    SIZE(xfer_local_part),
    FIELD(xfer_local_part, tensor),
    FIELD(xfer_local_part, dim),
    FIELD(xfer_local_part, tensor_dim),
    FIELD(xfer_local_part, begin),
    FIELD(xfer_local_part, end),
    FIELD(xfer_local_part, step),
    FIELD(xfer_local_part, first),
};

xfer_status xfer_abi_check(const char *name, size_t value)
{
  xfer_status st = XFER_OK;
  size_t i = 0;

  XFI_CHECK(name != NULL, XFER_ERR_ARG, "abi check: name is NULL");
  while (i < sizeof rows / sizeof *rows && strcmp(rows[i].name, name) != 0)
    i++;
  XFI_CHECK(i < sizeof rows / sizeof *rows, XFER_ERR_ARG, "abi check: there is no \"%s\"", name);
  XFI_CHECK(rows[i].value == value, XFER_ERR_MISMATCH, "%s is %zu here, the caller has %zu", name,
            rows[i].value, value);
done:
  return st;
}
