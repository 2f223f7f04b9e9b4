"""Meshes: n-D arrays of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import c_int
from typing import Any

from ._binding.handle import DataHandle
from ._binding.lib import lib
from ._binding.structs import array, listed, whole

__all__ = ["Mesh"]


class Mesh(DataHandle):
    """An n-D array of distinct ranks of a comm. Making one creates nothing on the network. Two meshes are equal if they
    have the same shape and the same ranks. A mesh may be copied and pickled.

    shape: 1 to 8 sizes, each at least 1. ranks: the product of `shape` many, row-major, the last axis fastest; without
    them 0, 1, 2, ...

    Raises ArgError for a size below 1 or a negative or repeated rank, ValueError for a wrong number of ranks.
    """

    _kind = "mesh"

    def __init__(self, shape: Sequence[int], ranks: Sequence[int] | None = None) -> None:
        super().__init__()
        shape = [whole(n, "shape") for n in listed(shape, "shape")]
        size = math.prod(shape)
        if ranks is not None and len(listed(ranks, "ranks")) != size:
            raise ValueError(f"{len(ranks)} ranks for a mesh of {size}")
        lib.xfer_mesh_create(self._out(), array(c_int, shape, "shape"), len(shape), array(c_int, ranks, "ranks"))
        self.shape = tuple(shape)
        self.ranks = tuple(range(size)) if ranks is None else tuple(whole(rank, "ranks") for rank in ranks)

    def _made_by(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Mesh, (self.shape, self.ranks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and (self.shape, self.ranks) == (other.shape, other.ranks)

    def __hash__(self) -> int:
        return hash((self.shape, self.ranks))

    def __len__(self) -> int:
        """Return the number of ranks."""
        return int(lib.xfer_mesh_size(self))

    def __repr__(self) -> str:
        plain = self.ranks == tuple(range(len(self.ranks)))
        return self._repr(f"{self.shape}" if plain else f"{self.shape} of ranks {list(self.ranks)}")
