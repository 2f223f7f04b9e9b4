"""A trainer's weights as vLLM has them: a WeightSource, of which 0.33 changed the interface.

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
from ._source import SelfSaying, Source
from ._taken import taken

__all__ = ["source_of"]


class _WeightSource(SelfSaying):
    """vLLM's since 0.33: parts by owners, mesh and placements, or whole tensors, which are gathered for each update."""

    def __init__(self, source: Any, n_trainers: int) -> None:
        super().__init__(source, n_trainers, passing=not self._is_local(source))

    @staticmethod
    def _is_local(source: Any) -> bool:
        return bool(getattr(source, "implements_iter_local", lambda: False)())  # before 0.33 there was none

    def _metadata(self) -> Any:
        return self._source.metadata

    def table(self, rank: int) -> tuple[Table, Meshes]:
        return [[m.name, dtype_name(m.dtype), list(m.shape)] for m in self._metadata()], []

    def layouts(self, merged: MergedTables) -> dict[str, Layout]:
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
        theirs = self._source
        return taken(theirs.iter_local() if self._is_local(theirs) else theirs.iter_full())


class _OldWeightSource(_WeightSource):
    """vLLM's before 0.33: whole tensors of the names that a rank holds, None for the others."""

    def _metadata(self) -> Any:
        return self._source.metadata()

    def layouts(self, merged: MergedTables) -> dict[str, Layout]:
        held = getattr(self._source, "held_names", lambda: None)()
        if held is None:
            return {m.name: whole(m.shape, m.dtype, self._everywhere) for m in self._metadata()}
        held = set(held)
        boxes = {m.name: [((0,) * len(m.shape), tuple(m.shape))] if m.name in held else [] for m in self._metadata()}
        return {m.name: Layout.by_boxes(None, m.shape, m.dtype, boxes[m.name]) for m in self._metadata()}

    def parts(self) -> dict[str, Any]:
        return taken(iter(self._source))


def source_of(source: Any, n_trainers: int) -> Source:
    """By what it is."""
    if isinstance(source, Source):
        return source
    if not isinstance(source, base.WeightSource):
        return Source(source, n_trainers)
    return (_WeightSource if hasattr(source, "implements_iter_local") else _OldWeightSource)(source, n_trainers)
