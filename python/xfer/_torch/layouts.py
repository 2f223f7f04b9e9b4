"""Which ranks hold what of the tensors of a module or a state dict: DTensors, what FSDP1 or ZeRO-3 cut, and whole
tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ..dtypes import dtype_name
from ..layout import Layout, Replicate
from ..memory import check_plain
from ..mesh import Mesh
from .dtensor import Description, Grid, Ranks, chosen, grid_of, our_rank
from .flat import FlatPart
from .held import ModuleOrState, tensors_of
from .tables import MergedTables, Meshes, Table

__all__ = ["grids_of", "layouts_in", "layouts_of", "meshes_of", "table_of", "whole"]


def whole(shape: Sequence[int], dtype: Any, ranks: Sequence[int]) -> Layout:
    """Return the layout of a tensor of which each of these ranks has everything."""
    return Layout(Mesh([len(ranks)], ranks), tuple(shape), dtype, [Replicate()])


def grids_of(tensors: Mapping[str, Any], ranks: Ranks) -> dict[DeviceMesh, tuple[Grid, str]]:
    """Return the meshes of the DTensors, each with its grid and the first name that lies on it."""
    first: dict[DeviceMesh, str] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            first.setdefault(tensor.device_mesh, name)
    return {mesh: (grid_of(mesh, ranks), name) for mesh, name in first.items()}


def meshes_of(source: ModuleOrState, ranks: Ranks = None) -> dict[str, Any]:
    """Return the meshes of this rank's DTensors, by the first name that lies on each, in a form that JSON can hold.
    layouts_of() takes those of all ranks."""
    return {name: [grid.sizes, grid.ranks] for grid, name in grids_of(tensors_of(source), ranks).values()}


def _all_replicas(mine: Grid, name: str, meshes: set[tuple[tuple[int, ...], tuple[int, ...]]]) -> Grid:
    """Return the grid of a mesh together with the meshes (sizes, ranks) that other ranks have for the same tensor."""
    if not meshes:
        raise ValueError(f"{name!r} is in none of the meshes")
    found = sorted(meshes, key=lambda mesh: min(mesh[1]))
    together = tuple(rank for _, numbers in found for rank in numbers)
    if len(set(together)) < len(together) or any(sizes != mine.sizes for sizes, _ in found):
        raise ValueError(f"{name!r} lies on meshes that overlap or differ in shape: {found}")
    return Grid(mine.sizes, together, mine.crossed)


def _each(tensors: Mapping[str, Any], layout: Callable[[str, Any], Layout]) -> dict[str, Layout]:
    """Return layout(name, tensor) of each tensor. Errors have the tensor's name."""
    layouts = {}
    for name, tensor in tensors.items():
        try:
            layouts[name] = layout(name, tensor)
        except (TypeError, ValueError, RuntimeError) as wrong:
            wrong.args = (f"{name!r}: {wrong}",)
            raise
    return layouts


def layouts_of(
    source: ModuleOrState,
    ranks: Ranks = None,
    meshes: Sequence[dict[str, Any] | None] | None = None,
    meaning: str | None = None,
) -> dict[str, Layout]:
    """Return the layouts of the DTensors of a module (FSDP2, tensor parallelism) or a state dict, by name; tensors with
    the same layout share one object.

    meshes: the results of meshes_of() on each rank of the comm, None on those without the module; the ranks with it
    have the same names. If several meshes have a tensor, it is then the same on each of them: FSDP2 makes one mesh for
    each tp rank for the tensors that tp leaves whole. meaning: as for layout_of().
    """
    tensors = tensors_of(source)
    grids = {}
    for mesh, (grid, name) in grids_of(tensors, ranks).items():
        grids[mesh] = grid
        if meshes is not None:
            theirs = [each[name] for each in meshes if each is not None and name in each]
            grids[mesh] = _all_replicas(grid, name, {(tuple(sizes), tuple(numbers)) for sizes, numbers in theirs})
    layout = cache(lambda said, grid: chosen(said, our_rank(ranks), grid, meaning))
    whole = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
    return _each(whole, lambda _, tensor: layout(Description.of(tensor), grids[tensor.device_mesh]))


# ---- tensors of several ranks


def table_of(tensors: Mapping[str, Any], ranks: Ranks = None) -> tuple[Table, Meshes]:
    """Return the table of this rank's tensors, and the meshes of the DTensors among them."""
    grids = grids_of(tensors, ranks)
    numbers = {mesh: number for number, mesh in enumerate(grids)}
    table = []
    for name, tensor in tensors.items():
        try:
            if not isinstance(tensor, DTensor | FlatPart):
                check_plain(torch, tensor)  # for some other tensors torch does not even tell the shape
            row = [name, dtype_name(tensor.dtype), list(tensor.shape)]
        except (TypeError, RuntimeError) as wrong:
            wrong.args = (f"{name!r}: {wrong}",)
            raise
        table.append([*row, numbers[tensor.device_mesh]] if isinstance(tensor, DTensor) else row)
    return table, [[grid.sizes, grid.ranks] for grid, _ in grids.values()]


def layouts_in(
    merged: MergedTables, tensors: Mapping[str, Any], ranks: Ranks = None, meaning: str | None = None
) -> dict[str, Layout]:
    """Return the layouts of this rank's tensors. A tensor that is neither a DTensor nor cut is whole on every rank that
    has it. One that lies on several meshes is the same on each."""
    grids: dict[Any, Grid] = {}
    of_dtensor = cache(lambda said, grid: chosen(said, our_rank(ranks), grid, meaning))
    of_whole = cache(whole)

    def layout(name: str, tensor: Any) -> Layout:
        if isinstance(tensor, FlatPart):
            return tensor.layout()
        if not isinstance(tensor, DTensor):
            return of_whole(tuple(tensor.shape), tensor.dtype, merged.ranks_of(name))
        mesh = tensor.device_mesh
        key = mesh, merged.tensors[name].alike
        if key not in grids:
            grids[key] = _all_replicas(grid_of(mesh, ranks), name, merged.meshes_of(name))
        return of_dtensor(Description.of(tensor), grids[key])

    return _each(tensors, layout)
