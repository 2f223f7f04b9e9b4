"""Placements and layouts: which elements of a tensor each rank of a mesh holds. Also layouts as a line of text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from ctypes import byref, c_int, c_int32, c_int64, c_size_t, create_string_buffer, pointer
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar, overload

from ._binding import structs as _structs
from ._binding.handle import DataHandle, Handle
from ._binding.lib import lib
from ._binding.structs import array, checked, choice, decoded, encoded, items, length, listed, needed, truth
from .dtypes import dtype_code, itemsize, name_of_code
from .errors import ArgError
from .mesh import Mesh
from .typing import Dtype

__all__ = [
    "Layout",
    "Placement",
    "Replicate",
    "Runs",
    "Shard",
    "StridedShard",
    "format_problem",
    "parse_problem",
]

Box = tuple[Sequence[int], Sequence[int]]  # lo and hi of each dim, half-open
Range = tuple[int, int]  # the first index and the one past the last
_WholeArray = TypeVar("_WholeArray")
_RULES = {"chunk": 0, "balanced": 1, "even": 2}


@dataclass(frozen=True)
class Placement:
    """How one mesh axis distributes a tensor: Replicate, Shard, StridedShard or Runs."""

    def __post_init__(self) -> None:
        self._struct()  # raises what is wrong with the placement

    def _struct(self) -> _structs.Placement:
        """Return the placement as C has it. Raises what is wrong with it."""
        raise TypeError("a Placement is a Replicate, Shard, StridedShard or Runs")


@dataclass(frozen=True)
class Replicate(Placement):
    """Every coordinate of the mesh axis holds the same elements."""

    def _struct(self) -> _structs.Placement:
        return lib.xfer_replicate()


@dataclass(frozen=True)
class Shard(Placement):
    """The mesh axis splits `dim` (negative counts from the end).

    rule: "chunk" like torch.chunk and DTensor, where the last parts may be short or empty; "balanced" like
    torch.tensor_split, where the first parts hold one more; "even": the axis must divide the dim.
    """

    dim: int
    rule: str = "chunk"

    def _struct(self) -> _structs.Placement:
        return lib.xfer_shard_rule(self.dim, choice(self.rule, _RULES, "rule"))


@dataclass(frozen=True)
class StridedShard(Placement):
    """The mesh axis splits `dim` into `split_factor` pieces, and each of them by chunk, like DTensor's
    _StridedShard."""

    dim: int
    split_factor: int

    def _struct(self) -> _structs.Placement:
        return lib.xfer_shard_strided(self.dim, self.split_factor)


@dataclass(frozen=True)
class Runs(Placement):
    """The mesh axis splits `dim` by explicit runs: runs[i] lists the (global, length, local) of coordinate i, whose
    part has local_lengths[i] indices. With `allow_zero`, local indices may lie in no run, and a run of the plan zeroes
    those of a destination."""

    dim: int
    runs: Sequence[Sequence[tuple[int, int, int]]]
    local_lengths: Sequence[int]
    allow_zero: bool = False

    def _struct(self) -> _structs.Placement:
        if len(listed(self.local_lengths, "local_lengths")) != len(listed(self.runs, "runs")):
            raise ValueError(f"{len(self.local_lengths)} local lengths for the runs of {len(self.runs)} coordinates")
        flat = [_run(run) for coordinate in self.runs for run in listed(coordinate, "the runs of a coordinate")]
        first = [0]
        for coordinate in self.runs:
            first.append(first[-1] + len(coordinate))
        table = _structs.RunTable(
            array(_structs.Run, flat, "runs"),
            array(c_int64, first, "first"),
            array(c_int64, self.local_lengths, "local_lengths"),
            len(self.runs),
            int(truth(self.allow_zero, "allow_zero")),
        )
        placement = lib.xfer_shard_runs(self.dim, pointer(table))
        placement.table_ = table  # keeps the table alive
        return placement


def _run(run: Sequence[int]) -> _structs.Run:
    """Return a run as C has it."""
    return _structs.Run(*items(run, 3, "a run is (global, length, local)"))


def _zeros(like: Any, shape: Sequence[int]) -> Any:
    """Return a new array of zeros, of the same library, dtype and device as `like`."""
    if hasattr(like, "new_zeros"):  # a tensor of torch
        return like.new_zeros(shape)
    from numpy import zeros_like

    return zeros_like(like, shape=shape)


# A rank's part: its dtype, its shape if it can be one array, and the shapes of its boxes if the layout is by boxes.
_Part = tuple[str, tuple[int, ...] | None, list[tuple[int, ...]] | None]


class Layout(DataHandle):
    """Which elements of one tensor each rank of a mesh holds. It says nothing about memory. Two layouts are equal if
    format_problem() writes them alike and their tables of runs are the same. A layout may be copied and pickled.

    shape: the tensor's global shape, 0 to 8 sizes. dtype: the library's name ("bf16"), or a dtype of torch or NumPy.
    placements: one per mesh axis. padded_shape: the sizes that are split, each at least that of shape; they determine
    local parts. order: every axis once, the order in which axes that split the same dim split it.

    Raises ArgError, ShapeError and SizeError as xfer_layout_create() does, and TypeError for an unknown dtype.
    """

    _kind = "layout"
    _by_boxes = False
    _own = False  # whether it is the calling rank's alone; queries then take that rank as rank 0
    _is_borrowed = False  # whether a refit owns the object of C
    _with_tables: tuple[Any, ...] = ()  # its constructor's arguments, if it has tables of runs, which no line describes

    def __init__(
        self,
        mesh: Mesh,
        shape: Sequence[int],
        dtype: Dtype,
        placements: Sequence[Placement],
        padded_shape: Sequence[int] | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self._parts: dict[int, _Part] = {}
        self._line = ""
        needed("mesh", mesh, "mesh")
        listed(shape, "shape")
        for placement in listed(placements, "placements"):
            if not isinstance(placement, Placement):
                raise TypeError(f"{placement!r} is no placement: it is Replicate, Shard, StridedShard or Runs")
        if padded_shape is not None and length(padded_shape, "padded_shape") != len(shape):
            raise ValueError(f"{len(padded_shape)} padded sizes for {len(shape)} dims")
        structs = [placement._struct() for placement in placements]
        desc = _structs.sized(
            _structs.LayoutDesc,
            mesh=mesh,
            dtype=dtype_code(dtype),
            n_dims=len(shape),
            shape=array(c_int64, shape, "shape"),
            padded_shape=array(c_int64, padded_shape, "padded_shape"),
            placements=array(_structs.Placement, structs, "placements"),
            n_placements=len(structs),
            n_order=length(order, "order"),
            order=array(c_int32, order, "order"),
        )
        lib.xfer_layout_create(self._out(), byref(desc))
        if any(isinstance(placement, Runs) for placement in placements):
            sizes = None if padded_shape is None else tuple(padded_shape)
            axes = None if order is None else tuple(order)
            self._with_tables = copy(mesh), tuple(shape), self.dtype, deepcopy(list(placements)), sizes, axes

    @classmethod
    def _empty(cls) -> Layout:
        """Return a Layout without an object of C."""
        layout = cls.__new__(cls)
        Handle.__init__(layout)
        layout._parts, layout._line = {}, ""
        return layout

    @classmethod
    def parse(cls, line: str) -> Layout:
        """Return the layout that a line describes, such as "f32[17,11] (3,2)@0-5:S0b,S1": one side of a redistribution.

        Raises ArgError with the column where the line does not parse.
        """
        layout = cls._empty()
        lib.xfer_layout_parse(layout._out(), encoded(line, "line"))
        layout._by_boxes = "{" in line
        return layout

    @overload
    @classmethod
    def by_boxes(cls, mesh: None, shape: Sequence[int], dtype: Dtype, boxes: Sequence[Box]) -> Layout: ...
    @overload
    @classmethod
    def by_boxes(cls, mesh: Mesh, shape: Sequence[int], dtype: Dtype, boxes: Sequence[Sequence[Box]]) -> Layout: ...

    @classmethod
    def by_boxes(cls, mesh: Mesh | None, shape: Sequence[int], dtype: Dtype, boxes: Sequence[Any]) -> Layout:
        """Make a layout from the boxes of each rank, each (lo, hi), half-open: of a recorded load, or a sharded state
        dict.

        mesh: boxes[i] lists the boxes of its i-th rank. None: `boxes` lists this rank's own boxes, and making a plan
        gathers those of the others. Boxes of a rank may overlap or be equal; elements of a box past the shape are ZERO
        elements.

        Raises ShapeError for a box with hi below lo, ValueError for bounds with a wrong number of dims.
        """
        checked("mesh", mesh, "mesh")
        lists = [listed(boxes, "boxes")] if mesh is None else boxes
        listed(shape, "shape")
        if mesh is not None and len(listed(lists, "boxes")) != len(mesh):
            raise ValueError(f"{len(lists)} lists of boxes for a mesh of {len(mesh)}")
        first, bounds = [0], []
        for of_rank in lists:
            for box in listed(of_rank, "the boxes of a rank"):
                lo, hi = items(box, 2, "a box is (lo, hi)")
                if len(listed(lo, "lo")) != len(shape) or len(listed(hi, "hi")) != len(shape):
                    raise ValueError(f"a box of {len(lo)} and {len(hi)} bounds for {len(shape)} dims")
                bounds += [*lo, *hi]
            first.append(first[-1] + len(of_rank))
        return cls._of_desc(lib.xfer_layout_create_boxes, mesh, shape, dtype, first, bounds)

    @overload
    @classmethod
    def by_ranges(cls, mesh: None, shape: Sequence[int], dtype: Dtype, ranges: Range) -> Layout: ...
    @overload
    @classmethod
    def by_ranges(cls, mesh: Mesh, shape: Sequence[int], dtype: Dtype, ranges: Sequence[Range]) -> Layout: ...

    @classmethod
    def by_ranges(cls, mesh: Mesh | None, shape: Sequence[int], dtype: Dtype, ranges: Sequence[Any]) -> Layout:
        """Make a layout from a range (first, past the last) of the row-major order for each rank, as FSDP1, ZeRO-3 and
        Megatron's distributed optimizer cut flattened tensors.

        mesh: ranges[i] is the range of its i-th rank. None: `ranges` is this rank's own range, and making a plan
        gathers those of the others. A range may be empty, or extend past the end as padding; a dense array is the range
        itself.
        """
        checked("mesh", mesh, "mesh")
        listed(shape, "shape")
        pairs = [ranges] if mesh is None else listed(ranges, "ranges")
        if mesh is not None and len(pairs) != len(mesh):
            raise ValueError(f"{len(pairs)} ranges for a mesh of {len(mesh)}")
        both = [items(pair, 2, "a range is (first, past the last)") for pair in pairs]
        bounds = [_structs.whole(bound, "a bound") for pair in both for bound in pair]
        return cls._of_desc(lib.xfer_layout_create_flat, mesh, shape, dtype, None, bounds)

    @classmethod
    def _of_desc(
        cls, create: Any, mesh: Mesh | None, shape: Sequence[int], dtype: Dtype, first: Any, bounds: list[int]
    ) -> Layout:
        """Make a layout by boxes. create: the maker of C."""
        layout = cls._empty()
        layout._by_boxes, layout._own = True, mesh is None
        desc = _structs.sized(
            _structs.BoxesDesc,
            mesh=mesh,
            dtype=dtype_code(dtype),
            n_dims=len(shape),
            shape=array(c_int64, shape, "shape"),
            first=array(c_int64, first, "first"),
            bounds=array(c_int64, bounds, "bounds"),
        )
        create(layout._out(), byref(desc))
        return layout

    def _part(self, rank: int) -> _Part:
        """Return what a rank holds. C is asked once."""
        self._check_open()
        if rank not in self._parts:
            boxes = None
            if self._by_boxes:
                boxes = [tuple(b - a for a, b in zip(lo, hi, strict=True)) for lo, hi in self.boxes(rank)]
            shape = self.local_shape(rank) if boxes is None or len(boxes) == 1 else None
            self._parts[rank] = self.dtype, shape, boxes
        return self._parts[rank]

    @property
    def dtype(self) -> str:
        """The element type by the library's name, such as "bf16"."""
        return name_of_code(lib.xfer_layout_dtype(self))

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return itemsize(self.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's global shape."""
        sizes = (c_int64 * _structs.MAX_DIMS)()
        return tuple(sizes[: lib.xfer_layout_shape(self, sizes)])

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the mesh in its order, including those that hold nothing; (0,) without a mesh."""
        ranks = (c_int * lib.xfer_layout_ranks(self, None))()
        lib.xfer_layout_ranks(self, ranks)
        return tuple(ranks)

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's part, padding included. Raises ArgError for a rank that is not in the mesh."""
        sizes = (c_int64 * _structs.MAX_DIMS)()
        lib.xfer_layout_local_shape(self, rank, sizes)
        return tuple(sizes[: lib.xfer_layout_shape(self, None)])

    def local_bytes(self, rank: int) -> int:
        """Return the bytes of a rank's part, padding included; 0 for a rank that is not in the mesh."""
        return int(lib.xfer_layout_local_bytes(self, rank))

    def global_index(self, rank: int, element: int) -> tuple[int, ...] | None:
        """Return the global index of an element of a rank's part, or None for a ZERO element. `element` counts in the
        order of a dense array. Raises ArgError if the rank is not in the mesh or has no such element."""
        index = (c_int64 * _structs.MAX_DIMS)()
        lib.xfer_layout_global_index(self, rank, element, index)
        found = tuple(index[: lib.xfer_layout_shape(self, None)])
        return None if -1 in found else found

    def cut(self, whole: _WholeArray, rank: int) -> _WholeArray | None:
        """Copy a rank's part out of a whole array. Returns a new dense array, in which ZERO elements are 0 and several
        boxes follow each other in one dim, or None if the rank is not in the mesh; calls take either as it is.

        whole: an array of torch, NumPy or CuPy with the layout's shape and elements of any type. Raises ValueError if
        it has another shape.
        """
        source: Any = whole
        if tuple(source.shape) != self.shape:
            raise ValueError(f"an array of shape {tuple(source.shape)} for a tensor of shape {self.shape}")
        rank = 0 if self._own else rank
        try:
            _, shape, boxes = self._part(rank)
        except ArgError:
            return None
        if hasattr(source, "detach"):  # a tensor of torch, whose copy needs no gradient
            source = source.detach()
        part: _WholeArray = self._cut(source, rank, shape, boxes)
        return part

    def _cut(self, whole: Any, rank: int, shape: tuple[int, ...] | None, boxes: list[tuple[int, ...]] | None) -> Any:
        """Do the work of cut(). shape, boxes: those of the rank's part."""
        part = _zeros(whole, (sum(math.prod(box) for box in boxes or ()),) if shape is None else shape)
        if boxes is None:
            for runs in product(*(self.runs(rank, dim) for dim in range(len(self.shape)))):
                held = whole[tuple(slice(start, start + n) for start, n, _ in runs)]
                part[tuple(slice(local, local + n) for _, n, local in runs)] = held
            return part
        flat, at = part.reshape(-1), 0
        for box, (lo, hi) in zip(boxes, self.boxes(rank), strict=True):
            piece, at = flat[at : at + math.prod(box)].reshape(box), at + math.prod(box)
            held = whole[tuple(slice(start, end) for start, end in zip(lo, hi, strict=True))]
            piece[tuple(slice(0, n) for n in held.shape)] = held  # the array has nothing past the shape
        return part

    def runs(self, rank: int, dim: int) -> list[tuple[int, int, int]]:
        """Return [(global, length, local), ...]: the runs of one dim that a rank holds, maximal and ascending in
        local."""
        n = c_size_t()
        lib.xfer_layout_runs(self, rank, dim, None, 0, byref(n))
        runs = (_structs.Run * n.value)()
        lib.xfer_layout_runs(self, rank, dim, runs, n.value, byref(n))
        return [(getattr(run, "global"), run.length, run.local) for run in runs]

    def boxes(self, rank: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return [(lo, hi), ...]: the boxes that a rank holds, in the order of its list."""
        n, n_dims = c_size_t(), len(self.shape)
        lib.xfer_layout_boxes(self, rank, None, 0, byref(n))
        bounds = (c_int64 * (2 * n_dims * n.value))()
        lib.xfer_layout_boxes(self, rank, bounds, n.value, byref(n))
        flat = [tuple(bounds[i * n_dims : (i + 1) * n_dims]) for i in range(2 * n.value)]
        return list(zip(flat[::2], flat[1::2], strict=True))

    def owners(self, index: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Return [(rank, local index), ...]: every place that holds a global index."""
        if len(listed(index, "index")) != len(self.shape):
            raise ValueError(f"{len(index)} indices for {len(self.shape)} dims")
        n = c_size_t()
        where = array(c_int64, index, "index")
        lib.xfer_layout_owners(self, where, None, 0, byref(n))
        owners = (_structs.Owner * n.value)()
        lib.xfer_layout_owners(self, where, owners, n.value, byref(n))
        return [(owner.rank, tuple(owner.local[: len(index)])) for owner in owners]

    def _said(self) -> str:
        """Return a text that is equal for equal layouts without tables of runs. It does not change."""
        self._line = self._line or format_problem(self, None).removesuffix(" -> ?") + " of its own" * self._own
        return self._line

    def _made_by(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._own:
            return Layout.by_boxes, (None, self.shape, self.dtype, self.boxes(0))
        if self._with_tables:
            return Layout, self._with_tables
        if "x" in self._said():
            raise TypeError(f"{self!r} has tables of runs of a refit: it cannot be copied or pickled; make it anew")
        return Layout.parse, (self._said(),)

    def _destroy(self, handle: Any) -> None:
        if not self._is_borrowed:
            super()._destroy(handle)

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Layout):
            return self is other
        return self._said() == other._said() and ("x" not in self._line or self._tables() == other._tables())

    def _tables(self) -> list[Any]:
        """Return what the tables of runs amount to on each rank."""
        dims = range(len(self.shape))
        return [(self.local_shape(rank), [self.runs(rank, dim) for dim in dims]) for rank in self.ranks]

    def __hash__(self) -> int:
        return hash(self._said())

    def __repr__(self) -> str:
        return "<Layout closed>" if self.closed else self._repr(format_problem(self, None).removesuffix(" -> ?"))


def parse_problem(line: str) -> tuple[Layout, Layout]:
    """Return the (source, destination) layouts of a line such as "f32[8,6] (2):S0 -> (2,2)@2-5:S1,R".

    Raises ArgError with the column if the line does not parse.
    """
    src, dst = Layout._empty(), Layout._empty()
    lib.xfer_problem_parse(src._out(), dst._out(), encoded(line, "line"))
    src._by_boxes, dst._by_boxes = ("{" in side for side in line.split(" -> "))
    return src, dst


def format_problem(src: Layout | None, dst: Layout | None) -> str:
    """Return the line that describes two layouts; it has "?" for None."""
    n = lib.xfer_problem_format(None, 0, src, dst) + 1
    text = create_string_buffer(n)
    lib.xfer_problem_format(text, n, src, dst)
    return decoded(text.value)
