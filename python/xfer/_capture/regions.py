"""Where the elements of strided tensors come from, as strided copies: the arithmetic under xfer.capture, without torch.

A *region* is an offset into a storage and a (size, stride) for each dim, in elements. A *block* is a dense row-major
storage whose elements are known box by box: each box is a region of some source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Dim:
    """One dim of a copy: the number of elements, and the strides in the destination (`to`) and in the source (`of`)."""

    n: int
    to: int
    of: int


@dataclass(frozen=True)
class Strided:
    """A strided copy of elements of `source` from offset `of` on, to a storage from offset `to` on. dtype: the type as
    which the bits of the source are read."""

    source: str
    of: int
    to: int
    dims: tuple[Dim, ...]
    dtype: Any = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(dim.n for dim in self.dims)


@dataclass(frozen=True)
class Box:
    """The elements lo <= x < hi of a block, which come from a source: the element at `lo` from offset `of`, and the
    others at `strides` from it. The source "" is a constant. dtype: the type as which the bits of the source are
    read."""

    lo: tuple[int, ...]
    hi: tuple[int, ...]
    source: str
    of: int
    strides: tuple[int, ...]
    dtype: Any = None


@dataclass
class Block:
    """A dense row-major storage of shape `shape`.

    made: None if all its elements are copies; otherwise the operation that made them, and the names of its sources.
    """

    shape: tuple[int, ...]
    boxes: list[Box] = field(default_factory=list)
    made: tuple[str, tuple[str, ...]] | None = None

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """The strides in elements."""
        found = [1] * len(self.shape)
        for d in reversed(range(len(self.shape) - 1)):
            found[d] = found[d + 1] * max(1, self.shape[d + 1])
        return tuple(found)

    def spoil(self, why: str, sources: Sequence[str]) -> None:
        """Record that an operation wrote values that are not copies."""
        self.made = why, tuple(dict.fromkeys((*self.sources(), *sources)))

    def sources(self) -> tuple[str, ...]:
        """Return the names of all sources whose elements are in the block."""
        return self.made[1] if self.made else tuple(dict.fromkeys(box.source for box in self.boxes if box.source))

    def is_known(self) -> bool:
        """Return whether the block has elements of a source, or values made from sources."""
        return self.made is not None or any(box.source for box in self.boxes)


class Unmapped(Exception):
    """Raised for a region that is not a product of steps along the dims of a block."""


@dataclass(frozen=True)
class _Step:
    """A dim of a copy as a walk through a block: each step goes on by `k` indices of the block's dim `j`."""

    dim: Dim
    j: int
    k: int


def _steps(dim: Dim, index: Sequence[int], block: Block) -> Iterator[_Step]:
    """Yield one dim of a copy as walks along single dims of a block. It is split if it wraps from one dim of the block
    to the next."""
    if dim.of == 0:  # all steps are at the same element
        yield _Step(dim, 0, 0)
        return
    strides = block.strides
    fitting = [j for j, s in enumerate(strides) if block.shape[j] > 1 and dim.of >= s and dim.of % s == 0]
    if not fitting:
        raise Unmapped
    j = min(fitting, key=lambda each: dim.of // strides[each])
    k = dim.of // strides[j]
    if index[j] + k * (dim.n - 1) < block.shape[j]:
        yield _Step(dim, j, k)
        return
    per_row = block.shape[j] // k
    if block.shape[j] % k or index[j] >= k or per_row == 0 or dim.n % per_row or j == 0:
        raise Unmapped
    if per_row > 1:
        yield _Step(replace(dim, n=per_row), j, k)
    yield from _steps(Dim(dim.n // per_row, dim.to * per_row, dim.of * per_row), index, block)


def _unravel(offset: int, block: Block) -> tuple[int, ...]:
    """Return the index of the element at an offset of a block. Raises Unmapped past its end."""
    index = []
    for stride, n in zip(block.strides, block.shape, strict=True):
        index.append(offset // stride)
        offset %= stride
        if index[-1] >= n:
            raise Unmapped
    return tuple(index)


def _reach(steps: tuple[_Step, ...], index: tuple[int, ...]) -> list[int]:
    """Return how far a walk goes along each dim of its block."""
    reach = [0] * len(index)
    for step in steps:
        reach[step.j] += step.k * (step.dim.n - 1)
    return reach


def _meet(index: tuple[int, ...], to: int, steps: tuple[_Step, ...], box: Box) -> Iterator[Strided]:
    """Yield the parts of a walk from `index` that lie in a box."""
    reach = _reach(steps, index)
    if any(i + r < lo or i >= hi for i, r, lo, hi in zip(index, reach, box.lo, box.hi, strict=True)):
        return
    outside = [j for j, i in enumerate(index) if i < box.lo[j] or i + reach[j] >= box.hi[j]]
    if not outside:
        of = box.of + sum((i - lo) * s for i, lo, s in zip(index, box.lo, box.strides, strict=True))
        dims = tuple(Dim(step.dim.n, step.dim.to, step.k * box.strides[step.j]) for step in steps)
        yield Strided(box.source, of, to, dims, box.dtype)
        return
    # Cut the longest walk along a dim that leaves the box, where it enters or leaves if it is the only one there.
    j = outside[0]
    at = max((i for i, step in enumerate(steps) if step.j == j), key=lambda i: steps[i].k * (steps[i].dim.n - 1))
    step = steps[at]
    cut = step.dim.n // 2
    if sum(each.j == j for each in steps) == 1:
        enters, leaves = -(-(box.lo[j] - index[j]) // step.k), -(-(box.hi[j] - index[j]) // step.k)
        cut = enters if 0 < enters < step.dim.n else leaves
    for first, n in ((0, cut), (cut, step.dim.n - cut)):
        moved = (*index[:j], index[j] + first * step.k, *index[j + 1 :])
        part = replace(step, dim=replace(step.dim, n=n))
        yield from _meet(moved, to + first * step.dim.to, (*steps[:at], part, *steps[at + 1 :]), box)


def _joined(block: Block) -> Block:
    """Return the same block with as few dims as possible. A reshaped view sees the storage in other dims than those in
    which it was filled."""
    shape, boxes = list(block.shape), list(block.boxes)
    for d in reversed(range(len(shape) - 1)):
        n = shape[d + 1]
        if any((b.lo[d + 1], b.hi[d + 1]) != (0, n) for b in boxes):
            continue
        if n > 1 and any(b.hi[d] > b.lo[d] + 1 and b.strides[d] != b.strides[d + 1] * n for b in boxes):
            continue
        for i, b in enumerate(boxes):
            lo, hi = (*b.lo[:d], b.lo[d] * n, *b.lo[d + 2 :]), (*b.hi[:d], b.hi[d] * n, *b.hi[d + 2 :])
            stride = b.strides[d + 1] if n > 1 else b.strides[d]
            boxes[i] = Box(lo, hi, b.source, b.of, (*b.strides[:d], stride, *b.strides[d + 2 :]), b.dtype)
        shape[d : d + 2] = [shape[d] * n]
    return Block(tuple(shape), boxes)


_UNKNOWN = "\0"  # the name of no tensor; clear() leaves no box that has it


def _slices(copy: Strided, dim: Dim, most: int) -> Iterator[Strided]:
    """Yield the slices of a copy along one dim. Raises Unmapped if there are more than `most`."""
    inner = list(copy.dims)
    inner.remove(dim)
    if dim.n > most:
        raise Unmapped
    for i in range(dim.n):
        yield Strided(copy.source, copy.of + i * dim.of, copy.to + i * dim.to, tuple(inner), copy.dtype)


def read(block: Block, copy: Strided, most: int = 4096) -> list[Strided]:
    """Return a copy out of a block as copies out of the sources of the block. If it does not follow the block's dims,
    it is read in up to `most` parts. Raises Unmapped if that needs more."""
    if copy.size == 0:
        return []
    joined = _joined(block)
    index = _unravel(copy.of, joined)
    try:
        steps = tuple(step for dim in copy.dims if dim.n > 1 for step in _steps(dim, index, joined))
        if any(i + r >= n for i, r, n in zip(index, _reach(steps, index), joined.shape, strict=True)):
            raise Unmapped  # two dims together run past the end of a row
    except Unmapped:
        outer = max((dim for dim in copy.dims if dim.n > 1), key=lambda dim: dim.of)
        return [part for each in _slices(copy, outer, most) for part in read(block, each, most // outer.n)]
    return [part for box in joined.boxes for part in _meet(index, copy.to, steps, box)]


def write(block: Block, copy: Strided, most: int = 4096) -> None:
    """Write a copy into a block, as one box or as up to `most` boxes. Raises Unmapped if that needs more."""
    if copy.size == 0:
        return
    try:
        box = _box_of(block, copy)
    except Unmapped:
        outer = max((dim for dim in copy.dims if dim.n > 1), key=lambda dim: dim.to, default=None)
        if outer is None:
            raise
        for part in _slices(copy, outer, most):
            write(block, part, most // outer.n)
        return
    near = [old for old in block.boxes if old.lo[0] < box.hi[0] and box.lo[0] < old.hi[0]]
    if any(_overlap(old, box) for old in near):
        block.boxes = [part for old in block.boxes for part in _without(old, box)]
    block.boxes.append(box)


def clear(block: Block, copy: Strided) -> None:
    """Make the elements that a copy would write unknown. Raises Unmapped as write() does."""
    write(block, replace(copy, source=_UNKNOWN))
    block.boxes = [box for box in block.boxes if box.source != _UNKNOWN]


def _box_of(block: Block, copy: Strided) -> Box:
    """Return the box of a block that a copy fills. Raises Unmapped if it fills none."""
    index = list(_unravel(copy.to, block))
    hi, strides = [i + 1 for i in index], [0] * len(index)
    # _steps() walks along `of`, so that becomes the stride in the block.
    turned = [Dim(dim.n, dim.of, dim.to) for dim in copy.dims if dim.n > 1]
    for dim in turned:
        for step in _steps(dim, index, block):
            if step.k != 1 or strides[step.j] or hi[step.j] != index[step.j] + 1:
                raise Unmapped
            hi[step.j] = index[step.j] + step.dim.n
            strides[step.j] = step.dim.to
    return Box(tuple(index), tuple(hi), copy.source, copy.of, tuple(strides), copy.dtype)


def _overlap(old: Box, new: Box) -> bool:
    """Return whether two boxes have elements in common."""
    return all(a < c and b < d for a, b, c, d in zip(new.lo, old.lo, old.hi, new.hi, strict=True))


def _without(old: Box, new: Box) -> Iterator[Box]:
    """Yield the parts of a box that are left after another was written over it."""
    if not _overlap(old, new):
        yield old
        return
    lo, hi = list(old.lo), list(old.hi)
    for d in range(len(lo)):
        for first, last in ((lo[d], new.lo[d]), (new.hi[d], hi[d])):
            if first < last:
                low, high = (*lo[:d], first, *lo[d + 1 :]), (*hi[:d], last, *hi[d + 1 :])
                of = old.of + sum((a - b) * s for a, b, s in zip(low, old.lo, old.strides, strict=True))
                yield Box(low, high, old.source, of, old.strides, old.dtype)
        lo[d], hi[d] = max(lo[d], new.lo[d]), min(hi[d], new.hi[d])


def simplified(copy: Strided) -> Strided:
    """Return the same copy with as few dims as possible: dims of size 1 are left out, and dims that continue each other
    are joined."""
    dims: list[Dim] = []
    for dim in sorted((d for d in copy.dims if d.n > 1), key=lambda d: (-d.to, -d.of)):
        last = dims[-1] if dims else None
        if last is not None and last.to == dim.to * dim.n and last.of == dim.of * dim.n:
            dims[-1] = Dim(last.n * dim.n, dim.to, dim.of)
        else:
            dims.append(dim)
    return replace(copy, dims=tuple(dims))
