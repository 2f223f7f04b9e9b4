"""A whole refit between two Megatron models with any parallel sizes, from their sharded_state_dict().

    with StateTransfer(group, source=trainer.sharded_state_dict() if trains else None,
                       target=None if trains else server.sharded_state_dict()) as weights:
        weights.step(step)

Keys, global shapes and offsets are those of Megatron's distributed checkpoints, so pipeline stages, tensor, expert and
data parallelism need no rule here. Data moves directly between the parameters of both models.
Source: Megatron-Core 0.19.2, core/dist_checkpointing/mapping.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .._binding.structs import truth
from .._torch.steps import Steps
from ..comm import Agreed, Comm
from ..dtypes import dtype_name
from ..errors import MismatchError
from ..layout import Layout
from ..memory import View, memory_of
from ..plan import Plan, PlanOptions
from ..typing import Group, Stream
from ._comms import drop_comm, dropped_if_broken, is_in_use, left_comm, used_comm

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["StateTransfer", "drop_comm"]

Pieces = dict[str, list[Any]]  # ShardedTensors by key


def _leaves(state: Any) -> Iterator[Any]:
    """Yield the ShardedTensors of a nested state, and the factories that build ShardedTensors."""
    if isinstance(state, Mapping):
        state = state.values()
    elif hasattr(state, "build_fn") or hasattr(state, "prepend_axis_num"):
        yield state
        return
    elif not isinstance(state, list | tuple):
        return  # an object of the checkpoint that is no tensor
    for each in state:
        yield from _leaves(each)


def _sharded(state: Any) -> Iterator[Any]:
    """Yield the ShardedTensors of a nested state, also those that factories build. Raises ValueError unless these are
    views of the factory's tensor."""
    for leaf in _leaves(state):
        if not hasattr(leaf, "build_fn"):
            yield leaf
            continue
        for each in _sharded(leaf.build()):
            if not _is_within(each.data, leaf.data):
                raise ValueError(
                    f"{each.key!r}: its factory builds a copy of the parameter, which cannot be moved in place"
                )
            yield each


def _is_within(part: Any, whole: Any) -> bool:
    """Return whether a part lies in the memory of a whole tensor."""
    storage = getattr(part, "untyped_storage", None)
    if storage is None:
        return getattr(part, "base", None) is not None or part is whole
    return bool(storage().data_ptr() == whole.untyped_storage().data_ptr())


def _pieces(state: Any) -> Pieces:
    """Return the ShardedTensors of a state by key. Raises ValueError for one that cannot be moved."""
    found: Pieces = {}
    for each in _sharded(state):
        if each.data is None:
            raise ValueError(f"{each.key!r} has no data: make the sharded_state_dict() of a model with weights")
        if hasattr(each.data, "placements"):
            raise ValueError(
                f"{each.key!r} is a DTensor of Megatron's FSDP: send it by xfer.integrations.megatron_export"
            )
        found.setdefault(each.key, []).append(each)
    return found


def _box(piece: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the box of a piece in its tensor. Raises ValueError if it exceeds the tensor: a layout by boxes would take
    what lies past the end for padding, and the data would be lost without an error."""
    sizes = (1,) * piece.prepend_axis_num + tuple(piece.local_shape)
    lo, whole = tuple(piece.global_offset), tuple(piece.global_shape)
    hi = tuple(o + n for o, n in zip(lo, sizes, strict=False))
    if not len(lo) == len(sizes) == len(whole) or any(
        not 0 <= a <= b <= n for a, b, n in zip(lo, hi, whole, strict=True)
    ):
        raise ValueError(f"{piece.key!r} has a part of shape {sizes} at {lo} of a tensor of shape {whole}")
    return lo, hi


def _view(pieces: list[Any]) -> View:
    """Return a view of the pieces of one tensor."""
    key, whole = pieces[0].key, tuple(pieces[0].global_shape)
    for piece in pieces:
        _box(piece)  # raises ValueError for a piece that exceeds the tensor
        if tuple(piece.global_shape) != whole:
            raise ValueError(f"{key!r} has parts of tensors of shapes {whole} and {tuple(piece.global_shape)}")
    try:
        arrays = [getattr(p.data, "detach", lambda p=p: p.data)()[(None,) * p.prepend_axis_num] for p in pieces]
        return View.of_boxes(arrays)
    except (TypeError, ValueError) as wrong:
        wrong.args = (f"{key!r}: {wrong}",)
        raise


def _place(leaf: Any) -> Any:
    """Return where a leaf lies, without keeping its memory alive. For a torch tensor this takes a tenth of the time of
    memory_of()."""
    x = leaf.data
    if hasattr(x, "data_ptr"):
        return x.data_ptr(), x.shape, x.stride(), x.dtype
    try:
        return memory_of(x)[:-2]
    except TypeError as wrong:
        wrong.args = (f"{leaf.key!r}: {wrong}",)
        raise


def _views(pieces: Pieces) -> dict[str, View]:
    """Return a view of each tensor, by key."""
    return {key: _view(each) for key, each in pieces.items()}


def _described(pieces: Pieces) -> dict[str, Any]:
    """Return {key: [dtype, global shape, whether the shapes of the two sides may differ]}."""
    rows = {}
    for key, each in pieces.items():
        piece = each[0]
        dtype = dtype_name(memory_of(piece.data).dtype)
        rows[key] = [dtype, list(piece.global_shape), bool(getattr(piece, "allow_shape_mismatch", False))]
    return rows


def _joined(said: list[Any], side: int) -> dict[str, Any]:
    """Return what all ranks of a side say of its tensors. Raises MismatchError if two ranks disagree."""
    joined: dict[str, Any] = {}
    first: dict[str, int] = {}
    for rank, each in enumerate(said):
        for key, row in each[side].items():
            if joined.setdefault(key, row) != row:
                raise MismatchError(
                    f"{key!r} has type and shape {joined[key][:2]} on rank {first[key]}, and {row[:2]} on rank {rank}"
                )
            first.setdefault(key, rank)
    return joined


def _is_of_adapter(key: str) -> bool:
    """Return whether a key is one of an adapter of Megatron-Bridge or NeMo. Their wrappers give the weight the key that
    it has without the adapter."""
    return any(part == "adapter" or part.startswith("lora_") for part in key.split("."))


def _shape(key: str, src: Any, dst: Any) -> list[int]:
    """Return the shape of what both sides hold of a tensor. Padding of the larger one is left as it is, or zeroed.
    Raises MismatchError if the sides do not fit."""
    if src[0] != dst[0]:
        raise MismatchError(f"{key!r} is {src[0]} in the source and {dst[0]} in the target: both must have one type")
    if src[1] != dst[1] and not (src[2] and dst[2] and len(src[1]) == len(dst[1])):
        raise MismatchError(f"{key!r} has the global shape {src[1]} in the source and {dst[1]} in the target")
    return [min(pair) for pair in zip(src[1], dst[1], strict=True)]


class StateTransfer(Steps):
    """Moves all tensors of one sharded state dict into those of another. Collective.

    group: see comm_of(). source, target: a sharded state dict, on the ranks that have one; a rank may have both.
    check_replicas: as for xfer.torch.Transfer. The tensors are planned once; each step looks up their addresses again.

    If the source lacks a tensor of the target, that is an error, and so is an adapter that the target lacks; other
    tensors that the target lacks are left out. An error of one rank is raised on all. After a step that failed, make
    another StateTransfer: it makes another comm if needed, unless `group` is a Comm. An error of the constructor, and
    replicas that differ, leave the group's comm usable.
    """

    def __init__(
        self,
        group: Group,
        *,
        source: Mapping[str, Any] | None = None,
        target: Mapping[str, Any] | None = None,
        check_replicas: bool = True,
        **options: Unpack[PlanOptions],
    ) -> None:
        self._group, self._token = group, object()
        self._comm = used_comm(group, self._token)
        with dropped_if_broken(self._comm):
            self._plan(self._comm, source, target, check_replicas, **options)

    def _plan(self, comm: Comm, source: Any, target: Any, compares: bool, **options: Unpack[PlanOptions]) -> None:
        """Plan the tensors of both sides. Collective."""
        self._states, self._leaves = (source, target), [*_leaves(source), *_leaves(target)]
        self._where: list[Any] | None = None  # where each leaf lies; None: nothing is bound
        have: list[dict[str, list[Any]]] = []

        def tell() -> list[Any]:
            have[:] = map(_pieces, self._states)
            for side, state, pieces in zip(("source", "target"), self._states, have, strict=True):
                if state is not None and not pieces:
                    raise ValueError(f"the {side} has no ShardedTensor: pass what sharded_state_dict() returns")
                _views(pieces)  # raises what is wrong with a piece
            return [*map(_described, have), truth(compares, "check_replicas") or source is None]

        said = comm.share(tell, "StateTransfer")  # every rank sees the same, so each raises the same errors
        self._are_to_compare = all(each[2] for each in said)
        sides = [_joined(said, side) for side in (0, 1)]
        for key in sorted(sides[1].keys() - sides[0].keys()):
            raise MismatchError(f"{key!r} is in the target only: the source must have all keys of the target")
        for key in sorted(filter(_is_of_adapter, sides[0].keys() - sides[1].keys())):
            raise MismatchError(
                f"{key!r} is of an adapter that the target lacks, to which the weights would come without it: merge "
                "the adapters into the weights first"
            )
        self._names = sorted(sides[1])
        shapes = {key: _shape(key, sides[0][key], sides[1][key]) for key in self._names}

        def layout(key: str, side: int) -> Layout:
            boxes = [_box(piece) for piece in have[side].get(key, [])]
            return Layout.by_boxes(None, shapes[key], sides[0][key][0], boxes)

        with Agreed(comm._tell):
            rows = [(key, layout(key, 0), layout(key, 1)) for key in self._names]
        self.plan = Plan(comm, rows, **options)
        self._commit()

    def _commit(self) -> None:
        """Bind the tensors if any of them has moved, and commit. Collective."""
        try:
            where = list(map(_place, self._leaves))
            if where != self._where:
                self._where = None
                sources, targets = (_views(_pieces(state)) for state in self._states)
                self.plan.bind_many((key, sources.get(key), targets.get(key)) for key in self._names)
                self._where = where
        except Exception as wrong:
            if is_in_use(wrong):
                raise  # the plan belongs to the step of another thread, which must not fail for this
            self.plan._fail_at_commit(wrong)  # raised on all ranks
        try:
            self.plan.commit()
        except BaseException:
            self._where = None
            raise
        if self.plan.fresh_sources:  # sources are bound for one run only
            self._where = None

    def close(self) -> None:
        """Close the plan. The group's comm stays open."""
        super().close()
        left_comm(self._group, self._token)

    def step(self, version: int, stream: Stream | None = None) -> None:
        """Move all tensors and wait until they have arrived on every rank. Collective."""
        with dropped_if_broken(self._comm):
            self._commit()
            super().step(version, stream)

    def _move(self, version: int, stream: Stream | None) -> None:
        with dropped_if_broken(self._comm, runs=True):
            super()._move(version, stream)
