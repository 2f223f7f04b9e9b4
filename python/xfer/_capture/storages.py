"""What a loader has put into storages: which elements of the checkpoint lie where, and what was written to
parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..dtypes import dtype_name
from .operations import CONSTANTS, EMPTY, parts_of_copy
from .regions import Block, Box, Dim, Strided, Unmapped, clear, read, write

__all__ = ["Storage", "Storages", "Write", "key_of", "name_of", "region", "whole"]

_WIDER = {
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
}


def _holds(dtype: Any, other: Any) -> bool:
    """Return whether a dtype represents all values of another."""
    return dtype == other or dtype in _WIDER.get(other, ())


@dataclass
class Write:
    """A write into a parameter. Writes are kept in order.

    made: None if the values are copies; otherwise the operation that made them, and the names of its sources.
    """

    copy: Strided
    made: tuple[str, tuple[str, ...]] | None = None


@dataclass
class Storage:
    """What is known of a storage.

    keep: keeps the storage alive, so that its address is not given to another. name: of the parameter, or None.
    is_rounded: values were copied into it that its dtype may not represent.
    """

    keep: Any
    block: Block
    dtype: Any
    name: str | None = None  # of the parameter
    writes: list[Write] = field(default_factory=list)
    is_rounded: bool = False  # values were copied into it that its dtype may not represent


def key_of(tensor: torch.Tensor) -> int:
    """Return a number that is the same for tensors with the same storage."""
    return int(tensor.untyped_storage()._cdata)


def region(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Return the (size, stride) of each dim."""
    return list(zip(tensor.shape, tensor.stride(), strict=True))


def name_of(dtype: Any) -> str:
    """Return the library's name of a dtype, or torch's if the library does not have it."""
    try:
        return dtype_name(dtype)
    except TypeError:
        return str(dtype)


class Storages:
    """All storages that have elements of the checkpoint or are parameters'.

    sources: the tensors of the checkpoint. known: by the storage. live: the parameters, whose own dims must not change.
    """

    def __init__(self) -> None:
        self.sources: dict[str, torch.Tensor] = {}
        self.known: dict[int, Storage] = {}
        self.live: list[torch.Tensor] = []

    # ---- what is known at first

    def add_source(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor of the checkpoint."""
        block = Block((tensor.numel(),), [Box((0,), (tensor.numel(),), name, 0, (1,), tensor.dtype)])
        self.sources[name] = tensor
        self.known[key_of(tensor)] = Storage(tensor.untyped_storage(), block, tensor.dtype)

    def add(self, tensor: torch.Tensor, name: str | None = None) -> Storage:
        """Add the storage of a tensor, and return what is known of it. The storage is known by the dims of the tensor
        if the tensor is dense. name: of a parameter."""
        n = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
        dims = sorted(region(tensor), key=lambda dim: (-dim[1], -dim[0]))
        shape = tuple(n for n, _ in dims)
        if tensor.storage_offset() or tensor.numel() != n or Block(shape).strides != tuple(s for _, s in dims):
            shape = (n,)
        shape = shape or (1,)
        made = Storage(tensor.untyped_storage(), Block(shape), tensor.dtype, name)
        if name is not None:
            self.live.append(tensor)
        return self.known.setdefault(key_of(tensor), made)

    # ---- what is where

    def has_elements(self, tensors: Iterable[torch.Tensor], but: Iterable[Any]) -> bool:
        """Return whether the storage of one of the tensors has elements of the checkpoint and is not the storage of a
        tensor in `but`."""
        own = {key_of(tensor) for tensor in but} if (given := list(filter(self.has, tensors))) else set()
        return any(key_of(tensor) not in own for tensor in given)

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether the storage of a tensor has elements of the checkpoint."""
        known = self.known.get(key_of(tensor))
        return known is not None and known.block.is_known()

    def sources_of(self, tensors: Iterable[torch.Tensor]) -> tuple[str, ...]:
        """Return the names of the sources whose elements are in the storages of the tensors."""
        known = [self.known[key_of(tensor)] for tensor in tensors if key_of(tensor) in self.known]
        return tuple(dict.fromkeys(name for each in known for name in each.block.sources()))

    def copies(self, tensor: torch.Tensor, to: int, to_strides: Iterable[int]) -> list[Strided]:
        """Return the elements of a tensor as copies to a place with these strides. Raises Unmapped if they are not
        copies."""
        known = self.known[key_of(tensor)]
        if known.block.made is not None or tensor.dtype.itemsize != known.dtype.itemsize:
            raise Unmapped
        dims = tuple(Dim(n, t, s) for (n, s), t in zip(region(tensor), to_strides, strict=True))
        copies = read(known.block, Strided("", tensor.storage_offset(), to, dims))
        return copies if tensor.dtype == known.dtype else _taken_for(tensor.dtype, known.dtype, copies)

    def _exact(self, tensor: torch.Tensor, to: int, to_strides: Iterable[int]) -> list[Strided]:
        """Return copies() of a tensor that has the checkpoint's exact values. Raises Unmapped if they were rounded."""
        if self.known[key_of(tensor)].is_rounded:
            raise Unmapped
        return self.copies(tensor, to, to_strides)

    # ---- what operations do

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Record target.copy_(source)."""
        if not target.numel():
            return
        into = self.known.get(key_of(target)) or self.add(target)
        if not self.has(source):
            self.spoil(target, "copy_", [])
            return
        source, known = source.expand(target.shape), self.known[key_of(source)]
        try:
            copies = self._exact(source, target.storage_offset(), target.stride())
            if target.dtype != into.dtype:
                copies = _taken_for(into.dtype, target.dtype, copies)
        except Unmapped:
            how = known.block.made[0] if known.block.made else f"view as {name_of(source.dtype)}, or strides"
            self._write_made(into, target, ("copy_" if known.is_rounded else how, self.sources_of([source])))
            return
        into.is_rounded = into.is_rounded or not _holds(target.dtype, source.dtype)
        if sum(copy.size for copy in copies) < target.numel():
            into.writes.append(Write(whole(target), ("nothing", ())))
        into.writes += [Write(copy, None if copy.source else ("constant", ())) for copy in copies]
        self._write(into, target, copies)

    def spoil(self, target: torch.Tensor, how: str, others: Iterable[Any]) -> None:
        """Record that an operation wrote values that are not copies. Values that depend on nothing are constants."""
        if not target.numel():
            return
        into = self.known.get(key_of(target)) or self.add(target)
        is_constant = how in ("zero_", "fill_") and not self.sources_of(others)
        if is_constant and target.dtype.itemsize == into.dtype.itemsize:
            into.writes.append(Write(whole(target), (how, ())))
            self._write(into, target, [whole(target)])
        else:
            self._write_made(into, target, (how, self.sources_of([target, *others])))

    @staticmethod
    def _write(into: Storage, target: torch.Tensor, copies: Sequence[Strided]) -> None:
        """Record copies in the block of a storage."""
        try:
            _fill(into.block, target, copies)
        except Unmapped:
            into.block.spoil("writes in strides", [copy.source for copy in copies if copy.source])

    @staticmethod
    def _write_made(into: Storage, target: torch.Tensor, made: tuple[str, tuple[str, ...]]) -> None:
        """Record that values were written that are not copies. made: as in Write."""
        into.block.spoil(*made)
        if target.dtype.itemsize == into.dtype.itemsize:
            into.writes.append(Write(whole(target), made))
        else:  # its elements have another size than those of the storage
            everything = (Dim(math.prod(into.block.shape), 1, 0),)
            into.writes.append(Write(Strided("", 0, 0, everything), into.block.made))

    @staticmethod
    def note_constant(made: Storage, filled: bool) -> None:
        """Record that a new storage is filled with a constant."""
        if filled:
            made.block.boxes.append(
                Box((0,) * len(made.block.shape), made.block.shape, "", 0, (0,) * len(made.block.shape))
            )

    def note_result(self, out: torch.Tensor, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> None:
        """Record what is in a tensor that an operation returned in a storage of its own."""
        self.known.pop(key_of(out), None)
        made = self.add(out)
        self.note_constant(made, name == "constant_pad_nd" or name in CONSTANTS)
        if name in EMPTY or name in CONSTANTS:
            return
        try:
            for part, x in parts_of_copy(out, name, args, kwargs):
                self._write_part(made, part, x)
        except Unmapped:
            made.block.boxes.clear()
            made.block.spoil(name, self.sources_of(tensors))

    def _write_part(self, made: Storage, part: torch.Tensor, x: torch.Tensor) -> None:
        """Record that a tensor was copied to a part of a new storage. Raises Unmapped if that is not an exact copy."""
        known = self.known.get(key_of(x))
        if known is None or not self.has(x):
            raise Unmapped
        if not _holds(made.dtype, x.dtype):
            raise Unmapped
        _fill(made.block, part, self._exact(x, part.storage_offset(), part.stride()))


def _taken_for(dtype: Any, other: Any, copies: Iterable[Strided]) -> list[Strided]:
    """Return copies whose bits are read as another dtype. Raises Unmapped unless the bits are those of the sources."""
    if dtype.itemsize != other.itemsize or any(copy.source and copy.dtype != other for copy in copies):
        raise Unmapped
    return [replace(copy, dtype=dtype) for copy in copies]


def whole(tensor: torch.Tensor) -> Strided:
    """Return a write of a constant to all elements of a tensor."""
    return Strided("", 0, tensor.storage_offset(), tuple(Dim(n, s, 0) for n, s in region(tensor)))


def _fill(block: Block, target: torch.Tensor, copies: Sequence[Strided]) -> None:
    """Write all elements of a target; those that no copy covers are unknown. Raises Unmapped."""
    if sum(copy.size for copy in copies) < target.numel():
        clear(block, whole(target))
    for copy in copies:
        write(block, copy)
