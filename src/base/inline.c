/* The inline makers of xfer.h once more as functions, for callers without a C compiler and for -O0.
 */
/* What xfer.h defines here is to be exported; an attribute after the definition would come too late
 * for clang. */
#pragma GCC visibility push(default)
#include <xfer/xfer.h>
#pragma GCC visibility pop

/* In C, declaring an inline function without `inline` makes this file the home of its definition.
 */
xfer_placement xfer_replicate(void);
xfer_placement xfer_shard(int dim);
xfer_placement xfer_shard_rule(int dim, xfer_split_rule rule);
xfer_placement xfer_shard_strided(int dim, int64_t split_factor);
xfer_placement xfer_shard_runs(int dim, const xfer_run_table *table);
xfer_conversion xfer_convert_cast(void);
xfer_conversion xfer_convert_scale(float scale);
xfer_conversion xfer_convert_add(float value);
xfer_conversion xfer_convert_blocks(int rows, int columns, xfer_block_scale scale);
xfer_conversion xfer_convert_scales_of(size_t tensor);
xfer_operation xfer_operation_bytes(uint64_t id, int peer, size_t n_bytes);
xfer_view xfer_view_dense(const void *base);
xfer_view xfer_view_boxes(void *const *boxes, int64_t n_boxes, const int64_t *strides, int n_dims);
xfer_view xfer_view_strided(const void *base, const int64_t *strides, int n_dims);
xfer_view xfer_view_pieces(void *const *pieces, int64_t n_pieces, int piece_dim,
                           const int64_t *strides, int n_dims);
