"""xfer.torch.redistribute(): move one DTensor from one mesh to another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from .._binding.structs import needed
from .._remembered import remember
from ..comm import Comm
from ..dtypes import dtype_name, torch_dtype
from ..errors import MismatchError
from ..layout import Layout, Placement
from ..memory import View
from ..redistribution import Located, Sides, redistribute_located, redistribute_sides
from ..stream import on_stream
from ..typing import Stream
from .dtensor import (
    MEANINGS,
    Description,
    Grid,
    Ranks,
    candidates,
    check_meaning,
    check_rank,
    differ,
    from_start,
    grid_of,
    layout_in,
    plain,
)
from .held import local_part, readable
from .memory import TorchMemory


def redistribute(
    tensor: Any,
    mesh: DeviceMesh | None,
    placements: Sequence[Any] | None,
    comm: Comm,
    *,
    stream: Stream | None = None,
    ranks: Ranks = None,
    meaning: str | None = None,
) -> Any:
    """Move a DTensor to another mesh: from any mesh and placements to any other. Collective over all ranks of the comm.

    tensor: the DTensor; None on a rank that has none. mesh, placements: those of the result; None on a rank that does
    not know them. Each mesh must be the same on all ranks that have it, so a submesh such as mesh["tp"] is an error.
    meaning: of `_StridedShard` in the source, see layout_of(); in the target it means an order of axes, and pieces only
    if its factor fits no order. Returns the new DTensor, or None if `mesh` is None. Not differentiable.

    stream: see stream_pointer(); torch makes the new tensor on it.

    Raises TypeError for Partial, ValueError if a local tensor has another shape than the placements give; PeerError on
    the other ranks.
    """
    needed("comm", comm, "comm")
    request = _Request(tensor, mesh, placements, comm, ranks, meaning)
    earlier = comm._earlier.get(request.key)
    told = tuple(comm._share(request.said if earlier is None else earlier.said, "redistribute"))
    call = None if earlier is None else earlier.calls.get(told)
    source = None if call is None else call.locate(tensor)
    if call is not None and (source is not None or not call.has_source):
        return call.repeat(comm, source, stream)
    redistribute_sides(comm, lambda: request.sides(told, stream), stream)
    if request.key is not None:
        with suppress(TypeError):  # torch's own constructor of a DTensor may refuse
            _remember(comm._earlier, request, told)
    return request.made


class _EarlierRequest:
    """What this rank said of a request, and the redistributions that followed from it, by what all ranks said."""

    def __init__(self, word: str) -> None:
        self._word = word
        self.calls: dict[tuple[str, ...], _EarlierRedistribution] = {}

    def said(self) -> str:
        """Return what the request itself would say."""
        return self._word


def _remember(requests: dict[Any, Any], request: _Request, told: tuple[str, ...]) -> None:
    """Keep a redistribution for later requests that are the same."""
    call = _EarlierRedistribution(request)
    earlier = requests.get(request.key) or remember(requests, request.key, _EarlierRequest(request.said()))
    remember(earlier.calls, told, call)


class _Request:
    """The arguments of one redistribution on this rank, and what follows from them."""

    def __init__(
        self,
        tensor: Any,
        mesh: DeviceMesh | None,
        placements: Sequence[Any] | None,
        comm: Comm,
        ranks: Ranks,
        meaning: str | None,
    ) -> None:
        self.tensor, self.mesh, self.placements = tensor, mesh, placements
        self._comm, self._ranks, self._meaning = comm, ranks, meaning
        self.key = _key(tensor, mesh, placements, meaning) if ranks is None else None
        self._found: Mapping[str, Layout] | None = None
        self.layouts: tuple[Layout | None, Layout | None] = (None, None)
        self.locals: tuple[Any, Any] = (None, None)
        self.made: Any = None

    def said(self) -> str:
        """Return what this rank says of the tensor, as JSON."""
        self._found = {}
        check_meaning(self._meaning)
        if self.mesh is not None and self.placements is None:
            raise ValueError("a mesh without placements")
        tensor = self.tensor
        if tensor is None:
            return "{}"
        if not isinstance(tensor, DTensor):
            raise TypeError(f"a {type(tensor).__name__} is no DTensor")
        if tensor.device_mesh.get_coordinate() is None:
            return "{}"  # outside the mesh torch has a wrong shape for a scalar
        grid, about = grid_of(tensor.device_mesh, self._ranks), Description.of(tensor)
        check_rank(self._comm, tensor.device_mesh, self._ranks)
        self._found = found = candidates(about, self._comm.rank, grid)
        record = {
            "meanings": [m for m in found if self._meaning in (None, m)],
            "unclear": self._meaning is None and differ(found, grid),
            "shape": about.shape,
            "dtype": dtype_name(about.dtype),
        }
        return json.dumps(record)

    def sides(self, told: tuple[str, ...], stream: Stream | None) -> Sides:
        """Return both sides, which follow from what all ranks said. This allocates the target."""
        if self._found is None:
            self.said()
        assert self._found is not None
        shape, dtype, agreed = _agreed(told)
        source, target, new = self._found.get(agreed), None, None
        with on_stream(stream, self._comm.device):  # earlier work on this memory ends before the transfer writes
            if self.mesh is not None and self.placements is not None:
                target, new = self._empty(self.mesh, self.placements, shape, dtype)
        mine = None if source is None else readable(local_part(self.tensor))
        self.layouts, self.locals = (source, target), (mine, new)
        return (source, mine), (target, new)

    def _empty(self, mesh: DeviceMesh, placements: Sequence[Any], shape: torch.Size, dtype: str) -> tuple[Layout, Any]:
        """Return the target's layout, and the memory of this rank's part, or None if it has none."""
        layout = _target(grid_of(mesh, self._ranks), plain(placements, len(shape)), shape, dtype)
        check_rank(self._comm, mesh, self._ranks)
        inside = mesh.get_coordinate() is not None
        device = self._comm.device
        local = torch.empty(
            layout.local_shape(self._comm.rank) if inside else (0,),
            dtype=torch_dtype(torch, dtype),
            device=torch.device("cpu") if device is None else torch.device("cuda", device),
        )
        placements = tuple(from_start(placements, len(shape)))
        stride = tuple(torch.empty(shape, device="meta").stride())
        self.made = DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)
        return layout, local if inside else None


def _key(tensor: Any, mesh: DeviceMesh | None, placements: Sequence[Any] | None, meaning: str | None) -> Any:
    """Return everything about a request except the memory of its tensors, or None if it has no key. Meshes are told by
    their ids, see grid_of(), and placements also by their kinds, since torch takes a `_StridedShard` and a Shard for
    equal."""
    about: Any = None
    with suppress(Exception):  # the request raises it where all ranks learn of it
        if isinstance(tensor, DTensor):
            spec, local = tensor._spec, tensor._local_tensor
            more = [getattr(spec, name, None) for name in ("shard_order", "use_strided_shard_as_shard_order")]
            about = (id(spec.mesh), _by_kind(spec.placements), spec.shape, local.shape, local.dtype, *more)
        elif tensor is not None:
            return None
        to = None if mesh is None or placements is None else _by_kind(placements)
        key = (about, None if mesh is None else id(mesh), to, meaning)
        hash(key)
        return key
    return None


def _by_kind(placements: Sequence[Any]) -> tuple[Any, ...]:
    """Return placements and their kinds."""
    return (*placements, *map(type, placements))


class _EarlierRedistribution:
    """A redistribution that was made, without the memory of its tensors."""

    def __init__(self, request: _Request) -> None:
        mine, new = request.locals
        self._kept = (request.mesh, getattr(request.tensor, "device_mesh", None))  # their ids are in the key
        self._layouts = request.layouts
        source = None if mine is None else View(mine).form()
        if mine is not None and source is None:
            raise TypeError("no plain torch tensor")
        self._source = source
        self._target = None if new is None else bytes(View(new)._struct)
        self._spec = None
        if request.made is not None:
            local = request.made._local_tensor
            self._empty = (local.shape, local.dtype, local.device)
            self._spec = request.made._spec
            DTensor(local, self._spec, requires_grad=False)

    @property
    def has_source(self) -> bool:
        """Whether this rank has a part of the source."""
        return self._source is not None

    def locate(self, tensor: Any) -> Located | None:
        """Return where this rank's part of a tensor lies, or None if it has none or it may differ from the earlier one
        in more than its address."""
        memory = None if self._source is None else self._source.locate(local_part(tensor))
        return None if self._source is None or memory is None else (self._source.view, memory)

    def repeat(self, comm: Comm, source: Located | None, stream: Stream | None) -> Any:
        """Redistribute what lies at `source` into a new tensor. Collective."""
        made: Any = None

        def locate() -> tuple[Located | None, Located | None]:
            nonlocal made
            target = None
            if self._spec is not None:
                shape, dtype, device = self._empty
                with on_stream(stream, comm.device):  # as in sides()
                    local = torch.empty(shape, dtype=dtype, device=device)
                made = DTensor(local, self._spec, requires_grad=False)
                if self._target is not None:
                    target = (self._target, TorchMemory(local, local.untyped_storage(), local.data_ptr()))
            return source, target

        redistribute_located(comm, self._layouts, locate, stream)
        return made


@lru_cache(256)
def _agreed(said: tuple[str, ...]) -> tuple[torch.Size, str, str]:
    """Return the shape and dtype of the tensor, which all ranks that have it say, and a meaning that fits on all
    ranks."""
    records = [json.loads(each) for each in said]
    known = [(rank, record) for rank, record in enumerate(records) if "shape" in record]
    if not known:
        raise ValueError("no rank has the tensor")
    first, one = known[0]
    for rank, record in known:
        if (record["shape"], record["dtype"]) != (one["shape"], one["dtype"]):
            raise MismatchError(
                f"rank {first} has {one['dtype']}{one['shape']}, rank {rank} {record['dtype']}{record['shape']}"
            )
    fits = [m for m in MEANINGS if all(m in record["meanings"] for _, record in known)]
    if len(fits) == 2 and any(record["unclear"] for _, record in known):
        raise ValueError("no local shape tells what _StridedShard means: say meaning='order' or 'pieces'")
    if fits:
        return torch.Size(one["shape"]), one["dtype"], fits[0]
    raise MismatchError("the local shapes of the ranks fit no meaning of the placements together")


def _target(grid: Grid, placements: Sequence[Placement], shape: Sequence[int], dtype: str) -> Layout:
    """Return the target's layout: the order of the axes, if the placements have this meaning, otherwise pieces."""
    by_meaning = [layout_in(grid, placements, shape, dtype, meaning) for meaning in MEANINGS]
    layout = by_meaning[0] or by_meaning[1]
    assert layout is not None
    return layout
