"""What an operation of torch does, according to its name and its schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .regions import Unmapped

__all__ = [
    "CONSTANTS",
    "EMPTY",
    "carried_out",
    "flat",
    "is_index",
    "kind_of",
    "parts_of_copy",
    "returned",
    "written_by",
]

_CLONES = ("clone", "_to_copy")
CONSTANTS = ("zeros", "zeros_like", "new_zeros", "full", "full_like", "new_full", "ones", "ones_like", "new_ones")
EMPTY = ("empty_like", "new_empty", "new_empty_strided")
_OTHER_MEMORY = ("resize_", "resize_as_", "set_")


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
def kind_of(func: Any) -> _Kind:
    """Return the kind of an operation."""
    schema = func._schema
    arguments = [(i, each.name, each.alias_info) for i, each in enumerate(schema.arguments)]
    writes = tuple((i, name) for i, name, alias in arguments if alias is not None and alias.is_write)
    is_view = not writes and bool(schema.returns) and all(each.alias_info for each in schema.returns)
    is_turn = torch.Tag.inplace_view in func.tags and func.overloadpacket.__name__ not in _OTHER_MEMORY
    return _Kind(
        writes, is_view, is_turn, func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    )


def written_by(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the tensors that an operation writes to: the one that it works on in place, several in lists, or `out`."""
    given = [args[i] if i < len(args) else kwargs.get(name) for i, name in kind_of(func).writes]
    return [x for x in flat(given) if isinstance(x, torch.Tensor)]


def returned(func: Any, written: list[torch.Tensor]) -> Any:
    """Return what an operation that was not carried out would have returned: the tensors that it would have written."""
    n = len(func._schema.returns)
    return None if n == 0 else written[0] if n == 1 else tuple(written)


def carried_out(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
    """Carry out an operation. If it has both tensors with data, such as indices or masks, and tensors without data,
    carry it out without data."""
    if any(x.is_meta for x in tensors) and not all(x.is_meta for x in tensors) and not kind_of(func).writes:
        shapes = {id(x): x.to("meta") for x in tensors if not x.is_meta}
        args, kwargs = tree_map(lambda x: shapes.get(id(x), x), (args, kwargs))
    return func(*args, **kwargs)


def is_index(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has values that can select elements."""
    return not tensor.is_meta and tensor.dtype == torch.int64


def flat(x: Any) -> Iterator[Any]:
    """Yield the items of nested lists, tuples and dicts."""
    if isinstance(x, list | tuple):
        for each in x:
            yield from flat(each)
    elif isinstance(x, dict):
        yield from flat(list(x.values()))
    else:
        yield x


def parts_of_copy(out: torch.Tensor, name: str, args: Any, kwargs: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
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
        if not is_index(index) or index.dim() != 1:
            raise Unmapped
        for i, of in enumerate(index.tolist()):
            yield out.select(dims[0], i), args[0].select(dims[0], of)
    else:
        raise Unmapped
