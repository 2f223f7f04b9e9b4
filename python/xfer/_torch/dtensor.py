"""Layouts of DTensors. See xfer.torch for what a `_StridedShard` can mean."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from .._binding.structs import listed
from ..comm import Comm
from ..layout import Layout, Placement, Replicate, Shard, StridedShard
from ..mesh import Mesh

Ranks = Mapping[int, int] | None
MEANINGS = ("order", "pieces")


@dataclass(frozen=True)
class Grid:
    """The ranks of a comm in a DeviceMesh.

    sizes: of the axes of the mesh. ranks: in row-major order; those of replicas follow, if other ranks have the same
    tensor on meshes of their own, as FSDP2 makes for parameters that tp leaves whole.

    crossed: the axes along which torch's ranks do not ascend. torch's process groups number ranks in ascending order.
    So on such an axis functions that use the number in the group (FSDP2, distribute_tensor(), full_tensor()) have each
    shard on another rank than those that use the coordinate (zeros(), DTensor.redistribute()).
    """

    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    crossed: tuple[int, ...] = ()

    @property
    def n_replicas(self) -> int:
        """The number of meshes with the same tensor."""
        return len(self.ranks) // math.prod(self.sizes)

    def mesh(self) -> Mesh:
        """Return the Mesh of these ranks. It has an axis for the replicas in front, if there are several."""
        sizes = self.sizes if self.n_replicas == 1 else (self.n_replicas, *self.sizes)
        return Mesh(sizes, self.ranks)


# By id() of the mesh, since torch takes 0.1 ms to list its ranks, and takes submeshes for equal even if this process
# had another rank when it made them.
_grids: dict[int, tuple[weakref.ref[DeviceMesh], Grid]] = {}


def grid_of(mesh: DeviceMesh, ranks: Ranks = None) -> Grid:
    """Return the grid of a DeviceMesh."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"a {type(mesh).__name__} is no DeviceMesh")
    key = id(mesh)
    kept = _grids.get(key)
    if kept is None:
        numbers = mesh.mesh
        crossed = tuple(axis for axis in range(numbers.ndim) if (numbers.diff(dim=axis) < 0).any())
        grid = Grid(tuple(numbers.shape), tuple(int(rank) for rank in numbers.flatten().tolist()), crossed)
        kept = _grids[key] = weakref.ref(mesh, lambda _: _grids.pop(key, None)), grid
    grid = kept[1]
    if ranks is None:
        return grid
    lacking = [rank for rank in grid.ranks if rank not in ranks]
    if lacking:
        raise ValueError(f"ranks does not say which rank torch's rank {lacking[0]} is")
    return Grid(grid.sizes, tuple(ranks[rank] for rank in grid.ranks), grid.crossed)


def our_rank(ranks: Ranks) -> int:
    """Return the rank of this process in the comm that `ranks` maps to, or -1 if it has none."""
    rank = torch.distributed.get_rank()
    return rank if ranks is None else ranks.get(rank, -1)


def check_rank(comm: Comm, mesh: DeviceMesh, ranks: Ranks) -> None:
    """Raise ValueError if this process is in a mesh and `ranks` gives it another rank than it has in the comm, since
    its part would be taken for another rank's."""
    if mesh.get_coordinate() is not None and our_rank(ranks) != comm.rank:
        rank = torch.distributed.get_rank()
        raise ValueError(f"torch's rank {rank} is rank {comm.rank} of the comm, and ranks does not say so")


def mesh_of(mesh: DeviceMesh, ranks: Ranks = None) -> Mesh:
    """Return the Mesh with the ranks of a DeviceMesh."""
    return grid_of(mesh, ranks).mesh()


_REPLICATE, _shard, _strided_shard = Replicate(), lru_cache(64)(Shard), lru_cache(64)(StridedShard)


def kind_of(placement: Any) -> str:
    """Return the name of a placement's class."""
    return type(placement).__name__


def plain(placements: Sequence[Any], n_dims: int) -> tuple[Placement, ...]:
    """Return the Placements that correspond to placements of torch. Their kinds are told by their classes, since torch
    takes a `_StridedShard` and a Shard for equal."""
    return tuple(_plain(placement, n_dims) for placement in listed(placements, "placements"))


def _plain(placement: Any, n_dims: int) -> Placement:
    """Return one Placement, as distribute_tensor() understands it."""
    kind = kind_of(placement)
    if kind == "Replicate":
        return _REPLICATE
    if kind in ("Shard", "_StridedShard"):
        dim = placement.dim + n_dims if -n_dims <= placement.dim < 0 else placement.dim
        return _strided_shard(dim, int(placement.split_factor)) if kind == "_StridedShard" else _shard(dim)
    if "Partial" in kind:
        raise TypeError("a Partial DTensor holds terms of sums: redistribute it to Shard or Replicate first")
    raise TypeError(f"there is no layout of {placement!r}")


def from_start(placements: Sequence[Any], n_dims: int) -> list[Any]:
    """Return torch's placements with dims that count from the start. DTensor.from_local() counts negative dims from the
    end of the local tensor, which outside the mesh has only one dim."""
    return [_from_start(placement, n_dims) for placement in placements]


def _from_start(placement: Any, n_dims: int) -> Any:
    if getattr(placement, "dim", 0) >= 0:
        return placement
    factor = {"split_factor": placement.split_factor} if kind_of(placement) == "_StridedShard" else {}
    return type(placement)(placement.dim + n_dims, **factor)


def _order_of(placements: Sequence[Placement], sizes: Sequence[int]) -> list[int] | None:
    """Return the order of cuts that the split factors imply, or None if they imply none.

    The factor of an axis is the product of the sizes of the axes that cut the same dim earlier and lie to its right.
    """
    cuts: dict[int, list[int]] = {}
    for axis in reversed(range(len(placements))):
        placement = placements[axis]
        if not isinstance(placement, Shard | StridedShard):
            continue
        factor = placement.split_factor if isinstance(placement, StridedShard) else 1
        earlier = cuts.setdefault(placement.dim, [])
        product, at = 1, 0
        while product != factor and at < len(earlier):
            product *= sizes[earlier[at]]
            at += 1
        if product != factor:
            return None
        earlier.insert(at, axis)
    order = [axis for axes in cuts.values() for axis in axes]
    return order + [axis for axis in range(len(placements)) if axis not in order]


def layout_in(
    grid: Grid,
    placements: Sequence[Placement],
    shape: Sequence[int],
    dtype: Any,
    meaning: str,
    order: Sequence[int] | None = None,
) -> Layout | None:
    """Return the layout in one meaning of `_StridedShard`, or None if the placements have none in this meaning."""
    ours = list(placements)
    for axis in grid.crossed:
        if ours[axis] != _REPLICATE:
            raise ValueError(
                f"{ours[axis]} over axis {axis} of a mesh along which ranks do not ascend: torch's full_tensor() and "
                "redistribute() have each shard on another rank; make the DeviceMesh with ranks that ascend there"
            )
    if meaning == "order" and any(isinstance(placement, StridedShard) for placement in ours):
        order = _order_of(ours, grid.sizes)
        if order is None:
            return None
        ours = [Shard(p.dim) if isinstance(p, StridedShard) else p for p in ours]
    if grid.n_replicas > 1:
        ours = [Replicate(), *ours]
        order = None if order is None else [0, *(axis + 1 for axis in order)]
    return Layout(grid.mesh(), tuple(shape), dtype, ours, order=order)


def _explicit_order(tensor: Any) -> tuple[int, ...] | None:
    """Return the order of the axes if the spec names one beside plain placements, otherwise None."""
    entries = getattr(tensor._spec, "shard_order", None)
    if not entries:
        return None
    order = [axis for entry in entries for axis in entry.mesh_dims]
    return (*order, *(axis for axis in range(tensor.device_mesh.ndim) if axis not in order))


@dataclass(frozen=True)
class Description:
    """Everything that determines the layout of a DTensor, except its mesh.

    local: the shape of the local tensor. order: the order of the axes that torch names. is_view: torch itself says that
    a `_StridedShard` does not mean an order.
    """

    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    dtype: Any
    local: tuple[int, ...]
    order: tuple[int, ...] | None
    is_view: bool

    @classmethod
    def of(cls, tensor: DTensor) -> Description:
        """Return the description of a DTensor."""
        if not hasattr(tensor, "device_mesh"):
            raise TypeError(f"a {type(tensor).__name__} is no DTensor")
        placements = plain(tensor.placements, tensor.ndim)
        strided = any(isinstance(p, StridedShard) for p in placements)
        order = None if strided else _explicit_order(tensor)
        is_view = strided and getattr(tensor._spec, "use_strided_shard_as_shard_order", True) is False
        return cls(placements, tuple(tensor.shape), tensor.dtype, tuple(tensor._local_tensor.shape), order, is_view)


def spec_of(tensor: Any) -> Any:
    """Return the spec of a DTensor, or None for another tensor."""
    return getattr(tensor, "_spec", None) if hasattr(tensor, "device_mesh") else None


def check_specs(known: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Raise ValueError for a tensor that lies otherwise than its known spec says: it has become a DTensor or a plain
    tensor, has other ranks, or is split otherwise."""
    for name, tensor in tensors.items():
        now, was = spec_of(tensor), known.get(name)
        if name in known and not _is_alike(now, was) and _told(now) != _told(was):
            raise ValueError(f"{name!r} is {_told(now)}, and was planned as {_told(was)}")


def _is_alike(a: Any, b: Any) -> bool:
    """Return True if two specs are equal, in a tenth of the time that their texts take. False means that they may
    differ."""
    if a is b or a is None or b is None:
        return a is b
    kinds = [list(map(type, spec.placements)) for spec in (a, b)]
    orders = [getattr(spec, "shard_order", None) for spec in (a, b)]
    return bool(
        a.mesh is b.mesh
        and a.shape == b.shape
        and a.placements == b.placements
        and kinds[0] == kinds[1]
        and orders[0] == orders[1]
    )


def _told(spec: Any) -> str:
    """Return the text of a spec. The texts of a `_StridedShard` and a Shard differ, although torch takes them for
    equal."""
    if spec is None:
        return "a plain tensor"
    grid = grid_of(spec.mesh, None)
    entries = [(e.tensor_dim, tuple(e.mesh_dims)) for e in getattr(spec, "shard_order", None) or ()]
    turned = [f", dim {dim} cut by axes {axes} in this order" for dim, axes in entries if axes != tuple(sorted(axes))]
    about = f"{tuple(spec.shape)} by {tuple(spec.placements)} over a mesh {grid.sizes} of ranks {grid.ranks}"
    return about + "".join(turned)


def _same(a: Layout, b: Layout, numbers: Sequence[int]) -> bool:
    """Return whether two layouts give all ranks the same elements."""
    dims = range(len(a.shape))
    return all(a.runs(rank, dim) == b.runs(rank, dim) for rank in numbers for dim in dims)


def _fits(said: Description, expected: tuple[int, ...]) -> bool:
    """Return whether a local tensor has the expected shape. torch makes some tensors without elements in other
    shapes."""
    return said.local == expected or (0 in said.local and 0 in expected)


def candidates(said: Description, rank: int, grid: Grid) -> dict[str, Layout]:
    """Return, by meaning, the layouts that a DTensor's placements can have and that this rank's local tensor fits. If
    both meanings are the same, as they are unless a `_StridedShard` is uneven, both names have one layout."""
    made = {m: layout_in(grid, said.placements, said.shape, said.dtype, m, said.order) for m in MEANINGS}
    if said.is_view:
        made["order"] = None
    inside = rank in grid.ranks
    found = {m: each for m, each in made.items() if each and not (inside and not _fits(said, each.local_shape(rank)))}
    if not found:
        expected = " or ".join(dict.fromkeys(str(each.local_shape(rank)) for each in made.values() if each))
        raise ValueError(f"rank {rank} has a local tensor of shape {said.local}; {said.placements} say {expected}")
    if len(found) == 2 and _same(found["order"], found["pieces"], grid.ranks):
        found["pieces"] = found["order"]
    return found


def differ(found: Mapping[str, Layout], grid: Grid) -> bool:
    """Return whether the meanings differ and give all ranks parts of the same shapes, so that nothing tells which one
    is right."""
    if len({id(each) for each in found.values()}) < 2:
        return False
    one, other = found.values()
    return all(one.local_shape(rank) == other.local_shape(rank) for rank in grid.ranks)


def check_meaning(meaning: str | None) -> None:
    """Raise ValueError if there is no such meaning."""
    if meaning is not None and meaning not in MEANINGS:
        raise ValueError(f"there is no meaning {meaning!r}: it is order or pieces")


def chosen(said: Description, rank: int, grid: Grid, meaning: str | None) -> Layout:
    """Return the layout in a meaning. None stands for the one that the local shape fits, "order" if both do."""
    check_meaning(meaning)
    found = candidates(said, rank, grid)
    if meaning is not None:
        if meaning not in found:
            raise ValueError(f"{said.placements} with this local shape have no meaning {meaning!r}")
        return found[meaning]
    if differ(found, grid):
        raise ValueError(f"no local shape tells what {said.placements} mean: say meaning='order' or 'pieces'")
    return next(iter(found.values()))
