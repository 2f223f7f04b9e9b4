"""Elements that change on the way, against all values of a type looked up by NumPy."""

import copy
import pickle

import numpy as np
import pytest
from ranks import as_view, on_ranks, outcomes

import xfer
from xfer import Conversion, Layout

# By name: bits of the exponent and of the fraction, the largest finite magnitude, the NaN, whether it saturates.
TYPES = {
    "bf16": (8, 7, 0x7F7F, 0x7FC0, False),
    "f16": (5, 10, 0x7BFF, 0x7E00, False),
    "f8e4m3": (4, 3, 0x7E, 0x7F, True),
    "f8e5m2": (5, 2, 0x7B, 0x7F, True),
}
BITS = {"f32": np.uint32, "bf16": np.uint16, "f16": np.uint16, "f8e4m3": np.uint8, "f8e5m2": np.uint8}


def magnitudes(name):
    """All finite ones, and the one that would follow the largest, by their bits."""
    n_exponent, n_fraction, largest, _, _ = TYPES[name]
    bits = np.arange(largest + 2)
    exponent, fraction = bits >> n_fraction, (bits % (1 << n_fraction)) / (1 << n_fraction)
    bias = (1 << (n_exponent - 1)) - 1
    return np.where(exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, exponent - bias))


def values(name, bits):
    """Numbers of a type, as f32, which holds them all."""
    if name == "f32":
        return bits.view(np.float32)
    n_exponent, n_fraction, largest, _, _ = TYPES[name]
    sign = 1 << (n_exponent + n_fraction)
    table = np.concatenate([magnitudes(name)[:-1], [np.inf], np.full(sign - largest - 2, np.nan)])
    found = table[bits % sign].astype(np.float32)
    return np.where(bits >= sign, -found, found)


def nearest(name, x):
    """The bits of the nearest values; of two as near, the even one's."""
    if name == "f32":
        return np.where(np.isnan(x), np.copysign(np.float32(np.nan), x), x).astype(np.float32).view(np.uint32)
    n_exponent, n_fraction, largest, nan, saturates = TYPES[name]
    table = magnitudes(name)
    with np.errstate(invalid="ignore"):  # a NaN is put right at the end
        wide = np.abs(x.astype(np.float64))
    above = np.clip(np.searchsorted(table, wide), 1, largest + 1)
    below = above - 1
    down, up = wide - table[below], table[above] - wide
    bits = np.where((down < up) | ((down == up) & (below % 2 == 0)), below, above)
    bits = np.where(wide >= table[-1], largest + 1, bits)
    bits = np.where(np.isnan(x), nan, np.minimum(bits, largest) if saturates else bits)
    return (bits | (np.signbit(x).astype(np.int64) << (n_exponent + n_fraction))).astype(BITS[name])


def sample(name):
    """Every pattern of 16 bits; of f32 those around the values of bf16, and noise."""
    if name != "f32":
        return np.arange(1 << 16, dtype=np.uint16)
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    noise = np.random.default_rng(1).integers(0, 1 << 32, 1 << 18, dtype=np.uint32)
    return np.concatenate([*(upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)), noise])


def expected(bits, src, dst, conversion):
    x = values(src, bits)
    with np.errstate(over="ignore", invalid="ignore"):
        if conversion == "scale":
            x = x * (np.float32(1) / np.float32(0.3))
        if conversion == "add":
            x = x + np.float32(-1)
    if conversion == "cast" and (src, dst) == ("bf16", "f32"):
        return bits.astype(np.uint32) << 16
    return nearest(dst, x)


CONVERSIONS = {"cast": Conversion.cast, "scale": lambda: Conversion.scale(0.3), "add": lambda: Conversion.add(-1)}


@pytest.mark.parametrize("lane", ["direct", "packed", "broadcast"])
@pytest.mark.parametrize("src", ["f32", "bf16", "f16"])
def test_every_pattern_becomes_the_nearest_value(src, lane):
    bits = sample(src)
    pairs = [(dst, kind) for dst in BITS for kind in CONVERSIONS if (dst, kind) != (src, "cast")]
    tensors = []
    for dst, kind in pairs:
        layouts = Layout.parse(f"{src}[{len(bits)}] (2):S0"), Layout.parse(f"{dst}[{len(bits)}] (3):S0")
        tensors.append((f"{dst} {kind}", *layouts, CONVERSIONS[kind]()))

    def work(comm):
        got = []
        with xfer.Plan(comm, tensors, lane=lane) as plan:
            for name, from_layout, to_layout, _ in tensors:
                mine = from_layout.cut(bits, comm.rank)
                got.append(np.zeros(to_layout.local_shape(comm.rank), BITS[to_layout.dtype]))
                plan.bind(name, as_view(mine, src), as_view(got[-1], to_layout.dtype))
            plan.commit()
            plan.run(1)
            plan.wait()
        return got

    parts = on_ranks(3, work)
    for i, (dst, kind) in enumerate(pairs):
        whole = np.concatenate([part[i] for part in parts])
        np.testing.assert_array_equal(whole, expected(bits, src, dst, kind), err_msg=f"{src} {kind} {dst}")


def test_a_difference_of_dtypes_without_a_conversion_is_an_error():
    src, dst = Layout.parse("f32[4] (1):R"), Layout.parse("bf16[4] (1):R")
    with pytest.raises(xfer.ShapeError, match="no conversion is asked for"):
        xfer.Plan.simulate(1, 0, [("w", src, dst)])
    with pytest.raises(TypeError, match="comes a Conversion"):
        xfer.Plan.simulate(1, 0, [("w", src, dst, "cast")])
    assert xfer.Plan.simulate(1, 0, [("w", src, dst, Conversion.cast())]).report()["converted_tensors"] == 1


def test_a_conversion_says_what_it_does():
    for said in ("cast()", "scale(0.5)", "add(-1)", "blocks(128, 64, 'mx')", "blocks(1, 32, 'f32')", "scales_of(7)"):
        assert repr(eval(f"Conversion.{said}")) == f"Conversion.{said}"
    assert repr(Conversion.scale(np.float32(0.5))) == repr(Conversion.scale(np.array(0.5))) == "Conversion.scale(0.5)"
    assert Conversion.add(1) == Conversion.add(1) != Conversion.add(2)
    assert len({Conversion.cast(), Conversion.cast(), Conversion.scales_of(1)}) == 2


def test_a_conversion_is_copied_and_pickled():
    each = [
        Conversion.cast(),
        Conversion.scale(0.3),
        Conversion.add(-1.5),
        Conversion.blocks(128, 64, "pow2"),
        Conversion.scales_of(1 << 40),
    ]
    for made in (pickle.loads(pickle.dumps(each)), copy.deepcopy(each), [copy.copy(one) for one in each]):
        assert made == each


def test_ranks_that_say_other_conversions_are_told_both():
    src, dst = Layout.parse("f32[4] (2):R"), Layout.parse("bf16[4] (2):R")

    def work(comm):
        xfer.Plan(comm, [("w", src, dst, Conversion.add(1) if comm.rank == 1 else Conversion.cast())])

    for outcome in outcomes(2, work):
        assert isinstance(outcome, xfer.MismatchError)
        assert 'rank 1 has conversion "add 1", rank 0 has conversion "cast"' in str(outcome)


def test_a_rank_that_wants_no_conversion_is_told_so():
    src, dst = xfer.parse_problem("f32[4] (2):R -> (2):R")

    def work(comm):
        xfer.Plan(comm, [("w", src, dst, *[Conversion.add(1)] * comm.rank)])

    for outcome in outcomes(2, work):
        assert 'rank 1 has conversion "add 1", rank 0 has no conversion' in str(outcome)


def test_ranks_of_other_flags_are_told_what_these_are():
    def work(comm):
        xfer.Plan(comm, [], verify=comm.rank == 1)

    for outcome in outcomes(2, work):
        assert "plan option flags is 1 on rank 1, 0 on rank 0 (1 verify, 2 staged, 4 fresh sources)" in str(outcome)
