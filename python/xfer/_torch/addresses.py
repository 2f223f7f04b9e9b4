"""Where torch tensors lie, and which of them have moved in memory since the last look: a few milliseconds for 20,000
tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, is_
from typing import Any

import torch

from ..memory import memory_of

__all__ = ["Places"]

_Tensor = torch.Tensor
_dtype, _shape = attrgetter("dtype"), attrgetter("shape")


class Places:
    """Tensors by name as they were last seen. An address identifies memory as long as the memory at it is kept alive,
    as a plan keeps what is bound to it."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._tensors: list[Any] = []
        self._where: list[Any] = []

    def are_of(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether these are the same objects as at the last call of moved(), in the same places."""
        return (
            list(names) == self._names
            and len(tensors) == len(self._tensors)
            and all(map(is_, tensors, self._tensors))
            and _where(tensors) == self._where
        )

    def moved(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> list[int]:
        """Return the indices of the tensors that were not there at the last call, or had another place or another
        type."""
        names, tensors = list(names), list(tensors)
        try:
            where = _where(tensors)
        except RuntimeError:  # a tensor has no memory of its own, such as a sparse one
            _name_the_one_without_memory(names, tensors)
            raise
        known: Iterable[tuple[Any, Any]] = zip(self._where, self._tensors, strict=True)
        if names != self._names:
            by_name = dict(zip(self._names, known, strict=True))
            known = (by_name.get(name, (None, None)) for name in names)
        elif where == self._where and all(map(is_, tensors, self._tensors)):
            return []
        moved = [
            i
            for i, (x, at, (was_at, was)) in enumerate(zip(tensors, where, known, strict=True))
            if at != was_at or (x is not was and _form(x) != _form(was))
        ]
        self._names, self._tensors, self._where = names, tensors, where
        return moved


def _name_the_one_without_memory(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    """Raise TypeError for a tensor that has no memory of its own, with its name."""
    for name, tensor in zip(names, tensors, strict=True):
        try:
            memory_of(tensor)
        except TypeError as wrong:
            raise TypeError(f"{name!r}: {wrong}") from None


def _where(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Return, for each tensor, what shows that the same object lies as before: its address, dtype and shape, and the
    strides if any tensor is not contiguous."""
    what: list[Iterable[Any]] = [map(_Tensor.data_ptr, tensors), map(_dtype, tensors), map(_shape, tensors)]
    if not all(map(_Tensor.is_contiguous, tensors)):
        what.append(map(_Tensor.stride, tensors))
    return list(zip(*what, strict=True))


def _form(tensor: torch.Tensor) -> Any:
    """Return what another object at the same address may differ in."""
    return tensor.stride(), tensor.is_neg()
