"""The tensors of a plan, as the caller lists them: their names, numbers and layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._binding import structs
from .conversion import Conversion
from .errors import ArgError
from .layout import Layout

__all__ = ["PlanTensors", "Tensors", "c_rows"]

Tensors = Sequence[tuple[str, Layout | None, Layout | None] | tuple[str, Layout | None, Layout | None, Conversion]]


def c_rows(tensors: Tensors) -> Any:
    """Return the tensors as C has them."""
    if not isinstance(tensors, Sequence):
        raise ArgError(f"tensors is a {type(tensors).__name__}, not a list")
    rows = (structs.Tensor * len(tensors))()
    for row, tensor in zip(rows, tensors, strict=True):
        if not isinstance(tensor, Sequence) or len(tensor) < 3:
            raise ArgError(f"a tensor is (name, source layout, destination layout), not {tensor!r}")
        name, src, dst, *conversion = tensor
        row.name, row.src, row.dst = structs.encoded(name, "name"), src, dst
        if conversion:
            if len(conversion) > 1 or not isinstance(conversion[0], Conversion):
                raise TypeError(f"tensor {name!r}: after its layouts comes a Conversion")
            row.conversion = conversion[0]._struct
    return rows


class PlanTensors:
    """The tensors of a plan. A caller gives one by its name, or by its number in the list.

    layouts: the source layout and the destination layout of each.
    """

    def __init__(self, tensors: Tensors) -> None:
        self.layouts = [(tensor[1], tensor[2]) for tensor in tensors]
        self._numbers: dict[str, int | None] = {}  # None: several tensors have the name
        for i, tensor in enumerate(tensors):
            self._numbers[tensor[0]] = i if tensor[0] not in self._numbers else None

    def __len__(self) -> int:
        return len(self.layouts)

    def names(self) -> dict[int, str]:
        """Return the names by number, without those that several tensors have."""
        return {number: name for name, number in self._numbers.items() if number is not None}

    def find(self, tensor: int | str) -> int | None:
        """Return the number of a tensor, or None if there is none, or if number() must decide."""
        if type(tensor) is str:
            return self._numbers.get(tensor)
        return tensor if type(tensor) is int and 0 <= tensor < len(self.layouts) else None

    def number(self, tensor: int | str) -> int:
        """Return the number of a tensor. Raises ValueError if the plan does not have it."""
        if isinstance(tensor, str):
            if tensor not in self._numbers:
                raise ValueError("the plan has no tensor of that name")
            if (number := self._numbers[tensor]) is None:
                raise ValueError("the plan has several tensors of that name: bind them by number")
            return number
        number = structs.whole(tensor, "tensor")
        if isinstance(tensor, bool) or not 0 <= number < len(self.layouts):
            raise ValueError(f"the plan has {len(self.layouts)} tensors")
        return number
