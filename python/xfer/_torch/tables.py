"""Which rank has which tensors of a side. Each rank reports its own, such as those of its pipeline stage, and every
rank receives the reports of all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..comm import Comm
from ..errors import MismatchError

__all__ = ["MergedTables", "Meshes", "Table", "some", "tables_of"]

Table = list[Any]  # [name, dtype, shape] of each tensor, then the number of its mesh if it lies on one
Meshes = list[Any]  # [sizes, ranks] of the meshes that a rank's table numbers
Grid = tuple[tuple[int, ...], tuple[int, ...]]  # sizes and ranks of a mesh


def some(names: Sequence[str]) -> str:
    """Return the first names, for an error text."""
    return ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")


def _first(digests: list[Any]) -> list[Any]:
    """Return, for each rank, the first rank with an equal table, or None if it has no table."""
    return [None if each is None else digests.index(each) for each in digests]


def tables_of(
    comm: Comm, tell: Callable[[], tuple[Sequence[Table | None], Any]], what: str
) -> tuple[list[list[Table | None]], list[Any]]:
    """Return the tables of all ranks, by side and rank, and their notes, by rank. Collective.

    tell() returns this rank's table for each side, None if it has no tensors there, and a note. A table that several
    ranks have is sent by the first of them, and is one object in the result. If all ranks have the same table, none is
    sent.
    """
    mine: list[Table | None] = []

    def report() -> list[Any]:
        tables, note = tell()
        mine[:] = tables
        return [[None if t is None else hashlib.sha256(json.dumps(t).encode()).hexdigest() for t in tables], note]

    reports = comm.share(report, what)
    digests, notes = [each[0] for each in reports], [each[1] for each in reports]
    if len({digest for each in digests for digest in each if digest is not None}) == 1 and all(map(any, digests)):
        only = next(table for table in mine if table is not None)
        return [[None if each[side] is None else only for each in digests] for side in range(len(mine))], notes
    senders = [_first([each[side] for each in digests]) for side in range(len(mine))]
    sent = comm.share(
        lambda: [t if sender[comm.rank] == comm.rank else None for t, sender in zip(mine, senders, strict=True)],
        f"tables of {what}",
    )
    return [[None if r is None else sent[r][side] for r in sender] for side, sender in enumerate(senders)], notes


@dataclass(frozen=True)
class Entry:
    """A tensor of a side.

    alike: the groups of ranks with equal tables that have the tensor, each with the number of its mesh in that table,
    or None if it lies on no mesh.
    """

    dtype: str
    shape: tuple[int, ...]
    alike: tuple[tuple[int, int | None], ...]


class MergedTables:
    """All tensors of a side by name, with the ranks that have each and the meshes on which it lies. The same on every
    rank."""

    def __init__(self, tables: Sequence[Table | None], meshes: Sequence[Meshes] | None = None) -> None:
        """tables: of all ranks. meshes: the meshes that each rank's table numbers. Raises MismatchError if a tensor has
        different types or shapes on two ranks."""
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
        """Return the ranks that have the tensor."""
        alike = self.tensors[name].alike
        if alike not in self._ranks:
            self._ranks[alike] = tuple(sorted(rank for group, _ in alike for rank in self._groups[group]))
        return self._ranks[alike]

    def meshes_of(self, name: str) -> set[Grid]:
        """Return the meshes on which the tensor lies, on any rank."""
        alike = self.tensors[name].alike
        if alike not in self._grids:
            assert self._meshes is not None
            on = [(rank, number) for group, number in alike if number is not None for rank in self._groups[group]]
            found = (self._meshes[rank][number] for rank, number in on)
            self._grids[alike] = {(tuple(sizes), tuple(ranks)) for sizes, ranks in found}
        return self._grids[alike]


def _groups(tables: Sequence[Table | None]) -> list[tuple[int, ...]]:
    """Return the ranks of each table. Equal tables are one object."""
    groups: dict[int, list[int]] = {}
    for rank, table in enumerate(tables):
        if table:
            groups.setdefault(id(table), []).append(rank)
    return list(map(tuple, groups.values()))
