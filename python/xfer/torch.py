"""xfer for torch: layouts of DTensors and of sharded modules, and transfers of DTensors, of whole modules and of
refits.

A DeviceMesh numbers ranks as torch.distributed's default group does. If a comm numbers them differently, `ranks` maps
torch's ranks to the comm's.

A `_StridedShard` can mean two things, which differ if sizes do not divide: that axes to its right split first, as FSDP2
over tensor parallelism does ("order"), or the pieces that distribute_tensor() makes ("pieces"). torch does not record
which one it is. The real local shapes decide; if they cannot, because both meanings give all ranks parts of the same
shapes but other elements, the caller must say it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from ._binding.structs import needed, truth
from ._torch.dtensor import Description, Ranks, check_meaning, check_rank, chosen, grid_of, mesh_of, our_rank
from ._torch.dtensor_redistribute import redistribute
from ._torch.flat import FlatPart, flat_parts, is_flat
from ._torch.held import ModuleOrState, TrackedTensors, tensors_of
from ._torch.interleaved import refuse_interleaved
from ._torch.layouts import grids_of, layouts_in, layouts_of, meshes_of, table_of
from ._torch.names import Names
from ._torch.steps import Steps
from ._torch.tables import MergedTables, some, tables_of
from .comm import Agreed, Comm
from .conversion import Conversion
from .errors import MismatchError, ShapeError
from .layout import Layout
from .plan import Plan, PlanOptions
from .refit import Model, Refit, Side
from .stream import on_stream
from .typing import Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "FlatPart",
    "LeftOut",
    "ModelRefit",
    "Transfer",
    "flat_parts",
    "is_flat",
    "layout_of",
    "layouts_of",
    "mesh_of",
    "meshes_of",
    "pool_staging",
    "redistribute",
]

# ---- memory


def pool_staging(comm: Comm) -> None:
    """Take the staging memory of a comm on a GPU from torch's caching allocator, which then counts it. Local."""
    needed("comm", comm, "comm")
    device = comm.device
    if device is None:
        raise ValueError("torch has no pool of the host's memory")

    def alloc(n_bytes: int) -> int:
        address = torch.cuda.caching_allocator_alloc(n_bytes, device)
        torch.cuda.current_stream(device).synchronize()  # earlier work on the memory ends before other streams use it
        return int(address)

    comm.set_staging(alloc, torch.cuda.caching_allocator_delete)


# ---- layouts


def layout_of(tensor: DTensor, ranks: Ranks = None, meaning: str | None = None) -> Layout:
    """Return the layout of a DTensor: Replicate, Shard, `_StridedShard`, the order in which axes split a dim, uneven
    like torch.chunk.

    meaning: "order" or "pieces", see the module; None: the meaning that this rank's local shape fits, "order" if both
    do. If ranks find different meanings, the plan raises a MismatchError.

    Raises TypeError for Partial, ValueError if the local tensor has another shape than the placements give, or if
    nothing tells the meaning and the caller does not give it.
    """
    said = Description.of(tensor)
    return chosen(said, our_rank(ranks), grid_of(tensor.device_mesh, ranks), meaning)


# ---- modules


class LeftOut(NamedTuple):
    """The names of tensors that only one side has, which a Transfer with strict=False leaves out."""

    source: list[str]
    target: list[str]


def _left_out(sides: Sequence[MergedTables], strict: bool) -> LeftOut:
    """Return the names that only one side has, the same on all ranks. Raises MismatchError if there are any with
    strict=True, or if no name is in both."""
    left = LeftOut(*(sorted(sides[i].tensors.keys() - sides[1 - i].tensors.keys()) for i in (0, 1)))
    for side, names in left._asdict().items():
        if strict and names:
            more = f", and {len(names) - 1} more" if len(names) > 1 else ""
            raise MismatchError(
                f"{names[0]!r} is in the {side} alone{more}; strict=False leaves out what one side lacks, names= says "
                "which tensors are meant"
            )
    if not sides[0].tensors.keys() & sides[1].tensors.keys():
        if not any(left):
            raise ValueError("there is no tensor in what was handed in")
        theirs = (some(names) or "none" for names in left)
        raise MismatchError("no name is in both: the source has {}, the target {}".format(*theirs))
    return left


def _check_types(sides: Sequence[MergedTables], names: Iterable[str]) -> None:
    """Raise ShapeError, the same on all ranks, for a tensor whose type differs between the sides, with what converts
    it: the plan's own text cannot name that option."""
    for name in names:
        src, dst = (side.tensors[name].dtype for side in sides)
        if src != dst:
            raise ShapeError(
                f"{name!r}: the source is {src}, the target {dst}; Transfer(..., cast=True) converts f32, bf16 and f16 "
                "to each other"
            )


class Transfer(Steps):
    """Move all tensors of a sharded module into those of another, planned once and moved at every step. Collective.

    source: a module or a state dict on the ranks that have the weights; target: likewise on the ranks that receive
    them; each is None on the other ranks. Every rank has one of the two, or both. A module may be wrapped by FSDP1 or
    partitioned by ZeRO-3, see flat_parts(). Each rank passes the tensors that it has, such as those of its pipeline
    stage. A tensor that is not a DTensor is whole on every rank of a side that has it. If a tensor lies on several
    meshes, as FSDP2 makes for the tensors that tp leaves whole, it is the same on each of them.

    names: move only these tensors: a name or a pattern ("*lora_*", "layers.3.*"), or several; each must match a tensor.
    None: all tensors. strict: both sides must have the same names; False: leave out what one side lacks, and list it in
    `left_out`.

    Each step looks up both sides again, and binds a tensor again if its address has changed, as after
    load_state_dict(assign=True), to() or an offload. The state_dict() of a source may make copies; that of a target may
    not. If a target has two names for one tensor, as for tied weights, the source must have equal values for both:
    `verify=True` compares them.

    check_replicas: before the first step moves anything, ranks that hold the same part of a source compare it, which
    reads these parts once; without such parts nothing is done. `verify=True` compares at every step. False on any rank
    with a source skips it.

    cast: convert f32, bf16 and f16 to the target's type, such as a trainer's f32 to a server's bf16, see
    Conversion.cast(); without it, types that differ are an error. The same on every rank, as are `strict` and
    the options.

        weights = Transfer(comm, source=trainer if trains else None, target=None if trains else server)
        for step in range(1, 1000):
            weights.step(step)

    If a tensor is wrong, its rank raises the error and the others PeerError. Raises MismatchError if the two sides have
    different names, and in the first step if replicas differ; ShapeError if they have different shapes or types.
    """

    _what = "Transfer"  # names the call, which all ranks must make

    def __init__(
        self,
        comm: Comm,
        *,
        source: ModuleOrState | None = None,
        target: ModuleOrState | None = None,
        ranks: Ranks = None,
        meaning: str | None = None,
        names: str | Iterable[str] | None = None,
        strict: bool = True,
        check_replicas: bool = True,
        cast: bool = False,
        **options: Unpack[PlanOptions],
    ) -> None:
        sides = (source, target)
        have: list[dict[str, Any]] = []

        def tell() -> tuple[list[Any], Any]:
            check_meaning(meaning)
            truth(cast, "cast")
            truth(strict, "strict")
            compares = truth(check_replicas, "check_replicas") or source is None
            if source is None and target is None:
                raise ValueError("neither source nor target: make the comm of the ranks that have one")
            self._names = Names(names)
            have[:] = [{} if side is None else self._names.of(tensors_of(side)) for side in sides]
            for mesh in {**grids_of(have[0], ranks), **grids_of(have[1], ranks)}:
                check_rank(comm, mesh, ranks)
            tables, meshes = zip(*(table_of(tensors, ranks) for tensors in have), strict=True)
            note = [meshes, self._names.unmatched({*have[0], *have[1]}), compares]
            return [None if side is None else table for side, table in zip(sides, tables, strict=True)], note

        needed("comm", comm, "comm")
        self._comm = comm
        tables, notes = tables_of(comm, tell, f"{self._what}, strict={strict}")
        merged = [MergedTables(tables[side], [meshes[side] for meshes, _, _ in notes]) for side in (0, 1)]
        for _, unmatched, _ in notes:
            Names(unmatched).check_all({*merged[0].tensors, *merged[1].tensors})
        self.left_out = _left_out(merged, strict)
        moved = sorted(merged[0].tensors.keys() & merged[1].tensors.keys())
        if not cast:
            _check_types(merged, moved)
        self._are_to_compare = all(compares for _, _, compares in notes)
        with Agreed(comm._tell):
            here = [self._select(side, tensors) for side, tensors in enumerate(have)]
            layouts = [layouts_in(merged[side], here[side], ranks, meaning) for side in (0, 1)]
        conversion = (Conversion.cast(),) if cast else ()
        rows = [(name, layouts[0].get(name), layouts[1].get(name), *conversion) for name in moved]
        self.plan = Plan(comm, rows, **options)
        self._tensors = TrackedTensors(source, target, select=self._select)
        self._tensors.commit(self.plan, self._bind)

    def _select(self, side: int, tensors: dict[str, Any]) -> dict[str, Any]:
        """Return the tensors that are moved, and any that are new."""
        tensors, left = self._names.of(tensors), set(self.left_out[side])
        return {name: x for name, x in tensors.items() if name not in left} if left else tensors

    def look_at(self, *, source: ModuleOrState | None = None, target: ModuleOrState | None = None) -> None:
        """Use other modules or state dicts, of the same names and layouts, from the next step on. Local."""
        self._tensors.replace(source, target)

    def _bind(self, moved: list[tuple[int, str]]) -> None:
        """Bind the tensors that have moved."""
        source, target = self._tensors.parts
        self.plan.bind_many((name, source.get(name), target.get(name)) for name in sorted({name for _, name in moved}))

    def step(self, version: int, stream: Stream | None = None) -> None:
        """Move all tensors and wait until they have arrived on every rank. Collective. version, stream: as for
        Plan.run().

        Raises an error of a tensor whose address has changed, and the errors of Plan.run() and wait(). A rank that
        cannot take part, for a reason of its own, calls `comm.refuse(why)` and then step() as usual: all ranks raise
        the reason before anything moves, and the next step works again.
        """
        with on_stream(stream, self._comm.device):  # a copy that readable() makes must come before the run
            self._tensors.commit(self.plan, self._bind)
        self.plan._bindings.trust()
        super().step(version, stream)
        self._tensors.mark_written()


class ModelRefit(Steps):
    """Move a trainer's weights into an engine's, by the rules of both frameworks. Collective. See docs/refit.md.

    model: a Model, or the name, file or folder of one. train, gen: Sides, or SPECs such as "fsdp:dp4" and
    "vllm:tp2,loaded"; the ranks of a gen SPEC begin after those of train. source: the trainer's module or state dict on
    its ranks; target: the engine's on its ranks; DTensors are handed in by their local parts. ranks: as for
    layout_of(). check_replicas: as for Transfer.

    Raises MismatchError for tensors that are missing, unknown or of the wrong shape, on all ranks with the sentence;
    for a DTensor also TypeError for Partial, and ValueError if its placements give this rank another part than the
    SPEC; ValueError also for a Megatron model in whose experts blocks of gate and up alternate.
    """

    def __init__(
        self,
        comm: Comm,
        model: Model | str,
        train: Side | str,
        gen: Side | str,
        *,
        source: ModuleOrState | None = None,
        target: ModuleOrState | None = None,
        ranks: Ranks = None,
        check_replicas: bool = True,
        **options: Unpack[PlanOptions],
    ) -> None:
        needed("comm", comm, "comm")
        self._comm, self._ranks = comm, ranks

        def tell() -> bool:  # may fail on some ranks only, for example if a host lacks the model's folder
            for each in (source, target):
                refuse_interleaved(each)
            mine = Side(train) if isinstance(train, str) else train
            needed("side", mine, "train")
            theirs = Side(gen, first_rank=mine.size) if isinstance(gen, str) else gen
            needed("side", theirs, "gen")
            self.refit = Refit(model if isinstance(model, Model) else Model(model), mine, theirs)
            self.locals = self.refit.locals(comm.rank)
            return truth(check_replicas, "check_replicas") or source is None

        self._are_to_compare = all(comm.share(tell, "ModelRefit"))
        self.plan = self.refit.plan(comm, **options)
        self._tensors = TrackedTensors(source, target, self._check)
        self._tensors.commit(self.plan, partial(self._bind, self.locals.give))

    def _check(self, side: int, tensors: dict[str, Any]) -> None:
        """Raise ValueError if a DTensor's placements give this rank other elements than the SPEC, for tensors that both
        describe."""
        if not tensors:
            return
        for mesh in grids_of(tensors, self._ranks):
            check_rank(self._comm, mesh, self._ranks)
        wanted = self._wanted[side]
        for name, layout in layouts_of(tensors, self._ranks).items():
            said = wanted.get(name)
            if said is None or said.shape != layout.shape:
                continue  # it is several tensors of the table, or none
            mine, theirs = layout.boxes(self._comm.rank), said.boxes(self._comm.rank)
            if mine != theirs:
                raise ValueError(
                    f"{name!r}: this rank has the elements [lo, hi) {mine} by the placements of the DTensor, and "
                    f"{theirs} by the SPEC"
                )

    @cached_property
    def _wanted(self) -> tuple[dict[str, Layout], dict[str, Layout]]:
        """The layouts, by side and name, of the local tensors on this rank that are part of a single tensor of the
        table."""
        rows = self.refit.tensors()
        found: tuple[dict[str, Layout], dict[str, Layout]] = ({}, {})
        for i, local in enumerate(self.locals):
            tensors = {part.tensor for part in self.locals.parts(i)}
            side = ("train", "gen").index(local.side)
            layout = rows[tensors.pop()][1 + side] if len(tensors) == 1 else None
            if isinstance(layout, Layout):
                found[side][local.name] = layout
        return found

    def _bind(self, hand_in: Callable[[str, str, Any], None], moved: list[tuple[int, str]]) -> None:
        """Hand in the tensors that have moved, and bind all."""
        for side, name in moved:
            hand_in(("train", "gen")[side], name, self._tensors.parts[side][name])
        self.locals.bind(self.plan)

    def step(self, version: int, stream: Stream | None = None) -> None:
        """Move all weights and wait until they have arrived on every rank. Collective. See Transfer.step()."""
        with on_stream(stream, self._comm.device):
            self._tensors.commit(self.plan, partial(self._bind, self.locals.update))
        self.plan._bindings.trust()
        super().step(version, stream)
        self._tensors.mark_written()

    def _wait(self) -> None:
        self.locals.wait(self.plan)

    def close(self) -> None:
        """Close the plan and all that belongs to it."""
        for each in (self.plan, self.locals, self.refit):
            each.close()

    def __repr__(self) -> str:
        return f"<ModelRefit of {self.refit!r}>"
