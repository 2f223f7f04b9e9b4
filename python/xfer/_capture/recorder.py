"""The recorder under xfer.capture: it follows what a loader does to storages, operation by operation."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .operations import CONSTANTS, carried_out, flat, is_index, kind_of, returned, written_by
from .storages import Storages, key_of

__all__ = ["Recorder"]


class _Number:
    """A number that item() returned. A loader may fill a parameter with it; any other use raises ValueError, since it
    has no value. torch calls the methods."""

    def __init__(self, tensor: torch.Tensor, source: str) -> None:
        self.tensor, self.source, self.is_used = tensor, source, False

    def is_int(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def is_float(self) -> bool:
        return True

    def __getattr__(self, _: str) -> Any:
        raise _no_value(self.source)


def _no_value(source: str) -> ValueError:
    """Return the error for a loader that looks at a value of a source."""
    return ValueError(f"the loader looks at a value of {source!r}: there is none here")


class Recorder(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """A dispatch mode that sees each operation below autograd. It follows operations on the checkpoint's elements
    instead of carrying them out."""

    def __init__(self) -> None:
        super().__init__()
        self.storages = Storages()
        self._numbers: list[_Number] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kind_of(func).is_composite:
            with self:
                return func.decompose(*args, **kwargs)
        given = list(flat((args, kwargs)))
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        numbers = [x.node for x in given if isinstance(x, torch.SymFloat)]
        if numbers:
            return self._fill(func, args, numbers[0])
        if kind_of(func).is_turn and not any(args[0] is x for x in self.storages.live):
            return func(*args, **kwargs)
        if not any(self.storages.has(x) for x in tensors):
            return self._untracked(func, args, kwargs)
        if kind_of(func).is_view:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        written = written_by(func, args, kwargs)
        if name in ("copy_", "_foreach_copy_"):
            for target, source in zip(flat(args[0]), flat(args[1]), strict=True):
                if self.storages.has(target) or self.storages.has(source):
                    self.storages.copy(target, source)
                else:  # one of several copies, without elements of the checkpoint
                    self._untracked(torch.ops.aten.copy_.default, (target, source), {})
            return returned(func, written)
        if name == "_local_scalar_dense":
            return self._number(tensors[0])
        if written:
            others = [x for x in tensors if all(x is not y for y in written)]
            empty = [x for x in written if x.numel() == 0 and any(x is y for y in flat(kwargs))]
            if empty and any(x.numel() for x in others):
                func(*args, **kwargs)  # this makes `out` as large as the result
            for x in written:
                self.storages.spoil(x, name, others)
            return returned(func, written)
        if name == "_to_copy" and args[0].is_meta:
            kwargs = {**kwargs, "device": args[0].device}  # without data there is nothing to move to another device
        result = carried_out(func, args, kwargs, tensors)
        for out in flat(result):
            if isinstance(out, torch.Tensor) and key_of(out) not in {key_of(x) for x in tensors}:
                self.storages.note_result(out, name, args, kwargs, tensors)
        return result

    def _number(self, tensor: torch.Tensor) -> torch.SymFloat:
        """Return item() of a tensor, with the elements that the tensor has now."""
        source = self.storages.sources_of([tensor])[0]
        if not tensor.is_floating_point():
            raise _no_value(source)
        now = tensor.clone()
        self.storages.note_result(now, "clone", (tensor,), {}, [tensor])
        self._numbers.append(_Number(now.reshape(()), source))
        return torch.SymFloat(self._numbers[-1])

    def _fill(self, func: Any, args: Any, number: _Number) -> Any:
        """Record that a parameter is filled with a number of a source."""
        if func.overloadpacket.__name__ != "fill_":
            raise _no_value(number.source)
        number.is_used = True
        self.storages.copy(args[0], number.tensor)
        return args[0]

    def _untracked(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Carry out an operation that has no elements of the checkpoint. It may still fill a parameter, or make a
        tensor that later receives elements."""
        name = func.overloadpacket.__name__
        written = written_by(func, args, kwargs)
        named = [
            x for x in written if (known := self.storages.known.get(key_of(x))) is not None and known.name is not None
        ]
        if named:
            for x in named:
                self.storages.spoil(x, name, [])
            return returned(func, written)
        if name == "_to_copy" and is_index(args[0]) and torch.device(kwargs.get("device") or "cpu").type == "meta":
            kwargs = {**kwargs, "device": "cpu"}  # it may select elements of the checkpoint, which needs its values
        result = carried_out(func, args, kwargs, [x for x in flat((args, kwargs)) if isinstance(x, torch.Tensor)])
        for out in flat(result):
            if isinstance(out, torch.Tensor) and key_of(out) not in self.storages.known:
                self.storages.note_constant(self.storages.add(out), name in CONSTANTS)
        return result

    def check_numbers(self) -> None:
        """Raise ValueError for a number from item() that did not fill a parameter."""
        for number in self._numbers:
            if not number.is_used:
                raise _no_value(number.source)
