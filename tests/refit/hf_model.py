"""Model tables: the names, shapes and dtypes of a Hugging Face checkpoint, and the values that a test fills it with.

A tensor is never materialised whole: `HfTensor.narrow` (torch's word) describes a box of it and `Narrowed.load` computes
the box's values from their global indices.
"""

import dataclasses
import functools
import itertools
import json
import re

import numpy as np

import converted

ELEMENT_BYTES = {
    "bf16": 2,
    "f16": 2,
    "f32": 4,
    "f64": 8,
    "f8e4m3": 1,
    "f8e5m2": 1,
    "f8e8m0": 1,
    "i8": 1,
    "u8": 1,
    "i32": 4,
    "i64": 8,
}
_CHUNK = 32768  # elements worked on at a time: they stay in the L2 cache


@dataclasses.dataclass(frozen=True)
class Quant:
    """A way to quantise weights: rows and columns of a block, what is behind a weight's name in that of its scales, and
    the scales' dtype."""

    block: tuple
    suffix: str
    dtype: str


QUANTS = {"fp8_per_block": Quant((128, 128), "_scale_inv", "f32"), "mxfp8": Quant((1, 32), "_scale", "f8e8m0")}


class TableError(Exception):
    """The table, or the combination of options, is not one that this reference knows."""


def words(dtype):
    """The unsigned NumPy type whose values are the raw bytes of a dtype's elements."""
    return np.dtype("<u%d" % ELEMENT_BYTES[dtype])


def ceil_div(a, b):
    """Division rounded up."""
    return -(-a // b)


# ---- values ---------------------------------------------------------------------------------------------------------


def fnv1a64(text):
    """The 64-bit FNV-1a hash of a text's bytes."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def _splitmix64(x, scratch):
    """splitmix64 of every element of the uint64 array `x`, in place; `scratch` has the same shape."""
    x += np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        np.right_shift(x, np.uint64(shift), out=scratch)
        x ^= scratch
        x *= np.uint64(factor)
    np.right_shift(x, np.uint64(31), out=scratch)
    x ^= scratch


def fill(name, shape, dtype, start, size):
    """The values of a box of tensor `name` of global shape `shape`: an array of shape `size` from index `start` on.

    An element is the low bytes of splitmix64(fnv1a64(name) + its row-major global index).
    """
    seed = fnv1a64(name)
    out = np.empty(size, words(dtype))
    if out.size == 0:
        return out
    n_outer = max(len(shape) - 1, 0)  # dims before those that make one contiguous run
    while n_outer > 0 and start[n_outer] == 0 and size[n_outer] == shape[n_outer]:
        n_outer -= 1
    strides = [int(np.prod(shape[d + 1 :], dtype=np.int64)) for d in range(len(shape))]
    offset = sum(s * stride for s, stride in zip(start, strides))
    outer = np.full((1,), (seed + offset) & 0xFFFFFFFFFFFFFFFF, np.uint64)
    for d in range(n_outer):
        steps = np.arange(size[d], dtype=np.uint64) * np.uint64(strides[d])
        outer = (outer[:, None] + steps[None, :]).reshape(-1)
    run = out.size // outer.size

    flat = out.reshape(outer.size, run)
    row_step, col_step = max(1, _CHUNK // run), min(run, _CHUNK)
    columns = np.arange(col_step, dtype=np.uint64)
    for row in range(0, outer.size, row_step):
        for col in range(0, run, col_step):
            part = flat[row : row + row_step, col : col + col_step]
            x = (outer[row : row + row_step] + np.uint64(col))[:, None] + columns[None, : part.shape[1]]
            _splitmix64(x, np.empty_like(x))
            part[...] = x.astype(part.dtype)  # the cast keeps the low bytes
    return out


@dataclasses.dataclass(frozen=True)
class Narrowed:
    """A box of a tensor: for each dim a start and a size."""

    tensor: "HfTensor"
    start: tuple
    shape: tuple

    def narrow(self, dim, start, length):
        """torch.narrow: keep [start, start + length) of one dim."""
        if not 0 <= start <= start + length <= self.shape[dim]:
            raise TableError(f"{self.tensor.name}: narrow({dim}, {start}, {length}) of {list(self.shape)}")
        starts, sizes = list(self.start), list(self.shape)
        starts[dim] += start
        sizes[dim] = length
        return Narrowed(self.tensor, tuple(starts), tuple(sizes))

    def load(self):
        """The box's values as raw words."""
        t = self.tensor
        if t.source is None:
            return fill(t.name, t.shape, t.dtype, self.start, self.shape)
        if t.scales_of is not None:
            return converted.scale_words(t.scales_of.box_scales(self.start, self.shape), t.dtype)
        if t.dtype == "f8e4m3":
            return t.box_quantised(self.start, self.shape)
        return converted.rounded(t.box_numbers(self.start, self.shape), t.dtype)


@dataclasses.dataclass(frozen=True)
class HfTensor:
    """One tensor of the checkpoint."""

    name: str
    shape: tuple
    dtype: str
    source: str = None  # the dtype that the training side has it in, and it is converted
    scales_of: "HfTensor" = None  # of these weights, quantised on the way
    quant: Quant = QUANTS["fp8_per_block"]  # of a weight with scales, and of these

    def box_numbers(self, start, size):
        """What the source has in a box."""
        return converted.of_words(fill(self.name, self.shape, "i64", start, size), self.source)

    def box_scales(self, start, size):
        """The scales of a box of blocks."""
        block = self.quant.block
        first = [s * b for s, b in zip(start, block)]
        last = [min((s + n) * b, whole) for s, n, b, whole in zip(start, size, block, self.shape)]
        return converted.scales(self.box_numbers(first, [b - a for a, b in zip(first, last)]), block, self.quant.dtype)

    def box_quantised(self, start, size):
        """A box of the weights, by way of the blocks that it has a part of."""
        block = self.quant.block
        first = [s // b * b for s, b in zip(start, block)]
        last = [min(ceil_div(s + n, b) * b, whole) for s, n, b, whole in zip(start, size, block, self.shape)]
        numbers = self.box_numbers(first, [b - a for a, b in zip(first, last)])
        all_of = converted.quantised(numbers, block, self.quant.dtype)
        return all_of[tuple(slice(s - f, s - f + n) for s, f, n in zip(start, first, size))]

    @property
    def is_scales(self):
        """Scales of a weight beside it."""
        return self.name.endswith(("weight_scale_inv", "weight_scale"))

    @property
    def whole(self):
        """The box that is all of the tensor."""
        return Narrowed(self, (0,) * len(self.shape), self.shape)

    @functools.cached_property
    def layer(self):
        """The layer's number, None outside the layers."""
        found = re.search(r"(?:^|\.)layers\.(\d+)\.", self.name)
        return int(found[1]) if found else None

    @functools.cached_property
    def expert(self):
        """The routed expert's number, None if it is not a per-expert tensor."""
        found = re.search(r"\.experts\.(\d+)\.", self.name)
        return int(found[1]) if found else None

    @property
    def n_bytes(self):
        """Bytes of the whole tensor."""
        return int(np.prod(self.shape, dtype=np.int64)) * ELEMENT_BYTES[self.dtype]


# ---- tables ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Model:
    """A model: its config and its tensors by name, in table order."""

    name: str
    config: dict
    tensors: dict
    experts: list  # global numbers of the kept routed experts, ascending


def _placeholder_values(param, key):
    """The numbers that one placeholder of a pattern stands for: "layer": [first, last] or "layer_list": [...]."""
    if key + "_list" in param:
        return param[key + "_list"]
    first, last = param[key]
    return range(first, last + 1)


def _expand(params):
    """All tensors of a list of table entries."""
    for param in params:
        shape, dtype = tuple(param["shape"]), param["dtype"]
        if "name" in param:
            yield HfTensor(param["name"], shape, dtype)
            continue
        keys = re.findall(r"{(\w+)}", param["pattern"])
        for values in itertools.product(*(_placeholder_values(param, key) for key in keys)):
            yield HfTensor(param["pattern"].format(**dict(zip(keys, values))), shape, dtype)


def _quantised(tensors, quant):
    """The linear layers' weights become f8e4m3, with scales beside them."""
    for t in tensors:
        if not re.search(r"\.(q|k|v|o|gate|up|down)_proj\.weight$", t.name):
            yield t
            continue
        if t.dtype not in ("bf16", "f16", "f32"):
            raise TableError(f"quant=: {t.name} is {t.dtype} already")
        yield HfTensor(t.name, t.shape, "f8e4m3", quant=quant)
        blocks = tuple(ceil_div(n, size) for n, size in zip(t.shape, quant.block))
        yield HfTensor(t.name + quant.suffix, blocks, quant.dtype, quant=quant)


def _kept(tensor, layers, experts, ends):
    """Whether the selection keeps a tensor; `layers` and `experts` are (first, last) or None for all."""
    if tensor.layer is None:
        return layers is None or ends
    if layers is not None and not layers[0] <= tensor.layer <= layers[1]:
        return False
    return tensor.expert is None or experts is None or experts[0] <= tensor.expert <= experts[1]


def load_model(path, layers=None, experts=None, ends=False, quant=None, extra=()):
    """Read a table file and keep what the selection says."""
    with open(path, encoding="utf-8") as file:
        table = json.load(file)
    if table.get("format") != "xfer-model-v1":
        raise TableError(f"{path}: not an xfer-model-v1 table")
    params = list(table["params"])
    for name in extra:
        params += table["extra_params"][name]
    tensors = _expand(params)
    if quant is not None:
        tensors = _quantised(tensors, QUANTS[quant])

    by_name = {}
    for t in tensors:
        if not _kept(t, layers, experts, ends):
            continue
        if experts is not None and re.search(r"\.experts\.(gate_up|down)_proj", t.name):
            raise TableError("--experts is not defined for fused expert tensors")
        if t.name in by_name:
            raise TableError(f"{t.name} is twice in the table")
        by_name[t.name] = t
    if not by_name:
        raise TableError("the selection keeps no tensor")
    numbers = sorted({t.expert for t in by_name.values() if t.expert is not None})
    return Model(table.get("name", path), table.get("config", {}), by_name, numbers)


def held_in(model, dtype):
    """The same model where the training side has all in `dtype` that the table has not in f32."""
    weights = {name + t.quant.suffix: name for name, t in model.tensors.items() if t.dtype == "f8e4m3"}
    tensors = {}
    for name, t in model.tensors.items():
        if name in weights:
            t = dataclasses.replace(t, source=dtype, scales_of=tensors[weights[name]])
        elif t.dtype not in ("f32", dtype):
            t = dataclasses.replace(t, source=dtype)
        tensors[name] = t
    return dataclasses.replace(model, tensors=tensors)
