"""Where torch tensors lie, and which lie elsewhere than before: for 20,000 of them in a few milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch

from .memory import memory_of

__all__ = ["Places"]

_Tensor = torch.Tensor


class Places:
    """Tensors by name as they were last seen. Addresses tell memory apart as long as what lay there is kept, as a plan
    keeps what is bound to it."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._tensors: list[Any] = []
        self._where: list[list[Any]] = []
        self._rows: set[Any] = set()

    def moved(self, names: Sequence[str], tensors: Sequence[Any]) -> list[int]:
        """Which of these were not there, or not in the same place, or of another type, at the last call."""
        names, tensors = list(names), list(tensors)
        try:
            where = _where(tensors)
        except RuntimeError:  # one has no memory, as a sparse one
            _name_the_one_without_memory(names, tensors)
            raise
        if (names, where) == (self._names, self._where) and all(map(is_, tensors, self._tensors)):
            return []
        rows = [(name, x.data_ptr(), x.dtype, x.shape, x.stride()) for name, x in zip(names, tensors, strict=True)]
        known, self._rows = self._rows, set(rows)
        self._names, self._tensors, self._where = names, tensors, where
        return [i for i, row in enumerate(rows) if row not in known]


def _name_the_one_without_memory(names: Sequence[str], tensors: Sequence[Any]) -> None:
    for name, tensor in zip(names, tensors, strict=True):
        try:
            memory_of(tensor)
        except TypeError as wrong:
            raise TypeError(f"{name!r}: {wrong}") from None


def _where(tensors: Sequence[Any]) -> list[list[Any]]:
    """What tells of the same objects that they lie as before; of tensors that are not contiguous, the strides too."""
    where = [list(map(_Tensor.data_ptr, tensors))]
    if not all(map(_Tensor.is_contiguous, tensors)):
        where.append([x.stride() for x in tensors])
    return where
