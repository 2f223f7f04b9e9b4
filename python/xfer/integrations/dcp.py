"""Load checkpoints of torch's DCP and of Hugging Face into sharded models, reading each byte from the file system once.

    dcp.load(model.state_dict(), storage_reader=HuggingFaceStorageReader(folder))

With torch's own readers each rank reads what it needs: replicas read the same bytes, and a rank that needs columns of a
tensor reads it row by row. Here each rank reads its own stretch of all data that any rank needs, in the order of the
files, and plans move the data to the ranks that need it, window by window.

Source: torch 2.14.0, torch/distributed/checkpoint/: state_dict_loader.py (the order of the calls), hf_storage.py and
filesystem.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from ..comm import Agreed, Comm
from ._comms import dropped_if_broken, left_comm, used_comm
from ._dcp_load import Extent, Load, Shares, box_of, bytes_of, flat_range, merged

__all__ = ["FileSystemReader", "HuggingFaceStorageReader"]


class _SharedReader:
    """A mixin that divides the reading among the ranks. It comes before a StorageReader of torch among the bases."""

    path: Any
    fs: Any
    storage_data: dict[Any, Any]

    def __init__(self, path: Any, *, group: Any = None, window_bytes: int = 64 << 20, **options: Any) -> None:
        super().__init__(path, **options)  # type: ignore[call-arg]
        if window_bytes < 1:
            raise ValueError(f"window_bytes is {window_bytes}: it must be at least 1")
        self._group, self._window_bytes = group, window_bytes

    def set_up_storage_reader(self, metadata: Any, *args: Any, **kwargs: Any) -> None:
        """Begin a load."""
        super().set_up_storage_reader(metadata, *args, **kwargs)  # type: ignore[misc]
        self._metadata = metadata
        self._known: dict[Any, Any] = {}  # of this load: the parts of tensors, the headers of files

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Divide what all ranks need among them. torch calls this on the coordinator only."""
        ranges: dict[Any, set[tuple[int, int]]] = {}
        for item in (item for plan in plans for item in plan.items):
            shape, _ = self._stored(item.storage_index)
            box = box_of(item, shape)
            if all(lo < hi for lo, hi in zip(*box, strict=True)):
                ranges.setdefault(item.storage_index, set()).add(flat_range(shape, box))
        extents = [
            Extent(index, *self._stored(index), first, last)
            for index in sorted(ranges, key=self._place)
            for first, last in merged(ranges[index])
        ]
        starts = list(accumulate(((e.last - e.first) * e.dtype.itemsize for e in extents), initial=0))
        shares = Shares(extents, starts, len(plans), self._window_bytes)
        return [dataclasses.replace(plan, storage_data=shares) for plan in plans]

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Read this rank's share, and receive what this rank needs. Collective over the ranks that load. If
        prepare_global_plan() has not divided the plan, this rank reads it alone, as torch's own reader does."""
        shares = plan.storage_data
        if not isinstance(shares, Shares):
            return super().read_data(plan, planner)  # type: ignore[misc]
        with self._comm(shares.n_ranks) as comm:
            with Agreed(comm._tell):
                load = Load(comm, shares, plan.items, planner, self._stored, self._read_into)
            load.run()
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done

    @contextmanager
    def _comm(self, n_ranks: int) -> Iterator[Comm]:
        """Yield a comm of the ranks that load."""
        if n_ranks == 1:  # also if each rank loads by itself
            with Comm.local(1)[0] as comm:
                yield comm
            return
        group, token = self._group or distributed.group.WORLD, object()
        size = getattr(group, "size", n_ranks)
        size = size() if callable(size) else size
        if size != n_ranks:  # ranks that do not load would not come to make the comm
            raise ValueError(
                f"{n_ranks} ranks load, and the reader's group has {size}: pass the group of those that load as group="
            )
        comm = used_comm(group, token)
        try:
            with dropped_if_broken(comm):
                yield comm
        finally:
            left_comm(group, token, closes=True)

    def _stored(self, index: Any) -> tuple[tuple[int, ...], Any]:
        """Return the shape and dtype of a stored part of a tensor, or of an object's bytes."""
        about = self._metadata.state_dict_metadata[index.fqn]
        if isinstance(about, BytesStorageMetadata):
            return (self.storage_data[index].length,), torch.uint8
        parts = self._known.get(index.fqn)
        if parts is None:
            parts = self._known[index.fqn] = {tuple(part.offsets): tuple(part.sizes) for part in about.chunks}
            held, all_of_it = sum(map(math.prod, parts.values())), math.prod(about.size)
            if held < all_of_it:
                raise ValueError(
                    f"{index.fqn!r}: the checkpoint has {held} of its {all_of_it} elements: is a file missing?"
                )
            if about.properties.dtype.itemsize > 8:
                raise TypeError(
                    f"{index.fqn!r} is {about.properties.dtype}: elements of more than 8 bytes need torch's reader"
                )
        return parts[tuple(index.offset)], about.properties.dtype

    def _place(self, index: Any) -> tuple[str, int]:
        """Return the file that has a stored part, and the position of the part in it. Ranks read in the order of
        these."""
        raise NotImplementedError

    def _read_into(self, memory: memoryview, index: Any, first_byte: int) -> None:
        """Fill memory with bytes of a stored part, in row-major order, from a given byte on."""
        path, at = self._place(index)
        self._read_at(path, at + first_byte, memory, index)

    def _read_at(self, path: Any, at: int, memory: memoryview, index: Any) -> None:
        """Fill memory with bytes of a file, from a given position on."""
        with self.fs.create_stream(path, "rb") as stream:
            stream.seek(at)
            while len(memory) > 0:
                n = stream.readinto(memory)
                if n == 0:
                    raise EOFError(f"{path} ends {len(memory)} bytes before the end of {index.fqn!r}")
                memory = memory[n:]


class HuggingFaceStorageReader(_SharedReader, checkpoint.HuggingFaceStorageReader):
    """Replaces torch's reader of the same name: a folder of safetensors files, as published or as torch's
    HuggingFaceStorageWriter writes them, sharded or not.

    group: the ranks that load, see comm_of(); None: the default group. window_bytes: how much a rank reads before it
    moves it. A rank allocates two windows, one more on a GPU, and buffers for tensors that are on another device than
    the group's or have another dtype than the file.
    """

    def _header(self, path: str) -> tuple[dict[str, Any], int]:
        """Return the header of a safetensors file, and where its data begins."""
        if path not in self._known:
            with self.fs.create_stream(path, "rb") as stream:
                n = int.from_bytes(stream.read(8), "little")
                self._known[path] = json.loads(stream.read(n)), 8 + n
        header: tuple[dict[str, Any], int] = self._known[path]
        return header

    def _place(self, index: Any) -> tuple[str, int]:
        path, (shape, dtype) = self.storage_data[index].relative_path, self._stored(index)
        header, data = self._header(path)
        begin, end = header[index.fqn]["data_offsets"]
        if tuple(header[index.fqn]["shape"]) != shape or end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{path}: the header of {index.fqn!r} has changed since the load began: load again")
        return path, data + begin


class FileSystemReader(_SharedReader, checkpoint.FileSystemReader):
    """Replaces torch's reader of the same name: a folder that dcp.save() wrote. HuggingFaceStorageReader describes the
    options."""

    def _place(self, index: Any) -> tuple[str, int]:
        stored = self.storage_data[index]
        if getattr(stored, "transform_descriptors", None):
            raise ValueError(
                f"{index.fqn!r} was written through {stored.transform_descriptors[0]!r}: read it by torch's reader"
            )
        return stored.relative_path, stored.offset

    def _read_into(self, memory: memoryview, index: Any, first_byte: int) -> None:
        relative, at = self._place(index)
        path = self.fs.concat_path(self.path, relative)
        if index not in self._known:
            self._known[index] = self._data(path, index)
        within = self._known[index]
        if within is not None:
            self._read_at(path, at + within + first_byte, memory, index)
        else:
            flat = self._loaded(path, index).contiguous().view(-1).view(torch.uint8)
            memory[:] = bytes_of(flat)[first_byte : first_byte + len(memory)]

    def _data(self, path: Any, index: Any) -> int | None:
        """Return where the elements begin in what torch.save() wrote. Return None if this torch does not tell it, or if
        they are not in row-major order."""
        if isinstance(self._metadata.state_dict_metadata[index.fqn], BytesStorageMetadata):
            return 0
        tensor = self._loaded(path, index, "meta")
        offset = tensor.untyped_storage()._checkpoint_offset
        if offset is None or not tensor.is_contiguous():
            return None
        return int(offset + tensor.storage_offset() * tensor.itemsize)

    def _loaded(self, path: Any, index: Any, device: str = "cpu") -> Any:
        """Return the tensor that torch.save() wrote. device: "meta" reads no element."""
        with self.fs.create_stream(path, "rb") as stream:
            part = self._slice_file(stream, self.storage_data[index])
            tensor = torch.load(part, map_location=device, weights_only=True)
        if (tuple(tensor.shape), tensor.dtype) != self._stored(index):
            raise ValueError(f"{path}: {index.fqn!r} has another shape or type than in .metadata")
        return tensor
