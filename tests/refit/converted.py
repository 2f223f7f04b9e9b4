"""Tensors whose elements change on the way: the numbers that xfer_refit fills them with, and what they become.

An element's word w (see hf_model.fill, all 64 bits of it) is here a number: sign bit 31 of w, exponent (w >> 32) % 14 - 7,
and as much of the low 23 bits of w as mantissa as the source's type has.
"""

import numpy as np

_MANTISSA = {"f32": 23, "bf16": 7, "f16": 10}


def of_words(words, dtype):
    """The numbers, as f64."""
    bits = _MANTISSA[dtype]
    fraction = ((words & np.uint64(0x7FFFFF)) >> np.uint64(23 - bits)).astype(np.float64) / 2.0**bits
    exponent = ((words >> np.uint64(32)) % np.uint64(14)).astype(np.int64) - 7
    sign = np.where(words & np.uint64(0x80000000), -1.0, 1.0)
    return sign * np.ldexp(1.0 + fraction, exponent)


def _f8e4m3_values():
    """The magnitudes of the codes 0 to 126, in order."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))


def _to_f8e4m3(x):
    """The nearest code, of two alike the even one; too large: the largest."""
    values = _f8e4m3_values()
    above = np.searchsorted(values, np.abs(x)).clip(1, 126)
    low, high = values[above - 1], values[above]
    nearer = np.abs(x) - low
    farther = high - np.abs(x)
    code = np.where((nearer < farther) | ((nearer == farther) & ((above - 1) % 2 == 0)), above - 1, above)
    return (code | np.where(np.signbit(x), 0x80, 0)).astype("<u1")


def rounded(x, dtype):
    """The words of a dtype's elements nearest to f32 numbers."""
    x = x.astype(np.float32)
    if dtype == "f32":
        return x.view("<u4")
    if dtype == "f16":
        return x.astype(np.float16).view("<u2")
    if dtype == "f8e4m3":
        return _to_f8e4m3(x.astype(np.float64))
    low = x.view(np.uint32) & np.uint32(0xFFFF0000)  # bf16: this one or the next
    next_one = low + np.uint32(0x10000)
    below, above = (np.abs(n.view(np.float32).astype(np.float64) - x) for n in (low, next_one))
    is_even = (low >> np.uint32(16)) % 2 == 0
    return (np.where((below < above) | ((below == above) & is_even), low, next_one) >> np.uint32(16)).astype("<u2")


def scales(x, block, dtype):
    """Of an array whose last two dims begin with a block: each block's scale, as f32; those of type f8e8m0 are
    powers of two, as _mxfp8_e4m3_quantize_torch() of vLLM makes them."""
    amax = np.abs(x)
    for dim, size in zip((-2, -1), block):
        amax = np.maximum.reduceat(amax, np.arange(0, amax.shape[dim], size), axis=dim)
    if dtype == "f32":
        return np.maximum(amax.astype(np.float32), np.float32(1e-4)) / np.float32(448)
    exact = np.maximum(amax.astype(np.float32), np.float32(2.0**-126)) / np.float32(448)
    power = np.ceil(np.log2(exact.astype(np.float64)).astype(np.float32))
    return np.exp2(power.clip(-127, 127)).astype(np.float32)


def scale_words(each, dtype):
    """The words of scales."""
    return each.view("<u4") if dtype == "f32" else (each.view("<u4") >> 23).astype("<u1")


def quantised(x, block, dtype):
    """The f8e4m3 words of such an array, whose scales are of that type."""
    each = scales(x, block, dtype).repeat(block[0], -2).repeat(block[1], -1)[..., : x.shape[-2], : x.shape[-1]]
    return rounded(x.astype(np.float32) * (np.float32(1) / each), "f8e4m3")
