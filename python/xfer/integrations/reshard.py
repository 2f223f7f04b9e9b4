"""reshard() with the parameters of NCCL M2N's function, and xferdtensor() with those of NeMo-RL's. Each rank passes its
own local tensor, and all ranks pass the meshes and placements of both sides.

    import nemo_rl.weight_sync.xferdtensor as theirs
    from xfer.integrations import reshard
    theirs.xferdtensor = reshard.xferdtensor    # or `theirs._reshard = reshard.reshard`, for even sizes only

A plan is made once for each combination of shapes, meshes and placements. Data moves in place on both sides, for any
number of mesh axes and tensor dims.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from .._binding.structs import listed, whole
from ..dtypes import dtype_name
from ..errors import MismatchError
from ..layout import Layout, Placement, Replicate, Shard
from ..memory import memory_of
from ..mesh import Mesh
from ..redistribution import Sides, redistribute_again
from ..typing import Dtype, Group, PlainArray, Stream
from ._comms import comm_of, drop_comm

__all__ = ["drop_comm", "reshard", "xferdtensor"]

Axes = tuple[tuple[int, ...], tuple[int, ...]]  # sizes, and ranks row-major
Cuts = tuple[int | None, ...]  # the dim that each mesh axis cuts, or None


class HasMesh(Protocol):
    """A mesh of torch or of a framework, whose `mesh` is a tensor or an array of ranks."""

    @property
    def mesh(self) -> Any: ...


class M2nMesh(Protocol):
    """A mesh of NCCL M2N, whose ranks are consecutive."""

    @property
    def dims(self) -> Sequence[int]: ...
    @property
    def start_rank(self) -> int: ...


class HasLocalTensor(Protocol):
    """A tensor of NeMo-RL: its global shape, and as `_local_tensor` this rank's part."""

    @property
    def shape(self) -> Sequence[int]: ...


AnyMesh: TypeAlias = Sequence[Any] | HasMesh | M2nMesh  # the first is nested lists of ranks


def _axes(mesh: Any) -> Axes:
    """Return the axes of a mesh, given as nested lists of ranks, as an object that has them as a tensor `mesh`, or as
    NCCL M2N's Mesh, whose ranks are consecutive."""
    if hasattr(mesh, "start_rank"):
        dims, first = _sizes(mesh.dims, "a mesh"), whole(mesh.start_rank, "a rank of a mesh")
        return dims, tuple(range(first, first + math.prod(dims)))
    mesh = getattr(mesh, "mesh", mesh)
    rows = mesh.tolist() if hasattr(mesh, "tolist") else mesh
    rows = [rows] if isinstance(rows, int) else listed(rows, "a mesh")
    sizes = [len(rows)]
    while rows and isinstance(rows[0], list | tuple):
        sizes.append(len(rows[0]))
        if any(not isinstance(row, list | tuple) or len(row) != sizes[-1] for row in rows):
            raise ValueError(f"the rows of the mesh have different lengths: {mesh}")
        rows = [each for row in rows for each in row]
    return tuple(sizes), tuple(whole(rank, "a rank of a mesh") for rank in rows)


def _sizes(shape: Any, name: str) -> tuple[int, ...]:
    """Return a shape as a tuple, after a check of each size."""
    return tuple(whole(n, f"a size of {name}") for n in listed(shape, name))


def _cuts(placements: Sequence[Any], axes: Axes, n_dims: int) -> Cuts:
    """Return which dim each mesh axis cuts.

    placements: of torch, NCCL M2N or vLLM, told apart by the names of their classes. A number is the dim of a Shard, as
    in M2N. There may be fewer placements than axes if the remaining axes have one rank, as in M2N.
    """
    cuts: list[int | None] = []
    for placement in listed(placements, "placements"):
        kind = type(placement).__name__
        if kind not in ("Shard", "Replicate", "int"):
            raise TypeError(
                f"{placement!r} is neither Shard nor Replicate: redistribute the tensor to one of these first"
            )
        cuts.append(None if kind == "Replicate" else _dim(placement, n_dims))
    left = axes[0][len(cuts) :]
    return (*cuts, *(None for n in left if set(left) == {1}))


def _dim(placement: Any, n_dims: int) -> int:
    """Return the dim that a Shard cuts, counted from the start."""
    dim = whole(getattr(placement, "dim", placement), "the dim of a Shard")
    if not -n_dims <= dim < n_dims:
        raise IndexError(f"{placement!r} cuts a dim that a tensor of {n_dims} dims does not have")
    return dim % n_dims


@lru_cache(maxsize=4096)
def _layout(axes: Axes, cuts: Cuts, shape: tuple[int, ...], dtype: str) -> Layout:
    placements: list[Placement] = [Replicate() if dim is None else Shard(dim) for dim in cuts]
    return Layout(Mesh(*axes), shape, dtype, placements)


@dataclass(frozen=True)
class _Side:
    """What this rank knows of one side."""

    axes: Axes
    placements: Sequence[Any]
    local: tuple[int, ...] | None
    dtype: str | None

    @classmethod
    def of(cls, x: Any, mesh: Any, placements: Sequence[Any], local_shape: Any, dtype: Any) -> _Side:
        """Make a side from what the caller passed. The array `x`, if there is one, tells the local shape and the
        dtype."""
        local = None if local_shape is None else _sizes(local_shape, "a local shape")
        if x is not None:
            memory = memory_of(x)
            local, dtype = memory.shape, memory.dtype
        return cls(_axes(mesh), placements, local, None if dtype is None else dtype_name(dtype))

    def shape(self) -> tuple[int, ...] | None:
        """Return the global shape if all parts have the same shape, or None if this rank does not know its local
        shape."""
        if self.local is None:
            return None
        cuts = _cuts(self.placements, self.axes, len(self.local))
        if len(cuts) != len(self.axes[0]):
            raise ValueError(f"{len(cuts)} placements for a mesh of {len(self.axes[0])} axes: give one for each axis")
        n_parts = [
            math.prod(n for n, dim in zip(self.axes[0], cuts, strict=True) if dim == d) for d in range(len(self.local))
        ]
        return tuple(n * parts for n, parts in zip(self.local, n_parts, strict=True))


def _layouts(src: _Side, dst: _Side, global_shape: Sequence[int] | None) -> list[Layout | None]:
    """Return the layouts of both sides, or [None, None] on a rank that knows neither shape nor dtype and receives them
    from the others."""
    shape = (
        (src.shape() if src.local is not None else dst.shape())
        if global_shape is None
        else _sizes(global_shape, "global_shape")
    )
    dtype = src.dtype or dst.dtype
    if shape is None or dtype is None:
        return [None, None]
    return [_layout(side.axes, _cuts(side.placements, side.axes, len(shape)), shape, dtype) for side in (src, dst)]


def _key(src: Any, dst: Any, global_shape: Sequence[int] | None) -> Any:
    """Return everything about a call except where its arrays lie, or None if something is wrong, which _sides() then
    raises. src, dst: the arguments of _Side.of()."""
    with suppress(Exception):
        sides = []
        for x, mesh, placements, local_shape, dtype in (src, dst):
            of = (tuple(x.shape), x.dtype) if x is not None else (local_shape and tuple(local_shape), dtype)
            cuts = [
                (type(each).__name__, getattr(each, "dim", each if isinstance(each, int) else None))
                for each in placements
            ]
            sides.append((_axes(mesh), tuple(cuts), of))
        key = (*sides, global_shape and tuple(global_shape))
        hash(key)
        return key
    return None


def _sides(src: Any, dst: Any, global_shape: Sequence[int] | None) -> Sides:
    """Return the layout and the array of both sides. src, dst: the arguments of _Side.of()."""
    layouts = _layouts(_Side.of(*src), _Side.of(*dst), global_shape)
    return (layouts[0], src[0]), (layouts[1], dst[0])


def reshard(
    src: PlainArray | None,
    dst: PlainArray | None,
    comm: Group,
    stream: Stream | None = None,
    *,
    src_mesh: AnyMesh,
    src_placements: Sequence[object],
    dst_mesh: AnyMesh,
    dst_placements: Sequence[object],
    global_shape: Sequence[int] | None = None,
    src_local_shape: Sequence[int] | None = None,
    src_dtype: Dtype | None = None,
    dst_local_shape: Sequence[int] | None = None,
    dst_dtype: Dtype | None = None,
    handle: object = None,
) -> None:
    """Move one tensor from the source mesh to the destination mesh. Collective over all ranks of the comm.

    src, dst: this rank's parts, in any strides; None if it has none. comm: see comm_of().
    src_mesh, dst_mesh: ranks of the comm in nested lists, an object with them as `mesh`, or M2N's Mesh. placements:
    Shard(dim), as torch.chunk cuts, or Replicate for each mesh axis, the outer axis first where two cut one dim.
    global_shape: without it all parts must have the same shape. A rank without a tensor gets shape and dtype from the
    others, or passes them. stream: see stream_pointer(); on a GPU the call returns once enqueued.
    handle: accepted for NCCL M2N's sake, and not used.

    Raises MismatchError if ranks pass different meshes, placements, shapes or types, and ValueError if a tensor has
    another shape than its placements give; the other ranks raise PeerError.
    """
    del handle
    from_ = src, src_mesh, src_placements, src_local_shape, src_dtype
    to = dst, dst_mesh, dst_placements, dst_local_shape, dst_dtype
    key = _key(from_, to, global_shape)
    redistribute_again(comm_of(comm), key, (src, dst), lambda: _sides(from_, to, global_shape), stream)


def xferdtensor(
    src_tensor: HasLocalTensor | None,
    src_mesh: AnyMesh,
    src_placement: Sequence[object],
    dst_tensor: HasLocalTensor | None,
    dst_mesh: AnyMesh,
    dst_placement: Sequence[object],
    process_group: Group,
    stream: Stream | None = None,
) -> None:
    """Move one tensor from the source mesh to the destination mesh, with the parameters of NeMo-RL's function. A tensor
    is None, or has a global `shape` and a `_local_tensor`. See reshard()."""

    src, dst = (getattr(x, "_local_tensor", None) for x in (src_tensor, dst_tensor))
    from_, to = (src, src_mesh, src_placement, None, None), (dst, dst_mesh, dst_placement, None, None)
    shapes = [x.shape for x in (src_tensor, dst_tensor) if x is not None]

    def sides() -> Sides:
        for x in (src_tensor, dst_tensor):
            if x is not None and not hasattr(x, "_local_tensor"):
                raise AttributeError(f"a {type(x).__name__} has no _local_tensor")
        if len({tuple(shape) for shape in shapes}) > 1:
            raise MismatchError(
                f"the source has shape {shapes[0]} and the destination {shapes[1]}: both must have the global shape"
            )
        return _sides(from_, to, shapes[0] if shapes else None)

    key = _key(from_, to, shapes[0]) if shapes and all(shape == shapes[0] for shape in shapes) else None
    redistribute_again(comm_of(process_group), key, (src, dst), sides, stream)
