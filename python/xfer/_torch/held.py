"""What this rank holds of a source and of a target: tensors by name, and which of them have moved in memory."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter, is_
from typing import Any, TypeAlias

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .._gc import no_collection
from ..plan import Plan
from .addresses import Places
from .dtensor import check_specs, spec_of
from .flat import FlatPart, flat_parts, is_flat

__all__ = ["ModuleOrState", "TrackedTensors", "local_part", "readable", "tensors_of"]

ModuleOrState: TypeAlias = "torch.nn.Module | Mapping[str, Any]"  # the latter is a state dict
Check = Callable[[dict[str, Any]], None]
Select = Callable[[dict[str, Any]], dict[str, Any]]


_COMPILED = "_orig_mod"  # what torch.compile() names the module in its wrapper
_ARRAYS = ("__array_interface__", "__cuda_array_interface__", "__dlpack__")  # of NumPy, of CuPy, of JAX


def _named(module: torch.nn.Module) -> dict[str, Any]:
    """Return the state dict of a module with the names that it has without DDP and torch.compile(), as torch's own
    get_model_state_dict() does."""
    # Nothing is compiled if this module of torch was not imported.
    compiled = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    while isinstance(module, (DistributedDataParallel, compiled)):
        module = module.module if isinstance(module, DistributedDataParallel) else module._modules[_COMPILED]
    state = flat_parts(module) if is_flat(module) else module.state_dict()
    # A single layer may be compiled, too.
    if any(f"{_COMPILED}." in name for name in state) and any(isinstance(each, compiled) for each in module.modules()):
        named = {".".join([part for part in name.split(".") if part != _COMPILED]): x for name, x in state.items()}
        if len(named) < len(state):
            raise ValueError(f"two tensors have one name without {_COMPILED!r}, which is torch.compile()'s")
        state = named
    return state


def tensors_of(source: ModuleOrState) -> dict[str, Any]:
    """Return the tensors of a module or a state dict by name, and a FlatPart for each that FSDP1 or ZeRO-3 cut."""
    if isinstance(source, torch.nn.Module):
        source = _named(source)
    if not isinstance(source, Mapping):
        raise TypeError(f"a {type(source).__name__} is neither a module nor a state dict")
    tensors = {}
    for name, x in source.items():
        if isinstance(x, torch.Tensor | FlatPart):
            if not isinstance(name, str):
                raise TypeError(f"a tensor's name is {name!r}, not a text")
            tensors[name] = x
        elif any(hasattr(x, interface) for interface in _ARRAYS):
            raise TypeError(f"{name!r} is a {type(x).__name__}, not a torch tensor")
        elif _has_tensors(x):
            raise TypeError(f"{name!r} is a {type(x).__name__}: tensors are looked for at the top level alone")
    return tensors


def _has_tensors(x: Any) -> bool:
    """Return whether a container has tensors, at any depth."""
    if isinstance(x, Mapping):
        x = x.values()
    return (
        isinstance(x, Iterable)
        and not isinstance(x, str | bytes)
        and any(isinstance(each, torch.Tensor) or _has_tensors(each) for each in x)
    )


def local_part(tensor: torch.Tensor | FlatPart) -> Any:
    """Return the memory of this rank's part, or None outside the mesh."""
    if isinstance(tensor, FlatPart):
        return tensor.memory
    if isinstance(tensor, DTensor):
        if tensor.device_mesh.get_coordinate() is None:
            return None
        tensor = tensor._local_tensor
    if isinstance(tensor, AsyncCollectiveTensor):
        tensor = tensor.wait()
    return tensor.detach() if tensor.requires_grad else tensor  # the same object if possible, see Places


def readable(part: torch.Tensor | None) -> torch.Tensor | None:
    """Return a part that can be read. The result of expand(), whose elements share memory, is copied."""
    if part is None or part.layout is not torch.strided or 0 not in part.stride():
        return part
    return part.contiguous()


def _refuse_copies(parts: Mapping[str, Any], again: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise ValueError if a module's state_dict() makes new tensors for each call: the module does not compute with
    those."""
    for name in names:
        if local_part(again[name]).data_ptr() != parts[name].data_ptr():
            raise ValueError(
                f"{name!r}: the target's state_dict() hands out a copy, which the module would not see change; hand in "
                "a dict of its own tensors"
            )


_spec, _local = attrgetter("_spec"), attrgetter("_local_tensor")


def _is_own(tensor: torch.Tensor, part: torch.Tensor | None) -> bool:
    """Return whether a part is the tensor's own memory, and not a copy or another view of it. A DTensor without a part
    on this rank never has one."""
    return part is None or part is tensor._local_tensor if isinstance(tensor, DTensor) else part is tensor


class _Seen:
    """The tensors of a side as a step saw them, so that the next step can tell whether they are the same objects. Keeps
    none of them alive."""

    def __init__(self, tensors: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
        wholes = [x for x in tensors.values() if isinstance(x, DTensor)]
        self._names, self._tensors = list(tensors), list(map(weakref.ref, tensors.values()))
        self._specs, self._locals = list(map(_spec, wholes)), list(map(weakref.ref, map(_local, wholes)))
        self._is_plain = all(map(_is_own, tensors.values(), parts.values()))

    def is_of(self, tensors: Mapping[str, Any]) -> bool:
        """Return whether these are the same tensors with the same parts."""
        if not self._is_plain or self._names != list(tensors):
            return False
        if not all(ref() is x for ref, x in zip(self._tensors, tensors.values(), strict=True)):
            return False
        wholes = [x for x in tensors.values() if isinstance(x, DTensor)]
        return all(map(is_, self._specs, map(_spec, wholes))) and all(
            ref() is x for ref, x in zip(self._locals, map(_local, wholes), strict=True)
        )


class _TrackedSide:
    """The tensors that this rank has of a source or of a target."""

    def __init__(self, name: str, tensors: ModuleOrState | None, check: Check, select: Select) -> None:
        self.source, self._name = tensors, name
        self._is_target = name == "target"
        self._check, self._select = check, select
        self.parts: dict[str, Any] = {}  # the local memory of each tensor; None outside the tensor's mesh
        self.versioned: list[Any] = []  # tensors of a target that have a version counter for autograd
        self._specs: dict[str, Any] = {}  # as they were planned
        self.forget_addresses()

    def forget_addresses(self) -> None:
        """Let all tensors count as moved at the next step."""
        self._places = Places()
        self._seen: _Seen | None = None

    def drop_parts(self) -> None:
        """Keep no memory alive, since other tensors are passed for the next step."""
        self.parts = dict.fromkeys(self.parts)
        self.forget_addresses()

    def moved(self, is_planned: bool) -> list[str]:
        """Return the names of the tensors whose memory has moved since the last call."""
        tensors = {} if self.source is None else self._select(tensors_of(self.source))
        if self._seen is not None and self._seen.is_of(tensors) and self._places.are_of(*self._parts_here()):
            return []
        self._seen = None
        if not is_planned:
            self._specs = {name: spec_of(tensor) for name, tensor in tensors.items()}
        elif tensors.keys() != self.parts.keys():
            name = min(tensors.keys() ^ self.parts.keys())
            what = f"{name!r} is new in" if name in tensors else f"{name!r} has gone from"
            raise ValueError(f"{what} the {self._name}: plan again, or say by names= which tensors are moved")
        check_specs(self._specs, tensors)
        parts = {name: local_part(tensor) for name, tensor in tensors.items()}
        if self._is_target:
            wholes = [x for x in tensors.values() if isinstance(x, DTensor)]
            written = [part for part in parts.values() if part is not None] + wholes
            self.versioned = [x for x in written if not x.is_inference()]
        else:
            parts = {name: readable(part) for name, part in parts.items()}
        self.parts = parts
        names, here = self._parts_here()
        moved = [names[i] for i in self._places.moved(names, here)]
        if moved and self._is_target and isinstance(self.source, torch.nn.Module):
            _refuse_copies(parts, tensors_of(self.source), moved)
        self._check({name: tensors[name] for name in moved if isinstance(tensors[name], DTensor)})
        self._seen = _Seen(tensors, parts)
        return moved

    def _parts_here(self) -> tuple[list[str], list[Any]]:
        """Return the names of the tensors that this rank has a part of, and the parts."""
        names = [name for name, part in self.parts.items() if part is not None]
        return names, [self.parts[name] for name in names]


class TrackedTensors:
    """What this rank has of a source and of a target. Each step looks both up again, and binds the tensors that have
    moved."""

    def __init__(
        self,
        source: ModuleOrState | None,
        target: ModuleOrState | None,
        check: Callable[[int, dict[str, Any]], None] = lambda *_: None,
        select: Callable[[int, dict[str, Any]], dict[str, Any]] = lambda _, tensors: tensors,
    ) -> None:
        """check: check(side, tensors) raises what is wrong with DTensors that have moved; side is 0 for the source and
        1 for the target. select: select(side, tensors) returns those that are to be moved."""
        given = enumerate((("source", source), ("target", target)))
        self._sides = [_TrackedSide(*each, partial(check, side), partial(select, side)) for side, each in given]
        self._is_planned = False

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The local memory of the source's tensors and of the target's, by name."""
        return [side.parts for side in self._sides]

    def replace(self, source: ModuleOrState | None, target: ModuleOrState | None) -> None:
        """Use another source or target from the next step on; None stands for the same as before."""
        for side, new in zip(self._sides, (source, target), strict=True):
            side.source = side.source if new is None else new

    def commit(self, plan: Plan, bind: Callable[[list[tuple[int, str]]], None]) -> None:
        """Call bind() with (0 or 1, name) of each tensor that has moved, then commit the plan. Collective."""
        try:
            try:
                with no_collection():
                    moved = [(i, name) for i, side in enumerate(self._sides) for name in side.moved(self._is_planned)]
                    self._is_planned = True
                    bind(moved)
            except Exception as wrong:
                if getattr(wrong, "_is_in_use", False):
                    raise  # the plan belongs to the step of another thread, which must not fail for this
                plan._fail_at_commit(wrong)  # raised on all ranks
            plan.commit()
            if plan.fresh_sources:
                self._sides[0].drop_parts()
        except BaseException:
            for side in self._sides:
                side.forget_addresses()
            raise

    def mark_written(self) -> None:
        """Tell autograd that the target has changed, for tensors that were saved for a backward pass."""
        torch.autograd.graph.increment_version(self._sides[1].versioned)
