"""What a rank holds of a source and of a target: tensors by name, and which lie elsewhere than before."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ._dtensor import check_specs, spec_of
from ._flat import FlatPart, flat_parts, is_flat
from ._gc import no_collection
from ._places import Places
from .plan import Plan

__all__ = ["Held", "Source", "local_part", "readable", "tensors_of"]

Source = Any  # a torch.nn.Module, or a state dict


_COMPILED = "_orig_mod"  # what torch.compile() names the module in its wrapper
_ARRAYS = ("__array_interface__", "__cuda_array_interface__", "__dlpack__")  # of NumPy, of CuPy, of JAX


def _named(module: torch.nn.Module) -> dict[str, Any]:
    """The state dict of a module, by the names that it has without DDP and torch.compile(), as torch's own
    get_model_state_dict() names it."""
    inner: Any = module
    while inner is not None:
        module = inner
        inner = module.module if isinstance(module, DistributedDataParallel) else module._modules.get(_COMPILED)
    state = flat_parts(module) if is_flat(module) else module.state_dict()
    if any(f"{_COMPILED}." in name for name in state):  # a layer that was compiled alone
        state = {name.replace(f"{_COMPILED}.", ""): x for name, x in state.items()}
    return state


def tensors_of(source: Source) -> dict[str, Any]:
    """The tensors of a module or a state dict by name; a FlatPart of what FSDP1 or ZeRO-3 cut."""
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
    if isinstance(x, Mapping):
        x = x.values()
    return (
        isinstance(x, Iterable)
        and not isinstance(x, str | bytes)
        and any(isinstance(each, torch.Tensor) or _has_tensors(each) for each in x)
    )


def local_part(tensor: Any) -> Any:
    """The memory of this rank's part; None outside the mesh."""
    if isinstance(tensor, FlatPart):
        return tensor.memory
    if isinstance(tensor, DTensor):
        if tensor.device_mesh.get_coordinate() is None:
            return None
        tensor = tensor._local_tensor
    if isinstance(tensor, AsyncCollectiveTensor):
        tensor = tensor.wait()
    return tensor.detach() if tensor.requires_grad else tensor  # the same object where it can be: see Places


def readable(part: Any) -> Any:
    """A part to read from: what expand() gives, whose elements share memory, is copied."""
    is_plain = part is None or part.layout is not torch.strided or 0 not in part.stride()
    return part if is_plain else part.contiguous()


def _refuse_copies(parts: Mapping[str, Any], again: Mapping[str, Any], names: Sequence[str]) -> None:
    """What a module's state_dict() makes anew for each who asks is not what the module computes with."""
    for name in names:
        if local_part(again[name]).data_ptr() != parts[name].data_ptr():
            raise ValueError(
                f"{name!r}: the target's state_dict() hands out a copy, which the module would not see change; hand in "
                "a dict of its own tensors"
            )


_spec, _local = attrgetter("_spec"), attrgetter("_local_tensor")


def _is_own(tensor: Any, part: Any) -> bool:
    """Is a part the tensor's own, and no other view of it or copy? A DTensor that has none here never will."""
    return part is None or part is tensor._local_tensor if isinstance(tensor, DTensor) else part is tensor


class _Seen:
    """The tensors of a side as a step has seen them, to tell at the next one that they are the same objects. It keeps
    none of them."""

    def __init__(self, tensors: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
        wholes = [x for x in tensors.values() if isinstance(x, DTensor)]
        self._names, self._tensors = list(tensors), list(map(weakref.ref, tensors.values()))
        self._specs, self._locals = list(map(_spec, wholes)), list(map(weakref.ref, map(_local, wholes)))
        self._is_plain = all(map(_is_own, tensors.values(), parts.values()))

    def is_of(self, tensors: Mapping[str, Any]) -> bool:
        """Are they, and their parts too?"""
        if not self._is_plain or self._names != list(tensors):
            return False
        if not all(ref() is x for ref, x in zip(self._tensors, tensors.values(), strict=True)):
            return False
        wholes = [x for x in tensors.values() if isinstance(x, DTensor)]
        return all(map(is_, self._specs, map(_spec, wholes))) and all(
            ref() is x for ref, x in zip(self._locals, map(_local, wholes), strict=True)
        )


class Held:
    """What this rank holds of a source and of a target, which are looked at anew before each step."""

    def __init__(
        self,
        source: Source | None,
        target: Source | None,
        check: Callable[[int, dict[str, Any]], None] = lambda *_: None,
        select: Callable[[int, dict[str, Any]], dict[str, Any]] = lambda _, tensors: tensors,
    ) -> None:
        """check: raises what is wrong with the DTensors among the tensors of a side (0 or 1) that have moved. select:
        those of a side that are meant."""
        self.sources = [source, target]
        self._check, self._select = check, select
        self.parts: list[dict[str, Any]] = [{}, {}]  # by name; None outside a tensor's mesh
        self._counted: list[Any] = []  # what has a version for autograd, parts and wholes
        self._seen: list[_Seen | None] = [None, None]
        self._places = [Places(), Places()]
        self._specs: list[dict[str, Any]] = [{}, {}]  # of what was planned
        self._are_known = False

    def _moved(self, side: int) -> list[str]:
        """The names of what does not lie where it lay; of all at first, and after a failure."""
        source, before = self.sources[side], self.parts[side]
        tensors = {} if source is None else self._select(side, tensors_of(source))
        seen = self._seen[side]
        if seen is not None and seen.is_of(tensors) and self._places[side].are_of(*self._parts_here(side)):
            return []
        self._seen[side] = None
        if not self._are_known:
            self._specs[side] = {name: spec_of(tensor) for name, tensor in tensors.items()}
        elif tensors.keys() != before.keys():
            which, name = ("source", "target")[side], min(tensors.keys() ^ before.keys())
            what = f"{name!r} is new in" if name in tensors else f"{name!r} has gone from"
            raise ValueError(f"{what} the {which}: plan again, or say by names= which tensors are moved")
        check_specs(self._specs[side], tensors)
        parts = {name: local_part(tensor) for name, tensor in tensors.items()}
        if side == 1:
            wholes = [x for x in tensors.values() if isinstance(x, DTensor)]
            counted = [part for part in parts.values() if part is not None] + wholes
            self._counted = [x for x in counted if not x.is_inference()]
        self.parts[side] = parts = parts if side == 1 else {name: readable(part) for name, part in parts.items()}
        names, here = self._parts_here(side)
        moved = [names[i] for i in self._places[side].moved(names, here)]
        if moved and side == 1 and isinstance(source, torch.nn.Module):
            _refuse_copies(parts, tensors_of(source), moved)
        self._check(side, {name: tensors[name] for name in moved if isinstance(tensors[name], DTensor)})
        self._seen[side] = _Seen(tensors, parts)
        return moved

    def _parts_here(self, side: int) -> tuple[list[str], list[Any]]:
        """Of the tensors of a side that this rank has a part of, their names and the parts."""
        parts = self.parts[side]
        names = [name for name, part in parts.items() if part is not None]
        return names, [parts[name] for name in names]

    def commit(self, plan: Plan, bind: Callable[[list[tuple[int, str]]], None]) -> None:
        """With what has moved bound: (0 or 1, name) of each. Collective."""
        try:
            try:
                with no_collection():
                    moved = [(side, name) for side in (0, 1) for name in self._moved(side)]
                    self._are_known = True
                    bind(moved)
            except Exception as wrong:
                if getattr(wrong, "_is_in_use", False):
                    raise  # another thread's step, which this one's end is not to spoil
                plan._note(wrong)  # raised on all ranks
            plan.commit()
            if plan.fresh_sources:  # all come anew, and the plan alone keeps these
                self.parts[0], self._places[0], self._seen[0] = dict.fromkeys(self.parts[0]), Places(), None
        except BaseException:
            self._places, self._seen = [Places(), Places()], [None, None]
            raise

    def written(self) -> None:
        """To autograd too: what was saved for a backward pass has changed."""
        torch.autograd.graph.increment_version(self._counted)
