"""A trainer's weights by the names of the checkpoint: a module or a state dict, whose shards are taken as they lie.
Each trainer may hold some of the names only, as stages of a pipeline do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from operator import is_not
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .._dtensor import check_specs, spec_of
from .._held import local_part, tensors_of
from .._places import Places
from ..comm import Comm
from ..dtypes import dtype_name
from ..errors import MismatchError
from ..layout import Layout, Replicate
from ..mesh import Mesh
from ..torch import FlatPart, layouts_of, meshes_of

__all__ = ["Holders", "SelfSaying", "Source", "Table", "current_device", "joined", "some", "tables_of", "whole"]


def some(names: Sequence[str]) -> str:
    """The first of them."""
    return ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")


Table = list[Any]  # [name, dtype, shape] of each tensor
Holders = dict[str, tuple[int, ...]]  # the ranks that have each tensor


def tables_of(comm: Comm, mine: Table | None, note: Any = None) -> tuple[list[Table | None], list[Any]]:
    """The tables of all ranks, and their notes; None: a rank has no weights. One of several that are equal is told by
    the first rank alone. Collective."""
    digest = None if mine is None else hashlib.sha256(json.dumps(mine).encode()).hexdigest()
    said = comm.share(lambda: [digest, note], "digests of tables")
    digests = [each[0] for each in said]
    told = comm.share(lambda: mine if digest is not None and digests.index(digest) == comm.rank else None, "tables")
    return [None if each is None else told[digests.index(each)] for each in digests], [each[1] for each in said]


def joined(tables: list[Table | None]) -> tuple[Table, Holders]:
    """What the trainers have together, and who holds each tensor; all ranks come to the same."""
    groups: dict[int, list[int]] = {}  # ranks, by id() of a table that they have in common
    for rank, table in enumerate(tables):
        if table:
            groups.setdefault(id(table), []).append(rank)
    rows: dict[str, tuple[int, Any]] = {}  # by name: the first rank that has it, and its row
    holders: Holders = {}
    for ranks in map(tuple, groups.values()):
        for row in tables[ranks[0]] or ():
            first, known = rows.setdefault(row[0], (ranks[0], row))
            if known != row:
                raise MismatchError(f"{row[0]!r} is {known[1:]} on rank {first} and {row[1:]} on rank {ranks[0]}")
            holders[row[0]] = (*holders[row[0]], *ranks) if row[0] in holders else ranks
    return [row for _, row in rows.values()], holders


class Source:
    """A module or a state dict: DTensors, and what FSDP1 or ZeRO-3 cut, as they lie; all else is whole on each trainer
    that has it."""

    def __init__(self, source: Any, n_trainers: int, passing: bool = False) -> None:
        """passing: the memory of its tensors is theirs for one update, and no process keeps it after that."""
        self._source, self._everywhere = source, Mesh([n_trainers])
        self._parts: dict[str, Any] = {}
        self._specs: dict[str, Any] = {}  # of what was planned
        self.passing = passing

    @property
    def device(self) -> Any:
        """Where the weights lie."""
        first = next(iter(tensors_of(self._source).values()), None)
        if first is None:
            return current_device()
        return (first.memory if isinstance(first, FlatPart) else first).device

    def table(self) -> Table:
        """Of what this rank has."""
        return [_row(name, x) for name, x in tensors_of(self._source).items()]

    def meshes(self, rank: int) -> dict[str, Any]:
        """What layouts() of the other trainers needs of this one, which is `rank` of them: a DTensor's mesh has torch's
        ranks."""
        state = tensors_of(self._source)
        for mesh in {x.device_mesh for x in state.values() if isinstance(x, DTensor)}:
            torch_rank = mesh.get_rank()
            if mesh.get_coordinate() is not None and torch_rank != rank:
                raise ValueError(
                    f"torch's rank {torch_rank} is trainer {rank}: trainers with DTensors have torch's ranks"
                )
        return meshes_of(state)

    def layouts(self, meshes: list[Any], holders: Holders) -> dict[str, Layout]:
        """Who holds what of each that this rank has. meshes: of all ranks; None where there are no weights."""
        state = tensors_of(self._source)
        self._specs = {name: spec_of(x) for name, x in state.items()}
        of_dtensors = layouts_of(state, meshes=meshes)
        having = {ranks: Mesh([len(ranks)], ranks) for ranks in {holders[name] for name in state}}
        whole_of = cache(whole)
        return {
            name: of_dtensors.get(name)
            or (x.layout() if isinstance(x, FlatPart) else whole_of(tuple(x.shape), x.dtype, having[holders[name]]))
            for name, x in state.items()
        }

    def parts(self) -> dict[str, Any]:
        """What this rank has now of each; None: nothing."""
        state = self._source if isinstance(self._source, dict) else tensors_of(self._source)
        if not _is_plain(state):
            state = tensors_of(state)
            check_specs(self._specs, state)
            return {name: local_part(x) for name, x in state.items()}
        if any(self._specs.values()):
            check_specs(self._specs, state)
        return state

    def begin(self, planned: set[str]) -> None:
        """An update of these names. A new one is refused here; what is gone, where it is looked at."""
        self._parts = self.parts()
        if len(self._parts) != len(planned):
            new = sorted(self._parts.keys() - planned)
            if new:
                raise ValueError(f"{new[0]!r} was not there when the engines planned")

    def end(self) -> None:
        """Nothing of the update is kept but what is bound."""
        self._parts = {}

    def views_of(self, names: list[str]) -> Callable[[bool], Iterator[tuple[str, Any, Any]]]:
        """A function that gives name, memory and None of those that lie elsewhere than when it was called before, or,
        with True, of all."""
        places = Places()
        held: list[str] = []

        def views(everything: bool) -> Iterator[tuple[str, Any, Any]]:
            have = names
            tensors: list[Any] = list(map(self._parts.get, names))
            if not all(map(_is_there, tensors)):
                have = [name for name, x in zip(names, tensors, strict=True) if x is not None]
                tensors = list(filter(_is_there, tensors))
            if everything:
                held[:] = have
            if have != held:
                changed = sorted(set(have) ^ set(held))
                raise ValueError(f"{changed[0]!r} is not held as it was when the engines planned")
            everywhere = range(len(have))
            moved = everywhere if self.passing else places.moved(have, tensors)
            for i in everywhere if everything else moved:
                yield have[i], tensors[i].detach(), None
            for name in set(names).difference(have) if everything else ():
                yield name, None, None

        return views


class SelfSaying(Source):
    """One that says itself who holds what, whatever meshes there are."""

    @property
    def device(self) -> Any:
        return current_device()

    def meshes(self, rank: int) -> dict[str, Any]:
        return {}


def current_device() -> Any:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def whole(shape: Iterable[int], dtype: Any, holders: Mesh) -> Layout:
    """Of what each of these ranks has all of."""
    return Layout(holders, tuple(shape), dtype, [Replicate()])


def _row(name: str, tensor: Any) -> list[Any]:
    try:
        return [name, dtype_name(tensor.dtype), list(tensor.shape)]
    except (TypeError, RuntimeError) as wrong:
        wrong.args = (f"{name!r}: {wrong}",)
        raise


# ---- modules and state dicts

_is_there = partial(is_not, None)


def _is_plain(state: Mapping[str, Any]) -> bool:
    return set(map(type, state.values())) <= {torch.Tensor, torch.nn.Parameter}
