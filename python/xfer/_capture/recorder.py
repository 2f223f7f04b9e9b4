"""The recorder under xfer.capture: it follows what a loader does to storages, operation by operation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ..dtypes import dtype_name
from .regions import Block, Box, Dim, Strided, Unmapped, clear, read, write

__all__ = ["Recorder", "Write", "name_of"]

_CLONES = ("clone", "_to_copy")
_CONSTANTS = ("zeros", "zeros_like", "new_zeros", "full", "full_like", "new_full", "ones", "ones_like", "new_ones")
_EMPTY = ("empty_like", "new_empty", "new_empty_strided")
_OTHER_MEMORY = ("resize_", "resize_as_", "set_")
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
class _Storage:
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


def _key(tensor: torch.Tensor) -> int:
    """Return a number that is the same for tensors with the same storage."""
    return int(tensor.untyped_storage()._cdata)


def _is_index(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has values that can select elements."""
    return not tensor.is_meta and tensor.dtype == torch.int64


def _carried_out(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
    """Carry out an operation. If it has both tensors with data, such as indices or masks, and tensors without data,
    carry it out without data."""
    if any(x.is_meta for x in tensors) and not all(x.is_meta for x in tensors) and not _kind_of(func).writes:
        shapes = {id(x): x.to("meta") for x in tensors if not x.is_meta}
        args, kwargs = tree_map(lambda x: shapes.get(id(x), x), (args, kwargs))
    return func(*args, **kwargs)


def _region(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Return the (size, stride) of each dim."""
    return list(zip(tensor.shape, tensor.stride(), strict=True))


def name_of(dtype: Any) -> str:
    """Return the library's name of a dtype, or torch's if the library does not have it."""
    try:
        return dtype_name(dtype)
    except TypeError:
        return str(dtype)


class _Number:
    """A number that item() returned. A loader may fill a parameter with it; any other use raises ValueError, since it
    has no value. torch calls the methods."""

    def __init__(self, tensor: torch.Tensor, source: str) -> None:
        self.tensor, self.source, self.is_used = tensor, source, False

    def is_int(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def is_float(self) -> bool:
        return True

    def __getattr__(self, _: str) -> Any:
        raise _no_value(self.source)


def _no_value(source: str) -> ValueError:
    """Return the error for a loader that looks at a value of a source."""
    return ValueError(f"the loader looks at a value of {source!r}: there is none here")


class Recorder(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """A dispatch mode that sees each operation below autograd. It follows operations on the checkpoint's elements
    instead of carrying them out."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[str, Any] = {}
        self.known: dict[int, _Storage] = {}
        self.live: list[Any] = []  # the parameters, whose own dims must not change
        self.numbers: list[_Number] = []

    # ---- what is known at first

    def add_source(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor of the checkpoint."""
        block = Block((tensor.numel(),), [Box((0,), (tensor.numel(),), name, 0, (1,), tensor.dtype)])
        self.sources[name] = tensor
        self.known[_key(tensor)] = _Storage(tensor.untyped_storage(), block, tensor.dtype)

    def add(self, tensor: torch.Tensor, name: str | None = None) -> _Storage:
        """Add the storage of a tensor, and return what is known of it. The storage is known by the dims of the tensor
        if the tensor is dense. name: of a parameter."""
        n = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
        dims = sorted(_region(tensor), key=lambda dim: (-dim[1], -dim[0]))
        shape = tuple(n for n, _ in dims)
        if tensor.storage_offset() or tensor.numel() != n or Block(shape).strides != tuple(s for _, s in dims):
            shape = (n,)
        shape = shape or (1,)
        made = _Storage(tensor.untyped_storage(), Block(shape), tensor.dtype, name)
        if name is not None:
            self.live.append(tensor)
        return self.known.setdefault(_key(tensor), made)

    # ---- operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _kind_of(func).is_composite:
            with self:
                return func.decompose(*args, **kwargs)
        given = list(_flat((args, kwargs)))
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        numbers = [x.node for x in given if isinstance(x, torch.SymFloat)]
        if numbers:
            return self._fill(func, args, numbers[0])
        if _kind_of(func).is_turn and not any(args[0] is x for x in self.live):
            return func(*args, **kwargs)
        if not any(self._has_elements(x) for x in tensors):
            return self._untracked(func, args, kwargs)
        if _kind_of(func).is_view:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        written = _written(func, args, kwargs)
        if name in ("copy_", "_foreach_copy_"):
            for target, source in zip(_flat(args[0]), _flat(args[1]), strict=True):
                if self._has_elements(target) or self._has_elements(source):
                    self._copy(target, source)
                else:  # one of several copies, without elements of the checkpoint
                    self._untracked(torch.ops.aten.copy_.default, (target, source), {})
            return _returned(func, written)
        if name == "_local_scalar_dense":
            return self._number(tensors[0])
        if written:
            others = [x for x in tensors if all(x is not y for y in written)]
            empty = [x for x in written if x.numel() == 0 and any(x is y for y in _flat(kwargs))]
            if empty and any(x.numel() for x in others):
                func(*args, **kwargs)  # this makes `out` as large as the result
            for x in written:
                self._spoil(x, name, others)
            return _returned(func, written)
        if name == "_to_copy" and args[0].is_meta:
            kwargs = {**kwargs, "device": args[0].device}  # without data there is nothing to move to another device
        result = _carried_out(func, args, kwargs, tensors)
        for out in _flat(result):
            if isinstance(out, torch.Tensor) and _key(out) not in {_key(x) for x in tensors}:
                self._fresh(out, name, args, kwargs, tensors)
        return result

    def _number(self, tensor: torch.Tensor) -> torch.SymFloat:
        """Return item() of a tensor, with the elements that the tensor has now."""
        source = self._sources_of([tensor])[0]
        if not tensor.is_floating_point():
            raise _no_value(source)
        now = tensor.clone()
        self._fresh(now, "clone", (tensor,), {}, [tensor])
        self.numbers.append(_Number(now.reshape(()), source))
        return torch.SymFloat(self.numbers[-1])

    def _fill(self, func: Any, args: Any, number: _Number) -> Any:
        """Record that a parameter is filled with a number of a source."""
        if func.overloadpacket.__name__ != "fill_":
            raise _no_value(number.source)
        number.is_used = True
        self._copy(args[0], number.tensor)
        return args[0]

    def _untracked(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Carry out an operation that has no elements of the checkpoint. It may still fill a parameter, or make a
        tensor that later receives elements."""
        name = func.overloadpacket.__name__
        written = _written(func, args, kwargs)
        named = [x for x in written if (known := self.known.get(_key(x))) is not None and known.name is not None]
        if named:
            for x in named:
                self._spoil(x, name, [])
            return _returned(func, written)
        if name == "_to_copy" and _is_index(args[0]) and torch.device(kwargs.get("device") or "cpu").type == "meta":
            kwargs = {**kwargs, "device": "cpu"}  # it may select elements of the checkpoint, which needs its values
        result = _carried_out(func, args, kwargs, [x for x in _flat((args, kwargs)) if isinstance(x, torch.Tensor)])
        for out in _flat(result):
            if isinstance(out, torch.Tensor) and _key(out) not in self.known:
                self._constant(self.add(out), name in _CONSTANTS)
        return result

    @staticmethod
    def _constant(made: _Storage, filled: bool) -> None:
        """Record that a new storage is filled with a constant."""
        if filled:
            made.block.boxes.append(
                Box((0,) * len(made.block.shape), made.block.shape, "", 0, (0,) * len(made.block.shape))
            )

    def has_elements(self, tensors: Iterable[torch.Tensor], but: Iterable[Any]) -> bool:
        """Return whether the storage of one of the tensors has elements of the checkpoint and is not the storage of a
        tensor in `but`."""
        own = {_key(tensor) for tensor in but} if (given := list(filter(self._has_elements, tensors))) else set()
        return any(_key(tensor) not in own for tensor in given)

    def _has_elements(self, tensor: torch.Tensor) -> bool:
        """Return whether the storage of a tensor has elements of the checkpoint."""
        known = self.known.get(_key(tensor))
        return known is not None and known.block.is_known()

    def _sources_of(self, tensors: Iterable[torch.Tensor]) -> tuple[str, ...]:
        """Return the names of the sources whose elements are in the storages of the tensors."""
        known = [self.known[_key(tensor)] for tensor in tensors if _key(tensor) in self.known]
        return tuple(dict.fromkeys(name for each in known for name in each.block.sources()))

    def _copies(self, tensor: torch.Tensor, to: int, to_strides: Iterable[int]) -> list[Strided]:
        """Return the elements of a tensor as copies to a place with these strides. Raises Unmapped if they are not
        copies."""
        known = self.known[_key(tensor)]
        if known.block.made is not None or tensor.dtype.itemsize != known.dtype.itemsize:
            raise Unmapped
        dims = tuple(Dim(n, t, s) for (n, s), t in zip(_region(tensor), to_strides, strict=True))
        copies = read(known.block, Strided("", tensor.storage_offset(), to, dims))
        return copies if tensor.dtype == known.dtype else _taken_for(tensor.dtype, known.dtype, copies)

    def _exact(self, tensor: torch.Tensor, to: int, to_strides: Iterable[int]) -> list[Strided]:
        """Return _copies() of a tensor that has the checkpoint's exact values. Raises Unmapped if they were rounded."""
        if self.known[_key(tensor)].is_rounded:
            raise Unmapped
        return self._copies(tensor, to, to_strides)

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Record target.copy_(source)."""
        if not target.numel():
            return
        into = self.known.get(_key(target)) or self.add(target)
        if not self._has_elements(source):
            self._spoil(target, "copy_", [])
            return
        source, known = source.expand(target.shape), self.known[_key(source)]
        try:
            copies = self._exact(source, target.storage_offset(), target.stride())
            if target.dtype != into.dtype:
                copies = _taken_for(into.dtype, target.dtype, copies)
        except Unmapped:
            how = known.block.made[0] if known.block.made else f"view as {name_of(source.dtype)}, or strides"
            self._write_made(into, target, ("copy_" if known.is_rounded else how, self._sources_of([source])))
            return
        into.is_rounded = into.is_rounded or not _holds(target.dtype, source.dtype)
        if sum(copy.size for copy in copies) < target.numel():
            into.writes.append(Write(_whole(target), ("nothing", ())))
        into.writes += [Write(copy, None if copy.source else ("constant", ())) for copy in copies]
        self._write(into, target, copies)

    @staticmethod
    def _write(into: _Storage, target: torch.Tensor, copies: Sequence[Strided]) -> None:
        """Record copies in the block of a storage."""
        try:
            _fill(into.block, target, copies)
        except Unmapped:
            into.block.spoil("writes in strides", [copy.source for copy in copies if copy.source])

    @staticmethod
    def _write_made(into: _Storage, target: torch.Tensor, made: tuple[str, tuple[str, ...]]) -> None:
        """Record that values were written that are not copies. made: as in Write."""
        into.block.spoil(*made)
        if target.dtype.itemsize == into.dtype.itemsize:
            into.writes.append(Write(_whole(target), made))
        else:  # its elements have another size than those of the storage
            everything = (Dim(math.prod(into.block.shape), 1, 0),)
            into.writes.append(Write(Strided("", 0, 0, everything), into.block.made))

    def _spoil(self, target: torch.Tensor, how: str, others: Iterable[Any]) -> None:
        """Record that an operation wrote values that are not copies. Values that depend on nothing are constants."""
        if not target.numel():
            return
        into = self.known.get(_key(target)) or self.add(target)
        is_constant = how in ("zero_", "fill_") and not self._sources_of(others)
        if is_constant and target.dtype.itemsize == into.dtype.itemsize:
            into.writes.append(Write(_whole(target), (how, ())))
            self._write(into, target, [_whole(target)])
        else:
            self._write_made(into, target, (how, self._sources_of([target, *others])))

    # ---- tensors with storage of their own

    def _fresh(self, out: torch.Tensor, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> None:
        """Record what is in a tensor that an operation returned in a storage of its own."""
        self.known.pop(_key(out), None)
        made = self.add(out)
        self._constant(made, name == "constant_pad_nd" or name in _CONSTANTS)
        if name in _EMPTY or name in _CONSTANTS:
            return
        try:
            for part, x in self._parts(out, name, args, kwargs):
                self._write_part(made, part, x)
        except Unmapped:
            made.block.boxes.clear()
            made.block.spoil(name, self._sources_of(tensors))

    @staticmethod
    def _parts(out: torch.Tensor, name: str, args: Any, kwargs: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the parts of a result, each with the tensor that is copied there. Raises Unmapped for an operation that
        does not copy."""
        if name in _CLONES:
            yield out, args[0]
        elif name in ("cat", "stack"):
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            dim, at = dim + (out.dim() if dim < 0 else 0), 0
            for x in args[0]:
                piece = x.unsqueeze(dim) if name == "stack" else x
                if piece.dim() == out.dim():  # cat() skips empty tensors of one dim
                    yield out.narrow(dim, at, piece.shape[dim]), piece
                    at += piece.shape[dim]
        elif name == "constant_pad_nd" and (len(args) < 3 or args[2] == 0) and all(n >= 0 for n in args[1]):
            part = out
            for i, before in enumerate(args[1][::2]):
                dim = out.dim() - 1 - i
                part = part.narrow(dim, before, args[0].shape[dim])
            yield part, args[0]
        elif name == "index" and len(dims := [d for d, x in enumerate(args[1]) if x is not None]) == 1:
            index = args[1][dims[0]]
            if not _is_index(index) or index.dim() != 1:
                raise Unmapped
            for i, of in enumerate(index.tolist()):
                yield out.select(dims[0], i), args[0].select(dims[0], of)
        else:
            raise Unmapped

    def _write_part(self, made: _Storage, part: torch.Tensor, x: torch.Tensor) -> None:
        """Record that a tensor was copied to a part of a new storage. Raises Unmapped if that is not an exact copy."""
        known = self.known.get(_key(x))
        if known is None or not self._has_elements(x):
            raise Unmapped
        if not _holds(made.dtype, x.dtype):
            raise Unmapped
        _fill(made.block, part, self._exact(x, part.storage_offset(), part.stride()))

    # ---- what was written

    def written(self, named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, Any, list[Write], int]]:
        """Yield, for each parameter, its name, the parameter, its writes, and the number of its elements that nothing
        wrote. A parameter that is tied to an earlier one is left out. Raises ValueError for a number from item() that
        did not fill a parameter."""
        for number in self.numbers:
            if not number.is_used:
                raise _no_value(number.source)
        seen: dict[int, list[tuple[int, int]]] = {}
        last_of = cache(lambda key: _last_of(self.known[key]))  # cached, since several parameters may share a storage
        for name, tensor in named:
            known = self.known.get(_key(tensor))
            lo, hi = tensor.storage_offset(), tensor.storage_offset() + _reach(tensor)
            others = seen.setdefault(_key(tensor), [])
            if any(a <= lo and hi <= b for a, b in others):
                continue  # it is tied to an earlier parameter
            others.append((lo, hi))
            writes = self._replaced(tensor) if known is None or known.name is None else known.writes
            writes = [part for each in writes for part in _inside(each, lo, hi)]
            covered = self._covered(tensor, writes)
            if known is not None and known.name is not None and sum(each.copy.size for each in writes) > covered:
                writes = [part for each in last_of(_key(tensor)) for part in _inside(each, lo, hi)]
            yield name, tensor, writes, tensor.numel() - covered

    def _covered(self, tensor: torch.Tensor, writes: list[Write]) -> int:
        """Return how many elements of a parameter were written."""
        known = self.known.get(_key(tensor))
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

    def _replaced(self, tensor: torch.Tensor) -> list[Write]:
        """Return the writes of a parameter that was given other memory."""
        if not self._has_elements(tensor):
            return []
        try:
            copies = self._copies(tensor, tensor.storage_offset(), tensor.stride())
            return [Write(copy, None if copy.source else ("constant", ())) for copy in copies]
        except Unmapped:
            known = self.known[_key(tensor)]
            how = known.block.made[0] if known.block.made else "a view as another type"
            return [Write(_whole(tensor), (how, self._sources_of([tensor])))]


def _taken_for(dtype: Any, other: Any, copies: Iterable[Strided]) -> list[Strided]:
    """Return copies whose bits are read as another dtype. Raises Unmapped unless the bits are those of the sources."""
    if dtype.itemsize != other.itemsize or any(copy.source and copy.dtype != other for copy in copies):
        raise Unmapped
    return [replace(copy, dtype=dtype) for copy in copies]


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


def _last_of(known: _Storage) -> list[Write]:
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


def _last_in_strides(known: _Storage) -> list[Write]:
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
    return 1 + sum((n - 1) * s for n, s in _region(tensor)) if tensor.numel() else 0


def _whole(tensor: torch.Tensor) -> Strided:
    """Return a write of a constant to all elements of a tensor."""
    return Strided("", 0, tensor.storage_offset(), tuple(Dim(n, s, 0) for n, s in _region(tensor)))


def _fill(block: Block, target: torch.Tensor, copies: Sequence[Strided]) -> None:
    """Write all elements of a target; those that no copy covers are unknown. Raises Unmapped."""
    if sum(copy.size for copy in copies) < target.numel():
        clear(block, _whole(target))
    for copy in copies:
        write(block, copy)


def _flat(x: Any) -> Iterator[Any]:
    """Yield the items of nested lists, tuples and dicts."""
    if isinstance(x, list | tuple):
        for each in x:
            yield from _flat(each)
    elif isinstance(x, dict):
        yield from _flat(list(x.values()))
    else:
        yield x


@dataclass(frozen=True)
class _Kind:
    """What an operation does, according to its schema.

    writes: (position, name) of the arguments that it writes to. is_view: all that it returns lies in storages of its
    arguments. is_turn: it changes the dims of a tensor in place, as t_() and squeeze_() do, and writes no element.
    is_composite: it consists of other operations, as reshape() and to() do. torch.inference_mode() does not decompose
    these, and the schema says of their results only that they may be views.
    """

    writes: tuple[tuple[int, str], ...]
    is_view: bool
    is_turn: bool
    is_composite: bool


@cache
def _kind_of(func: Any) -> _Kind:
    """Return the kind of an operation."""
    schema = func._schema
    arguments = [(i, each.name, each.alias_info) for i, each in enumerate(schema.arguments)]
    writes = tuple((i, name) for i, name, alias in arguments if alias is not None and alias.is_write)
    is_view = not writes and bool(schema.returns) and all(each.alias_info for each in schema.returns)
    is_turn = torch.Tag.inplace_view in func.tags and func.overloadpacket.__name__ not in _OTHER_MEMORY
    return _Kind(
        writes, is_view, is_turn, func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    )


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the tensors that an operation writes to: the one that it works on in place, several in lists, or `out`."""
    given = [args[i] if i < len(args) else kwargs.get(name) for i, name in _kind_of(func).writes]
    return [x for x in _flat(given) if isinstance(x, torch.Tensor)]


def _returned(func: Any, written: list[torch.Tensor]) -> Any:
    """Return what an operation that was not carried out would have returned: the tensors that it would have written."""
    n = len(func._schema.returns)
    return None if n == 0 else written[0] if n == 1 else tuple(written)
