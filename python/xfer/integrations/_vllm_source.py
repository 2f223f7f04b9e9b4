"""A trainer's weights as vLLM's WeightSource has them, whose interface changed in version 0.33.

Source: vLLM 0.29.0 to 0.33.0, distributed/weight_transfer/base.py.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.weight_transfer import base

from .._torch.layouts import whole
from .._torch.tables import MergedTables, Meshes, Table
from ..dtypes import dtype_name
from ..layout import Layout, Placement, Replicate, Shard
from ..mesh import Mesh
from ._source import DescribedSource, Source
from ._taken import taken

__all__ = ["source_of"]


class _WeightSource(DescribedSource):
    """The WeightSource of vLLM 0.33 and later. It has parts, which it describes by owners, mesh and placements, or
    whole tensors, which are gathered for each update."""

    def __init__(self, source: Any, n_trainers: int) -> None:
        super().__init__(source, n_trainers, passing=not self._is_local(source))

    @staticmethod
    def _is_local(source: Any) -> bool:
        """Return whether the source hands out parts rather than whole tensors."""
        implements = getattr(source, "implements_iter_local", None)  # vLLM has it from 0.33 on
        return implements is not None and bool(implements())

    def _metadata(self) -> Any:
        """Return the description of each tensor."""
        return self._source.metadata

    def table(self, rank: int) -> tuple[Table, Meshes]:
        """Return the table of all tensors of the source, which has no meshes of torch."""
        return [[m.name, dtype_name(m.dtype), list(m.shape)] for m in self._metadata()], []

    def layouts(self, merged: MergedTables) -> dict[str, Layout]:
        """Return the layout of each tensor."""
        return {m.name: self._layout(m) for m in self._metadata()}

    def _layout(self, m: Any) -> Layout:
        if m.owners is None:
            return whole(m.shape, m.dtype, self._everywhere)
        sizes = (len(m.owners),) if m.mesh_shape is None else m.mesh_shape
        placements: list[Placement] = [Replicate() for _ in sizes]
        if self._is_local(self._source) and m.placements is not None:
            placements = [Shard(cut.dim) if isinstance(cut, base.Shard) else Replicate() for cut in m.placements]
        return Layout(Mesh(sizes, m.owners), m.shape, m.dtype, placements)

    def parts(self) -> dict[str, Any]:
        """Return the tensors of one update, which the source hands out."""
        theirs = self._source
        return taken(theirs.iter_local() if self._is_local(theirs) else theirs.iter_full())


class _OldWeightSource(_WeightSource):
    """The WeightSource of vLLM before 0.33. It has whole tensors for the names that a rank holds, and None for
    others."""

    def _metadata(self) -> Any:
        return self._source.metadata()

    def layouts(self, merged: MergedTables) -> dict[str, Layout]:
        """Return the layout of each tensor; this rank holds a tensor whole, or nothing of it."""
        held = getattr(self._source, "held_names", lambda: None)()
        if held is None:
            return {m.name: whole(m.shape, m.dtype, self._everywhere) for m in self._metadata()}
        held = set(held)
        boxes = {m.name: [((0,) * len(m.shape), tuple(m.shape))] if m.name in held else [] for m in self._metadata()}
        return {m.name: Layout.by_boxes(None, m.shape, m.dtype, boxes[m.name]) for m in self._metadata()}

    def parts(self) -> dict[str, Any]:
        """Return the tensors of one update, which the source hands out."""
        return taken(iter(self._source))


def source_of(source: Any, n_trainers: int) -> Source:
    """Return the Source of what the caller passed: a Source, a WeightSource, a module or a state dict."""
    if isinstance(source, Source):
        return source
    if not isinstance(source, base.WeightSource):
        return Source(source, n_trainers)
    return (_WeightSource if hasattr(source, "implements_iter_local") else _OldWeightSource)(source, n_trainers)
