"""One load of a checkpoint: which rank reads what, and how it gets to the ranks that want it. See dcp.py."""

from __future__ import annotations

import ctypes
import io
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.planner import LoadItemType

from ..comm import Agreed, Comm
from ..layout import Layout
from ..memory import View
from ..plan import Plan
from ._comms import dropped_if_broken

__all__ = ["Extent", "Load", "Shares", "box_of", "bytes_of", "flat_range", "merged"]

Box = tuple[tuple[int, ...], tuple[int, ...]]  # lo and hi, half-open, within what is stored
_ALIGNED = 16
_WIRE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # elements travel as integers of their size


class Extent(NamedTuple):
    """Elements first <= i < last of the row-major order of something stored, which some rank wants."""

    index: Any  # a MetadataIndex
    shape: tuple[int, ...]
    dtype: Any
    first: int
    last: int


class Piece(NamedTuple):
    """What a rank reads of an extent in a window."""

    extent: int  # its number
    first: int
    last: int


@dataclass(frozen=True)
class Shares:
    """Who reads what of the extents: each rank a stretch of all of them, as many bytes as every other, in windows."""

    extents: list[Extent]
    starts: list[int]  # in bytes, of each extent; then the sum
    n_ranks: int
    window_bytes: int

    @property
    def n_windows(self) -> int:
        """Of the longest stretch."""
        longest = -(-self.starts[-1] // self.n_ranks)
        return -(-longest // self.window_bytes)

    def pieces(self, rank: int, window: int) -> Iterator[Piece]:
        """What a rank reads, in order. An element belongs to where its last byte is."""
        begin, end = (self.starts[-1] * r // self.n_ranks for r in (rank, rank + 1))
        begin = min(begin + window * self.window_bytes, end)
        end = min(begin + self.window_bytes, end)
        for number in range(max(0, bisect_right(self.starts, begin) - 1), len(self.extents)):
            extent, start = self.extents[number], self.starts[number]
            if start >= end:
                return
            size, n = extent.dtype.itemsize, extent.last - extent.first
            lo, hi = (min(max(0, (x - start) // size), n) for x in (begin, end))
            if lo < hi:
                yield Piece(number, extent.first + lo, extent.first + hi)


def box_of(item: Any, shape: Sequence[int]) -> Box:
    """What a ReadItem reads; of an object all."""
    if item.type == LoadItemType.BYTE_IO:
        return (0,), tuple(shape)
    lo = tuple(item.storage_offsets)
    return lo, tuple(a + n for a, n in zip(lo, item.lengths, strict=True))


def flat_range(shape: Sequence[int], box: Box) -> tuple[int, int]:
    """From the first element of a box to past its last, in row-major order."""
    first = last = 0
    for n, lo, hi in zip(shape, *box, strict=True):
        first, last = first * n + lo, last * n + hi - 1
    return first, last + 1


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Without overlaps."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1]:
            result[-1] = result[-1][0], max(last, result[-1][1])
        else:
            result.append((first, last))
    return result


def bytes_of(tensor: Any) -> memoryview:
    """Of a dense tensor of bytes on the host, which must outlive it."""
    return memoryview((ctypes.c_char * tensor.numel()).from_address(tensor.data_ptr())).cast("B")


def _common(a: Box, b: Box) -> Box | None:
    lo, hi = tuple(map(max, a[0], b[0])), tuple(map(min, a[1], b[1]))
    return (lo, hi) if all(x < y for x, y in zip(lo, hi, strict=True)) else None


def _boxes(extent: Extent, piece: Piece) -> list[Box]:
    """What a piece is within what is stored."""
    if piece.last - piece.first == math.prod(extent.shape):
        return [((0,) * len(extent.shape), extent.shape)]
    return Layout.by_ranges(None, extent.shape, "u8", (piece.first, piece.last)).boxes(0)


def _volume(box: Box) -> int:
    return math.prod(hi - lo for lo, hi in zip(*box, strict=True))


class _Wanted:
    """A ReadItem of this rank, and its memory from when the first of it comes until all is there."""

    def __init__(self, item: Any, box: Box) -> None:
        self.item, self.box = item, box
        self.tensor: Any = None
        self.left = _volume(box)  # elements

    def resolve(self, planner: Any) -> None:
        """Ask for the memory, once."""
        if self.tensor is not None:
            return
        if self.item.type == LoadItemType.BYTE_IO:
            self.tensor = torch.empty(self.left, dtype=torch.uint8)
            return
        tensor, shape = planner.resolve_tensor(self.item).detach(), tuple(self.item.lengths)
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{self.item.dest_index.fqn!r}: the planner gives memory of shape {tuple(tensor.shape)} for {shape}"
            )
        self.tensor = tensor

    def part(self, box: Box) -> Any:
        """The memory of a box."""
        return self.tensor[tuple(slice(a - o, b - o) for a, b, o in zip(*box, self.box[0], strict=True))]

    def place(self) -> Any:
        """Where it lies: the same for two names of one tensor."""
        return self.tensor.data_ptr(), self.tensor.shape, self.tensor.stride()

    def commit(self, planner: Any) -> None:
        """All of it is there."""
        self.resolve(planner)  # of what has no elements
        if self.item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(self.item, io.BytesIO(bytes_of(self.tensor)))
        else:
            if not self.tensor.is_inference():
                torch.autograd.graph.increment_version(self.tensor)
            planner.commit_tensor(self.item, self.tensor)
        self.tensor = None


class Load:
    """What a rank reads and takes. Collective over the comm.

    items: its ReadItems. stored: shape and dtype of what is stored, by index; read_into: fills memory with some of its
    bytes, from a given one on.
    """

    def __init__(
        self,
        comm: Comm,
        shares: Shares,
        items: Iterable[Any],
        planner: Any,
        stored: Callable[[Any], tuple[tuple[int, ...], Any]],
        read_into: Callable[[memoryview, Any, int], None],
    ) -> None:
        self._comm, self._shares, self._planner, self._read_into = comm, shares, planner, read_into
        self._device = torch.device("cpu") if comm.device is None else torch.device("cuda", comm.device)
        wanted = [_Wanted(item, box_of(item, stored(item.storage_index)[0])) for item in items]
        self._wanted: dict[Any, list[_Wanted]] = {}  # by index
        for each in wanted:
            self._wanted.setdefault(each.item.storage_index, []).append(each)
        self._done = [each for each in wanted if each.left == 0]
        self._landed: list[tuple[Any, Any]] = []  # parts, and what is to be copied into them
        n_bytes = max((self._places(window)[1] for window in range(shares.n_windows)), default=0)
        on_gpu = comm.device is not None
        self._read = [torch.empty(n_bytes, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(2)]
        self._on_gpu = torch.empty(n_bytes, dtype=torch.uint8, device=self._device) if on_gpu else None

    def run(self) -> None:
        """All of it; a window is read while the one before it moves."""
        n = self._shares.n_windows
        with ThreadPoolExecutor(1) as pool, ExitStack() as last:
            ahead = [pool.submit(self._fill, window) for window in range(min(n, 1))]
            for window in range(n):
                with Agreed(self._comm._tell):
                    self._finish()
                    ahead.pop().result()
                    rows, views = self._rows(window)
                if window + 1 < n:
                    ahead.append(pool.submit(self._fill, window + 1))
                with ExitStack() as this:
                    plan = this.enter_context(Plan(self._comm, rows))
                    plan.bind_many(views)
                    plan.commit()
                    last.close()  # not before: what both use stays mapped
                    with dropped_if_broken(self._comm, runs=True):
                        plan.run(window)
                        plan.wait()
                    last.push(this.pop_all())
        with Agreed(self._comm._tell):
            self._finish()

    def _places(self, window: int) -> tuple[list[tuple[Piece, int, int]], int]:
        """What this rank reads, each with its first byte in the memory and the one past its last; and how many those
        are."""
        places, at, end = [], 0, 0
        for piece in self._shares.pieces(self._comm.rank, window):
            end = at + (piece.last - piece.first) * self._shares.extents[piece.extent].dtype.itemsize
            places.append((piece, at, end))
            at = -(-end // _ALIGNED) * _ALIGNED
        return places, end

    def _fill(self, window: int) -> None:
        """Read."""
        memory = bytes_of(self._read[window % 2])
        for piece, at, end in self._places(window)[0]:
            extent = self._shares.extents[piece.extent]
            self._read_into(memory[at:end], extent.index, piece.first * extent.dtype.itemsize)

    def _finish(self) -> None:
        """Of the window before."""
        for part, come in self._landed:
            part.copy_(come)
        self._landed = []
        for wanted in self._done:
            wanted.commit(self._planner)
        self._done = []

    def _rows(self, window: int) -> tuple[list[Any], list[Any]]:
        """Of the plan of a window: what is read of each extent, and what it goes to here."""
        (places, n_bytes), memory = self._places(window), self._read[window % 2]
        if self._on_gpu is not None:
            memory = self._on_gpu
            memory[:n_bytes].copy_(self._read[window % 2][:n_bytes], non_blocking=True)
        own = {piece.extent: (piece, memory[at:end]) for piece, at, end in places}
        pieces: dict[int, list[Piece]] = {}
        for rank in range(self._comm.size):
            for piece in self._shares.pieces(rank, window):
                pieces.setdefault(piece.extent, []).append(piece)
        rows: list[Any] = []
        views: list[Any] = []
        taken: dict[Any, _Wanted] = {}
        for number in sorted(pieces):
            extent = self._shares.extents[number]
            wire = _WIRE[extent.dtype.itemsize]
            boxes, parts = self._parts(extent, pieces[number], taken)
            piece, source = own.get(number, (Piece(number, 0, 0), None))
            src = Layout.by_ranges(None, extent.shape, wire, (piece.first, piece.last))
            views.append(
                (
                    len(rows),
                    None if source is None else source.view(wire),
                    View.of_boxes([part.view(wire) for part in parts]) if parts else None,
                )
            )
            rows.append((extent.index.fqn, src, Layout.by_boxes(None, extent.shape, wire, boxes)))
        return rows, views

    def _parts(self, extent: Extent, pieces: list[Piece], taken: dict[Any, _Wanted]) -> tuple[list[Box], list[Any]]:
        """The boxes that come here, and memory of theirs on the comm's device. taken: where others come to lie."""
        boxes, parts = [], []
        for box in (box for piece in pieces for box in _boxes(extent, piece)):
            for wanted in self._wanted.get(extent.index, []):
                common = _common(box, wanted.box)
                if common is None:
                    continue
                wanted.resolve(self._planner)
                part = wanted.part(common)
                if (part.device, part.dtype) != (self._device, extent.dtype) or (
                    taken.setdefault(wanted.place(), wanted) is not wanted
                ):
                    self._landed.append((part, torch.empty(part.shape, dtype=extent.dtype, device=self._device)))
                    part = self._landed[-1][1]
                boxes.append(common)
                parts.append(part)
                wanted.left -= _volume(common)
                if wanted.left == 0:
                    self._done.append(wanted)
        return boxes, parts
