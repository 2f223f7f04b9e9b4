"""What the ranks of a side have together. Each hands in what it has, as stages of a pipeline do, and a tensor is of the
ranks that have it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .comm import Comm
from .errors import MismatchError

__all__ = ["Meshes", "Table", "Together", "some", "tables_of"]

Table = list[Any]  # [name, dtype, shape] of each tensor, and the number of its mesh where it lies on one
Meshes = list[Any]  # [sizes, ranks] of those that a rank's table numbers
Grid = tuple[tuple[int, ...], tuple[int, ...]]  # likewise


def some(names: Sequence[str]) -> str:
    """The first of them."""
    return ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")


def _first(digests: list[Any]) -> list[Any]:
    """Of each rank, the first that says the same; None: it says nothing."""
    return [None if each is None else digests.index(each) for each in digests]


def tables_of(
    comm: Comm, tell: Callable[[], tuple[Sequence[Table | None], Any]], what: str
) -> tuple[list[list[Table | None]], list[Any]]:
    """tell() returns this rank's table of each side, None where it has none, and a note. The tables of all ranks, by
    side, and their notes. One of several that are equal is told by the first rank alone, and none where every rank has
    the only one. Collective."""
    mine: list[Table | None] = []

    def say() -> list[Any]:
        tables, note = tell()
        mine[:] = tables
        return [[None if t is None else hashlib.sha256(json.dumps(t).encode()).hexdigest() for t in tables], note]

    said = comm.share(say, what)
    notes = [each[1] for each in said]
    if len({digest for each, _ in said for digest in each if digest is not None}) == 1 and all(any(d) for d, _ in said):
        only = next(table for table in mine if table is not None)
        return [[None if d[side] is None else only for d, _ in said] for side in range(len(mine))], notes
    firsts = [_first([digests[side] for digests, _ in said]) for side in range(len(mine))]
    told = comm.share(
        lambda: [t if first[comm.rank] == comm.rank else None for t, first in zip(mine, firsts, strict=True)],
        f"tables of {what}",
    )
    return [[None if r is None else told[r][side] for r in first] for side, first in enumerate(firsts)], notes


@dataclass(frozen=True)
class Entry:
    """A tensor of a side. alike: the groups of ranks with equal tables that have it, each with the number of its mesh
    there; None: it lies on none."""

    dtype: str
    shape: tuple[int, ...]
    alike: tuple[tuple[int, int | None], ...]


class Together:
    """What ranks have together, by name, who has each and on which meshes. All ranks come to the same."""

    def __init__(self, tables: Sequence[Table | None], meshes: Sequence[Meshes] | None = None) -> None:
        """Of all ranks; meshes: those that each numbers. Raises MismatchError where two have a tensor of one name and
        other types or shapes."""
        self._meshes = meshes
        self._groups = _groups(tables)
        self.tensors: dict[str, Entry] = {}
        for group, ranks in enumerate(self._groups):
            for name, dtype, shape, *mesh in tables[ranks[0]] or ():
                known = self.tensors.get(name)
                if known is not None and (known.dtype, known.shape) != (dtype, tuple(shape)):
                    first = self._groups[known.alike[0][0]][0]
                    raise MismatchError(
                        f"{name!r} is {known.dtype}{list(known.shape)} on rank {first} and {dtype}{shape} on rank "
                        f"{ranks[0]}"
                    )
                alike = (*(known.alike if known is not None else ()), (group, mesh[0] if mesh else None))
                self.tensors[name] = Entry(dtype, tuple(shape), alike)
        self._ranks: dict[Any, tuple[int, ...]] = {}
        self._grids: dict[Any, set[Grid]] = {}

    def ranks_of(self, name: str) -> tuple[int, ...]:
        """Those that have it."""
        alike = self.tensors[name].alike
        if alike not in self._ranks:
            self._ranks[alike] = tuple(sorted(rank for group, _ in alike for rank in self._groups[group]))
        return self._ranks[alike]

    def meshes_of(self, name: str) -> set[Grid]:
        """On which it lies, on one rank or another."""
        alike = self.tensors[name].alike
        if alike not in self._grids:
            assert self._meshes is not None
            on = [(rank, number) for group, number in alike if number is not None for rank in self._groups[group]]
            found = (self._meshes[rank][number] for rank, number in on)
            self._grids[alike] = {(tuple(sizes), tuple(ranks)) for sizes, ranks in found}
        return self._grids[alike]


def _groups(tables: Sequence[Table | None]) -> list[tuple[int, ...]]:
    """The ranks of each table, which are one object where they are equal."""
    groups: dict[int, list[int]] = {}
    for rank, table in enumerate(tables):
        if table:
            groups.setdefault(id(table), []).append(rank)
    return list(map(tuple, groups.values()))
