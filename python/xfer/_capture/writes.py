"""What is left of all writes in the parameters, once the loader has run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

import torch

from .regions import Block, Dim, Strided, Unmapped, write
from .storages import Storage, Storages, Write, key_of, region, whole

__all__ = ["written"]


def written(
    storages: Storages, named: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor, list[Write], int]]:
    """Yield, for each parameter, its name, the parameter, its writes, and the number of its elements that nothing
    wrote. A parameter that is tied to an earlier one is left out."""
    seen: dict[int, list[tuple[int, int]]] = {}
    last_of = cache(lambda key: _last_of(storages.known[key]))  # cached, since several parameters may share a storage
    for name, tensor in named:
        known = storages.known.get(key_of(tensor))
        lo, hi = tensor.storage_offset(), tensor.storage_offset() + _reach(tensor)
        others = seen.setdefault(key_of(tensor), [])
        if any(a <= lo and hi <= b for a, b in others):
            continue  # it is tied to an earlier parameter
        others.append((lo, hi))
        writes = _replaced(storages, tensor) if known is None or known.name is None else known.writes
        writes = [part for each in writes for part in _inside(each, lo, hi)]
        covered = _covered(storages, tensor, writes)
        if known is not None and known.name is not None and sum(each.copy.size for each in writes) > covered:
            writes = [part for each in last_of(key_of(tensor)) for part in _inside(each, lo, hi)]
        yield name, tensor, writes, tensor.numel() - covered


def _covered(storages: Storages, tensor: torch.Tensor, writes: list[Write]) -> int:
    """Return how many elements of a parameter were written."""
    known = storages.known.get(key_of(tensor))
    block = known.block if known is not None and known.name is not None else None
    if block is not None and block.made is None and math.prod(block.shape) == tensor.numel():
        # the boxes of a block do not overlap
        return sum(math.prod(h - lo for lo, h in zip(b.lo, b.hi, strict=True)) for b in block.boxes)
    seen = torch.zeros(tensor.storage_offset() + _reach(tensor), dtype=torch.bool, device="cpu")
    for each in writes:
        if each.copy.size:
            dims, is_known = each.copy.dims, each.made is None or each.made[0] != "nothing"
            seen.as_strided([d.n for d in dims], [d.to for d in dims], each.copy.to).fill_(is_known)
    return int(seen.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).sum())


def _replaced(storages: Storages, tensor: torch.Tensor) -> list[Write]:
    """Return the writes of a parameter that was given other memory."""
    if not storages.has(tensor):
        return []
    try:
        copies = storages.copies(tensor, tensor.storage_offset(), tensor.stride())
        return [Write(copy, None if copy.source else ("constant", ())) for copy in copies]
    except Unmapped:
        known = storages.known[key_of(tensor)]
        how = known.block.made[0] if known.block.made else "a view as another type"
        return [Write(whole(tensor), (how, storages.sources_of([tensor])))]


def _inside(write: Write, lo: int, hi: int) -> Iterator[Write]:
    """Yield the parts of a write that lie in a range of a storage, which several parameters may share."""
    copy = write.copy
    last = copy.to + sum((dim.n - 1) * dim.to for dim in copy.dims)
    if copy.size == 0 or last < lo or copy.to >= hi:
        return
    if lo <= copy.to and last < hi:
        yield write
        return
    outer = max((dim for dim in copy.dims if dim.n > 1), key=lambda dim: dim.to)
    inner = list(copy.dims)
    inner.remove(outer)
    for first, n in ((0, outer.n // 2), (outer.n // 2, outer.n - outer.n // 2)):
        dims = (replace(outer, n=n), *inner)
        part = replace(copy, of=copy.of + first * outer.of, to=copy.to + first * outer.to, dims=dims)
        yield from _inside(replace(write, copy=part), lo, hi)


def _last_of(known: Storage) -> list[Write]:
    """Return the writes that are left in a storage after later ones have overwritten earlier ones."""
    block, strides, left = Block(known.block.shape), known.block.strides, []
    try:
        for i, each in enumerate(known.writes):
            write(block, replace(each.copy, source=str(i)))
    except Unmapped:
        return _last_in_strides(known)
    for box in block.boxes:
        each = known.writes[int(box.source)]
        to = sum(lo * s for lo, s in zip(box.lo, strides, strict=True))
        sizes = [hi - lo for lo, hi in zip(box.lo, box.hi, strict=True)]
        dims = tuple(Dim(n, t, f) for n, t, f in zip(sizes, strides, box.strides, strict=True))
        left.append(Write(Strided(each.copy.source, box.of, to, dims, box.dtype), each.made))
    return left


def _last_in_strides(known: Storage) -> list[Write]:
    """Do the work of _last_of() for writes that are not boxes. A write that was overwritten completely is left out. If
    a copy was overwritten in part, the whole storage counts as made."""
    everything = Strided("", 0, 0, (Dim(math.prod(known.block.shape), 1, 0),))
    taken, left = torch.zeros(everything.size, dtype=torch.bool, device="cpu"), []
    for each in reversed(known.writes):
        part = taken.as_strided([dim.n for dim in each.copy.dims], [dim.to for dim in each.copy.dims], each.copy.to)
        if part.all():
            continue
        if each.made is None and part.any():
            return [Write(everything, known.block.made)]
        left.append(each)
        part.fill_(True)
    return left[::-1]


def _reach(tensor: torch.Tensor) -> int:
    """Return the number of elements from the first of a tensor to its last."""
    return 1 + sum((n - 1) * s for n, s in region(tensor)) if tensor.numel() else 0
