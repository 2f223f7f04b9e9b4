"""Refits of whole models: move the weights of a training job into the engines that serve them. See docs/refit.md."""

from __future__ import annotations

import numbers
import os
import pathlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from . import dtypes
from ._binding import functions, structs
from ._binding.handle import Handle
from ._binding.lib import lib
from ._binding.structs import array, choice, decoded, encoded, length, listed, needed, truth
from .comm import Comm
from .conversion import Conversion
from .errors import ArgError, StateError
from .layout import Layout
from .memory import HOST, TensorForm, check_device, check_writable, one_array
from .plan import Plan, PlanOptions, Tensors
from .typing import Array, Dtype

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Local", "LocalPart", "Locals", "Model", "Refit", "RefitTensor", "Rules", "Side", "model_path"]

_SIDES = {"train": 0, "gen": 1}


def _texts(values: Sequence[str], name: str) -> Any:
    """Return a C array of texts."""
    return array(c_char_p, [encoded(value, name) for value in values], name)


def _pairs(pairs: Sequence[tuple[str, str]], name: str) -> list[str]:
    """Return the texts of pairs in one list."""
    texts: list[str] = []
    for pair in listed(pairs, name):
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise ArgError(f"{name} has {pair!r}, not two texts (from, to)")
        texts += pair
    return texts


def _range(value: Any, name: str) -> tuple[int, int]:
    """Return (begin, end) of a range that the caller passed; (0, 0) stands for None."""
    if value is None:
        return 0, 0
    if not isinstance(value, Sequence) or [isinstance(end, numbers.Integral) for end in value] != [True, True]:
        raise ArgError(f"{name} is {value!r}, not two numbers (begin, end)")
    begin, end = int(value[0]), int(value[1])
    if end == 0:  # C would take that for all of them
        raise ArgError(f"{name} is {value!r}, which keeps none")
    return begin, end


def model_path(name: str) -> pathlib.Path:
    """Return the path of the model table with that name, such as "qwen3-30b-a3b", among those in this package."""
    here = pathlib.Path(__file__).parent
    folders = [here / "models", here.parent.parent / "models"]  # installed; a source tree
    for folder in folders:
        if (found := folder / f"{name}.json").is_file():
            return found
    known = sorted({path.stem for folder in folders for path in folder.glob("*.json")})
    raise FileNotFoundError(f"there is no model {name!r} here: there are {', '.join(known)}")


class Rules(Handle):
    """What the library knows about model families and about the frameworks that hold them: its own rules, and the
    `*.json` files of a folder, which replace the library's of the same name. See docs/rules.md.

    Raises FileError for an unreadable or malformed file, with file and line.
    """

    _kind = "rules"

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self.folder = os.fsdecode(folder)
        lib.xfer_rules_load(self._out(), os.fsencode(self.folder))

    def __repr__(self) -> str:
        return self._repr(self.folder)


class Model(Handle):
    """The tensors of a model: name, shape and element type of each. It reads no weights.

    source: a name for model_path(), a table's file, or the folder of a Hugging Face checkpoint. layers, experts: the
    half-open range (begin, end) to keep. ends: with `layers`, keep the tensors outside the layers too. extra: a
    list under "extra_params" to add, such as "mtp". renames: [(from, to), ...], see Side; each must match something.
    rules: None: the library's own.

    Raises FileError for a file that it cannot read, with the place, and ArgError if nothing is left.
    """

    _kind = "model"

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        layers: tuple[int, int] | None = None,
        experts: tuple[int, int] | None = None,
        ends: bool = False,
        extra: str | None = None,
        renames: Sequence[tuple[str, str]] = (),
        rules: Rules | None = None,
    ) -> None:
        super().__init__()
        path = os.fsdecode(source)
        if not os.path.exists(path) and os.sep not in path and not path.endswith(".json"):
            path = str(model_path(path))
        kept, kept_experts = _range(layers, "layers"), _range(experts, "experts")
        texts = _pairs(renames, "renames")
        options = structs.sized(
            structs.ModelOptions,
            layers_begin=kept[0],
            layers_end=kept[1],
            experts_begin=kept_experts[0],
            experts_end=kept_experts[1],
            ends=int(truth(ends, "ends")),
            extra=encoded(extra, "extra") if extra is not None else None,
            renames=_texts(texts, "renames"),
            n_renames=len(texts) // 2,
            rules=rules,
        )
        lib.xfer_model_load(self._out(), os.fsencode(path), byref(options))
        self.path = path

    def add(self, name: str, dtype: Dtype, shape: Sequence[int] = ()) -> None:
        """Add a tensor that the table lacks, such as a buffer or a KV scale. Call it before the first refit."""
        sizes = array(c_int64, listed(shape, "shape"), "shape")
        lib.xfer_model_add(self, encoded(name, "name"), dtypes.dtype_code(dtype), sizes, len(sizes))

    def __repr__(self) -> str:
        return self._repr(self.path)


class Side(Handle):
    """How one framework holds a model.

    spec: "megatron:tp2,pp2", "fsdp:dp4", "full", "vllm:tp4", "hf:tp2"; docs/refit.md lists the items. first_rank: the
    side's ranks are first_rank, first_rank + 1, ... expert_map: the experts that each expert-parallel rank holds, in
    local order; an expert may occur again. ranks: the side's ranks in its own order, instead of first_rank. items:
    items in addition to those of the SPEC, such as {"tp": 2, "loaded": 1}. rules: None: the library's own. partial: of
    weights that lie in one tensor, some may be ignored. strict: a pattern of ignore() must match a tensor of the model.

    Raises ArgError for a SPEC with an unknown, repeated or impossible item.
    """

    _kind = "side"

    def __init__(
        self,
        spec: str,
        *,
        first_rank: int = 0,
        expert_map: Sequence[Sequence[int]] | None = None,
        ranks: Sequence[int] | None = None,
        items: Mapping[str, int] | None = None,
        rules: Rules | None = None,
        partial: bool = False,
        strict: bool = False,
    ) -> None:
        super().__init__()
        experts, first = None, None
        if expert_map is not None:
            if length(expert_map, "expert_map") == 0:  # C would take that for no map
                raise ArgError("expert_map has no ranks")
            lists = [listed(of_rank, "the experts of a rank") for of_rank in listed(expert_map, "expert_map")]
            experts, first = [e for of_rank in lists for e in of_rank], [0]
            for of_rank in lists:
                first.append(first[-1] + len(of_rank))
        if items is not None and not isinstance(items, Mapping):
            raise TypeError(f"items is {items!r}, not names and their numbers")
        options = structs.sized(
            structs.SideOptions,
            first_rank=first_rank,
            partial=int(truth(partial, "partial")),
            strict=int(truth(strict, "strict")),
            map_experts=array(c_int32, experts, "expert_map"),
            map_first=array(c_int32, first, "expert_map"),
            n_map=length(expert_map, "expert_map"),
            ranks=array(c_int32, ranks, "ranks"),
            n_ranks=length(ranks, "ranks"),
            item_names=_texts(list(items or ()), "items"),
            item_values=array(c_int32, list((items or {}).values()), "items"),
            n_items=len(items or ()),
            rules=rules,
        )
        lib.xfer_side_create(self._out(), encoded(spec, "spec"), byref(options))
        self.spec = spec

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(lib.xfer_side_size(self))

    def coordinate(self, axis: str, rank: int) -> int:
        """Return a rank's coordinate on an axis such as "tp", "pp" or "ep". The error for another name lists the
        axes."""
        coordinate = c_int()
        lib.xfer_side_coordinate(self, encoded(axis, "axis"), rank, byref(coordinate))
        return coordinate.value

    def rename(self, from_: str, to: str) -> None:
        """Let the rules know the framework's names that match `from_` as `to`. Each `*` stands for any text."""
        lib.xfer_side_rename(self, encoded(from_, "from_"), encoded(to, "to"))

    def ignore(self, pattern: str) -> None:
        """Ignore names of the side that are not weights: they are counted, and otherwise left alone."""
        lib.xfer_side_ignore(self, encoded(pattern, "pattern"))

    def place(self, pattern: str, dim: int) -> None:
        """Say how the side holds the table's tensors that match: split over tp along `dim`; negative: whole."""
        lib.xfer_side_place(self, encoded(pattern, "pattern"), dim)

    def give_whole(self, pattern: str, rank: int) -> None:
        """Say that one rank of a training side hands in the tensors that match whole, under the table's names."""
        lib.xfer_side_give_whole(self, encoded(pattern, "pattern"), rank)

    def dtype(self, pattern: str, dtype: Dtype) -> None:
        """Say that the side holds the tensors that match in another element type than the table; None: as in the table,
        whatever its rules say about type and values."""
        lib.xfer_side_dtype(self, encoded(pattern, "pattern"), 0 if dtype is None else dtypes.dtype_code(dtype))

    def __repr__(self) -> str:
        return self._repr("" if self.closed else f"{self.spec} of {self.size} ranks")


@dataclass(frozen=True)
class RefitTensor:
    """The place of a tensor of a join in the table: the fields of xfer_refit_tensor, and its name in the list of
    tensors."""

    name: str
    hf: str
    n_experts: int
    first_expert: int
    offset: int
    strides: tuple[int, ...]
    half_dim: int
    half_first: int
    half_step: int
    layer: int
    misc: bool
    hook: bool


class Refit(Handle):
    """Two sides of one model, joined. A side that this rank does not know is None.

    Raises UnsupportedError for tensors that no rule covers and no call declares, MismatchError if the sides hold a
    tensor in different element types, ShapeError if a shape does not fit the SPEC.
    """

    _kind = "refit"

    def __init__(self, model: Model, train: Side | None, gen: Side | None) -> None:
        super().__init__()
        lib.xfer_refit_create(self._out(), model, train, gen)

    def tensors(self) -> Tensors:
        """Return [(name, source layout, destination layout), ...] for a Plan or Plan.simulate(), with a Conversion
        after them if the sides have different element types."""
        n = c_size_t()
        rows = lib.xfer_refit_tensors(self, byref(n))
        found = []
        for row in rows[: n.value]:
            layouts = (decoded(row.name), self._borrow(row.src), self._borrow(row.dst))
            found.append((*layouts, Conversion(row.conversion)) if row.conversion.kind else layouts)
        return found

    def _borrow(self, pointer: int | None) -> Layout | None:
        """Return a layout that belongs to this refit, which it keeps alive."""
        if pointer is None:
            return None
        layout = Layout._empty()
        layout._is_borrowed, layout._handle = True, c_void_p(pointer)
        layout._use(self)
        return layout

    @property
    def ranks(self) -> int:
        """The number of ranks that a comm must have."""
        return int(lib.xfer_refit_ranks(self))

    def tensor(self, i: int) -> RefitTensor:
        """Return the place of the i-th tensor in the table."""
        row, n = structs.RefitTensor(), c_size_t()
        lib.xfer_refit_tensor_get(self, i, byref(row))
        fields = structs.fields_of(row)
        fields["strides"] = tuple(row.strides[: fields.pop("n_dims")])
        fields |= {"hf": decoded(row.hf), "misc": bool(row.misc), "hook": bool(row.hook)}
        return RefitTensor(name=decoded(lib.xfer_refit_tensors(self, byref(n))[i].name), **fields)

    def report(self) -> dict[str, int]:
        """Return the figures of the join: the fields of xfer_refit_report_data."""
        report = structs.sized(structs.RefitReport)
        lib.xfer_refit_report(self, byref(report))
        return structs.fields_of(report)

    def plan(self, comm: Comm, **options: Unpack[PlanOptions]) -> Plan:
        """Plan the join's tensors. Collective."""
        return Plan(comm, self.tensors(), **options)

    def locals(self, rank: int) -> Locals:
        """Return the tensors that a rank must hand in."""
        return Locals(self, rank)

    def __repr__(self) -> str:
        if self.closed:
            return self._repr("")
        figures = self.report()
        return self._repr(f"{figures['tensors']} tensors, {figures['payload_bytes']} bytes, {self.ranks} ranks")


# ---- the local tensors of a rank


@dataclass(frozen=True)
class Local:
    """A tensor as the framework has it: the fields of xfer_local. side: "train" or "gen". dtype: the library's name."""

    name: str
    side: str
    dtype: str
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    n_parts: int
    expert: int
    misc: bool
    made: str | None
    made_dtype: str | None


@dataclass(frozen=True)
class LocalPart:
    """A part of a tensor inside a local tensor: the fields of xfer_local_part."""

    tensor: int
    dim: int
    tensor_dim: int
    begin: int
    end: int
    step: int
    first: int


class Misc:
    """Memory of the library that a callback may read while it runs. NumPy sees it as an array on the host; on a GPU it
    has `__cuda_array_interface__`. It holds bits: bf16 and fp8 are unsigned integers there."""

    def __init__(self, dtype: str, shape: tuple[int, ...], address: int, device: int) -> None:
        self.dtype_name, self.shape, self.address = dtype, shape, address
        size = dtypes.itemsize(dtype)
        kind = "b" if dtype == "bool" else "u" if dtype[:2] in ("bf", "f8") else dtype[0]
        interface = {"data": (address, True), "typestr": f"{'|' if size == 1 else '<'}{kind}{size}", "shape": shape}
        name = "__array_interface__" if device == HOST else "__cuda_array_interface__"
        setattr(self, name, {**interface, "version": 3})


class _Given(NamedTuple):
    """A local tensor that was handed in.

    owner: keeps its memory alive; None once it was given back. form: None if the tensor cannot be told by its form, or
    was handed in with a dtype of the caller's. before, after: the arguments of C before the address and after it.
    """

    owner: Any
    device: int
    form: TensorForm | None
    before: tuple[Any, ...]
    after: tuple[Any, ...]


class Locals(Handle):
    """The framework's tensors of one rank, and the address of each once it was handed in. A sequence of Local.

    Hand them in by name:

        locals = refit.locals(comm.rank)
        for name, tensor in module.state_dict().items():
            locals.give("gen", name, tensor)
        locals.bind(plan)
    """

    _kind = "locals"

    def __init__(self, refit: Refit, rank: int) -> None:
        super().__init__()
        lib.xfer_locals_create(self._out(), refit, rank)
        self._use(refit)
        self._given: dict[tuple[str, str], _Given] = {}  # what was handed in, kept alive
        self._misc: Any = None
        self._misc_error: BaseException | None = None
        self._device = HOST

    def __len__(self) -> int:
        return int(lib.xfer_locals_count(self))

    def __getitem__(self, i: int) -> Local:
        n, i = len(self), index(i)
        i += n if i < 0 else 0
        if not 0 <= i < n:
            raise IndexError(f"there are {n} local tensors")
        row = structs.Local()
        lib.xfer_locals_get(self, i, byref(row))
        return Local(
            name=decoded(row.name),
            side="gen" if row.side else "train",
            dtype=dtypes.name_of_code(row.dtype),
            shape=tuple(row.shape[: row.n_dims]),
            dims=tuple(row.dims[: row.n_dims]),
            n_parts=row.n_parts,
            expert=row.expert,
            misc=bool(row.misc),
            made=decoded(row.made) if row.made is not None else None,
            made_dtype=dtypes.name_of_code(row.made_dtype) if row.made is not None else None,
        )

    def __iter__(self) -> Iterator[Local]:
        return (self[i] for i in range(len(self)))

    def parts(self, i: int) -> list[LocalPart]:
        """Return the parts of the i-th local tensor. One that is cut into several row ranges is listed as several."""
        parts = []
        for k in range(self[i].n_parts):
            part = structs.LocalPart()
            lib.xfer_locals_part_get(self, i, k, byref(part))
            parts.append(LocalPart(**structs.fields_of(part)))
        return parts

    def give(self, side: str, name: str, x: Array, dtype: Dtype | None = None) -> None:
        """Hand in one local tensor under the framework's name. side: "train" or "gen". x: an array, or a View of one.
        dtype: see View.

        give() records a wrong tensor (name, shape, type), and bind() refuses it. Raises TypeError for an object that is
        not an array, and ValueError for a read-only destination.
        """
        self._hand_in(lib.xfer_locals_give, side, name, x, dtype)

    def update(self, side: str, name: str, x: Array, dtype: Dtype | None = None) -> None:
        """Hand in a local tensor again because its address has changed. It replaces the one that was handed in under
        its name, and bind() then binds only what has changed. Raises also MismatchError, for a wrong name, shape or
        type; nothing changes then. A torch tensor that differs only by its address takes half the time."""
        known = self._given.get((side, name)) if isinstance(side, str) and isinstance(name, str) else None
        memory = known.form.locate(x) if known is not None and known.form is not None and dtype is None else None
        if known is None or memory is None:
            self._hand_in(lib.xfer_locals_update, side, name, x, dtype)
            return
        lib.xfer_locals_update.unchecked(self._as_parameter_, *known.before, memory.address, *known.after)
        self._given[side, name] = _Given(memory, *known[1:])

    def _hand_in(self, function: Callable[..., Any], side: str, name: str, x: Array, dtype: Dtype | None) -> None:
        """Hand in one local tensor by a function of C."""
        side_of = choice(side, _SIDES, "side")
        text = encoded(name, "name")
        try:
            memory, elements = one_array(x)
            if dtype is not None:
                elements = dtypes.dtype_name(dtype)
            if dtypes.itemsize(elements) != dtypes.itemsize(memory.dtype):
                raise TypeError(f"elements of {memory.dtype} cannot be read as {elements}: the sizes differ")
            if side == "gen":
                check_writable(memory)
        except (TypeError, ValueError) as wrong:
            wrong.args = (f"{name!r}: {wrong}",)
            raise
        shape, strides = array(c_int64, memory.shape, "shape"), array(c_int64, memory.strides, "strides")
        before, after = (side_of, text, dtypes.dtype_code(elements)), (shape, strides, len(memory.shape))
        function(self, *before, memory.address, *after)
        form = memory.form if elements == memory.dtype else None
        self._given[side, name] = _Given(memory.owner, memory.device, form, before, after)

    def bind(self, plan: Plan) -> None:
        """Bind all tensors that were handed in to a plan of the refit's tensors. Local.

        bind() records tensors that are missing, unknown, or of the wrong shape or type, and the plan's commit() raises
        them as a MismatchError on all ranks; problems() lists each.
        """
        needed("plan", plan, "plan")
        comm = plan._on()
        self._device = comm._device
        with comm._alone():
            try:
                for (_, name), given in self._given.items():
                    if given.owner is None:
                        raise StateError(f"{name!r} was given back after the last run: update() it before bind()")
                    check_device(given.device, comm._device, repr(name))
                # C binds only what moved since the last call, so a tensor that others bound in between stays refused.
                others = plan._bindings.views if plan._bindings.has_given(self) else ()
                plan._bindings.keep(self)  # the plan may use memory of this object's own, too
                comm._now(lib.xfer_locals_bind, self, plan)
                plan._bindings.set_given(self, self._given)
                plan._refusals.clear_all(but=others)
            except Exception as error:
                plan._fail_at_commit(error, "locals")

    def _let_go(self, side: str, plan: Plan) -> None:
        """Drop the memory of one side, which is not bound any more."""
        for key, given in self._given.items():
            if key[0] == side:
                self._given[key] = given._replace(owner=None)
        plan._bindings.set_given(self, self._given)

    def problems(self) -> list[str]:
        """Return what is wrong with the tensors handed in, one sentence each."""
        found: list[str] = []
        while (text := lib.xfer_locals_problem(self, len(found))) is not None:
            found.append(decoded(text))
        return found

    @property
    def ignored(self) -> int:
        """The number of names that were handed in and ignored."""
        return int(lib.xfer_locals_ignored(self))

    def take_misc(self, function: Callable[[str, Misc], None]) -> None:
        """Receive by a callback the misc tensors that were not handed in: wait() calls function(name, memory)."""

        if not callable(function):
            raise TypeError(f"{function!r} is no function that takes misc tensors")
        taker = weakref.ref(self)  # weak, since this object keeps the callback

        def call(_context: Any, name: bytes, dtype: int, shape: Any, n_dims: int, data: int) -> None:
            me = taker()
            assert me is not None  # its wait() calls this
            try:
                sizes = tuple(shape[:n_dims])
                function(decoded(name), Misc(dtypes.name_of_code(dtype), sizes, data or 0, me._device))
            except BaseException as error:  # raised by wait()
                me._misc_error = me._misc_error or error

        callback = functions.Misc(call)
        lib.xfer_locals_take_misc(self, callback, None)
        self._misc = callback

    def wait(self, plan: Plan, timeout_ms: int = 0) -> None:
        """Call plan.wait(), then the callbacks, on the thread that waits. Collective. Raises what a callback raises.
        With a plan of fresh_sources this drops the arrays handed in for "train": call update() before the next
        bind()."""
        needed("plan", plan, "plan")
        plan._on()  # raises if the plan is closed or simulated
        plan._bindings.keep(self)
        plan._wait(lib.xfer_locals_wait, self, plan, timeout_ms)
        if plan.fresh_sources:
            self._let_go("train", plan)
        error, self._misc_error = self._misc_error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # otherwise this frame and the error's traceback keep each other alive

    def __repr__(self) -> str:
        return self._repr("" if self.closed else f"{len(self)} tensors, {len(self._given)} handed in")
