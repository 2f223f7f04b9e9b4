/**
 * @file conversion.h How a plan changes elements on the way: casts, scales, fp8 by blocks.
 */
#ifndef XFER_CONVERSION_H
#define XFER_CONVERSION_H

#include <xfer/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a conversion does to an element. */
typedef enum xfer_conversion_kind {
  XFER_CONVERSION_NONE = 0,   /**< Nothing. */
  XFER_CONVERSION_CAST = 1,   /**< xfer_convert_cast() */
  XFER_CONVERSION_SCALE = 2,  /**< xfer_convert_scale() */
  XFER_CONVERSION_ADD = 3,    /**< xfer_convert_add() */
  XFER_CONVERSION_BLOCKS = 4, /**< xfer_convert_blocks() */
  XFER_CONVERSION_SCALES = 5  /**< xfer_convert_scales_of() */
} xfer_conversion_kind;

/** How the scale of a block is computed from amax, the largest magnitude in it; 448 is the
 * largest number of f8e4m3. */
typedef enum xfer_block_scale {
  XFER_SCALE_F32 = 0,   /**< max(amax, 1e-4) / 448. */
  XFER_SCALE_POW2 = 1,  /**< 2^ceil(log2(F32's)), log2 rounded to f32: as torch and vLLM do it. */
  XFER_SCALE_UE8M0 = 2, /**< The power of two not below F32's, as DeepGEMM does it: the same as POW2
                           of a bf16 source without infinities and NaNs. */
  XFER_SCALE_MX = 3     /**< For MXFP8: as POW2 of max(amax, 2^-126) / 448, from 2^-127 to 2^127. */
} xfer_block_scale;

/**
 * How a plan changes a tensor's elements on the way; the same on every rank. All zero is no change.
 * The functions below make one; xfer_plan_create() refuses a conversion that is not possible, and
 * one that sets a field which its kind does not have.
 *
 * A conversion goes from f32, bf16 or f16 to f32, bf16, f16, f8e4m3 or f8e5m2. It rounds to nearest
 * even, once, from f32, and keeps denormals. A value that is too large becomes infinite in bf16 and
 * f16, and the largest number in the f8 types; so does an infinity there. A NaN becomes the quiet
 * NaN of its sign: 0x7fc00000, 0x7fc0, 0x7e00, 0x7f; a cast of bf16 to f32 keeps its bits.
 *
 * Elements travel as the smaller of the two types: the source narrows them, the destination widens
 * them. Reports and moves count the bytes that travel.
 */
typedef struct xfer_conversion {
  int32_t kind;      /**< xfer_conversion_kind */
  float value;       /**< For SCALE and ADD: the number. */
  int32_t rows;      /**< For BLOCKS: rows of a block, 1 to 65535. */
  int32_t columns;   /**< For BLOCKS: columns of a block, 1 to 65535. */
  int32_t scale;     /**< For BLOCKS: xfer_block_scale. */
  uint32_t reserved; /**< Must be 0. */
  uint64_t tensor;   /**< For SCALES: index of the tensor whose scales these are. */
} xfer_conversion;

/** Cast to the destination's dtype; no conversion if source and destination have the same dtype. */
XFER_API_INLINE xfer_conversion xfer_convert_cast(void)
{
  xfer_conversion c = {XFER_CONVERSION_CAST, 0, 0, 0, 0, 0, 0};
  return c;
}

/**
 * Cast x * (1 / scale), computed in f32, to the destination's dtype: as vLLM quantises to f8 with
 * one scale for a tensor.
 * @param scale  Finite and above 0, and 1 / scale finite.
 */
XFER_API_INLINE xfer_conversion xfer_convert_scale(float scale)
{
  xfer_conversion c = {XFER_CONVERSION_SCALE, 0, 0, 0, 0, 0, 0};
  c.value = scale;
  return c;
}

/** Cast x + value, computed in f32, to the destination's dtype: for norms that one side keeps as
 * x and the other as 1 + x. */
XFER_API_INLINE xfer_conversion xfer_convert_add(float value)
{
  xfer_conversion c = {XFER_CONVERSION_ADD, 0, 0, 0, 0, 0, 0};
  c.value = value;
  return c;
}

/**
 * Quantise to f8e4m3 by blocks of `rows` x `columns` of the last two dims: x * (1 / scale) in f32,
 * rounded to f8e4m3. Blocks at the tensor's ends may be smaller. Another tensor of the plan
 * receives the scales; see xfer_convert_scales_of(). The tensor has at most 6 dims; one of 1 dim
 * counts as one row.
 *
 * Blocks belong to the tensor, however it is sharded: ranks that hold parts of one block exchange
 * the amax of their parts before the first byte travels. Elements travel as f8e4m3, and nobody
 * copies the weights; each rank keeps the scales of the blocks that it holds, 4 bytes a block.
 *
 * Results are bit-equal to these: 128 x 128 with F32 or POW2 to per_block_cast_to_fp8() of vLLM
 * 0.33 (vllm/utils/deep_gemm.py) in torch, with F32 or UE8M0 to the function of that name of
 * DeepGEMM (deep_gemm/utils/math.py), 1 x 128 to its per_token_cast_to_fp8(), 1 x 32 with MX to
 * _mxfp8_e4m3_quantize_torch() of vLLM; except that every NaN is 0x7f. A block that contains a NaN
 * has a NaN as its scale and is NaN as a whole; with UE8M0, as in DeepGEMM, its scale is 2^127
 * instead: the NaN stays, and its other elements, up to 2^117, become 0 of their sign. The scale of
 * a block that contains an infinity is infinite with F32 and POW2: the infinity becomes a NaN and
 * all else 0. With UE8M0 and MX it is 2^127: the infinity becomes 448, and its other elements, up
 * to 2^117, become 0.
 *
 * @param rows     1 to 65535.
 * @param columns  1 to 65535.
 * @param scale    How the scale of each block is computed.
 */
XFER_API_INLINE xfer_conversion xfer_convert_blocks(int rows, int columns, xfer_block_scale scale)
{
  xfer_conversion c = {XFER_CONVERSION_BLOCKS, 0, 0, 0, 0, 0, 0};
  c.rows = (int32_t)rows;
  c.columns = (int32_t)columns;
  c.scale = (int32_t)scale;
  return c;
}

/**
 * Make this tensor receive the scales of another tensor's blocks. It has the same number of dims,
 * of size ceil(n / rows) and ceil(n / columns) in the last two, and no source: no source layout
 * (NULL) and no source view. Its destination is f32, or f8e8m0 if the scales are powers of two.
 * @param tensor  Index of the other tensor in the array given at create; its conversion is
 *                xfer_convert_blocks().
 */
XFER_API_INLINE xfer_conversion xfer_convert_scales_of(size_t tensor)
{
  xfer_conversion c = {XFER_CONVERSION_SCALES, 0, 0, 0, 0, 0, 0};
  c.tensor = (uint64_t)tensor;
  return c;
}

#ifdef __cplusplus
}
#endif
#endif
