"""Block quantisation against a NumPy statement of the formulas of vLLM and DeepGEMM, over random layouts, and against
what their code makes of a few matrices (record_blocks.py)."""

import pathlib

import numpy as np
import pytest
from ranks import as_view, on_ranks
from test_convert import nearest

import xfer
from xfer import Conversion

# Blocks as engines have them: rows, columns, scale; and the dtype of the scales.
WAYS = [
    (128, 128, "f32", "f32"),
    (128, 128, "pow2", "f32"),
    (128, 128, "ue8m0", "f8e8m0"),
    (1, 128, "f32", "f32"),
    (1, 32, "mx", "f8e8m0"),
]
# Who holds it before: whole blocks, blocks that are cut, in both dims, boxes that overlap, ranges of the flat order.
SOURCES = [
    "(1)@0:R",
    "(2)@0-1:S0",
    "(2)@0-1:S1",
    "(3)@0-2:S0",
    "(2,2)@0-3:S0,S1",
    "(2,2)@0-3:R,S0",
    "(2)@0-1:S0f3",
]
DESTINATIONS = ["(2)@2-3:S0", "(2)@0-1:S1", "(4)@0-3:R", "(1)@1:R", "(3)@1-3:S0"]


def in_blocks(x, rows, columns):
    """[..., blocks of rows, rows, blocks of columns, columns], padded with zeros."""
    pad = [(0, 0)] * (x.ndim - 2) + [(0, -x.shape[-2] % rows), (0, -x.shape[-1] % columns)]
    x = np.pad(x, pad)
    return x.reshape(*x.shape[:-2], x.shape[-2] // rows, rows, x.shape[-1] // columns, columns)


def quantised(x, rows, columns, scale):
    """The bytes and the scales of x in f32."""
    blocks = in_blocks(x, rows, columns)
    with np.errstate(all="ignore"):
        amax = np.abs(blocks).max(axis=(-3, -1))
        least = np.float32(2.0**-126 if scale == "mx" else 1e-4)
        scales = np.where(np.isnan(amax), amax, np.maximum(amax, least)) / np.float32(448)
        if scale == "ue8m0":
            bits = scales.view(np.uint32)
            exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
            scales = (np.clip(exponent, 1, 254).astype(np.uint32) << 23).view(np.float32)
        elif scale != "f32":
            exponent = np.ceil(np.log2(scales.astype(np.float64)).astype(np.float32))
            exponent = np.clip(exponent, -127, 127) if scale == "mx" else exponent
            scales = np.exp2(exponent.astype(np.float64)).astype(np.float32)
        scaled = blocks * (np.float32(1) / scales)[..., :, None, :, None]
        bits = nearest("f8e4m3", scaled)
        bits = np.where(np.isnan(scaled), 0x7F, bits).astype(np.uint8)
    *outer, n_rows, _, n_columns, _ = blocks.shape
    whole = bits.reshape(*outer, n_rows * rows, n_columns * columns)
    return whole[..., : x.shape[-2], : x.shape[-1]], scales


def numbers(shape, seed, with_nan=True):
    """bf16 of many magnitudes, zeros, and few infinities and NaNs: as f32, and their bits."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-8, 9, shape))
    x *= np.exp2(rng.integers(-140, 120, (*shape[:-1], 1)))
    x[rng.random(shape) < 0.1] = 0
    x[..., : shape[-2] // 3, : shape[-1] // 3] = 0
    with np.errstate(over="ignore"):
        bits = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if with_nan:
        bits[(rng.random(shape) < 1e-4)] = 0x7F80
        bits[(rng.random(shape) < 1e-4)] = 0xFFC1
    return (bits.astype(np.uint32) << 16).view(np.float32), bits


def layout_of(dtype, shape, text, side):
    line = f"{dtype}[{','.join(map(str, shape))}] " + (f"{text} -> (1)@0:R" if side == 0 else f"(1)@0:R -> {text}")
    return xfer.parse_problem(line)[side]


def move(tensors, held, n_ranks, runs=1, **options):
    """Runs a plan whose sources are `held`, by index: of each rank what it got, by tensor."""

    def work(comm):
        got = []
        with xfer.Plan(comm, tensors, **options) as plan:
            for t, (name, src, dst, _) in enumerate(tensors):
                mine = None if src is None else src.cut(held[t], comm.rank)
                try:
                    empty = np.full(dst.local_shape(comm.rank), 0xAA, np.uint8 if dst.dtype != "f32" else np.float32)
                except xfer.XferError:
                    empty = None
                got.append(empty)
                plan.bind(
                    name,
                    None if mine is None else as_view(mine, src.dtype),
                    None if empty is None else as_view(empty, dst.dtype),
                )
            plan.commit()
            for version in range(1, runs + 1):
                plan.run(version)
                plan.wait()
        return got

    return on_ranks(n_ranks, work)


def check(tensors, wanted, parts):
    for rank, part in enumerate(parts):
        for (name, _, dst, _), whole, got in zip(tensors, wanted, part, strict=True):
            expected = dst.cut(whole, rank)
            if expected is not None:
                np.testing.assert_array_equal(got, expected, err_msg=f"{name} of rank {rank}")


def pair(index, shape, way, src, dst, scales, seed, dtype="bf16"):
    """Two tensors of a plan, the first one's source, and what both come to."""
    rows, columns, scale, scale_dtype = way
    x, bits = numbers(shape, seed)
    cells = [*shape[:-2], -(-shape[-2] // rows), -(-shape[-1] // columns)]
    eight, factors = quantised(x, rows, columns, scale)
    if scale_dtype == "f8e8m0":
        factors = (factors.view(np.uint32) >> 23).astype(np.uint8)
    tensors = [
        (
            f"w{index}",
            layout_of(dtype, shape, src, 0),
            layout_of("f8e4m3", shape, dst, 1),
            Conversion.blocks(rows, columns, scale),
        ),
        (f"w{index}.scales", None, layout_of(scale_dtype, cells, scales, 1), Conversion.scales_of(2 * index)),
    ]
    return tensors, [bits if dtype == "bf16" else x, None], [eight, factors]


@pytest.mark.parametrize("lane", ["auto", "packed", "broadcast"])
def test_blocks_of_all_kinds_from_and_to_any_layout(lane):
    carry_random(["auto", "packed", "broadcast"].index(lane), lane)


def carry_random(seed, lane):
    rng = np.random.default_rng(seed)
    tensors, held, wanted = [], [], []
    for i, way in enumerate(WAYS * 2):
        shape = [int(n) for n in rng.integers(1, 300, 2)]
        if i % 4 == 3:
            shape = [2, *shape]
        src, dst, scales = rng.choice(SOURCES), rng.choice(DESTINATIONS), rng.choice(DESTINATIONS)
        t, h, w = pair(i, shape, way, str(src), str(dst), str(scales), 1000 * seed + i, "f32" if i % 3 == 0 else "bf16")
        tensors, held, wanted = tensors + t, held + h, wanted + w
    options = {"window_bytes": 4096} if seed % 2 else {}
    check(tensors, wanted, move(tensors, held, 4, runs=2, lane=lane, **options))


def test_blocks_are_those_of_vllm_and_deep_gemm():
    with np.load(pathlib.Path(__file__).parent / "blocks.npz") as found:
        names = sorted({name[:-3] for name in found})
        for name in names:
            size, scale = name.split()
            rows, columns = map(int, size.split("x"))
            bits, eight, scales = (found[f"{name} {what}"] for what in ("of", "is", "by"))
            cells = "f32" if scales.dtype == np.float32 else "f8e8m0"
            tensors = [
                (
                    name,
                    layout_of("bf16", bits.shape, "(2)@0-1:S1", 0),
                    layout_of("f8e4m3", bits.shape, "(1)@1:R", 1),
                    Conversion.blocks(rows, columns, scale),
                ),
                ("its scales", None, layout_of(cells, scales.shape, "(2)@0-1:R", 1), Conversion.scales_of(0)),
            ]
            if name == "1x32 mx":  # of a NaN torch makes the byte 0, which is 2^-127, and E8M0's own NaN is 255
                at = np.isnan((bits.astype(np.uint32) << 16).view(np.float32)).reshape(*scales.shape, 32).any(-1)
                scales = np.where(at, 255, scales).astype(np.uint8)
            check(tensors, [eight, scales], move(tensors, [bits, None], 2))
        assert len(names) == 6


def test_blocks_of_boxes_that_cut_them():
    shape = [300, 200]
    bounds = [[((0, 0), (70, 200)), ((250, 0), (300, 200))], [((70, 0), (250, 131))], [((70, 131), (250, 200))]]
    t, h, w = pair(0, shape, (128, 128, "f32", "f32"), "(1)@0:R", "(2)@0-1:S0", "(3)@0-2:R", 7)
    src = xfer.Layout.by_boxes(xfer.Mesh([3]), shape, "bf16", bounds)

    def work(comm):
        (name, _, dst, how), (of, _, cells, scales_of) = t
        mine = [np.ascontiguousarray(h[0][a[0] : b[0], a[1] : b[1]]) for a, b in bounds[comm.rank]]
        eight = None if comm.rank == 2 else np.zeros(dst.local_shape(comm.rank), np.uint8)
        factors = np.zeros(cells.local_shape(comm.rank), np.float32)
        with xfer.Plan(comm, [(name, src, dst, how), (of, None, cells, scales_of)]) as plan:
            plan.bind(name, xfer.View.of_boxes(mine, "bf16"), as_view(eight, "f8e4m3"))
            plan.bind(of, None, factors)
            plan.commit()
            plan.run(1)
            plan.wait()
        return [eight, factors]

    check([(n, None, d, c) for n, _, d, c in t], w, on_ranks(3, work))


def test_what_cannot_be_is_said():
    src, dst = layout_of("bf16", [256, 256], "(1)@0:R", 0), layout_of("f8e4m3", [256, 256], "(1)@0:R", 1)
    scales, wrong = layout_of("f32", [2, 2], "(1)@0:R", 1), layout_of("f32", [2, 3], "(1)@0:R", 1)
    eight = layout_of("f8e8m0", [2, 2], "(1)@0:R", 1)
    how = Conversion.blocks(128, 128)

    def refused(error, match, *tensors):
        with pytest.raises(error, match=match):
            xfer.Plan.simulate(1, 0, tensors)

    refused(xfer.ArgError, '"w" is quantised by blocks, and no tensor has its scales', ("w", src, dst, how))
    refused(
        xfer.ShapeError,
        "dim 1: the source has 2 indices, the destination 3",
        ("w", src, dst, how),
        ("s", None, wrong, Conversion.scales_of(0)),
    )
    refused(
        xfer.ShapeError,
        "no powers of two as f8e8m0",
        ("w", src, dst, how),
        ("s", None, eight, Conversion.scales_of(0)),
    )
    refused(
        xfer.ArgError,
        "scales of tensor 1, which is not quantised by blocks",
        ("s", None, scales, Conversion.scales_of(1)),
    )
    refused(
        xfer.ArgError,
        "have no source layout",
        ("w", src, dst, how),
        ("s", scales, scales, Conversion.scales_of(0)),
    )
    refused(
        xfer.ArgError, "blocks of 0 rows and 128 columns, not 1 to 65535", ("w", src, dst, Conversion.blocks(0, 128))
    )
    report = xfer.Plan.simulate(1, 0, [("w", src, dst, how), ("s", None, scales, Conversion.scales_of(0))]).report()
    assert report["payload_bytes"] == 256 * 256 + 4 * 4
