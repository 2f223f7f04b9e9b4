"""What a rank holds of a source and of a target: tensors by name, and which lie elsewhere than before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor

from ._dtensor import check_specs, spec_of
from ._flat import FlatPart, flat_parts, is_flat
from ._gc import no_collection
from ._places import Places
from .plan import Plan

__all__ = ["Held", "Source", "local_part", "readable", "tensors_of"]

Source = Any  # a torch.nn.Module, or a state dict


def tensors_of(source: Source) -> dict[str, Any]:
    """The tensors of a module or a state dict by name; a FlatPart of what FSDP1 or ZeRO-3 cut."""
    if isinstance(source, torch.nn.Module):
        source = flat_parts(source) if is_flat(source) else source.state_dict()
    if not isinstance(source, Mapping):
        raise TypeError(f"a {type(source).__name__} is neither a module nor a state dict")
    tensors = {}
    for name, x in source.items():
        if isinstance(x, torch.Tensor | FlatPart):
            if not isinstance(name, str):
                raise TypeError(f"a tensor's name is {name!r}, not a text")
            tensors[name] = x
        elif hasattr(x, "__array_interface__") or _has_tensors(x):
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


def _is_empty(tensor: Any) -> bool:
    """Of a DTensor without elements the parts have shapes of torch's own."""
    return isinstance(tensor, DTensor) and 0 in tensor.shape


class Held:
    """What this rank holds of a source and of a target, which are looked at anew before each step."""

    def __init__(
        self,
        source: Source | None,
        target: Source | None,
        check: Callable[[int, dict[str, Any]], None] = lambda *_: None,
    ) -> None:
        """check: raises what is wrong with the DTensors among the tensors of a side (0 or 1) that have moved."""
        self.sources = [source, target]
        self._check = check
        self.parts: list[dict[str, Any]] = [{}, {}]  # by name; None outside a tensor's mesh
        self._wholes: list[DTensor] = []  # of the target, each with a version of its own
        self._places = [Places(), Places()]
        self._specs: list[dict[str, Any]] = [{}, {}]  # of what was planned
        self._are_known = False

    def _moved(self, side: int) -> list[str]:
        """The names of what does not lie where it lay; of all at first, and after a failure."""
        source, before = self.sources[side], self.parts[side]
        tensors = {} if source is None else tensors_of(source)
        if not self._are_known:
            self._specs[side] = {name: spec_of(tensor) for name, tensor in tensors.items()}
        elif tensors.keys() != before.keys():
            which, name = ("source", "target")[side], min(tensors.keys() ^ before.keys())
            raise ValueError(f"{name!r} {'is new in' if name in tensors else 'has gone from'} the {which}")
        check_specs(self._specs[side], tensors)
        parts = {name: None if _is_empty(tensor) else local_part(tensor) for name, tensor in tensors.items()}
        if side == 1:
            self._wholes = [x for x in tensors.values() if isinstance(x, DTensor)]
        self.parts[side] = parts = parts if side == 1 else {name: readable(part) for name, part in parts.items()}
        names = [name for name, part in parts.items() if part is not None]
        moved = [names[i] for i in self._places[side].moved(names, [parts[name] for name in names])]
        if moved and side == 1 and isinstance(source, torch.nn.Module):
            _refuse_copies(parts, tensors_of(source), moved)
        self._check(side, {name: tensors[name] for name in moved if isinstance(tensors[name], DTensor)})
        return moved

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
                self.parts[0], self._places[0] = dict.fromkeys(self.parts[0]), Places()
        except BaseException:
            self._places = [Places(), Places()]
            raise

    def written(self) -> None:
        """To autograd too: what was saved for a backward pass has changed."""
        tensors = [part for part in self.parts[1].values() if part is not None] + self._wholes
        torch.autograd.graph.increment_version([x for x in tensors if not x.is_inference()])
