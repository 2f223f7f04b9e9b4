"""One load of a checkpoint: which rank reads what, and how the data moves to the ranks that want it. See dcp.py."""

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

Box = tuple[tuple[int, ...], tuple[int, ...]]  # lo and hi, half-open, in a stored tensor
_ALIGNED = 16
_WIRE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # elements travel as integers of their size


class Extent(NamedTuple):
    """The elements first <= i < last, in row-major order, of a stored tensor. Some rank wants them."""

    index: Any  # a MetadataIndex
    shape: tuple[int, ...]
    dtype: Any
    first: int
    last: int


class Piece(NamedTuple):
    """The elements of an extent that one rank reads in one window. extent: its index among the extents."""

    extent: int  # its number
    first: int
    last: int


@dataclass(frozen=True)
class Shares:
    """Which rank reads what. The extents follow each other in one stream of bytes; each rank reads an equal stretch of
    it, window by window."""

    extents: list[Extent]
    starts: list[int]  # the first byte of each extent in the stream, then the length of the stream
    n_ranks: int
    window_bytes: int

    @property
    def n_windows(self) -> int:
        """The number of windows of the longest stretch."""
        longest = -(-self.starts[-1] // self.n_ranks)
        return -(-longest // self.window_bytes)

    def pieces(self, rank: int, window: int) -> Iterator[Piece]:
        """Yield what a rank reads in a window, in order. An element that crosses the end of a stretch or a window
        belongs to the part that has its last byte."""
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
    """Return the box that a ReadItem reads. An object is read as a whole."""
    if item.type == LoadItemType.BYTE_IO:
        return (0,), tuple(shape)
    lo = tuple(item.storage_offsets)
    return lo, tuple(a + n for a, n in zip(lo, item.lengths, strict=True))


def flat_range(shape: Sequence[int], box: Box) -> tuple[int, int]:
    """Return the range, in row-major order, from the first element of a box to just past its last."""
    first = last = 0
    for n, lo, hi in zip(shape, *box, strict=True):
        first, last = first * n + lo, last * n + hi - 1
    return first, last + 1


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges sorted, with overlapping and adjacent ones joined."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1]:
            result[-1] = result[-1][0], max(last, result[-1][1])
        else:
            result.append((first, last))
    return result


def bytes_of(tensor: Any) -> memoryview:
    """Return the memory of a dense tensor of bytes on the host. The tensor must outlive it."""
    return memoryview((ctypes.c_char * tensor.numel()).from_address(tensor.data_ptr())).cast("B")


def _common(a: Box, b: Box) -> Box | None:
    """Return the intersection of two boxes, or None if it is empty."""
    lo, hi = tuple(map(max, a[0], b[0])), tuple(map(min, a[1], b[1]))
    return (lo, hi) if all(x < y for x, y in zip(lo, hi, strict=True)) else None


def _boxes(extent: Extent, piece: Piece) -> list[Box]:
    """Return the boxes of a piece in the stored tensor."""
    if piece.last - piece.first == math.prod(extent.shape):
        return [((0,) * len(extent.shape), extent.shape)]
    return Layout.by_ranges(None, extent.shape, "u8", (piece.first, piece.last)).boxes(0)


def _volume(box: Box) -> int:
    """Return the number of elements of a box."""
    return math.prod(hi - lo for lo, hi in zip(*box, strict=True))


class _Wanted:
    """A ReadItem of this rank. It has its memory from the moment that its first data arrives until all of it has
    arrived."""

    def __init__(self, item: Any, box: Box) -> None:
        self.item, self.box = item, box
        self.tensor: Any = None
        self.left = _volume(box)  # elements that have not arrived

    def resolve(self, planner: Any) -> None:
        """Ask the planner for the memory, unless that was done before."""
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
        """Return the memory of a box."""
        return self.tensor[tuple(slice(a - o, b - o) for a, b, o in zip(*box, self.box[0], strict=True))]

    def place(self) -> Any:
        """Return where the memory lies: equal for two names of one tensor."""
        return self.tensor.data_ptr(), self.tensor.shape, self.tensor.stride()

    def commit(self, planner: Any) -> None:
        """Hand the memory to the planner, with all data in it."""
        self.resolve(planner)  # for an item without elements, which no data announces
        if self.item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(self.item, io.BytesIO(bytes_of(self.tensor)))
        else:
            if not self.tensor.is_inference():
                torch.autograd.graph.increment_version(self.tensor)
            planner.commit_tensor(self.item, self.tensor)
        self.tensor = None


class Load:
    """What this rank reads and receives. Collective over the comm.

    items: the ReadItems of this rank. stored: returns the shape and dtype of a stored tensor, by its index. read_into:
    fills memory with bytes of a stored tensor, from a given byte on.
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
        self._wanted: dict[Any, list[_Wanted]] = {}  # by index of the stored tensor
        for each in wanted:
            self._wanted.setdefault(each.item.storage_index, []).append(each)
        self._done = [each for each in wanted if each.left == 0]
        self._landed: list[tuple[Any, Any]] = []  # a part, and what is to be copied into it
        n_bytes = max((self._places(window)[1] for window in range(shares.n_windows)), default=0)
        on_gpu = comm.device is not None
        self._read = [torch.empty(n_bytes, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(2)]
        self._on_gpu = torch.empty(n_bytes, dtype=torch.uint8, device=self._device) if on_gpu else None

    def run(self) -> None:
        """Carry out the whole load. Each window is read while the one before it moves."""
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
                    last.close()  # only now, so that memory that both plans use stays mapped
                    with dropped_if_broken(self._comm, runs=True):
                        plan.run(window)
                        plan.wait()
                    last.push(this.pop_all())
        with Agreed(self._comm._tell):
            self._finish()

    def _places(self, window: int) -> tuple[list[tuple[Piece, int, int]], int]:
        """Return what this rank reads in a window, each piece with the range of its bytes in the memory of the window,
        and the number of bytes in all."""
        places, at, end = [], 0, 0
        for piece in self._shares.pieces(self._comm.rank, window):
            end = at + (piece.last - piece.first) * self._shares.extents[piece.extent].dtype.itemsize
            places.append((piece, at, end))
            at = -(-end // _ALIGNED) * _ALIGNED
        return places, end

    def _fill(self, window: int) -> None:
        """Read the pieces of a window from the files."""
        memory = bytes_of(self._read[window % 2])
        for piece, at, end in self._places(window)[0]:
            extent = self._shares.extents[piece.extent]
            self._read_into(memory[at:end], extent.index, piece.first * extent.dtype.itemsize)

    def _finish(self) -> None:
        """Complete the window that has arrived: copy parts to where they belong, and commit the items that have all
        their data."""
        for part, come in self._landed:
            part.copy_(come)
        self._landed = []
        for wanted in self._done:
            wanted.commit(self._planner)
        self._done = []

    def _rows(self, window: int) -> tuple[list[Any], list[Any]]:
        """Return the rows of the plan of a window, one for each extent, and the views to bind to them."""
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
        """Return the boxes of an extent that arrive here, and their memory on the comm's device.

        taken: by place, the item whose data goes straight there in this window. Another item with the same place is
        copied afterwards.
        """
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
