"""A trainer's weights by the names of the checkpoint: a module or a state dict, whose shards are sent from where they
lie. Each trainer may hold only some of the names, as a stage of a pipeline does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import is_not
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .._torch.addresses import Places
from .._torch.dtensor import check_specs, spec_of
from .._torch.flat import FlatPart
from .._torch.held import ModuleOrState, local_part, tensors_of
from .._torch.layouts import layouts_in, table_of
from .._torch.tables import MergedTables, Meshes, Table
from ..layout import Layout

__all__ = ["DescribedSource", "Source", "current_device"]


class Source:
    """The weights of a module or a state dict. DTensors, and what FSDP1 or ZeRO-3 cut, are sent as they lie; any other
    tensor is whole on each trainer that has it."""

    def __init__(self, source: ModuleOrState, n_trainers: int, passing: bool = False) -> None:
        """passing: whether the memory of the tensors exists for one update only, so that no process may keep it
        mapped."""
        self._source: Any = source
        self._everywhere = range(n_trainers)
        self._parts: dict[str, Any] = {}
        self._specs: dict[str, Any] = {}  # as they were planned
        self.passing = passing

    @property
    def device(self) -> torch.device:
        """The device that the weights lie on."""
        first = next(iter(tensors_of(self._source).values()), None)
        if first is None:
            return current_device()
        return (first.memory if isinstance(first, FlatPart) else first).device

    def table(self, rank: int) -> tuple[Table, Meshes]:
        """Return the table of this rank's tensors and the meshes of its DTensors. Raises ValueError if torch numbers
        this rank otherwise than the trainers do, since a DeviceMesh has torch's ranks."""
        state = tensors_of(self._source)
        for mesh in {x.device_mesh for x in state.values() if isinstance(x, DTensor)}:
            torch_rank = mesh.get_rank()
            if mesh.get_coordinate() is not None and torch_rank != rank:
                raise ValueError(
                    f"torch's rank {torch_rank} is trainer {rank}: trainers that have DTensors must be numbered as "
                    "torch's ranks"
                )
        return table_of(state)

    def layouts(self, merged: MergedTables) -> dict[str, Layout]:
        """Return the layouts of the tensors that this rank has. merged: the tables of all trainers."""
        state = tensors_of(self._source)
        self._specs = {name: spec_of(x) for name, x in state.items()}
        return layouts_in(merged, state)

    def parts(self) -> dict[str, Any]:
        """Return what this rank has now of each tensor; None if it has nothing."""
        state = self._source if isinstance(self._source, dict) else tensors_of(self._source)
        if not _is_plain(state):
            state = tensors_of(state)
            check_specs(self._specs, state)
            return {name: local_part(x) for name, x in state.items()}
        if any(self._specs.values()):
            check_specs(self._specs, state)
        return state

    def begin(self, planned: set[str]) -> None:
        """Begin an update of the planned names. Raises ValueError for a new name; views_of() notices a name that is
        gone."""
        self._parts = self.parts()
        if len(self._parts) != len(planned):
            new = sorted(self._parts.keys() - planned)
            if new:
                raise ValueError(f"{new[0]!r} was not in the source when the engines planned: send again")

    def end(self) -> None:
        """End an update, and keep only what is bound."""
        self._parts = {}

    def views_of(self, names: list[str]) -> Callable[[bool], Iterator[tuple[str, Any, Any]]]:
        """Return a function that yields (name, memory, None): given False, of the tensors that moved since its last
        call; given True, of all."""
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
                raise ValueError(
                    f"whether this rank holds {changed[0]!r} has changed since the engines planned: send again"
                )
            everywhere = range(len(have))
            moved = everywhere if self.passing else places.moved(have, tensors)
            for i in everywhere if everything else moved:
                yield have[i], tensors[i].detach(), None
            for name in set(names).difference(have) if everything else ():
                yield name, None, None

        return views


class DescribedSource(Source):
    """A source that itself says which ranks hold what, without meshes of torch."""

    @property
    def device(self) -> torch.device:
        """The current device."""
        return current_device()


def current_device() -> torch.device:
    """Return the current GPU, or the CPU if there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


_is_there = partial(is_not, None)


def _is_plain(state: Mapping[str, Any]) -> bool:
    """Return whether all of these are plain tensors or parameters."""
    return set(map(type, state.values())) <= {torch.Tensor, torch.nn.Parameter}
